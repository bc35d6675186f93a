#!/usr/bin/env bash
# Measures the figures of performance: `cargo xtask bench`.
#   scripts/bench.sh [FILTER]      figures whose name contains FILTER
#   scripts/bench.sh --record ...  also appends them to tests/figures.csv
#   scripts/bench.sh peers         beside Linux rxe, in a guest with two emulated CPUs (9 minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask bench "$@"
