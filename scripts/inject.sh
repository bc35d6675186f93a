#!/usr/bin/env bash
# Plays the catalogue of event scripts (pfc-tools/conform/catalogue) between two Feroces on AF_XDP, and between Feroce and Linux
# rxe in a QEMU guest, in both roles: a relay in user space stands where the cable is, and does to chosen packets what a script says.
#   scripts/inject.sh [--port KIND] [--only feroce|rxe] [SCRIPT]...
#     --port KIND   of Feroce: af_xdp (the default) or packet
#     --only WHICH  against Feroce only, or against rxe only
#     SCRIPT        names of the catalogue's, or files, in place of the whole catalogue
# Scorecards and captures are left in target/inject; with the whole catalogue, docs/scorecards is written from them, too.
# Needs root; installs what is missing (Debian). Exit code 0 if Feroce fails nothing, 1 if it does or something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/guest.sh

readonly OUT=target/inject
readonly KNOWN=pfc-tools/conform/known-failures.toml

main() {
    local arguments=("$@") port=af_xdp only='' scripts=()
    while [ $# -gt 0 ]; do
        case $1 in
            --port) [ $# -gt 1 ] || { usage; exit 2; }; port=$2; shift ;;
            --only) [ $# -gt 1 ] || { usage; exit 2; }; only=$2; shift ;;
            -h | --help) usage; exit 0 ;;
            -*) usage; exit 2 ;;
            *) scripts+=("$1") ;;
        esac
        shift
    done
    local whole=''
    [ ${#scripts[@]} -gt 0 ] || { scripts=(--catalogue); whole=yes; }
    need_root "${arguments[@]}"
    need_packages "${GUEST_PACKAGES[@]}" libelf-dev zlib1g-dev clang m4 make pkg-config
    find_conform
    mkdir -p $OUT
    reserve_hugepages 64
    work=$(mktemp -d)
    at_exit "rm -rf $work"
    "${conform[@]}" inject "${scripts[@]}" --json $OUT/feroce-fabric.json --captures $OUT/feroce-fabric > "$work/fabric" || failed=1
    tail -n 1 "$work/fabric"
    [ "$only" = rxe ] || against_feroce
    [ "$only" = feroce ] || against_rxe
    if [ -n "$whole" ] && [ -z "$only" ]; then write_pages; fi
    return "${failed:-0}"
}

# play NAME NAMESPACE A B REQUESTER RESPONDER: an item that fails may be played twice more, where the machine is late by itself.
play() {
    say "$1"
    "${conform[@]}" inject "${scripts[@]}" --namespace "$2" --live "$3" "$4" --requester "$5" --responder "$6" \
        --again 2 --json "$OUT/$1.json" --captures "$OUT/$1"
}

# Two namespaces, and one with the relay between them.
against_feroce() {
    local name=fr-inject-$$ end
    for end in a b relay; do
        at_exit "ip netns delete $name-$end 2> /dev/null"
        ip netns add "$name-$end"
        ip netns exec "$name-$end" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    done
    for end in a b; do
        ip link add "far-$end" netns "$name-relay" mtu $MTU type veth peer name v0 netns "$name-$end" mtu $MTU
        ip -n "$name-$end" address add "10.77.0.$([ $end = a ] && echo 1 || echo 2)/24" dev v0
        ip -n "$name-$end" link set v0 up
        ip -n "$name-relay" link set "far-$end" up
        plain "$name-$end" v0
        plain "$name-relay" "far-$end"
    done
    know "$name-a" v0 10.77.0.2 "$(mac_of "$name-b" v0)"
    know "$name-b" v0 10.77.0.1 "$(mac_of "$name-a" v0)"
    play "feroce-$port" "$name-relay" far-a far-b "feroce:$name-a:v0:$port" "feroce:$name-b:v0:$port" || failed=1
}

# The guest's TAP and the engine's veth leave their bridge: the relay stands between them.
against_rxe() {
    local address
    tests/rxe/build.sh "$guest_files"
    make_guest_network "fr-inject-$$"
    boot_guest
    ip -n "$switch" link set tap-data nomaster
    ip -n "$switch" link set v0-far nomaster
    plain "$switch" tap-data
    know "$engine" v0 10.77.0.2 $DATA_MAC
    address=$(mac_of "$engine" v0)
    guest_ssh "$work/ssh"
    ip netns exec "$engine" ssh -n -F "$work/ssh" guest "ip neighbour replace 10.77.0.1 lladdr $address dev data nud permanent"
    # What rxe fails is rxe's; what Feroce does wrong in the same items is told by the checkers of its side.
    play rxe-responds "$switch" v0-far tap-data "feroce:$engine:v0:$port" "rxe:$engine" || true
    play rxe-requests "$switch" tap-data v0-far "rxe:$engine" "feroce:$engine:v0:$port" || true
}

mac_of() { ip netns exec "$1" cat "/sys/class/net/$2/address"; }

know() { ip -n "$1" neighbour replace "$3" lladdr "$4" dev "$2" nud permanent; }

plain() {
    ip netns exec "$1" ethtool -K "$2" tx off gso off gro off tso off > /dev/null 2>&1 || note "ethtool cannot set all features of $2"
}

write_pages() {
    local cards=(feroce-fabric "feroce-$port" rxe-responds rxe-requests) card files=()
    mkdir -p docs/scorecards
    for card in "${cards[@]}"; do
        cp "$OUT/$card.json" docs/scorecards/
        files+=("docs/scorecards/$card.json")
    done
    # The packets that show what rxe fails.
    for card in rxe-responds rxe-requests; do
        rm -rf "docs/scorecards/$card"
        mkdir -p "docs/scorecards/$card"
        failed_items "$OUT/$card.json" | while read -r item; do
            cp "$OUT/$card/$item.pcap" "docs/scorecards/$card/"
        done
    done
    "${conform[@]}" scorecard "${files[@]}" --known $KNOWN -o $OUT/scorecards.html --markdown docs/scorecards/README.md
}

# failed_items CARD: their names.
failed_items() {
    python3 -c '
import json, sys
for item in json.load(open(sys.argv[1]))["items"]:
    if not item["not_played"] and any(verdict["findings"] for verdict in item["verdicts"]):
        print(item["script"])' "$1"
}

failed=0
main "$@"
