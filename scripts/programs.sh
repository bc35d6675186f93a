#!/usr/bin/env bash
# Runs programs of the distribution, unmodified, with Feroce at both ends: two network namespaces joined by a veth pair.
# Or with Linux rxe at one end, in a guest, each program in both roles: either end serves.
# Installs what is missing (Debian), builds, and leaves nothing else behind.
#   scripts/programs.sh [--port-kind KIND] [--peer rxe [--kit]] [--judge] [--valgrind] [--table] [--list] [FILTER]
#     --port-kind KIND   Feroce's port
#     --peer rxe         rxe at the other end. What it cannot do is in tests/programs/rxe.txt. Captures of rows that fail
#                        are left in target/programs
#     --kit              has scripts/interop-kit.sh run the rows, with the guest as its peer, which tests the kit
#     --judge            has tshark and scapy look at the first packets of each row (the ends meet at a bridge then)
#     --valgrind         runs both ends in Valgrind, which fails a row whose memory is misused; FILTER is then ^pingpong
#     --table            writes the results into docs/programs.md, with --peer into docs/interop.md
#     --list             prints the rows
#     FILTER             a regular expression that picks rows of tests/programs/table.txt
# Exit code 0 if every row passed, 1 if one failed, 2 for wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/guest.sh
. scripts/rows.sh

readonly CAPTURES=target/programs
readonly JUDGED=2000 # packets of a row; scapy takes a second for them
filter='' table='' wrap=() peer='' judge='' list='' kit=''
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --port-kind) [ $# -gt 1 ] || { usage >&2 && exit 2; }; export FEROCE_PORT_KIND=$2 && shift ;;
        --peer) [ "${2-}" = rxe ] || { usage >&2 && exit 2; }; peer=rxe && shift ;;
        --judge) judge=yes ;;
        --kit) kit=yes ;;
        --valgrind) # Which turns one thread at a time: the one that waits longest, or the helper would come too late.
            wrap=(valgrind --quiet --fair-sched=yes --error-exitcode=99 --suppressions="$PWD/tests/programs/valgrind.supp")
            SECONDS_EACH=$((SECONDS_EACH * 3))
            ;;
        --table) table=yes ;;
        --list) list=yes ;;
        -h | --help) usage && exit ;;
        -*) usage >&2 && exit 2 ;;
        *) filter=$1 ;;
    esac
    shift
done
[ -n "$filter" ] || { [ ${#wrap[@]} -gt 0 ] && filter='^pingpong' || filter=.; }

main() {
    # shellcheck disable=SC2016 # For later.
    [ -z "$list" ] || { each_row "$filter" eval 'printf "%-9s %-42s %s\n" "$group" "$what" "$command"' && return; }
    need_root "${arguments[@]}"
    need_packages libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 ethtool ibverbs-utils perftest \
        rdmacm-utils fio qperf ${wrap[0]:-}
    [ -z "$judge" ] || { need_packages tshark tcpdump python3-venv && need_scapy; }
    find_cargo
    say "Building"
    build --bin feroce
    preload=$(scripts/build-libs.sh | tail -n 1)/rsocket/librspreload.so.1
    feroce=$(built)/feroce
    work=$(mktemp -d)
    at_exit "rm -rf $work"
    reserve_hugepages 128
    : > "$work/results"
    passed=0 failed=0 skipped=0
    if [ -n "$peer" ]; then
        with_rxe
    else
        with_feroce
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}

# ---- ends: `a` and `b` are Feroce's, `rxe` the guest's

# What Feroce's ends are: a namespace and an interface.
declare -A namespace interface

on() { # END COMMAND...
    local end=$1
    shift
    if [ "$end" = rxe ]; then
        # Its process, for who ends it.
        # shellcheck disable=SC2093 # It becomes that.
        exec timeout --kill-after=5 $((SECONDS_EACH + 20)) ip netns exec "$engine" ssh -n -F "$work/ssh" guest \
            "echo \$\$ > /run/row; exec timeout --kill-after=5 $SECONDS_EACH $*"
    fi
    DAT_OVERRIDE=$work/dat.${interface[$end]} exec timeout --kill-after=5 "$SECONDS_EACH" ip netns exec "${namespace[$end]}" \
        "$feroce" run --quiet --interface "${interface[$end]}" -- "${wrap[@]}" "$@"
}

stop() { # END PROCESS
    if [ "$1" = rxe ]; then in_guest 'kill $(cat /run/row)' 2> /dev/null || true; fi
    kill "$2" 2> /dev/null || true
}

listeners() { # END
    local command='ss -ltnH | wc -l'
    # Who listens by RDMA CM has no TCP socket: the kernel knows rxe's, and the groups; of a Feroce program, that it has its device.
    case $group-$1 in
        cm-rxe | rsocket-rxe) command='{ rdma resource show cm_id | grep LISTEN; ss -lunH; ip -4 maddress show dev data; } | wc -l' ;;
        cm-* | rsocket-*) command='{ grep feroce/stat /proc/net/unix; ss -lunH; } | wc -l' ;;
    esac
    if [ "$1" = rxe ]; then in_guest "$command"; else ip netns exec "${namespace[$1]}" sh -c "$command"; fi
}

in_guest() { timeout 20 ip netns exec "$engine" ssh -n -F "$work/ssh" guest "$*"; }

# ---- Feroce at both ends

with_feroce() {
    local source pair=fr-programs-$$
    # shellcheck disable=SC2046 # Words.
    need_packages libibverbs-dev librdmacm-dev gcc $(each_row "$filter" package | sort -u)
    for source in tests/programs/*.c; do # Against the distribution's headers and library.
        cc -D_GNU_SOURCE -Wall -O1 -o "$work/$(basename "$source" .c)" "$source" -Wl,--as-needed -lrdmacm -libverbs -lpthread -ldl
    done
    cp tests/programs/{rcopy-and-compare,migrate} "$work"
    PATH=$work:$PATH
    for source in v0 v1; do # What uDAPL programs call the device of that interface.
        echo "feroce u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"$source 0\" \"\"" > "$work/dat.$source"
    done
    if [ -n "$judge" ]; then make_bridged_pair "$pair" 4500; else make_pair "$pair" 4500; fi
    plain_frames "$pair"
    namespace=([a]=$pair-a [b]=$pair-b) interface=([a]=v0 [b]=v1)
    for source in a b; do ip -n "$pair-$source" link set lo up; done # libfabric has threads that talk to themselves.
    each_row "$filter" play b a 10.77.0.2 'Feroce at both ends'
    [ -z "$table" ] || table 'Feroce at both ends' | write_section docs/programs.md programs
}

# package: that of the row's program, where it is not needed for others, too.
package() {
    case $(program) in
        iperf) echo iperf ;;
        ucx_*) echo ucx-utils ;;
        fi_*) echo libfabric-bin ;;
        dtest) echo dapl2-utils ;;
        migrate) echo qemu-system-x86 ;;
    esac
}

# make_bridged_pair NAME MTU: as make_pair, but the two meet at a bridge in NAME-switch, where frames can be seen.
make_bridged_pair() {
    local end
    switch=$1-switch tap=br0
    at_exit "ip netns delete $switch 2> /dev/null"
    ip netns add "$switch"
    ip -n "$switch" link add br0 type bridge forward_delay 0 mcast_snooping 0
    ip -n "$switch" link set br0 mtu "$2" up
    for end in "a v0 1" "b v1 2"; do
        # shellcheck disable=SC2086 # Three words.
        set -- "$1" "$2" $end
        at_exit "ip netns delete $1-$3 2> /dev/null"
        ip netns add "$1-$3"
        ip link add "$4" netns "$1-$3" mtu "$2" type veth peer name "$4" netns "$switch" mtu "$2"
        ip -n "$switch" link set "$4" master br0 up
        ip netns exec "$switch" ethtool -K "$4" tx off gso off gro off tso off > /dev/null
        ip -n "$1-$3" address add "10.77.0.$5/24" dev "$4"
        ip -n "$1-$3" link set "$4" up
    done
}

# ---- rxe at one end

with_rxe() {
    need_packages "${GUEST_PACKAGES[@]}" tcpdump
    say "Building the guest"
    tests/rxe/build.sh "$guest_files"
    make_guest_network "fr-programs-$$"
    boot_guest
    guest_ssh "$work/ssh"
    printf '    ControlMaster auto\n    ControlPath %s\n    ControlPersist yes\n' "$work/ssh.%r" >> "$work/ssh"
    at_exit "ip netns exec $engine ssh -F $work/ssh -O exit guest 2> /dev/null"
    if [ -n "$kit" ]; then
        with_kit
        exit
    fi
    in_guest true || die "the guest's SSH server does not answer"
    namespace=([a]=$engine) interface=([a]=v0) tap=br-data
    export FEROCE_WINDOW=${FEROCE_WINDOW:-64} # A quarter of a mebibyte is on its way to a slow peer at most.
    mkdir -p "$CAPTURES"
    each_row "$filter" play_with_rxe
    [ -z "$table" ] || table 'Feroce serves' 'rxe serves' | write_section docs/interop.md rxe
}

# The kit knows nothing of guests: a host that it reaches by ssh.
with_kit() {
    ip netns exec "$engine" scripts/interop-kit.sh --interface v0 --transport "ssh -n -F $work/ssh guest" \
        --peer-address 10.77.0.2 --slow --report target/interop guest "$filter"
}

play_with_rxe() {
    [ "$server" != - ] || return 0 # Nobody at the other end.
    suit_other_peer
    suit_slow_peer
    play_if_possible a rxe 10.77.0.1 'Feroce serves'
    play_if_possible rxe a 10.77.0.2 'rxe serves'
}

play_if_possible() { # END_OF_SERVER END_OF_CLIENT ADDRESS CASE
    local reason
    if reason=$(excluded "$4"); then
        skipped=$((skipped + 1))
        printf '%-7s         %-9s %-42s %s (%s): %s\n' skipped "$group" "$what" "$command" "$4" "$reason"
        record "$4" skipped
    else
        play "$@"
    fi
}

# excluded CASE: whether rxe, or the guest, cannot run the row; prints why.
excluded() {
    local rule reason
    while IFS='|' read -r rule reason; do
        case $rule in '#'* | '') continue ;; esac
        rule=$(trim "$rule")
        [[ "$group $what $command ($1)" =~ $rule ]] && trim "$reason" && return
        [ $? != 2 ] || die "tests/programs/rxe.txt: not a regular expression: $rule"
    done < tests/programs/rxe.txt
    return 1
}

# ---- a row

play() { # END_OF_SERVER END_OF_CLIENT ADDRESS CASE
    local started=$SECONDS verdict=FAILED again=''
    progress "$command"
    if attempt "$@"; then
        verdict=passed
    elif [ -n "$peer" ]; then
        # An emulated CPU on a busy machine stands still for longer than a QP retries: half a second. Once is forgiven, and told.
        again=": $why; passed when tried again"
        keep_capture
        ! attempt "$@" || verdict=passed
    fi
    progress
    [ $verdict = passed ] || again=''
    printf '%-7s %4d s  %-9s %-42s %s%s%s\n' $verdict $((SECONDS - started)) "$group" "$what" "$command" \
        "${peer:+ ($4)}" "$again"
    record "$4" ${verdict,,}
    if [ $verdict = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && tell_why && keep_capture; fi
}

attempt() { # END_OF_SERVER END_OF_CLIENT ADDRESS CASE
    local passes=''
    [ -z "${tap-}" ] || capture
    ! row "$1" "$2" "$3" || passes=yes
    [ -z "${tap-}" ] || end_capture
    [ -n "$passes" ] && { [ -z "$judge" ] || judged; }
}

# The last packets of a row, and, where they are judged, the first.
capture() {
    ip netns exec "$switch" tcpdump --immediate-mode -Z root -i $tap -s 0 -B 16384 -C 30 -W 2 -w "$work/capture" \
        'udp port 4791 or (vlan and udp port 4791)' > /dev/null 2>&1 &
    tcpdump=$!
}

end_capture() {
    kill $tcpdump 2> /dev/null || true
    wait $tcpdump || true
}

# judged: whether decoders find nothing in the first packets that is not as it should be.
judged() {
    tcpdump -r "$work/capture0" -c $JUDGED -w "$work/first" 2> /dev/null
    why=$(judge_frames "$work/first") || return 1
}

keep_capture() {
    [ -n "${tap-}" ] || return 0
    mkdir -p "$CAPTURES"
    kept=$((${kept-0} + 1))
    cat "$work/capture0" > "$CAPTURES/$kept-${command%% *}.pcap" && note "    packets: $CAPTURES/$kept-${command%% *}.pcap"
}

main
