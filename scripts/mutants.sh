#!/usr/bin/env bash
# Checks that the tests notice when the engine is wrong: `cargo xtask mutants`.
#   scripts/mutants.sh [--build] [NAME]...
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask mutants "$@"
