//! Every shipped scenario with one mistake: in each section of the scenario and of its gates file
//! an unknown key, and for each key a wrong type, a number out of range, and its removal.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use feroce_pfc_tools::fabric::scenario::Scenario;
use feroce_pfc_tools::scenarios;
use toml::{Table, Value};

/// The sections that no shipped scenario has.
const OTHERS: &str = r#"
title = "the rest of the language"
duration = "2ms"
[topology]
kind = "two-tier"
hosts = 2
[routing]
kind = "up-down"
roots = ["spine1", "spine2"]
forbidden = ["leaf1 > spine1 > leaf2"]
[[route]]
at = "leaf1"
to = "h3"
via = "spine2"
[switch]
weights = [1, 1, 1, 2, 1, 1, 1, 1]
[measure]
queues = "leaf1->h1"
priority = 3
sample = "10us"
[[traffic]]
name = "one"
from = "h1"
to = "h3"
"#;

/// Keys without which a section means nothing.
const MANDATORY: &[(&str, &[&str])] = &[
    ("", &["title", "duration", "topology"]),
    ("topology", &["kind"]),
    ("link", &["between"]),
    ("route", &["at", "to", "via"]),
    ("traffic", &["name"]),
    ("case", &["name"]),
    ("gate", &["name", "measure"]),
    ("explained", &["why", "at_least", "at_most"]),
    ("figure", &["title", "shows"]),
    ("published", &["name", "file"]),
];

/// A file as tables, and its name in errors.
#[derive(Clone)]
struct File {
    name: &'static str,
    tables: Table,
}

impl File {
    fn new(name: &'static str, text: &str) -> Self {
        Self { name, tables: text.parse().expect("TOML") }
    }

    /// The text of the file, with a line for each key.
    fn text(&self) -> String {
        let mut text = String::new();
        write_table(&mut text, "", &self.tables);
        text
    }
}

fn key(name: &str) -> String {
    let is_bare = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if is_bare { name.to_owned() } else { format!("{name:?}") }
}

fn write_table(text: &mut String, path: &str, table: &Table) {
    let tables = |value: &Value| match value {
        Value::Table(_) => true,
        Value::Array(list) => !list.is_empty() && list.iter().all(Value::is_table),
        _ => false,
    };
    for (name, value) in table.iter().filter(|(_, value)| !tables(value)) {
        let _ = writeln!(text, "{} = {}", key(name), inline(value));
    }
    for (name, value) in table.iter().filter(|(_, value)| tables(value)) {
        let path = if path.is_empty() { key(name) } else { format!("{path}.{}", key(name)) };
        match value {
            Value::Table(inner) => {
                let _ = writeln!(text, "[{path}]");
                write_table(text, &path, inner);
            }
            Value::Array(list) => {
                for inner in list.iter().filter_map(Value::as_table) {
                    let _ = writeln!(text, "[[{path}]]");
                    write_table(text, &path, inner);
                }
            }
            _ => unreachable!("only tables"),
        }
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(list) => {
            format!("[{}]", list.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Value::Table(table) => {
            let entries = table.iter().map(|(name, value)| format!("{name:?} = {}", inline(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A step to an inner table: the key, and the index of a list.
type Step = (String, Option<usize>);

/// Calls `each` with the steps to every table, the outermost first.
fn tables(table: &Table, at: &mut Vec<Step>, each: &mut impl FnMut(&[Step], &Table)) {
    each(at, table);
    for (name, value) in table {
        let inner = match value {
            Value::Table(inner) => vec![(None, inner)],
            Value::Array(list) => {
                let all = list.iter().enumerate();
                all.filter_map(|(index, own)| Some((Some(index), own.as_table()?))).collect()
            }
            _ => Vec::new(),
        };
        for (index, inner) in inner {
            at.push((name.clone(), index));
            tables(inner, at, each);
            at.pop();
        }
    }
}

fn table_at<'a>(file: &'a mut File, steps: &[Step]) -> &'a mut Table {
    let mut table = &mut file.tables;
    for (name, index) in steps {
        let entry = table.get_mut(name).expect("a step");
        table = match (entry, index) {
            (Value::Array(list), Some(index)) => list[*index].as_table_mut().expect("a table"),
            (Value::Table(inner), None) => inner,
            _ => unreachable!("steps lead to tables"),
        };
    }
    table
}

/// A number that is out of every range, in place of a number with or without a unit.
fn excessive(value: &Value) -> Option<Value> {
    const UNITS: [&str; 18] = [
        "ns", "us", "ms", "s", "kb/s", "Mb/s", "Gb/s", "b/s", "KiB", "MiB", "KB", "MB", "B", "%",
        "", "/8", "/16", "/256",
    ];
    let huge = "99999999999999999999";
    match value {
        Value::Integer(_) | Value::Float(_) => Some(Value::Float(1e30)),
        Value::String(text) => {
            let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            let is_number = unit.len() < text.len() && UNITS.contains(&unit);
            is_number.then(|| Value::String(format!("{huge}{unit}")))
        }
        Value::Array(list) => list
            .iter()
            .map(excessive)
            .collect::<Option<Vec<_>>>()
            .and_then(|list| if list.is_empty() { None } else { Some(Value::Array(list)) }),
        _ => None,
    }
}

/// A value of a type that the key cannot have.
fn of_wrong_type(value: &Value) -> Value {
    match value {
        Value::Table(_) => Value::Integer(5),
        Value::Array(list) if list.iter().all(Value::is_table) => Value::Integer(5),
        _ => Value::Table(Table::from_iter([("a".to_owned(), Value::Integer(1))])),
    }
}

/// The scenario and its gates file. Counts what was tried.
struct Pair {
    files: Vec<File>,
    /// Paths of the sections, without indexes.
    sections: BTreeSet<String>,
    tried: usize,
}

impl Pair {
    fn parse(files: &[File]) -> Result<Scenario, String> {
        let texts: Vec<String> = files.iter().map(File::text).collect();
        let gates = files.get(1).map(|file| (file.name, texts[1].as_str()));
        let scenario = (files[0].name, texts[0].as_str());
        Scenario::parse_with_gates(scenario, gates, &[], None).map_err(|error| error.to_string())
    }

    /// Parses `files`, of which file `which` has a mistake in `key` of the section at `path`. An
    /// error names a file, a line of it, and on the same line the key.
    fn check(&mut self, files: &[File], path: &str, key: &str, must_fail: bool) {
        self.tried += 1;
        let error = match Self::parse(files) {
            Ok(_) if must_fail => panic!("{}: {path}: {key}: accepted", files[0].name),
            Ok(_) => return,
            Err(error) => error,
        };
        let context = || format!("{path}, {key}: {error}");
        let named = files.iter().rev().find_map(|file| {
            let rest = error.strip_prefix(file.name)?.strip_prefix(':')?;
            Some((file, rest.split_once(": ")?))
        });
        let Some((file, (line, message))) = named else {
            panic!("no file and line: {}", context())
        };
        let line: usize = line.parse().unwrap_or_else(|_| panic!("no line: {}", context()));
        let text = file.text();
        let line = text.lines().nth(line - 1).unwrap_or_else(|| panic!("{}", context()));
        assert!(message.contains('`'), "no key: {}", context());
        let named = message.split('`').nth(1).unwrap_or_default();
        let leaf = named.rsplit('.').find(|part| part.parse::<usize>().is_err());
        let leaf = leaf.unwrap_or_default();
        // A missing key is on no line: its table is.
        let is_there = line.contains(leaf) || line.starts_with('[') || message.contains("missing");
        assert!(is_there, "`{line}`: {}", context());
    }

    /// Returns true if every case replaces the value.
    fn is_replaced(&self, steps: &[Step], key: &str) -> bool {
        let mut path = String::new();
        for (name, index) in steps {
            let index = index.map_or_else(String::new, |index| format!(".{index}"));
            let _ = write!(path, "{name}{index}.");
        }
        path.push_str(key);
        let replaces = |case: &Value| case.get("set").is_some_and(|set| set.get(&path).is_some());
        let cases = self.files[0].tables.get("case").and_then(Value::as_array);
        cases.is_some_and(|cases| cases.iter().all(replaces))
    }

    fn mutate(&mut self) {
        for which in 0..self.files.len() {
            let file = self.files[which].clone();
            let mut all: Vec<(Vec<Step>, Table)> = Vec::new();
            tables(&file.tables, &mut Vec::new(), &mut |at, table| {
                all.push((at.to_vec(), table.clone()));
            });
            let mut seen = BTreeSet::new();
            for (steps, table) in all {
                let names: Vec<&str> = steps.iter().map(|(name, _)| name.as_str()).collect();
                let path = names.join(".");
                let section = names.last().copied().unwrap_or_default();
                self.sections.insert(path.clone());
                let with = |key: &str, value: Option<Value>| {
                    let mut files = self.files.clone();
                    let table = table_at(&mut files[which], &steps);
                    match value {
                        Some(value) => drop(table.insert(key.to_owned(), value)),
                        None => drop(table.remove(key)),
                    }
                    files
                };
                let mut mistakes = Vec::new();
                if seen.insert((path.clone(), String::new())) {
                    let files = with("nonsense", Some(Value::Integer(1)));
                    mistakes.push((files, "nonsense".to_owned(), true));
                }
                for (key, value) in &table {
                    if !seen.insert((path.clone(), key.clone())) {
                        continue;
                    }
                    let is_read = !self.is_replaced(&steps, key);
                    let values = [Some(of_wrong_type(value)), excessive(value)];
                    for value in values.into_iter().flatten() {
                        mistakes.push((with(key, Some(value)), key.clone(), is_read));
                    }
                    let own = MANDATORY.iter().find(|(name, _)| *name == section);
                    let is_mandatory = which == 0 || !section.is_empty();
                    let is_mandatory =
                        is_mandatory && own.is_some_and(|(_, keys)| keys.contains(&key.as_str()));
                    mistakes.push((with(key, None), key.clone(), is_mandatory));
                }
                for (files, key, must_fail) in mistakes {
                    self.check(&files, &path, &key, must_fail);
                }
            }
        }
    }
}

#[test]
fn every_mistake_is_an_error_with_file_line_and_key() {
    let mut sections = BTreeSet::new();
    let mut tried = 0;
    let built_in = scenarios::ALL.iter().map(|own| {
        let gates = File::new("x.gates.toml", own.gates);
        (own.name, vec![File::new("x.toml", own.text), gates])
    });
    let others = ("others", vec![File::new("x.toml", OTHERS)]);
    for (name, files) in built_in.chain([others]) {
        println!("{name}"); // Shown if it fails.
        let mut pair = Pair { files, sections: BTreeSet::new(), tried: 0 };
        Pair::parse(&pair.files).unwrap_or_else(|error| panic!("{error}"));
        pair.mutate();
        sections.append(&mut pair.sections);
        tried += pair.tried;
    }
    for section in [
        "",
        "topology",
        "link",
        "routing",
        "route",
        "packet",
        "switch",
        "pfc",
        "host",
        "congestion",
        "traffic",
        "measure",
        "case",
        "case.set",
        "gate",
        "gate.explained",
        "case.gate",
        "case.gate.explained",
        "figure",
        "figure.published",
    ] {
        assert!(sections.contains(section), "{section}: {sections:?}");
    }
    assert!(tried > 2000, "{tried}");
}
