#!/usr/bin/env bash
# Runs unmodified programs of the distribution on Feroce: `cargo xtask programs`, which --help
# describes.
#   scripts/programs.sh [--port-kind KIND] [--peer rxe [--kit]] [--judge] [--valgrind]
#                       [--sanitizer address|thread] [--table] [--extra [--rpma FOLDER]]
#                       [--unprivileged] [--list] [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask programs "$@"
