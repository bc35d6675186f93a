#!/usr/bin/env bash
# Lets tshark and scapy judge frames that Feroce sent: `cargo xtask frames`.
#   scripts/frames.sh [COUNT]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
xtask frames "$@"
