//! Addresses, neighbours and routes of the host, tested against the kernel in two network
//! namespaces that are connected by a veth pair.
//!
//! Needs root and iproute2. Without root every test prints that it is skipped. VLAN tests are
//! skipped if the kernel has no 802.1Q.
#![allow(clippy::disallowed_methods)] // Tests against the kernel use real time.

use std::fs;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use feroce_engine::device::{Addressing, KernelAddresses};
use feroce_engine::net::{
    Confirmation, Gid, GidEntry, GidTable, Interface, InterfaceAddress, NetError, NetEvent,
    PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver, Watcher,
};
use feroce_wire::MacAddr;

/// Maximum time until the kernel reports a change.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

const MAC_A: MacAddr = MacAddr([0x02, 0xfe, 0, 0, 0, 0x0a]);
const MAC_B: MacAddr = MacAddr([0x02, 0xfe, 0, 0, 0, 0x0b]);

/// Namespaces `a` and `b`, each with one end `eth0` of a veth pair. Removed when dropped.
struct Pair {
    a: String,
    b: String,
}

impl Pair {
    /// Creates the namespaces. Without root, prints a message and returns `None`.
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // SAFETY: geteuid has no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            feroce_test_skip::skip("network namespaces need root");
            return None;
        }
        let name = format!("fr-net-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let pair = Self { a: format!("{name}a"), b: format!("{name}b") };
        for ns in [&pair.a, &pair.b] {
            ip(&["netns", "add", ns]);
            // Duplicate address detection would delay addresses by one second.
            for scope in ["all", "default"] {
                write_in(ns, &format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0");
            }
        }
        let (mac_a, mac_b) = (MAC_A.to_string(), MAC_B.to_string());
        ip(&[
            "-n", &pair.a, "link", "add", "eth0", "address", &mac_a, "type", "veth", "peer",
            "name", "eth0", "netns", &pair.b, "address", &mac_b,
        ]);
        pair.a("link set eth0 up");
        pair.b("link set eth0 up");
        Some(pair)
    }

    /// Creates the namespaces with the addresses 10.0.0.1 and fd00::1 in `a`, 10.0.0.2 and fd00::2
    /// in `b`.
    fn with_addresses() -> Option<Self> {
        let pair = Self::new()?;
        pair.a("addr add 10.0.0.1/24 dev eth0");
        pair.a("addr add fd00::1/64 dev eth0 nodad");
        pair.b("addr add 10.0.0.2/24 dev eth0");
        pair.b("addr add fd00::2/64 dev eth0 nodad");
        Some(pair)
    }

    fn a(&self, command: &str) -> String {
        ip_in(&self.a, command)
    }

    fn b(&self, command: &str) -> String {
        ip_in(&self.b, command)
    }

    /// Sets a parameter of the ARP table of eth0 in `a`.
    fn tune_arp(&self, parameter: &str, value: &str) {
        let path = format!("/proc/sys/net/ipv4/neigh/eth0/{parameter}");
        write_in(&self.a, &path, value);
    }

    /// Resolves `destination` in `a` from the GID entry of eth0 (or a VLAN child) with address
    /// `source`.
    fn resolve(&self, destination: &str, source: &str) -> Result<PathHeaders, ResolveError> {
        self.resolve_within(destination, source, RESOLVE_TIMEOUT)
    }

    fn resolve_within(
        &self,
        destination: &str,
        source: &str,
        timeout: Duration,
    ) -> Result<PathHeaders, ResolveError> {
        within(&self.a, || {
            let source = entry(source);
            Resolver::open()?.resolve(gid(destination), &source, timeout)
        })
    }

    /// A watcher of `a` after its first snapshot; the list holds the events of this snapshot.
    fn watch(&self) -> (Watcher, Receiver<NetEvent>, Vec<NetEvent>) {
        let (sender, receiver) = mpsc::channel();
        let watcher = within(&self.a, || {
            Watcher::start(Box::new(move |event| {
                let _ = sender.send(event); // Fails if the test is over.
            }))
        });
        let watcher = watcher.expect("watcher");
        let first = wait_for(&receiver, |event| *event == NetEvent::Synchronised);
        (watcher, receiver, first)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for ns in [&self.a, &self.b] {
            let _ = Command::new("ip").args(["netns", "del", ns]).status();
        }
    }
}

fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().expect("iproute2");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {stderr}", args.join(" "));
    String::from_utf8(output.stdout).expect("text")
}

fn ip_in(ns: &str, command: &str) -> String {
    let mut args = vec!["-n", ns];
    args.extend(command.split(' '));
    ip(&args)
}

/// Runs `f` on a new thread in namespace `ns`.
fn within<T: Send>(ns: &str, f: impl FnOnce() -> T + Send) -> T {
    let file = fs::File::open(format!("/var/run/netns/{ns}")).expect("namespace");
    thread::scope(|scope| {
        let inside = scope.spawn(move || {
            // SAFETY: setns only reads the open descriptor and moves only this short-lived thread.
            let moved = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(moved, 0, "setns: {}", std::io::Error::last_os_error());
            f()
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn write_in(ns: &str, path: &str, value: &str) {
    within(ns, || fs::write(path, value)).unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn gid(ip: &str) -> Gid {
    ip.parse().expect("address")
}

fn addr(ip: &str) -> IpAddr {
    ip.parse().expect("address")
}

/// The GID entry of `eth0` for the address `ip`.
fn entry(ip: &str) -> GidEntry {
    let table = GidTable::read("eth0").expect("GID table");
    let found = table.iter().find(|(_, entry)| entry.gid == gid(ip)).map(|(_, entry)| entry);
    found.unwrap_or_else(|| panic!("{ip} is not in {table:?}")).clone()
}

fn listing(table: &GidTable) -> Vec<(usize, String)> {
    table.iter().map(|(index, entry)| (index, entry.gid.ip().to_string())).collect()
}

/// The events up to and including the first one for which `matches` is true.
fn wait_for(events: &Receiver<NetEvent>, matches: impl Fn(&NetEvent) -> bool) -> Vec<NetEvent> {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut seen = Vec::new();
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => seen.push(event),
            Err(error) => panic!("expected event is missing: {error}; seen: {seen:#?}"),
        }
        if seen.last().is_some_and(&matches) {
            return seen;
        }
    }
}

/// Applies events to `table` until it contains `ip`, or until it does not if `present` is false.
fn follow(events: &Receiver<NetEvent>, table: &mut GidTable, ip: &str, present: bool) {
    let awaited = |event: &NetEvent| match event {
        NetEvent::AddressAdded(address) => present && address.ip == addr(ip),
        NetEvent::AddressRemoved(address) => !present && address.ip == addr(ip),
        _ => false,
    };
    for event in wait_for(events, awaited) {
        table.apply(&event);
    }
}

#[test]
fn the_gid_table_has_the_order_of_the_kernel() {
    let Some(pair) = Pair::new() else { return };
    pair.a("addr add fd00::1/64 dev eth0 nodad");
    pair.a("addr add 10.0.0.1/24 dev eth0");
    pair.a("addr add 10.0.0.3/24 dev eth0");
    let table = within(&pair.a, || GidTable::read("eth0")).unwrap();
    let expected = [
        (0, "fe80::fe:ff:fe00:a".to_owned()),
        (1, "10.0.0.1".to_owned()),
        (2, "10.0.0.3".to_owned()),
        (3, "fd00::1".to_owned()),
    ];
    assert_eq!(listing(&table), expected);
    assert_eq!(table.get(1).map(|entry| entry.interface_name.as_str()), Some("eth0"));

    // The default GID does not depend on IPv6.
    write_in(&pair.a, "/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1");
    let table = within(&pair.a, || GidTable::read("eth0")).unwrap();
    assert_eq!(listing(&table), expected[..3]);

    let missing = within(&pair.a, || GidTable::read("eth7"));
    assert_eq!(missing, Err(NetError::NoSuchInterface { name: "eth7".into() }));
}

#[test]
fn interfaces_report_what_the_kernel_knows() {
    let Some(pair) = Pair::new() else { return };
    pair.a("link set eth0 mtu 4400");
    let (eth0, all) = within(&pair.a, || (Interface::read("eth0"), Interface::list()));
    let (eth0, all) = (eth0.unwrap(), all.unwrap());
    assert_eq!((eth0.mac, eth0.mtu, eth0.up, eth0.carrier), (MAC_A, 4400, true, true));
    assert!(all.contains(&eth0));
    assert!(all.iter().any(|interface| interface.loopback && interface.name == "lo"));
    pair.b("link set eth0 down");
    let eth0 = within(&pair.a, || Interface::read("eth0")).unwrap();
    assert_eq!((eth0.up, eth0.carrier, eth0.is_usable()), (true, false, false));
    // The namespace of the thread counts, not that of the process.
    assert_eq!(
        within(&pair.b, || Interface::read("eth0")).map(|interface| interface.mac),
        Ok(MAC_B)
    );
}

#[test]
fn indices_stay_stable_when_addresses_change() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let (watcher, events, first) = pair.watch();
    let device = within(&pair.a, || Interface::read("eth0")).unwrap();
    let mut table = GidTable::new(&device);
    for event in &first {
        table.apply(event);
    }
    assert_eq!(
        table,
        within(&pair.a, || GidTable::read("eth0")).unwrap(),
        "same order as in a new snapshot"
    );

    pair.a("addr add 10.0.0.7/24 dev eth0");
    follow(&events, &mut table, "10.0.0.7", true);
    assert_eq!(table.find(gid("10.0.0.7"), None), Some(3));
    pair.a("addr del fd00::1/64 dev eth0");
    follow(&events, &mut table, "fd00::1", false);
    assert_eq!(table.get(2), None);
    pair.a("addr add fd00::9/64 dev eth0 nodad");
    follow(&events, &mut table, "fd00::9", true);
    let addresses: Vec<_> = listing(&table);
    let expected = [
        (0, "fe80::fe:ff:fe00:a".to_owned()),
        (1, "10.0.0.1".to_owned()),
        (2, "fd00::9".to_owned()),
        (3, "10.0.0.7".to_owned()),
    ];
    assert_eq!(addresses, expected);
    drop(watcher);
    assert!(
        events.iter().all(|event| event != NetEvent::Synchronised),
        "the table was not read again"
    );
}

#[test]
fn unknown_neighbours_are_resolved() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    for (destination, source) in [
        ("10.0.0.2", "10.0.0.1"),
        ("fd00::2", "fd00::1"),
        ("fe80::fe:ff:fe00:b", "fe80::fe:ff:fe00:a"),
    ] {
        let show = format!("neigh show to {destination} dev eth0");
        assert_eq!(pair.a(&show), "", "not resolved before");
        let headers = pair.resolve(destination, source).unwrap();
        assert_eq!((headers.dst_mac, headers.src_mac), (MAC_B, MAC_A));
        assert_eq!((headers.src_ip, headers.dst_ip), (addr(source), addr(destination)));
        assert_eq!((headers.vlan, headers.mtu, headers.hop_limit), (None, 1500, 64));
        assert_eq!(headers.next_hop, Some(addr(destination)));
        assert!(pair.a(&show).contains(&MAC_B.to_string()));
        // Now the neighbour is known, so a timeout of zero suffices.
        assert_eq!(pair.resolve_within(destination, source, Duration::ZERO), Ok(headers));
    }
}

#[test]
fn unreachable_neighbours_fail_after_the_timeout() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    for (destination, source) in [("10.0.0.99", "10.0.0.1"), ("fd00::99", "fd00::1")] {
        let bound = Duration::from_millis(300);
        let start = Instant::now();
        let error = pair.resolve_within(destination, source, bound).unwrap_err();
        let took = start.elapsed();
        let ResolveError::Unresolved { next_hop, after } = error else { panic!("{error}") };
        assert_eq!(next_hop, addr(destination));
        assert!(after >= bound && after <= took, "{after:?} of {took:?}");
        assert!(took < bound * 5, "{took:?}");
    }
    // If the kernel gives up before the timeout, resolving fails at that time.
    pair.tune_arp("retrans_time_ms", "50");
    let error = pair.resolve_within("10.0.0.98", "10.0.0.1", TEST_TIMEOUT).unwrap_err();
    let ResolveError::Unresolved { after, .. } = error else { panic!("{error}") };
    assert!(after < TEST_TIMEOUT / 2, "{after:?}");
    // A failed neighbour is requested again, since it may be reachable now.
    pair.b("addr add 10.0.0.98/24 dev eth0");
    assert_eq!(pair.resolve("10.0.0.98", "10.0.0.1").map(|headers| headers.dst_mac), Ok(MAC_B));
}

/// Several threads resolve addresses of one device; one of them waits for an absent neighbour.
#[test]
fn threads_do_not_wait_for_each_others_neighbours() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let (addresses, source) = within(&pair.a, || {
        (Addressing::Kernel(KernelAddresses::open("eth0").unwrap()), entry("10.0.0.1"))
    });
    let resolve = |ip: &str, timeout| addresses.resolve(gid(ip), &source, timeout);
    std::thread::scope(|scope| {
        let start = Instant::now();
        let absent = scope.spawn(move || (resolve("10.0.0.99", TEST_TIMEOUT), start.elapsed()));
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        let found = resolve("10.0.0.2", TEST_TIMEOUT).map(|headers| headers.dst_mac);
        assert_eq!(found, Ok(MAC_B));
        assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
        let (absent, took) = absent.join().unwrap();
        assert!(absent.is_err() && took > Duration::from_millis(1500), "{absent:?} {took:?}");
    });
}

#[test]
fn stale_neighbours_are_used_and_confirmed() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let old = MacAddr([2, 0, 0, 0, 0, 0x77]);
    pair.a(&format!("neigh add 10.0.0.2 lladdr {old} dev eth0 nud stale"));
    let (_watcher, events, first) = pair.watch();
    let neighbour = |event: &NetEvent, expected: MacAddr| match event {
        NetEvent::NeighbourChanged { ip, mac, .. } => *ip == addr("10.0.0.2") && *mac == expected,
        _ => false,
    };
    assert!(first.iter().any(|event| neighbour(event, old)));
    pair.tune_arp("delay_first_probe_time", "1");
    pair.tune_arp("retrans_time_ms", "50");
    pair.tune_arp("mcast_resolicit", "3");
    pair.tune_arp("locktime", "0"); // Otherwise the kernel ignores a second change within 1 s.
    let headers = pair.resolve_within("10.0.0.2", "10.0.0.1", Duration::ZERO).unwrap();
    assert_eq!(headers.dst_mac, old, "used without waiting");
    // The confirmation finds the new address: unicast probes get no answer, but the broadcast does.
    wait_for(&events, |event| neighbour(event, MAC_B));
}

#[test]
fn neighbours_are_probed_again_on_request() {
    let Some(pair) = Pair::with_addresses() else { return };
    let headers = pair.resolve("10.0.0.2", "10.0.0.1").unwrap();
    let timeout = Duration::from_secs(5);
    let confirm = || within(&pair.a, || Resolver::open()?.confirm(&headers, timeout));
    assert_eq!(confirm(), Ok(Confirmation::Answered(MAC_B)));

    // The neighbour stays reachable for at least half a minute.
    pair.tune_arp("retrans_time_ms", "50");
    pair.b("addr del 10.0.0.2/24 dev eth0");
    let error = confirm().unwrap_err();
    assert!(matches!(error, ResolveError::Unresolved { .. }), "{error}");
    assert!(matches!(confirm(), Err(ResolveError::Unresolved { .. })), "probed again");

    // The neighbour is back. Then its entry is stale, and resolving changes the state to "delay".
    pair.b("addr add 10.0.0.2/24 dev eth0");
    assert_eq!(confirm(), Ok(Confirmation::Answered(MAC_B)), "it is back");
    pair.a(&format!("neigh replace 10.0.0.2 lladdr {MAC_B} dev eth0 nud stale"));
    assert_eq!(pair.resolve("10.0.0.2", "10.0.0.1"), Ok(headers));
    assert_eq!(confirm(), Ok(Confirmation::Answered(MAC_B)));
    // The neighbour has moved to another Ethernet address.
    pair.a("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:98 dev eth0 nud reachable");
    assert_eq!(confirm(), Ok(Confirmation::Answered(MAC_B)));

    pair.a("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
    let entered = MacAddr([2, 0, 0, 0, 0, 0x99]);
    assert_eq!(confirm(), Ok(Confirmation::Permanent(entered)));
    assert!(pair.a("neigh show 10.0.0.2").contains("PERMANENT"), "the entry is unchanged");
}

#[test]
fn routes_use_gateways() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    pair.a("route add 10.9.0.0/24 via 10.0.0.2 mtu 1400 hoplimit 9");
    pair.a("-6 route add fd09::/64 via fd00::2");
    pair.a("route add 10.8.0.0/24 via inet6 fd00::2 dev eth0");
    pair.a("route add prohibit 10.7.0.0/24");

    let headers = pair.resolve("10.9.0.1", "10.0.0.1").unwrap();
    assert_eq!((headers.dst_mac, headers.next_hop), (MAC_B, Some(addr("10.0.0.2"))));
    assert_eq!((headers.dst_ip, headers.mtu, headers.hop_limit), (addr("10.9.0.1"), 1400, 9));
    let headers = pair.resolve("fd09::1", "fd00::1").unwrap();
    assert_eq!((headers.dst_mac, headers.next_hop), (MAC_B, Some(addr("fd00::2"))));
    let headers = pair.resolve("10.8.0.1", "10.0.0.1").unwrap();
    assert_eq!((headers.dst_mac, headers.next_hop), (MAC_B, Some(addr("fd00::2"))));

    for (destination, source) in
        [("192.0.2.1", "10.0.0.1"), ("2001:db8::1", "fd00::1"), ("10.7.0.1", "10.0.0.1")]
    {
        let destination_ip = addr(destination);
        let expected =
            ResolveError::NoRoute { destination: destination_ip, interface: "eth0".into() };
        assert_eq!(pair.resolve(destination, source), Err(expected));
    }
}

#[test]
fn destinations_that_use_no_link_are_refused() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    pair.a("link set lo up");
    pair.a("link add eth1 type veth peer name eth2");
    pair.a("link set eth1 up");
    pair.a("addr add fd01::1/64 dev eth1 nodad");
    pair.a("-6 route add default via fd00::2");
    for (destination, source) in [
        ("10.0.0.1", "10.0.0.1"),
        ("127.0.0.1", "10.0.0.1"),
        ("::1", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("fd01::1", "fd00::1"), // of another interface
        ("fe80::fe:ff:fe00:a", "fe80::fe:ff:fe00:a"),
    ] {
        let expected = ResolveError::LocalDestination { destination: addr(destination) };
        assert_eq!(pair.resolve(destination, source), Err(expected));
    }
    for destination in ["10.0.0.255", "255.255.255.255", "0.0.0.0"] {
        let expected = ResolveError::NotAHost { destination: addr(destination) };
        assert_eq!(pair.resolve(destination, "10.0.0.1"), Err(expected));
    }
    let mixed = pair.resolve("fd00::2", "10.0.0.1");
    assert!(matches!(mixed, Err(ResolveError::FamilyMismatch { .. })), "{mixed:?}");
    let gone = within(&pair.a, || {
        let source = GidEntry { gid: gid("10.0.0.200"), ..entry("10.0.0.1") };
        Resolver::open()?.resolve(gid("10.0.0.2"), &source, RESOLVE_TIMEOUT)
    });
    assert_eq!(gone, Err(ResolveError::SourceGone { source_ip: addr("10.0.0.200") }));
}

#[test]
fn multicast_needs_no_neighbour() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let headers = pair.resolve_within("239.1.2.3", "10.0.0.1", Duration::ZERO).unwrap();
    assert_eq!(headers.dst_mac, MacAddr([0x01, 0x00, 0x5e, 1, 2, 3]));
    assert_eq!((headers.next_hop, headers.hop_limit), (None, 1));
    let headers = pair.resolve_within("ff0e::1234:5678", "fd00::1", Duration::ZERO).unwrap();
    assert_eq!(headers.dst_mac, MacAddr([0x33, 0x33, 0x12, 0x34, 0x56, 0x78]));
}

#[test]
fn resolving_without_the_capability_is_a_typed_error() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let resolve = || {
        within(&pair.a, || {
            let source = entry("10.0.0.1");
            let nobody: libc::uid_t = 65534;
            // SAFETY: the raw call changes the ids, and so the capabilities, only of this
            // short-lived thread.
            let set = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
            assert_eq!(set, 0);
            Resolver::open()?.resolve(gid("10.0.0.2"), &source, RESOLVE_TIMEOUT)
        })
    };
    assert_eq!(resolve(), Err(ResolveError::Permission { next_hop: addr("10.0.0.2") }));
    // Reading needs no capability.
    pair.a(&format!("neigh add 10.0.0.2 lladdr {MAC_B} dev eth0 nud stale"));
    assert_eq!(resolve().map(|headers| headers.dst_mac), Ok(MAC_B));
}

#[test]
fn vlan_children_tag_their_paths() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let tried =
        ["-n", &pair.a, "link", "add", "link", "eth0", "name", "eth0.5", "type", "vlan", "id", "5"];
    let output = Command::new("ip").args(tried).output().expect("iproute2");
    if String::from_utf8_lossy(&output.stderr).contains("Unknown device type") {
        feroce_test_skip::skip("this kernel has no 802.1Q");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let (watcher, events, first) = pair.watch();
    let mut table = GidTable::new(&within(&pair.a, || Interface::read("eth0")).unwrap());
    for event in &first {
        table.apply(event);
    }

    pair.b("link add link eth0 name eth0.5 type vlan id 5");
    for (ns, ip) in [(&pair.a, "10.5.0.1/24"), (&pair.b, "10.5.0.2/24")] {
        ip_in(ns, "link set eth0.5 mtu 1400 up");
        ip_in(ns, &format!("addr add {ip} dev eth0.5"));
    }
    follow(&events, &mut table, "10.5.0.1", true);
    let index = table.find(gid("10.5.0.1"), Some(5)).expect("tagged entry");
    let child = within(&pair.a, || {
        let all = Interface::list().unwrap();
        let eth0 = Interface::read("eth0").unwrap();
        eth0.vlan_children(&all).next().cloned()
    });
    let child = child.expect("child");
    assert_eq!(table.get(index).map(|entry| entry.interface), Some(child.index));
    let headers = pair.resolve("10.5.0.2", "10.5.0.1").unwrap();
    assert_eq!((headers.vlan, headers.mtu, headers.interface), (Some(5), 1400, child.index));
    assert_eq!((headers.dst_mac, headers.src_mac), (MAC_B, MAC_A));

    pair.a("link del eth0.5");
    for event in wait_for(&events, |event| matches!(event, NetEvent::LinkRemoved { .. })) {
        table.apply(&event);
    }
    assert_eq!(table.find(gid("10.5.0.1"), Some(5)), None);
    drop(watcher);
}

#[test]
fn link_and_mtu_changes_are_published() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let (_watcher, events, first) = pair.watch();
    let interface = within(&pair.a, || Interface::read("eth0")).unwrap().index;
    assert!(first.iter().any(|event| {
        matches!(event, NetEvent::LinkAdded(link) if link.index == interface && link.is_usable())
    }));
    pair.a("link set eth0 mtu 4400");
    wait_for(&events, |event| *event == NetEvent::MtuChanged { interface, mtu: 4400 });
    // The peer's end goes down, so this end loses its carrier.
    pair.b("link set eth0 down");
    wait_for(&events, |event| *event == NetEvent::LinkDown { interface });
    let down = ResolveError::InterfaceDown { interface: "eth0".into() };
    assert_eq!(pair.resolve("10.0.0.2", "10.0.0.1"), Err(down.clone()));
    pair.b("link set eth0 up");
    wait_for(&events, |event| *event == NetEvent::LinkUp { interface });
    assert_eq!(pair.resolve("10.0.0.2", "10.0.0.1").map(|headers| headers.mtu), Ok(4400));
    // This end goes down, which removes its IPv6 addresses.
    pair.a("link set eth0 down");
    let seen = wait_for(
        &events,
        |event| matches!(event, NetEvent::AddressRemoved(address) if address.ip == addr("fd00::1")),
    );
    let also = wait_for_if_missing(&seen, &events, &NetEvent::LinkDown { interface });
    assert!(also, "link down published once");
    assert_eq!(pair.resolve("10.0.0.2", "10.0.0.1"), Err(down));
    let mac = MacAddr([2, 0xfe, 0, 0, 0, 0xaa]);
    pair.a(&format!("link set eth0 address {mac} name eth9"));
    wait_for(&events, |event| *event == NetEvent::MacChanged { interface, mac });
    pair.a("link del eth9");
    wait_for(&events, |event| *event == NetEvent::LinkRemoved { interface });
}

/// Waits for the event `awaited` unless `seen` contains it.
fn wait_for_if_missing(seen: &[NetEvent], events: &Receiver<NetEvent>, awaited: &NetEvent) -> bool {
    seen.contains(awaited) || !wait_for(events, |event| event == awaited).is_empty()
}

#[test]
fn neighbours_and_routes_are_published() {
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let (_watcher, events, _) = pair.watch();
    let interface = within(&pair.a, || Interface::read("eth0")).unwrap().index;
    let ip = addr("10.0.0.2");
    pair.resolve("10.0.0.2", "10.0.0.1").unwrap();
    wait_for(&events, |event| *event == NetEvent::NeighbourChanged { interface, ip, mac: MAC_B });
    let mac = MacAddr([2, 0, 0, 0, 0, 0x55]);
    pair.a(&format!("neigh replace 10.0.0.2 lladdr {mac} dev eth0"));
    wait_for(&events, |event| *event == NetEvent::NeighbourChanged { interface, ip, mac });
    pair.a("neigh del 10.0.0.2 dev eth0");
    wait_for(&events, |event| *event == NetEvent::NeighbourRemoved { interface, ip });
    pair.tune_arp("retrans_time_ms", "50");
    let ip = addr("10.0.0.66");
    assert!(pair.resolve("10.0.0.66", "10.0.0.1").is_err());
    wait_for(&events, |event| *event == NetEvent::NeighbourFailed { interface, ip });
    pair.a("route add 10.9.0.0/24 via 10.0.0.2");
    wait_for(&events, |event| *event == NetEvent::RouteChanged);
}

#[test]
fn lost_events_lead_to_a_new_snapshot() {
    const ADDRESSES: usize = 3000;
    let Some(pair) = Pair::with_addresses() else {
        return;
    };
    let (sender, events) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let mut synchronised = 0;
    let _watcher = within(&pair.a, || {
        Watcher::start(Box::new(move |event| {
            synchronised += u32::from(event == NetEvent::Synchronised);
            let hold = match &event {
                NetEvent::AddressAdded(new) => new.ip == addr("10.1.0.0"),
                NetEvent::Synchronised => synchronised == 2,
                _ => false,
            };
            let _ = sender.send(event); // Fails if the test is over.
            if hold {
                held.recv_timeout(TEST_TIMEOUT * 3).expect("release");
            }
        }))
    })
    .unwrap();
    wait_for(&events, |event| *event == NetEvent::Synchronised);

    // While the callback blocks, more events arrive than the socket can hold.
    let address = |number: usize| format!("10.1.{}.{}", number / 256, number % 256);
    let batch: String = (0..ADDRESSES)
        .map(|number| format!("addr add {}/32 dev eth0\n", address(number)))
        .collect();
    let file = std::env::temp_dir().join(format!("{}.batch", pair.a));
    fs::write(&file, batch).unwrap();
    ip(&["-n", &pair.a, "-batch", file.to_str().unwrap()]);
    fs::remove_file(&file).unwrap();
    pair.a("addr del 10.0.0.1/24 dev eth0");
    release.send(()).unwrap();

    let seen = wait_for(&events, |event| *event == NetEvent::Synchronised);
    let added = |number| {
        let ip = addr(&address(number));
        let new = |event: &&NetEvent| matches!(event, NetEvent::AddressAdded(new) if new.ip == ip);
        seen.iter().filter(new).count()
    };
    // The first event arrived before the callback blocked.
    for number in 1..ADDRESSES {
        assert_eq!(added(number), 1, "{}", address(number));
    }
    assert!(seen.contains(&NetEvent::RouteChanged));
    let interface = within(&pair.a, || Interface::read("eth0")).unwrap().index;
    let removed = InterfaceAddress { interface, ip: addr("10.0.0.1"), prefix_len: 24 };
    assert!(seen.contains(&NetEvent::AddressRemoved(removed)));
    // The watcher reports events again after the new snapshot.
    pair.a("addr add 10.3.0.1/24 dev eth0");
    release.send(()).unwrap();
    wait_for(
        &events,
        |event| matches!(event, NetEvent::AddressAdded(new) if new.ip == addr("10.3.0.1")),
    );
}

#[test]
fn a_watcher_stops_when_dropped() {
    let Some(pair) = Pair::new() else { return };
    let churn: String = (0..500)
        .flat_map(|_| ["add", "del"].map(|what| format!("addr {what} 10.0.0.1/24 dev eth0\n")))
        .collect();
    let file = std::env::temp_dir().join(format!("{}.batch", pair.a));
    fs::write(&file, churn).unwrap();
    for busy in [false, true] {
        let mut batch = Command::new("ip");
        batch.args(["-n", &pair.a, "-batch"]).arg(&file);
        let mut child = busy.then(|| batch.spawn().expect("iproute2"));
        for _ in 0..20 {
            let (watcher, events, _) = pair.watch();
            let (stopped, has_stopped) = mpsc::channel();
            thread::spawn(move || {
                drop(watcher);
                stopped.send(()).expect("the test waits");
            });
            has_stopped.recv_timeout(TEST_TIMEOUT).expect("stopped");
            // The thread has ended, and its callback was dropped.
            while events.try_recv().is_ok() {}
            assert_eq!(events.try_recv(), Err(TryRecvError::Disconnected));
        }
        if let Some(child) = &mut child {
            assert!(child.wait().expect("iproute2").success());
        }
    }
    fs::remove_file(&file).unwrap();
}
