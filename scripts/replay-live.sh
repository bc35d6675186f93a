#!/usr/bin/env bash
# Plays the requester's part of captures to real endpoints, Feroce in a namespace of its own and Linux rxe in a QEMU guest, and
# compares what they answer with what was captured: feroce conform replay --live.
#   scripts/replay-live.sh [--port KIND] [--only feroce|rxe] [FILTER]
#     --port KIND   of Feroce: packet (the default) or af_xdp
#     --only WHICH  to Feroce only, or to rxe only
#     FILTER        only captures whose name contains it
# Needs root; installs what is missing (Debian). FEROCE_CONFORM names a feroce-conform that is built already. Exit code 0 if every
# capture is answered alike, 1 if one is not or something is missing, 2 for wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/guest.sh

# Capture; packets answered alike by Feroce and by rxe (?: not measured yet, which fails and shows the figure); further options.
captures() {
    grep -v '^#' << 'TABLE'
rxe/write_bw_v4_1024.pcap.zst ? ?
rxe/write_bw_v4_4096.pcap.zst ? ?
rxe/write_lat_v4.pcap.zst ? ?
rxe/send_bw_v4_1024.pcap.zst ? ?
rxe/send_bw_v6_4096.pcap.zst ? ?
rxe/read_bw_v4_1024.pcap.zst ? ?
rxe/read_lat_v4.pcap.zst ? ?
rxe/atomic_fa_v4.pcap.zst ? ?
rxe/ops_psn_wrap.pcap.zst ? ?
rxe/ops_send_imm.pcap.zst ? ?
rxe/ops_write_imm.pcap.zst ? ?
rxe/ops_send_inv.pcap.zst ? ?
rxe/ops_zero_len.pcap.zst ? ?
rxe/ops_rd1.pcap.zst ? ?
rxe/ops_rnr_late.pcap.zst ? ?
rxe/ops_bad_rkey_write.pcap.zst ? ?
rxe/ops_bad_rkey_read.pcap.zst ? ?
rxe/ops_rx_short.pcap.zst ? ?
rxe/ops_psn_mismatch.pcap.zst ? ?
rxe/loss_nft_atomic.tapA.pcap.zst ? ?
hardware/huawei_hiroce_oferby_proxy.pcap ? ?
TABLE
}

main() {
    local arguments=("$@") port=packet only='' filter=''
    while [ $# -gt 0 ]; do
        case $1 in
            --port) [ $# -gt 1 ] || { usage; exit 2; }; port=$2; shift ;;
            --only) [ $# -gt 1 ] || { usage; exit 2; }; only=$2; shift ;;
            -h | --help) usage; exit 0 ;;
            -*) usage; exit 2 ;;
            *) [ -z "$filter" ] || { usage; exit 2; }; filter=$1 ;;
        esac
        shift
    done
    case $port/$only in
        packet/ | packet/feroce | packet/rxe | af_xdp/ | af_xdp/feroce | af_xdp/rxe) ;;
        *) usage; exit 2 ;;
    esac
    [ -n "$(rows)" ] || { echo "no capture's name contains $filter" >&2; exit 2; }
    need_root "${arguments[@]}"
    need_packages "${GUEST_PACKAGES[@]}" libelf-dev zlib1g-dev clang m4 make pkg-config
    if [ -n "${FEROCE_CONFORM:-}" ]; then
        conform=$FEROCE_CONFORM
    else
        find_cargo
        say "Building feroce-conform"
        build --bin feroce-conform
        conform=$(built)/feroce-conform
    fi
    work=$(mktemp -d)
    at_exit "rm -rf $work"
    [ "$only" = rxe ] || to_feroce
    [ "$only" = feroce ] || to_rxe
    say "${told[*]}"
    return $failed
}

# rows: those of the table that are asked for.
rows() { captures | grep -F -- "$filter" || true; }

# Two namespaces with a cable between them.
to_feroce() {
    local name=fr-replay-$$ end
    make_pair "$name" $MTU
    plain_frames "$name"
    for end in "a v0 1" "b v1 2"; do
        # shellcheck disable=SC2086 # Three words.
        set -- $end
        ip netns exec "$name-$1" sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
        ip -n "$name-$1" -6 address add "fd77::$3/64" dev "$2" nodad
        ip -n "$name-$1" link set lo up
    done
    reserve_hugepages 64
    play_all "Feroce ($port)" 2 "$name-a" "feroce:$name-b:v1:$port"
}

to_rxe() {
    tests/rxe/build.sh "$guest_files"
    make_guest_network "fr-replay-$$"
    boot_guest
    play_all rxe 3 "$engine" "rxe:$engine"
}

# play_all WHO COLUMN NAMESPACE STACK: every capture of the table that has a number in the column.
play_all() {
    local file expected peer options passed=0 played=0
    say "To $1"
    while read -r file expected options; do
        [ "$expected" != - ] || continue
        played=$((played + 1))
        peer=10.77.0.2
        [[ $file != *_v6_* ]] || peer=fd77::2
        # shellcheck disable=SC2086 # Options are words.
        if play "$expected" "tests/captures/$file" --live v0 --namespace "$3" --peer $peer --responder "$4" $options; then
            passed=$((passed + 1))
        else
            failed=1
        fi
    done < <(rows | awk -v column="$2" '{ rest = ""; for (i = 4; i <= NF; i++) rest = rest " " $i; print $1, $column, rest }')
    told+=("$passed of $played captures are answered alike by $1.")
}

# play EXPECTED FILE OPTION...: whether so many packets are answered as captured.
play() {
    local expected=$1 status=0 last
    shift
    timeout 120 "$conform" replay "$@" > "$work/out" 2> "$work/errors" || status=$?
    last=$(tail -n 1 "$work/out")
    if [ "$status" = 0 ] && [ "$last" = "agrees: $expected packets compared" ]; then
        printf '%-6s %6s  %s\n' ok "$expected" "$1"
        return
    fi
    printf '%-6s %6s  %s: exit code %s, %s expected\n' FAILED '' "$1" "$status" "$expected"
    sed 's/^/       /' "$work/out" "$work/errors"
    return 1
}

failed=0 told=()
main "$@"
