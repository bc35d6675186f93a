//! `feroce perf` and `feroce devinfo` as users run them: two processes in two network namespaces,
//! joined by a veth pair, over AF_XDP. Needs root; skipped with a message without root.

mod common;

use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{DEVICES, Pair, Server, TIMEOUT, ip, text};
use serde_json::Value;

/// Tests share two cores, so they run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Pair {
    /// A listening server.
    fn server(&self, arguments: &str) -> Server {
        Server::start(&mut self.feroce(1, &format!("perf {arguments}")))
    }

    /// Runs a server and a client. Both must succeed. Returns the reports of both.
    fn measure(&self, server: &str, client: &str) -> [Value; 2] {
        let serving = self.server(&format!("-i v1 --json {server}"));
        let measured = self
            .feroce(0, &format!("perf -i v0 --json {client} 10.9.0.2"))
            .output()
            .expect("a client");
        assert!(measured.status.success(), "{client}: {}", text(&measured.stderr));
        let served = serving.end();
        assert!(served.status.success(), "{client}: {}", text(&served.stderr));
        [measured, served].map(|output| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    fn has_xdp(&self, end: usize) -> bool {
        ip(&format!("-n {} -d link show {}", self.names[end], DEVICES[end])).contains("xdp")
    }

    /// Packets sent by `end`, by the kernel's counter.
    fn sent(&self, end: usize) -> f64 {
        let shown = ip(&format!("-n {} -s -j link show {}", self.names[end], DEVICES[end]));
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        number(&shown[0]["stats64"]["tx"]["packets"])
    }
}

fn wait(child: &mut Child) {
    let started = Instant::now();
    while child.try_wait().expect("a child of ours").is_none() {
        if started.elapsed() > TIMEOUT {
            let _ = child.kill(); // The test fails anyway.
            panic!("process {} does not end", child.id());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_operation_delivers_its_data() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for op in ["write", "write-imm", "read", "send", "send-imm", "atomic-fadd", "atomic-cas"] {
        let size = if op.starts_with("atomic") { "" } else { "-s 10000" };
        let [client, server] = pair.measure("", &format!("--op {op} {size} -n 1000 -q 2 --check"));
        for report in [&client, &server] {
            let row = &report["rows"][0];
            assert_eq!(row["iterations"], 2000, "{op}");
            assert!(number(&row["checked_bytes"]) > 0.0, "{op}: {row}");
            assert!(number(&row["bits_per_second"]) > 0.0, "{op}: {row}");
        }
        assert_eq!(client["rows"], server["rows"], "{op}");
        assert_eq!(client["path_mtu"], 4096, "{op}");

        let [client, _] = pair.measure("", &format!("--op {op} -n 300 --latency --check"));
        let latency = &client["rows"][0]["latency"];
        let halves = !op.starts_with("atomic") && op != "read";
        assert_eq!(latency["half_round_trip"], halves, "{op}");
        let order = ["min", "p50", "p90", "p99", "p99_9", "max"].map(|name| number(&latency[name]));
        assert!(order[0] > 0.0 && order.is_sorted(), "{op}: {latency}");
    }
}

#[test]
fn thousands_of_qps_are_connected_and_all_used() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for op in ["write", "send"] {
        let options = format!("--op {op} -s 256 -q 5000 --tx-depth 4 -n 8 --check");
        let [client, server] = pair.measure("", &options);
        assert_eq!(client["rows"][0]["iterations"], 40_000, "{op}");
        assert_eq!(client["test"]["qps"], 5000, "{op}");
        assert!(number(&client["rows"][0]["checked_bytes"]) >= 5000.0 * 256.0, "{op}");
        for report in [&client, &server] {
            assert!(number(&report["setup"]["connect_seconds"]) > 0.0, "{op}: {report}");
        }
    }
}

#[test]
fn both_directions_all_sizes_inline_and_durations() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let [client, _] = pair.measure("", "--op send -b -n 1000 -s 3000 --check -m 1024");
    assert_eq!(client["rows"][0]["iterations"], 2000);
    assert_eq!(client["path_mtu"], 1024);
    let [client, _] = pair.measure("", "--op write -a -n 20 --check");
    let sizes = client["rows"].as_array().expect("rows").iter().map(|row| row["bytes"].as_u64());
    assert!(sizes.eq((1..=23).map(|exponent| Some(1 << exponent))));
    let [client, _] = pair.measure("", "--op write -I 64 -s 64 -t 16 -n 2000 --check");
    assert_eq!(client["test"]["inline"], 64);
    let [client, _] = pair.measure("", "--op read -D 0.3");
    assert!(number(&client["rows"][0]["seconds"]) >= 0.3);
}

#[test]
fn data_survive_faults_in_both_directions() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for op in ["write", "send", "read", "atomic-fadd", "atomic-cas"] {
        let size = if op.starts_with("atomic") { "-n 2000" } else { "-s 20000 -n 300" };
        let faults = "--drop 0.5% --duplicate 1% --reorder 1% --corrupt 0.5%";
        let client = format!("--op {op} {size} --check {faults} --seed 5 --xdp generic");
        let [client, server] = pair.measure(&format!("{faults} --seed 6 --xdp generic"), &client);
        for report in [&client, &server] {
            assert!(number(&report["faults"]["frames"]) > 0.0, "{op}");
        }
        assert!(
            number(&client["faults"]["lost"]) + number(&server["faults"]["lost"]) > 0.0,
            "{op}"
        );
        assert!(number(&client["rows"][0]["checked_bytes"]) > 0.0, "{op}");
    }
}

/// What many QPs have in flight together would fill the receive ring of a port many times.
#[test]
fn hundreds_of_bulk_qps_send_hardly_a_packet_again() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for kind in ["af_xdp", "packet"] {
        for (op, qps, messages) in [("write", 200, 20), ("write", 1000, 4), ("read", 200, 10)] {
            let server = format!("--port-kind {kind}");
            let client = format!("{server} --op {op} -s 65536 -q {qps} -n {messages} --check");
            let packets = qps * messages * 16; // 64 KiB at path MTU 4096
            let again = || {
                let [report, _] = pair.measure(&server, &client);
                assert_eq!(report["rows"][0]["iterations"], qps * messages, "{client}");
                report["counters"]["retransmitted_packets"].as_u64().unwrap_or(0)
            };
            // A machine that takes the CPU away for milliseconds loses frames in the kernel's
            // queue, but hardly ten times. Without `peer_window`, a fifth and more are sent again
            // every time.
            let mut tries: Vec<u64> = Vec::new();
            while tries.last().is_none_or(|again| again * 100 > packets) {
                assert!(tries.len() < 10, "{client}: of {packets} packets, sent again: {tries:?}");
                tries.push(again());
            }
        }
    }
}

#[test]
fn tcp_is_measured_like_roce() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for mode in ["-D 0.2", "--latency -n 500"] {
        let server = pair.server("--transport tcp --json");
        let arguments = format!("perf --transport tcp --json {mode} 10.9.0.2");
        let client = pair.feroce(0, &arguments).output().expect("a client");
        assert!(client.status.success(), "{}", text(&client.stderr));
        assert!(server.end().status.success());
        let report: Value = serde_json::from_slice(&client.stdout).expect("JSON");
        assert!(number(&report["rows"][0]["iterations"]) > 0.0);
    }
}

#[test]
fn a_killed_peer_is_noticed_and_leaves_nothing() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for mode in ["--op write", "--op send", "--op write --latency", "--op read --latency"] {
        for victim in [0, 1] {
            let mut server = pair.server("-i v1");
            let mut client = pair.feroce(0, &format!("perf -i v0 {mode} -D 30 10.9.0.2"));
            let mut client =
                client.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a client");
            let started = Instant::now();
            while !(pair.has_xdp(0) && pair.has_xdp(1)) {
                assert!(started.elapsed() < TIMEOUT, "{mode}: no XDP program");
            }
            std::thread::sleep(Duration::from_millis(300));
            let killed = Instant::now();
            let survivor = match victim {
                0 => {
                    client.kill().expect("a running client"); // SIGKILL
                    client.wait().expect("an ended client");
                    server.end()
                }
                _ => {
                    server.child.kill().expect("a running server");
                    server.end();
                    wait(&mut client);
                    client.wait_with_output().expect("an ended client")
                }
            };
            assert!(killed.elapsed() < Duration::from_secs(5), "{mode}: noticed late");
            assert_eq!(survivor.status.code(), Some(1), "{mode}: {}", text(&survivor.stderr));
            assert!(text(&survivor.stderr).contains("closed the connection"), "{survivor:?}");
            assert!(!pair.has_xdp(0) && !pair.has_xdp(1), "{mode}: an XDP program is left");
        }
    }
}

#[test]
fn conflicting_sides_and_usage_errors_have_different_exit_codes() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let server = pair.server("-i v1 -s 4096");
    let client = pair.feroce(0, "perf -i v0 -s 8192 10.9.0.2").output().expect("a client");
    for output in [client, server.end()] {
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains("--size is 4096 at the server and 8192"),
            "{output:?}"
        );
    }
    let no_dpdk = if cfg!(feature = "dpdk") { "`dpdk_addresses`" } else { "`--features dpdk`" };
    for (arguments, code, output_text) in [
        ("perf", 2, "-i IFACE"),
        ("perf --port-kind dpdk", 2, "the setting `dpdk_device`"),
        ("perf --port-kind dpdk -i net_null0", 1, no_dpdk),
        ("perf -i v0 --op read --inline 8 10.9.0.2", 2, "no inline data"),
        ("perf -i v0 --bogus", 2, "--bogus"),
        ("perf -i v0 --port-kind packet --xdp generic", 2, "--xdp is for AF_XDP"),
        ("perf --transport tcp --drop 1% 10.9.0.2", 2, "--drop is for RoCE"),
        ("perf --transport tcp --hop-limit 3 10.9.0.2", 2, "--hop-limit is for RoCE"),
        ("perf -i v0 --cores 2 --xdp generic", 1, "too few for 2 cores"),
        ("devinfo -i lo", 1, "is the loopback"),
        ("perf -i none0", 1, "no interface none0"),
        ("perf -i v0 10.9.0.2", 1, "start `feroce perf -i IFACE` there first"),
        ("perf -i v0 --cores 2 --port-kind af_xdp", 1, "too few for 2 cores"),
    ] {
        let output = pair.feroce(0, arguments).output().expect("feroce");
        assert_eq!(output.status.code(), Some(code), "{arguments}: {output:?}");
        assert!(
            text(&output.stderr).contains(output_text),
            "{arguments}: {}",
            text(&output.stderr)
        );
    }
}

/// A peer that is stopped for eleven seconds is not a network error.
#[test]
fn a_peer_stopped_for_a_while_is_not_an_error() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let server = pair.server("--transport tcp");
    let mut client = pair.feroce(0, "perf --transport tcp -D 13 10.9.0.2");
    let client = client.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a client");
    std::thread::sleep(Duration::from_secs(1));
    let signal = |name: &str| {
        let pid = client.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().expect("kill").success());
    };
    signal("-STOP");
    std::thread::sleep(Duration::from_millis(10_500));
    signal("-CONT");
    let client = client.wait_with_output().expect("an ended client");
    assert!(client.status.success(), "{}: {}", client.status, text(&client.stderr));
    let server = server.end();
    assert!(server.status.success(), "{}: {}", server.status, text(&server.stderr));
    assert!(text(&server.stderr).contains("gets no CPU"), "{}", text(&server.stderr));
}

#[test]
fn an_incomplete_capture_is_an_error() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let server = pair.server("-i v1");
    // Mounted for this process only.
    let script = "mount -t tmpfs -o size=256k small /mnt && \
         exec \"$0\" perf -i v0 -n 1000 --pcap /mnt/cut 10.9.0.2";
    let mut client = pair.run(0, "sh");
    client.args(["-c", script, env!("CARGO_BIN_EXE_feroce")]).env("FEROCE_CONFIG", "");
    let client = client.output().expect("a client");
    assert_eq!(client.status.code(), Some(1), "{}", text(&client.stderr));
    assert!(text(&client.stderr).contains("capture is not complete"), "{}", text(&client.stderr));
    server.end();
}

#[test]
fn a_persistent_server_serves_several_clients_and_ends_by_signal() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let server = pair.server("-i v1 --persist --json");
    for _ in 0..2 {
        let client = pair.feroce(0, "perf -i v0 -n 100 10.9.0.2").output().expect("a client");
        assert!(client.status.success(), "{}", text(&client.stderr));
    }
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    let server = server.end();
    assert_eq!(server.status.code(), Some(0), "{}", text(&server.stderr));
    let reports = serde_json::Deserializer::from_slice(&server.stdout).into_iter::<Value>();
    assert_eq!(reports.filter(Result::is_ok).count(), 2);
}

#[test]
fn an_interrupted_client_reports_and_ends() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let server = pair.server("-i v1");
    let mut client = pair.feroce(0, "perf -i v0 -D 60 --check --json 10.9.0.2");
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a client");
    let started = Instant::now();
    // In the middle of the test, even on a slow machine.
    while pair.sent(0) < 2000.0 {
        assert!(started.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(50));
    }
    let pid = client.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let client = client.wait_with_output().expect("an ended client");
    assert_eq!(client.status.code(), Some(130), "{}", text(&client.stderr));
    let report: Value = serde_json::from_slice(&client.stdout).expect("JSON");
    assert!(number(&report["rows"][0]["checked_bytes"]) > 0.0);
    let server = server.end();
    assert!(server.status.success(), "{}", text(&server.stderr));
}

#[test]
fn devinfo_shows_interfaces_and_their_owners() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let info = |arguments: &str| {
        let output = pair.feroce(1, arguments).output().expect("feroce");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let closed = info("devinfo --json");
    assert_eq!(closed.as_array().map(Vec::len), Some(1), "the loopback is no device");
    let (device, opened) = (&closed[0], &info("devinfo -v --json -i v1")[0]);
    assert_eq!((&device["interface"], &device["active_mtu"]), (&"v1".into(), &4096.into()));
    assert_eq!((&device["port"], &device["in_use_by"]), (&Value::Null, &Value::Null));
    assert!(opened["port"].as_str().is_some_and(|port| port.starts_with("af_xdp")), "{opened}");
    assert_eq!(opened["port_reason"], "auto: interface and privileges allow AF_XDP");
    for name in [
        "max_qp",
        "max_qp_wr",
        "max_sge",
        "max_inline_data",
        "max_cqe",
        "max_mr",
        "max_cq",
        "max_pd",
        "max_qp_rd_atom",
        "gids",
    ] {
        assert_eq!(device[name], opened[name], "{name}");
    }
    let gids = device["gids"].as_array().expect("GIDs");
    assert!(
        gids.iter().any(|gid| gid["address"] == "10.9.0.2" && gid["type"] == "RoCE v2"),
        "{device}"
    );

    let mut server = pair.server("-i v1");
    let owned = info("devinfo --json");
    assert_eq!(owned[0]["in_use_by"]["program"], "feroce");
    let refused = pair.feroce(1, "devinfo -v").output().expect("feroce");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("in use by process"), "{refused:?}");
    server.child.kill().expect("a running server");
    server.end();
}
