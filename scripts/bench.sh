#!/usr/bin/env bash
# Prints a line per figure: name, value, bar, ok or short. Each is a ratio within this run; exit code 1 if one is short.
#   scripts/bench.sh [FILTER]      figures whose name contains FILTER: shm, af_xdp native, WRITE, icount, ...
set -euo pipefail
cd "$(dirname "$0")/.."
filter=${1:-}
target=${CARGO_TARGET_DIR:-target}

if [ "$(id -u)" != 0 ]; then
    echo "bench: network namespaces and AF_XDP need root: sudo $0 $*" >&2
    exit 2
fi
pages=$(cat /proc/sys/vm/nr_hugepages)
trap 'echo "$pages" > /proc/sys/vm/nr_hugepages' EXIT
[ "$pages" -ge 1024 ] || echo 1024 > /proc/sys/vm/nr_hugepages

cargo build --quiet --release -p feroce-tests --bins
status=0
"$target/release/bench" "$filter" || status=1

# Instructions per 64-byte SEND: the difference between a long and a short run, so that set-up cancels out.
instructions() { # BATCHES: prints "requester responder"
    local out
    out=$(mktemp)
    valgrind --quiet --tool=callgrind --callgrind-out-file="$out" "$target/release/icount" "$1" >&2
    callgrind_annotate --inclusive=yes --threshold=100 "$out" 2> /dev/null |
        awk '/icount::requester/ && !a { gsub(",", "", $1); a = $1 }
             /icount::responder/ && !b { gsub(",", "", $1); b = $1 }
             END { print a, b }'
    rm -f "$out"
}
if [[ icount == *"$filter"* ]]; then
    batch=16
    read -r requester1 responder1 <<< "$(instructions 200)"
    read -r requester2 responder2 <<< "$(instructions 1200)"
    for side in requester responder; do
        short=${side}1 long=${side}2
        awk -v a="${!short}" -v b="${!long}" -v n=$((1000 * batch)) -v name="icount: 64 B SEND, $side" \
            'BEGIN { printf "%-44s %9.0f  %8s  %-5s  instructions per message\n", name, (b - a) / n, "-", "ok" }'
    done
fi
exit $status
