#!/usr/bin/env bash
# Plays the requester's part of captures to real endpoints, Feroce in a namespace of its own and Linux rxe in a QEMU guest, and
# compares what they answer with what was captured: feroce conform replay --live.
#   scripts/replay-live.sh [--port KIND] [--only feroce|rxe] [FILTER]
#     --port KIND   of Feroce: packet (the default) or af_xdp
#     --only WHICH  to Feroce only, or to rxe only
#     FILTER        only captures whose name contains it
# Needs root; installs what is missing (Debian). FEROCE_CONFORM names a feroce that is built already. Exit code 0 if every
# capture is answered alike, 1 if one is not or something is missing, 2 for wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/guest.sh

# Capture; requests that are played. How many answers come to them depends on how many of them one stands for.
# Left out: captures of UC, UD and connection management, which nobody answers; those of the requester's end of a bridge that loses
# frames (tapB), where the responder did not hear what is there, and those behind it (netemA), where answers are missing;
# rc_pingpong_v6ll, whose addresses are link-local; rnr_send_bw, which agrees with Feroce most times only: where answers to many duplicates
# come as one, the others are not always paired right.
captures() {
    grep -v '^#' << 'TABLE'
hardware/huawei_hiroce_oferby_proxy.pcap 68
rxe/atomic_fa_v4.pcap.zst 200
rxe/atomic_lat_v4.pcap.zst 100
rxe/loss_netemB_write.pcap.zst 1774
rxe/loss_nft_atomic.tapA.pcap.zst 237
rxe/loss_nft_send_1024.tapA.pcap.zst 3666
rxe/loss_nft_write_1024.tapA.pcap.zst 3171
rxe/ops_bad_rkey_atomic.pcap.zst 1
rxe/ops_bad_rkey_read.pcap.zst 1
rxe/ops_bad_rkey_write.pcap.zst 7
rxe/ops_oob_read.pcap.zst 1
rxe/ops_psn_mismatch.pcap.zst 268
rxe/ops_psn_wrap.pcap.zst 11
rxe/ops_rd1.pcap.zst 54
rxe/ops_read_big.pcap.zst 2
rxe/ops_rnr_exhaust.pcap.zst 3
rxe/ops_rnr_late.pcap.zst 186
rxe/ops_ro_write.pcap.zst 3
rxe/ops_rx_short.pcap.zst 5
rxe/ops_send_imm.pcap.zst 11
rxe/ops_send_inv.pcap.zst 5
rxe/ops_tos.pcap.zst 54
rxe/ops_write_imm.pcap.zst 9
rxe/ops_zero_len.pcap.zst 5
rxe/rc_pingpong_events.pcap.zst 202
rxe/rc_pingpong_v4_1024.pcap.zst 808
rxe/rc_pingpong_v4_2048.pcap.zst 537
rxe/rc_pingpong_v4_256.pcap.zst 1635
rxe/rc_pingpong_v6_1024.pcap.zst 805
rxe/read_bw_v4_1024.pcap.zst 20
rxe/read_bw_v4_4096.pcap.zst 20
rxe/read_lat_v4.pcap.zst 200
rxe/reorder_netemB_send.pcap.zst 3938
rxe/rping_v4.pcap.zst 120
rxe/rping_v6.pcap.zst 120
rxe/rstream_v4.pcap.zst 1612
rxe/send_bw_cm_v4.pcap.zst 182
rxe/send_bw_v4_1024.pcap.zst 1280
rxe/send_bw_v6_4096.pcap.zst 320
rxe/send_lat_v4.pcap.zst 402
rxe/write_bw_qp4_bidir.pcap.zst 1280
rxe/write_bw_v4_1024.pcap.zst 1280
rxe/write_bw_v4_4096.pcap.zst 320
rxe/write_lat_v4.pcap.zst 401
softroce-public/montybeatnik_rdma-roce-lab__roce_capture_read-write-ecn.pcap 2
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
    find_conform
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
    play_all "Feroce ($port)" "$name-a" "feroce:$name-b:v1:$port"
}

to_rxe() {
    tests/rxe/build.sh "$guest_files"
    make_guest_network "fr-replay-$$"
    boot_guest
    play_all rxe "$engine" "rxe:$engine"
}

# play_all WHO NAMESPACE STACK: every capture of the table.
play_all() {
    local file expected peer passed=0 played=0
    say "To $1"
    while read -r file expected; do
        played=$((played + 1))
        peer=10.77.0.2
        [[ $file != *_v6[_.]* ]] || peer=fd77::2
        if play "$expected" "tests/captures/$file" --live v0 --namespace "$2" --peer $peer --responder "$3"; then
            passed=$((passed + 1))
        else
            failed=1
        fi
    done < <(rows)
    told+=("$passed of $played captures are answered alike by $1.")
}

# play EXPECTED FILE OPTION...: whether so many requests are played, and each is answered as captured.
play() {
    local expected=$1 status=0 played
    shift
    timeout 120 "${conform[@]}" replay "$@" > "$work/out" 2> "$work/errors" || status=$?
    played=$(awk 'match($0, /[0-9]+ packets played/) { sum += substr($0, RSTART, RLENGTH) } END { print sum + 0 }' "$work/out")
    if [ "$status" = 0 ] && [ "$played" = "$expected" ]; then
        printf '%-6s %6s  %s, %s\n' ok "$expected" "$1" "$(tail -n 1 "$work/out")"
        return
    fi
    printf '%-6s %6s  %s: exit code %s, %s expected\n' FAILED "$played" "$1" "$status" "$expected"
    sed 's/^/       /' "$work/out" "$work/errors"
    return 1
}

failed=0 told=()
main "$@"
