//! Invalid scenario files: errors with file, line, key and expected value, quickly and without a
//! panic.

use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::scenario::Scenario;
use feroce_pfc_tools::scenarios;
use rand_xoshiro::Xoshiro128PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const SMALL: &str = "\
title = \"two to one\"
duration = \"2ms\"
[topology]
kind = \"single\"
hosts = 3
[[traffic]]
name = \"incast\"
from = \"h1..h2\"
to = \"h3\"
[[gate]]
name = \"wire\"
measure = \"wire\"
of = \"s1->h3\"
at_least = 5
kind = \"regression\"
";

/// Every collective, and traffic that waits.
const WORKLOADS: &str = "\
title = \"workloads\"
duration = \"2ms\"
[topology]
kind = \"two-tier\"
hosts = 3
[[traffic]]
name = \"ring\"
kind = \"ring-all-reduce\"
ranks = \"h1..h4\"
size = \"100KB\"
compute = \"1us\"
[[traffic]]
name = \"tree\"
kind = \"tree-all-reduce\"
ranks = [\"h1\", \"h6\", \"h2\"]
size = \"100KB\"
chunks = 3
start = \"1us\"
[[traffic]]
name = \"all\"
kind = \"all-to-all\"
ranks = \"h1..h6\"
size = \"100KB\"
at_once = 2
after = [\"ring\", \"tree\"]
delay = \"3us\"
[[traffic]]
name = \"stages\"
kind = \"pipeline\"
ranks = \"h1..h3\"
size = \"10KB\"
chunks = 2
compute = \"10us\"
backward = \"20us\"
after = \"flows\"
control = \"dcqcn\"
[[traffic]]
name = \"flows\"
from = \"h1..h2\"
to = \"h3\"
messages = 2
message = \"10KB\"
stagger = \"5us\"
[[gate]]
name = \"completion\"
measure = \"collective\"
of = \"all\"
at_most = 900
kind = \"regression\"
[[gate]]
name = \"ranks\"
measure = \"rank\"
stat = \"min\"
";

fn message(from: &str, to: &str) -> String {
    let text = SMALL.replace(from, to);
    assert_ne!(text, SMALL, "{from}");
    Scenario::parse("x.toml", &text, &[], None).expect_err(to).to_string()
}

/// The text replaced, its replacement, and the expected error.
const NONSENSE: &[(&str, &str, &str)] = &[
    ("\"2ms\"", "0", "x.toml: `warmup`: the warm-up is as long as the run"),
    ("\"2ms\"", "\"2m\"", "x.toml:2: `duration` is `2m`, expected a time"),
    ("\"2ms\"", "\"-1s\"", "x.toml:2: `duration` is `-1s`, expected a time"),
    ("\"2ms\"", "\"18446744073s\"", "x.toml:2: `duration` is `18446744073s`, expected a time"),
    ("hosts = 3", "hosts = 0", "x.toml:8: `traffic.0.from` is `h1..h2`, expected hosts"),
    ("hosts = 3", "hosts = -3", "x.toml:5: `topology.hosts` is `-3`, expected an integer"),
    (
        "hosts = 3",
        "hosts = 100000",
        "x.toml:3: `topology`: 100000 links or switches; the limit is 20000",
    ),
    ("hosts = 3", "rate = 0", "x.toml:5: `topology.rate` is `0`, expected a rate from"),
    ("hosts = 3", "rate = \"1b/s\"", "x.toml:5: `topology.rate` is `1b/s`, expected a rate"),
    ("hosts = 3", "rate = \"18446744073Gb/s\"", "x.toml:5: `topology.rate` is"),
    ("hosts = 3", "hostz = 3", "x.toml:5: unknown key `topology.hostz`; known keys: "),
    ("to = \"h3\"", "to = \"h3\"\nmessage = 0", "x.toml:10: `traffic.0.message` is `0`, expected"),
    (
        "to = \"h3\"",
        "to = \"h3\"\nper_pair = 2000000000",
        "x.toml:6: `traffic.0`: incast: more than 1048576 flows",
    ),
    ("to = \"h3\"", "to = []\n", "x.toml:9: `traffic.0.to` is `[]`, expected at least one host"),
    (
        "from = \"h1..h2\"",
        "from = []\n",
        "x.toml:8: `traffic.0.from` is `[]`, expected at least one host",
    ),
    (
        "[[gate]]",
        "[[traffic]]\nname = \"incast\"\nfrom = \"h1\"\nto = \"h2\"\n[[gate]]",
        "x.toml:11: `traffic.name` is `incast`, expected a unique name",
    ),
    ("at_least = 5", "at_least = nan", "x.toml:14: `gate.0.at_least` is `nan`, expected a number"),
    (
        "at_least = 5",
        "published = inf",
        "x.toml:14: `gate.0.published` is `inf`, expected a number",
    ),
    (
        "[topology]",
        "[measure]\nsample = \"1ns\"\n[topology]",
        "x.toml:4: `measure.sample` is `1ns`, expected at least a millionth of the duration",
    ),
    (
        "[[gate]]",
        "[[case]]\nname = \"a\"\nvalues = [1, 2]\n[[gate]]",
        "x.toml:11: `case.0.name` is `a`, expected a unique case name",
    ),
    (
        "[[gate]]",
        "[[figure]]\ntitle = \"a\"\nshows = \"queue\"\nfrom = \"1ms\"\n[[gate]]",
        "x.toml:10: `figure.0.to` is missing, expected `from` and a later `to`, or neither",
    ),
    (
        "[topology]",
        "[packet]\npayload = 1\nheaders = 0\ngap = 0\n[topology]\nrate = \"100000Gb/s\"",
        "`topology.rate`: a packet of 1 bytes takes no time",
    ),
];

#[test]
fn invalid_values_are_reported_with_their_place() {
    for (from, to, expected) in NONSENSE {
        let message = message(from, to);
        assert!(message.contains(expected), "{message}\nnot {expected}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

/// Dimensions that exceed the memory.
#[test]
fn oversized_networks_are_refused_quickly() {
    for measures in [
        "kind = \"fat-tree\"\nports = 100000",
        "kind = \"two-tier\"\nleaves = 100000\nspines = 100000\nhosts = 100000",
        "kind = \"clos\"\npods = 100000\ntors = 100000\nhosts = 100000\nspines = 100000",
        "kind = \"clos\"\npods = 100000\ntors = 100000\nhosts = 0\nleaves = 0",
        "kind = \"dumbbell\"\nleft = 100000\nright = 100000",
        "kind = \"parking-lot\"\nhosts = [10000, 10000, 10000]",
    ] {
        let message = message("kind = \"single\"\nhosts = 3", measures);
        assert!(message.contains(" links or switches; the limit is 20000"), "{message}");
    }
    let message = message(
        "kind = \"single\"\nhosts = 3",
        "kind = \"explicit\"\nhosts = [\"h1\", \"h2\", \"h1\"]\nswitches = [\"s1\"]\nlinks = []",
    );
    assert!(message.contains("expected unique names; `h1` occurs twice"), "{message}");
}

/// `a.a.a. ... = 1`, deeper than any key.
#[test]
fn deep_keys_do_not_overflow_the_stack() {
    let deep = vec!["a"; 20_000].join(".");
    message("[topology]", &format!("[topology]\n{deep} = 1"));
    let nested = format!("a = {}1{}", "[".repeat(20_000), "]".repeat(20_000));
    message("[topology]", &format!("[topology]\n{nested}"));
    message("[[gate]]", &format!("[[case]]\nname = \"a\"\nset = {{ \"{deep}\" = 1 }}\n[[gate]]"));
}

/// Replacements for a number or a word.
const STRANGE: [&str; 14] = [
    "0",
    "-1",
    "1",
    "7",
    "18446744073709551615",
    "99999999999999999999999",
    "1e400",
    "nan",
    "\"\"",
    "[]",
    "{}",
    "\"h1\"",
    "\"1000000s\"",
    "true",
];
const UNITS: [&str; 8] = ["ns", "us", "ms", "s", "Gb/s", "KB", "%", ""];

/// `text` with one to three errors.
fn mutated(text: &str, random: &mut Xoshiro128PlusPlus) -> String {
    let mut below = |limit: usize| random.next_u32() as usize % limit.max(1);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..=below(3) {
        let (at, other) = (below(lines.len()), below(lines.len()));
        match below(7) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[other].clone()),
            2 => lines.swap(at, other),
            3 | 4 => {
                if let Some((key, _)) = lines[at].split_once('=') {
                    lines[at] = format!("{key}= {}", STRANGE[below(STRANGE.len())]);
                }
            }
            5 => {
                for unit in UNITS {
                    if unit.len() > 1 && lines[at].contains(unit) {
                        lines[at] = lines[at].replacen(unit, UNITS[below(UNITS.len())], 1);
                        break;
                    }
                }
            }
            _ => {
                let mut letters: Vec<char> = lines[at].chars().collect();
                let place = below(letters.len() + 1);
                let letter = char::from(u8::try_from(32 + below(95)).expect("a letter"));
                letters.insert(place, letter);
                lines[at] = letters.into_iter().collect();
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.join("\n")
}

/// Mutations of the built-in scenarios: either an error that names the file, or the scenario runs.
#[test]
fn no_mutation_panics() {
    let (mut refused, mut taken) = (0, 0);
    let built_in = scenarios::ALL.iter().map(|built_in| built_in.text);
    let small: Vec<&str> = built_in.chain([WORKLOADS; 4]).collect();
    for seed in 0..400 {
        let mut random = Xoshiro128PlusPlus::seed_from_u64(seed);
        let text = mutated(small[random.next_u32() as usize % small.len()], &mut random);
        println!("seed {seed}"); // Shown if it fails.
        match Scenario::parse("x.toml", &text, &[], None) {
            Ok(scenario) => {
                taken += 1;
                let case = &scenario.cases[0];
                if !case.has_engines() {
                    let config = case.config(case.seeds[0], false).expect("a checked scenario");
                    let mut fabric = Fabric::new(&config).expect("a checked scenario");
                    fabric.run(10_000);
                }
            }
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                assert!(error.contains("x.toml"), "{error}\n{text}");
            }
        }
    }
    assert!(refused > 100 && taken > 50, "{refused} refused, {taken} taken");
}
