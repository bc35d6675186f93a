//! The table of metrics, the text, the page and the dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use feroce_engine::counters::Counter;
use serde_json::Value;

use super::table::{METRICS, Metric, PROGRAM, Source};
use super::*;
use crate::figures::samples::{daemon, snapshot};

fn metrics() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().copied().flatten()
}

/// Figures with a value for every metric, and names that need escaping.
fn figures() -> Figures {
    let mut program = snapshot(2_500_000_000, 10, 3);
    program.link_rate = Some(100_000_000_000);
    program.interface = "eth0@1".into();
    program.program = "a\"b\\c{d}=e".into();
    program.counters.insert("port_xmit_data".into(), 5);
    program.counters.insert("rx_prio3_pause_duration".into(), 1_500_000);
    let mut daemon = daemon(4711, 9);
    let limits = daemon.stat.limits.as_mut().unwrap();
    (limits.packets, limits.bytes) = (Some(1000), Some(1 << 60));
    Figures { programs: vec![program], daemons: vec![daemon], errors: vec!["x".into()] }
}

#[test]
fn names_and_help_follow_the_rules_of_prometheus() {
    let mut names = BTreeSet::new();
    for metric in metrics() {
        let (name, about) = (metric.name, metric.about());
        assert!(names.insert(name), "{name} twice");
        assert!(name.starts_with("feroce_") || name.starts_with("node_infiniband_"), "{name}");
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(is_plain), "{name}");
        assert!(about.ends_with('.') && !about.contains(['\n', '|']), "{name}: {about}");
    }
}

#[test]
fn every_counter_is_exported_once() {
    let exported = metrics().filter_map(|metric| match metric.source {
        Source::Counter(counter, _) => Some(counter),
        _ => None,
    });
    let exported: Vec<_> = exported.chain(export::PAUSED).collect();
    for counter in Counter::ALL {
        let times = exported.iter().filter(|other| *other == counter).count();
        assert_eq!(times, 1, "{}", counter.name());
    }
}

/// A family of samples: its type, and values by name and labels.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: BTreeMap<BTreeMap<String, String>, f64>,
}

/// Parses Prometheus' text format, without its optional parts: each line must be HELP, TYPE or a
/// sample, in this order for each metric.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut helped, mut current) = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty(), "{line}");
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, helped, "HELP comes first");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} twice");
            current = name.to_owned();
        } else {
            let (name, labels, value) = sample(line);
            assert_eq!(name, current, "{line}");
            let samples = &mut families.get_mut(&current).unwrap().samples;
            assert!(samples.insert(labels, value).is_none(), "{line} twice");
        }
    }
    families
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            let (mut value, mut chars) = (String::new(), after.char_indices());
            let closing = loop {
                match chars.next().expect("a closing quote") {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        c @ ('"' | '\\') => c,
                        other => panic!("\\{other} in {line}"),
                    }),
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            rest = &after[closing + 1..];
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap();
    }
    let value = rest.strip_prefix(' ').unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
    (name.to_owned(), labels, value)
}

#[test]
fn the_text_has_every_metric_with_its_labels() {
    let families = parse(&export::text(&figures()).unwrap());
    for metric in metrics() {
        let family = families.get(metric.name).unwrap_or_else(|| panic!("{} lacks", metric.name));
        assert_eq!(family.kind == "counter", metric.is_counter(), "{}", metric.name);
        let names: BTreeSet<_> = metric.source.labels().iter().copied().collect();
        for labels in family.samples.keys() {
            assert_eq!(labels.keys().map(|name| &**name).collect::<BTreeSet<_>>(), names);
        }
    }
    assert_eq!(families.len(), metrics().count());
    let value = |name: &str, labels: &[(&str, &str)]| {
        let is_it = |found: &BTreeMap<String, String>| {
            labels.iter().all(|(name, value)| found[*name] == *value)
        };
        let found = families[name].samples.iter().filter(|(labels, _)| is_it(labels));
        found.map(|(_, value)| *value).sum::<f64>()
    };
    let own = [("device", "eth0"), ("port", "1"), ("pid", "1"), ("program", "a\"b\\c{d}=e")];
    assert_eq!(value("node_infiniband_port_data_transmitted_bytes_total", &own), 20.0);
    assert_eq!(value("node_infiniband_packet_sequence_errors_total", &own), 3.0);
    assert_eq!(value("node_infiniband_rate_bytes_per_second", &own), 12.5e9);
    assert_eq!(value("feroce_open_seconds", &own), 2.5);
    assert_eq!(value("feroce_paused_seconds_total", &[("priority", "3")]), 1.5);
    assert_eq!(value("feroce_core_received_bytes_total", &[("core", "1")]), 10_000.0);
    let client = [("device", "eth0"), ("user", "1000"), ("program", "ib_write_bw")];
    assert_eq!(value("feroce_client_transmitted_frames_total", &client), 9.0);
    assert_eq!(value("feroce_user_qp_numbers", &[("user", "1000")]), 256.0);
    assert_eq!(value("feroce_limit_bytes_per_second", &[]), 2f64.powi(60));
    assert_eq!(value("feroce_exporter_failures", &[]), 1.0);
    assert_eq!(value("feroce_program_info", &[("congestion", "off")]), 1.0);
}

/// Programs choose names, and how many devices and cores they claim to have.
#[test]
fn a_hostile_program_makes_few_series() {
    let mut program = snapshot(1, 1, 1);
    program.program = "x".repeat(100_000);
    program.cores = vec![program.cores[0]; 2000];
    program.counters = (0..10_000).map(|n| (format!("made_up_{n}"), n)).collect();
    let twice = vec![program.clone(), program];
    let text = export::text(&Figures { programs: twice, ..Figures::default() }).unwrap();
    let families = parse(&text);
    assert_eq!(families["feroce_core_received_frames_total"].samples.len(), 64);
    let name = families["feroce_queue_pairs"].samples.keys().next().unwrap()["program"].len();
    assert_eq!((families["feroce_queue_pairs"].samples.len(), name), (1, 64));
    assert_eq!(families["feroce_program_info"].samples.values().copied().sum::<f64>(), 1.0);
    assert!(text.len() < 200_000, "{} bytes", text.len());
}

#[test]
fn without_programs_only_own_metrics_are_left() {
    let families = parse(&export::text(&Figures::default()).unwrap());
    let names: Vec<_> = families.keys().map(|name| &**name).collect();
    assert_eq!(names, ["feroce_exporter_failures", "feroce_exporter_info"]);
}

fn document(path: &str) -> String {
    let path = format!("{}/../../docs/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The table of docs/metrics.md.
fn markdown() -> String {
    let mut text =
        "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n".to_owned();
    for metric in metrics() {
        let kind = if metric.is_counter() { "counter" } else { "gauge" };
        let labels = metric.source.labels();
        let labels = match labels.strip_prefix(&PROGRAM) {
            // The page says what P is.
            Some(more) => [&["P"][..], more].concat().join(", "),
            None if labels.is_empty() => "-".to_owned(),
            None => labels.join(", "),
        };
        let (name, unit, about) = (metric.name, metric.unit.text(), metric.about());
        let _ = writeln!(text, "| `{name}` | {kind} | {unit} | {labels} | {about} |");
    }
    text
}

#[test]
fn the_page_shows_the_table() {
    assert!(document("metrics.md").contains(&markdown()), "the table must be:\n{}", markdown());
}

/// Every text that contains a query: of panels, and of variables.
fn queries(dashboard: &Value) -> Vec<&str> {
    let list = |path: &str| dashboard.pointer(path).and_then(Value::as_array).expect("a list");
    let targets =
        list("/panels").iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let mut queries: Vec<_> =
        targets.map(|target| target["expr"].as_str().expect("a query")).collect();
    let variables = list("/templating/list");
    queries.extend(variables.iter().filter_map(|variable| variable["query"]["query"].as_str()));
    queries
}

#[test]
fn the_dashboard_uses_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(&document("grafana/feroce.json")).unwrap();
    let known: BTreeSet<_> = metrics().map(|metric| metric.name).collect();
    let queries = queries(&dashboard);
    let mut used = BTreeSet::new();
    for query in &queries {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<_> =
            words.filter(|word| word.starts_with("feroce_") || word.starts_with("node_")).collect();
        assert!(!names.is_empty(), "{query}");
        for name in &names {
            assert!(known.contains(name), "{name} in {query}");
            let metric = metrics().find(|metric| metric.name == *name).unwrap();
            let is_rate = query.contains(&format!("rate({name}{{"));
            assert_eq!(is_rate, metric.is_counter(), "a rate of a counter only: {query}");
        }
        used.extend(names);
        assert_eq!(query.matches('(').count(), query.matches(')').count(), "{query}");
    }
    assert!(queries.len() > 40 && used.len() > 30, "{} and {}", queries.len(), used.len());
}

/// The fields that Grafana's schema of dashboards and panels requires.
#[test]
fn the_dashboard_has_the_fields_of_the_schema() {
    let dashboard: Value = serde_json::from_str(&document("grafana/feroce.json")).unwrap();
    for (field, is_right) in [
        ("uid", dashboard["uid"].is_string()),
        ("title", dashboard["title"].is_string()),
        ("schemaVersion", dashboard["schemaVersion"].as_u64() >= Some(36)),
        ("time", dashboard["time"]["from"].is_string() && dashboard["time"]["to"].is_string()),
        ("templating", dashboard["templating"]["list"].is_array()),
        ("annotations", dashboard["annotations"]["list"].is_array()),
    ] {
        assert!(is_right, "{field}");
    }
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "an id of its own: {panel}");
        assert!(["timeseries", "stat", "table"].contains(&panel["type"].as_str().unwrap()));
        assert!(panel["title"].is_string() && panel["fieldConfig"]["defaults"]["unit"].is_string());
        let place = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{panel}");
        for (x, y) in (0..place("w")).flat_map(|x| (0..place("h")).map(move |y| (x, y))) {
            assert!(cells.insert((place("x") + x, place("y") + y)), "panels overlap: {panel}");
        }
        let mut refs = BTreeSet::new();
        for target in panel["targets"].as_array().unwrap() {
            assert!(refs.insert(target["refId"].as_str().unwrap()), "{panel}");
            assert_eq!(target["datasource"]["uid"], "${datasource}");
        }
    }
}
