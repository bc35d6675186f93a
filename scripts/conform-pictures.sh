#!/usr/bin/env bash
# Draws the pictures in docs/conform: screenshots of the reports of three captures of failed
# connections. Needs chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
feroce=${1:-target/release/feroce}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p docs/conform
for name in ops_retry_exhaust ops_rnr_exhaust ops_bad_rkey_write; do
    "$feroce" conform check "tests/captures/rxe/$name.pcap.zst" --html "$work/$name.html" \
        > /dev/null || [ $? -eq 3 ]
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
        --user-data-dir="$work/profile" --window-size=1160,1000 \
        --screenshot="docs/conform/$name.png" "file://$work/$name.html" 2> /dev/null
done
