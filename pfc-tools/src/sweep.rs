//! A parameter sweep: the scenario is run for every combination of some values. The runs are
//! independent, so a job array or GNU parallel can distribute them over machines.

use crate::fabric::scenario::Change;

/// A key and the values to sweep over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweptKey {
    /// The key, written as in [`Change`].
    pub key: String,
    /// The values, in the order given.
    pub values: Vec<String>,
}

impl std::str::FromStr for SweptKey {
    type Err = String;

    /// Parses `KEY=VALUE,VALUE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text.split_once('=').ok_or("expected KEY=VALUE,VALUE...")?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        if key.trim().is_empty() || values.iter().any(String::is_empty) {
            return Err("expected KEY=VALUE,VALUE...".to_owned());
        }
        Ok(Self { key: key.trim().to_owned(), values })
    }
}

/// Returns every combination; the last key changes fastest.
pub fn points(over: &[SweptKey]) -> Vec<Vec<Change>> {
    let mut points = vec![Vec::new()];
    for SweptKey { key, values } in over {
        let with = |point: &Vec<Change>| {
            let change = |value: &String| Change { key: key.clone(), value: value.clone() };
            let extended = |value| [point.as_slice(), &[change(value)]].concat();
            values.iter().map(extended).collect::<Vec<_>>()
        };
        points = points.iter().flat_map(with).collect();
    }
    points
}

/// The case's name with its changes: `K = 2 [switch.pmax=0.1]`.
pub fn label(case: &str, point: &[Change]) -> String {
    let changes: Vec<String> = point.iter().map(Change::to_string).collect();
    match (case, changes.join(", ")) {
        (case, changes) if changes.is_empty() => case.to_owned(),
        ("", changes) => format!("[{changes}]"),
        (case, changes) => format!("{case} [{changes}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_comes_once() {
        let over = ["a=1,2", "b.c = x, y,z"].map(|text| text.parse().unwrap());
        let labels: Vec<String> = points(&over).iter().map(|point| label("K = 1", point)).collect();
        assert_eq!(labels.len(), 6);
        assert_eq!(labels[0], "K = 1 [a=1, b.c=x]");
        assert_eq!(labels[5], "K = 1 [a=2, b.c=z]");
        assert_eq!(points(&[]), [Vec::new()]);
        assert_eq!(label("", &points(&over)[1]), "[a=1, b.c=y]");
    }

    #[test]
    fn a_key_needs_values() {
        for text in ["", "a", "a=", "a=1,", "=1"] {
            assert!(text.parse::<SweptKey>().is_err(), "{text}");
        }
    }
}
