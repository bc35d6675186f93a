//! The gates file beside a scenario, `fig12.gates.toml` for `fig12.toml`: gates, figures, and what
//! the scenario reproduces. Its tables are added to the tree of the scenario, and every value keeps
//! its file and line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::error::ScenarioError;
use super::section::Section;
use super::tree::{Node, Value};

/// The keys that concern the whole file.
const OF_THE_FILE: [&str; 5] = ["source", "notes", "reproduces", "gate", "figure"];
/// The keys that concern a case.
const OF_A_CASE: [&str; 3] = ["reproduces", "variant", "gate"];

/// The path of the gates file of a scenario.
pub(super) fn path(scenario: &Path) -> PathBuf {
    scenario.with_extension("gates.toml")
}

/// Adds the tables of a gates file to those of its scenario.
pub(super) fn add(scenario: &mut Node, gates: &Node) -> Result<(), ScenarioError> {
    let head = Section::new("", Some(gates))?;
    for key in OF_THE_FILE {
        add_key(scenario, key, head.get(key))?;
    }
    let mut seen = BTreeSet::new();
    for entry in head.sections("case")? {
        let name = entry.text("name")?;
        let (Some(name), Some(node)) = (name, entry.get("name")) else {
            return Err(entry.missing("name", "the name of a case of the scenario"));
        };
        let own = OF_A_CASE.map(|key| (key, entry.get(key)));
        let (place, known) = find(scenario, &name);
        let Some(case) = place.filter(|_| seen.insert(name)) else {
            let expected = format!("a case of the scenario, once; it has {}", known.join("; "));
            return Err(entry.wrong("name", node, expected));
        };
        for (key, node) in own {
            add_key(case, key, node)?;
        }
        entry.finish()?;
    }
    head.finish()
}

/// The table of the case with this name, and the names of all cases.
fn find<'a>(scenario: &'a mut Node, name: &str) -> (Option<&'a mut Node>, Vec<String>) {
    let Value::Table(table) = &mut scenario.value else { return (None, Vec::new()) };
    let list = match table.get_mut("case").map(|node| &mut node.value) {
        Some(Value::List(list)) => list.as_mut_slice(),
        _ => &mut [],
    };
    let (mut found, mut names) = (None, Vec::new());
    for case in list {
        let Value::Table(keys) = &case.value else { continue };
        let own = keys.get("name").map(Node::to_text).unwrap_or_default();
        if own == name {
            found = Some(case);
        }
        names.push(own);
    }
    (found, names)
}

/// Adds a value of the gates file to a table of the scenario. Lists are joined; other values must
/// not be in both files.
fn add_key(to: &mut Node, key: &str, node: Option<&Node>) -> Result<(), ScenarioError> {
    let (Value::Table(table), Some(node)) = (&mut to.value, node) else { return Ok(()) };
    match (table.get_mut(key), &node.value) {
        (None, _) => drop(table.insert(key.to_owned(), node.clone())),
        (Some(Node { value: Value::List(known), .. }), Value::List(more)) => {
            known.extend_from_slice(more);
        }
        (Some(known), _) => {
            return Err(ScenarioError::Inconsistent {
                place: node.origin.to_string(),
                message: format!("`{key}` is also in the scenario: {}", known.origin),
            });
        }
    }
    Ok(())
}
