#!/usr/bin/env bash
# Changes the crates that decide about bytes and memory in the ways that cargo-mutants knows, one
# change at a time; a test must fail. Writes docs/mutation.md: `cargo xtask mutation`. Tries a slice
# of the changes, which takes 40 minutes on two cores; all would take a day.
#   scripts/mutation.sh [--part NAME]... [--slice K/N]
#   scripts/mutation.sh --report      only writes the page again, with new reasons
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case ${1-} in
    -h | --help) usage && exit ;;
esac
command -v cargo-mutants > /dev/null || cargo install --quiet --locked --debug cargo-mutants@27.1.0
xtask mutation "$@"
