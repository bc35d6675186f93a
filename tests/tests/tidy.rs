//! Rules of this repository that the compiler does not check: lengths, places of `unsafe`,
//! directions of dependencies, unused counters and rules, documents that name what does not exist.
//! `tidy/rules.rs` lists the exceptions with their reasons. An exception that is no longer needed
//! fails, too.

mod tidy {
    pub mod imports;
    pub mod rules;
    pub mod source;
}

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use feroce_conform::rules::RULES;
use feroce_engine::counters::Counter;
use feroce_engine::device::settings::KEYS;
use tidy::rules;
use tidy::source::{Source, rust_sources, text_files};

/// Fails if `broken` is not empty, and prints a line per entry.
#[track_caller]
fn none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}\n", broken.join("\n  "));
}

/// Fails for each entry of `found` that is not in `exceptions`, and for each exception that is not
/// in `found`.
#[track_caller]
fn none_but(rule: &str, found: &BTreeMap<String, String>, exceptions: &[(&str, &str)]) {
    let written: BTreeSet<&str> = exceptions.iter().map(|(what, _)| *what).collect();
    let new = found.iter().filter(|(what, _)| !written.contains(what.as_str()));
    let mut broken: Vec<String> = new.map(|(what, how)| format!("{what}: {how}")).collect();
    let stale = written.iter().filter(|what| !found.contains_key(**what));
    broken.extend(stale.map(|what| format!("{what}: the exception is no longer needed")));
    none(rule, &broken);
}

#[test]
fn functions_fit_a_screen() {
    let mut found = BTreeMap::new();
    for source in rust_sources() {
        for function in &source.functions {
            if function.lines > rules::FUNCTION_LINES {
                let what = format!("{}: {}", source.path, function.name);
                found.insert(what, format!("{} lines", function.lines));
            }
        }
    }
    let rule = format!("a function has at most {} lines", rules::FUNCTION_LINES);
    none_but(&rule, &found, rules::LONG_FUNCTIONS);
}

#[test]
fn files_are_short_without_their_tests() {
    let mut found = BTreeMap::new();
    for source in rust_sources().iter().filter(|source| !source.is_test()) {
        let lines = source.lines_without_tests;
        if lines > rules::FILE_LINES {
            found.insert(source.path.clone(), format!("{lines} lines"));
        }
    }
    let rule = format!("a file has at most {} lines without its tests", rules::FILE_LINES);
    none_but(&rule, &found, rules::LONG_FILES);
}

#[test]
fn lines_fit_the_width() {
    let mut broken = Vec::new();
    for (path, text) in text_files() {
        if rules::WIDE.iter().any(|(part, _)| path.contains(part)) {
            continue;
        }
        let lines = match path.rsplit('.').next() {
            Some("md") => tidy::source::prose_lines(&text),
            Some("toml") => tidy::source::comment_lines(&text),
            _ => (1..).zip(text.lines()).collect(),
        };
        for (number, line) in lines {
            let width = line.chars().count();
            if width > rules::WIDTH {
                broken.push(format!("{path}:{number}: {width} columns"));
            }
        }
    }
    none(&format!("a line has at most {} columns", rules::WIDTH), &broken);
}

#[test]
fn files_say_what_they_are() {
    let mut found = BTreeMap::new();
    for source in rust_sources() {
        if !source.text.trim_start().starts_with("//!") {
            let exception = rules::WITHOUT_HEAD.iter().find(|(part, _)| source.path.contains(part));
            let what = exception.map_or(source.path.as_str(), |(part, _)| part).to_owned();
            found.insert(what, "no head".to_owned());
        }
    }
    none_but("a file begins with `//!` and what it is", &found, rules::WITHOUT_HEAD);
}

#[test]
fn unsafe_is_only_in_listed_places() {
    let place_of =
        |path: &str| rules::UNSAFE_PLACES.iter().find(|(place, _)| path.starts_with(place));
    let mut used = BTreeSet::new();
    let mut broken = Vec::new();
    for source in rust_sources() {
        let lines = &source.unsafe_lines;
        match (lines.first(), place_of(&source.path)) {
            (Some(_), Some((place, _))) => drop(used.insert(*place)),
            (Some(line), None) => broken.push(format!("{}:{line}", source.path)),
            (None, _) => {}
        }
    }
    let unused = rules::UNSAFE_PLACES.iter().filter(|(place, _)| !used.contains(place));
    broken.extend(unused.map(|(place, _)| format!("{place}: the entry is no longer needed")));
    none("`unsafe` is only in the places of `UNSAFE_PLACES`", &broken);
}

#[test]
fn the_protocol_core_does_no_io() {
    let mut broken = Vec::new();
    for source in rust_sources() {
        let is_here = |rule: &&rules::Restricted| source.path.starts_with(rule.place);
        let Some(rule) = rules::RESTRICTED.iter().find(is_here) else { continue };
        for (path, line) in &source.paths_without_tests {
            let starts = |prefix: &&&str| {
                path.strip_prefix(**prefix)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            if rule.forbidden.iter().any(|prefix| starts(&prefix)) {
                broken.push(format!("{}:{line}: {path} ({})", source.path, rule.because));
            }
        }
    }
    none("`RESTRICTED` lists what these places must not name", &broken);
}

/// A thread of a product blocks signals and does not run on CPUs of the program's threads.
#[test]
fn product_threads_are_started_in_one_way() {
    let mut found = BTreeMap::new();
    for source in rust_sources() {
        if source.is_test() || !source.path.contains("/src/") {
            continue;
        }
        for (path, line) in &source.paths_without_tests {
            for how in ["thread::spawn", "thread::Builder", "thread::scope"] {
                let full = format!("::{path}::");
                if full.contains(&format!("::{how}::")) {
                    found.insert(format!("{}: {how}", source.path), format!("line {line}"));
                }
            }
        }
    }
    none_but("products start threads with `feroce_threads::spawn`", &found, rules::THREADS);
}

#[test]
fn imports_form_no_cycles() {
    let mut found = BTreeMap::new();
    for cycle in tidy::imports::cycles(rust_sources()) {
        found.insert(cycle.join(" "), format!("{} files", cycle.len()));
    }
    none_but("the files of a crate import each other in one direction", &found, rules::CYCLES);
}

#[test]
fn every_counter_is_counted_somewhere() {
    let mut counted = BTreeSet::new();
    for source in rust_sources() {
        let declares = source.path.ends_with("engine/src/counters.rs");
        if source.path.starts_with("engine/src/") && !declares {
            counted.extend(source.paths_without_tests.iter().map(|(path, _)| path));
        }
    }
    let names = Counter::ALL.iter().map(|counter| format!("Counter::{counter:?}"));
    let broken: Vec<_> = names.filter(|name| !counted.contains(name)).collect();
    none("a counter that is shown is also counted", &broken);
}

#[test]
fn every_conformance_rule_is_reported_somewhere() {
    let mut reported = BTreeSet::new();
    for source in rust_sources() {
        // The output names ranges of rules; it reports none itself.
        let is_check = source.path.starts_with("pfc-tools/conform/src/check/");
        if is_check && !source.path.contains("/output/") {
            reported.extend(source.paths_without_tests.iter().map(|(path, _)| path));
        }
    }
    let names = RULES.iter().map(|rule| format!("RuleId::{:?}", rule.id));
    let broken: Vec<_> = names.filter(|name| !reported.contains(name)).collect();
    none("a rule in the table is also checked", &broken);
}

#[test]
fn the_page_of_settings_names_every_setting() {
    const PAGE: &str = "docs/configuration.md";
    let text = std::fs::read_to_string(tidy::source::root().join(PAGE)).expect(PAGE);
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let has_row = |name: &str| rows.iter().any(|row| row.starts_with(&format!("| `{name}` |")));
    let names = KEYS.iter().map(|key| key.name);
    let broken: Vec<_> = names.filter(|name| !has_row(name)).map(str::to_owned).collect();
    none(&format!("{PAGE} has a row for every setting"), &broken);
}

#[test]
fn nothing_is_marked_as_unfinished() {
    let mut broken = Vec::new();
    for (path, text) in text_files() {
        for (number, line) in (1..).zip(text.lines()) {
            let is_word = |word: &&str| {
                line.match_indices(word).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    let after = line[at + word.len()..].chars().next();
                    let inside =
                        |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                    !inside(before) && !inside(after)
                })
            };
            if let Some(word) =
                rules::leftover_words().iter().map(String::as_str).find(|w| is_word(w))
            {
                broken.push(format!("{path}:{number}: {word}"));
            }
        }
    }
    none("no word marks unfinished work", &broken);
}

#[test]
fn dependencies_point_one_way() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(tidy::source::root())
        .output()
        .expect("cargo runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let layer_of = |name: &str| rules::LAYERS.iter().position(|layer| layer.contains(&name));
    let mut broken = Vec::new();
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().expect("a list") {
        let name = package["name"].as_str().expect("a name");
        seen.insert(name);
        let Some(own) = layer_of(name) else {
            broken.push(format!("{name} is in no layer: see `LAYERS`"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("a list") {
            let on = dependency["name"].as_str().expect("a name");
            // A package that names itself turns on features for its tests.
            let is_of_tests = dependency["kind"] == "dev" || name == "feroce-tests";
            if on == rules::TEST_SKIP && !is_of_tests {
                broken.push(format!("{name} depends on {on} outside of its tests"));
            }
            if on != name && layer_of(on).is_some_and(|layer| layer >= own) {
                broken.push(format!("{name} depends on {on}"));
            }
        }
    }
    let gone = rules::LAYERS.iter().copied().flatten().filter(|name| !seen.contains(**name));
    broken.extend(gone.map(|name| format!("{name} is no member of the workspace")));
    none("dependencies point downwards", &broken);
}

/// Products do not read variables of tests, scripts or the build.
#[test]
fn products_know_no_variables_of_tests() {
    let settings = KEYS.iter().map(|key| key.variable().to_string());
    let mut known: BTreeSet<String> = settings.collect();
    known.extend(rules::VARIABLES.iter().map(|(name, _)| (*name).to_owned()));
    let mut found = BTreeSet::new();
    let mut broken = Vec::new();
    for source in rust_sources() {
        if source.is_test() || !source.path.contains("/src/") {
            continue;
        }
        for (text, line) in &source.strings_without_tests {
            let is_variable = text.strip_prefix("FEROCE_").is_some_and(|rest| {
                !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c == '_')
            });
            if is_variable && !known.contains(text) && text != "FEROCE_PRIVATE" {
                broken.push(format!("{}:{line}: {text}", source.path));
            }
            found.insert(text.as_str());
        }
    }
    let unused = rules::VARIABLES.iter().filter(|(name, _)| !found.contains(*name));
    broken.extend(unused.map(|(name, _)| format!("{name}: the entry is no longer needed")));
    none("products read settings and the variables of `VARIABLES` only", &broken);
}

/// Tests that the documents name as `file.rs::test` exist, and documents name the fields of what
/// users configure.
#[test]
fn documents_name_what_exists() {
    let mut known = BTreeSet::new();
    let mut fields = BTreeMap::new();
    for source in rust_sources() {
        known.extend(source.functions.iter().map(|f| format!("{}::{}", source.path, f.name)));
        // Structs of tests and tools may have the same names.
        if source.path.starts_with("engine/src/") {
            fields.extend(source.structs.iter().cloned());
        }
    }
    let mut broken = Vec::new();
    let mut named = 0;
    let is_document = |path: &str| path.starts_with("docs/") || rules::GUIDES.contains(&path);
    for (path, text) in text_files().iter().filter(|(path, _)| is_document(path)) {
        for test in tidy::source::code_spans(text).filter(|code| code.contains(".rs::")) {
            named += 1;
            if !known.contains(test) {
                broken.push(format!("{path}: {test}"));
            }
        }
    }
    assert!(named > 30, "{named} tests are named");
    for (file, name) in rules::CONFIGURATION {
        let text = std::fs::read_to_string(tidy::source::root().join(file)).expect("a document");
        // The section about the struct; a page about one struct needs none.
        let section = text.split("\n## ").find(|part| part.starts_with(&format!("`{name}")));
        let text = section.unwrap_or(&text);
        let has = |field: &&String| text.contains(&format!("`{field}`"));
        let missing = fields[*name].iter().filter(|field| !has(field));
        broken.extend(missing.map(|field| format!("{file} lacks {name}::{field}")));
    }
    none("documents and code agree", &broken);
}

/// Links of pages lead to files of the repository, and to headings that these files have.
#[test]
fn links_lead_somewhere() {
    let pages: BTreeMap<String, String> =
        text_files().into_iter().filter(|(path, _)| path.ends_with(".md")).collect();
    let mut broken = Vec::new();
    let mut count = 0;
    for (page, text) in &pages {
        for (line, target) in tidy::source::links(text) {
            count += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => page.clone(),
                _ => tidy::source::relative(page, file),
            };
            let exists = tidy::source::root().join(&path).exists();
            let has_anchor = |text: &String| tidy::source::anchors(text).contains(anchor);
            if !exists || (!anchor.is_empty() && !pages.get(&path).is_some_and(has_anchor)) {
                broken.push(format!("{page}:{line}: {target}"));
            }
        }
    }
    assert!(count > 200, "{count} links");
    none("links lead somewhere", &broken);
}

/// The table of contents of the book, docs/SUMMARY.md, names every page of docs.
#[test]
fn the_book_has_every_page() {
    let read = |path: &str| std::fs::read_to_string(tidy::source::root().join(path)).expect(path);
    let summary = read("docs/SUMMARY.md");
    let named: BTreeSet<_> = tidy::source::links(&summary).into_iter().map(|(_, to)| to).collect();
    let files = text_files();
    let pages = files.iter().filter_map(|(path, _)| path.strip_prefix("docs/"));
    let pages = pages.filter(|page| page.ends_with(".md") && *page != "SUMMARY.md");
    let broken: Vec<_> = pages.filter(|page| !named.contains(page)).map(str::to_owned).collect();
    none("docs/SUMMARY.md names every page", &broken);
    let lines = read("README.md").lines().count();
    assert!(lines <= rules::README_LINES, "README.md has {lines} lines");
}

/// Files that the guides for contributors name exist, and names in snake case are in the code:
/// functions, tests, fields, settings.
#[test]
fn guides_name_what_exists() {
    let files = text_files();
    let mut names = BTreeSet::new();
    for (_, text) in files.iter().filter(|(path, _)| !path.ends_with(".md")) {
        names.extend(text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
    }
    let exists = |word: &str| {
        let is_below = |path: &str| path == word || path.ends_with(&format!("/{word}"));
        // What a build leaves behind is not there in a fresh clone.
        let is_built = word.starts_with("target/");
        let is_there = !is_built && tidy::source::root().join(word).exists();
        is_there || files.iter().any(|(path, _)| is_below(path))
    };
    let mut broken = Vec::new();
    let (mut paths, mut words) = (0, 0);
    for guide in rules::GUIDES {
        let text = std::fs::read_to_string(tidy::source::root().join(guide)).expect(guide);
        for word in tidy::source::code_spans(&text).flat_map(str::split_whitespace) {
            if tidy::source::is_file_name(word) {
                paths += 1;
                if !exists(word) {
                    broken.push(format!("{guide}: no file {word}"));
                }
            } else if tidy::source::is_snake_case(word) {
                words += 1;
                if !names.contains(word) {
                    broken.push(format!("{guide}: {word} is not in the code"));
                }
            }
        }
    }
    assert!(paths > 100 && words > 30, "{paths} files and {words} names are named");
    none("guides and code agree", &broken);
}

/// Each rule detects a file that breaks it.
#[test]
fn the_rules_detect_violations() {
    let long = format!("fn long() {{\n{}}}\n", "    act();\n".repeat(80));
    let text = format!(
        "{long}fn deep() {{ unsafe {{ act() }}; std::fs::read(p); count(Counter::One); }}\n\
         #[cfg(test)]\nmod tests {{\n fn t() {{ count(Counter::Two); }}\n}}\n"
    );
    let source = Source::parse("engine/src/qp/example.rs", text);
    let functions: Vec<_> = source.functions.iter().map(|f| (f.name.clone(), f.lines)).collect();
    let expected = [("long", 82), ("deep", 1), ("t", 1)];
    assert_eq!(functions, expected.map(|(name, lines)| (name.to_owned(), lines)));
    assert_eq!(source.lines_without_tests, 83);
    assert_eq!(source.unsafe_lines, [83]);
    let paths: Vec<_> = source.paths_without_tests.iter().map(|(path, _)| path.as_str()).collect();
    for path in ["std::fs::read", "Counter::One"] {
        assert!(paths.contains(&path), "{path} in {paths:?}");
    }
    assert!(!paths.contains(&"Counter::Two"), "tests do not count");
    let hidden = "act!(unsafe { *p });\nuse std::{fs, net::Ipv4Addr};\n";
    let hidden = Source::parse("x.rs", hidden.to_owned());
    assert_eq!(hidden.unsafe_lines, [1]);
    assert!(hidden.paths_without_tests.contains(&("std::fs".to_owned(), 2)));
    let upper = "use super::below::B;\npub struct A;\n".to_owned();
    let below = "use super::above::A;\npub struct B;\n".to_owned();
    let files = [("x/src/above.rs", upper), ("x/src/below.rs", below)];
    let files: Vec<_> = files.into_iter().map(|(path, text)| Source::parse(path, text)).collect();
    assert_eq!(tidy::imports::cycles(&files), [["x/src/above.rs", "x/src/below.rs"]]);
    let reads = Source::parse("x.rs", "fn f() { read(\"FEROCE_SEED\") }\n".to_owned());
    assert_eq!(reads.strings_without_tests, [("FEROCE_SEED".to_owned(), 1)]);
    let named: Vec<_> = tidy::source::code_spans("a `b/c.rs` d ```\nx_y\n``` `e`").collect();
    assert_eq!(named, ["b/c.rs", "", "\nx_y\n", "", "e"]);
    assert!(
        tidy::source::is_file_name("qp/ud.rs") && tidy::source::is_file_name("ARCHITECTURE.md")
    );
    for word in ["rc_*.rs", "<header>.rs", "NAME.rs", ".rs", "x.rs::test", "--test"] {
        assert!(!tidy::source::is_file_name(word), "{word}");
    }
    assert!(tidy::source::is_snake_case("post_send2") && !tidy::source::is_snake_case("Post_send"));
    let page = "# A `b` c, d\n## A\n## A\n```sh\n# no\n[x](y)\n```\n[l](f.md#a-1) `[n](m)`\n";
    let anchors: Vec<_> = tidy::source::anchors(page).into_iter().collect();
    assert_eq!(anchors, ["a", "a-1", "a-b-c-d"]);
    assert_eq!(tidy::source::links(page), [(8, "f.md#a-1")]);
    assert_eq!(tidy::source::relative("docs/a/b.md", "../../c.md"), "c.md");
    let prose = "text\n| table |\n```sh\ncode\n```\nmore\n[link](x)\n";
    assert_eq!(tidy::source::prose_lines(prose), [(1, "text"), (6, "more"), (7, "[link](x)")]);
}
