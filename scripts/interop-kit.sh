#!/usr/bin/env bash
# Tries Feroce against a host with a real RNIC, over ssh: `cargo xtask interop-kit`, which --help
# describes. Needs Rust at this end, to build the runner.
#   scripts/interop-kit.sh [OPTION]... PEER [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask interop-kit "$@"
