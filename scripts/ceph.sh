#!/usr/bin/env bash
# Runs Ceph, as Debian packages it, on Feroce: `cargo xtask ceph`, which --help describes.
#   scripts/ceph.sh [--built] [--ms-type TYPE] [--seconds N]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask ceph "$@"
