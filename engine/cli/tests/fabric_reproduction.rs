//! The committed report (docs/reproduction) is what this commit produces, and no gate fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The committed report.
fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reproduction")
}

/// An empty folder for the results of a test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn fabric(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feroce")).arg("fabric").args(arguments).output().unwrap()
}

/// Runs the program. No gate may fail, and no lossless network may lose a packet.
fn succeed(arguments: &[&str]) {
    let output = fabric(arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    let fails: Vec<&str> = text.lines().filter(|line| line.contains("NOT ")).collect();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {:?}\n{error}{fails:#?}", output.status);
}

/// The sections of a report by heading. The summary is left out.
fn sections(report: &str) -> BTreeMap<&str, &str> {
    report.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect()
}

/// The pictures of a report, and `report.md`, by name.
fn files(report: &Path) -> BTreeMap<String, String> {
    let pictures = fs::read_dir(report.join("plots")).unwrap();
    let paths = pictures.map(|entry| entry.unwrap().path()).chain([report.join("report.md")]);
    let read = |path: PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path))
    };
    paths.map(read).map(|(name, text)| (name, text.unwrap())).collect()
}

/// The first line of `made` that differs from `known`.
fn difference<'a>(known: &'a str, made: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let mut known = known.lines();
    let mut lines = made.lines().enumerate();
    lines.find_map(|(number, line)| {
        let due = known.next().unwrap_or("(nothing)");
        (due != line).then_some((number + 1, due, line))
    })
}

/// The committed text is what this commit has made. `again` says how to make it.
fn assert_committed(name: &str, due: &str, made: &str, again: &str) {
    assert_eq!(difference(due, made), None, "{name}: {again}");
    assert!(due == made, "{name} is longer than what this commit produces: {again}");
}

/// Scenarios of a second or two: a report that is older than the fabric is seen by `cargo test`.
#[test]
fn the_committed_report_has_todays_values_of_quick_scenarios() {
    let out = folder("quick-report");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let names = ["deadlock-fat-tree", "deadlock-ring", "fig10", "go-back-0", "hpcc-incast", "live"];
    let mut arguments = vec!["report".to_owned()];
    for name in names {
        let data = text(&out.join("data").join(name));
        succeed(&["run", name, "--out", &data]);
        arguments.push(data);
    }
    arguments.extend(["--out".to_owned(), text(&out)]);
    succeed(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let (known, made) = (files(&committed()), files(&out));
    let known_sections = sections(&known["report.md"]);
    for (heading, section) in sections(&made["report.md"]) {
        let due = known_sections.get(heading).unwrap_or_else(|| panic!("{heading} is missing"));
        assert_eq!(difference(due, section), None, "{heading}: run `feroce fabric report`");
    }
    for (name, picture) in made.iter().filter(|(name, _)| *name != "report.md") {
        assert!(known.get(name) == Some(picture), "{name}: run `feroce fabric report`");
    }
}

/// 8000 flows of an HPCC flow file, without PFC.
#[test]
#[ignore = "takes a minute in a debug build; scripts/nightly.sh runs it"]
fn the_committed_table_of_hpcc_flows_is_what_this_commit_produces() {
    let (out, due) = (folder("hpcc-flows"), committed().join("hpcc-flows"));
    let scenario = due.join("lossy.toml");
    succeed(&["report", scenario.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let (known, made) = (files(&due), files(&out));
    let again = "run `feroce fabric report docs/reproduction/hpcc-flows/lossy.toml`";
    for (name, text) in &made {
        assert_committed(name, &known[name], text, again);
    }
    assert_eq!(known.len(), made.len());
    fs::remove_dir_all(out).unwrap();
}

/// Runs every gate of every scenario, on two threads; the report was written by another number.
#[test]
#[ignore = "takes minutes; `scripts/test.sh reproduction` runs it"]
fn the_committed_report_is_what_this_commit_produces() {
    let out = folder("whole-report");
    succeed(&["report", "--jobs", "2", "--out", out.to_str().unwrap()]);
    let (known, made) = (files(&committed()), files(&out));
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    for (name, text) in &made {
        let due = known.get(name).unwrap_or_else(|| panic!("{name} is not committed"));
        assert_committed(name, due, text, "copy `feroce fabric report`'s files");
    }
    assert_eq!(names(&known), names(&made));
    fs::remove_dir_all(out).unwrap();
}

/// Each reading of DCQCN's rules with each figure.
#[test]
#[ignore = "takes minutes; scripts/nightly.sh runs it"]
fn the_committed_study_of_rules_is_what_this_commit_produces() {
    let out = folder("rules");
    let (file, made) = (committed().join("rules.toml"), out.join("rules.md"));
    succeed(&["sweep", "--file", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let [due, made] =
        [committed().join("rules.md"), made].map(|at| fs::read_to_string(at).unwrap());
    let again = "run `feroce fabric sweep --file docs/reproduction/rules.toml`";
    assert_committed("rules.md", &due, &made, again);
    fs::remove_dir_all(out).unwrap();
}
