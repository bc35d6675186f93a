#!/usr/bin/env bash
# Runs programs of the distribution, unmodified, with Feroce at both ends: two network namespaces joined by a veth pair.
# Installs what is missing (Debian), builds, and leaves nothing else behind.
#   scripts/programs.sh [--port-kind KIND] [--table] [FILTER]
# FILTER is a regular expression that picks rows of tests/programs/table.txt; --table prints a table for the README.
# Exit code 0 if every row passed, 1 if one failed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

readonly ROWS=tests/programs/table.txt
readonly SECONDS_EACH=${PROGRAM_SECONDS:-120} # until a row is given up
filter=. table=''
while [ $# -gt 0 ]; do
    case $1 in
        --port-kind) export FEROCE_PORT_KIND=$2 && shift ;;
        --table) table=yes ;;
        -*) sed -n '2,7s/^# \?//p' "$0" >&2 && exit 2 ;;
        *) filter=$1 ;;
    esac
    shift
done

need_root "$@"
need_packages libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 ethtool ibverbs-utils rdmacm-utils perftest fio qperf iperf \
    libibverbs-dev librdmacm-dev gcc
find_cargo
say "Building"
"$cargo" build --quiet --release -p feroce
preload=$(scripts/build-libs.sh | tail -n 1)/rsocket/librspreload.so.1
feroce=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/feroce
work=$(mktemp -d)
at_exit "rm -rf $work"
reserve_hugepages 128
for source in tests/programs/*.c; do # Against the distribution's headers and library.
    cc -D_GNU_SOURCE -Wall -O1 -o "$work/$(basename "$source" .c)" "$source" -Wl,--as-needed -lrdmacm -libverbs -lpthread -ldl
done
cp tests/programs/rcopy-and-compare "$work"
PATH=$work:$PATH
pair=fr-programs-$$
make_pair "$pair" 4500
plain_frames "$pair"

# on END COMMAND...: becomes it, as the unmodified program of that end, for so long at most.
on() {
    local end=$1 interface=v0
    [ "$end" = a ] || interface=v1
    shift
    exec timeout --kill-after=5 "$SECONDS_EACH" ip netns exec "$pair-$end" "$feroce" run --quiet --interface $interface -- "$@"
}

# listening: whether the server waits for its client: at a TCP port, or with the thread that serves connections (which is there a
# moment before it listens; the client takes longer to start).
listening() {
    local pid
    [ -z "$(ip netns exec "$pair-b" ss -ltnH)" ] || return 0
    [ -z "$(ip netns exec "$pair-b" ss -lunH 'sport = :7174')" ] || return 0 # udpong
    for pid in $(ip netns pids "$pair-b"); do
        ! grep -qsx feroce-cm "/proc/$pid/task/"*/comm || return 0
    done
    return 1
}

# row SERVER CLIENT PATTERN: 0 if it passed; else why it did not, in $why. A server that begins with ~ serves for ever.
row() {
    local server=${1#\~} client=${2//PRELOAD/LD_PRELOAD=$preload} pattern=$3 status served=0 waited=0 pid='' endless=''
    [ "$server" = "$1" ] || endless=yes
    server=${server//PRELOAD/LD_PRELOAD=$preload}
    if [ "$server" != - ]; then
        # shellcheck disable=SC2086 # Words.
        on b ${server//SERVER/10.77.0.2} > "$work/server" 2>&1 &
        pid=$!
        until listening || [ $((waited++)) -gt 600 ] || ! kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
    fi
    # shellcheck disable=SC2086 # Words.
    (on a ${client//SERVER/10.77.0.2}) > "$work/client" 2>&1 && status=0 || status=$?
    if [ -n "$pid" ]; then
        [ "$status" = 0 ] && [ -z "$endless" ] || kill "$pid" 2> /dev/null || true
        wait "$pid" && served=0 || served=$?
        [ -z "$endless" ] || served=0
    fi
    why=''
    [ "$status" = 0 ] || why="client: exit code $status"
    [ "$served" = 0 ] || why="${why:+$why, }server: exit code $served"
    [ -n "$why" ] || grep -qE "$pattern" "$work/client" || why="nothing in the output matches: $pattern"
    [ -z "$why" ]
}

trim() { sed 's/^ *//; s/ *$//' <<< "$1"; }

passed=0 failed=0 results=()
while IFS='|' read -r group what server client pattern; do
    case $group in '#'* | '') continue ;; esac
    group=$(trim "$group") what=$(trim "$what") server=$(trim "$server") client=$(trim "$client") pattern=$(trim "$pattern")
    [[ "$group $what $client" =~ $filter ]] || continue
    progress "$client"
    started=$SECONDS
    if row "$server" "$client" "$pattern"; then
        verdict=passed passed=$((passed + 1))
    else
        verdict=FAILED failed=$((failed + 1))
    fi
    progress
    command=${client// SERVER/}
    printf '%-6s %4d s  %-9s %-42s %s\n' "$verdict" $((SECONDS - started)) "$group" "$what" "$command"
    [ "$verdict" = passed ] || {
        note "    $why"
        tail -n 5 "$work/client" | sed 's/^/    client: /'
        [ "$server" = - ] || tail -n 5 "$work/server" | sed 's/^/    server: /'
    }
    results+=("| \`$command\` | $what | ${verdict,,} |")
done < "$ROWS"

[ -z "$table" ] || {
    echo && echo '| program | shows | result |' && echo '|---|---|---|'
    printf '%s\n' "${results[@]}"
}
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
