//! `feroce perf` on DPDK's AF_PACKET driver at both ends of a veth pair, and what other subcommands
//! report at the same time. Needs root; skipped with a message without root.

mod common;

use std::process::Command;

use common::{DEVICES, Pair, Server, json, text};

/// `feroce perf` at `end`, with DPDK on its interface: the device from the environment, the rest
/// from options. The kernel's addresses carry the control connection.
fn perf(pair: &Pair, end: usize, arguments: &str) -> Command {
    let host = end + 1;
    let mut command = pair.feroce(
        end,
        &format!(
            "perf --port-kind dpdk --dpdk-memory 256 \
         --dpdk-addresses 10.8.0.{host}/24,fd08::{host}/64 {arguments}"
        ),
    );
    command.env("FEROCE_DPDK_DEVICE", device(end));
    command
}

fn device(end: usize) -> String {
    let buffers = "blocksz=65536,framesz=8192,framecnt=2048,qdisc_bypass=0";
    format!("net_af_packet0,iface={},{buffers}", DEVICES[end])
}

#[test]
fn perf_runs_on_dpdk_at_both_ends_and_stat_shows_it() {
    let Some(pair) = Pair::new() else { return };
    for family in ["", "-x 1 "] {
        let server = Server::start(&mut perf(&pair, 1, family));
        let figures = &json(&pair.feroce(1, "stat --json").output().expect("feroce"))[0];
        assert_eq!(figures["interface"], "net_af_packet0");
        assert_eq!(figures["port"], "dpdk (net_af_packet)");
        assert_eq!(figures["active_mtu"], 4096);
        let devinfo = pair.feroce(1, "devinfo -i v1").output().expect("feroce");
        assert!(devinfo.status.success(), "{devinfo:?}");
        let client = format!("{family}--op read -s 64K -n 200 --check --json 10.9.0.2");
        let client = perf(&pair, 0, &client).output().expect("a client");
        assert!(client.status.success(), "{}", text(&client.stderr));
        assert!(json(&client)["rows"][0]["checked_bytes"].as_f64() > Some(0.0));
        let server = server.end();
        assert!(server.status.success(), "{}", text(&server.stderr));
    }
}

#[test]
fn the_suggested_mtu_works() {
    let Some(pair) = Pair::new() else { return };
    let exchange = |mtu: &str| {
        let server = Server::start(&mut perf(&pair, 1, mtu));
        let client = perf(&pair, 0, &format!("{mtu} -s 8K -n 100 --mtu 4096 10.9.0.2"));
        let client = { client }.output().expect("a client");
        let server = server.end();
        (client, server)
    };
    let (client, server) = exchange("--dpdk-mtu 4100");
    assert!(!client.status.success() && !server.status.success());
    let output_text = text(&client.stderr);
    let advice = output_text.split('`').find(|part| part.starts_with("--dpdk-mtu"));
    let advice = advice.unwrap_or_else(|| panic!("no advice for DPDK: {output_text}"));
    let (client, server) = exchange(advice);
    assert!(client.status.success(), "{}", text(&client.stderr));
    assert!(server.status.success(), "{}", text(&server.stderr));
}

#[test]
fn programs_with_equal_device_names_are_distinguished() {
    let Some(pair) = Pair::new() else { return };
    let first = Server::start(&mut perf(&pair, 0, ""));
    let second = Server::start(&mut perf(&pair, 0, "-p 7471"));
    let figures = json(&pair.feroce(0, "stat --json").output().expect("feroce"));
    let names = figures.as_array().expect("programs").iter().map(|one| one["interface"].as_str());
    let mut names: Vec<_> = names.map(|name| name.expect("a name").to_owned()).collect();
    names.sort();
    let other = format!("net_af_packet0.{}", second.child.id());
    assert_eq!(names, ["net_af_packet0".to_owned(), other.clone()]);
    let named = pair.feroce(0, &format!("stat --json -i {other}")).output().expect("feroce");
    assert_eq!(json(&named)[0]["pid"].as_u64(), Some(second.child.id().into()));
    for server in [first, second] {
        server.stop();
    }
}

/// The driver accepts frames longer than the interface's MTU and loses them.
#[test]
fn the_mtu_of_the_underlying_interface_counts() {
    let Some(pair) = Pair::new() else { return };
    for (end, device) in DEVICES.iter().enumerate() {
        pair.shell(end, &format!("ip link set {device} mtu 1500"));
    }
    let server = Server::start(&mut perf(&pair, 1, ""));
    let figures = &json(&pair.feroce(1, "stat --json").output().expect("feroce"))[0];
    assert_eq!(figures["active_mtu"], 1024);
    let client = perf(&pair, 0, "-s 64K -n 100 --check 10.9.0.2").output().expect("a client");
    assert!(client.status.success(), "{}", text(&client.stderr));
    assert!(text(&client.stderr).contains("carries less than `dpdk_mtu`"), "{client:?}");
    assert!(server.end().status.success());
}

#[test]
fn the_doctor_tries_to_open_a_device() {
    let Some(pair) = Pair::new() else { return };
    let doctor = |arguments: &str| {
        let settings = "--port-kind dpdk --dpdk-memory 256 \
         --dpdk-addresses 10.8.0.1/24";
        let output = pair.feroce(0, &format!("doctor --json {settings} {arguments}"));
        { output }.output().expect("feroce")
    };
    let last = |output: &std::process::Output| {
        json(output)["findings"].as_array().expect("findings").last().expect("one").clone()
    };
    let opened = doctor(&format!("-i {} --open", device(0)));
    assert_eq!((&last(&opened)["id"], &last(&opened)["severity"]), (&"open".into(), &"ok".into()));
    assert!(last(&opened)["found"].as_str().is_some_and(|text| text.contains("net_af_packet")));
    let mut by_setting = pair.feroce(0, "doctor --json --port-kind dpdk --dpdk-memory 256 --open");
    by_setting.env("FEROCE_DPDK_DEVICE", device(0)).env("FEROCE_DPDK_ADDRESSES", "10.8.0.1/24");
    assert_eq!(last(&by_setting.output().expect("feroce"))["severity"], "ok");
    let missing = doctor("-i net_nonesuch0 --open");
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    assert_eq!(
        (&last(&missing)["id"], &last(&missing)["severity"]),
        (&"open".into(), &"error".into())
    );
    let peer = doctor("-i net_af_packet0 --peer 10.8.0.2");
    assert_eq!(peer.status.code(), Some(2), "{peer:?}");
}
