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
        Self::parse(&std::fs::read_to_string(&file)?).map_err(|why| format!("{file}: {why}").into())
    }

    fn parse(text: &str) -> Result<Rules> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let mut rules = Vec::new();
        for line in lines {
            let (rule, reason) = line.split_once(" | ").ok_or(format!("no reason: {line}"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_every_file_are_read() {
        for text in [
            include_str!("../../../programs/rxe.txt"),
            include_str!("../../../programs/address.txt"),
            include_str!("../../../programs/thread.txt"),
        ] {
            Rules::parse(text).unwrap();
        }
    }

    #[test]
    fn a_rule_may_name_alternatives() {
        let rules = Rules::parse("# A comment.\n\n^(gloo|iser) | not in the guest\n").unwrap();
        assert!(rules.0[0].0.is_match("iser tgt") && rules.0[0].1 == "not in the guest");
        assert!(Rules::parse("^gloo|no space").is_err());
    }
}
