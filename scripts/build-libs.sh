#!/usr/bin/env bash
# Links the C libraries that verbs applications load: lib/libibverbs.so.1, lib/librdmacm.so.1 and
# their unversioned names, lib/rsocket/librspreload.so.1, which makes TCP applications use rsockets,
# and lib/libsysview.so.1, which shows applications the devices' files without mounts. The folder
# lib is in that of the build profile (target/release/lib), beside the program `feroce`: there
# `feroce run` looks for it.
#   scripts/build-libs.sh
#   SANITIZER=NAME scripts/build-libs.sh       in target/NAME, with AddressSanitizer (address) or
#                                              ThreadSanitizer (thread), for scripts/programs.sh
#                                              --sanitizer NAME
# The last line of the output is the path of the folder lib.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ $# = 0 ] || { usage >&2 && exit 2; }
find_cargo
instrumented=()
if [ -n "${SANITIZER-}" ]; then
    # For a target of its own, so that build scripts are not instrumented. The option is not stable.
    CARGO_BUILD_TARGET=$("$(dirname "$cargo")/rustc" -vV | sed -n 's/^host: //p')
    export CARGO_BUILD_TARGET CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/$SANITIZER
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$SANITIZER ${RUSTFLAGS-}"
    instrumented=("-fsanitize=$SANITIZER")
fi
if [ "${SANITIZER-}" = thread ]; then
    # A standard library that is not instrumented would hide what orders accesses.
    as_caller "$(dirname "$cargo")/rustup" component add rust-src ||
        die "rust-src is missing, and rustup cannot add it"
    export CARGO_UNSTABLE_BUILD_STD=std
fi
build --lib
out=$(built)
if [ "${SANITIZER-}" = thread ]; then
    cc -O1 -fno-builtin -fPIC -c scripts/thread-sanitizer.c -o "$out/thread-sanitizer.o"
    instrumented+=("$out/thread-sanitizer.o")
fi

# link CRATE LIBRARY WITH...: links the crate's archive as LIBRARY.so.1, with the symbol versions in
# the library's map. rustc would add a version script of its own, so this script calls the linker.
# The linker takes from the archive the symbols that the map exports, all of which must exist, and
# what they need. Programs close the library after a failure and continue: with nodelete, the code
# of the library's threads stays mapped.
link() {
    local archive=$out/lib${1//-/_}.a map=engine/$2/$2.map so=$out/lib/${folder-}$2.so
    local wanted=() name with=("${@:3}") options
    if [ ! "$so.1" -nt "$archive" ] || [ ! "$so.1" -nt "$map" ]; then
        for name in $(sed -n 's/^ *\([_a-z0-9]*\);$/\1/p' "$map"); do
            wanted+=("-Wl,--require-defined=$name")
        done
        options=("-Wl,-soname,$2.so.1" "-Wl,--version-script=$map" "-Wl,-z,defs"
            "-Wl,-z,relro,-z,now" "-Wl,-z,nodelete" "-Wl,--gc-sections")
        cc -shared "${instrumented[@]}" -o "$so.1.new" "${options[@]}" "${wanted[@]}" \
            "$archive" "${with[@]}" -lpthread -ldl -lm -lgcc_s -lc
        mv "$so.1.new" "$so.1"
    fi
    # Tests may be copying the folder, and `ln -f` makes a file with a temporary name in it.
    [ "$(readlink "$so")" = "$2.so.1" ] || ln -sf "$2.so.1" "$so"
}

mkdir -p "$out/lib/rsocket"
exec 9> "$out/lib/.lock"
flock 9 # Tests run this script at the same time.
# --undefined links the object files of names with several versions, too: src/symver.rs.
link feroce-libibverbs libibverbs -Wl,--undefined=feroce_IBVERBS_1.0_ibv_open_device \
    -Wl,--undefined=feroce_IBVERBS_PRIVATE_65_execute_ioctl -lelf -lz
link feroce-librdmacm librdmacm "$out/lib/libibverbs.so.1"
# In a folder of its own, as in rdma-core: this library is for LD_PRELOAD, not for linking.
folder=rsocket/ link feroce-librspreload librspreload \
    "$out/lib/librdmacm.so.1" "$out/lib/libibverbs.so.1"
link feroce-libsysview libsysview -Wl,--undefined=feroce_sysview_prepare
echo "$out/lib"
