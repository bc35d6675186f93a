//! The compliance report: every rule of a specification that the code cites, the places that cite
//! it, and the tests that pin it. A test cites a rule as the code does: in a comment.
//!
//! `tests/compliance.toml` says what each rule demands. A rule without a test has a reason there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::Result;

const RULES: &str = "tests/compliance.toml";
const REPORT: &str = "docs/compliance.html";

/// Folders with product code and tests.
const FOLDERS: &[&str] = &["congestion", "engine", "pfc-tools", "tests", "wire"];

/// A rule, as the list has it.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// As the code cites it.
    id: String,
    /// The document.
    source: String,
    /// What it demands.
    text: String,
    /// Why no test pins it.
    untested: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
struct Rules {
    rule: Vec<Rule>,
}

/// Where a rule is cited.
#[derive(Debug, Default)]
struct Places {
    /// Files of product code with line numbers.
    code: BTreeSet<(String, usize)>,
    /// Files and functions of tests.
    tests: BTreeSet<(String, String)>,
}

/// Writes the report. The root of the repository is the current folder.
pub fn main() -> Result<u8> {
    std::fs::write(REPORT, report(Path::new("."))?)?;
    println!("wrote {REPORT}");
    Ok(0)
}

/// The report as HTML. Fails if the list and the code do not fit each other.
fn report(root: &Path) -> Result<String> {
    let rules: Rules = toml::from_str(&std::fs::read_to_string(root.join(RULES))?)?;
    let mut places: BTreeMap<String, Places> = BTreeMap::new();
    for file in source_files(root)? {
        let text = std::fs::read_to_string(root.join(&file))?;
        collect(&file, &text, &mut places);
    }
    check(&rules.rule, &places)?;
    Ok(html(&rules.rule, &places))
}

/// All Rust files below [`FOLDERS`], sorted, without build products and this file.
fn source_files(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && name != "target" {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") && name != "compliance.rs" {
                let below = path.strip_prefix(root)?;
                found.push(below.to_str().ok_or("a path that is not UTF-8")?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Adds the citations of a file.
fn collect(file: &str, text: &str, places: &mut BTreeMap<String, Places>) {
    // Sections of IBTA have two dots or more; those of an RFC are part of the RFC's rule.
    let cited = Regex::new(
        r"(?x)\b(
            [CoO]\d{1,2}-\d+(?:\.\d+)* | RFC\ \d+ | 802\.1Q[a-z]{2} | [Aa]nnex\ A?\d+[A-Z]?
            | section\ \d+(?:\.\d+){2,}
        )\b",
    );
    let cited = cited.expect("a plain pattern");
    let function = Regex::new(r"^\s*(?:pub(?:\([a-z ]+\))? )?(?:const )?(?:unsafe )?fn (\w+)")
        .expect("a plain pattern");
    let is_test_file = file.starts_with("tests/") || file.contains("/tests/");
    let lines: Vec<&str> = text.lines().collect();
    let tests_from = lines.iter().position(|line| line.trim_start().starts_with("mod tests {"));
    for (number, line) in lines.iter().enumerate() {
        for found in cited.find_iter(line) {
            let id = found.as_str().replace("Annex", "annex");
            let of_rule = places.entry(id).or_default();
            if !is_test_file && tests_from.is_none_or(|from| number < from) {
                of_rule.code.insert((file.to_owned(), number + 1));
                continue;
            }
            // A doc comment belongs to the function below, other comments to the one above.
            let name = |line: &&str| function.captures(line).map(|found| found[1].to_owned());
            let is_doc = line.trim_start().starts_with("///");
            let test = match is_doc {
                true => lines[number..].iter().find_map(name),
                false => lines[..number].iter().rev().find_map(name),
            };
            of_rule.tests.insert((file.to_owned(), test.unwrap_or_default()));
        }
    }
}

/// Every citation is in the list, every rule of the list is cited by code, and every rule has a
/// test or a reason, not both.
fn check(rules: &[Rule], places: &BTreeMap<String, Places>) -> Result {
    let mut wrong = Vec::new();
    let known: BTreeSet<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
    if known.len() != rules.len() {
        wrong.push(format!("{RULES} has a rule twice"));
    }
    for (id, of_rule) in places.iter().filter(|(id, _)| !known.contains(id.as_str())) {
        wrong.push(format!("{RULES} does not have {id}: {of_rule:?}"));
    }
    for rule in rules {
        let of_rule = places.get(&rule.id);
        let has_code = of_rule.is_some_and(|of_rule| !of_rule.code.is_empty());
        let has_test = of_rule.is_some_and(|of_rule| !of_rule.tests.is_empty());
        if !has_code {
            wrong.push(format!("no code cites {}", rule.id));
        }
        if has_test == rule.untested.is_some() {
            let what = if has_test { "a test and a reason for none" } else { "no test, no reason" };
            wrong.push(format!("{} has {what}", rule.id));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>Feroce: compliance</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem 1rem; }
table { border-collapse: collapse; table-layout: fixed; width: 100%; }
tr { border-bottom: 1px solid #8886; }
th, td { padding: .4rem .6rem; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
th:nth-child(1) { width: 6rem; }
th:nth-child(2) { width: 30%; }
th:nth-child(3) { width: 24%; }
code { font-size: .85em; }
.none { color: #b26a00; }
@media (max-width: 50rem) {
  table, tbody, tr, td { display: block; }
  th { display: none; }
  td { padding: .2rem 0; }
}
</style>
</head>
<body>
<h1>Rules that the code cites</h1>
<p>Written by <code>cargo xtask compliance</code> from the comments of the code and of the tests.
The rules that captures are checked against, with their mutations, are in
<code>docs/conform.md</code>.
</p>
";

fn html(rules: &[Rule], places: &BTreeMap<String, Places>) -> String {
    let mut out = HEAD.to_owned();
    let untested = rules.iter().filter(|rule| rule.untested.is_some()).count();
    let tested = rules.len() - untested;
    let _ = writeln!(out, "<p>{tested} rules have a test, {untested} have none.</p>");
    out += "<table>\n<tr><th>rule</th><th>demands</th><th>code</th><th>tests</th></tr>\n";
    for rule in rules {
        let of_rule = &places[&rule.id];
        let list = |names: Vec<String>| {
            // Long names may be broken after these.
            let parts = |name: &String| escaped(name).replace('/', "/<wbr>").replace('_', "_<wbr>");
            let item = |name: &String| format!("<code>{}</code>", parts(name));
            names.iter().map(item).collect::<Vec<_>>().join("<br>")
        };
        // Files without line numbers: the report does not change with every edit.
        let files: BTreeSet<String> = of_rule.code.iter().map(|(file, _)| file.clone()).collect();
        let code = list(files.into_iter().collect());
        let tests = of_rule.tests.iter().map(|(file, name)| format!("{file}: {name}")).collect();
        let tests = match &rule.untested {
            Some(why) => format!("<span class=\"none\">none: {}</span>", escaped(why)),
            None => list(tests),
        };
        let (id, source, text) = (escaped(&rule.id), escaped(&rule.source), escaped(&rule.text));
        let _ = writeln!(
            out,
            "<tr><td>{id}<br><small>{source}</small></td><td>{text}</td><td>{code}</td>\
             <td>{tests}</td></tr>"
        );
    }
    out + "</table>\n</body>\n</html>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(id: &str, untested: Option<&str>) -> Rule {
        let untested = untested.map(str::to_owned);
        Rule { id: id.into(), source: "IBTA".into(), text: "x < y".into(), untested }
    }

    #[test]
    fn the_committed_report_is_that_of_this_tree() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let committed = std::fs::read_to_string(root.join(REPORT)).expect("a report");
        let report = report(root).expect("list and code fit each other");
        assert!(committed == report, "{REPORT} is old: run `cargo xtask compliance`");
    }

    #[test]
    fn citations_belong_to_code_or_to_a_test() {
        let id = |number: u32| format!("C1-{number}"); // Not cited by this text itself.
        let text = format!(
            "// {}\nfn code() {{}}\nmod tests {{\n    /// {}\n    #[test]\n    fn above() {{}}\n\
             fn around() {{\n        // {}\n    }}\n}}\n",
            id(1),
            id(2),
            id(3)
        );
        let mut places = BTreeMap::new();
        collect("engine/src/x.rs", &text, &mut places);
        let tests = |number| {
            let of_rule = &places[&id(number)];
            let names: Vec<&str> = of_rule.tests.iter().map(|(_, name)| name.as_str()).collect();
            (of_rule.code.len(), names.join(" "))
        };
        assert_eq!(tests(1), (1, String::new()));
        assert_eq!(tests(2), (0, "above".into()));
        assert_eq!(tests(3), (0, "around".into()));
    }

    #[test]
    fn sections_of_the_specification_are_citations_and_those_of_an_rfc_are_not() {
        let section = |number: &str| format!("section {number}");
        let text = format!("// IBTA, {}; RFC 1, {}.\n", section("1.2.3.4"), section("3.3"));
        let mut places = BTreeMap::new();
        collect("engine/src/x.rs", &text, &mut places);
        let found: Vec<&String> = places.keys().collect();
        assert_eq!(found, ["RFC 1", &section("1.2.3.4")]);
    }

    #[test]
    fn a_rule_needs_code_and_a_test_or_a_reason() {
        let id = format!("C1-{}", 9);
        let cited = |tests: usize| {
            let mut of_rule = Places::default();
            of_rule.code.insert(("a.rs".into(), 1));
            of_rule.tests.extend((0..tests).map(|n| ("t.rs".to_owned(), format!("test{n}"))));
            BTreeMap::from([(id.clone(), of_rule)])
        };
        assert!(check(&[rule(&id, None)], &cited(1)).is_ok());
        assert!(check(&[rule(&id, Some("why"))], &cited(0)).is_ok());
        assert!(check(&[rule(&id, None)], &cited(0)).is_err());
        assert!(check(&[rule(&id, Some("why"))], &cited(1)).is_err());
        assert!(check(&[], &cited(1)).is_err(), "not in the list");
        assert!(check(&[rule(&id, None)], &BTreeMap::new()).is_err(), "no code");
        assert!(html(&[rule(&id, None)], &cited(1)).contains("x &lt; y"));
    }
}
