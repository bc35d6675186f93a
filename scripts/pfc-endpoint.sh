#!/usr/bin/env bash
# PFC in the endpoint, between two namespaces joined by a veth: an endpoint that is paced to half of what its line is said to carry is paused
# again and again. Its throughput has to be the share of the time that the pauses leave; that of another priority, all. Three runs each, the median
# counts. Then a long pause that XON ends. Makes namespaces, which it removes.
#   scripts/pfc-endpoint.sh [--bin FOLDER] [--seconds N] [KIND...]
#     --bin FOLDER  where feroce and feroce-pfc are, in place of building them
#     --seconds N   length of a run (2)
#     KIND          Feroce's port: packet and af_xdp
# Exit code 0 if all is within 5 %, 1 if not, 2 for wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# Rates of the endpoint in Mb/s: lines carry twice that. Quanta and pauses a second.
readonly RATES=(50 200) PAUSES=("5000 20" "10000 10" "20000 10" "30000 20") RUNS=3
bin='' seconds=2 kinds=() arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --bin) [ $# -gt 1 ] || { usage >&2 && exit 2; }; bin=$2 && shift ;;
        --seconds) [[ ${2-} =~ ^[1-9][0-9]*$ ]] || { usage >&2 && exit 2; }; seconds=$2 && shift ;;
        packet | af_xdp) kinds+=("$1") ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(packet af_xdp)

main() {
    local kind rate pause status=0
    need_root "${arguments[@]}"
    if [ -z "$bin" ]; then
        find_cargo
        say "Building"
        as_caller "$cargo" build --quiet --release --workspace --bin feroce --bin feroce-pfc
        bin=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release
    fi
    left=fr-pfc-$$-l right=fr-pfc-$$-r
    at_exit "ip netns delete $left 2> /dev/null; ip netns delete $right 2> /dev/null"
    ip netns add "$left" && ip netns add "$right"
    ip link add v0 netns "$left" type veth peer name v0 netns "$right"
    ip -n "$left" address add 10.79.1.1/24 dev v0 && ip -n "$left" link set v0 up
    ip -n "$right" address add 10.79.1.2/24 dev v0 && ip -n "$right" link set v0 up
    printf '%-8s %10s %8s %6s %8s %8s %8s %7s\n' port 'rate Mb/s' quanta 1/s due Mb/s off
    for kind in "${kinds[@]}"; do
        for rate in "${RATES[@]}"; do
            whole=$(median "$kind" "$rate" 104 0 1)
            row "$kind" "$rate" none - "$whole" "$whole" || status=1
            for pause in "${PAUSES[@]}"; do
                # shellcheck disable=SC2086 # two words
                set -- $pause
                # Pauses longer than their period leave nothing: those are for other rates.
                awk "BEGIN { exit !($1 * 512 * $2 < 0.9 * 2e6 * $rate) }" || continue
                row "$kind" "$rate" "$1" "$2" \
                    "$(awk "BEGIN { print $whole * (1 - $1 * 512 * $2 / (2e6 * $rate)) }")" \
                    "$(median "$kind" "$rate" 104 "$1" "$2")" || status=1
            done
            row "$kind" "$rate" other 10 "$whole" "$(median "$kind" "$rate" 0 20000 10)" || status=1
        done
        lets_go "$kind" || status=1
    done
    return $status
}

# row KIND RATE QUANTA PER_SECOND DUE GOT: a line of the table; fails if it is off by more than 5 %.
row() {
    awk -v due="$5" -v got="$6" -v head="$(printf '%-8s %10s %8s %6s' "$1" "$2" "$3" "$4")" 'BEGIN {
        off = (got - due) / due
        printf "%s %8.2f %8.2f %6.1f%%%s\n", head, due, got, 100 * off, off < -0.05 || off > 0.05 ? " !" : ""
        exit off < -0.05 || off > 0.05
    }'
}

# median KIND RATE TCLASS QUANTA PER_SECOND: of the throughput in Mb/s.
median() {
    local run
    for run in $(seq "$RUNS"); do
        progress "$1, $2 Mb/s, $4 quanta, run $run"
        throughput "$@"
    done | sort -n | sed -n "$(((RUNS + 1) / 2))p"
    progress
}

# throughput KIND RATE TCLASS QUANTA PER_SECOND: of one run. Priority 3 is paused, whatever the endpoint's is.
throughput() {
    local server storm=''
    server=$(serve "$1")
    if [ "$4" -gt 0 ]; then
        ip netns exec "$right" "$bin/feroce-pfc" send storm v0 --for "$((seconds + 30))s" --priorities 3 --quanta "$4" --per-second "$5" \
            > /dev/null 2>&1 &
        storm=$!
        sleep 0.2
    fi
    client "$1" "$2" "$3" "$seconds" | python3 -c 'import json, sys
print(json.load(sys.stdin)["rows"][0]["bits_per_second"] / 1e6)'
    [ -z "$storm" ] || { kill -INT "$storm" && wait "$storm" || true; }
    wait_for "$server"
}

# serve KIND: starts the server; its process.
serve() {
    ip netns exec "$right" env FEROCE_PORT_KIND="$1" "$bin/feroce" perf -i v0 > /dev/null 2>&1 &
    echo $!
    sleep 0.5
}

# client KIND RATE TCLASS SECONDS: paced, on a line of twice its rate; prints JSON.
client() {
    ip netns exec "$left" env FEROCE_PORT_KIND="$1" FEROCE_PFC=3 FEROCE_PFC_RATE="$((2 * $2))Mb/s" FEROCE_CONGESTION="$2Mb/s" \
        FEROCE_CONGESTION_BURST=4096 FEROCE_WINDOW=64 "$bin/feroce" perf -i v0 10.79.1.2 --json -s 4096 --tx-depth 16 -m 1024 -u 18 --tclass "$3" -D "$4" 2> /dev/null
}

wait_for() { while kill -0 "$1" 2> /dev/null; do sleep 0.05; done; }

# lets_go KIND: a pause of 3.4 s, 65535 quanta at 10 Mb/s, is over at once with XON.
lets_go() {
    local server start took storm
    server=$(serve "$1")
    start=$(date +%s%N)
    # It ends with XON.
    ip netns exec "$right" "$bin/feroce-pfc" send storm v0 --for 1500ms --per-second 20 > /dev/null 2>&1 &
    storm=$!
    sleep 0.2
    client "$1" 5 104 0.1 > /dev/null
    took=$((($(date +%s%N) - start) / 1000000))
    wait "$storm"
    wait_for "$server"
    note "$1: a pause that XON ended after 1500 ms held a transfer of 100 ms up until $took ms had gone"
    [ $took -ge 1500 ] && [ $took -lt 3000 ]
}

main
