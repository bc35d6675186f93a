//! Scenario files: precise error messages, and reproducible output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use feroce_pfc_tools::fabric::scenario::{Change, Scenario};
use feroce_pfc_tools::scenarios;

const SMALL: &str = "\
title = \"two to one\"
duration = \"2ms\"
repeat = 2

[topology]
kind = \"single\"
hosts = 3

[switch]
alpha = \"1/8\"

[[traffic]]
name = \"incast\"
from = \"h1..h2\"
to = \"h3\"
control = \"dcqcn\"

[[gate]]
name = \"wire\"
measure = \"wire\"
of = \"s1->h3\"
at_least = 5
kind = \"regression\"
";

fn message(text: &str) -> String {
    Scenario::parse("x.toml", text, &[], None).expect_err("a wrong file").to_string()
}

#[test]
fn errors_name_file_line_key_and_expected_value() {
    let with = |from: &str, to: &str| message(&SMALL.replace(from, to));
    assert_eq!(
        with("\"1/8\"", "\"x\""),
        "x.toml:10: `switch.alpha` is `x`, expected a ratio of integers, such as \"1/8\""
    );
    assert_eq!(
        with("duration = \"2ms\"", "duration = 2"),
        "x.toml:2: `duration` is `2`, expected a time up to 1000000s, such as \"55us\""
    );
    assert_eq!(
        with("duration = \"2ms\"", ""),
        "x.toml:1: `duration` is missing, expected a time such as \"100ms\""
    );
    assert!(
        with("alpha =", "alfa =")
            .starts_with("x.toml:10: unknown key `switch.alfa`; known keys: alpha, buffer, ")
    );
    assert_eq!(
        with("h1..h2", "h1..h9"),
        "x.toml:14: `traffic.0.from` is `h1..h9`, expected hosts such as \"h1\" or \
         \"h1..h4\", or a list"
    );
    assert_eq!(
        with("s1->h3", "s1->h4"),
        "x.toml:21: `gate.0.of` is `s1->h4`, expected a link from one node to its neighbour, \
         such as \"s1->h3\""
    );
    assert_eq!(
        with("hosts = 3", "hosts = ").lines().next(),
        Some("x.toml:7: string values must be quoted, expected literal string")
    );
    assert_eq!(
        with("[switch]", "[congestion]\nkmin = \"many\"\n[switch]"),
        "x.toml:10: `congestion.kmin` is `many`, expected 0 to 4294967295B (as `10MB`)"
    );
    assert!(
        with("[switch]", "[congestion]\nkmini = 1\n[switch]")
            .starts_with("x.toml:10: unknown key `congestion.kmini`; known keys: set, ")
    );
    // Errors about the whole network name the place where the network is defined.
    assert_eq!(with("\"h3\"", "\"h1\""), "x.toml:12: `traffic.0`: h1 sends to itself");
    assert!(
        with("alpha =", "headroom = \"11MB\"\nalpha =")
            .starts_with("x.toml:9: `switch.buffer`: s1: ")
    );
    assert_eq!(
        with("repeat = 2", "warmup = \"2ms\""),
        "x.toml:3: `warmup`: the warm-up is as long as the run, so nothing is measured"
    );
}

/// A key without effect is an error.
#[test]
fn keys_without_effect_are_errors() {
    let with = |from: &str, to: &str| message(&SMALL.replace(from, to));
    assert_eq!(
        with("hosts = 3", "hosts = 3\ntrunk_delay = \"1us\""),
        "x.toml:8: `topology.trunk_delay` has no effect because all links are alike"
    );
    assert_eq!(
        with("control = \"dcqcn\"", "initial_rate = \"1Gb/s\""),
        "x.toml:16: `traffic.0.initial_rate` has no effect without control = \"dcqcn\""
    );
    assert_eq!(
        with("[switch]", "[measure]\npriority = 2\n[switch]"),
        "x.toml:10: `measure.priority` has no effect without queues to measure"
    );
    let poisson = "kind = \"poisson\"\nload = \"1%\"\nsizes = \"websearch\"\n";
    for key in ["message = \"1KB\"", "messages = 2", "stagger = \"1us\""] {
        let name = key.split(' ').next().expect("a key");
        assert_eq!(
            with("control = \"dcqcn\"", &format!("{poisson}{key}")),
            format!(
                "x.toml:19: `traffic.0.{name}` has no effect with kind = \"poisson\": \
                 sizes and starts are random"
            )
        );
    }
    assert_eq!(
        with("control = \"dcqcn\"", "message = 0"),
        "x.toml:16: `traffic.0.message` is `0`, expected at least one byte"
    );
}

/// A sweep continues if one of its values removes another key's effect; a key on the command line
/// must have an effect.
#[test]
fn keys_made_ineffective_by_the_command_line_are_accepted() {
    let text =
        SMALL.replace("control = \"dcqcn\"", "control = \"dcqcn\"\ninitial_rate = \"1Gb/s\"");
    let change = |key: &str, value: &str| Change { key: key.to_owned(), value: value.to_owned() };
    let none = change("traffic.0.control", "none");
    let parse = |text: &str, changes: &[Change]| Scenario::parse("x.toml", text, changes, None);
    parse(&text, std::slice::from_ref(&none)).expect("a scenario");
    let given = [none, change("traffic.0.initial_rate", "2Gb/s")];
    let message = parse(&text, &given).expect_err("no effect").to_string();
    assert!(
        message.starts_with(
            "--set traffic.0.initial_rate=2Gb/s: `traffic.0.initial_rate` has no effect"
        ),
        "{message}"
    );
}

/// Packet numbers have 32 bits.
#[test]
fn flows_of_2_to_the_32_packets_are_refused() {
    let folder = Folder::new("sizes");
    let file = folder.path("huge.toml");
    fs::write(folder.path("sizes.txt"), "0 0 5000000000000 100").expect("a file");
    let poisson = "kind = \"poisson\"\nload = \"1%\"\nsizes = \"sizes.txt\"\nname = \"incast\"";
    fs::write(&file, SMALL.replace("name = \"incast\"", poisson)).expect("a file");
    let output = fabric(&["run", &file]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), message.lines().count()), (Some(1), 1), "{message}");
    assert!(
        message.contains("`traffic.0.sizes` is `sizes.txt`, expected flows of less than 2^32"),
        "{message}"
    );
}

/// The priority of a gate's queue comes from `[measure]`.
#[test]
fn gates_use_the_measured_priority() {
    let queue = SMALL.replace("measure = \"wire\"", "measure = \"queue\"");
    let longest = |text: &str| {
        let text = text.replace("at_least = 5", "at_least = 5\nstat = \"max\"");
        let scenario = Scenario::parse("x.toml", &text, &[], None).expect("a scenario");
        let ran = feroce_pfc_tools::run::run(&scenario.cases[0], false).expect("a run");
        ran.values[0].expect("a queue")
    };
    assert!(longest(&queue) > 10.0);
    let other = queue.replace("[switch]", "[measure]\npriority = 5\n[switch]");
    assert!(longest(&other) < 0.001, "no frame of that priority is sent");
}

/// Values that are too large are errors and cause no panic.
#[test]
fn huge_values_are_refused() {
    let with = |from: &str, to: &str| message(&SMALL.replace(from, to));
    let huge = "18446744073709551615";
    for key in ["guaranteed", "headroom", "buffer", "threshold", "resume_offset"] {
        let message = with("[switch]", &format!("[switch]\n{key} = \"{huge}B\""));
        assert!(message.starts_with(&format!("x.toml:10: `switch.{key}` is")), "{message}");
    }
    for key in ["guaranteed", "headroom"] {
        let message = with("[switch]", &format!("[switch]\n{key} = \"1099511627776B\""));
        assert!(message.contains("3 ports need"), "{message}");
    }
    let message = |key: &str| with("control = \"dcqcn\"", key);
    assert!(
        message("message = \"1099511627776B\"\nmessages = 2000000000").contains("2^32 packets")
    );
    assert!(with("[switch]", "[packet]\npayload = 2000000000\n[switch]").contains("1048576"));
    let slow = with("hosts = 3", "hosts = 3\ndelay = \"200000s\"\nrate = \"10000Gb/s\"");
    assert!(slow.contains("bytes for headroom"), "{slow}");
}

#[test]
fn command_line_values_override_and_are_named_in_errors() {
    let change = |key: &str, value: &str| {
        let changes = [Change { key: key.to_owned(), value: value.to_owned() }];
        Scenario::parse("x.toml", SMALL, &changes, Some(7))
    };
    let scenario = change("traffic.0.from", "h1").expect("fine");
    assert_eq!(scenario.cases[0].seeds, [7, 8]);
    assert_eq!(scenario.cases[0].config(7, false).expect("fine").flows.len(), 1);
    let error = change("switch.alpha", "much").expect_err("no ratio").to_string();
    assert_eq!(
        error,
        "--set switch.alpha=much: `switch.alpha` is `much`, expected a ratio of integers, such as \
         \"1/8\""
    );
    let error = change("traffic.3.from", "h1").expect_err("no such traffic").to_string();
    assert_eq!(
        error,
        "--set traffic.3.from=h1: `traffic.3.from` is `h1`, expected an index below 1 instead \
         of `3`"
    );
}

#[test]
fn one_case_for_each_value() {
    let text = format!(
        "{SMALL}\n[[case]]\nname = \"K = {{}}\"\nvalues = [1, 2]\n\
         set = {{ \"traffic.0.senders\" = \"{{}}\" }}\n\
         [[case.gate]]\nname = \"dropped\"\nmeasure = \"drops\"\nns3 = [5, 6]\n"
    );
    let scenario = Scenario::parse("x.toml", &text, &[], None).expect("fine");
    let names: Vec<&str> = scenario.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, ["K = 1", "K = 2"]);
    let flows = |case: usize| scenario.cases[case].config(1, false).expect("fine").flows.len();
    assert_eq!((flows(0), flows(1)), (1, 2));
    assert_eq!(scenario.cases[1].gates.len(), 2);
    // The command line overrides a case.
    let changes = [Change { key: "traffic.0.senders".to_owned(), value: "2".to_owned() }];
    let scenario = Scenario::parse("x.toml", &text, &changes, None).expect("fine");
    assert_eq!(scenario.cases[0].config(1, false).expect("fine").flows.len(), 2);
}

#[test]
fn every_scenario_file_is_built_in_and_valid() {
    let files = shipped("pfc-tools/scenarios");
    let name = |path: &PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let mut known: Vec<&str> = scenarios::ALL.iter().map(|built_in| built_in.name).collect();
    known.sort_unstable();
    let mut names: Vec<String> = files.iter().map(name).collect();
    names.sort();
    assert_eq!(names, known);
    for built_in in scenarios::ALL {
        built_in.parse(&[], None).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The scenario files of a folder of the repository, without gates files.
fn shipped(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_scenario = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.ends_with(".toml") && !name.ends_with(".gates.toml")
    };
    let mut paths: Vec<PathBuf> = paths.filter(is_scenario).collect();
    paths.sort();
    paths
}

/// A question is short: a scenario file has at most 40 lines, comments, blank lines and cases
/// included. Gates and figures are beside it.
#[test]
fn shipped_scenarios_are_short() {
    let hpcc = shipped("docs/reproduction/hpcc-flows");
    assert_eq!(hpcc.len(), 1);
    for path in shipped("pfc-tools/scenarios").into_iter().chain(hpcc) {
        let text = fs::read_to_string(&path).expect("a scenario");
        assert!(text.lines().count() <= 40, "{}: {} lines", path.display(), text.lines().count());
        assert!(!text.contains("gate") && !text.contains("[[figure]]"), "{}", path.display());
        assert!(path.with_extension("gates.toml").exists(), "{}", path.display());
        // Without its gates it is still a scenario.
        let name = path.display().to_string();
        let alone = Scenario::parse(&name, &text, &[], None);
        alone.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Gates beside a scenario are found by name, and errors name their file and line.
#[test]
fn gates_are_found_beside_the_scenario() {
    let folder = Folder::new("beside");
    let (file, beside) = (folder.path("small.toml"), folder.path("small.gates.toml"));
    let (network, gate) = SMALL.split_once("[[gate]]").expect("a gate");
    let cases = "[[case]]\nname = \"K = {}\"\nvalues = [1, 2]\n";
    fs::write(&file, format!("{network}{cases}")).expect("a file");
    let printed = || String::from_utf8_lossy(&fabric(&["run", &file]).stdout).into_owned();
    let alone = printed();
    assert!(!alone.contains("wire") && alone.contains("Gb/s, mean goodput of "), "{alone}");
    let gates = format!("notes = \"n\"\n[[case]]\nname = \"K = {{}}\"\n[[case.gate]]{gate}");
    fs::write(&beside, &gates).expect("a file");
    assert_eq!(printed().matches("wire").count(), 2, "{}", printed());
    assert_eq!(fabric(&["run", &file, "--set", "gate=[]"]).status.code(), Some(0));
    let refused = |from: &str, to: &str| {
        fs::write(&beside, gates.replace(from, to)).expect("a file");
        let output = fabric(&["run", &file]);
        assert_eq!(output.status.code(), Some(1), "{to}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (from, to, due) in [
        ("at_least = 5", "at_least = \"x\"", ":8: `case.0.gate.0.at_least` is `x`, expected"),
        ("notes", "duration", ":1: unknown key `duration`; known keys: case, figure, gate, "),
        ("[[case.gate]]", "set = 1\n[[case.gate]]", ":4: unknown key `case.0.set`; known keys: "),
        ("= {}", "= 1", ":3: `case.0.name` is `K = 1`, expected a case of the scenario, once; it"),
        ("name = \"K", "nam = \"K", ":2: `case.0.name` is missing"),
        ("notes = \"n\"", "gate = 3", ":1: `gate` is `3`, expected tables [[gate]]"),
    ] {
        let error = refused(from, to);
        assert!(error.contains(&format!("{beside}{due}")), "{to}: {error}");
    }
    fs::write(&file, format!("notes = \"m\"\n{network}{cases}")).expect("a file");
    let error = refused("n", "n");
    let due = format!("{beside}:1: `notes` is also in the scenario: {file}:1");
    assert!(error.contains(&due), "{error}");
    let late = "control = \"dcqcn\"\nmessages = 1\nstagger = \"1950us\"";
    fs::write(&file, network.replace("control = \"dcqcn\"", late)).expect("a file");
    fs::remove_file(&beside).expect("the gates");
    let due = "us, mean completion of 2 flows; 2 have not ended\n";
    assert!(printed().contains(due), "{}", printed());
    std::os::unix::fs::symlink("nothing", &beside).expect("a link");
    let output = fabric(&["run", &file]);
    assert_eq!(output.status.code(), Some(1), "a link to nothing");
    assert!(String::from_utf8_lossy(&output.stderr).contains(&beside));
}

/// The examples of docs/fabric.md run, and nothing in them remains unfinished.
#[test]
fn the_examples_of_the_document_run() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fabric.md");
    let document = fs::read_to_string(document).expect("the document");
    let folder = Folder::new("examples");
    let mut examples = 0;
    for text in document.split("```toml\n").skip(1) {
        let text = text.split("```").next().expect("a block");
        if text.starts_with("# fig19.gates.toml\n") {
            let fig19 = ("fig19", scenarios::find("fig19").expect("a scenario").text);
            let gates = Some(("fig19.gates", text));
            let read = Scenario::parse_with_gates(fig19, gates, &[], None).expect("an example");
            assert_eq!(read.cases[2].gates[0].published, Some(16.0));
            continue;
        }
        let file = folder.path("example.toml");
        fs::write(&file, text).expect("a file");
        let output = fabric(&["run", &file]);
        let printed = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{printed}{error}");
        assert!(printed.contains("slowest rank") && !printed.contains("incomplete"), "{printed}");
        examples += 1;
    }
    assert!(examples > 0);
}

/// Reads each table's keys from the error message about an unknown key.
#[test]
fn every_key_is_documented() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fabric.md");
    let document = fs::read_to_string(document).expect("the document");
    let mut keys = 0;
    let mut check = |text: &str| {
        let error = message(text);
        let (place, known) =
            error.split_once("; known keys: ").unwrap_or_else(|| panic!("{error}"));
        for key in known.split(", ") {
            keys += 1;
            assert!(
                document.contains(&format!("`{key}`")) || document.contains(&format!("[{key}]")),
                "{place}: {key}"
            );
        }
    };
    for table in ["[packet]", "[pfc]", "[host]", "[measure]", "[[case]]\nname = \"a\""] {
        check(&format!("{SMALL}{table}\nnonsense = 1\n"));
    }
    check(&format!("nonsense = 1\n{SMALL}"));
    check(&SMALL.replace("[switch]", "[switch]\nnonsense = 1"));
    check(&SMALL.replace("[[gate]]", "[[gate]]\nnonsense = 1"));
    check(&format!("{SMALL}[[figure]]\ntitle = \"a\"\nshows = \"queue\"\nnonsense = 1\n"));
    check(&SMALL.replace("[switch]", "[[link]]\nnonsense = 1\nbetween = \"h1 - *\"\n[switch]"));
    for kind in [
        "flows",
        "incast\"\nsenders = 1 #",
        "poisson\"\nload = 0.1\nsizes = \"hadoop\" #",
        "pairs\"\npairs = 1\nsizes = \"hadoop\" #",
        "pipeline\"\nranks = \"h1..h2\"\nsize = 1 #",
    ] {
        let is_collective = kind.contains("ranks");
        let ends = if is_collective { "" } else { "from = \"h1..h2\"\nto = \"h3\"" };
        check(
            &SMALL
                .replace("from = \"h1..h2\"\nto = \"h3\"", ends)
                .replace("[[traffic]]", &format!("[[traffic]]\nnonsense = 1\nkind = \"{kind}\"")),
        );
    }
    let kinds = ["single", "dumbbell", "two-tier", "clos", "fat-tree"];
    for kind in kinds {
        let text = SMALL.replace("kind = \"single\"", &format!("nonsense = 1\nkind = \"{kind}\""));
        check(&text.replace("hosts = 3", if kind == "single" { "hosts = 3" } else { "" }));
    }
    assert!(keys > 100, "{keys}");
}

fn fabric(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feroce"))
        .arg("fabric")
        .args(arguments)
        .output()
        .expect("it runs")
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("feroce-fabric-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Concatenates all files of a folder.
fn contents(folder: &str) -> Vec<u8> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    assert_eq!(paths.len(), 10);
    paths.iter().flat_map(|path| fs::read(path).expect("a file")).collect()
}

/// FNV-1a hash, to detect a change of any byte.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The scenario behind `OUTPUT`: packets are marked, paced, paused and hashed onto paths.
const MIXED: &str = "\
title = \"a little of everything\"
duration = \"3ms\"
lossless = false
[topology]
kind = \"clos\"
hosts = 2
[switch]
buffer = \"1MB\"
alpha = \"1/16\"
strict = [6]
weights = [1, 1, 1, 2, 1, 1, 1, 1]
[pfc]
priorities = [3, 4]
[[link]]
between = \"t1 - *\"
loss = \"0.01%\"
[[traffic]]
name = \"incast\"
kind = \"incast\"
senders = 4
from = \"h1..h8\"
to = \"h8\"
control = \"dcqcn\"
[[traffic]]
name = \"web\"
kind = \"poisson\"
load = \"20%\"
sizes = \"websearch\"
from = \"h1..h8\"
to = \"h1..h8\"
priority = 4
control = \"timely\"
[[gate]]
name = \"queue\"
measure = \"queue\"
of = \"t4->h8\"
";

#[test]
fn scenario_and_seed_determine_every_byte() {
    let folder = Folder::new("same");
    fs::write(folder.path("mixed.toml"), MIXED).expect("a file");
    let run = |out: &str, seed: &str| {
        let out = folder.path(out);
        let output = fabric(&["run", &folder.path("mixed.toml"), "--out", &out, "--seed", seed]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        [output.stdout, contents(&out)].concat()
    };
    let (first, second, other) = (run("1", "5"), run("2", "5"), run("3", "6"));
    assert!(first == second, "two runs differ");
    assert_ne!(first, other, "a seed matters");
    assert!(first.len() > 20_000);
    // The hash is the same in every build profile. A change of the fabric's behaviour changes this
    // number.
    assert_eq!(hash(&first), OUTPUT, "{:#018x}", hash(&first));
}

const OUTPUT: u64 = 0x3fa6_60a0_74b4_0463;

/// A miss that the scenario explains is reported and is not a failure.
#[test]
fn an_explained_miss_is_no_failure() {
    let folder = Folder::new("explained");
    let file = folder.path("small.toml");
    let explained = "explained = [{ why = \"a link has 40\", at_least = 10, at_most = 13 }]";
    let text = SMALL.replace("at_least = 5", &format!("at_least = 41\nns3 = 38.3\n{explained}"));
    fs::write(&file, &text).expect("a file");
    let output = fabric(&["run", &file, "--out", &folder.path("data")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("a link has 40 Known value: 10 to 13."), "{shown}");
    assert!(shown.contains("MISSED") && shown.contains("ns-3 38.30"), "{shown}");
    let report = ["report", &folder.path("data"), "--out", &folder.path("report")];
    assert_eq!(fabric(&report).status.code(), Some(0));
    // A miss that moves is a failure.
    fs::write(&file, text.replace("at_most = 13", "at_most = 11")).expect("a file");
    assert_eq!(fabric(&["run", &file]).status.code(), Some(3));
    let report = fs::read_to_string(folder.path("report/report.md")).expect("a report");
    for due in [
        "|  |  |  | 1 of 1 | 0 of 1 |",
        "| 38.30 | at least 41 | regression | missed |",
        "2 runs of 2 ms",
        "a link has 40",
    ] {
        assert!(report.contains(due), "{due}: {report}");
    }
}

#[test]
fn a_failed_gate_or_a_loss_sets_the_exit_code() {
    let folder = Folder::new("codes");
    let file = folder.path("small.toml");
    fs::write(&file, SMALL).expect("a file");
    let output = fabric(&["run", &file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = fabric(&["run", &file, "--set", "gate.0.at_least=41"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains("NOT MET"));
    // A miss that the scenario explains becomes smaller.
    let output = fabric(&["run", "fig10", "--set", "congestion.pmax=50%"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains("CHANGED"));
    let output =
        fabric(&["run", &file, "--set", "switch.headroom=0", "--set", "traffic.0.control=none"]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("packets dropped at switches: NOT LOSSLESS"), "{text}");
    let output = fabric(&["run", &file, "--case", "no"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fabric(&["run"]).status.code(), Some(2));
    assert_eq!(fabric(&["list"]).status.code(), Some(0));
}

/// A lossless network fails, whatever its gates, if a packet is lost or damaged, a NAK is sent, or
/// a timer expires.
#[test]
fn each_kind_of_loss_fails_a_lossless_network() {
    let folder = Folder::new("kinds");
    let rows = [
        ("[[link]]\nbetween = \"h1 - s1\"\nloss_every = 500\n", ["packets lost on links", "NAKs"]),
        ("[[link]]\nbetween = \"h1 - s1\"\ncorruption_every = 500\n", ["wrong ICRC", "NAKs"]),
        ("[host]\ntimeout = \"2us\"\n", ["timeouts"; 2]),
        ("[pfc]\npriorities = []\n[packet]\npayload = 4096\n", ["dropped at switches", "NAKs"]),
    ];
    for (added, kinds) in rows {
        let file = folder.path("small.toml");
        let text = SMALL.replace("at_least = 5", "at_least = 0.001").replace("dcqcn", "none");
        fs::write(&file, text.replace("[switch]", &format!("{added}[switch]"))).expect("a file");
        let run = |lossless| fabric(&["run", &file, "--set", &format!("lossless={lossless}")]);
        let (fails, holds) = (run(true), run(false));
        let shown = String::from_utf8_lossy(&fails.stdout).into_owned();
        assert_eq!(fails.status.code(), Some(3), "{added}: {shown}");
        for kind in kinds {
            let is_reported = |line: &str| line.contains(kind) && line.contains("NOT LOSSLESS");
            assert!(shown.lines().any(is_reported), "{added}: {kind}: {shown}");
        }
        assert_eq!(holds.status.code(), Some(0), "{added}");
    }
}
