//! Files of other simulators: export, import, and the same flows from every format.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An empty folder for the files of a test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("files-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn fabric(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.arg("fabric").args(arguments).current_dir(folder).output().unwrap()
}

fn succeed(arguments: &[&str], folder: &Path) -> String {
    let output = fabric(arguments, folder);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(arguments: &[&str], folder: &Path) -> String {
    let output = fabric(arguments, folder);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Start, end and size of each flow.
fn flows(folder: &Path, results: &str) -> Vec<[String; 3]> {
    let text = fs::read_to_string(folder.join(results).join("flows.csv")).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let place = |name: &str| head.iter().position(|column| *column == name).unwrap();
    let columns = ["started_ns", "ended_ns", "size_bytes"].map(place);
    lines.map(|line| columns.map(|column| line[column].to_owned())).collect()
}

const SCENARIO: &str = "\
title = \"random flows\"
duration = \"20ms\"
[topology]
kind = \"fat-tree\"
rate = \"25Gb/s\"
[[traffic]]
name = \"flows\"
kind = \"poisson\"
load = \"40%\"
sizes = \"hadoop\"
from = \"h1..h16\"
to = \"h1..h16\"
stop = \"2ms\"
";

const EXPORT: [&str; 6] = ["export", "a.toml", "--hpcc-topology", "t.txt", "--hpcc-flows", "f.txt"];
const IMPORT: [&str; 7] =
    ["import", "--hpcc-topology", "t.txt", "--hpcc-flows", "f.txt", "--out", "b.toml"];

/// The exported scenario gives the same flows at the same times to the picosecond.
#[test]
fn an_exported_scenario_is_imported_unchanged() {
    let folder = folder("both-ways");
    fs::write(folder.join("a.toml"), SCENARIO).unwrap();
    succeed(&EXPORT, &folder);
    let topology = fs::read_to_string(folder.join("t.txt")).unwrap();
    assert!(topology.starts_with("36 20 48\n16 17 "), "{topology}");
    assert!(topology.contains("\n0 16 25Gbps 1000ns 0.000000\n"), "{topology}");
    assert_eq!(succeed(&IMPORT, &folder), "b.toml\n");
    // What only the scenario says: packets and parameters.
    let imported = fs::read_to_string(folder.join("b.toml")).unwrap();
    let start = imported.find("[packet]").unwrap()..imported.find("[[traffic]]").unwrap();
    let same = imported.replace(&imported[start], "").replace("control = \"dcqcn\"", "");
    fs::write(folder.join("c.toml"), same).unwrap();
    succeed(&["run", "a.toml", "--out", "a"], &folder);
    succeed(&["run", "c.toml", "--out", "c"], &folder);
    let all = flows(&folder, "a");
    assert!(all.len() > 200, "{}", all.len());
    assert_eq!(all, flows(&folder, "c"));
    // The scenario as `import` wrote it.
    let printed = succeed(&["run", "b.toml"], &folder);
    assert!(printed.contains("not finished                                    0"), "{printed}");
}

/// 8000 flows without PFC, with both kinds of recovery.
#[test]
fn eight_thousand_flows_run_with_go_back_n_and_with_selective_repeat() {
    let folder = folder("lossy");
    let text = SCENARIO.replace("hadoop", "sizes.txt").replace("2ms", "15ms");
    fs::write(folder.join("sizes.txt"), "100 0 10000 60 40000 100").unwrap();
    fs::write(folder.join("a.toml"), text.replace("40%", "90%")).unwrap();
    succeed(&EXPORT, &folder);
    let flows = fs::read_to_string(folder.join("f.txt")).unwrap();
    let (count, rest) = flows.split_once('\n').unwrap();
    assert!(count.parse::<u32>().unwrap() > 8000, "{count}");
    // As in ns-3, the first line says how many flows count.
    fs::write(folder.join("f.txt"), format!("8000\n{rest}")).unwrap();
    succeed(&IMPORT, &folder);
    let run = |recovery: &str| {
        let recovery = format!("host.recovery={recovery}");
        let lossy = ["lossless=false", "pfc.priorities=[]", "switch.buffer=60KB"];
        let mut arguments = vec!["run", "b.toml", "--set", &recovery];
        arguments.extend(lossy.iter().flat_map(|change| ["--set", change]));
        arguments.extend(["--set", "traffic.0.control=none", "--out", "out"]);
        succeed(&arguments, &folder);
        let runs = fs::read_to_string(folder.join("out/runs.csv")).unwrap();
        assert!(runs.contains("packets dropped at switches"), "{runs}");
        let flows = self::flows(&folder, "out");
        assert_eq!(flows.len(), 8000);
        flows.iter().filter(|flow| flow[1].is_empty()).count()
    };
    assert_eq!((run("go-back-n"), run("selective-repeat")), (0, 0));
}

/// The same flows as a connection matrix and as CSV.
#[test]
fn every_format_gives_the_same_flows() {
    let folder = folder("formats");
    fs::write(folder.join("f.txt"), "2\n0 3 3 100 50000 0.000001\n2 1 3 100 7000 0\n").unwrap();
    let matrix = "Nodes 16\nConnections 2\n0->3 id 1 start 1000000 size 50000\n2->1 size 7000\n";
    fs::write(folder.join("f.cm"), matrix).unwrap();
    fs::write(folder.join("f.csv"), "src,dst,start_s,bytes\n0,3,1e-6,50000\n2,1,0,7000\n").unwrap();
    let traffic = SCENARIO.find("kind = \"poisson\"").unwrap();
    let mut all = Vec::new();
    for (format, file) in [("hpcc", "f.txt"), ("htsim", "f.cm"), ("csv", "f.csv")] {
        let head = &SCENARIO[..traffic];
        let text = format!("{head}kind = \"file\"\nformat = \"{format}\"\nfile = \"{file}\"\n");
        fs::write(folder.join("a.toml"), text).unwrap();
        succeed(&["run", "a.toml", "--out", "out"], &folder);
        all.push(flows(&folder, "out"));
    }
    assert_eq!(all[0].len(), 2);
    assert!(all[0] == all[1] && all[1] == all[2], "{all:?}");
}

#[test]
fn errors_name_the_file_and_the_line() {
    let folder = folder("errors");
    fs::write(folder.join("t.txt"), "3 1 2\n2\n0 2 1Gbps 1us 0\n1 2 1Gbps 1us 0\n").unwrap();
    for (flows, due) in [
        ("1\n0 1 3 100 5 x\n", "f.txt:2: the start is `x`, expected a time in seconds"),
        ("2\n0 1 3 100 5 0\n0 2 3 100 5 0\n", "f.txt:3: 2 is no host"),
        ("1\n1 1 3 100 5 0\n", "f.txt:2: 1 sends to itself"),
        ("3\n0 1 3 100 5 0\n", "f.txt:2: ends after 1 of 3 flows"),
    ] {
        fs::write(folder.join("f.txt"), flows).unwrap();
        let error = refused(&IMPORT, &folder);
        assert!(error.contains(due), "{error}");
    }
    fs::write(folder.join("f.txt"), "1\n0 1 3 100 5 2\n").unwrap();
    succeed(&IMPORT, &folder);
    let error = refused(&["run", "b.toml", "--set", "duration=1s"], &folder);
    assert!(error.contains("f.txt:2: starts after the run: `duration` is 1s"), "{error}");
    let error = refused(&["run", "b.toml", "--set", "traffic.0.from=h1"], &folder);
    assert!(error.contains("`traffic.0.from` has no effect with kind = \"file\""), "{error}");
    for (traffic, due) in [
        ("messages = 1\nafter = \"b\"", "a flow waits for others"),
        ("", "a flow has no end (`messages`)"),
        ("stop = \"1ms\"", "a flow is stopped"),
    ] {
        let one = "[[traffic]]\nfrom = \"h1\"\nto = \"h2\"\n";
        let head = &SCENARIO[..SCENARIO.find("[[traffic]]").unwrap()];
        let text = format!("{head}{one}name = \"a\"\n{traffic}\n{one}name = \"b\"\nmessages = 1\n");
        fs::write(folder.join("a.toml"), text).unwrap();
        let error = refused(&EXPORT, &folder);
        assert!(error.contains(due), "{error}");
    }
}
