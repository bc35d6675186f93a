#!/usr/bin/env bash
# Tries Feroce against a host with a real RNIC: runs the rows of tests/programs/table.txt between this host, on Feroce, and PEER, in
# both roles, captures both sides, and writes one report (Markdown, with the packets of each failure in it).
#   scripts/interop-kit.sh [OPTION]... PEER [FILTER]
#     PEER                  where ssh goes, such as root@connectx; FILTER is a regular expression that picks rows
#     --interface IFACE     Feroce's interface here (default: the one that leads to the peer)
#     --peer-address IP     the IPv4 address of the peer's RNIC (default: what PEER resolves to)
#     --transport COMMAND   what runs a command line at the peer (default: ssh -n -o BatchMode=yes PEER)
#     --slow                fewer iterations, longer timeouts: for a peer that moves some 10 MB/s
#     --report FOLDER       where report.md and captures go (default: target/interop)
#     --print               runs nothing: prints the commands, to be typed at both ends
# Needs root here, and at both ends the programs (Debian: ibverbs-utils perftest rdmacm-utils ucx-utils
# libfabric-bin). docs/interop.md says what else.
# Exit code 0 if every run passed, 1 if one failed or something is missing, 2 for wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/rows.sh

readonly SNAP=512      # octets of a packet: all headers, and the messages of connection management
readonly PEERS=20000   # packets that the peer captures in a run
readonly SHOWN=60      # packets of each side in the report
host='' filter=. iface='' address='' transport='' slow='' folder=target/interop print=''
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --interface | --peer-address | --transport | --report)
            [ $# -gt 1 ] || { usage >&2 && exit 2; }
            case $1 in
                --interface) iface=$2 ;;
                --peer-address) address=$2 ;;
                --transport) transport=$2 ;;
                --report) folder=$2 ;;
            esac
            shift ;;
        --slow) slow=yes ;;
        --print) print=yes ;;
        -h | --help) usage && exit ;;
        -*) usage >&2 && exit 2 ;;
        *) if [ -z "$host" ]; then host=$1; else filter=$1; fi ;;
    esac
    shift
done
[ -n "$host" ] || { usage >&2 && exit 2; }

main() {
    [ -n "$address" ] || address=$(getent ahostsv4 "${host#*@}" | awk '{ print $1; exit }')
    [ -n "$address" ] || die "${host#*@} has no IPv4 address that is known here: --peer-address"
    [ -n "$iface" ] || iface=$(ip -o route get "$address" | sed -n 's/.* dev \([^ ]*\).*/\1/p')
    own=$(ip -o -4 address show dev "$iface" | awk '{ sub("/.*", "", $4); print $4; exit }')
    [ -n "$own" ] || die "$iface has no IPv4 address"
    if [ -n "$print" ]; then
        print_commands
        return
    fi
    need_root "${arguments[@]}"
    need_packages ibverbs-utils perftest rdmacm-utils ucx-utils libfabric-bin iproute2 ethtool tshark
    [ -n "$transport" ] || transport="ssh -n -o BatchMode=yes $host"
    find_feroce
    work=$(mktemp -d)
    at_exit "rm -rf $work"
    mkdir -p "$folder"
    rm -f "$folder"/*.pcap
    : > "$work/results"
    : > "$work/failures"
    passed=0 failed=0
    [ -z "$slow" ] || export FEROCE_WINDOW=${FEROCE_WINDOW:-64}
    find_device
    say "Feroce on $iface ($own) against $device on $host ($address, GID index $gid)"
    each_row "$filter" play_both
    write_report > "$folder/report.md"
    echo "$passed passed, $failed failed: $folder/report.md"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}

# find_feroce: the one of this clone if it is built, else the installed one.
find_feroce() {
    feroce=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/feroce
    [ -x "$feroce" ] && [ -d "${feroce%/*}/lib" ] || feroce=$(command -v feroce) ||
        die "feroce is not installed: scripts/install.sh"
}

at_peer() { timeout 60 $transport "$*"; }

# The peer's device and the index of the RoCE v2 GID with its address, and with its link-local one.
find_device() {
    local wanted found
    # shellcheck disable=SC2046,SC2086 # Four numbers.
    wanted=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${address//./ })
    # Of each device: types, interfaces and GIDs, a line `DEVICE/ports/1/.../INDEX:VALUE` each.
    found=$(at_peer 'cd /sys/class/infiniband && grep -H . */ports/1/gid_attrs/*/* */ports/1/gids/* 2> /dev/null; true' |
        awk '{
            split($0, parts, ":"); count = split(parts[1], path, "/"); value = substr($0, length(parts[1]) + 2)
            key = path[1] " " path[count]
            if (parts[1] ~ /types/) type[key] = value
            else if (parts[1] ~ /ndevs/) netdev[key] = value
            else if (type[key] == "RoCE v2") print key, netdev[key], value
        }') || die "nothing comes back from the peer: $transport"
    read -r device gid netdev _ < <(grep -F "$wanted" <<< "$found") ||
        die "no device of the peer has a RoCE v2 GID with $address. It has: ${found:-no RDMA device at all}"
    local_gid=$(awk -v device="$device" -v netdev="$netdev" '$1 == device && $3 == netdev && $4 ~ /^fe80/ { print $2; exit }' <<< "$found")
    at_peer 'command -v tcpdump > /dev/null' && captures=yes || captures=''
    [ -n "$captures" ] || note "the peer has no tcpdump: packets are captured here only"
    sniffed=$netdev # An RNIC's packets pass the kernel by, but some devices show them to tcpdump.
    [ -z "$captures" ] || ! at_peer "tcpdump -D 2> /dev/null | grep -qw $device" || sniffed=$device
}

# ---- ends: `here` and `peer`

on() { # END COMMAND...
    local end=$1
    shift
    if [ "$end" = peer ]; then
        # shellcheck disable=SC2086,SC2093 # Words; it becomes that.
        exec timeout --kill-after=5 $((SECONDS_EACH + 20)) $transport \
            "echo \$\$ > /tmp/feroce-kit.row; exec timeout -k 5 $SECONDS_EACH $(for_peer "$*")"
    fi
    exec timeout --kill-after=5 "$SECONDS_EACH" \
        "$feroce" run --quiet --interface "$iface" --pcap "$work/here.pcap" --pcap-snap $SNAP -- "$@"
}

# for_peer COMMAND: with the peer's device and its GID.
for_peer() {
    local words=$1
    case $words in
        ib_*) words=${words/ / -d $device -x $gid } ;;
        ibv_*) words=${words/ / -d $device } && words=${words/ -g 1/ -g $gid} && words=${words/ -g 0/ -g ${local_gid:-0}} ;;
        'env UCX_'*) words="env UCX_NET_DEVICES=$device:1 UCX_IB_GID_INDEX=$gid ${words#env }" ;;
    esac
    for_shell "$words"
}

# for_shell COMMAND: as a shell takes it for these words.
for_shell() { echo "${1//;/\\;}"; }

# has_program: whether the peer has the row's; told once.
declare -A there
has_program() {
    local program
    program=$(program)
    if [ -z "${there[$program]-}" ]; then
        there[$program]=yes
        at_peer "command -v $program > /dev/null" || { there[$program]=no && note "the peer has no $program: its rows are left out"; }
    fi
    [ "${there[$program]}" = yes ]
}

stop() { # END PROCESS
    # shellcheck disable=SC2016 # For the peer.
    [ "$1" != peer ] || at_peer 'kill $(cat /tmp/feroce-kit.row)' 2> /dev/null || true
    kill "$2" 2> /dev/null || true
}

listeners() { # END
    local command='ss -ltnH | wc -l'
    # Who listens by RDMA CM has no TCP socket: the kernel knows the peer's, and of a Feroce program that it has its device.
    case $group-$1 in
        cm-peer | rsocket-peer) command='{ rdma resource show cm_id | grep LISTEN; ss -lunH; } | wc -l' ;;
        cm-* | rsocket-*) command='{ grep feroce/stat /proc/net/unix; ss -lunH; } | wc -l' ;;
    esac
    if [ "$1" = peer ]; then at_peer "$command" || echo 0; else sh -c "$command"; fi
}

# ---- a row

play_both() {
    is_for_two && has_program || return 0
    suit_other_peer
    [ -z "$slow" ] || suit_slow_peer
    play here peer "$own" 'Feroce serves'
    play peer here "$address" 'the peer serves'
}

# is_for_two: whether the row has two ends, and needs nothing at the peer but the distribution's packages.
is_for_two() {
    [ "$server" != - ] && [[ ! "$group" =~ ^(own|udapl)$ && ! "$command" =~ rcopy-and-compare|^migrate|^rsockets|PRELOAD ]] || return 1
}

play() { # END_OF_SERVER END_OF_CLIENT ADDRESS CASE
    local started=$SECONDS verdict=passed tcpdump=''
    rm -f "$work"/*.pcap
    if [ -n "$captures" ]; then
        # shellcheck disable=SC2086 # Words.
        (exec $transport "exec timeout $SECONDS_EACH tcpdump -i $sniffed -s $SNAP -c $PEERS -U -w - udp port 4791") \
            > "$work/peer.pcap" 2> /dev/null &
        tcpdump=$!
    fi
    row "$1" "$2" "$3" || verdict=FAILED
    [ -z "$tcpdump" ] || { kill "$tcpdump" 2> /dev/null || true && wait "$tcpdump" || true; }
    printf '%-7s %4d s  %-9s %-42s %s (%s)\n' $verdict $((SECONDS - started)) "$group" "$what" "$command" "$4"
    record "$4" ${verdict,,}
    if [ $verdict = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && tell_why && describe "$4" "$3"; fi
}

# ---- the report

# describe CASE ADDRESS: the failed run, for the report.
describe() {
    local side
    {
        echo && echo "### $failed. $group: $what ($1)" && echo && echo "$why"
        echo && echo '```'
        echo "server: $server" && echo "client: ${client//SERVER/$2}"
        echo '```'
        for side in server client; do
            echo && echo "What the $side said at the end:" && echo && echo '```'
            tail -n 25 "$work/$side" && echo '```'
        done
        for side in here peer; do
            [ -s "$work/$side.pcap" ] || continue
            cp "$work/$side.pcap" "$folder/$failed-$side.pcap"
            echo && echo "The last $SHOWN packets captured $side (all: $failed-$side.pcap):" && echo && echo '```'
            tshark --disable-protocol rpcordma -r "$work/$side.pcap" 2> /dev/null | tail -n $SHOWN
            echo '```'
        done
    } >> "$work/failures"
}

# block TITLE COMMAND...: what the command prints.
block() {
    echo && echo "$1:" && echo && echo '```'
    shift
    "$@" 2>&1 || true
    echo '```'
}

write_report() {
    local packages='dpkg-query -W libibverbs1 perftest rdmacm-utils ibverbs-providers ucx-utils libfabric-bin 2> /dev/null'
    echo "# Feroce against $device on ${host#*@}"
    echo && echo "$(date -u '+%Y-%m-%d %H:%M') UTC: $passed runs passed, $failed failed."
    echo && table 'Feroce serves' 'the peer serves'
    echo && echo '## The failures' && { [ -s "$work/failures" ] || echo && cat "$work/failures"; }
    [ "$failed" != 0 ] || echo 'None.'
    echo && echo '## This end'
    block System uname -srm
    block Feroce "$feroce" --version
    block Interface ethtool -i "$iface"
    block Link ip -s link show dev "$iface"
    block Device "$feroce" devinfo -i "$iface"
    block 'Settings that are not the default' sh -c "'$feroce' config | grep -v ' default '"
    block Packages sh -c "$packages"
    echo && echo '## The peer'
    block System at_peer uname -srm
    block 'Device and firmware' at_peer "ibv_devinfo -v -d $device"
    block Interface at_peer "ethtool -i $netdev"
    block Link at_peer "ip -s link show dev $netdev"
    block 'Flow control, priorities' at_peer "ethtool -a $netdev; mlnx_qos -i $netdev"
    block Packages at_peer "$packages"
}

# ---- --print

print_commands() {
    device=DEVICE gid=GID local_gid=LOCAL_GID number=0
    echo "# Here: Feroce on $iface ($own). The peer: $address. DEVICE is the peer's, GID the index of its RoCE v2 GID with $address,"
    echo "# LOCAL_GID of that with fe80:: (show_gids tells). Start the first line of a pair, wait until it listens, start the second."
    each_row "$filter" print_row
}

print_row() {
    is_for_two || return 0
    suit_other_peer
    [ -z "$slow" ] || suit_slow_peer
    number=$((number + 1))
    echo && echo "# $number. $group: $what. Right if the client prints a line that matches: $pattern"
    echo "here: sudo feroce run --interface $iface -- $(for_shell "$server")"
    echo "peer: $(for_peer "${client//SERVER/$own}")"
    echo "peer: $(for_peer "$server")"
    echo "here: sudo feroce run --interface $iface -- $(for_shell "${client//SERVER/$address}")"
}

main
