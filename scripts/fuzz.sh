#!/usr/bin/env bash
# Every fuzz target for a while, one after the other. A crash stops it and names the input.
#   scripts/fuzz.sh [SECONDS] [TARGET...]      60 seconds each, all targets
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[0-9]+$ ]] || { sed -n '2,3s/^# \?//p' "$0"; exit 2; }
shift || true

command -v cargo-fuzz > /dev/null || cargo install --quiet --locked cargo-fuzz

ran=0
for crate in wire engine; do
    [ -d "$crate/fuzz" ] || continue
    for target in $(cd "$crate" && cargo fuzz list); do
        [ $# = 0 ] || [[ " $* " == *" $target "* ]] || continue
        echo "==== $crate: $target"
        # Without the sanitizer, which needs a nightly toolchain: there is little `unsafe` for it to watch.
        (cd "$crate" && cargo fuzz run --sanitizer none "$target" -- \
            -max_total_time="$seconds" -print_final_stats=1 2>&1 | grep -E 'panicked|ERROR|Test unit|number_of_executed_units')
        ran=$((ran + 1))
    done
done
[ "$ran" -gt 0 ] || { echo "fuzz: no target is named so" >&2; exit 2; }
echo "$ran targets, $seconds s each, no crash"
