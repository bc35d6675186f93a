//! House rules that no compiler checks: lengths, rooms for `unsafe`, directions of dependency,
//! counters that nobody counts, words that should not have stayed. What breaks a rule on purpose is
//! in a list here, with the reason; an entry that is no longer needed fails too.

mod tidy {
    pub mod imports;
    pub mod rules;
    pub mod source;
}

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use feroce_engine::counters::Counter;
use feroce_engine::device::settings::KEYS;
use tidy::rules;
use tidy::source::{Source, rust_sources, text_files};

/// Fails with all of `broken`, a line each.
#[track_caller]
fn none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}\n", broken.join("\n  "));
}

/// Splits what was found by the written exceptions: what no exception covers, and exceptions that
/// cover nothing.
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
        for function in source.functions() {
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
        let lines = source.lines_without_tests();
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
    let is_silent = |source: &&Source| !source.text.trim_start().starts_with("//!");
    let may = |source: &&Source| rules::SILENT.iter().any(|(part, _)| source.path.contains(part));
    let sources = rust_sources();
    let silent: Vec<_> = sources.iter().filter(is_silent).collect();
    let broken = silent.iter().filter(|source| !may(source)).map(|source| source.path.clone());
    let broken: Vec<_> = broken.collect();
    assert!(silent.iter().any(may), "the exception is still needed");
    none("a file begins with `//!` and what it is", &broken);
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let room_of = |path: &str| rules::UNSAFE_ROOMS.iter().find(|(room, _)| path.starts_with(room));
    let mut used = BTreeSet::new();
    let mut broken = Vec::new();
    for source in rust_sources() {
        let lines = source.unsafe_lines();
        match (lines.first(), room_of(&source.path)) {
            (Some(_), Some((room, _))) => drop(used.insert(*room)),
            (Some(line), None) => broken.push(format!("{}:{line}", source.path)),
            (None, _) => {}
        }
    }
    let empty = rules::UNSAFE_ROOMS.iter().filter(|(room, _)| !used.contains(room));
    broken.extend(empty.map(|(room, _)| format!("{room}: a room without `unsafe` needs no entry")));
    none("`unsafe` is written in its rooms only", &broken);
}

#[test]
fn the_protocol_core_does_no_io() {
    let mut broken = Vec::new();
    for source in rust_sources() {
        let Some(pure) = rules::PURE.iter().find(|pure| source.path.starts_with(pure.place)) else {
            continue;
        };
        for (path, line) in source.paths_without_tests() {
            let starts = |prefix: &&&str| {
                path.strip_prefix(**prefix)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            if pure.without.iter().any(|prefix| starts(&prefix)) {
                broken.push(format!("{}:{line}: {path} ({})", source.path, pure.because));
            }
        }
    }
    none("these places know nothing of these", &broken);
}

#[test]
fn imports_form_no_circles() {
    let mut found = BTreeMap::new();
    for circle in tidy::imports::circles(&rust_sources()) {
        found.insert(circle.join(" "), format!("{} files", circle.len()));
    }
    none_but("the files of a crate import each other in one direction", &found, rules::CIRCLES);
}

#[test]
fn every_counter_is_counted_somewhere() {
    let mut counted = BTreeSet::new();
    for source in rust_sources() {
        let declares = source.path.ends_with("engine/src/counters.rs");
        if source.path.starts_with("engine/src/") && !declares {
            counted.extend(source.paths_without_tests().into_iter().map(|(path, _)| path));
        }
    }
    let names = Counter::ALL.iter().map(|counter| format!("Counter::{counter:?}"));
    let broken: Vec<_> = names.filter(|name| !counted.contains(name)).collect();
    none("a counter that is shown is also counted", &broken);
}

#[test]
fn words_that_should_not_have_stayed() {
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
    none("nothing was left for later", &broken);
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
            if on != name && layer_of(on).is_some_and(|layer| layer >= own) {
                broken.push(format!("{name} depends on {on}"));
            }
        }
    }
    let gone = rules::LAYERS.iter().copied().flatten().filter(|name| !seen.contains(**name));
    broken.extend(gone.map(|name| format!("{name} is no member of the workspace")));
    none("dependencies point downwards", &broken);
}

/// A variable that only tests, scripts or the build read has no place in a product.
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
        for (text, line) in source.strings_without_tests() {
            let is_variable = text.strip_prefix("FEROCE_").is_some_and(|rest| {
                !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c == '_')
            });
            if is_variable && !known.contains(&text) && text != "FEROCE_PRIVATE" {
                broken.push(format!("{}:{line}: {text}", source.path));
            }
            found.insert(text);
        }
    }
    let unused = rules::VARIABLES.iter().filter(|(name, _)| !found.contains(*name));
    broken.extend(unused.map(|(name, _)| format!("{name}: the entry is no longer needed")));
    none("products read settings and the variables of `VARIABLES` only", &broken);
}

/// What `docs/` says is still there: tests named as `file.rs::test`, fields of what a user
/// configures.
#[test]
fn documents_name_what_exists() {
    let mut known = BTreeSet::new();
    let mut fields = BTreeMap::new();
    for source in rust_sources() {
        known.extend(source.functions().iter().map(|f| format!("{}::{}", source.path, f.name)));
        // Tests and tools may call something of their own by the same name.
        if source.path.starts_with("engine/src/") {
            fields.extend(source.structs());
        }
    }
    let mut broken = Vec::new();
    let mut named = 0;
    for (path, text) in text_files().iter().filter(|(path, _)| path.starts_with("docs/")) {
        for test in text.split('`').skip(1).step_by(2).filter(|code| code.contains(".rs::")) {
            named += 1;
            if !known.contains(test) {
                broken.push(format!("{path}: {test}"));
            }
        }
    }
    assert!(named > 30, "{named} tests are named");
    for (file, name) in rules::CONFIGURATION {
        let text = std::fs::read_to_string(tidy::source::root().join(file)).expect("a document");
        let has = |field: &&String| text.contains(&format!("`{field}`"));
        let missing = fields[*name].iter().filter(|field| !has(field));
        broken.extend(missing.map(|field| format!("{file} lacks {name}::{field}")));
    }
    none("documents and code agree", &broken);
}

/// The rules see what they are meant to see: each is shown a file that breaks it.
#[test]
fn the_rules_bite() {
    let long = format!("fn long() {{\n{}}}\n", "    act();\n".repeat(80));
    let text = format!(
        "{long}fn deep() {{ unsafe {{ act() }}; std::fs::read(p); count(Counter::One); }}\n\
         #[cfg(test)]\nmod tests {{\n fn t() {{ count(Counter::Two); }}\n}}\n"
    );
    let source = Source::parse("engine/src/qp/example.rs", text);
    let functions: Vec<_> = source.functions().iter().map(|f| (f.name.clone(), f.lines)).collect();
    let expected = [("long", 82), ("deep", 1), ("t", 1)];
    assert_eq!(functions, expected.map(|(name, lines)| (name.to_owned(), lines)));
    assert_eq!(source.lines_without_tests(), 83);
    assert_eq!(source.unsafe_lines(), [83]);
    let paths: Vec<_> = source.paths_without_tests().into_iter().map(|(path, _)| path).collect();
    for path in ["std::fs::read", "Counter::One"] {
        assert!(paths.iter().any(|seen| seen == path), "{path} in {paths:?}");
    }
    assert!(!paths.iter().any(|seen| seen == "Counter::Two"), "tests do not count");
    let hidden = "act!(unsafe { *p });\nuse std::{fs, net::Ipv4Addr};\n";
    let hidden = Source::parse("x.rs", hidden.to_owned());
    assert_eq!(hidden.unsafe_lines(), [1]);
    assert!(hidden.paths_without_tests().contains(&("std::fs".to_owned(), 2)));
    let upper = "use super::below::B;\npub struct A;\n".to_owned();
    let below = "use super::above::A;\npub struct B;\n".to_owned();
    let files = [("x/src/above.rs", upper), ("x/src/below.rs", below)];
    let files: Vec<_> = files.into_iter().map(|(path, text)| Source::parse(path, text)).collect();
    assert_eq!(tidy::imports::circles(&files), [["x/src/above.rs", "x/src/below.rs"]]);
    let reads = Source::parse("x.rs", "fn f() { read(\"FEROCE_SEED\") }\n".to_owned());
    assert_eq!(reads.strings_without_tests(), [("FEROCE_SEED".to_owned(), 1)]);
    let prose = "text\n| table |\n```sh\ncode\n```\nmore\n[link](x)\n";
    assert_eq!(tidy::source::prose_lines(prose), [(1, "text"), (6, "more"), (7, "[link](x)")]);
}
