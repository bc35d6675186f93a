#!/usr/bin/env bash
# Builds the Debian package `feroce` with cargo-deb, from the files that scripts/install.sh
# installs.
#   scripts/build-deb.sh
# The last line of the output is the path of the package.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ $# = 0 ] || { usage >&2 && exit 2; }

find_cargo
export PATH="${cargo%/*}:$PATH"
command -v cargo-deb > /dev/null || "$cargo" install --quiet --locked --debug cargo-deb ||
    die "cannot install cargo-deb"
files=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/package
rm -rf "$files"
scripts/install.sh --prefix /usr --destdir "$files"
rm "$files/usr/lib/feroce/installed" # dpkg keeps its own list.
"$cargo" deb --quiet -p feroce --no-build --no-strip --deb-revision ''
rm -rf "$files"
ls -t "${files%/release/package}"/debian/feroce_*.deb | head -n 1
