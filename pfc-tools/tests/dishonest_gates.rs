//! Gates that a referee would not accept: the parser refuses each kind of them.

use feroce_pfc_tools::fabric::scenario::Scenario;

/// A scenario with two cases of two gates. `GATE` stands for more keys of the last gate.
const SCENARIO: &str = "\
title = \"two to one\"
source = \"Zhu et al., SIGCOMM 2015, Fig. 1\"
reproduces = \"Fig. 1\"
duration = \"2ms\"
lossless = LOSSLESS
[topology]
kind = \"single\"
hosts = 3
[[traffic]]
name = \"incast\"
from = \"h1..h2\"
to = \"h3\"
message = \"10KB\"
messages = 1
[[case]]
name = \"one\"
[[case.gate]]
name = \"g\"
kind = \"paper\"
measure = \"queue\"
of = \"s1->h3\"
published = 30
within = \"10%\"
[[case]]
name = \"two {}\"
values = [\"a\", \"b\"]
VARIANT
[[case.gate]]
name = \"g\"
GATE
";

fn parse(gate: &str) -> Result<Scenario, String> {
    let (lossless, gate) = match gate.strip_prefix("LOSSY ") {
        Some(gate) => ("false", gate),
        None => ("true", gate),
    };
    let (variant, gate) = match gate.strip_prefix("VARIANT ") {
        Some(gate) => ("variant = \"longer links\"", gate),
        None => ("", gate),
    };
    let text = SCENARIO.replace("LOSSLESS", lossless).replace("VARIANT", variant);
    let text = text.replace("GATE", &gate.replace("; ", "\n"));
    Scenario::parse("x.toml", &text, &[], None).map_err(|error| error.to_string())
}

const QUEUE: &str = "measure = \"queue\"; of = \"s1->h3\"; ";

/// Gates, and why each is refused.
const REFUSED: &[(&str, &str)] = &[
    // It excludes its own published value.
    ("QUEUE kind = \"paper\"; published = 19.3; at_most = 6.9", "which the gate itself excludes"),
    (
        "QUEUE kind = \"paper\"; published = 6.3; at_least = 2; at_most = 5",
        "`case.1.gate.0.published` is 6.3, which the gate itself excludes",
    ),
    ("QUEUE kind = \"regression\"; published = 9; at_most = 5", "which the gate itself excludes"),
    ("QUEUE kind = \"simulator\"; ns3 = 9; at_most = 5", "`case.1.gate.0.ns3` is 9, which the"),
    // One of its cases does.
    ("QUEUE kind = \"paper\"; published = [4, 6]; at_most = 5", "is 6, which the gate itself"),
    // It cannot fail.
    ("measure = \"slowdown\"; kind = \"regression\"; at_least = 1", "always from 1 to inf"),
    ("QUEUE kind = \"regression\"; at_least = 0", "`case.1.gate.0.at_least` cannot fail"),
    ("QUEUE kind = \"regression\"; at_least = [5, 0]", "`case.1.gate.0.at_least` cannot fail"),
    ("QUEUE kind = \"regression\"; at_most = 12000", "always from 0 to 12000"),
    ("measure = \"alpha\"; kind = \"regression\"; at_most = 1", "always from 0 to 1"),
    ("measure = \"deadlocks\"; kind = \"invariant\"; at_most = 1", "always from 0 to 1"),
    ("measure = \"goodput\"; kind = \"regression\"; at_most = 40", "always from 0 to 40"),
    (
        "measure = \"queue-ks\"; of = \"s1->h3\"; curve = \"fig19-cdf-dcqcn\"; \
         kind = \"paper\"; at_most = 1",
        "always from 0 to 1",
    ),
    ("QUEUE kind = \"paper\"; published = 5; within = \"100%\"", "cannot fail"),
    ("QUEUE kind = \"invariant\"; near = \"one\"; within = \"100%\"", "cannot fail"),
    ("QUEUE kind = \"paper\"", "`case.1.gate.0.kind` has no effect: without a bound nothing fails"),
    // It holds for no value.
    ("QUEUE kind = \"regression\"; at_least = 5; at_most = 4", "no value meets the gate"),
    // It counts the loss check a second time.
    ("measure = \"drops\"; kind = \"invariant\"; at_most = 0", "repeats the loss check"),
    // A published value without its source, or that is Feroce's own.
    (
        "QUEUE kind = \"paper\"; published = 5; within = \"10%\"; source = \"measurements\"",
        "`case.1.gate.0.source` does not name the work, with its year",
    ),
    (
        "QUEUE kind = \"paper\"; published = 5; within = \"10%\"; \
         source = \"mean of Feroce's hosts, 2026\"",
        "is Feroce's own: `published` is for the numbers of others",
    ),
    // A published value that nothing judges.
    ("QUEUE published = 5", "`case.1.gate.0.published` has no bound"),
    // A bound that does not say where it comes from; a kind without the number that it needs.
    ("QUEUE at_least = 5", "`case.1.gate.0.kind` is missing"),
    ("QUEUE kind = \"paper\"; at_least = 5", "compares with somebody else's number"),
    ("QUEUE kind = \"model\"; at_least = 5", "compares with somebody else's number"),
    ("QUEUE kind = \"simulator\"; at_least = 5", "compares with a simulator's number"),
    ("QUEUE kind = \"simulator\"; published = 5; within = \"10%\"", "gate.0.ns3` is missing"),
    // A changed experiment reproduces nothing.
    ("VARIANT QUEUE kind = \"paper\"; published = 5; within = \"10%\"", "is not for a variant"),
    // It refers to itself, or to what is not there.
    ("QUEUE kind = \"invariant\"; near = \"two {}\"; within = \"10%\"", "is no earlier case"),
    ("QUEUE kind = \"invariant\"; near = \"three\"; within = \"10%\"", "is no earlier case"),
    // The published values have the other order.
    (
        "QUEUE kind = \"paper\"; published = 29; within = \"10%\"; above = \"one\"",
        "the published values are in the other order than in `one`",
    ),
    // An explanation without a bound, that covers every value, or that covers the gate.
    (
        "QUEUE kind = \"paper\"; published = 9; within = \"10%\"; explained = \"noise\"",
        "`case.1.gate.0.explained` is `noise`, expected tables",
    ),
    (
        "QUEUE kind = \"paper\"; published = 9; within = \"10%\"; \
         explained = [{ of = \"a\", why = \"noise\" }]",
        "`case.1.gate.0.explained.0.at_least` is missing",
    ),
    (
        "QUEUE kind = \"paper\"; published = 9; within = \"10%\"; \
         explained = [{ why = \"noise\", at_least = 5, at_most = 6 }]",
        "`case.1.gate.0.explained.0.of` is missing, expected one of the case's values: a, b",
    ),
    (
        "QUEUE kind = \"paper\"; published = 9; within = \"10%\"; \
         explained = [{ of = \"c\", why = \"noise\", at_least = 5, at_most = 6 }]",
        "expected one of the case's values: a, b",
    ),
    (
        "QUEUE kind = \"paper\"; published = 9; within = \"10%\"; \
         explained = [{ of = \"a\", why = \"noise\", at_least = 5, at_most = 8.5 }]",
        "overlap those of the gate",
    ),
    (
        "QUEUE kind = \"paper\"; published = 9; within = \"10%\"; \
         explained = [{ of = \"a\", why = \"noise\", at_least = 0, at_most = 1000 }]",
        "overlap those of the gate",
    ),
    ("QUEUE explained = [{ of = \"a\", why = \"noise\", at_least = 5, at_most = 6 }]", "no effect"),
];

#[test]
fn dishonest_gates_are_refused() {
    for (gate, expected) in REFUSED {
        let error = parse(&gate.replace("QUEUE ", QUEUE)).expect_err(gate);
        assert!(error.starts_with("x.toml") && error.contains(expected), "{gate}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// The honest forms of the same gates.
#[test]
fn honest_gates_are_accepted() {
    for gate in [
        "QUEUE kind = \"paper\"; published = 19.3; at_most = 19.3",
        "QUEUE kind = \"paper\"; published = [4, 6]; at_most = [5, 7]",
        "QUEUE kind = \"paper\"; published = 31; within = \"10%\"; above = \"one\"",
        "QUEUE kind = \"regression\"; at_least = [5, \"-\"]; at_most = 7",
        "QUEUE kind = \"simulator\"; published = 9; at_least = 5; at_most = 9; ns3 = 6",
        "QUEUE kind = \"invariant\"; near = \"one\"; within = \"10%\"",
        "QUEUE ns3 = 5",
        "VARIANT QUEUE published = 5",
        "VARIANT QUEUE kind = \"regression\"; published = 5; at_most = 5",
        "LOSSY measure = \"drops\"; kind = \"regression\"; at_most = 0",
        "measure = \"slowdown\"; kind = \"regression\"; at_least = 1.1; at_most = 3",
        "measure = \"deadlocks\"; kind = \"invariant\"; at_least = 1",
        "QUEUE kind = \"paper\"; published = 9; within = \"10%\"; \
         explained = [{ of = \"b\", why = \"noise\", at_least = 5, at_most = 6 }]",
    ] {
        parse(&gate.replace("QUEUE ", QUEUE)).unwrap_or_else(|error| panic!("{gate}: {error}"));
    }
}
