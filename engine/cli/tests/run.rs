//! `feroce run` with something missing: the message names it and a remedy. scripts/programs.sh runs
//! real programs. Needs root; skipped with a message without root.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::installed::{Installed, assert_message};
use common::{Pair, Server, TIMEOUT, ip, json, text};
use serde_json::Value;

#[test]
fn messages_name_what_is_missing() {
    let Some(pair) = Pair::new() else { return };
    let bare = Installed::new("bare");
    assert_message(&bare.run(&pair, "env", "-i v0 true"), 1, &["no libibverbs.so.1", "build-libs"]);
    let installed = Installed::new("missing").with_library();
    let run = |arguments: &str| installed.run(&pair, "env", arguments);
    assert_message(&run("-i v0 ib_no_such_bw"), 127, &["not found", "package perftest"]);
    assert_message(&run("-i v0 ./no-such-program"), 127, &["cannot start"]);
    assert_message(&run("-i none0 true"), 1, &["none0"]);
    assert_message(&run("-i lo true"), 1, &["loopback"]);

    // Nothing is missing: there is no message, and the exit code is the program's.
    let clean = run("-i v0 true");
    assert_message(&clean, 0, &[]);
    assert_eq!(text(&clean.stderr), "");
    assert_message(&run("-i v0 false"), 1, &[]);
    assert_message(&run("true"), 0, &["feroce0 is v0, the only usable one"]);

    ip(&format!("-n {} link set v0 down", pair.names[0]));
    assert_message(&run("-i v0 true"), 0, &["v0: the link: set down", "ip link set dev v0 up"]);
    assert_message(&run("true"), 1, &["no Ethernet interface is up", "v0"]);
}

/// A user without privileges uses UDP sockets, and learns what programs will not find. If another
/// kind of port is demanded, the user gets the reason, and can still list the device.
#[test]
fn without_privileges_the_program_starts_with_a_message() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("nobody").with_library();
    let around =
        "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all";
    let output = installed.run(&pair, around, "-i v0 true");
    assert_message(&output, 0, &["will find none", "no libsysview.so.1"]);
    assert!(!text(&output.stderr).contains("privileges"), "{}", text(&output.stderr));
    let packet = format!("env FEROCE_PORT_KIND=packet {around}");
    let output = installed.run(&pair, &packet, "-i v0 true");
    assert_message(&output, 0, &["CAP_NET_RAW", "sudo feroce run", "will find none"]);
}

#[test]
fn a_second_program_gets_the_name_of_the_owner() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("second").with_library();
    let server = Server::start(&mut pair.feroce(0, "perf -i v0"));
    let owner = format!("process {}", server.child.id());
    let output = installed.run(&pair, "env", "-i v0 true");
    assert_message(
        &output,
        0,
        &[&owner, "a second program cannot open the interface", "docs/daemon.md"],
    );
    assert!(server.stop().status.code().is_some());
}

/// The libraries are found relative to the program, also through a symbolic link.
#[test]
fn the_libraries_are_found_relative_to_the_program() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("layout").with_library();
    let link = installed.0.join("elsewhere");
    std::os::unix::fs::symlink(installed.feroce(), &link).expect("a link");
    let run = |program: &Path| {
        let mut command: Command = pair.run(0, program.to_str().expect("text"));
        command.args(["run", "-q", "-i", "v0", "printenv", "LD_LIBRARY_PATH"]);
        text(
            &command
                .env("FEROCE_CONFIG", "")
                .env_remove("LD_LIBRARY_PATH")
                .output()
                .expect("feroce")
                .stdout,
        )
    };
    let folder = run(&installed.feroce());
    assert_eq!(
        std::fs::canonicalize(folder.trim()).ok(),
        Some(installed.0.join("lib/feroce")),
        "{folder}"
    );
    assert_eq!(run(&link), folder);
}

impl Installed {
    /// Runs a shell script under `feroce run` at end 0. Returns its output.
    fn script(&self, pair: &Pair, interfaces: &str, script: &str) -> String {
        let file = self.0.join("script");
        std::fs::write(&file, script).expect("a file");
        let arguments = format!("-i {interfaces} sh -e {}", file.display());
        let output = self.run(pair, "env", &arguments);
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && !errors.contains("counters in"), "{out}{errors}");
        out
    }
}

/// As UCX and NCCL look for it: the real path of the device, its PCI address on its bus, and the
/// NUMA node.
#[test]
fn an_interface_without_a_pci_device_has_a_stand_in() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("pci").with_library();
    ip(&format!("-n {} link add d0 type veth peer name d1", pair.names[0]));
    for end in ["d0", "d1"] {
        ip(&format!("-n {} link set {end} up", pair.names[0]));
    }
    let folder = |bus: &str| format!("/sys/devices/pcif0ce:{bus}/f0ce:{bus}:00.0");
    let script = "
        for n in 0 1; do
            cd -P /sys/class/infiniband/feroce$n; pwd
            readlink -f device
            readlink -f /sys/class/infiniband_verbs/uverbs$n/device
            readlink -f /sys/class/pci_bus/f0ce:0$n/../../f0ce:0$n:00.0
            readlink -f /sys/bus/pci/devices/f0ce:0$n:00.0
            ls device/net
            cat device/class
            test $(cat device/numa_node) -ge 0
            grep -q '[1-9a-f]' device/local_cpus
            test -s device/vendor && test -s device/local_cpulist && test -s device/config
        done
        # The rest of sysfs is there.
        test -d /sys/devices/system/cpu/cpu0 && test -e /sys/class/net/v0/address
        cat /sys/class/infiniband/feroce0/ports/1/link_layer";
    let mut expected = String::new();
    for (bus, name, interface) in [("00", "feroce0", "v0"), ("01", "feroce1", "d0")] {
        let folder = folder(bus);
        expected += &format!("{folder}/infiniband/{name}\n");
        expected += &format!("{folder}\n").repeat(4);
        expected += &format!("{interface}\n0x020000\n");
    }
    assert_eq!(installed.script(&pair, "v0,d0", script), expected + "Ethernet\n");
}

/// The files have the values of `feroce stat` at the time of each read.
#[test]
fn counters_are_live() {
    const NAMES: [(&str, &str); 6] = [
        ("counters/port_rcv_data", "port_rcv_data"),
        ("counters/port_rcv_packets", "port_rcv_packets"),
        ("hw_counters/rcvd_pkts", "port_rcv_packets"),
        ("hw_counters/rx_write_requests", "rx_write_requests"),
        ("hw_counters/duplicate_request", "duplicate_request"),
        ("hw_counters/np_cnp_sent", "np_cnp_sent"),
    ];
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("counters").with_library();
    let server = Server::start(&mut pair.feroce(0, "perf -i v0"));
    let mut client = pair.feroce(1, "perf -i v1 --op write -s 4096 -D 60 10.9.0.1");
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client");
    let stat = || {
        let output = pair.feroce(0, "stat -i v0 --json").output().expect("feroce");
        json(&output)[0]["counters"].clone()
    };
    let value = |counters: &Value, name: &str| counters[name].as_u64().expect("a count");
    let start = Instant::now();
    while value(&stat(), "rx_write_requests") < 100 {
        assert!(start.elapsed() < TIMEOUT, "the client writes");
    }
    let files: Vec<_> = NAMES.iter().map(|(file, _)| *file).collect();
    let script = format!(
        "cd /sys/class/infiniband/feroce0/ports/1
         for n in 1 2 3; do sleep 0.02; cat {0}; done",
        files.join(" ")
    );
    let before = stat();
    let read = installed.script(&pair, "v0", &script);
    let after = stat();
    client.kill().and_then(|()| client.wait()).expect("a client");
    let numbers: Vec<u64> = read.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(numbers.len(), 3 * NAMES.len(), "{read}");
    for (at, (_, name)) in NAMES.iter().enumerate() {
        let steps = [0, 1, 2].map(|round| numbers[round * NAMES.len() + at]);
        let [first, last] = [value(&before, name), value(&after, name)];
        assert!(first <= steps[0] && steps[2] <= last, "{name}: {first} {steps:?} {last}");
        let is_moving = name.starts_with("port_rcv") || *name == "rx_write_requests";
        let moves = steps[0] < steps[1] && steps[1] < steps[2];
        assert!(moves || !is_moving, "{name}: {steps:?}");
    }
    drop(server);
}

/// A chroot whose root is a mount point has the devices and their live counters, even if Feroce's
/// folder is a separate mount there.
#[test]
fn a_chroot_has_the_devices() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("chroot").with_library();
    let (root, enter) = (installed.0.join("root"), installed.0.join("enter"));
    std::fs::create_dir(&root).expect("a folder");
    let script = format!(
        "mount --rbind / {0}\nmount --bind {1} {0}{1}\nexec chroot {0} \"$@\"",
        root.display(),
        installed.0.display()
    );
    std::fs::write(&enter, script).expect("a file");
    let around = format!("unshare --mount sh -e {}", enter.display());
    let output =
        installed.run(&pair, &around, "-i v0 ls /sys/class/infiniband /dev/infiniband/rdma_cm");
    assert_message(&output, 0, &[]);
    assert_eq!(text(&output.stderr), "");
    let listed = text(&output.stdout);
    assert!(listed.contains("feroce0") && listed.contains("rdma_cm"), "{listed}");
}

/// A lock of the caller, as of `flock`, is the program's, and ends with it.
#[test]
fn the_process_of_the_counters_inherits_no_descriptor() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("descriptors").with_library();
    let lock = installed.0.join("lock");
    // The process is in the mount namespace of the program.
    let inside = "ls -l /proc/self/fd; echo --
        own=$(readlink /proc/self/ns/mnt)
        for process in /proc/[0-9]*; do
            if [ \"$(readlink $process/ns/mnt)\" = \"$own\" ] &&
                grep -q ^feroce-counters $process/cmdline; then ls -l $process/fd; fi
        done";
    let script = format!(
        "exec 9>{}; {} run -q -i v0 -- sh -c '{inside}'",
        lock.display(),
        installed.feroce().display()
    );
    let mut command = pair.run(0, "sh");
    let output = command.args(["-c", &script]).env("FEROCE_CONFIG", "").output().expect("feroce");
    let out = text(&output.stdout);
    let (of_program, of_process) = out.split_once("--\n").expect("two lists");
    let lock = lock.to_str().expect("a name");
    assert!(of_program.contains(lock), "{out}{}", text(&output.stderr));
    assert!(of_process.contains("/dev/null") && !of_process.contains(lock), "{out}");
}
