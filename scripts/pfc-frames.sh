#!/usr/bin/env bash
# Compares scapy, tshark and `feroce pfc decode` on PFC and PAUSE frames that `feroce pfc send` and
# scapy make, a third of them invalid. The three decoders must agree on every field and on every
# violation. The judge is scripts/pfc_frames.py, which shares no code with Feroce.
#   scripts/pfc-frames.sh [COUNT] [SEED]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
count=${1:-1000} seed=${2:-1}
[[ $count$seed =~ ^[0-9]+$ ]] || { usage >&2 && exit 2; }
work=$(mktemp -d)
at_exit "rm -rf $work"
need_scapy

find_cargo
build --bin feroce
feroce=$(built)/feroce
"$feroce" pfc send random --count "$count" --seed "$seed" --pcap "$work/ours.pcap"
"$python" scripts/pfc_frames.py make "$work/scapy.pcap" "$count" "$seed"

readonly FIELDS="frame.len eth.dst eth.src eth.type vlan.etype vlan.id vlan.priority macc.opcode
    macc.pause_time macc.cbfc.enbv macc.cbfc.pause_time.c0 macc.cbfc.pause_time.c1
    macc.cbfc.pause_time.c2 macc.cbfc.pause_time.c3 macc.cbfc.pause_time.c4
    macc.cbfc.pause_time.c5 macc.cbfc.pause_time.c6 macc.cbfc.pause_time.c7"
for name in ours scapy; do
    # 3: findings, since a third of the frames is invalid.
    "$feroce" pfc decode "$work/$name.pcap" --json > "$work/$name.json" || [ $? = 3 ] ||
        die "decode failed on $name.pcap"
    # shellcheck disable=SC2046 # a word for each field
    tshark -r "$work/$name.pcap" -T fields -E occurrence=f $(printf -- '-e %s ' $FIELDS) \
        > "$work/$name.fields" 2> /dev/null
    "$python" scripts/pfc_frames.py judge \
        "$work/$name.pcap" "$work/$name.json" "$work/$name.fields" "$count"
done
