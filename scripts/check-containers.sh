#!/usr/bin/env bash
# Builds the image `tools` of containers/Dockerfile with rootless podman, and runs the examples of
# docs/containers.md in containers, as the ordinary user who calls this script.
#   scripts/check-containers.sh [--debian IMAGE] [--prefix PREFIX]
#     --debian IMAGE   Debian 12 to build from (default: the one that containers/Dockerfile names)
#     --prefix PREFIX  a folder that scripts/install.sh has installed to; without it, Feroce is
#                      built in a container
# Images stay; containers, networks and daemons end. Exit code 0 if everything works.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

build=()
prefix=''
while [ $# -gt 0 ]; do
    case $1 in
        --debian | --prefix) [ $# -gt 1 ] || { usage >&2 && exit 2; } ;;&
        --debian) build+=(--build-arg "DEBIAN=$2") && shift ;;
        --prefix) prefix=$(realpath "$2") && shift ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[ "$(id -u)" != 0 ] || die "run this as an ordinary user"
command -v podman > /dev/null || die "podman is not installed"
work=$(mktemp -d)
at_exit "podman unshare rm -rf $work"
name=fr-$$
image=localhost/feroce-tools

main() {
    say "The image"
    if [ -n "$prefix" ]; then # In place of the stage `build`.
        mkdir -p "$work/build/out/usr/local"
        cp -r "$prefix/bin" "$prefix/lib" "$work/build/out/usr/local"
        build+=(--build-context "build=$work/build")
    fi
    podman build --quiet -f containers/Dockerfile -t "$image" --target tools "${build[@]}" .
    mpi
    action
    bridge
    daemon
    echo "all examples run in rootless containers"
}

# in_image OPTION... -- COMMAND...: runs COMMAND in a new container. --init: programs that have
# ended are reaped.
in_image() {
    local options=()
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    timeout 300 podman run --rm --init "${options[@]}" "$image" "$@"
}

mpi() {
    say "Open MPI: four ranks in a container, through the container's daemon"
    in_image -- mpi-example 4 collectives | tee "$work/mpi"
    grep -q '^4 ranks, 0 failed' "$work/mpi" || die "not all ranks have passed"
}

action() {
    say "The example workflow in a container"
    # The action finds Feroce where a cache would have put it.
    in_image -v "$PWD:/feroce:ro" -- bash -ec '
        mkdir -p ~/.local && ln -s /usr/local ~/.local/feroce
        exec /feroce/scripts/workflow.py /feroce/containers/github-workflow.yml /feroce' |
        tee "$work/action"
    [ "$(grep -c 'iters in .* seconds' "$work/action")" = 2 ] || die "ibv_rc_pingpong did not run"
}

# pair: runs ibv_rc_pingpong in the containers $name-a and $name-b, and removes them. Both are in
# the network $name.
pair() {
    local address
    address=$(podman inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' \
        "$name-b")
    podman exec "$name-b" feroce run --quiet -- ibv_rc_pingpong -g 1 -c > "$work/server" 2>&1 &
    podman exec "$name-b" sh -c 'until ss -ltn | grep -q :18515; do sleep 0.1; done'
    timeout 60 podman exec "$name-a" feroce run --quiet -- \
        ibv_rc_pingpong -g 1 -c "$address" | tee "$work/client"
    wait $! || die "the server: $(cat "$work/server")"
    grep -q 'iters in .* seconds' "$work/client" || die "ibv_rc_pingpong did not run"
    podman rm -f -t 0 "$name-a" "$name-b" > /dev/null
}

# start END OPTION...: starts the container $name-END, which waits.
start() {
    local container=$name-$1
    shift
    at_exit "podman rm -f -t 0 $container > /dev/null 2>&1"
    podman run -d --init --name "$container" "$@" "$image" sleep 600 > /dev/null
}

bridge() {
    say "Two containers on a bridge, each on its own: UDP sockets"
    at_exit "podman network rm -f $name > /dev/null 2>&1"
    podman network create "$name" > /dev/null
    start a --network "$name" -e FEROCE_PORT_KIND=udp
    start b --network "$name" -e FEROCE_PORT_KIND=udp
    pair
}

daemon() {
    say "Two containers on the socket of one daemon outside"
    local interface sockets=$work/sockets feroce
    interface=$(awk '$2 == "00000000" { print $1; exit }' /proc/net/route)
    feroce=${prefix:+$prefix/bin/feroce}
    feroce=${feroce:-$(command -v feroce)} || die "feroce is not installed"
    at_exit "$feroce down --socket-dir $sockets > /dev/null"
    "$feroce" up "$interface" --port-kind udp --socket-dir "$sockets" --detach
    local options=(-v "$sockets:/sockets:ro"
        -e "FEROCE_DAEMON_SOCKET=/sockets/$(stat -Lc %i /proc/self/ns/net)/$interface")
    start a --network "$name" "${options[@]}"
    start b --network "$name" "${options[@]}"
    connect "$interface"
    pair
}

# connect INTERFACE: connects the containers $name-a and $name-b with RDMA CM, to an address of the
# daemon's host.
connect() {
    local address
    address=$(ip -4 -o address show dev "$1" | awk '{ sub("/.*", "", $4); print $4; exit }')
    podman exec "$name-b" feroce run --quiet -- rping -s -C 100 -V > "$work/server" 2>&1 &
    timeout 60 podman exec "$name-a" feroce run --quiet -- rping -c -a "$address" -C 100 -v -V \
        > "$work/client" 2>&1 || die "rping: $(cat "$work/client")"
    wait $! || die "rping's server: $(cat "$work/server")"
    [ "$(grep -c 'ping data' "$work/client")" = 100 ] || die "rping: $(cat "$work/client")"
    echo "rping: 100 pings, data compared"
}

main
