//! Engine hosts: their rates compared with simulated hosts, and the network's effects on real
//! frames.

use std::process::Command;

use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::measure::Results;
use feroce_pfc_tools::fabric::scenario::{Change, Scenario};
use feroce_pfc_tools::scenarios;

/// Two hosts send to a third through a switch, at 10 Gb/s.
const SMALL: &str = "\
title = \"two to one, engines\"
duration = \"2ms\"
[topology]
kind = \"single\"
hosts = 3
rate = \"10Gb/s\"
[host]
engine = \"h1..h3\"
[switch]
buffer = \"400KB\"
[[traffic]]
name = \"incast\"
from = \"h1..h2\"
to = \"h3\"
control = \"none\"
";

fn scenario(text: &str, changes: &[(&str, &str)]) -> Scenario {
    let changes: Vec<Change> = changes
        .iter()
        .map(|&(key, value)| Change { key: key.to_owned(), value: value.to_owned() })
        .collect();
    Scenario::parse("x.toml", text, &changes, None).unwrap_or_else(|error| panic!("{error}"))
}

fn run(scenario: &Scenario, case: usize) -> Results {
    let config = scenario.cases[case].config(1, false).expect("flows");
    let mut fabric = Fabric::new(&config).expect("a network");
    while !fabric.run(1 << 20) {}
    fabric.results()
}

fn goodputs(results: &Results) -> Vec<f64> {
    results
        .flows
        .iter()
        .map(|flow| flow.goodput.expect("it sent after the warm-up") / 1e9)
        .collect()
}

#[test]
fn light_and_engine_hosts_agree_on_rates_within_3_percent() {
    let text = scenarios::find("engine-hosts").expect("it comes with the program").text;
    let scenario = scenario(text, &[]);
    let [light, engine] = [0, 1].map(|case| run(&scenario, case));
    assert!(light.flows.iter().all(|flow| flow.cnps > 50 && flow.marked > flow.cnps), "{light:?}");
    // Compared for each flow, because the sum is the link rate, whatever the hosts do. Which flow
    // is ahead is random.
    let alphas = |results: &Results| {
        let all = results.flows.iter().map(|flow| flow.alpha.expect("DCQCN has one"));
        all.collect::<Vec<f64>>()
    };
    for of in [goodputs, alphas] {
        let [mut light, mut engine] = [of(&light), of(&engine)];
        light.sort_by(f64::total_cmp);
        engine.sort_by(f64::total_cmp);
        let near = |(one, other): (&f64, &f64)| (one - other).abs() <= 0.03 * one;
        assert!(light.iter().zip(&engine).all(near), "{light:?} and {engine:?}");
    }
    assert!(goodputs(&light).iter().sum::<f64>() > 8.0, "the link is used: {light:?}");
    for flow in &engine.flows {
        assert!(flow.cnps > 50 && flow.marked > flow.cnps, "{flow:?}");
        assert!(flow.sender.cnps + 1 >= flow.cnps, "one may be on its way: {flow:?}");
    }
    assert_eq!(engine.violations(), Vec::<String>::new());
}

#[test]
fn pauses_stop_an_engine_host_without_losses() {
    let results = run(&scenario(SMALL, &[]), 0);
    assert_eq!(results.violations(), Vec::<String>::new());
    let pauses: u64 = results.ports.iter().map(|port| port.counts.pauses_received).sum();
    assert!(pauses >= 2, "{pauses} pauses");
    let goodputs = goodputs(&results);
    let all: f64 = goodputs.iter().sum();
    // 1024 of 1106 bytes on the link are payload; the first packet has a latency.
    assert!((9.1..9.26).contains(&all), "{goodputs:?}");
    assert!(goodputs.iter().all(|&rate| rate > 0.45 * all), "{goodputs:?}");
}

#[test]
fn a_run_is_reproducible() {
    let scenario = scenario(SMALL, &[("traffic.0.control", "dcqcn"), ("pfc.priorities", "[]")]);
    let [first, second] = [0, 0].map(|case| run(&scenario, case));
    assert_eq!((first.flows, first.ports), (second.flows, second.ports));
    assert_eq!((first.events, first.hops), (second.events, second.hops));
}

#[test]
fn lost_and_corrupted_frames_are_retransmitted() {
    let line =
        "[[link]]\nbetween = \"h1 - s1\"\nloss_every = 100\ncorruption_every = 77\n[[traffic]]";
    let text = SMALL.replace("[[traffic]]", line);
    let changes =
        [("traffic.0.messages", "5"), ("traffic.0.message", "100KB"), ("traffic.0.senders", "1")];
    let results = run(&scenario(&text, &changes), 0);
    let flow = &results.flows[0];
    assert_eq!((flow.delivered, flow.size), (500_000, Some(500_000)));
    assert!(flow.ended.is_some() && flow.sender.naks > 0 && flow.out_of_sequence > 0, "{flow:?}");
    let faults = results.ports.iter().map(|port| port.counts.lost).sum::<u64>() + results.corrupted;
    assert!(results.corrupted >= 5 && faults >= 10, "{faults}, {} damaged", results.corrupted);
    assert!(flow.sender.retransmitted >= faults, "{flow:?}");
    // Each of the 490 packets, and the retransmissions.
    assert_eq!(flow.sender.packets, 490 + flow.sender.retransmitted);
}

/// A timeout is counted when it happens: while the link is paused, no retransmitted packet reports
/// it.
#[test]
fn timeouts_of_paused_hosts_are_counted() {
    let text = SMALL
        .replace("[[traffic]]", "[[link]]\nbetween = \"h3 - s1\"\nrate = \"1Mb/s\"\n[[traffic]]")
        .replace("[host]", "[host]\ntimeout = \"100us\"");
    let results = run(&scenario(&text, &[]), 0);
    assert!(results.flows.iter().all(|flow| flow.sender.timeouts > 0), "{:?}", results.flows);
    assert!(results.violations()[0].ends_with(" timeouts"), "{:?}", results.violations());
}

/// All packets to the receiver are lost: the QPs fail and stop sending.
#[test]
fn qps_in_error_are_losses() {
    let text = SMALL
        .replace("[[traffic]]", "[[link]]\nbetween = \"h3 - s1\"\nloss_every = 1\n[[traffic]]")
        .replace("[host]", "[host]\ntimeout = \"20us\"");
    let results = run(&scenario(&text, &[("pfc.priorities", "[]")]), 0);
    assert!(results.flows.iter().all(|flow| flow.sender.failed == 1), "{:?}", results.flows);
    // The first timeout and seven retries.
    assert!(results.flows.iter().all(|flow| flow.sender.timeouts == 8), "{:?}", results.flows);
    assert!(
        results.violations().contains(&"2 QPs in error".to_owned()),
        "{:?}",
        results.violations()
    );
}

/// Runs the program on [`SMALL`] in a shell, after the command `before`. Returns its exit code and
/// standard error.
fn in_shell(before: &str, program: &str) -> (Option<i32>, String) {
    let folder = std::env::temp_dir().join(format!("feroce-engine-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("small.toml");
    std::fs::write(&file, SMALL).expect("a file");
    let bin = env!("CARGO_BIN_EXE_feroce");
    let line = format!("{before}; exec {bin} fabric {program}")
        .replace("FILE", &file.display().to_string());
    let output = Command::new("bash").args(["-c", &line]).output().expect("bash");
    let _ = std::fs::remove_dir_all(folder);
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn the_descriptor_limit_is_raised_or_reported() {
    let (code, message) = in_shell("ulimit -n 80", "run FILE");
    assert_eq!(code, Some(1), "{message}");
    assert!(
        message.contains("3 engine hosts need 100 open descriptors; the limit is 80"),
        "{message}"
    );
    let (code, message) = in_shell("ulimit -Sn 30", "run FILE");
    assert_eq!(code, Some(0), "the limit is raised: {message}");
}

#[test]
fn live_refuses_engine_hosts() {
    let (code, message) = in_shell("true", "live FILE --port h1=none");
    assert_eq!((code, message.lines().count()), (Some(1), 1), "{message}");
    assert!(
        message.contains("`host.engine` replaces hosts by the engine; `live` puts interfaces"),
        "{message}"
    );
}

#[test]
fn engine_flows_stop_and_use_the_scenarios_priorities() {
    let changes =
        [("traffic.0.stop", "1ms"), ("traffic.0.priority", "5"), ("host.ack_priority", "2")];
    let text = SMALL.replace("[[traffic]]", "[pfc]\npriorities = [5]\n[[traffic]]");
    let results = run(&scenario(&text, &changes), 0);
    assert_eq!(results.violations(), Vec::<String>::new());
    let ended = results.flows.iter().map(|flow| flow.ended.map(|at| at.0));
    assert!(ended.eq([Some(1_000_000_000); 2]));
    assert!(results.flows.iter().all(|flow| flow.is_truncated && flow.completion().is_none()));
    assert!(results.ports.iter().any(|port| port.counts.pauses_received > 0), "priority 5 has PFC");
}

/// Traffic that waits for others, and a collective whose messages wait for nothing.
#[test]
fn flows_of_engine_hosts_wait_for_others() {
    let text = SMALL.replace("control = \"none\"", "messages = 2\nmessage = \"100KB\"");
    let more = "[[traffic]]\nname = \"all\"\nkind = \"all-to-all\"\nranks = \"h1..h3\"\nsize = \
                \"90KB\"\nat_once = 1\nafter = \"incast\"\ndelay = \"10us\"\n";
    let results = run(&scenario(&[&text, more].concat(), &[]), 0);
    let own = |group| results.flows.iter().filter(move |flow| flow.group == group);
    let ended = own(0).filter_map(|flow| flow.ended).max().expect("both end");
    let started = own(1).filter_map(|flow| flow.started).min().expect("all start");
    assert_eq!((started.0 - ended.0, results.unfinished(None)), (10_000_000, 0));
    let (_, took) = results.collective(Some(1)).expect("complete");
    // Two rounds of 30 KB at 10 Gb/s.
    assert!(took.0 > 48_000_000 && took.0 < 80_000_000, "{took}");
    assert_eq!(results.violations(), Vec::<String>::new());
}

#[test]
fn unsupported_settings_of_engine_hosts_are_refused() {
    let message = |from: &str, to: &str| {
        let text = SMALL.replace(from, to);
        Scenario::parse("x.toml", &text, &[], None).expect_err("refused").to_string()
    };
    let host = |line: &str| message("[host]\n", &format!("[host]\n{line}\n"));
    assert_eq!(
        host("ack_delay = \"1us\""),
        "x.toml:8: `host.ack_delay` is `1us`, expected no value: engine hosts respond at once"
    );
    assert!(host("cnp_delay = \"1us\"").contains("engine hosts respond at once"));
    assert!(host("ack_every = 4").contains("`host.ack_every` is `4`"));
    assert!(host("recovery = \"go-back-0\"").contains("expected go-back-n"));
    assert!(host("window = \"30KB\"").contains("expected 34752B or more: 32 packets"));
    assert!(message("[host]", "[packet]\npayload = 1000\n[host]").contains("a path MTU of engine"));
    assert!(
        message("[host]", "[packet]\nheaders = 60\n[host]")
            .contains("expected 62, the header size")
    );
    for key in ["cnp_priority", "cnp_dscp", "np_cnp_dscp", "np_cnp_prio", "cnp_802p_prio"] {
        let message = message("[host]", &format!("[congestion]\n{key} = 5\n[host]"));
        assert!(message.starts_with(&format!("x.toml:8: `congestion.{key}` is `5`")), "{message}");
    }
    let initial = "control = \"dcqcn\"\ninitial_rate = \"1Gb/s\"";
    assert!(message("control = \"none\"", initial).contains("engine hosts start at link rate"));
    assert_eq!(
        message("\"h1..h3\"", "\"h1..h2\""),
        "x.toml:8: `host.engine`: h1 sends to h3, but only one of them is an engine host"
    );
    assert!(
        message("control =", "message = \"1GB\"\ncontrol =").contains("a message of 1000000000")
    );
    let other = "control = \"none\"\n[[traffic]]\nname = \"b\"\nfrom = \"h1\"\n\
                 to = \"h2\"\ncontrol = \"dcqcn\"";
    assert!(message("control = \"none\"", other).contains("need the same `control`"));
}
