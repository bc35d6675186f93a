#!/usr/bin/env bash
# Links the C libraries that programs written for verbs load: lib/libibverbs.so.1 and
# lib/librdmacm.so.1, and their unversioned names beside them, in the folder of the build profile
# (target/release/lib), and lib/rsocket/librspreload.so.1, which makes programs written for TCP use
# rsockets. `feroce run` looks for them beside itself.
#   scripts/build-libs.sh
# The last line is the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ $# = 0 ] || { usage >&2 && exit 2; }
find_cargo
build --lib
out=$(built)

# link CRATE LIBRARY WITH...: the crate's archive as LIBRARY.so.1 with the versions in its map.
# rustc would link a library with a version script of its own, so the archive is linked here. The
# linker takes from it what the map exports, which must be there, and what that needs. Programs
# close the library on failure and go on: nodelete keeps the threads' code.
link() {
    local archive=$out/lib${1//-/_}.a map=engine/$2/$2.map so=$out/lib/${folder-}$2.so wanted=() name with=("${@:3}")
    if [ ! "$so.1" -nt "$archive" ] || [ ! "$so.1" -nt "$map" ]; then
        for name in $(sed -n 's/^ *\([_a-z0-9]*\);$/\1/p' "$map"); do wanted+=(-Wl,--require-defined="$name"); done
        cc -shared -o "$so.1.new" -Wl,-soname,"$2.so.1" -Wl,--version-script="$map" -Wl,-z,defs -Wl,-z,relro,-z,now \
            -Wl,-z,nodelete -Wl,--gc-sections "${wanted[@]}" "$archive" "${with[@]}" -lpthread -ldl -lm -lgcc_s -lc
        mv "$so.1.new" "$so.1"
    fi
    ln -sf "$2.so.1" "$so"
}

mkdir -p "$out/lib/rsocket"
exec 9> "$out/lib/.lock"
flock 9 # Tests run it side by side.
link feroce-libibverbs libibverbs -Wl,--undefined=feroce_old_ibv_open_device -lelf -lz # The file of the old versions, too.
link feroce-librdmacm librdmacm "$out/lib/libibverbs.so.1"
# In a folder of its own, as rdma-core has it: it is for LD_PRELOAD, not for programs to link.
folder=rsocket/ link feroce-librspreload librspreload "$out/lib/librdmacm.so.1" "$out/lib/libibverbs.so.1"
echo "$out/lib"
