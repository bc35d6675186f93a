#!/usr/bin/env bash
# PFC in the endpoint, between two namespaces joined by a veth: an endpoint that is paced to half of what its line is said to carry is paused
# again and again. Its throughput has to be the share of the time that the pauses leave, of what it has without any; that of another priority,
# all. For how long it was paused is what `feroce pfc decode` says of the frames that went out, when they went out. The median of three runs
# counts; if it is off, all is measured once more: what kept a busy machine is over by then. Then a long pause that XON ends.
# Makes namespaces, which it removes. Needs root.
#   scripts/pfc-endpoint.sh [--short] [--bin FOLDER] [--seconds N] [KIND...]
#     --short       one rate and one kind of pause, shorter runs; exit code 77 on a machine that has no time even without pauses
#     --bin FOLDER  where feroce is, in place of building them
#     --seconds N   length of a run (3; --short: 2)
#     KIND          Feroce's port: packet and af_xdp
# Exit code 0 if all is within 5 %, 1 if not, 2 for wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# Rates of the endpoint in Mb/s: lines carry twice that. Quanta and pauses a second.
rates=(50 200) pauses=("5000 20" "10000 10" "20000 10" "30000 20")
readonly RUNS=3
bin='' seconds='' is_short=false kinds=() arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --short) is_short=true rates=(50) pauses=("10000 10") ;;
        --bin) [ $# -gt 1 ] || { usage >&2 && exit 2; }; bin=$(realpath -m "$2") && shift ;;
        --seconds) [[ ${2-} =~ ^[1-9][0-9]*$ ]] || { usage >&2 && exit 2; }; seconds=$2 && shift ;;
        packet | af_xdp) kinds+=("$1") ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(packet af_xdp)
if [ -z "$seconds" ]; then if $is_short; then seconds=2; else seconds=3; fi; fi

main() {
    local kind rate pause quanta per_second status=0
    need_root "${arguments[@]}"
    need_packages iproute2 python3
    if [ -z "$bin" ]; then
        find_cargo
        build --bin feroce
        bin=$(built)
    fi
    work=$(mktemp -d)
    at_exit "rm -rf $work"
    # shellcheck disable=SC2016 # Those of then.
    at_exit 'kill $(jobs -p) 2> /dev/null'
    make_pair "fr-pfc-$$" 1500
    right=fr-pfc-$$-b
    # Ahead of what else the machine does.
    at_left=(ip netns exec "fr-pfc-$$-a" nice -n -19) at_right=(ip netns exec "$right" nice -n -19)
    printf '%-8s %10s %8s %6s %8s %8s %7s\n' port 'rate Mb/s' quanta 1/s due got off
    for kind in "${kinds[@]}"; do
        for rate in "${rates[@]}"; do
            baseline "$kind" "$rate"
            printf '%-8s %10s %8s %6s %8s %8.2f\n' "$kind" "$rate" none - - "$whole"
            # What paces and what a machine cannot send for want of time look alike, but for the figure.
            if ! awk "BEGIN { exit !($whole > 0.85 * $rate) }"; then
                note "$kind: not even $rate Mb/s without pauses: this machine is too busy to tell"
                ! $is_short || exit 77
                status=1
            fi
            for pause in "${pauses[@]}"; do
                read -r quanta per_second <<< "$pause"
                # Pauses longer than their period leave nothing: those are for other rates.
                awk "BEGIN { exit !($quanta * 512 * $per_second < 0.9 * 2e6 * $rate) }" || continue
                row "$kind" "$rate" "$OWN" "$quanta" "$per_second" || status=1
            done
            row "$kind" "$rate" "$OTHER" 20000 10 || status=1
        done
        lets_go "$kind" || status=1
    done
    return $status
}

# Bytes that the endpoint may send at once.
readonly BURST=4096
# Traffic classes of priority 3, which is paused, and of priority 0.
readonly OWN=104 OTHER=0

# row KIND RATE TCLASS QUANTA PER_SECOND: a line of the table, in Mb/s; fails if it is off by more than 5 %.
row() {
    local line=''
    : > "$work/runs"
    measure "$@"
    if ! line=$(judge "$@"); then
        baseline "$1" "$2"
        : > "$work/runs"
        measure "$@"
        line=$(judge "$@") || { echo "$line !" && return 1; }
    fi
    echo "$line"
}

# measure KIND RATE TCLASS QUANTA PER_SECOND: some more runs, each a line: what part of the time is left, and what came of it.
measure() {
    local run
    for run in $(seq "$RUNS"); do
        progress "$1, $2 Mb/s, $4 quanta, run $run"
        throughput "$@" >> "$work/runs" || die "$(cat "$work/said")"
    done
    progress
}

# judge KIND RATE TCLASS QUANTA PER_SECOND: the run in the middle, by how far off it is, as a line.
judge() {
    # What the pacer saved up during a pause goes out behind it.
    awk -v whole="$whole" -v is_own=$(($3 == OWN)) -v burst="$(awk "BEGIN { print $5 * $BURST * 8 / 1e6 }")" \
        '{ due = is_own ? $1 * whole + burst : whole; print $2 / due - 1, due, $2 }' "$work/runs" |
        sort -g | sed -n "$((($(wc -l < "$work/runs") + 1) / 2))p" |
        awk -v head="$(printf '%-8s %10s %8s %6s' "$1" "$2" "$([ "$3" = "$OWN" ] && echo "$4" || echo other)" "$5")" '{
            printf "%s %8.2f %8.2f %6.1f%%\n", head, $2, $3, 100 * $1
            exit $1 < -0.05 || $1 > 0.05
        }'
}

# baseline KIND RATE: sets $whole, the throughput without pauses in Mb/s, a median.
baseline() {
    : > "$work/runs"
    measure "$@" "$OWN" 0 1
    whole=$(cut -d ' ' -f 2 "$work/runs" | sort -g | sed -n "$(((RUNS + 1) / 2))p")
}

# throughput KIND RATE TCLASS QUANTA PER_SECOND: of one run: the share of the time that pauses of priority 3 leave, and Mb/s.
throughput() {
    local server storm='' share=1
    rm -f "$work/frames.pcap"
    serve "$1"
    if [ "$4" -gt 0 ]; then
        "${at_right[@]}" "$bin/feroce" pfc send storm v1 --for "$((seconds + 30))s" --priorities 3 --quanta "$4" --per-second "$5" \
            --record "$work/frames.pcap" > "$work/sent" 2>&1 &
        storm=$!
        sleep 0.3
    fi
    client "$1" "$2" "$3" "$seconds" > "$work/figures" || return
    if [ -n "$storm" ]; then
        kill "$storm" || { cp "$work/sent" "$work/said" && return 1; }
        wait "$storm" || true
        share=$(left_over "$((2 * $2))") || return
    fi
    wait "$server" || return
    python3 -c 'import json, sys
print(sys.argv[1], json.load(open(sys.argv[2]))["rows"][0]["bits_per_second"] / 1e6)' "$share" "$work/figures"
}

# left_over LINE: the share of the time that the pauses that were sent leave on a line of so many Mb/s.
left_over() {
    "$bin/feroce" pfc decode "$work/frames.pcap" --rate "$1M" --json > "$work/decoded" 2> "$work/said" || return
    python3 -c 'import json, sys
summary = json.loads(open(sys.argv[1]).read().splitlines()[-1])["summary"]
[sender] = summary["senders"]
print(1 - sender["priorities"]["3"]["share"])' "$work/decoded"
}

# serve KIND: starts the server; its process is $server.
serve() {
    "${at_right[@]}" env FEROCE_PORT_KIND="$1" "$bin/feroce" perf -i v1 > "$work/said" 2>&1 &
    server=$!
    wait_for_port "$right" 18515
}

# client KIND RATE TCLASS SECONDS: paced, on a line of twice its rate; prints JSON.
client() {
    "${at_left[@]}" env FEROCE_PORT_KIND="$1" FEROCE_PFC=3 FEROCE_PFC_RATE="$((2 * $2))Mb/s" FEROCE_CONGESTION="$2Mb/s" \
        FEROCE_CONGESTION_BURST=$BURST FEROCE_WINDOW=64 "$bin/feroce" perf -i v0 10.77.0.2 --json -s 4096 --tx-depth 16 -m 1024 -u 18 \
        --tclass "$3" -D "$4" 2> "$work/said"
}

# lets_go KIND: a pause of 3.4 s, 65535 quanta at 10 Mb/s, is over at once with XON.
lets_go() {
    local server start took storm
    serve "$1"
    start=$(date +%s%N)
    # It ends with XON.
    "${at_right[@]}" "$bin/feroce" pfc send storm v1 --for 2500ms --per-second 20 > "$work/sent" 2>&1 &
    storm=$!
    sleep 0.5
    client "$1" 5 "$OWN" 0.1 > "$work/figures" || die "$(cat "$work/said")"
    took=$((($(date +%s%N) - start) / 1000000))
    wait "$storm"
    wait "$server"
    note "$1: a pause that XON ended after 2500 ms held a transfer of 100 ms up until $took ms had gone"
    [ $took -ge 2500 ] && [ $took -lt 5000 ]
}

main
