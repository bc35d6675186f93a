//! `feroce doctor` with injected faults: each is found while it exists, and none on a healthy
//! set-up. Needs root; skipped with a message without root.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Pair, Server, json, text};
use serde_json::Value;

/// A fault, and how to inject it into the namespace of `v0`.
struct Fault {
    /// Id of the check that must find the fault.
    id: &'static str,
    /// Minimum severity.
    severity: &'static str,
    /// Words of the finding.
    found: &'static str,
    /// Shell commands that inject the fault, in the namespace.
    inject: &'static str,
    /// Shell commands that remove the fault.
    undo: &'static str,
    /// Prefix of the command line: environment variables and programs that run `feroce`. `$FAKES`
    /// is a folder of the test.
    around: &'static str,
    /// Arguments of `feroce doctor`.
    arguments: &'static str,
}

const NONE: Fault = Fault {
    id: "",
    severity: "",
    found: "",
    inject: "",
    undo: "",
    around: "",
    arguments: "-i v0 --peer 10.9.0.2",
};

/// Faults that commands alone can inject.
const FAULTS: &[Fault] = &[
    Fault {
        id: "settings",
        severity: "error",
        found: "FEROCE_RETRY_COUNT",
        around: "FEROCE_RETRY_COUNT=9",
        ..NONE
    },
    Fault {
        id: "settings",
        severity: "warning",
        found: "FEROCE_WINDWO",
        around: "FEROCE_WINDWO=64",
        ..NONE
    },
    Fault {
        id: "user",
        severity: "error",
        found: "no-such-user",
        around: "FEROCE_USER=no-such-user",
        ..NONE
    },
    Fault {
        id: "user",
        severity: "error",
        found: "CAP_SETUID",
        around: "FEROCE_USER=nobody setpriv --bounding-set=-setuid",
        ..NONE
    },
    Fault {
        id: "user",
        severity: "error",
        found: "cannot switch to nobody",
        around: "FEROCE_USER=nobody unshare --user --map-root-user",
        ..NONE
    },
    Fault {
        id: "privilege",
        severity: "error",
        found: "CAP_NET_RAW",
        around: "FEROCE_PORT_KIND=packet setpriv --bounding-set=-all",
        ..NONE
    },
    // UDP sockets need no privilege, but an ordinary user's receive buffer is small.
    Fault {
        id: "receive-buffer",
        severity: "info",
        found: "packets of path MTU 4096: a QP has no more outstanding",
        around: "FEROCE_WINDOW=1048576 setpriv --bounding-set=-all",
        ..NONE
    },
    Fault {
        id: "memlock",
        severity: "error",
        found: "64 KiB",
        around: "prlimit --memlock=65536:65536 setpriv \
         --bounding-set=-ipc_lock,-sys_resource env FEROCE_PORT_KIND=af_xdp",
        ..NONE
    },
    // The kernel counts the buffers of both queues.
    Fault {
        id: "memlock",
        severity: "warning",
        found: "of 2 receive queues take 20 MiB: the packet port will be used",
        inject: "ethtool -L v0 rx 2 tx 2",
        undo: "ethtool -L v0 rx 1 tx 1",
        around: "prlimit --memlock=65536:65536 setpriv --bounding-set=-ipc_lock,-sys_resource",
        ..NONE
    },
    Fault {
        id: "hugepages",
        severity: "error",
        found: "port dpdk does not open",
        inject: "echo 0 > $FAKES/hugepages",
        undo: "echo 256 > $FAKES/hugepages",
        around: "FEROCE_PORT_KIND=dpdk",
        arguments: "",
    },
    Fault {
        id: "hugepages",
        severity: "error",
        found: "the packet buffers of 2 cores take 67 MiB",
        inject: "echo 30 > $FAKES/hugepages",
        undo: "echo 256 > $FAKES/hugepages",
        around: "FEROCE_PORT_KIND=dpdk FEROCE_CORES=2",
        arguments: "",
    },
    Fault {
        id: "hugepages",
        severity: "error",
        found: "64 MiB of ordinary memory: the packet buffers of 2 cores take",
        around: "FEROCE_PORT_KIND=dpdk FEROCE_CORES=2 FEROCE_DPDK_MEMORY=64",
        arguments: "",
        ..NONE
    },
    Fault {
        id: "hugepages",
        severity: "info",
        found: "none",
        inject: "echo 0 > $FAKES/hugepages",
        undo: "echo 256 > $FAKES/hugepages",
        ..NONE
    },
    Fault {
        id: "clock",
        severity: "warning",
        found: "hpet",
        inject: "echo hpet > $FAKES/clock",
        undo: "echo tsc > $FAKES/clock",
        ..NONE
    },
    Fault {
        id: "cpus",
        severity: "warning",
        found: "1, for 1 helpers that spin",
        around: "FEROCE_HELPER=spin taskset -c 0",
        ..NONE
    },
    Fault {
        id: "helper-cpus",
        severity: "warning",
        found: "CPU 4095 does not exist",
        around: "FEROCE_HELPER=spin:4095",
        ..NONE
    },
    Fault { id: "interface", severity: "error", found: "none0", arguments: "-i none0", ..NONE },
    Fault { id: "interface", severity: "error", found: "loopback", arguments: "-i lo", ..NONE },
    Fault {
        id: "link",
        severity: "error",
        found: "set down",
        inject: "ip link set v0 down",
        undo: "ip link set v0 up",
        arguments: "-i v0",
        ..NONE
    },
    Fault {
        id: "address",
        severity: "warning",
        found: "only link-local",
        inject: "ip address delete 10.9.0.1/24 dev v0",
        undo: "ip address add 10.9.0.1/24 dev v0",
        arguments: "-i v0",
        ..NONE
    },
    Fault {
        id: "address",
        severity: "error",
        found: "none",
        inject: "ip address flush dev v0; sysctl -qw net.ipv6.conf.v0.disable_ipv6=1",
        undo: "sysctl -qw net.ipv6.conf.v0.disable_ipv6=0; ip address add 10.9.0.1/24 dev v0",
        arguments: "-i v0",
        ..NONE
    },
    Fault {
        id: "mtu",
        severity: "error",
        found: "300 carries no",
        inject: "ip link set v0 mtu 300",
        undo: "ip link set v0 mtu 4500",
        ..NONE
    },
    Fault {
        id: "mtu",
        severity: "warning",
        found: "path MTU 512",
        inject: "ip link set v0 mtu 700",
        undo: "ip link set v0 mtu 4500",
        ..NONE
    },
    Fault {
        id: "mtu",
        severity: "error",
        found: "the setting `path_mtu` is 4096",
        inject: "ip link set v0 mtu 1500",
        undo: "ip link set v0 mtu 4500",
        around: "FEROCE_PATH_MTU=4096",
        ..NONE
    },
    Fault {
        id: "queues",
        severity: "warning",
        found: "for 3 cores: the packet port will be used",
        around: "FEROCE_CORES=3",
        ..NONE
    },
    Fault {
        id: "queues",
        severity: "error",
        found: "for 3 cores",
        around: "FEROCE_CORES=3 FEROCE_PORT_KIND=af_xdp",
        ..NONE
    },
    Fault {
        id: "merging",
        severity: "warning",
        found: "rx-udp-gro-forwarding",
        inject: "ethtool -K v0 rx-udp-gro-forwarding on",
        undo: "ethtool -K v0 rx-udp-gro-forwarding off",
        ..NONE
    },
    Fault {
        id: "xdp-program",
        severity: "warning",
        found: "someone_else; an interface has one XDP program at a time: the packet port will be \
                used",
        inject: "ip link set dev v0 xdpgeneric object $FAKES/program.o section xdp",
        undo: "ip link set dev v0 xdpgeneric off",
        ..NONE
    },
    Fault {
        id: "xdp-program",
        severity: "error",
        found: "someone_else",
        inject: "ip link set dev v0 xdpgeneric object $FAKES/program.o section xdp",
        undo: "ip link set dev v0 xdpgeneric off",
        around: "FEROCE_PORT_KIND=af_xdp",
        ..NONE
    },
    // The script mounts the tree `class` over sysfs, if the tree exists.
    Fault {
        id: "rxe",
        severity: "warning",
        found: "rxe7",
        inject: "mkdir -p $FAKES/class/infiniband/rxe7/ports/1/gid_attrs/ndevs; \
                echo v0 > $FAKES/class/infiniband/rxe7/ports/1/gid_attrs/ndevs/0",
        undo: "rm -r $FAKES/class",
        ..NONE
    },
    Fault {
        id: "peer-route",
        severity: "error",
        found: "203.0.113.9",
        arguments: "-i v0 --peer 203.0.113.9",
        ..NONE
    },
    Fault {
        id: "peer-route",
        severity: "error",
        found: "address of this host",
        arguments: "-i v0 --peer 10.9.0.1",
        ..NONE
    },
    Fault {
        id: "peer-neighbour",
        severity: "error",
        found: "10.9.0.77",
        arguments: "-i v0 --peer 10.9.0.77",
        ..NONE
    },
    Fault {
        id: "peer-neighbour",
        severity: "warning",
        found: "at 02:00:00:00:00:99, a static neighbour entry, and 10.9.0.2 does not answer",
        inject: "ip neighbour replace 10.9.0.2 lladdr 02:00:00:00:00:99 dev v0 nud permanent",
        undo: "ip neighbour delete 10.9.0.2 dev v0",
        ..NONE
    },
    Fault {
        id: "path-mtu",
        severity: "warning",
        found: "1024: the route's MTU is 1200",
        inject: "ip route add 10.9.0.2/32 dev v0 mtu 1200",
        undo: "ip route delete 10.9.0.2/32 dev v0",
        ..NONE
    },
];

/// The set-up: namespaces, and files that replace state of the whole machine.
struct SetUp {
    pair: Pair,
    fakes: PathBuf,
}

impl SetUp {
    fn new() -> Option<Self> {
        let pair = Pair::new()?;
        let fakes = std::env::temp_dir().join(&pair.names[0]);
        std::fs::create_dir_all(&fakes).expect("a folder");
        let set_up = Self { pair, fakes };
        set_up.write("hugepages", "256\n");
        set_up.write("clock", "tsc\n");
        set_up.write("doctor", &script(&set_up.fakes));
        Some(set_up)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.fakes.join(name), text).expect("a file");
    }

    fn shell(&self, commands: &str) {
        if !commands.is_empty() {
            self.pair.shell(0, &format!("FAKES={}; {commands}", self.fakes.display()));
        }
    }

    /// Runs the doctor. Returns the exit code and the report.
    fn examine(&self, around: &str, arguments: &str) -> (Option<i32>, Value) {
        let script = self.fakes.join("doctor");
        let mut command = self.pair.run(0, "sh");
        command.arg(script).args(["env", "FEROCE_CONFIG="]).args(around.split_whitespace());
        command.args([env!("CARGO_BIN_EXE_feroce"), "doctor", "--json"]);
        let output = command.args(arguments.split_whitespace()).output().expect("feroce");
        (output.status.code(), json(&output))
    }

    fn is_healthy(&self, after: &str) {
        let (code, report) = self.examine("", NONE.arguments);
        assert_eq!(code, Some(0), "after {after}: {}", bad(&report));
        assert_eq!(bad(&report), "", "after {after}");
    }

    /// Asserts that check `id` finds something of at least `severity`, with the words `found` and a
    /// remedy.
    #[track_caller]
    fn must_find(&self, fault: &Fault) {
        let (code, report) = self.examine(fault.around, fault.arguments);
        let finding = report["findings"].as_array().expect("findings").iter().find(|finding| {
            finding["id"] == fault.id && rank(&finding["severity"]) >= rank(&fault.severity.into())
        });
        let finding = finding.unwrap_or_else(|| panic!("{} is not found: {report:#}", fault.id));
        let output_text = finding["found"].as_str().expect("words");
        assert!(output_text.contains(fault.found), "{}: {output_text}", fault.id);
        assert!(finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{finding}");
        let expected = if rank(&report["worst"]) >= 2 { 3 } else { 0 };
        assert_eq!(code, Some(expected), "{}", fault.id);
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.fakes);
    }
}

/// Mounts the fakes over the machine's files for this process only (`ip netns exec` has created a
/// mount namespace), then runs its arguments.
fn script(fakes: &Path) -> String {
    let fakes = fakes.display();
    format!(
        "set -e\n\
         bind() {{ [ ! -e \"$2\" ] || mount --bind \"$1\" \"$2\"; }}\n\
         bind {fakes}/hugepages /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages\n\
         bind {fakes}/clock /sys/devices/system/clocksource/clocksource0/current_clocksource\n\
         [ ! -d {fakes}/class ] || mount --bind {fakes}/class /sys/class\n\
         exec \"$@\"\n"
    )
}

fn rank(severity: &Value) -> usize {
    let names = ["ok", "info", "warning", "error"];
    names.iter().position(|name| severity == name).expect("a severity")
}

/// The findings that are warnings or errors.
fn bad(report: &Value) -> String {
    let findings = report["findings"].as_array().expect("findings").iter();
    let bad = findings.filter(|finding| rank(&finding["severity"]) >= 2);
    bad.map(|finding| format!("{}: {}; ", finding["id"], finding["found"])).collect()
}

/// An XDP program for `ip link set xdp`.
fn foreign_program(fakes: &Path) {
    let source = fakes.join("program.c");
    let program =
        "__attribute__((section(\"xdp\"))) int someone_else(void *context) { return 2; }\n";
    std::fs::write(&source, program).expect("a file");
    let clang = Command::new("clang")
        .args(["-O2", "-target", "bpf", "-c", "-o"])
        .args([fakes.join("program.o"), source])
        .output()
        .expect("clang, which the build needs, too");
    assert!(clang.status.success(), "{}", text(&clang.stderr));
}

#[test]
fn injected_faults_are_found_and_none_on_a_healthy_set_up() {
    let Some(set_up) = SetUp::new() else { return };
    foreign_program(&set_up.fakes);
    set_up.is_healthy("nothing");
    for fault in FAULTS {
        set_up.shell(fault.inject);
        set_up.must_find(fault);
        set_up.shell(fault.undo);
        if !fault.inject.is_empty() {
            set_up.is_healthy(fault.inject);
        }
    }
    let mut ids: Vec<_> = FAULTS.iter().map(|fault| fault.id).collect();
    ids.dedup();
    assert!(ids.len() >= 12, "{ids:?}");
}

#[test]
fn the_path_to_the_peer_is_checked() {
    let Some(set_up) = SetUp::new() else { return };
    set_up.is_healthy("nothing");

    // An address listed before the one that the peer has a route back to.
    set_up.shell(
        "ip address delete 10.9.0.1/24 dev v0; ip address add 192.168.5.1/24 dev v0; \
         ip address add 10.9.0.1/24 dev v0",
    );
    set_up.pair.shell(1, "ip link set v1 mtu 2500");
    let found = "2048: packets for 4096, which the interface carries, are lost";
    set_up.must_find(&Fault { id: "path-mtu", severity: "warning", found, ..NONE });
    let (code, report) = set_up.examine("FEROCE_PATH_MTU=2048", NONE.arguments);
    assert_eq!((code, bad(&report).as_str()), (Some(0), ""), "smaller packets pass");
    set_up.pair.shell(1, "ip link set v1 mtu 4500");
    set_up.is_healthy("a small MTU");

    // The entry of the neighbour table is outdated.
    set_up.pair.shell(1, "ip address delete 10.9.0.2/24 dev v1");
    let found = "10.9.0.2 did not answer";
    set_up.must_find(&Fault { id: "peer-neighbour", severity: "error", found, ..NONE });
    set_up.pair.shell(1, "ip address add 10.9.0.2/24 dev v1");
    set_up.is_healthy("a lost address");

    // A neighbour entry that has not been confirmed for a while, of a host that has moved since.
    set_up.pair.shell(
        0,
        "mac=$(ip -o neighbour show 10.9.0.2 | sed 's/.*lladdr \\([^ ]*\\).*/\\1/'); \
                           ip neighbour replace 10.9.0.2 lladdr $mac dev v0 nud stale",
    );
    set_up.is_healthy("a stale neighbour");
    set_up
        .pair
        .shell(0, "ip neighbour replace 10.9.0.2 lladdr 02:00:00:00:00:99 dev v0 nud reachable");
    set_up.is_healthy("a neighbour that has moved");

    set_up.pair.shell(1, "sysctl -qw net.ipv4.icmp_echo_ignore_all=1");
    let (code, report) = set_up.examine("", NONE.arguments);
    assert_eq!(
        (code, bad(&report).as_str()),
        (Some(0), ""),
        "a peer that does not answer pings is no error"
    );
    assert!(report.to_string().contains("does not answer pings"), "{report:#}");
    set_up.pair.shell(1, "sysctl -qw net.ipv4.icmp_echo_ignore_all=0");
}

/// A router whose other link has a smaller MTU, and a host behind it. Removed when dropped.
struct Router(String);

impl Router {
    /// `v1`'s namespace routes to 10.9.8.2 and fd09:8::2, over a link with an MTU of 1500.
    fn new(pair: &Pair) -> Self {
        let router = Self(format!("{}-host", pair.names[0]));
        let host = &router.0;
        // Created outside a namespace: inside, only that shell would see it.
        let added = Command::new("ip").args(["netns", "add", host]).status().expect("ip");
        assert!(added.success(), "ip netns add {host}");
        pair.shell(1, &format!(
            "ip link add r0 mtu 1500 type veth peer r1 mtu 1500 netns {host}; ip link set r0 up; \
             ip address add 10.9.8.1/24 dev r0; ip address add fd09:8::1/64 dev r0 nodad; \
             ip address add fd09::2/64 dev v1 nodad; \
             sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; \
         ip -n {host} link set r1 up; \
             ip -n {host} address add 10.9.8.2/24 dev r1; \
         ip -n {host} route add default via 10.9.8.1; \
             ip -n {host} address add fd09:8::2/64 dev r1 nodad; \
         ip -n {host} route add default via fd09:8::1; \
             ip netns exec {host} ping -q -c 1 -w 5 10.9.8.1; \
         ip netns exec {host} ping -q -c 1 -w 5 fd09:8::1"
        ));
        router
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
fn a_router_on_the_path_with_a_smaller_mtu_is_found() {
    let Some(set_up) = SetUp::new() else { return };
    let _router = Router::new(&set_up.pair);
    set_up.pair.shell(
        0,
        "ip address add fd09::1/64 dev v0 nodad; ip route add 10.9.8.0/24 via 10.9.0.2; \
                           ip route add fd09:8::/64 via fd09::2",
    );
    let (code, report) = set_up.examine("", "-i v0 --peer fd09::2");
    assert_eq!((code, bad(&report).as_str()), (Some(0), ""), "{report:#}");
    for peer in ["10.9.8.2", "fd09:8::2"] {
        let arguments: &'static str = format!("-i v0 --peer {peer}").leak();
        let found = "1024: packets for 4096, which the interface carries, are lost";
        set_up.must_find(&Fault { id: "path-mtu", severity: "warning", found, arguments, ..NONE });
        let (code, report) = set_up.examine("FEROCE_PATH_MTU=1024", arguments);
        assert_eq!((code, bad(&report).as_str()), (Some(0), ""), "{report:#}");
    }
}

#[test]
fn the_peer_and_other_programs_are_checked() {
    let Some(set_up) = SetUp::new() else { return };
    set_up.is_healthy("nothing");

    set_up.pair.shell(1, "ip link set v1 down");
    set_up.must_find(&Fault { id: "link", severity: "error", found: "no carrier", ..NONE });
    set_up.pair.shell(1, "ip link set v1 up");
    set_up.is_healthy("a lost carrier");

    set_up.pair.shell(1, "ip address add fd09:1::7/64 dev v1 nodad");
    set_up.shell(
        "ip address add fd09:1::7/64 dev v0; \
         for i in $(seq 200); do ip a show v0 | grep -q dadfailed && break; sleep 0.1; done",
    );
    let found = "another host uses fd09:1::7/64 dev v0, too";
    set_up.must_find(&Fault { id: "duplicates", severity: "warning", found, ..NONE });
    let gids = set_up.pair.feroce(0, "devinfo -v -i v0").output().expect("feroce");
    assert!(!text(&gids.stdout).contains("fd09:1::7"), "{}", text(&gids.stdout));
    set_up.shell("ip address delete fd09:1::7/64 dev v0");
    set_up.is_healthy("an address of two hosts");

    let namespace = std::fs::File::open(format!("/var/run/netns/{}", set_up.pair.names[0]));
    let namespace = namespace.expect("our namespace");
    let bind = move || {
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).expect("root");
        std::net::UdpSocket::bind("0.0.0.0:4791").expect("a free port")
    };
    let socket = std::thread::spawn(bind).join().expect("a socket");
    let found = format!("process {}", std::process::id());
    let found: &'static str = found.leak();
    set_up.must_find(&Fault { id: "udp-4791", severity: "warning", found, ..NONE });
    let around = "FEROCE_PORT_KIND=packet";
    set_up.must_find(&Fault { id: "udp-4791", severity: "error", found, around, ..NONE });
    drop(socket);
    set_up.is_healthy("a socket");

    // Without `-i`, such interfaces are not checked: for example a port of a bridge, or an
    // interface whose peer is down.
    set_up.pair.shell(
        0,
        "ip link add w0 type veth peer w1; ip link set w0 up; ip link add x0 type veth peer x1; \
                           ip link set x0 up; ip link set x1 up",
    );
    let (code, report) = set_up.examine("", "");
    assert_eq!((code, bad(&report).as_str()), (Some(0), ""), "{report:#}");
    for left in ["w0 (no carrier)", "x0 (no routable address)"] {
        assert!(report.to_string().contains(left), "{report:#}");
    }
    set_up.pair.shell(0, "ip link delete w0; ip link delete x0");

    set_up.pair.shell(
        0,
        "ip link add w0 type veth peer w1; ip address add 10.9.1.1/24 dev w0; \
         ip link set w1 up; ip link set w0 up",
    );
    let other = Server::start(&mut set_up.pair.feroce(0, "perf -i w0 --port-kind packet"));
    set_up.is_healthy("a program on another interface");
    assert!(other.stop().status.success());
    set_up.pair.shell(0, "ip link delete w0");

    let running = Server::start(&mut set_up.pair.feroce(0, "perf -i v0 --port-kind af_xdp"));
    let found = format!("process {} (feroce)", running.child.id()).leak();
    set_up.must_find(&Fault { id: "owner", severity: "warning", found, ..NONE });
    set_up.pair.shell(0, "ethtool -L v0 rx 2 tx 2");
    set_up.must_find(&Fault { id: "unserved-queues", severity: "error", found: "1 of 2", ..NONE });
    let output = running.stop();
    assert!(output.status.success(), "{}", text(&output.stderr));
    set_up.pair.shell(0, "ethtool -L v0 rx 1 tx 1");
    set_up.is_healthy("a program");
}

#[test]
fn without_an_interface_all_that_are_up_are_checked_and_open_is_optional() {
    let Some(set_up) = SetUp::new() else { return };
    let (code, report) = set_up.examine("", "");
    assert_eq!(code, Some(0), "{report:#}");
    let interfaces = report["findings"].as_array().expect("findings").iter();
    let mut interfaces: Vec<_> =
        interfaces.filter_map(|finding| finding["interface"].as_str()).collect();
    interfaces.dedup();
    assert_eq!(interfaces, ["v0"]);

    let (code, report) = set_up.examine("FEROCE_PORT_KIND=af_xdp", "-i v0 --open");
    let opened = report["findings"].as_array().expect("findings").last().expect("one");
    assert_eq!((code, &opened["id"]), (Some(0), &"open".into()), "{report:#}");
    assert!(opened["found"].as_str().is_some_and(|text| text.contains("af_xdp")), "{opened}");

    foreign_program(&set_up.fakes);
    set_up.shell("ip link set dev v0 xdpgeneric object $FAKES/program.o section xdp");
    let (_, report) = set_up.examine("", "-i v0 --open");
    let opened = report["findings"].as_array().expect("findings").last().expect("one");
    let message = opened["found"].as_str().expect("words");
    assert!(message.contains("packet") && message.contains("auto: cannot use AF_XDP"), "{message}");
    assert!(message.contains("someone_else"), "{message}");
    set_up.shell("ip link set dev v0 xdpgeneric off");

    let output = set_up.pair.feroce(0, "doctor --peer 10.9.0.2").output().expect("feroce");
    assert_eq!(output.status.code(), Some(2), "--peer needs -i");
    let shown = set_up.pair.feroce(0, "doctor -i none0").output().expect("feroce");
    assert_eq!(shown.status.code(), Some(3));
    assert!(text(&shown.stdout).contains("-> `ip link`"), "{}", text(&shown.stdout));
}
