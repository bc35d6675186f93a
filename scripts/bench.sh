#!/usr/bin/env bash
# Prints a line per figure: name, value, bar, ok or short. Exit code 1 if one is short, 2 if FILTER matches none.
# All are ratios within this run but the instructions, which are counts. Needs root; installs what is missing (Debian).
#   scripts/bench.sh [FILTER]      figures whose name contains FILTER: shm, af_xdp native, WRITE, icount, ...
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case ${1-} in
    -h | --help) usage && exit ;;
    -*) usage >&2 && exit 2 ;;
esac

filter=${1:-}
target=${CARGO_TARGET_DIR:-target}
need_root "$@"
need_packages libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 ethtool valgrind
find_cargo
reserve_hugepages 1024

as_caller "$cargo" build --quiet --release -p feroce-tests --bins
work=$(mktemp -d)
at_exit "rm -rf $work"
status=0
"$target/release/bench" "$filter" | tee "$work/figures" || status=1

# Where there is libdpdk: between two processes, since DPDK's environment starts once per process.
if pkg-config --exists libdpdk; then
    as_caller "$cargo" build --quiet --release -p feroce-tests --features dpdk --bin bench_dpdk
    "$target/release/bench_dpdk" "$filter" 2> "$work/dpdk.log" | tee -a "$work/figures" || { status=1 && cat "$work/dpdk.log" >&2; }
fi

# Instructions per 64-byte SEND: the difference between a long and a short run, so that set-up cancels out.
instructions() { # BATCHES: prints "requester responder"
    valgrind --quiet --tool=callgrind --callgrind-out-file="$work/callgrind" "$target/release/icount" "$1" >&2
    callgrind_annotate --inclusive=yes --threshold=100 "$work/callgrind" 2> /dev/null |
        awk '/icount::requester/ && !a { gsub(",", "", $1); a = $1 }
             /icount::responder/ && !b { gsub(",", "", $1); b = $1 }
             END { print a, b }'
    rm -f "$work/callgrind"
}

# figure NAME BAR SHORT LONG: its line, from the instructions of the two runs; fails if it is short.
figure() {
    awk -v name="$1" -v bar="$2" -v a="$3" -v b="$4" -v n=$((1000 * 16)) 'BEGIN {
        counted = a ~ /^[0-9]+$/ && b ~ /^[0-9]+$/ && b > a
        value = counted ? sprintf("%.0f", (b - a) / n) : "-"
        ok = counted && (b - a) / n <= bar
        note = counted ? "instructions per message" : "callgrind gave no numbers"
        printf "%-44s %9s  %8s  %-5s  %s\n", name, value, "<= " bar, ok ? "ok" : "short", note
        exit !ok
    }'
}

bars=("requester 2300" "responder 2600")
counted=
for line in "${bars[@]}"; do
    read -r side bar <<< "$line"
    name="icount: 64 B SEND, $side"
    [[ $name == *"$filter"* ]] || continue
    if [ -z "$counted" ]; then
        read -r requester1 responder1 <<< "$(instructions 200)"
        read -r requester2 responder2 <<< "$(instructions 1200)"
        counted=yes
    fi
    short=${side}1 long=${side}2
    figure "$name" "$bar" "${!short}" "${!long}" | tee -a "$work/figures" || status=1
done

if [ "$status" = 0 ] && [ ! -s "$work/figures" ]; then
    echo "bench: no figure's name contains '$filter'" >&2
    exit 2
fi
exit $status
