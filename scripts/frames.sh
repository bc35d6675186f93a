#!/usr/bin/env bash
# Frames that Feroce sent, judged by decoders that nobody here wrote: tshark must find none malformed, and
# scapy must compute the same ICRC for every one.
#   scripts/frames.sh [COUNT]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
count=${1:-10000}
work=$(mktemp -d)
at_exit "rm -rf $work"
need_scapy

find_cargo
build --bin frames
"$(built)/frames" "$work/frames.pcap" "$count"
judge_frames "$work/frames.pcap" "$count"
