#!/usr/bin/env bash
# Replays one scenario of a swarm, and searches the smallest one that still fails:
# `cargo xtask swarm`.
#   scripts/swarm.sh SEED[@COMMIT] [--services]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask swarm "$@"
