#!/usr/bin/env bash
# Frames that Feroce sent, judged by decoders that nobody here wrote: tshark must find none malformed, and
# scapy must compute the same ICRC for every one.
#   scripts/frames.sh [COUNT]
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-10000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python=${FEROCE_PYTHON:-target/venv/bin/python}
if ! "$python" -c 'import scapy.contrib.roce' 2>/dev/null; then
    python3 -m venv target/venv
    target/venv/bin/pip install --quiet --disable-pip-version-check 'scapy==2.8.0'
    python=target/venv/bin/python
fi

cargo run --quiet --release -p feroce-tests --bin frames -- "$work/frames.pcap" "$count"
# tshark guesses that payloads are RPC over RDMA and calls short SENDs malformed for it, those of rxe too
# (tests/captures/rxe/ops_zero_len.pcap.zst). A UDP checksum of 0 over IPv6 is what RoCEv2 demands.
decode() { tshark --disable-protocol rpcordma -r "$work/frames.pcap" "$@" 2>/dev/null | wc -l; }
total=$(decode)
roce=$(decode -Y infiniband.bth)
bad=$(decode -Y '_ws.malformed || (_ws.expert.severity == error && !udp.checksum.zero)')
echo "tshark: $total frames, $roce RoCE, $bad malformed or in error"
fail() {
    echo "frames: $*" >&2
    exit 1
}
[ "$total" -ge "$count" ] || fail "$count frames were asked for, $total came"
[ "$roce" = "$total" ] || fail "$((total - roce)) frames are not RoCE to tshark"
[ "$bad" = 0 ] || fail "tshark finds $bad frames malformed or in error"
"$python" scripts/icrc.py "$work/frames.pcap"
