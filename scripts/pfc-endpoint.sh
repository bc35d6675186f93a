#!/usr/bin/env bash
# Measures how well an endpoint obeys PFC pauses: `cargo xtask pfc-endpoint`.
#   scripts/pfc-endpoint.sh [--short] [--bin FOLDER] [--seconds N] [KIND...]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask pfc-endpoint "$@"
