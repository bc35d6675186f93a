//! Flows that wait for others, and collectives: literal times, and errors with their lines.

use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::measure::Results;
use feroce_pfc_tools::fabric::scenario::{Case, Scenario};
use feroce_pfc_tools::fabric::time::Time;

/// 1000 bytes are 100 ns at 80 Gb/s; a link has 1 us of delay. No headers, and acknowledgements
/// that take no time worth speaking of: a message of n KB takes n * 100 ns + 100 ns + 2 us through
/// the switch.
const NETWORK: &str = "\
title = \"test\"
duration = \"10ms\"
[topology]
kind = \"single\"
hosts = 8
rate = \"80Gb/s\"
[packet]
payload = 1000
headers = 0
gap = 0
control = 1
";

fn case(traffic: &str) -> Case {
    let text = format!("{NETWORK}{traffic}");
    let mut scenario = Scenario::parse("x.toml", &text, &[], None).unwrap();
    scenario.cases.remove(0)
}

fn run(traffic: &str) -> Results {
    let mut fabric = Fabric::new(&case(traffic).config(1, false).unwrap()).unwrap();
    while !fabric.run(1 << 20) {}
    fabric.results()
}

fn refusal(traffic: &str) -> String {
    let text = format!("{NETWORK}{traffic}");
    Scenario::parse("x.toml", &text, &[], None).expect_err(traffic).to_string()
}

/// A message of `kilobytes` between two hosts.
fn flow(name: &str, from: &str, to: &str, more: &str) -> String {
    format!(
        "[[traffic]]\nname = \"{name}\"\nfrom = \"{from}\"\nto = \"{to}\"\nmessage = \"100KB\"\n\
         messages = 1\n{more}\n"
    )
}

fn started(results: &Results, group: u32) -> Vec<Option<Time>> {
    let own = results.flows.iter().filter(|flow| flow.group == group);
    own.map(|flow| flow.started).collect()
}

fn ended(results: &Results, group: u32) -> Time {
    let own = results.flows.iter().filter(|flow| flow.group == group);
    own.filter_map(|flow| flow.ended).max().unwrap()
}

/// Completion of the ranks of all groups, by host, in nanoseconds.
fn ranks(results: &Results) -> Vec<u64> {
    let ranks = results.ranks(None).into_iter();
    ranks.map(|rank| rank.completion.unwrap().0 / 1000).collect()
}

#[test]
fn a_group_starts_when_the_slowest_of_others_has_ended_and_after_its_delay() {
    let traffic = [
        flow("last", "h5..h6", "h6", "after = [\"a\", \"b\"]\ndelay = \"3us\"\nstagger = \"1us\""),
        flow("a", "h1", "h2", ""),
        flow("b", "h3..h4", "h2", "start = \"1us\""),
    ];
    let traffic = traffic.concat().replace("\"h5..h6\"", "[\"h5\", \"h7\"]");
    let results = run(&traffic);
    let due = ended(&results, 1).max(ended(&results, 2)) + Time::from_micros(3);
    assert_eq!(started(&results, 0), [Some(due), Some(due + Time::from_micros(1))]);
    assert_eq!(results.unfinished(None), 0);
    // The completion of a group counts from its own start.
    let (slowest, took) = results.collective(Some(0)).unwrap();
    let arrived = results.flows.iter().filter_map(|flow| flow.arrived).max().unwrap();
    assert_eq!((slowest, took), (5, arrived - due));
}

/// A chain of groups in any order of the file.
#[test]
fn groups_wait_for_groups_that_wait() {
    let traffic = [
        flow("c", "h5", "h6", "after = \"b\""),
        flow("b", "h3", "h4", "after = \"a\""),
        flow("a", "h1", "h2", ""),
    ];
    let results = run(&traffic.concat());
    assert_eq!(started(&results, 1), [Some(ended(&results, 2))]);
    assert_eq!(started(&results, 0), [Some(ended(&results, 1))]);
}

/// A flow that does not end keeps others from starting: these are unfinished too.
#[test]
fn flows_that_never_start_are_unfinished() {
    let long = flow("a", "h1", "h2", "").replace("100KB", "1GB");
    let results = run(&[long, flow("b", "h3..h4", "h5", "after = \"a\"")].concat());
    assert_eq!(started(&results, 1), [None, None]);
    assert_eq!((results.unfinished(None), results.unfinished(Some(1))), (3, 2));
    assert_eq!(results.collective(Some(1)), None);
    assert_eq!(results.ended, Time::from_millis(10));
}

fn collective(kind: &str, ranks: &str, more: &str) -> String {
    format!(
        "[[traffic]]\nname = \"all\"\nkind = \"{kind}\"\nranks = \"{ranks}\"\nsize = \"80KB\"\n\
         {more}\n"
    )
}

/// Six steps of 20 KB on four ranks: 20 packets, one more to pass the switch, and two links.
#[test]
fn a_ring_takes_the_closed_form() {
    let results = run(&collective("ring-all-reduce", "h1..h4", ""));
    let step = 20 * 100 + 100 + 2000;
    for took in ranks(&results) {
        // The acknowledgements of 1 byte each.
        assert!(took >= 6 * step && took < 6 * step + 6, "{took}");
    }
    assert_eq!(results.flows.len(), 4);
    assert!(results.flows.iter().all(|flow| flow.size == Some(120_000)), "2 (N - 1) / N * 80 KB");
    assert!(results.flows.iter().all(|flow| flow.slowdown().is_none()), "its messages wait");
    // The reduction of the first three messages.
    let results = run(&collective("ring-all-reduce", "h1..h4", "compute = \"5us\""));
    for took in ranks(&results) {
        assert!(took >= 6 * step + 15_000 && took < 6 * step + 15_006, "{took}");
    }
}

#[test]
fn a_slow_rank_delays_the_others_of_a_ring() {
    let slow = "[[link]]\nbetween = \"h3 - s1\"\nrate = \"8Gb/s\"\n";
    let results = run(&format!("{}{slow}", collective("ring-all-reduce", "h1..h4", "")));
    // The rank after the slow one waits for six of its messages, the others for at least four.
    let all = ranks(&results);
    assert!(all[3] > 6 * 20_000 && all.iter().all(|&took| took > 4 * 20_000), "{all:?}");
    assert_eq!(results.collective(None).unwrap().0, 3);
}

/// Chunks of 10 KB from four leaves through two ranks to the root and back: the root receives from
/// two children, so its link is the bottleneck on the way up.
#[test]
fn a_tree_reduces_and_broadcasts() {
    let results = run(&collective("tree-all-reduce", "h1..h7", "chunks = 8\ncompute = \"7us\""));
    let all = ranks(&results);
    // The root has worked on all chunks before the last rank has the last one.
    assert!(all[0] < all[1] && all[1] < all[6], "{all:?}");
    // 80 KB from each of two children pass the root's link, and 7 us of work happen twice.
    assert!(all[0] > 16_000 + 14_000 + 2 * 2000, "{all:?}");
    assert_eq!((results.flows.len(), results.unfinished(None)), (12, 0));
    let one = run(&collective("tree-all-reduce", "h1..h2", "chunks = 1"));
    let way = 80 * 100 + 100 + 2000;
    assert_eq!(ranks(&one), [way, 2 * way]);
}

/// With one destination at a time every link carries one flow: rounds of 10 KB.
#[test]
fn an_all_to_all_sends_to_some_ranks_at_a_time() {
    let results = run(&collective("all-to-all", "h1..h8", "at_once = 1"));
    let first = |distance: usize| {
        let flow =
            &results.flows.iter().find(|flow| flow.from == 0 && flow.to as usize == distance);
        flow.unwrap().started.unwrap()
    };
    assert_eq!(first(1), Time::ZERO);
    // A message ends with its acknowledgement, which takes two more links.
    assert!(first(2) > Time::from_nanos(10 * 100 + 100 + 4000), "{}", first(2));
    assert!(first(2) < Time::from_nanos(10 * 100 + 100 + 4010), "{}", first(2));
    assert_eq!(results.flows.len(), 56);
    let all = run(&collective("all-to-all", "h1..h8", ""));
    assert!(all.flows.iter().all(|flow| flow.started == Some(Time::ZERO)));
    assert!(ranks(&all).iter().max() < ranks(&results).iter().max());
}

/// Four micro-batches of 80 KB on three ranks: each rank works 50 us on one, more than the 10.1 us
/// of a message.
#[test]
fn a_pipeline_works_on_micro_batches() {
    let text = collective("pipeline", "h1..h3", "chunks = 4\ncompute = \"50us\"");
    let way = 80 * 100 + 100 + 2000;
    assert_eq!(ranks(&run(&text)), [200_000, 250_000 + way, 300_000 + 2 * way]);
    let text = format!("{text}backward = \"100us\"\n");
    let last = 300_000 + 2 * way + 400_000;
    assert_eq!(ranks(&run(&text)), [last + 200_000 + 2 * way, last + 100_000 + way, last]);
}

#[test]
fn a_collective_waits_for_other_traffic() {
    for kind in ["ring-all-reduce", "tree-all-reduce", "all-to-all", "pipeline"] {
        let more = "after = \"a\"\ndelay = \"2us\"";
        let traffic = [collective(kind, "h1..h4", more), flow("a", "h5", "h6", "")].concat();
        let results = run(&traffic);
        let due = ended(&results, 1) + Time::from_micros(2);
        assert_eq!(results.unfinished(None), 0, "{kind}");
        let first = started(&results, 0).into_iter().flatten().min();
        assert_eq!(first, Some(due), "{kind}");
        let alone = run(&collective(kind, "h1..h4", ""));
        let took = |results: &Results| results.collective(Some(0)).unwrap().1;
        // Flows of a host take turns; which is first differs.
        let difference = took(&results).0.abs_diff(took(&alone).0);
        assert!(difference < 500_000, "{kind}: {} {}", took(&results), took(&alone));
    }
}

/// A lost packet is sent again, also at the end of a message, after which nothing follows.
#[test]
fn collectives_survive_losses() {
    for kind in ["ring-all-reduce", "tree-all-reduce", "all-to-all", "pipeline"] {
        for recovery in ["go-back-n", "go-back-0", "selective-repeat"] {
            // With go-back-0 the 80 packets of a micro-batch must pass two links without a loss.
            let every = if kind == "pipeline" { 197 } else { 37 };
            let losses = format!(
                "[[link]]\nbetween = \"* - s1\"\nloss_every = {every}\n[host]\nrecovery = \
                 \"{recovery}\"\ntimeout = \"50us\"\n"
            );
            let results = run(&[collective(kind, "h1..h4", ""), losses].concat());
            assert_eq!(results.unfinished(None), 0, "{kind} {recovery}");
            let lost: u64 = results.flows.iter().map(|flow| flow.sender.retransmitted).sum();
            assert!(lost > 0, "{kind} {recovery}");
        }
    }
}

#[test]
fn wrong_dependencies_are_refused_with_their_lines() {
    let rows = [
        (
            [flow("a", "h1", "h2", "after = \"x\""), flow("b", "h1", "h2", "")].concat(),
            "x.toml:18: `traffic.0.after` is `x`, expected the names of other traffic: a, b",
        ),
        (
            flow("a", "h1", "h2", "after = \"a\""),
            "x.toml:18: `traffic.0.after` leads back to itself: a waits for a",
        ),
        (
            [
                flow("a", "h1", "h2", "after = \"c\""),
                flow("b", "h1", "h2", "after = \"a\""),
                flow("c", "h1", "h2", "after = [\"b\"]"),
            ]
            .concat(),
            "x.toml:18: `traffic.0.after` leads back to itself: a waits for c waits for b waits \
             for a",
        ),
        (
            [
                flow("a", "h1", "h2", ""),
                flow("b", "h1", "h2", "after = [\"a\", \"c\"]"),
                flow("c", "h1", "h2", "after = [\"b\"]"),
            ]
            .concat(),
            "x.toml:25: `traffic.1.after` leads back to itself: b waits for c waits for b",
        ),
        (
            [flow("a", "h1", "h2", "").replace("messages = 1", ""), flow("b", "h1", "h2", "")]
                .concat()
                .replace("name = \"b\"", "name = \"b\"\nafter = \"a\""),
            "x.toml:19: `traffic.1`: b waits for a flow without end: `messages` is missing",
        ),
        (
            flow("a", "h1", "h2", "delay = \"1us\""),
            "x.toml:18: `traffic.0.delay` has no effect without `after`",
        ),
        (
            [flow("a", "h1", "h2", "after = \"b\"\nstart = \"1us\""), flow("b", "h1", "h2", "")]
                .concat(),
            "x.toml:19: `traffic.0.start` has no effect with `after`: use `delay`",
        ),
    ];
    refused(&rows);
}

fn refused(rows: &[(String, &str)]) {
    for (traffic, due) in rows {
        let message = refusal(traffic);
        assert!(message.starts_with(due), "{message}\nnot {due}");
    }
}

#[test]
fn wrong_collectives_are_refused_with_their_lines() {
    let rows = [
        (
            flow("a", "h1", "h2", "ranks = \"h1..h2\""),
            "x.toml:18: `traffic.0.ranks` has no effect without the kind of a collective",
        ),
        (
            collective("all-to-all", "h1", ""),
            "x.toml:15: `traffic.0.ranks` is `h1`, expected at least two hosts, each of them once",
        ),
        (
            collective("all-to-all", "h1..h8", "at_once = 0"),
            "x.toml:17: `traffic.0.at_once` is `0`, expected at least one",
        ),
        (
            collective("all-to-all", "h1..h8", "from = \"h1\""),
            "x.toml:17: `traffic.0.from` has no effect with kind = \"all-to-all\": see `ranks` and \
             `size`",
        ),
        (
            collective("ring-all-reduce", "h1..h8", "chunks = 3"),
            "x.toml:17: `traffic.0.chunks` has no effect with kind = \"ring-all-reduce\"",
        ),
        (
            collective("pipeline", "h1..h8", "").replace("80KB", "0"),
            "x.toml:16: `traffic.0.size` is `0`, expected the bytes of a rank, such as \"64MB\"",
        ),
        (
            collective("pipeline", "h1..h8", "chunks = 2000000"),
            "x.toml:12: `traffic.0`: all: more than 1048576 flows and messages that wait",
        ),
        (
            format!("{}[host]\nengine = \"h1\"\n", collective("pipeline", "h1..h8", "")),
            "x.toml:14: `traffic.0.kind` is not for engine hosts, whose messages wait for nothing",
        ),
    ];
    refused(&rows);
}
