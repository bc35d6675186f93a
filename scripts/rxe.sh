#!/usr/bin/env bash
# Feroce against a stack that nobody here wrote: Linux rxe in a QEMU guest, behind a bridge. Both roles, every
# operation, sizes, losses, errors; data compared byte by byte on both sides, packets judged by scapy and tshark.
#   scripts/rxe.sh [--port KIND[:FILTER]]... [--repeat N] [--keep] [--skip-mtu] [--list] [FILTER]
#     --port KIND   af_xdp (the default), packet, or dpdk (its af_packet driver); several run one after the other, each
#                   with a filter of its own, if it has one
#     --repeat N    plays the cases N times over
#     --keep        leaves the guest and its network until Enter is pressed, and the captures in target/rxe
#     --skip-mtu    leaves out what needs a larger path MTU than the interface has, which fails a run otherwise
#     --list        names the cases
#     FILTER        only the cases whose name contains it
# Needs root; installs what is missing (Debian). Builds the guest once (20 s). Exit code 0 if every case passed,
# 1 if one did not or something is missing, 2 for wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/guest.sh

# Besides the guest's: to build, to look at packets.
readonly PACKAGES=(libibverbs-dev nftables tshark libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config python3-venv)
readonly CAPTURES=target/rxe
readonly HUGEPAGES=64

ports=() filter='' keep='' skip_mtu='' list='' repeat=1

main() {
    local arguments=("$@")
    while [ $# -gt 0 ]; do
        case $1 in
            --port) [ $# -gt 1 ] || usage 2; ports+=("$2"); shift ;;
            --repeat) [ $# -gt 1 ] || usage 2; repeat=$2; shift ;;
            --keep) keep=yes ;;
            --skip-mtu) skip_mtu=yes ;;
            --list) list=yes ;;
            -h | --help) usage 0 ;;
            -*) usage 2 ;;
            *) [ -z "$filter" ] || usage 2; filter=$1 ;;
        esac
        shift
    done
    [ ${#ports[@]} -gt 0 ] || ports=(af_xdp)
    find_cargo
    if [ -n "$list" ]; then
        build --bin rxe
        "$(built)/rxe" --list ${filter:+"$filter"}
        return
    fi
    need_root "${arguments[@]}"
    need_packages "${GUEST_PACKAGES[@]}" "${PACKAGES[@]}"
    need_scapy
    say "Building the suite and the guest"
    local features=()
    if [[ " ${ports[*]}" == *" dpdk"* ]]; then
        need_packages libdpdk-dev libclang-dev
        features=(--features feroce-tests/dpdk)
    fi
    build "${features[@]}" --bin rxe
    tests/rxe/build.sh "$guest_files"
    reserve_hugepages $HUGEPAGES
    work=$(mktemp -d)
    at_exit "rm -rf $work"
    make_guest_network "fr-rxe-$$"
    boot_guest
    local failed=0 port
    for port in "${ports[@]}"; do
        say "Feroce's ${port%%:*} port against rxe"
        addresses_for "${port%%:*}"
        suite "${port%%:*}" "$([[ $port != *:* ]] && echo "$filter" || echo "${port#*:}")" || failed=1
    done
    [ -z "$keep" ] || wait_for_reader
    return $failed
}

usage() {
    sed -n '2,13s/^# \?//p' "$0"
    exit "$1"
}

# suite PORT FILTER: once more if the guest's interface died. That is seldom, and nobody knows yet of what: so it tells.
suite() {
    local status=0
    play "$@" || status=$?
    [ $status != 0 ] || return 0
    addresses_for af_xdp
    ! guest_answers || return $status
    say "The guest's interface is dead: once more, in a new guest. The old one says:"
    guest_ssh "$work/ssh"
    ip netns exec "$engine" timeout 30 ssh -n -F "$work/ssh" guest \
        'dmesg | tail -n 20; ip -s link show data; tc -s qdisc show dev data; ip neighbour' || tail -n 20 "$work/console"
    kill "$guest" 2> /dev/null || true
    wait_for_end "$guest"
    boot_guest
    addresses_for "$1"
    play "$@"
}

play() { # PORT FILTER
    mkdir -p "$CAPTURES"
    ip netns exec "$engine" "$(built)/rxe" --port "$1" --switch "$switch" \
        --captures "$CAPTURES/$1" --python "$python" --repeat "$repeat" ${keep:+--keep} ${skip_mtu:+--skip-mtu} ${2:+"$2"}
}

wait_for_reader() {
    note "the guest runs on, its console is $work/console; the engine's namespace is $engine, the bridge's $switch"
    note "ip netns exec $engine ip addr; tail -f $work/console; captures are in $CAPTURES"
    read -r -p "Enter ends it " || true
}

main "$@"
