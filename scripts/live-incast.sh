#!/usr/bin/env bash
# Runs the incasts of the scenario live-incast twice, in virtual time and with real packets, and
# compares the senders' shares of the link and their alphas. With real packets, `feroce fabric live`
# is the switch, and ib_send_bw on Feroce with DCQCN sends and receives, in network namespaces.
# Needs root and two idle CPUs, takes 4 minutes after the build, and leaves nothing behind.
#   scripts/live-incast.sh [--port-kind KIND] [--seconds N] [--keep FOLDER] [--bin FOLDER] [K...]
#     --port-kind KIND  Feroce's port (default: packet)
#     --seconds N       duration of a run with its warm-up (default: the scenario's)
#     --keep FOLDER     keep the figures in FOLDER
#     --bin FOLDER      use feroce and lib in FOLDER instead of building them
#     K                 number of senders, 2 or 8 (default: both, the scenario's cases)
# Exit code 0 if all agree within 15 % and the switch kept up, 1 if not, 2 for wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

readonly SCENARIO=pfc-tools/scenarios/live-incast.toml RECEIVER=9
port_kind=packet seconds='' keep='' bin='' senders=() arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --port-kind) [ $# -gt 1 ] || { usage >&2 && exit 2; }; port_kind=$2 && shift ;;
        --seconds) [[ ${2-} =~ ^[0-9]+$ ]] || { usage >&2 && exit 2; }; seconds=$2 && shift ;;
        --keep) [ $# -gt 1 ] || { usage >&2 && exit 2; }; keep=$2 && shift ;;
        --bin) [ $# -gt 1 ] || { usage >&2 && exit 2; }; bin=$2 && shift ;;
        2 | 8) senders+=("$1") ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[ ${#senders[@]} -gt 0 ] || senders=(2 8)

main() {
    local count status=0 set_duration=()
    need_root "${arguments[@]}"
    need_packages libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 ethtool \
        perftest python3 util-linux
    if [ -z "$bin" ]; then
        find_cargo
        say "Building"
        as_caller "$cargo" build --quiet --release --workspace --bin feroce
        as_caller scripts/build-libs.sh > /dev/null
        bin=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release
    fi
    work=$(mktemp -d)
    at_exit "rm -rf $work"
    # The switch must keep time: it has a CPU for itself, and priority over other processes.
    switch_on=(nice -n -20) ends_on=(nice -n -10)
    mapfile -t cpus < <(python3 scripts/live-incast.py cpus)
    switch_on+=(taskset -c "${cpus[0]}") ends_on+=(taskset -c "${cpus[1]}")
    whole=$(python3 scripts/live-incast.py seconds "$SCENARIO" "$seconds") || exit 2
    mapfile -t changes < <(python3 scripts/live-incast.py settings "$SCENARIO")
    [ -z "$seconds" ] || set_duration=(--set "duration=${seconds}s")
    say "In virtual time"
    "$bin/feroce" fabric run "$SCENARIO" "${set_duration[@]}" --out "$work/virtual" 2> /dev/null
    for count in "${senders[@]}"; do
        say "With real packets: $count senders, port $port_kind"
        real "$count" || status=1
    done
    [ -z "$keep" ] || { mkdir -p "$keep" && cp -r "$work"/* "$keep"; }
    return $status
}

# real COUNT: runs the incast of COUNT senders through the switch. Succeeds if the result agrees
# with that in virtual time.
real() {
    local count=$1 folder=$work/$1 name=fr-incast-$$-$1 n ports=() first=${#cleanups[@]}
    mkdir "$folder"
    make_star "$name" "$count"
    for n in $(seq "$count") $RECEIVER; do ports+=(--port "h$n=p$n"); done
    "${switch_on[@]}" ip netns exec "$name-s" "$bin/feroce" fabric live "$SCENARIO" \
        "${ports[@]}" --case "$count:1" --nics-obey --csv "$folder/live.csv" \
        > "$folder/live.txt" 2> "$folder/live.log" &
    switch=$!
    at_exit "kill $switch 2> /dev/null; wait $switch 2> /dev/null"
    sleep 1 # It opens its interfaces.
    for n in $(seq "$count"); do start_server "$name-r$n" "$folder/server-$n"; done
    for n in $(seq "$count"); do wait_for_port "$name-r$n" 18515; done
    for n in $(seq "$count"); do
        start_client "$name-h$n" "10.77.2.$((100 + n))" "$folder/client-$n"
    done
    sleep 2 # They connect.
    for n in $(seq "$count"); do
        in_background "${ends_on[@]}" ip netns exec "$name-h$n" \
            "$bin/feroce" stat -i v0 --qps --json --watch 0.5 \
            > "$folder/stat-$n.json" 2> "$folder/stat-$n.log"
    done
    sleep "$whole"
    clean_up_from "$first" 2> /dev/null
    cat "$folder/live.log" "$folder/live.txt"
    python3 scripts/live-incast.py compare "$SCENARIO" "$work/virtual" "$folder" "$count" "$whole"
}

# make_star NAME COUNT: makes the switch's namespace NAME-s. Its interfaces p1 to pCOUNT lead to v0
# of the senders NAME-h1 to NAME-hCOUNT. p9 leads to all receivers, NAME-r1 to NAME-rCOUNT, which
# share one link through macvlans m0: each program on Feroce needs an interface of its own.
make_star() {
    local name=$1 n
    add_namespace "$name-s"
    for n in $(seq "$2") $RECEIVER; do
        add_namespace "$name-h$n"
        ip link add "p$n" netns "$name-s" type veth peer name v0 netns "$name-h$n"
        ip netns exec "$name-s" ethtool -K "p$n" gro off gso off tso off > /dev/null
        ip netns exec "$name-h$n" ethtool -K v0 gro off gso off tso off > /dev/null
        ip -n "$name-s" link set "p$n" up
        ip -n "$name-h$n" link set v0 up
    done
    for n in $(seq "$2"); do
        ip -n "$name-h$n" address add "10.77.2.$n/24" dev v0
        add_namespace "$name-r$n"
        ip -n "$name-h$RECEIVER" link add link v0 name m0 netns "$name-r$n" \
            type macvlan mode private
        ip -n "$name-r$n" address add "10.77.2.$((100 + n))/24" dev m0
        ip -n "$name-r$n" link set m0 up
    done
}

add_namespace() {
    at_exit "ip netns delete $1 2> /dev/null"
    ip netns add "$1"
    # The link carries nothing but the incast: no neighbour discovery.
    ip netns exec "$1" sh -c \
        'for of in all default; do echo 1 > /proc/sys/net/ipv6/conf/$of/disable_ipv6; done'
}

# clean_up_from NUMBER: runs the clean-up commands from index NUMBER on, and forgets them.
clean_up_from() {
    local i
    for ((i = ${#cleanups[@]} - 1; i >= $1; i--)); do eval "${cleanups[i]}" || true; done
    cleanups=("${cleanups[@]:0:$1}")
}

# endpoint NAMESPACE INTERFACE LOG ARGUMENT...: starts ib_send_bw with the scenario's congestion
# control. ib_send_bw sleeps while it waits for completions (-e).
endpoint() {
    in_background env "${changes[@]}" FEROCE_PORT_KIND="$port_kind" "${ends_on[@]}" \
        ip netns exec "$1" "$bin/feroce" run --quiet --interface "$2" -- \
        ib_send_bw -F -e -s 65536 -n 1000000 -m 1024 -u 18 --tclass 104 "${@:4}" \
        > "$3.txt" 2> "$3.log"
}
start_server() { endpoint "$1" m0 "$2"; }
start_client() { endpoint "$1" v0 "$3" "$2"; }

main
