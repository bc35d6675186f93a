#!/usr/bin/env bash
# Compares incasts in virtual time and with real packets: `cargo xtask live-incast`.
#   scripts/live-incast.sh [--port-kind KIND] [--seconds N] [--keep FOLDER] [--bin FOLDER] [K...]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask live-incast "$@"
