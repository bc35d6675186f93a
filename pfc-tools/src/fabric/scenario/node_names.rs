//! Nodes and links by their names.

use super::error::ScenarioError;
use super::section::Section;
use crate::fabric::config::Network;

/// The nodes that `text` names: one node, or a range of numbered nodes such as `h1..h4`.
pub(super) fn nodes(text: &str, network: &Network) -> Option<Vec<usize>> {
    let Some((from, to)) = text.split_once("..") else {
        return Some(vec![network.node(text.trim())?]);
    };
    let (from, to) = (network.node(from.trim())?, network.node(to.trim())?);
    (from <= to).then(|| (from..=to).collect())
}

/// The two nodes of a link direction such as `s1->h3`.
pub(super) fn direction(text: &str, network: &Network) -> Option<(usize, usize)> {
    let (from, to) = text.split_once("->")?;
    let (from, to) = (network.node(from.trim())?, network.node(to.trim())?);
    network.joins(from, to).then_some((from, to))
}

/// The hosts that a key names.
pub(super) fn hosts(
    section: &Section<'_>,
    key: &'static str,
    network: &Network,
) -> Result<Vec<u32>, ScenarioError> {
    let expected = "hosts such as \"h1\" or \"h1..h4\", or a list";
    let texts = section.texts(key)?.ok_or_else(|| section.missing(key, expected))?;
    let mut hosts = Vec::new();
    for (text, node) in texts {
        let named = nodes(&text, network).ok_or_else(|| section.wrong(key, node, expected))?;
        for host in named {
            if host >= network.hosts.len() {
                return Err(section.wrong(key, node, expected));
            }
            hosts.push(u32::try_from(host).unwrap_or(u32::MAX));
        }
    }
    match section.get(key) {
        Some(node) if hosts.is_empty() => Err(section.wrong(key, node, "at least one host")),
        _ => Ok(hosts),
    }
}
