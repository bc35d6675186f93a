#!/usr/bin/env bash
# Every fuzz target for a while, one after the other, from the inputs that are kept. A crash, 10 s
# or 1 GiB for one input stop it and name the input.
#   scripts/fuzz.sh [SECONDS] [TARGET...]      60 seconds each, all targets; an hour of one: scripts/fuzz.sh 3600 check
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[0-9]+$ ]] || { sed -n '2,3s/^# \?//p' "$0"; exit 2; }
shift || true

command -v cargo-fuzz > /dev/null || cargo install --quiet --locked cargo-fuzz

# What is told: new figures now and then, the last ones, and whatever stops it.
told='^error|pulse|INITED|panicked|ERROR|SUMMARY|Test unit|number_of_executed_units|peak_rss_mb'
ran=0
for crate in wire engine; do
    [ -d "$crate/fuzz" ] || continue
    for target in $(cd "$crate" && cargo fuzz list); do
        [ $# = 0 ] || [[ " $* " == *" $target "* ]] || continue
        echo "==== $crate: $target"
        corpora=("fuzz/corpus/$target")
        mkdir -p "$crate/${corpora[0]}"
        for kept in seeds regressions; do
            [ ! -d "$crate/fuzz/$kept/$target" ] || corpora+=("fuzz/$kept/$target")
        done
        # Without the sanitizer, which needs a nightly toolchain: there is little `unsafe` for it to
        # watch.
        (cd "$crate" && cargo fuzz run --sanitizer none "$target" "${corpora[@]}" -- \
            -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 2>&1 \
            | grep --line-buffered -E "$told") \
            || { echo "fuzz: $target has failed; the input is in $crate/fuzz/artifacts/$target" >&2; exit 1; }
        ran=$((ran + 1))
    done
done
[ "$ran" -gt 0 ] || { echo "fuzz: no target is named so" >&2; exit 2; }
echo "$ran targets, $seconds s each, no crash"
