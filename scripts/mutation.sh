#!/usr/bin/env bash
# Changes the crates that decide about bytes and memory in the ways that cargo-mutants knows, one
# change at a time; a test must fail. Writes docs/mutation.md: `cargo xtask mutation`. Takes an hour
# and a half on two cores; with all changes, a day.
#   scripts/mutation.sh [--part NAME]... [--slice K/N]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case ${1-} in
    -h | --help) usage && exit ;;
esac
command -v cargo-mutants > /dev/null || cargo install --quiet --locked --debug cargo-mutants
xtask mutation "$@"
