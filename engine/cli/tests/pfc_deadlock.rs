//! Cyclic buffer dependencies and the deadlocks they cause.

use std::process::{Command, Output};

use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::config::{FabricConfig, Network};
use feroce_pfc_tools::fabric::measure::{PortResult, Results};
use feroce_pfc_tools::fabric::scenario::{Case, Change};
use feroce_pfc_tools::fabric::time::Time;
use feroce_pfc_tools::pfc::deadlock::graph::{Dependencies, Pairs};
use feroce_pfc_tools::scenarios;

/// The cases of a built-in scenario, with changes.
fn cases(name: &str, changes: &[(&str, &str)]) -> Vec<Case> {
    let change = |&(key, value): &(&str, &str)| Change { key: key.into(), value: value.into() };
    let changes: Vec<Change> = changes.iter().map(change).collect();
    scenarios::load(name, &changes, None).expect("it comes with the program").cases
}

fn play(config: &FabricConfig) -> Results {
    let mut fabric = Fabric::new(config).expect("a network");
    while !fabric.run(1 << 20) {}
    fabric.results()
}

fn short(case: &Case) -> FabricConfig {
    let times = (Time::from_millis(3), Time::from_millis(2));
    let config = case.config(1, false).expect("flows");
    FabricConfig { duration: times.0, warmup: times.1, sample: Time::from_micros(20), ..config }
}

/// Returns true if no flow makes progress in the last millisecond.
fn is_standstill(results: &Results) -> bool {
    results.flows.iter().all(|flow| flow.goodput == Some(0.0))
}

fn dependencies(network: &Network) -> usize {
    Dependencies::of(network, &Pairs::All).all.len()
}

#[test]
fn shortest_paths_in_a_ring_deadlock() {
    let cases = cases("deadlock-ring", &[]);
    let [shortest, fewer, up_down] = &cases[..] else { panic!("three cases") };
    let results = play(&short(shortest));
    let deadlock = results.deadlock.as_ref().expect("a deadlock");
    let network = shortest.network();
    let mut cycle: Vec<&str> =
        deadlock.cycle.iter().map(|stuck| network.name(stuck.node)).collect();
    cycle.sort_unstable();
    assert_eq!(cycle, ["s1", "s2", "s3", "s4", "s5"]);
    assert!(deadlock.since < Time::from_millis(1) && is_standstill(&results));
    for case in [fewer, up_down] {
        let results = play(&short(case));
        assert_eq!(results.deadlock, None, "{}", case.name);
        assert!(results.flows.iter().all(|flow| flow.goodput > Some(1e9)), "{}", case.name);
    }
    // Each of the ten link directions continues on the next.
    assert_eq!(dependencies(network), 10);
    assert_eq!(dependencies(fewer.network()), 8);
}

/// A pause that is not repeated expires, so there is no deadlock and none is reported.
#[test]
fn expiring_pauses_are_no_deadlock() {
    let cases = cases(
        "deadlock-ring",
        &[("pfc.repeat", "false"), ("pfc.quanta", "1000"), ("lossless", "false")],
    );
    let results = play(&short(&cases[0]));
    assert_eq!(results.deadlock, None);
    // Packets move on all links of the ring all the time. After a pause expires, the next packets
    // find no room and are dropped, and so are their retransmissions. Hence no flow makes progress:
    // because of go-back-N and not because of PFC.
    let hosts = cases[0].network().hosts.len();
    let is_on_ring = |port: &&PortResult| port.node >= hosts && port.peer >= hosts;
    let busy = results.ports.iter().filter(is_on_ring).filter(|port| port.wire > 39e9).count();
    assert_eq!(busy, 5, "{:?}", results.ports);
    assert!(results.ports.iter().any(|port| port.counts.dropped > 1000), "{:?}", results.ports);
    assert!(is_standstill(&results) && results.flows.iter().all(|flow| flow.sender.packets > 6000));
}

#[test]
fn a_fat_tree_deadlocks_only_with_detours() {
    let cases = cases("deadlock-fat-tree", &[]);
    let [whole, detours] = &cases[..] else { panic!("two cases") };
    assert_eq!(play(&short(whole)).deadlock, None);
    let found = play(&short(detours)).deadlock.expect("a deadlock");
    // Down to a ToR and up again, twice.
    assert_eq!(found.cycle.len(), 8);
}

/// The first of three cases.
const RING: &str = "shortest paths";

/// Runs `feroce pfc deadlock` on a built-in scenario.
fn message(arguments: &[&str]) -> (String, Option<i32>) {
    let program = env!("CARGO_BIN_EXE_feroce");
    let Output { stdout, stderr, status } =
        Command::new(program).args(["pfc", "deadlock"]).args(arguments).output().expect("it runs");
    let text = [stdout, stderr].concat();
    (String::from_utf8(text).expect("text"), status.code())
}

#[test]
fn the_command_prints_the_cycle_and_the_changes() {
    let (text, code) = message(&["deadlock-ring", "--case", RING]);
    assert_eq!(code, Some(3));
    for line in [
        "a cycle of 5 links, each of which can wait for the next:",
        "  s2 pauses port 2 of s1 while its own link to s3 is paused (packets from h1 to h3)",
        "removing 2 turns breaks all cycles (the minimum): s2 > s1 > s5, s5 > s1 > s2",
        "without these turns all hosts reach each other and there is no cycle",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    let (text, code) = message(&["deadlock-fat-tree", "--case", "two links down", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(code, Some(3));
    assert_eq!(report["cycle"].as_array().map(Vec::len), Some(8));
    let turns = serde_json::json!(["l1 > t2 > l2", "l2 > t2 > l1"]);
    assert_eq!((&report["turns"]["what"], &report["turns"]["is_minimum"]), (&turns, &true.into()));
    let up_down = [
        "--set",
        "link.0.down=false",
        "--set",
        "link.1.down=false",
        "--set",
        "routing.kind=up-down",
        "--set",
        "routing.roots=[\"s1..s4\"]",
    ];
    for none in [
        &["deadlock-fat-tree", "--case", "whole"][..],
        &["deadlock-ring", "--case", "up and down"],
        &[&["deadlock-fat-tree", "--case", "whole"][..], &up_down].concat(),
        &["deadlock-ring", "--case", RING, "--set", "pfc.priorities=[]", "--set", "lossless=false"],
    ] {
        let (text, code) = message(none);
        assert_eq!(code, Some(0), "{none:?}: {text}");
    }
}

/// Topology, routes and priorities suffice: packets between all hosts are considered, and the
/// simulated flows are created for the cycle.
#[test]
fn no_traffic_is_needed() {
    let ring = scenarios::find("deadlock-ring").expect("it comes with the program");
    let (network, _) = ring.text.split_once("[[traffic]]").expect("a traffic");
    let file = std::env::temp_dir().join(format!("feroce-deadlock-{}.toml", std::process::id()));
    std::fs::write(&file, network).expect("a file");
    let name = file.to_str().expect("text");
    let (text, code) = message(&[name, "--run"]);
    let (refused, refusal) = message(&[name, "--traffic"]);
    let fabric = Command::new(env!("CARGO_BIN_EXE_feroce")).args(["fabric", "run", name]).output();
    std::fs::remove_file(&file).expect("the file");
    assert_eq!(code, Some(3), "{text}");
    let same = message(&["deadlock-ring", "--case", RING, "--run"]).0;
    let cycle = "priority 3: 10 dependencies between 10 links, from packets between all hosts";
    assert!(text.contains(cycle) && text.contains("simulated, unchanged, 5 flows"), "{text}");
    let without_case = same.replacen(" (shortest paths)", "", 1);
    assert_eq!(text, without_case);
    assert!(refused.contains("--traffic: the scenario has no traffic"), "{refused}");
    assert_eq!((refusal, refused.lines().count()), (Some(2), 1));
    // A run without traffic would show nothing.
    let Output { stderr, status, .. } = fabric.expect("it runs");
    let message = String::from_utf8(stderr).expect("text");
    assert!(
        message.contains("`traffic` is missing, expected at least one [[traffic]]"),
        "{message}"
    );
    assert!(!status.success());
}

#[test]
fn the_simulation_deadlocks_without_the_changes_only() {
    let (text, code) = message(&["deadlock-ring", "--case", RING, "--run", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(code, Some(3));
    let [before, after] = &report["runs"].as_array().expect("runs")[..] else { panic!("{text}") };
    assert!(before["deadlock"].is_string() && before["goodput"] == 0.0, "{before}");
    assert!(after["deadlock"].is_null() && after["starved"] == 0, "{after}");
}

#[test]
fn explicit_routes_and_invalid_arguments() {
    // A routing loop: two switches send packets for h4 to each other.
    let routing_loop =
        ["--set", "route=[{at=\"s1\",to=\"h4\",via=\"s2\"},{at=\"s2\",to=\"h4\",via=\"s1\"}]"];
    let (text, code) = message(&[&["deadlock-ring", "--case", RING][..], &routing_loop].concat());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("the routes form a loop from h2 to h4"), "{text}");
    let tables = [
        (&["no-such-file"][..], "there is no scenario `no-such-file` and no such file"),
        (
            &["deadlock-ring"],
            "3 cases; choose one with --case: shortest paths, two turns fewer, up and down",
        ),
        (&["deadlock-ring", "--case", "x"], "there is no case `x`; known cases: shortest paths, "),
        (
            &["deadlock-ring", "--case", RING, "--set", "routing.kind=up-down"],
            "`routing.roots` is missing",
        ),
        (
            &["deadlock-ring", "--case", RING, "--set", "routing.forbidden=s1 > s3 > s4"],
            "`routing.forbidden` is",
        ),
        (
            &["deadlock-ring", "--case", RING, "--set", "topology.hosts=[\"h1\"]"],
            "known nodes; `h2` is unknown",
        ),
        (
            &["deadlock-ring", "--case", RING, "--set", "link=[{between=\"h1 - s1\",down=true}]"],
            "h1 has 0 links",
        ),
    ];
    for (arguments, expected) in tables {
        let (text, code) = message(arguments);
        assert_eq!((code, text.lines().count()), (Some(2), 1), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}
