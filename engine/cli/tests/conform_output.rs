//! The machine-readable output of `feroce conform check`, its filters, and its exit codes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use feroce_conform::check::{Checker, Filter, Format, Report};
use feroce_conform::rules::{RULES, RuleId};
use feroce_conform::trace::Trace;
use serde_json::Value;

/// Requests without a response.
const RETRIES: &str = "rxe/ops_retry_exhaust.pcap.zst";
/// No findings.
const CLEAN: &str = "rxe/ops_psn_wrap.pcap.zst";
/// Many lost requests.
const LOSSES: &str = "rxe/loss_netemB_write.pcap.zst";
/// 20 rejected connections.
const REJECTED: &str = "rxe/cmtime_v4.pcap.zst";
/// Four QPs at each end.
const QPS: &str = "rxe/write_bw_qp4_bidir.pcap.zst";

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(file)
}

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.args(["conform", "check"]).args(arguments).output().expect("feroce runs")
}

/// The output of `check --json` for a capture of the tree.
fn json(file: &str, arguments: &[&str]) -> Value {
    let path = path(file);
    let all: Vec<_> =
        ["--json", path.to_str().expect("a path")].iter().chain(arguments).copied().collect();
    let output = check(&all);
    let found = serde_json::from_slice(&output.stdout).expect("JSON");
    let expected = if number(&found, "total") == 0 { 0 } else { 3 };
    assert_eq!(output.status.code(), Some(expected), "{file} {arguments:?}");
    found
}

fn report(file: &str) -> Report {
    let mut trace = Trace::open(&[path(file)]).expect("a capture");
    let (report, ended) = Checker::new(Filter::default(), false).check(&mut trace);
    ended.expect("read to the end");
    report
}

fn written(format: Format, report: &Report) -> String {
    let mut out = Vec::new();
    format.write(&mut out, report).expect("memory takes everything");
    String::from_utf8(out).expect("UTF-8")
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} of {value}"))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field} of {value}"))
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().expect("an object").keys().cloned().collect()
}

/// The fields named in the row of the table in `docs/conform.md` that begins with `of`.
fn documented(of: &str) -> BTreeSet<String> {
    let docs = include_str!("../../../docs/conform.md");
    let start = format!("| {of} | ");
    let row = docs.lines().find_map(|line| line.strip_prefix(&start)).expect(of);
    row.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn json_has_the_documented_fields() {
    for file in [RETRIES, LOSSES, CLEAN] {
        let found = json(file, &[]);
        assert_eq!(keys(&found), documented("all"), "{file}");
        for flow in list(&found, "flows") {
            assert_eq!(keys(flow), documented("a flow"), "{file}");
            let times: Vec<_> = flow["figures"]
                .as_object()
                .expect("figures")
                .values()
                .filter(|value| value.is_object())
                .collect();
            assert_eq!(times.len(), 6, "{file}");
            assert!(times.iter().all(|times| keys(times) == documented("times")), "{file}");
            assert_eq!(keys(&flow["figures"]), documented("figures"), "{file}");
        }
        for finding in list(&found, "findings") {
            assert_eq!(keys(finding), documented("a finding"), "{file}");
        }
    }
}

#[test]
fn json_counts_match_its_findings() {
    let found = json(LOSSES, &[]);
    let mut listed: BTreeMap<&str, u64> = BTreeMap::new();
    for finding in list(&found, "findings") {
        *listed.entry(finding["rule"].as_str().expect("a name")).or_default() += 1;
    }
    let counts = found["counts"].as_object().expect("counts").iter();
    let counts: BTreeMap<&str, u64> =
        counts.map(|(rule, count)| (rule.as_str(), count.as_u64().expect("a count"))).collect();
    assert_eq!(listed, counts, "no rule has more findings than are listed");
    let is_counted = |name: &str| RuleId::named(name).expect(name).rule().severity.counts();
    let total: u64 = counts.iter().filter(|row| is_counted(row.0)).map(|row| row.1).sum();
    assert_eq!(total, number(&found, "total"));
    assert!(json(RETRIES, &[])["flows"][0]["failure"].as_str().is_some_and(|why| !why.is_empty()));
}

/// Checks the requirements of SARIF 2.1.0 (OASIS): 3.13 log, 3.14 run, 3.19 driver, 3.27 results,
/// 3.49 rules.
#[test]
fn sarif_follows_the_standard() {
    for file in [RETRIES, LOSSES, REJECTED, CLEAN] {
        let report = report(file);
        let log: Value = serde_json::from_str(&written(Format::Sarif, &report)).expect("JSON");
        assert_eq!(log["version"], "2.1.0");
        assert!(log["$schema"].as_str().is_some_and(|schema| schema.ends_with("sarif-2.1.0.json")));
        let [run] = list(&log, "runs") else { panic!("one run") };
        let driver = &run["tool"]["driver"];
        assert_eq!(driver["name"], "feroce-conform");
        let rules = list(driver, "rules");
        let names: BTreeSet<_> =
            rules.iter().map(|rule| rule["id"].as_str().expect("a name")).collect();
        assert_eq!((names.len(), rules.len()), (RULES.len(), RULES.len()), "each rule once");
        let is_level = |value: &Value| matches!(value.as_str(), Some("note" | "warning" | "error"));
        for rule in rules {
            assert!(RuleId::named(rule["id"].as_str().expect("a name")).is_some(), "{rule}");
            assert!(!rule["shortDescription"]["text"].as_str().expect("a text").is_empty());
            assert!(is_level(&rule["defaultConfiguration"]["level"]), "{rule}");
        }
        let results = list(run, "results");
        assert_eq!(results.len(), report.findings.detailed().len(), "{file}");
        for result in results {
            let index = usize::try_from(number(result, "ruleIndex")).expect("a place");
            assert_eq!(rules[index]["id"], result["ruleId"]);
            assert!(is_level(&result["level"]), "{result}");
            assert!(!result["message"]["text"].as_str().expect("a text").is_empty());
            let [location] = list(result, "locations") else { panic!("one place") };
            let place = &location["physicalLocation"];
            assert!(
                place["artifactLocation"]["uri"].as_str().is_some_and(|uri| uri.ends_with(file))
            );
            assert!(number(&place["region"], "startLine") >= 1);
        }
    }
}

/// An artifact location is a URI reference, so file names are percent-encoded.
/// RFC 3986.
#[test]
fn sarif_encodes_file_names_as_uris() {
    let mut report = report(RETRIES);
    report.files = vec!["of monday/50% loss#1.pcap".to_owned()];
    let log: Value = serde_json::from_str(&written(Format::Sarif, &report)).expect("JSON");
    let uri = &log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
        ["uri"];
    assert_eq!(uri, "of%20monday/50%25%20loss%231.pcap");
}

/// An XML element.
struct Element {
    name: String,
    attributes: BTreeMap<String, String>,
    text: String,
}

/// The elements of `xml` in the order of their start tags. Elements, attributes, text and entities
/// are supported, which is all that JUnit reports use.
///
/// # Panics
/// If `xml` is not well-formed.
fn elements(xml: &str) -> Vec<Element> {
    let body = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").expect("a prolog");
    assert!(
        !body.chars().any(|c| c.is_control() && c != '\n'),
        "a character that XML does not allow"
    );
    let (mut found, mut open): (Vec<Element>, Vec<usize>) = (Vec::new(), Vec::new());
    for part in body.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("the end of a tag");
        assert!(!text.contains('>'), "{part}");
        if let Some(name) = tag.strip_prefix('/') {
            let ended = open.pop().expect("an open element");
            assert_eq!(found[ended].name, name, "the innermost element ends first");
        } else {
            assert!(found.is_empty() || !open.is_empty(), "one root");
            let is_empty = tag.ends_with('/');
            found.push(element(tag.trim_end_matches('/'), text));
            if !is_empty {
                open.push(found.len() - 1);
            }
        }
        decoded(text);
    }
    assert!(open.is_empty(), "every element has ended");
    found
}

fn element(tag: &str, text: &str) -> Element {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    let mut attributes = BTreeMap::new();
    while let Some((key, behind)) = rest.split_once("=\"") {
        let (value, behind) = behind.split_once('"').expect("the end of a value");
        let is_new = attributes.insert(key.trim().to_owned(), decoded(value)).is_none();
        assert!(is_new, "{key} twice");
        rest = behind;
    }
    assert!(rest.trim().is_empty(), "{tag}");
    Element { name: name.to_owned(), attributes, text: decoded(text) }
}

/// `text` with the five predefined entities of XML decoded.
fn decoded(text: &str) -> String {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&apos;"];
        assert!(known.iter().any(|entity| text[at..].starts_with(entity)), "{text}");
    }
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&amp;", "&")
}

#[test]
fn junit_is_well_formed_and_counts_the_findings() {
    for file in [RETRIES, LOSSES, REJECTED, CLEAN] {
        let mut report = report(file);
        report.files = vec!["a<b> & \"c\"\u{1}.pcap".to_owned()];
        let found = elements(&written(Format::Junit, &report));
        let suite = &found[0];
        assert_eq!(
            (suite.name.as_str(), suite.attributes["name"].as_str()),
            ("testsuite", "a<b> & \"c\"?.pcap")
        );
        let is_no_quirk = |rule: &RuleId| rule.rule().severity.counts();
        let tests = RULES.iter().filter(|rule| is_no_quirk(&rule.id)).count();
        let expected: BTreeMap<_, _> =
            report.findings.by_rule().into_iter().filter(|(rule, _)| is_no_quirk(rule)).collect();
        assert_eq!(suite.attributes["tests"], tests.to_string());
        assert_eq!(suite.attributes["failures"], expected.len().to_string());
        let cases = found.iter().filter(|element| element.name == "testcase").count();
        assert_eq!(cases, tests, "{file}");
        let failures = found.windows(2).filter(|pair| pair[1].name == "failure");
        let failed: BTreeMap<_, _> = failures
            .map(|pair| {
                let (count, _) = pair[1].attributes["message"].split_once("x: ").expect("a count");
                let rule = RuleId::named(&pair[0].attributes["name"]).expect("a rule");
                let lines = pair[1].text.trim().lines().count();
                assert_eq!(lines.to_string(), count, "each finding has a line");
                (rule, count.parse().expect("a number"))
            })
            .collect();
        assert_eq!(failed, expected, "{file}");
    }
}

#[test]
fn the_qpn_filter_keeps_the_flows_of_a_qp() {
    let all = json(QPS, &[]);
    let qpn = number(&list(&all, "flows")[0], "qpn");
    let ends = |flow: &Value| flow["qpn"] == qpn || flow["response_qpn"] == qpn;
    let titles = |found: &Value, wanted: &dyn Fn(&Value) -> bool| {
        let flows = list(found, "flows").iter().filter(|flow| wanted(flow));
        flows.map(|flow| flow["title"].as_str().expect("a title").to_owned()).collect::<Vec<_>>()
    };
    let expected = titles(&all, &ends);
    assert!(expected.len() < list(&all, "flows").len(), "the capture has other flows");
    for word in [qpn.to_string(), format!("{qpn:#x}")] {
        assert_eq!(titles(&json(QPS, &["--qpn", &word]), &|_| true), expected, "{word}");
    }
    let none = json(LOSSES, &["--qpn", "0xfffffe"]);
    assert!(list(&none, "flows").is_empty());
    assert_eq!(list(&none, "findings").len(), 1);
    assert_eq!(list(&none, "findings")[0]["rule"], "CAP-NOTHING");
}

#[test]
fn the_flow_filter_keeps_one_flow() {
    let all = json(REJECTED, &[]);
    let of = |found: &Value, flow: u64| {
        let findings = list(found, "findings").iter();
        findings.filter(|finding| finding["flow"] == flow).cloned().collect::<Vec<_>>()
    };
    let mut kept = 0;
    for flow in list(&all, "flows").iter().take(4) {
        let number = number(flow, "flow");
        let one = json(REJECTED, &["--flow", &number.to_string()]);
        assert_eq!(list(&one, "flows"), std::slice::from_ref(flow));
        assert_eq!(list(&one, "findings"), of(&all, number));
        kept += list(&one, "findings").len();
    }
    assert!(kept > 0, "at least one of the flows has findings");
    let path = path(REJECTED);
    for flow in ["0", "100000"] {
        let output = check(&[path.to_str().expect("a path"), "--flow", flow]);
        assert_one_line_error(&output, &format!("there is no flow {flow}"));
    }
}

#[test]
fn the_time_filters_keep_the_frames_between() {
    let all = json(LOSSES, &[]);
    let frames = |found: &Value| number(found, "frames");
    let first = list(&all, "flows").iter().map(|flow| number(&flow["figures"], "first_at")).min();
    let first = first.expect("flows");
    let times = |found: &Value| {
        let findings =
            list(found, "findings").iter().filter(|finding| finding["severity"] != "quirk");
        findings.map(|finding| number(finding, "at") - first).collect::<Vec<_>>()
    };
    let finding_times = times(&all);
    // Between two findings, so that no frame is in both halves.
    let middle = finding_times[finding_times.len() / 2] + 1;
    let seconds = format!("{}.{:09}", middle / 1_000_000_000, middle % 1_000_000_000);
    let (early, late) = (json(LOSSES, &["--to", &seconds]), json(LOSSES, &["--from", &seconds]));
    assert_eq!(frames(&early) + frames(&late), frames(&all));
    let (before, after) = (times(&early), times(&late));
    assert!(!before.is_empty() && before.iter().all(|&at| at <= middle), "{before:?}");
    assert!(!after.is_empty() && after.iter().all(|&at| at >= middle), "{after:?}");
    let expected: Vec<_> = finding_times.iter().copied().filter(|&at| at <= middle).collect();
    assert_eq!(before, expected, "findings up to a time do not depend on later frames");
    let none = json(LOSSES, &["--from", "1000000"]);
    assert_eq!((frames(&none), number(&none, "total")), (0, 1));
    assert_eq!(list(&none, "findings")[0]["rule"], "CAP-NOTHING");
}

/// CI must not be green because a capture, or the chosen part of it, is empty.
#[test]
fn nothing_to_judge_fails() {
    let path = path(CLEAN);
    let path = path.to_str().expect("a path");
    for format in ["--junit", "--sarif", "--json"] {
        let output = check(&[path, "--from", "1000000", format]);
        assert_eq!(output.status.code(), Some(3), "{format}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("nothing to judge"), "{format}");
    }
    let output = check(&[path, "--from", "1000000", "--junit"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("failures=\"1\""));
}

/// Checks that the program reports `why` in one line and exits with 2.
fn assert_one_line_error(output: &Output, why: &str) {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.lines().count() == 1 && line.starts_with("feroce: "), "{line}");
    assert!(line.contains(why), "{line}");
}

#[test]
fn the_exit_code_distinguishes_findings_and_errors() {
    let [clean, failed] = [CLEAN, RETRIES].map(path);
    let [clean, failed] = [&clean, &failed].map(|path| path.to_str().expect("a path"));
    for format in [&[][..], &["--json"], &["--sarif"], &["--junit"]] {
        for (file, expected) in [(clean, 0), (failed, 3)] {
            let output = check(&[&[file], format].concat());
            assert_eq!(output.status.code(), Some(expected), "{file} {format:?}");
            assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{file} {format:?}");
        }
    }
    assert_one_line_error(&check(&["nothing.pcap"]), "nothing.pcap");
    assert_one_line_error(
        &check(&[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]),
        "is neither pcap nor pcapng",
    );
    for wrong in
        [&["--json", "--sarif"][..], &["--qpn", "0x1000000"], &["--from", "-1"], &["--to", "x"]]
    {
        let output = check(&[&[clean], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty(), "{wrong:?}");
    }
    assert_eq!(check(&[]).status.code(), Some(2), "no file");
}

/// A truncated capture is an error, but the frames before the truncation are checked.
#[test]
fn a_truncated_capture_is_checked_up_to_its_end() {
    let whole =
        fs::read(path("hardware/connectx_vlan_cmreq_rtu_send_ack.pcap")).expect("a capture");
    let cut = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conform_output_cut.pcap");
    fs::write(&cut, &whole[..whole.len() - 10]).expect("written");
    let output = check(&["--json", cut.to_str().expect("a path")]);
    assert_one_line_error(&output, "is truncated after frame");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(number(&found, "frames") > 0);
    fs::remove_file(&cut).expect("removed");
}

/// A damaged packet belongs to no flow, so it is reported for every value of `--qpn`.
#[test]
fn the_qpn_filter_keeps_damaged_packets() {
    let mut bytes =
        fs::read(path("hardware/connectx_vlan_cmreq_rtu_send_ack.pcap")).expect("a capture");
    let last = bytes.len() - 6;
    bytes[last] ^= 1;
    let damaged = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conform_output_damaged.pcap");
    fs::write(&damaged, &bytes).expect("written");
    let found = |arguments: &[&str]| {
        let all = [&["--json", damaged.to_str().expect("a path")], arguments].concat();
        let output = check(&all);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        list(&found, "findings").iter().filter(|found| found["rule"] == "PKT-ICRC").count()
    };
    assert_eq!((found(&[]), found(&["--qpn", "0xfffffe"])), (1, 1));
    fs::remove_file(&damaged).expect("removed");
}

#[test]
fn the_html_page_loads_nothing() {
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conform_output.html");
    for file in [RETRIES, LOSSES] {
        let capture = path(file);
        let output =
            check(&[capture.to_str().expect("a path"), "--html", page.to_str().expect("a path")]);
        assert_eq!(output.status.code(), Some(3));
        let html = fs::read_to_string(&page).expect("a page");
        assert!(html.starts_with("<!doctype html>") && html.contains("</svg>"), "{file}");
        let html = html.replace("http://www.w3.org/2000/svg", "").replace("href=\"#", "");
        for outside in ["://", "src=", "href=", "url(", "@import", "<link", "<iframe", "fetch("] {
            assert!(!html.contains(outside), "{file}: {outside}");
        }
    }
    fs::remove_file(&page).expect("removed");
}

/// Several captures are judged one by one; only `--taps` joins them.
#[test]
fn captures_are_joined_only_on_request() {
    let taps = ["A", "B"].map(|side| path(&format!("rxe/loss_nft_atomic.tap{side}.pcap.zst")));
    let [a, b] = taps.each_ref().map(|path| path.to_str().expect("a path"));
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_slice(&check(arguments).stdout).expect("JSON")
    };
    let rules = |report: &Value| {
        let counts = report["counts"].as_object().expect("counts");
        counts.keys().cloned().collect::<Vec<_>>()
    };
    let between = "FAB-LOSS-BETWEEN".to_owned();
    let joined = json(&["--json", "--taps", a, b]);
    assert!(rules(&joined).contains(&between), "{joined:#}");
    let apart = "do not overlap in time";
    let note = |files: [&str; 3]| String::from_utf8_lossy(&check(&files).stderr).into_owned();
    assert!(!note(["--taps", a, b]).contains(apart), "they do");
    let other = path(RETRIES);
    assert!(note(["--taps", a, other.to_str().expect("a path")]).contains(apart));
    let each = json(&["--json", a, b]);
    let alone = [a, b].map(|file| json(&["--json", file]));
    assert_eq!(each.as_array().expect("a list"), &alone);
    assert!(alone.iter().all(|report| !rules(report).contains(&between)));

    let output = check(&["--sarif", a, b]);
    let sarif: Value = serde_json::from_slice(&output.stdout).expect("SARIF");
    assert_eq!(list(&sarif, "runs").len(), 2);
    let junit = String::from_utf8(check(&["--junit", a, b]).stdout).expect("text");
    assert_eq!((junit.matches("<testsuite ").count(), junit.matches("<?xml").count()), (2, 1));
    assert!(junit.contains("<testsuites>\n") && junit.ends_with("</testsuites>\n"), "{junit}");
    let words = String::from_utf8(check(&[a, b]).stdout).expect("text");
    assert!(words.contains(&format!("== {b}\n")), "{words}");
    assert!(words.contains("2 captures, each judged by itself"), "{words}");
    assert_one_line_error(&check(&["--flow", "1", a, b]), "--flow takes one capture");
}

/// One capture that cannot be read does not hide the findings of another.
#[test]
fn a_missing_capture_does_not_hide_another() {
    let failed = path(RETRIES);
    let output = check(&["nothing.pcap", failed.to_str().expect("a path")]);
    assert_one_line_error(&output, "nothing.pcap");
    assert!(String::from_utf8_lossy(&output.stdout).contains("findings"));
}

#[test]
fn a_page_that_cannot_be_written_is_named() {
    let clean = path(CLEAN);
    let output = check(&[clean.to_str().expect("a path"), "--html", "/nowhere/page.html"]);
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("/nowhere/page.html: No such file or directory"), "{line}");
}

/// The page has a table of the flows, and each link in it has a target.
#[test]
fn the_page_of_several_captures_has_an_overview_and_no_dangling_link() {
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conform_overview.html");
    let [first, second] = [RETRIES, LOSSES].map(path);
    let [first, second] = [&first, &second].map(|path| path.to_str().expect("a path"));
    check(&[first, second, "--html", page.to_str().expect("a path")]);
    let html = fs::read_to_string(&page).expect("a page");
    assert!(html.contains("<table>") && html.contains("prefers-color-scheme:dark"), "{html}");
    let links: Vec<_> =
        html.split("href=\"#").skip(1).filter_map(|l| l.split('"').next()).collect();
    assert!(!links.is_empty());
    for link in links {
        assert_eq!(html.matches(&format!("id=\"{link}\"")).count(), 1, "{link}");
    }
    fs::remove_file(&page).expect("removed");
}
