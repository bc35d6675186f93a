//! From a scenario to a page: run, sweep, report, and the page in a browser.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCENARIO: &str = r#"
title = "Two senders & <one> receiver"
notes = """
First.

Second
paragraph."""
duration = "4ms"
warmup = "2ms"

[topology]
kind = "single"
hosts = 3
rate = "40Gb/s"
delay = "1us"

[congestion]
set = "paper"

[[traffic]]
name = "both"
from = ["h1", "h2"]
to = "h3"
control = "dcqcn"

[[traffic]]
name = "loop"
kind = "pairs"
pairs = 1
sizes = "hadoop"
from = "h1"
to = "h2"

[[case]]
name = "kmin = {}"
values = ["5KB", "50KB"]
set = { "congestion.kmin" = "{}" }

[[case.gate]]
name = "wire, Gb/s"
measure = "wire"
of = "s1->h3"
kind = "regression"
at_least = 4

[[case.gate]]
name = "queue, KB"
measure = "queue"
of = "s1->h3"
"#;

const FIGURES: [&str; 8] =
    ["goodput", "rate", "alpha", "queue", "queue-cdf", "goodput-cdf", "slowdown", "gates"];

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes the scenario with every kind of figure to a file.
    fn scenario(&self) -> PathBuf {
        let figure = |shows: &&str| {
            format!("\n[[figure]]\ntitle = \"Figure of {shows}\"\nshows = \"{shows}\"\n")
        };
        let path = self.0.join("two.toml");
        fs::write(&path, SCENARIO.to_owned() + &FIGURES.iter().map(figure).collect::<String>())
            .unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fabric(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feroce")).arg("fabric").args(arguments).output().unwrap()
}

/// Runs the program, which must succeed. Returns its standard output.
fn succeed(arguments: &[&str]) -> String {
    let output = fabric(arguments);
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {:?}\n{out}{err}", output.status);
    out
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A report of one run of the scenario. Returns the path of the page.
fn reported(folder: &Folder) -> PathBuf {
    let (scenario, data, out) = (folder.scenario(), folder.0.join("data"), folder.0.join("report"));
    succeed(&["run", text(&scenario), "--out", text(&data)]);
    succeed(&["report", text(&data), "--out", text(&out)]);
    out.join("report.html")
}

#[test]
fn a_report_has_every_figure_and_every_gate() {
    let folder = Folder::new("report-figures");
    let page = fs::read_to_string(reported(&folder)).unwrap();
    assert!(page.contains("Two senders &amp; &lt;one&gt; receiver") && !page.contains("<one>"));
    // Figures of flows over time have one chart for each case, all others one chart.
    assert_eq!(page.matches("<svg role").count(), 3 * 2 + 5);
    assert_eq!(page.matches(">holds<").count(), 2 * 2, "the wire, and that nothing was lost");
    assert!(page.contains("<p>First.</p>\n<p>Second paragraph.</p>"));
    let markdown = fs::read_to_string(folder.0.join("report/report.md")).unwrap();
    for line in markdown.lines().filter(|line| line.starts_with("![")) {
        let picture = line.split_once("](").unwrap().1.trim_end_matches(')');
        assert!(folder.0.join("report").join(picture).exists(), "{line}");
    }
}

/// Two flows to one receiver; one cannot finish. The gates of figures 1 to 3 hold, partly, and not.
const FIGURES_1_TO_3: &str = r#"
title = "Three figures"
source = "Somebody, SIGCOMM 2015"
duration = "2ms"

[topology]
kind = "single"
hosts = 3
rate = "40Gb/s"
delay = "1us"

[[traffic]]
name = "short"
from = "h1"
to = "h3"
message = "100KB"
messages = 1
control = "dcqcn"

[[traffic]]
name = "long"
from = "h2"
to = "h3"
message = "1MB"
messages = 1000
control = "dcqcn"

[[gate]]
name = "slowdown"
measure = "slowdown"

[[gate]]
name = "wire, Gb/s"
kind = "paper"
reproduces = "Fig. 1"
measure = "wire"
of = "s1->h3"
published = 39
within = "2%"

[[gate]]
name = "wire, Gb/s"
kind = "paper"
reproduces = "Fig. 2"
measure = "wire"
of = "s1->h3"
published = 39
within = "2%"

[[gate]]
name = "half of the wire, Gb/s"
kind = "model"
reproduces = "Fig. 2"
measure = "wire"
of = "s1->h3"
published = 20
within = "2%"

[[gate.explained]]
why = "It is the whole wire."
at_least = 38
at_most = 40

[[gate]]
name = "half of the wire, Gb/s"
kind = "model"
reproduces = "Fig. 3"
measure = "wire"
of = "s1->h3"
published = 20
within = "2%"

[[gate.explained]]
why = "It is the whole wire."
at_least = 38
at_most = 40

[[figure]]
title = "Slowdown"
shows = "slowdown"
"#;

/// A figure is reproduced, partly, or not, as its gates say, and flows that did not finish are
/// beside every slowdown: in text, in JSON, in tables and in the report.
#[test]
fn a_report_begins_with_verdicts_and_counts_unfinished_flows() {
    let folder = Folder::new("report-verdicts");
    let (scenario, data) = (folder.0.join("three.toml"), folder.0.join("data"));
    let out = folder.0.join("report");
    fs::write(&scenario, FIGURES_1_TO_3).unwrap();
    let shown = succeed(&["run", text(&scenario), "--out", text(&data)]);
    assert!(shown.contains("1  flows, not included"), "{shown}");
    let json = fs::read_to_string(data.join("scenario.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["unfinished_flows"][""], 1);
    succeed(&["report", text(&data), "--out", text(&out)]);
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    for due in [
        "Of 3 published figures and claims, 1 are reproduced, 1 partly, and 1 are not.",
        "| Fig. 1 | reproduced | 1 of 1 |  |",
        "| Fig. 2 | partly | 1 of 2 | half of the wire, Gb/s: ",
        "| Fig. 3 | not reproduced | 0 of 1 | half of the wire, Gb/s: ",
        "Fig. 1: reproduced (1 of 1 gates). Fig. 2: partly (1 of 2 gates).",
        "| Three figures | 2 of 2 | 0 of 2 |  | 1 of 1 |  | 1 | 1 |",
        "| case | value | Feroce | unfinished flows | published |",
        "| case | flows up to, KB | flows | unfinished | median |",
        "|  | 1000000 | 1 | 1 |  |  |  |",
        "Missed, half of the wire, Gb/s: It is the whole wire.",
    ] {
        assert!(report.contains(due), "{due}: {report}");
    }
    let verdicts = report.find("Of 3 published").unwrap();
    assert!(verdicts < report.find("\n## ").unwrap(), "the verdicts come first");
}

/// A sweep file runs every reading; the page is the same for any number of threads.
#[test]
fn a_sweep_file_counts_the_figures_of_each_reading() {
    let folder = Folder::new("sweep-file");
    let (scenario, file) = (folder.0.join("three.toml"), folder.0.join("rules.toml"));
    fs::write(&scenario, FIGURES_1_TO_3).unwrap();
    let study = format!(
        "title = \"Rules\"\nnotes = \"Notes.\"\nscenarios = [\"{}\"]\n\
         [[reading]]\nname = \"as is\"\nset = {{}}\n\
         [[reading]]\nname = \"slow\"\nset = {{ \"topology.rate\" = \"20Gb/s\" }}\n",
        text(&scenario)
    );
    fs::write(&file, &study).unwrap();
    let page = |jobs: &str| {
        let out = folder.0.join(jobs);
        succeed(&["sweep", "--file", text(&file), "--jobs", jobs, "--out", text(&out)]);
        fs::read_to_string(out.join("rules.md")).unwrap()
    };
    let (one, three) = (page("1"), page("3"));
    assert!(one == three, "threads do not matter");
    for due in [
        "| slow | `topology.rate = 20Gb/s` |",
        "| as is | **1 of 1** | 1 of 2 | 0 of 1 | 1 of 3 | 2 of 4 |",
        "| slow | 0 of 1 | 1 of 2 | **1 of 1** | 1 of 3 | 2 of 4 |",
        "reproduces 1 of 3 figures and meets 2 of 4 gates, as ",
    ] {
        assert!(one.contains(due), "{due}: {one}");
    }
    fs::write(&file, study.replace("topology.rate", "topology.rat")).unwrap();
    let output = fabric(&["sweep", "--file", text(&file), "--out", text(&folder.0)]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("reading `slow`") && error.contains("topology.rat`"), "{error}");
}

#[test]
fn runs_of_a_sweep_can_be_distributed_and_merged() {
    let folder = Folder::new("report-sweep");
    let (scenario, together, apart) =
        (folder.scenario(), folder.0.join("together"), folder.0.join("apart"));
    let sweep = |out: &Path, more: &[&str]| {
        let over = ["--over", "congestion.kmax=200KB,400KB", "--seeds", "2"];
        succeed(&[&["sweep", text(&scenario), "--out", text(out)], &over[..], more].concat())
    };
    sweep(&together, &[]);
    let commands = sweep(&apart, &["--commands"]);
    assert_eq!(commands.lines().count(), 2 * 2, "values, cases");
    for command in commands.lines() {
        let status = Command::new("sh").args(["-c", command]).output().unwrap().status;
        assert!(status.success(), "{command}");
    }
    let report = |from: &Path, out: &str| {
        let out = folder.0.join(out);
        succeed(&["report", text(from), "--out", text(&out)]);
        fs::read_to_string(out.join("report.html")).unwrap()
    };
    let page = report(&together, "a");
    assert!(page.contains("kmin = 50KB [congestion.kmax=400KB]"));
    assert_eq!(page.matches(">holds<").count(), 2 * 4, "gates of each combination, over its seeds");
    assert!(page.contains("<td class=\"number\">8</td>"), "runs, of two seeds each");
    assert!(page == report(&apart, "b"), "spread or not, the report is the same");
}

/// Every file below a folder with its bytes, by path.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let inner = match path.is_dir() {
            true => files(&path),
            false => [(PathBuf::new(), fs::read(&path).unwrap())].into(),
        };
        let name = PathBuf::from(path.file_name().unwrap());
        all.extend(inner.into_iter().map(|(inner, bytes)| (name.join(inner), bytes)));
    }
    all
}

/// Eight runs, some of which fail: text, exit code, tables and the report are the same for any
/// number of threads.
#[test]
fn threads_do_not_matter() {
    let folder = Folder::new("report-threads");
    let scenario = folder.scenario();
    // Runs of different lengths: later ones end earlier.
    let over = ["--over", "duration=16ms,3ms", "--over", "gate.0.at_least=4,39"];
    let gate = "[[gate]]\nname = \"all\"\nmeasure = \"wire\"\nof = \"s1->h3\"\n\
                kind = \"regression\"\nat_least = 4\n";
    fs::write(&scenario, fs::read_to_string(&scenario).unwrap() + gate).unwrap();
    let sweep = |jobs: &str, format: &str| {
        let out = folder.0.join(format).join(jobs);
        let common = ["sweep", text(&scenario), "--jobs", jobs, "--format", format, "--out"];
        let output = fabric(&[&common[..], &[text(&out)], &over[..]].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("8 runs, "), "{output:?}");
        let mut all = files(&out);
        assert_eq!(all.len(), 8 * 10, "tables");
        if format == "csv" {
            let page = folder.0.join(format!("page {jobs}"));
            let report = fabric(&["report", text(&out), "--out", text(&page)]);
            assert_eq!(report.status.code(), Some(3));
            all.extend(files(&page));
        }
        (output.stdout, all)
    };
    for format in ["csv", "parquet"] {
        assert!(sweep("1", format) == sweep("3", format), "{format}");
    }
    // Several scenarios, and several seeds of a case.
    let three = folder.0.join("three.toml");
    fs::write(&three, FIGURES_1_TO_3).unwrap();
    let run = |jobs: &str| {
        let out = folder.0.join("runs").join(jobs);
        let common = ["run", text(&scenario), text(&three), "-j", jobs, "--set", "repeat=2"];
        let output = fabric(&[&common[..], &["--out", text(&out)]].concat());
        (output.status.code(), output.stdout, files(&out))
    };
    let (one, five) = (run("1"), run("5"));
    assert!(one == five, "run");
    for due in ["two/runs.csv", "three/scenario.json"] {
        assert!(one.2.contains_key(Path::new(due)), "{:?}", one.2.keys());
    }
}

#[test]
fn invalid_sweeps_and_reports_are_refused() {
    let folder = Folder::new("report-errors");
    let (scenario, out) = (folder.scenario(), folder.0.join("out"));
    let (scenario, out) = (text(&scenario), text(&out));
    let rows: [(&[&str], i32, &str); 9] = [
        (&["run", scenario, "--jobs", "0"], 2, "0 is not in 1..=1024"),
        (&["run", scenario, scenario, "--out", out], 1, "two scenarios are named"),
        (&["sweep", scenario, "--out", out, "--over", "congestion.kmax"], 2, "KEY=VALUE,VALUE"),
        (&["sweep", scenario, "--out", out, "--over", "congestion.kmix=1"], 1, "kmix"),
        (
            &["sweep", scenario, "--out", out, "--over", "seed=1,2", "--only", "4"],
            1,
            "the sweep has 4 runs",
        ),
        (&["report", out], 1, "cannot read"),
        (&["report", scenario, scenario, "--out", out], 1, "two scenarios are named"),
        (&["report", text(&folder.0)], 1, "no results found"),
        (&["run", scenario, "--out", "/proc/none"], 1, "cannot write results"),
    ];
    for (arguments, code, words) in rows {
        let output = fabric(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

#[test]
fn parquet_and_csv_have_the_same_values() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let folder = Folder::new("report-parquet");
    let scenario = folder.scenario();
    for format in ["csv", "parquet"] {
        succeed(&[
            "run",
            text(&scenario),
            "--out",
            text(&folder.0.join(format)),
            "--format",
            format,
        ]);
    }
    for table in [
        "gates",
        "runs",
        "flows",
        "ports",
        "queues",
        "queue_lengths",
        "flow_samples",
        "queue_samples",
    ] {
        let mut csv = csv::Reader::from_path(folder.0.join(format!("csv/{table}.csv"))).unwrap();
        let file = fs::File::open(folder.0.join(format!("parquet/{table}.parquet"))).unwrap();
        let parquet = SerializedFileReader::new(file).unwrap();
        let mut rows = parquet.get_row_iter(None).unwrap();
        let names: Vec<String> = csv.headers().unwrap().iter().map(String::from).collect();
        for record in csv.records() {
            let (record, row) = (record.unwrap(), rows.next().expect("as many rows").unwrap());
            for ((name, field), (column, value)) in
                names.iter().zip(&record).zip(row.get_column_iter())
            {
                let value = match value {
                    parquet::record::Field::Null => String::new(),
                    parquet::record::Field::Str(text) => text.clone(),
                    parquet::record::Field::Double(number) => number.to_string(),
                    other => other.to_string(),
                };
                assert_eq!((name, field), (column, value.as_str()), "{table}");
            }
        }
        assert!(rows.next().is_none(), "{table}");
    }
}

/// A failure of `run` is also a failure of `report`; an unfinished run is left out.
#[test]
fn a_report_shows_losses_and_omits_unfinished_runs() {
    let folder = Folder::new("report-losses");
    let (scenario, data, out) = (folder.scenario(), folder.0.join("data"), folder.0.join("report"));
    let lossy =
        ["--set", "switch.headroom=0", "--set", "traffic.0.control=none", "--set", "lossless=true"];
    let small = ["--set", "switch.buffer=200KB", "--set", "pfc.priorities=[]", "--set", "gate=[]"];
    let run = ["run", text(&scenario), "--out", text(&data)];
    assert_eq!(fabric(&[&run[..], &lossy, &small].concat()).status.code(), Some(3));
    assert_eq!(fabric(&["report", text(&data), "--out", text(&out)]).status.code(), Some(3));
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("lost packets (lossless network)"), "{page}");
    fs::remove_file(data.join("scenario.json")).unwrap();
    let output = fabric(&["report", text(&data), "--out", text(&out)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did not end"));
}
