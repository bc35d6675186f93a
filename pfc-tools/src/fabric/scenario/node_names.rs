//! Nodes and links by their names.

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
