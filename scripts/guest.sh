# shellcheck shell=bash
# The guest with Linux rxe, and the network between it and the engine; after lib.sh.
#   . scripts/guest.sh
# $switch and $engine are the namespaces, $guest_files what tests/rxe/build.sh makes, $work a folder of the caller's.

# To build the guest, and to run it.
# shellcheck disable=SC2034 # For the caller.
readonly GUEST_PACKAGES=(qemu-system-x86 mmdebstrap cpio kmod zstd xz-utils gcc libibverbs-dev iproute2 iputils-ping ethtool
    openssh-client)
readonly MTU=4500 GUEST_MTU=4400 # 4400 makes rxe's path MTU 4096
readonly DATA_MAC=02:fe:00:00:01:01 CONTROL_MAC=02:fe:00:00:01:02
readonly guest_files=target/rxe-guest

# Two namespaces: one with a bridge, on which the guest's TAP and the engine's veth meet, and one for the engine.
# What is said to the agent goes over an interface of its own: the other carries RoCE only, and faults.
make_guest_network() { # NAME
    switch=$1-switch engine=$1-engine
    at_exit "ip netns delete $switch 2> /dev/null"
    ip netns add "$switch"
    at_exit "ip netns delete $engine 2> /dev/null"
    ip netns add "$engine"
    # Nobody but the guest and the engine has an address, or anything to say.
    ip netns exec "$switch" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    ip netns exec "$engine" sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
    join data v0 $MTU
    join control c0 1500
    addresses_for af_xdp
    ip -n "$engine" address add 10.78.0.1/24 dev c0
    ip -n "$engine" link set lo up
    local end
    for end in "$switch v0-far" "$engine v0"; do
        # shellcheck disable=SC2086 # Two words.
        set -- $end
        ip netns exec "$1" ethtool -K "$2" tx off gso off gro off tso off > /dev/null 2>&1 ||
            note "ethtool cannot set all features of $2"
    done
}

# addresses_for PORT: v0 has the engine's addresses, but where the port has them itself: the kernel would answer, too.
addresses_for() {
    if [ "$1" = dpdk ]; then
        ip -n "$engine" address flush dev v0
        ip netns exec "$engine" sysctl -qw net.ipv6.conf.v0.disable_ipv6=1
        return
    fi
    ip netns exec "$engine" sysctl -qw net.ipv6.conf.v0.disable_ipv6=0
    ip -n "$engine" address replace 10.77.0.1/24 dev v0
    ip -n "$engine" -6 address replace fd77::1/64 dev v0 nodad
}

# join NAME INTERFACE MTU: a bridge between a TAP called tap-NAME and INTERFACE, in the engine's namespace.
join() {
    ip -n "$switch" link add "br-$1" type bridge forward_delay 0 mcast_snooping 0
    ip netns exec "$switch" ip tuntap add dev "tap-$1" mode tap vnet_hdr
    ip link add "$2-far" netns "$switch" mtu "$3" type veth peer name "$2" netns "$engine" mtu "$3"
    # QEMU may lag by as much as a READ of 1 MiB.
    ip -n "$switch" link set "tap-$1" mtu "$3" txqueuelen 5000 master "br-$1" up
    ip -n "$switch" link set "$2-far" master "br-$1" up
    ip -n "$switch" link set "br-$1" mtu "$3" up
    ip -n "$engine" link set "$2" up
}

# QEMU without KVM. The clock's rate is told, and the timer not checked: on a busy machine the emulated one loses
# ticks, and the kernel waits for them forever.
boot_guest() {
    local khz started=$SECONDS address _
    local no_offloads=csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off,guest_ufo=off
    no_offloads+=,host_tso4=off,host_tso6=off,host_ufo=off,mrg_rxbuf=on
    khz=$(awk '/cpu MHz/ { print int($4 * 1000); exit }' /proc/cpuinfo)
    ip netns exec "$switch" qemu-system-x86_64 -name "${switch%-switch}" -nodefaults -no-reboot -display none \
        -M microvm,rtc=on -accel tcg,thread=multi -cpu max -m 448 -kernel "$guest_files/vmlinux" -initrd "$guest_files/initrd.cpio" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check lpj=4000000 tsc=reliable tsc_early_khz=$khz mitigations=off
            apparmor=0 audit=0 nokaslr rxe.data=$DATA_MAC,$GUEST_MTU,10.77.0.2/24,fd77::2/64
            rxe.control=$CONTROL_MAC,10.78.0.2/24" \
        -serial "file:$work/console" -device virtio-rng-device \
        -netdev tap,id=data,ifname=tap-data,script=no,downscript=no,vhost=off \
        -device "virtio-net-device,netdev=data,mac=$DATA_MAC,host_mtu=9000,$no_offloads" \
        -netdev tap,id=control,ifname=tap-control,script=no,downscript=no,vhost=off \
        -device "virtio-net-device,netdev=control,mac=$CONTROL_MAC,$no_offloads" \
        -pidfile "$work/pid" -daemonize || die "QEMU does not start"
    guest=$(cat "$work/pid")
    at_exit "kill $guest 2> /dev/null; wait_for_end $guest"
    for _ in $(seq 1200); do
        ! grep -aq '^guest ready' "$work/console" 2> /dev/null || break
        kill -0 "$guest" 2> /dev/null || break
        sleep 0.1
    done
    grep -a '^guest ready' "$work/console" ||
        die "the guest does not come up, its console says: $(tail -n 20 "$work/console")"
    # Neighbours know each other when the first case begins.
    for address in 10.77.0.2 fd77::2; do
        guest_answers "$address" || die "the guest does not answer at $address"
    done
    note "booted in $((SECONDS - started)) s"
}

# guest_answers [ADDRESS]
guest_answers() { ip netns exec "$engine" ping -q -c 1 -w 20 "${1-10.77.0.2}" > /dev/null; }

# wait_for_end PROCESS: it has no business any more; its namespaces and files go when it is gone.
wait_for_end() {
    local _
    for _ in $(seq 50); do
        kill -0 "$1" 2> /dev/null || return 0
        sleep 0.1
    done
    kill -9 "$1" 2> /dev/null
}

# guest_ssh FILE: writes a configuration to FILE, by which ssh -F FILE in $engine finds the guest under the name `guest`.
guest_ssh() {
    cat > "$1" << CONFIG
Host guest
    HostName 10.78.0.2
    User root
    IdentityFile $(realpath "$guest_files")/key
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
CONFIG
}

# find_conform: sets the array conform, the command that plays to the guest: `feroce conform` of $FEROCE_CONFORM, or built.
find_conform() {
    if [ -n "${FEROCE_CONFORM:-}" ]; then
        conform=("$FEROCE_CONFORM" conform)
    else
        find_cargo
        say "Building feroce"
        build --bin feroce
        conform=("$(built)/feroce" conform)
    fi
}
