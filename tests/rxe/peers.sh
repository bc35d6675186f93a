#!/bin/sh
# In the guest: Linux rxe at both ends of a veth pair, and Feroce at both ends of another one.
#   peers.sh setup                        makes both; Feroce's libraries are in /opt/feroce
#   peers.sh rxe|feroce MTU COMMAND...    runs a perftest command at both ends, and prints the
#                                         client's line of results; MTU is that of the interfaces
set -eu

# rxe knows no namespaces: both ends are in one. Rules make the packets cross the veth.
setup_rxe() {
    ip link add p0 mtu 4400 type veth peer name p1 mtu 4400
    ip address add 10.88.0.1/24 dev p0
    ip address add 10.88.0.2/24 dev p1
    ip link set p0 up
    ip link set p1 up
    sysctl -qw net.ipv4.conf.p0.accept_local=1 net.ipv4.conf.p1.accept_local=1 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.p0.rp_filter=0 net.ipv4.conf.p1.rp_filter=0
    ip neigh replace 10.88.0.2 lladdr "$(cat /sys/class/net/p1/address)" dev p0
    ip neigh replace 10.88.0.1 lladdr "$(cat /sys/class/net/p0/address)" dev p1
    ip rule add pref 1 iif p0 lookup local
    ip rule add pref 1 iif p1 lookup local
    ip route add 10.88.0.2 dev p0 src 10.88.0.1 table 100
    ip route add 10.88.0.1 dev p1 src 10.88.0.2 table 101
    ip rule add pref 2 from 10.88.0.1 to 10.88.0.2 lookup 100
    ip rule add pref 2 from 10.88.0.2 to 10.88.0.1 lookup 101
    ip rule add pref 2 oif p0 lookup 100
    ip rule add pref 2 oif p1 lookup 101
    ip rule add pref 10 lookup local
    ip rule del pref 0
    rdma link add rxa type rxe netdev p0
    rdma link add rxb type rxe netdev p1
}

setup_feroce() {
    for name in a b; do
        ip netns add $name
        ip -n $name link set lo up
    done
    ip link add v0 netns a mtu 4400 type veth peer name v1 netns b mtu 4400
    ip -n a address add 10.99.0.1/24 dev v0
    ip -n b address add 10.99.0.2/24 dev v1
    ip -n a link set v0 up
    ip -n b link set v1 up
    ip netns exec a ping -q -c 1 -w 10 10.99.0.2
}

# The last line that begins with two numbers.
results() { awk '$1 ~ /^[0-9]+$/ && $2 ~ /^[0-9]+$/ { line = $0 } END { print line }' /tmp/client; }

# both FIRST SECOND ADDRESS COMMAND...: runs COMMAND as the server, after the words FIRST, and as
# its client, after SECOND. Fails if one does; what they printed is in /tmp/server and /tmp/client.
both() {
    first=$1 second=$2 address=$3
    shift 3
    # shellcheck disable=SC2086 # Words.
    $first timeout 25 "$@" -F $at_first > /tmp/server 2>&1 &
    server=$!
    until [ -n "$($first ss -ltnH 'sport = :18515')" ] || ! kill -0 $server 2> /tmp/client; do
        sleep 0.1
    done
    # shellcheck disable=SC2086 # Words.
    $second timeout 20 "$@" -F $at_second "$address" > /tmp/client 2>&1 || {
        kill $server
        return 1
    }
    wait $server
    results
}

run_rxe() {
    ip link set p0 mtu "$mtu"
    ip link set p1 mtu "$mtu"
    at_first="-x 1 -d rxa" at_second="-x 1 -d rxb"
    both '' '' 127.0.0.1 "$@"
}

run_feroce() {
    ip -n a link set v0 mtu "$mtu"
    ip -n b link set v1 mtu "$mtu"
    export LD_LIBRARY_PATH=/opt/feroce
    at_first='' at_second=''
    both "ip netns exec a" "ip netns exec b" 10.99.0.1 "$@"
}

case $1 in
    setup)
        modprobe -q veth || true # It may be part of the kernel.
        setup_rxe
        setup_feroce
        ;;
    rxe | feroce)
        what=$1 mtu=$2
        shift 2
        "run_$what" "$@"
        ;;
esac
