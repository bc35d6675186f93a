#!/usr/bin/env bash
# Plays the requests of captures to Feroce and to Linux rxe: `cargo xtask replay-live`.
#   scripts/replay-live.sh [--port KIND] [--only feroce|rxe] [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask replay-live "$@"
