#!/usr/bin/env bash
# Runs `feroce perf` between network namespaces for a long time: 200 QPs, every operation, every
# fault (loss, duplicates, reordering, bit errors, marks, a link that goes down, a detached XDP
# program, kills of one end), on the ports AF_XDP and packet. Every message is compared. Ends with
# a line that counts what was done; fails if a byte is wrong, a test fails that should not, an end
# hangs, the servers' memory or descriptors grow, or one of the faults never happened.
#   scripts/soak.sh [DURATION] [SEED]
#       DURATION: 30m (default), 180s, 2h; SEED repeats the choices of another run
#   FEROCE=target/debug/feroce    the program, instead of building it
#   FEROCE_SOAK_QPS=200           QPs of a test
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case ${1:-} in -h | --help) usage && exit ;; esac
duration=${1:-30m} seed=${2:-$RANDOM} qps=${FEROCE_SOAK_QPS:-200}
[[ $duration =~ ^([0-9]+)([smh]?)$ ]] || die "a duration is 180s, 30m or 2h: $duration"
declare -A unit=([s]=1 [m]=60 [h]=3600)
seconds=$((BASH_REMATCH[1] * unit[${BASH_REMATCH[2]:-s}]))
need_root "$@"
need_packages iproute2 ethtool bpftool
feroce=${FEROCE:-}
if [ -z "$feroce" ]; then
    find_cargo
    build --bin feroce
    feroce=$(built)/feroce
fi
logs=$(mktemp -d)
# The folder stays if the soak fails.
at_exit '[ "$status" != 0 ] || rm -rf "$logs"'
reserve_hugepages 512
RANDOM=$seed
say "soak for $duration with $qps QPs, seed $seed, output in $logs"

ops=(write write-imm read send send-imm atomic-fadd atomic-cas)
# Pair NAME has its server on the port of the same name, at 10.77.0.2.
pairs=(af_xdp packet)
declare -A server=() first_memory=() memory=() fds=() rounds_of=([af_xdp]=0 [packet]=0)
rounds=0 kills=0 flaps=0 detached=0 compared=0

# start_server PORT: starts the server of a pair and waits until it listens.
start_server() {
    local port=$1
    ip netns exec "fr-soak-$port-b" "$feroce" perf -i v1 --port-kind "$port" --persist \
        --drop 200ppm --duplicate 200ppm --reorder 200ppm --corrupt 100ppm --mark 1% \
        --seed "$RANDOM" >> "$logs/$port-server" 2>&1 &
    server[$port]=$!
    first_memory[$port]=0 rounds_of[$port]=0
    at_exit "kill -9 ${server[$port]} 2> /dev/null; wait ${server[$port]} 2> /dev/null"
    wait_for_port "fr-soak-$port-b" 18515
}

# memory_of PORT: prints, in KiB, the private memory of the server and what its queues and buffers
# use of the arena, the memory that it keeps mapped for them. Its resident memory would also grow by
# pages of the arena that no test has touched before.
memory_of() {
    local private used
    private=$(awk '/^RssAnon/ { print $2 }' "/proc/${server[$1]}/status")
    used=$(ip netns exec "fr-soak-$1-b" "$feroce" stat -i v1 --json |
        awk '/"arena_used"/ { print $2 + 0 }')
    [ -n "$private" ] && [ -n "$used" ] || die "the server on $1 tells no figures"
    echo $((private + used / 1024))
}

# measure PORT: reads the memory in KiB and the descriptors of the idle server of PORT. Those after
# the first four rounds are the measure for all later ones.
measure() {
    local port=$1 pid=${server[$1]} _
    # The server frees the objects of a test before it waits for the next client.
    for _ in $(seq 100); do
        [[ $(tail -n 1 "$logs/$port-server") != *"waiting for a client"* ]] || break
        sleep 0.1
    done
    local now
    now=$(find "/proc/$pid/fd" -mindepth 1 | wc -l)
    # After the descriptors are counted: the server opens some while it tells its figures.
    memory[$port]=$(memory_of "$port")
    rounds_of[$port]=$((rounds_of[$port] + 1))
    if [ "${rounds_of[$port]}" -le 4 ]; then
        [ "${first_memory[$port]}" -ge "${memory[$port]}" ] ||
            first_memory[$port]=${memory[$port]}
        fds[$port]=$now
        return
    fi
    [ "$now" -le "${fds[$port]}" ] ||
        die "the server on $port had ${fds[$port]} descriptors, and has $now"
    [ "${memory[$port]}" -le $((first_memory[$port] * 21 / 20 + 16384)) ] ||
        die "the server on $port had ${first_memory[$port]} KiB of memory, and has" \
            "${memory[$port]}"
}

# wait_ended PID SECONDS: succeeds if the process ends within this time.
wait_ended() {
    local _
    for _ in $(seq $(($2 * 10))); do
        case $(awk '{ print $3 }' "/proc/$1/stat" 2> /dev/null) in Z | '') return 0 ;; esac
        sleep 0.1
    done
    return 1
}

# detach_xdp PID: detaches the XDP program of this process, as another program may.
detach_xdp() {
    local id program
    while read -r id program; do
        if bpftool prog show id "$program" 2> /dev/null | grep -q "name feroce_$1 "; then
            bpftool link detach id "$id" > /dev/null
            return
        fi
    done < <(bpftool link show | awk '/^[0-9]+: xdp/ { print $1 + 0, $4 }')
    return 1
}

# disturb PORT CLIENT SECONDS: does something to the pair while the client runs. Sets $what.
disturb() {
    local port=$1 client=$2 half=$(($3 / 2)) b=fr-soak-$1-b
    sleep "$half"
    case $((RANDOM % 12)) in
        0 | 1)
            what='client killed'
            kill -9 "$client" 2> /dev/null || true
            wait "$client" 2> /dev/null || true
            kills=$((kills + 1))
            ;;
        2)
            what='server killed'
            kill -9 "${server[$port]}"
            wait "${server[$port]}" 2> /dev/null || true
            kills=$((kills + 1))
            ;;
        3 | 4)
            what='link down'
            ip -n "$b" link set v1 down
            sleep 0.3
            ip -n "$b" link set v1 up
            flaps=$((flaps + 1))
            ;;
        5 | 6 | 7)
            what='nothing'
            if detach_xdp "${server[$port]}" || detach_xdp "$client"; then
                what='XDP program detached'
                detached=$((detached + 1))
            fi
            ;;
        *) what='nothing' ;;
    esac
}

# round PORT OP SECONDS: one test.
round() {
    local port=$1 op=$2 length=$3 kind size status=0 client log=$logs/client
    kind=${pairs[RANDOM % 2]}
    size=$((RANDOM % 4 == 0 ? 65536 : 1 + RANDOM % 16384))
    local arguments=(-i v0 --port-kind "$kind" -q "$qps" -D "$length" --check --op "$op"
        -t $((1 << RANDOM % 6)) --timeout 15 --seed "$RANDOM"
        --drop "$((RANDOM % 2000))ppm" --duplicate "$((RANDOM % 1000))ppm"
        --reorder "$((RANDOM % 1000))ppm" --corrupt "$((RANDOM % 500))ppm" --mark 1%)
    case $op in atomic*) ;; *) arguments+=(-s "$size") ;; esac
    # SEND and WRITE both ways now and then.
    if [ $((RANDOM % 3)) = 0 ]; then arguments+=(-b); fi
    local run=(ip netns exec "fr-soak-$port-a" "$feroce" perf "${arguments[@]}" 10.77.0.2 --json)
    "${run[@]}" > "$log" 2>&1 &
    client=$!
    local what=''
    disturb "$port" "$client" "$length"
    wait_ended "$client" $((length + 90)) || {
        kill -9 "$client"
        die "round $rounds hangs ($what): $kind to $port, ${arguments[*]}: $(tail -3 "$log")"
    }
    wait "$client" 2> /dev/null || status=$?
    case $what in
        'client killed') ;;
        'server killed')
            # 1: the client says that its peer is gone; 0: it had ended.
            [ "$status" = 1 ] || [ "$status" = 0 ] ||
                die "round $rounds ($what) ended with $status: $(tail -3 "$log")"
            ;;
        *)
            [ "$status" = 0 ] ||
                die "round $rounds ($what, $kind to $port) ended with $status: ${arguments[*]}:
$(tail -3 "$log")$(tail -3 "$logs/$port-server")"
            local bytes
            bytes=$(grep -o '"checked_bytes": *[0-9]*' "$log" | grep -o '[0-9]*$' | head -1)
            [ "${bytes:-0}" -gt 0 ] || die "round $rounds compared nothing: ${arguments[*]}"
            compared=$((compared + bytes))
            ;;
    esac
    note "round $rounds: $op, $kind to $port, $what: $((${bytes:-0} >> 20)) MiB compared"
    case $what in
        'server killed') start_server "$port" ;;
        'client killed')
            # The server finds out that its peer is gone, and serves the next client.
            sleep 5
            [ -e "/proc/${server[$port]}" ] ||
                die "the server on $port ended: $(tail -3 "$logs/$port-server")"
            ;;
        *) measure "$port" ;;
    esac
}

for port in "${pairs[@]}"; do
    make_pair "fr-soak-$port" 4500
    # Generic XDP loses the kernel's super-frames, and ports of both kinds meet here.
    plain_frames "fr-soak-$port"
    start_server "$port"
done

end=$((SECONDS + seconds))
while [ "$SECONDS" -lt "$end" ]; do
    op=${ops[$((rounds / 2 % ${#ops[@]}))]}
    round "${pairs[$((rounds % 2))]}" "$op" 6
    rounds=$((rounds + 1))
done

for port in "${pairs[@]}"; do
    kill -INT "${server[$port]}"
    wait_ended "${server[$port]}" 10 || die "the server on $port does not end"
    wait "${server[$port]}" 2> /dev/null || true
    left=$(ip -n "fr-soak-$port-b" -d link show v1 | grep -c 'prog/xdp' || true)
    [ "$left" = 0 ] || die "an XDP program stays on the interface of $port"
    ip netns delete "fr-soak-$port-a"
    ip netns delete "fr-soak-$port-b"
done
left=$(ip netns list | grep '^fr-soak-' || true)
[ -z "$left" ] || die "namespaces are left: $left"
# A run without one of the faults says nothing about it.
[ "$kills" -gt 0 ] && [ "$flaps" -gt 0 ] && [ "$detached" -gt 0 ] ||
    die "not every fault happened in $rounds rounds: $kills kills, $flaps links down," \
        "$detached programs detached; a longer run, or another seed, has all of them"
say "soak: $((seconds / 60)) min, $rounds rounds of $qps QPs, $((compared >> 30)) GiB compared," \
    "all correct; $kills kills, $flaps links down, $detached programs detached; no leak" \
    "(memory of the servers: $((memory[af_xdp] >> 10)) and $((memory[packet] >> 10)) MiB)"
