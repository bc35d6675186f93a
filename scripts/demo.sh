#!/usr/bin/env bash
# Runs Feroce at both ends of a veth pair, and the kernel's TCP for comparison: bandwidth, latency,
# and packets as tshark decodes them. As root, Feroce uses AF_XDP. For other users, everything runs
# in a user namespace, where AF_XDP is forbidden, and Feroce uses packet sockets. Builds Feroce
# first, with Rust 1.88 or newer. As root, installs missing packages (Debian), and leaves nothing
# else behind. Takes about 10 s after the build.
#   scripts/demo.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case ${1-} in
    '' | --inside) ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && exit 2 ;;
esac

pair=fr-demo-$$
seconds=0.3 # per bandwidth figure
messages=5000 # per latency figure
# Local ACK timeout, 4.096 us * 2^18 = 1.1 s: on a loaded machine an end may not run for long.
patience=(-u 18)
feroce=${CARGO_TARGET_DIR:-target}/demo/feroce
# Inside the user namespace, --inside, there is no network: the build runs before.
if [ "${1-}" != --inside ]; then
    find_cargo # Before anything is installed.
    packages=(--for "the build" libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config
        --for "namespaces" iproute2)
    [ "$(id -u)" != 0 ] || packages+=(--for "plain frames on AF_XDP" ethtool
        --for "decoding packets" tshark)
    need_packages "${packages[@]}"
    if [ -x "$feroce" ]; then
        say "Building what has changed"
    else
        say "Building what moves packets: 5 minutes of CPU time and 0.5 GB, once"
    fi
    as_caller "$cargo" build "${quiet[@]}" --profile demo --package feroce --no-default-features
    [ "$(id -u)" = 0 ] || in_user_namespace "$0" --inside
fi
started=$SECONDS
work=$(mktemp -d)
at_exit "rm -rf $work"
reserve_hugepages 128

mtu=4500 roce_mtu=4096
if ! kernel_is_at_least 6.6; then
    mtu=2200 roce_mtu=2048
    note "Linux $(uname -r): AF_XDP frames longer than a page require Linux 6.6"
fi

# show_figures: prints the tables of what was measured, once.
show_figures() {
    if [ -s "$work/bandwidth" ]; then
        say "Bandwidth, one QP or one stream"
        printf '  %-22s %6s %12s %16s\n' "" bytes Gb/s "1000 messages/s"
        cat "$work/bandwidth"
    fi
    if [ -s "$work/latency" ]; then
        say "Latency in microseconds"
        printf '  %-22s %6s %9s %9s %9s\n' "" bytes min median 99%
        cat "$work/latency"
    fi
    rm -f "$work/bandwidth" "$work/latency"
}
at_exit show_figures # Also what was measured before a failure.

say "Two namespaces, joined by a veth pair with an MTU of $mtu (for a RoCE MTU of $roce_mtu)"
make_pair "$pair" "$mtu"

client() { ip netns exec "$pair-a" "$feroce" "$@"; }

# server ARGUMENT...: serves one client after the other.
server() {
    in_background ip netns exec "$pair-b" "$feroce" perf --persist "$@" \
        > /dev/null 2> "$work/server.log"
    server=$!
    wait_for_port "$pair-b" 18515
}

# figures ARGUMENT...: prints the row of a measurement. If the measurement fails, prints the last
# messages of both ends.
figures() {
    client perf "$@" 10.77.0.2 --report-gbits > "$work/out" 2> "$work/err" || {
        [ $? != 130 ] || exit 130 # Ctrl-C
        tail -n 3 "$work/err" >&2
        printf 'the server said:\n' >&2
        grep -v 'waiting for a client' "$work/server.log" | tail -n 3 >&2
        die "feroce perf $* failed"
    }
    awk '$1 ~ /^[0-9]+$/' "$work/out"
}

bandwidth() { # NAME SIZE ARGUMENT...: adds a line to the table of bandwidths
    local name=$1 size=$2 row
    shift 2
    progress "$name, $size bytes, bandwidth"
    row=$(figures -D "$seconds" "$@")
    awk -v name="$name" -v size="$size" \
        '{ printf "  %-22s %6s %12s %16.1f\n", name, size, ($3 > 0 ? $3 : "-"), $4 * 1000 }' \
        <<< "$row" >> "$work/bandwidth"
}

latency() { # NAME SIZE KIND ARGUMENT...: adds a line to the table of latencies
    local name=$1 size=$2 kind=$3 row
    shift 3
    progress "$name, $size bytes, latency"
    row=$(figures --latency -n "$messages" "$@")
    awk -v name="$name" -v size="$size" -v kind="$kind" \
        '{ printf "  %-22s %6s %9.2f %9.2f %9.2f  %s\n", name, size, $3, $4, $8, kind }' \
        <<< "$row" >> "$work/latency"
}

say "Measuring kernel TCP, with its offloads on (TSO, GSO, GRO), before Feroce attaches"
server --transport tcp
for size in 4K 64K 1M; do bandwidth "kernel TCP" $size --transport tcp -s $size; done
for size in 8 4K; do
    latency "kernel TCP, spinning" $size "half round trip" --transport tcp -s $size
done
progress
kill "$server"
wait "$server" 2> /dev/null || true

port=$(client devinfo --verbose --json -i v0 | sed -n 's/^ *"port": "\(.*\)",$/\1/p')
[[ $port != af_xdp* ]] || plain_frames "$pair"
say "Measuring Feroce at both ends, data checked byte by byte: port $port"
server -i v1 "${patience[@]}"
feroce_end=(-i v0 "${patience[@]}")
for op in write read send; do
    for size in 4K 64K 1M; do
        bandwidth "Feroce $op" $size "${feroce_end[@]}" --check --op $op -s $size
    done
done
for op in atomic-fadd atomic-cas; do
    bandwidth "Feroce $op" 8 "${feroce_end[@]}" --check --op $op
done
for op in write send; do
    for size in 8 4K; do
        latency "Feroce $op" $size "half round trip" "${feroce_end[@]}" --check --op $op -s $size
    done
done
for size in 8 4K; do
    latency "Feroce read" $size "round trip" "${feroce_end[@]}" --check --op read -s $size
done
for op in atomic-fadd atomic-cas; do
    latency "Feroce $op" 8 "round trip" "${feroce_end[@]}" --check --op $op
done
progress

if [ -n "$(command -v tshark)" ]; then
    say "Packets on v0 (--pcap), decoded by tshark:" \
        "one WRITE, one READ, one SEND, one FETCH AND ADD"
else
    note "packets are not shown, without tshark. As root: apt-get install tshark"
fi
for op in write read send atomic-fadd; do
    [ -n "$(command -v tshark)" ] || break
    size=()
    [ $op = atomic-fadd ] || size=(-s 6000)
    figures "${feroce_end[@]}" --op $op "${size[@]}" -n 1 --pcap "$work/$op.pcap" > /dev/null
    tshark -r "$work/$op.pcap" -t r -T fields -e frame.number -e ip.src -e ip.dst -e frame.len \
        -e _ws.col.Info 2> "$work/tshark" | sed 's/^/  /' ||
        die "tshark cannot decode the packets: $(tail -n 1 "$work/tshark")"
done

show_figures

say "Done in $((SECONDS - started)) s"
note "Both ends ran on this machine ($(nproc) CPUs, $(uname -r)), and on veth:" \
    "the kernel copies every frame."
note "Try: 'feroce devinfo', 'feroce perf --help', and --drop 1% --pcap FILE on either end."
