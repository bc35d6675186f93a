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

cargo run --quiet --release -p feroce-tests --bin frames -- "$work/frames.pcap" "$count"
# tshark guesses that payloads are RPC over RDMA and calls short SENDs malformed for it, those of rxe too
# (tests/captures/rxe/ops_zero_len.pcap.zst). It also reads on in datagrams of UD that carry nothing: those of up to 36
# bytes of UDP are left to scapy. A UDP checksum of 0 over IPv6 is what RoCEv2 demands.
decode() { tshark --disable-protocol rpcordma -r "$work/frames.pcap" "$@" 2>/dev/null | wc -l; }
total=$(decode)
roce=$(decode -Y infiniband.bth)
bad=$(decode -Y '(_ws.malformed || (_ws.expert.severity == error && !udp.checksum.zero)) && !(infiniband.deth && udp.length <= 36)')
echo "tshark: $total frames, $roce RoCE, $bad malformed or in error"
[ "$total" -ge "$count" ] || die "$count frames were asked for, $total came"
[ "$roce" = "$total" ] || die "$((total - roce)) frames are not RoCE to tshark"
[ "$bad" = 0 ] || die "tshark finds $bad frames malformed or in error"
"$python" scripts/icrc.py "$work/frames.pcap"
