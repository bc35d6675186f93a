#!/usr/bin/env bash
# Runs packages of Rust and Python on Feroce: `cargo xtask packages`, which --help describes.
#   scripts/packages.sh [--built] [--rdma-io FOLDER] [--list] [--json FILE] [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask packages "$@"
