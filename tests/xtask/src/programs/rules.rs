//! Rows that a peer or a sanitizer cannot run: `tests/programs/NAME.txt`.

use regex::Regex;

use crate::Result;
use crate::rows::Row;

/// Regular expressions over the title of a row and its case, and the reasons.
#[derive(Default)]
pub(super) struct Rules(Vec<(Regex, String)>);

impl Rules {
    /// Those of `tests/programs/NAME.txt`.
    pub(super) fn read(name: &str) -> Result<Rules> {
        let file = format!("tests/programs/{name}.txt");
        let text = std::fs::read_to_string(&file)?;
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let mut rules = Vec::new();
        for line in lines {
            let (rule, reason) = line.split_once('|').ok_or(format!("{file}: no reason"))?;
            rules.push((Regex::new(rule.trim())?, reason.trim().to_owned()));
        }
        Ok(Rules(rules))
    }

    /// Why the row cannot be run.
    pub(super) fn excluded(&self, row: &Row, case: &str) -> Option<&str> {
        let title = format!("{} ({case})", row.title());
        let found = self.0.iter().find(|(rule, _)| rule.is_match(&title));
        found.map(|(_, reason)| reason.as_str())
    }
}
