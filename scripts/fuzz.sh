#!/usr/bin/env bash
# Runs the fuzz targets one after the other, from the seeds and regressions in the tree. Stops at a
# crash, or if one input takes 10 s or 1 GiB, and names the input.
#   scripts/fuzz.sh [SECONDS] [TARGET...]   each TARGET (default: all) for SECONDS (default: 60)
#   scripts/fuzz.sh 3600 check              the target check for an hour
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[0-9]+$ ]] || { sed -n '2,5s/^# \?//p' "$0"; exit 2; }
shift || true

command -v cargo-fuzz > /dev/null || cargo install --quiet --locked cargo-fuzz

# The lines of libFuzzer to show: occasional and final figures, and the reason for a stop.
shown='^error|pulse|INITED|panicked|ERROR|SUMMARY|Test unit|number_of_executed_units|peak_rss_mb'
ran=0
for crate in wire engine; do
    [ -d "$crate/fuzz" ] || continue
    for target in $(cd "$crate" && cargo fuzz list); do
        [ $# = 0 ] || [[ " $* " == *" $target "* ]] || continue
        echo "==== $crate: $target"
        corpora=("fuzz/corpus/$target")
        mkdir -p "$crate/${corpora[0]}"
        kept_for=("$target")
        [ "$target" != replay ] || kept_for+=(check) # Both read captures.
        for kept in "${kept_for[@]/#/seeds/}" "${kept_for[@]/#/regressions/}"; do
            [ ! -d "$crate/fuzz/$kept" ] || corpora+=("fuzz/$kept")
        done
        # Without AddressSanitizer: it needs a nightly toolchain, and there is little `unsafe` to
        # check.
        (cd "$crate" && cargo fuzz run --sanitizer none "$target" "${corpora[@]}" -- \
            -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 \
            -print_final_stats=1 2>&1 | grep --line-buffered -E "$shown") || {
            echo "fuzz: $target failed; the input is in $crate/fuzz/artifacts/$target" >&2
            exit 1
        }
        ran=$((ran + 1))
    done
done
[ "$ran" -gt 0 ] || { echo "fuzz: no target has such a name" >&2; exit 2; }
echo "$ran targets, $seconds s each, no crash"
