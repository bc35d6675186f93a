#!/usr/bin/env bash
# Prints a line per figure: name, value, bar, ok or short. Exit code 1 if one is short, 2 if FILTER matches none.
# All are ratios within this run but the instructions, which are counts, and the speeds of the fabric and of reading captures, in seconds of the processor. Needs root; installs what is missing (Debian).
#   scripts/bench.sh [FILTER]      figures whose name contains FILTER: shm, af_xdp native, WRITE, verbs, icount, ...
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case ${1-} in
    -h | --help) usage && exit ;;
    -*) usage >&2 && exit 2 ;;
esac

# The namespaces of a program that was ended while it measured.
remove_links() {
    local name process
    for name in $(ip netns list | awk '/^fr-bench-[0-9]+-/ { print $1 }'); do
        process=${name#fr-bench-}
        [ -e "/proc/${process%-*}" ] || ip netns delete "$name"
    done
}

filter=${1:-}
target=${CARGO_TARGET_DIR:-target}
need_root "$@"
need_packages libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 ethtool valgrind perftest
find_cargo
reserve_hugepages 1024

as_caller "$cargo" build --quiet --release --workspace --bins
work=$(mktemp -d)
at_exit "rm -rf $work"
at_exit remove_links
status=0
"$target/release/bench" "$filter" | tee "$work/figures" || status=1

# Where there is libdpdk: between two processes, since DPDK's environment starts once per process.
if pkg-config --exists libdpdk; then
    as_caller "$cargo" build --quiet --release --workspace --features feroce-tests/dpdk --bin bench_dpdk
    "$target/release/bench_dpdk" "$filter" 2> "$work/dpdk.log" | tee -a "$work/figures" || { status=1 && cat "$work/dpdk.log" >&2; }
fi

# The distribution's perftest on the C libraries, and `feroce perf` on the Rust library, by turns on the same veth pair.
readonly ROUNDS=7
readonly SEND_LAT="verbs: 64 B SEND half-RTT, perftest / Rust" WRITE_BW="verbs: 64 KiB WRITE, perftest / Rust"

verbs_figures() {
    [[ $SEND_LAT == *"$filter"* || $WRITE_BW == *"$filter"* ]] || return 0
    as_caller "$cargo" build --quiet --release --workspace --bin feroce
    as_caller scripts/build-libs.sh > /dev/null
    local feroce pair=fr-bench-$$ failed=0
    feroce=$(realpath "$target")/release/feroce
    make_pair "$pair" 4500
    plain_frames "$pair"
    [[ $SEND_LAT != *"$filter"* ]] || ratio "$SEND_LAT" "<= 1.5" us "$feroce" "$pair" \
        "ib_send_lat -F -s 64 -n 30000" 5 "--op send --latency -s 64 -n 30000" 4 || failed=1
    [[ $WRITE_BW != *"$filter"* ]] || ratio "$WRITE_BW" ">= 0.9" MiB/s "$feroce" "$pair" \
        "ib_write_bw -F -s 65536 -n 20000" 4 "--op write -s 65536 -n 20000" 3 || failed=1
    return $failed
}

# ratio NAME BAR UNIT FEROCE PAIR PERFTEST COLUMN OPTIONS COLUMN: the line of the figure: the ratio of the medians, of what
# stands in these columns of the two programs' results; fails if it is short.
ratio() {
    local name=$1 bar=$2 unit=$3 feroce=$4 pair=$5 perftest=$6 theirs=$7 options=$8 ours=$9 round
    rm -f "$work/theirs" "$work/ours"
    for ((round = 0; round < ROUNDS; round++)); do
        between "$pair" "$feroce run --quiet --interface v1 -- $perftest" \
            "$feroce run --quiet --interface v0 -- $perftest 10.77.0.2" "$theirs" >> "$work/theirs"
        between "$pair" "$feroce perf --interface v1" \
            "$feroce perf --interface v0 $options 10.77.0.2" "$ours" >> "$work/ours"
    done
    awk -v name="$name" -v bar="$bar" -v unit="$unit" -v a="$(median "$work/theirs")" -v b="$(median "$work/ours")" 'BEGIN {
        split(bar, limit, " ")
        value = b > 0 ? a / b : 0
        ok = value > 0 && (limit[1] == "<=" ? value <= limit[2] : value >= limit[2])
        printf "%-44s %9.2f  %8s  %-5s  %s of %s %s\n", name, value, bar, ok ? "ok" : "short", a, b, unit
        exit !ok
    }'
}

# between PAIR SERVER CLIENT COLUMN: runs both, and prints the column of the client's line of results.
between() {
    local server waited=0
    # shellcheck disable=SC2086 # Words.
    timeout 60 ip netns exec "$1-b" $2 > "$work/server" 2>&1 &
    server=$!
    until [ -n "$(ip netns exec "$1-b" ss -ltnH)" ] || [ $((waited++)) -gt 200 ]; do sleep 0.05; done
    # shellcheck disable=SC2086 # Words.
    timeout 60 ip netns exec "$1-a" $3 > "$work/client" 2>&1 || cat "$work/client" "$work/server" >&2
    wait "$server" || true
    awk -v column="$4" '$1 ~ /^(64|65536)$/ && $2 ~ /^[0-9]+$/ { print $column }' "$work/client"
}

median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

as_caller "$cargo" build --quiet --release --workspace --example fabric_speed --example pfc_speed --example long_capture
for speed in fabric_speed pfc_speed; do
    "$target/release/examples/$speed" "$filter" | tee -a "$work/figures" || status=1
done

# A capture of a gigabyte: `feroce conform check` in a bounded address space, and tshark, which looks at each packet, too. The same of two
# captures of half of it, one of them 5 ms behind: what waits for the other side are tens of thousands of packets. Medians of a few turns.
readonly CHECK="conform: check of 1 GB / tshark" BOTH="conform: check of 2 x 0.5 GB / of 1 GB" CHECK_MEMORY=300000 # KiB
readonly CHECK_ROUNDS=5

check_figure() {
    [[ $CHECK == *"$filter"* || $BOTH == *"$filter"* ]] || return 0
    need_packages tshark wireshark-common
    local capture=$work/long.pcap half=$work/half.pcap late=$work/late.pcap round failed=0
    "$target/release/examples/long_capture" "$capture" 1000
    if [[ $BOTH == *"$filter"* ]]; then
        "$target/release/examples/long_capture" "$half" 500
        editcap -F pcap -t 0.005 "$half" "$late" || return 1
    fi
    for ((round = 0; round < CHECK_ROUNDS; round++)); do
        checked "$capture" >> "$work/one" || return 1
        [[ $CHECK != *"$filter"* ]] || processor tshark -n -r "$capture" >> "$work/tshark" || return 1
        [[ $BOTH != *"$filter"* ]] || checked "$half" "$late" >> "$work/both" || return 1
    done
    [[ $CHECK != *"$filter"* ]] || compared "$CHECK" 0.05 "$(median "$work/one")" "$(median "$work/tshark")" || failed=1
    [[ $BOTH != *"$filter"* ]] || compared "$BOTH" 2 "$(median "$work/both")" "$(median "$work/one")" || failed=1
    rm -f "$capture" "$half" "$late"
    return $failed
}

# processor COMMAND...: seconds of the processor that it takes.
processor() {
    local TIMEFORMAT='%U %S'
    { time "$@" > "$work/checked" 2>&1; } 2>&1 | awk '{ print $1 + $2 }'
}

# checked CAPTURE...: the same of a check, in bounded memory; captures are read before, so that they are found in memory.
checked() {
    cat "$@" > /dev/null
    # shellcheck disable=SC2016 # The shell inside.
    processor bash -c 'ulimit -v "$0" && exec "$@"' "$CHECK_MEMORY" "$target/release/feroce" conform check "$@" || { cat "$work/checked" >&2 && return 1; }
}

# compared NAME BAR OURS THEIRS: the line of the figure; fails if it is short.
compared() {
    awk -v name="$1" -v bar="$2" -v x="$3" -v y="$4" -v memory="$CHECK_MEMORY" 'BEGIN {
        ok = x > 0 && y > 0 && x / y <= bar
        printf "%-44s %9.3f  %8s  %-5s  %.2f s of %.2f s of the processor, in %d MiB\n", name, (y > 0 ? x / y : 0), "<= " bar, ok ? "ok" : "short", x, y, memory / 1024
        exit !ok
    }'
}
check_figure | tee -a "$work/figures" || status=1

verbs_figures | tee -a "$work/figures" || status=1

# Instructions are the difference between a long and a short run, so that set-up cancels out.
instructions() { # PROGRAM COUNT FUNCTION...: prints those of each function, a word each
    local program=$1 count=$2 function
    shift 2
    valgrind --quiet --tool=callgrind --callgrind-out-file="$work/callgrind" "$target/release/$program" "$count" >&2
    callgrind_annotate --inclusive=yes --threshold=100 "$work/callgrind" > "$work/annotated" 2> /dev/null
    for function; do
        awk -v of="icount::$function([^_a-z]|\$)" '$0 ~ of && !n { gsub(",", "", $1); n = $1 } END { print n ? n : "-" }' "$work/annotated"
    done | xargs
    rm -f "$work/callgrind"
}

# figure NAME BAR SHORT LONG N: its line, from the instructions of two runs that are N apart; fails if it is short.
figure() {
    awk -v name="$1" -v bar="$2" -v a="$3" -v b="$4" -v n="$5" 'BEGIN {
        counted = a ~ /^[0-9]+$/ && b ~ /^[0-9]+$/ && b > a
        value = counted ? sprintf("%.0f", (b - a) / n) : "-"
        ok = counted && (b - a) / n <= bar
        note = counted ? "instructions" : "callgrind gave no numbers"
        printf "%-44s %9s  %8s  %-5s  %s\n", name, value, "<= " bar, ok ? "ok" : "short", note
        exit !ok
    }'
}

# figures PROGRAM SHORT LONG PER LINE...: of each line "FUNCTION BAR NAME" that the filter chooses; a count is PER of what is counted.
figures() {
    local program=$1 short=$2 long=$3 per=$4 line function bar name failed=0 chosen=()
    shift 4
    for line; do
        [[ "icount: ${line#* * }" != *"$filter"* ]] || chosen+=("$line")
    done
    [ ${#chosen[@]} -gt 0 ] || return 0
    local functions=("${chosen[@]%% *}") before after
    read -ra before <<< "$(instructions "$program" "$short" "${functions[@]}")"
    read -ra after <<< "$(instructions "$program" "$long" "${functions[@]}")"
    for ((line = 0; line < ${#chosen[@]}; line++)); do
        read -r function bar name <<< "${chosen[line]}"
        figure "icount: $name" "$bar" "${before[line]}" "${after[line]}" $(((long - short) * per)) | tee -a "$work/figures" || failed=1
    done
    return $failed
}

figures icount 200 1200 16 "requester 2300 64 B SEND, requester" "responder 2600 64 B SEND, responder" || status=1

as_caller "$cargo" build --quiet --release -p feroce-congestion --example icount
figures examples/icount 20000 120000 1 "unlimited 150 paced packet, no CNP yet" "recovering 170 paced packet, paper" \
    "recovering_nvidia 190 paced packet, nvidia" "cnps 120 CNP" || status=1

if [ "$status" = 0 ] && [ ! -s "$work/figures" ]; then
    echo "bench: no figure's name contains '$filter'" >&2
    exit 2
fi
exit $status
