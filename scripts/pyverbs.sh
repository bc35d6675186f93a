#!/usr/bin/env bash
# Runs rdma-core's own Python suite on Feroce: `cargo xtask pyverbs`.
#   scripts/pyverbs.sh [--built] [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask pyverbs "$@"
