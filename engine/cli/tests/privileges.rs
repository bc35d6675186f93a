//! The privileges that `feroce perf` keeps after opening its device suffice to follow changes of
//! the host. Needs root; skipped with a message without root.

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Pair, Server, TIMEOUT, ip, json, text};

/// CAP_NET_ADMIN as a capability set in `/proc/PID/status`.
const NET_ADMIN: &str = "0000000000001000";

/// The value of `name` in the status of each thread.
fn of_threads(pid: u32, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    let statuses = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?.to_owned();
        Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    statuses.collect()
}

fn all_are(pid: u32, name: &str, expected: &str) {
    let values = of_threads(pid, name);
    assert!(values.len() >= 4, "main, helper, addresses, figures: {values:?}");
    assert!(values.iter().all(|value| value == expected), "{name} {values:?}");
}

#[test]
fn every_thread_keeps_one_privilege() {
    let Some(pair) = Pair::new() else { return };
    for (user, uid, groups) in [("", "0", None), ("--user nobody", "65534", Some("65534"))] {
        let server = Server::start(&mut pair.feroce(1, &format!("perf -i v1 {user}")));
        let pid = server.child.id();
        for set in ["CapEff:", "CapPrm:"] {
            all_are(pid, set, NET_ADMIN);
        }
        for set in ["CapInh:", "CapAmb:"] {
            all_are(pid, set, "0000000000000000");
        }
        all_are(pid, "NoNewPrivs:", "1");
        all_are(pid, "Uid:", &[uid; 4].join(" "));
        if let Some(groups) = groups {
            all_are(pid, "Gid:", &[groups; 4].join(" "));
            all_are(pid, "Groups:", groups);
        }
        let client = pair.feroce(0, "perf -i v0 -n 300 --check --json 10.9.0.2");
        let client = { client }.output().expect("a client");
        assert!(client.status.success(), "{}", text(&client.stderr));
        assert!(json(&client)["rows"][0]["checked_bytes"].as_f64() > Some(0.0));
        assert!(server.end().status.success());
    }
    let output = pair.feroce(1, "perf -i v1 --user no-such-user").output().expect("feroce");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no-such-user"), "{}", text(&output.stderr));
}

/// The server gets another IP address and another MAC address while it runs, and the client's
/// kernel drops the neighbour entry.
#[test]
fn the_kept_privilege_suffices_to_follow_the_host() {
    let Some(pair) = Pair::new() else { return };
    let server = Server::start(&mut pair.feroce(1, "perf -i v1 --user nobody --persist"));
    // The packet filter in the kernel must be updated for this address.
    ip(&format!("-n {} address add 10.9.0.22/24 dev v1", pair.names[1]));
    let deadline = Instant::now() + TIMEOUT;
    let connect = || {
        let mut client = pair.feroce(0, "perf -i v0 --user nobody -n 300 --check --json 10.9.0.22");
        client.output().expect("a client")
    };
    let mut client = connect();
    while !client.status.success() && Instant::now() < deadline {
        client = connect();
    }
    assert!(client.status.success(), "{}", text(&client.stderr));

    let mut client = pair.feroce(0, "perf -i v0 --user nobody -D 4 --check --json 10.9.0.22");
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a client");
    std::thread::sleep(Duration::from_millis(1500));
    ip(&format!("-n {} link set v1 address 02:00:00:00:22:22", pair.names[1]));
    ip(&format!("-n {} neighbour del 10.9.0.22 dev v0", pair.names[0]));
    let client = client.wait_with_output().expect("its end");
    assert!(client.status.success(), "{}", text(&client.stderr));
    let bytes = json(&client)["rows"][0]["checked_bytes"].as_f64();
    assert!(bytes > Some(0.0));
    let server = server.stop();
    assert!(server.status.success(), "{}", text(&server.stderr));
}
