#!/usr/bin/env bash
# Plays cases against Linux rxe in a guest, in both roles: `cargo xtask rxe`.
#   scripts/rxe.sh [--port KIND[:FILTER]]... [--repeat N] [--keep] [--skip-mtu] [--icrcs N]
#                  [--list] [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask rxe "$@"
