//! `after` in `[[traffic]]`: the traffic groups that a group waits for.

use super::error::ScenarioError;
use super::section::Section;
use crate::fabric::traffic::{Pattern, Traffic};

/// Reads `after` of every `[[traffic]]`.
pub(super) fn read(all: &Section<'_>, traffic: &mut [Traffic]) -> Result<(), ScenarioError> {
    let sections = all.sections("traffic")?;
    for (number, section) in sections.iter().enumerate() {
        let mut after = Vec::new();
        for (name, node) in section.texts("after")?.unwrap_or_default() {
            let Some(other) = traffic.iter().position(|other| other.name == name) else {
                let names: Vec<&str> = traffic.iter().map(|other| other.name.as_str()).collect();
                let expected = format!("the names of other traffic: {}", names.join(", "));
                return Err(section.wrong("after", node, expected));
            };
            if matches!(traffic[other].pattern, Pattern::Pairs { .. }) {
                let expected = "no traffic of kind \"pairs\", which ends with the run only";
                return Err(section.wrong("after", node, expected));
            }
            after.push(u32::try_from(other).unwrap_or(u32::MAX));
        }
        let is_random =
            matches!(traffic[number].pattern, Pattern::Pairs { .. } | Pattern::Poisson { .. });
        if is_random && section.get("after").is_some() {
            return Err(section.refused("after", "is not for traffic of random starts"));
        }
        traffic[number].after = after;
    }
    for (number, section) in sections.iter().enumerate() {
        if let Some(cycle) = cycle(traffic, number) {
            let names: Vec<&str> = cycle.iter().map(|&at| traffic[at].name.as_str()).collect();
            let message = format!("leads back to itself: {}", names.join(" waits for "));
            return Err(section.refused("after", &message));
        }
    }
    Ok(())
}

/// A way from the group `from` back to itself.
fn cycle(traffic: &[Traffic], from: usize) -> Option<Vec<usize>> {
    let mut seen = vec![false; traffic.len()];
    // The ways that have been found, the last group of each not yet followed.
    let mut ways = vec![vec![from]];
    while let Some(way) = ways.pop() {
        for &next in &traffic[*way.last()?].after {
            let next = next as usize;
            let longer = || way.iter().copied().chain([next]).collect();
            if next == from {
                return Some(longer());
            }
            if !std::mem::replace(&mut seen[next], true) {
                ways.push(longer());
            }
        }
    }
    None
}
