#!/usr/bin/env bash
# Measures the figures of performance: `cargo xtask bench`.
#   scripts/bench.sh [FILTER]      figures whose name contains FILTER
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask bench "$@"
