#!/usr/bin/env bash
# Makes the Debian package `feroce`, by cargo-deb, of what scripts/install.sh installs.
#   scripts/build-deb.sh
# The last line is the package's path.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ $# = 0 ] || { usage >&2 && exit 2; }

find_cargo
export PATH="${cargo%/*}:$PATH"
command -v cargo-deb > /dev/null || "$cargo" install --quiet --locked --debug cargo-deb || die "cannot install cargo-deb"
files=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/package
rm -rf "$files"
scripts/install.sh --prefix /usr --destdir "$files"
rm "$files/usr/lib/feroce/installed" # dpkg has a list of its own.
"$cargo" deb --quiet -p feroce --no-build --no-strip --deb-revision ''
rm -rf "$files"
ls -t "${files%/release/package}"/debian/feroce_*.deb | head -n 1
