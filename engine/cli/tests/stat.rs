//! `feroce stat` beside a running `feroce perf`: what it shows, to which users, and its errors
//! without a running program. Needs root; skipped with a message without root.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use common::{Pair, Server, TIMEOUT, copy_feroce, json, text};
use serde_json::Value;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// The figures of `v0`, once they satisfy `enough`.
fn until(pair: &Pair, enough: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let output = pair.feroce(0, "stat -i v0 --json --qps").output().expect("feroce");
        if output.status.success() {
            let figures = json(&output)[0].clone();
            if enough(&figures) {
                return figures;
            }
        }
        assert!(started.elapsed() < TIMEOUT, "{output:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_running_program_is_shown() {
    let Some(pair) = Pair::new() else { return };
    let server = Server::start(&mut pair.feroce(1, "perf -i v1"));
    let mut client = pair.feroce(0, "perf -i v0 --op write -q 3 -D 20 10.9.0.2");
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client");
    let moving = |figures: &Value| {
        let qps = figures["queue_pairs"].as_array().expect("QPs");
        qps.len() == 3 && qps.iter().all(|qp| number(&qp["ssn"]) > 0)
    };
    let figures = until(&pair, moving);
    assert_eq!(number(&figures["pid"]), u64::from(client.id()));
    assert_eq!((&figures["program"], &figures["interface"]), (&"feroce".into(), &"v0".into()));
    assert_eq!((&figures["qps"], &figures["active_mtu"]), (&3.into(), &4096.into()));
    assert!(number(&figures["counters"]["port_xmit_packets"]) > 0);
    assert!(number(&figures["cores"][0]["tx_bytes"]) > 4096);
    assert!(number(&figures["arena_used"]) >= 64 << 10, "{figures:#}");
    for qp in figures["queue_pairs"].as_array().expect("QPs") {
        assert_eq!((&qp["state"], &qp["peer"]), (&"RTS".into(), &"10.9.0.2".into()));
        assert!(number(&qp["sends_posted"]) <= 128, "{qp}");
    }
    let others = pair.feroce(1, "stat --json").output().expect("feroce");
    assert_eq!(json(&others)[0]["interface"], "v1", "found without being named");

    let mut watch = pair.feroce(0, "stat -i v0 --json --watch 0.2");
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("feroce");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    for _ in 0..3 {
        let line: Value = serde_json::from_str(&lines.next().expect("a line").unwrap()).unwrap();
        let rates = &line["rates"][0];
        assert!(rates["tx_bits_per_second"].as_f64().expect("a rate") > 1e6, "{line:#}");
        let packets = rates["tx_packets_per_second"].as_f64().expect("a rate");
        assert!(packets > 100.0, "{line:#}");
        assert!(rates["counters_per_second"]["port_xmit_packets"].as_f64() > Some(100.0));
    }
    let pid = watch.id().to_string();
    std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill");
    assert!(watch.wait().expect("its end").success());

    let shown = pair.feroce(0, "stat --qps").output().expect("feroce");
    let shown = text(&shown.stdout);
    for word in ["interface: v0", "rx frames", "port_xmit_packets:", "RTS", "10.9.0.2"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let mut lines = pair.feroce(0, "stat -i v0 --watch 0.2 --qps");
    let mut lines = lines.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("feroce");
    let mut output_text = BufReader::new(lines.stdout.take().expect("piped")).lines();
    let seen = output_text.by_ref().take(20).any(|line| line.expect("text").contains("RTS"));
    assert!(seen, "QPs off a terminal");
    client.kill().expect("a running client");
    client.wait().expect("its end");
    let _lines_to_come = output_text.by_ref().count();
    let ended = lines.wait_with_output().expect("its end");
    assert_eq!(ended.status.code(), Some(1));
    let output_text = text(&ended.stderr);
    assert!(
        output_text.contains(&format!("feroce (pid {}) has ended", client.id())),
        "{output_text}"
    );
    server.end();
    let gone = pair.feroce(0, "stat -i v0").output().expect("feroce");
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("feroce perf -i v0"), "{}", text(&gone.stderr));
    let no_server = pair.feroce(0, "stat").output().expect("feroce");
    assert!(text(&no_server.stderr).contains("ip netns exec"), "{}", text(&no_server.stderr));
}

/// A process without privileges owns the name under which `v0` serves its figures, and sends
/// garbage.
const FOREIGN_ENDPOINT: &str = "
import socket
s = socket.socket(socket.AF_UNIX)
s.bind('\\0feroce/stat/v0')
s.listen()
print('there', flush=True)
while True:
    c, _ = s.accept()
    try:
        while True: c.sendall(b'1' * 65536)
    except OSError: pass
";

#[test]
fn a_foreign_endpoint_does_not_hide_programs() {
    let Some(pair) = Pair::new() else { return };
    let mut foreign = pair.run(0, "setpriv");
    foreign.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c"]);
    let mut foreign = foreign.arg(FOREIGN_ENDPOINT).stdout(Stdio::piped()).spawn().expect("python");
    let mut line = String::new();
    BufReader::new(foreign.stdout.take().expect("piped")).read_line(&mut line).expect("text");
    assert_eq!(line, "there\n");

    pair.shell(
        0,
        "ip link add w0 type veth peer w1; ip address add 10.9.1.1/24 dev w0; \
         ip link set w1 up; ip link set w0 up",
    );
    let other = Server::start(&mut pair.feroce(0, "perf -i w0 -p 700 --port-kind packet"));
    let shown = pair.feroce(0, "stat --json").output().expect("feroce");
    assert_eq!(json(&shown)[0]["interface"], "w0", "{}", text(&shown.stderr));
    assert!(text(&shown.stderr).contains("v0"), "{}", text(&shown.stderr));
    assert!(other.stop().status.success());

    let server = Server::start(&mut pair.feroce(0, "perf -i v0"));
    let stopped = server.stop();
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    foreign.kill().expect("a running foreign");
    foreign.wait().expect("its end");
}

#[test]
fn only_root_and_the_same_user_get_figures() {
    let Some(pair) = Pair::new() else { return };
    let server = Server::start(&mut pair.feroce(1, "perf -i v1"));
    let folder = std::env::temp_dir().join(format!("{}-stat", pair.names[0]));
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join("feroce"); // Where others may run it.
    copy_feroce(&program);
    let mut other = pair.run(1, "setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    let other = other.args(["stat", "-i", "v1"]).env("FEROCE_CONFIG", "").output().expect("feroce");
    std::fs::remove_dir_all(&folder).expect("our folder");
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let output_text = text(&other.stderr);
    assert!(
        output_text.contains("only root and user 0 may read statistics, not user 65534"),
        "{output_text}"
    );
    assert!(server.stop().status.success());
}
