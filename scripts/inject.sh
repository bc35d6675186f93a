#!/usr/bin/env bash
# Plays event scripts between two Feroces, and between Feroce and Linux rxe: `cargo xtask inject`.
#   scripts/inject.sh [--port KIND] [--only feroce|rxe] [SCRIPT]...
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask inject "$@"
