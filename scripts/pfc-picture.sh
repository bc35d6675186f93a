#!/usr/bin/env bash
# Draws the picture of docs/pfc.md: the dashboard of `feroce pfc watch` during a real run of 20 s.
# `feroce pfc send` sends sweeps, storms and invalid frames through a veth pair. Needs root.
#   scripts/pfc-picture.sh [FILE.svg]      default: docs/pictures/pfc-watch.svg
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case ${1-} in
    -*) usage >&2 && exit 2 ;;
esac
file=$(realpath -m "${1:-docs/pictures/pfc-watch.svg}")
need_root "$@"
find_cargo
build --bin feroce
feroce=$(built)/feroce

pair=fr-picture-$$
make_pair "$pair" 1500
ip -n "$pair-a" link set v0 address 02:00:00:00:00:0a
work=$(mktemp -d)
at_exit "rm -rf $work"
mkdir -p "$(dirname "$file")"

# send WHAT [OPTION]...: sends through v0 with `feroce pfc send`.
send() {
    ip netns exec "$pair-a" "$feroce" pfc send "$1" v0 "${@:2}" > "$work/sent" 2>&1 ||
        die "$(cat "$work/sent")"
}

in_background ip netns exec "$pair-b" "$feroce" pfc watch v1 --rate 10G --interval 250ms \
    --for 20s --plain --snapshot "$work/picture.svg" > "$work/lines"
watch=$!
sleep 0.5
# 1000 quanta are 51 us: priority 3 is paused for up to 10, 31, 61, 92 and 46 % of the time; for
# less if the machine is busy and sends the frames in bursts.
in_background ip netns exec "$pair-a" "$feroce" pfc send sweep v0 --priorities 3 --quanta 1000 \
    --per-second 2000,6000,12000,18000,9000 --each 4s > /dev/null
sleep 3
send storm --priorities 4 --for 2s
send frame --malformed padding --count 3
send storm --pause --quanta 30000 --per-second 200 --for 3s
send frame --malformed destination
send storm --priorities 4,6 --quanta 2000 --per-second 4000 --for 4s
send frame --malformed vector --count 2
in_background ip netns exec "$pair-a" "$feroce" pfc send storm v0 --priorities 4 --for 30s \
    > /dev/null
# 3: findings, since invalid frames were sent.
wait "$watch" || [ $? = 3 ] || die "watch failed: $(cat "$work/lines")"
install -m 644 "$work/picture.svg" "$file"
note "$file"
