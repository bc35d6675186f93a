//! `[routing]` and `[[route]]`: deviations from shortest-path routing.

use std::collections::VecDeque;

use super::error::ScenarioError;
use super::node_names::nodes;
use super::section::Section;
use crate::fabric::config::{Network, Routing, Turn};
use crate::fabric::routing::{Wiring, wiring};

const KINDS: [&str; 2] = ["shortest", "up-down"];

/// Reads the routing rules of `network`.
pub(super) fn read(all: &Section<'_>, network: &Network) -> Result<Routing, ScenarioError> {
    let section = all.section("routing")?;
    let mut routing = Routing::default();
    let kind = section.choice("kind", &KINDS)?.unwrap_or(0);
    let roots = named_nodes(&section, "roots", "switches such as \"s1\" or \"s1..s4\"", network)?;
    match (KINDS[kind], roots) {
        ("up-down", Some(roots)) => {
            routing.forbidden.extend(down_up_turns(&wiring(network), network.hosts.len(), &roots));
        }
        ("up-down", None) => {
            return Err(section.missing("roots", "the top switches, such as \"s1..s4\""));
        }
        (_, Some(_)) => {
            let node = section.get("roots").expect("it was read");
            return Err(section.wrong("roots", node, "no value unless kind = \"up-down\""));
        }
        (_, None) => {}
    }
    let expected = "turns such as \"s1 > s2 > s3\"";
    for (text, node) in section.texts("forbidden")?.unwrap_or_default() {
        let turn =
            turn(&text, network).ok_or_else(|| section.wrong("forbidden", node, expected))?;
        routing.forbidden.insert(turn);
    }
    section.finish()?;
    for section in all.sections("route")? {
        route(section, network, &mut routing)?;
    }
    Ok(routing)
}

/// The nodes named by `key`; `None` if the key is absent.
fn named_nodes(
    section: &Section<'_>,
    key: &'static str,
    expected: &str,
    network: &Network,
) -> Result<Option<Vec<usize>>, ScenarioError> {
    let Some(texts) = section.texts(key)? else { return Ok(None) };
    let mut all = Vec::new();
    for (text, node) in texts {
        all.extend(nodes(&text, network).ok_or_else(|| section.wrong(key, node, expected))?);
    }
    Ok(Some(all))
}

/// Parses a turn such as `s1 > s2 > s3` between neighbours.
fn turn(text: &str, network: &Network) -> Option<Turn> {
    let mut nodes = text.split('>').map(|name| network.node(name.trim()));
    let (from, at, to) = (nodes.next()??, nodes.next()??, nodes.next()??);
    let is_link = |a, b| network.joins(a, b);
    (nodes.next().is_none() && is_link(from, at) && is_link(at, to)).then_some((from, at, to))
}

/// Reads a `[[route]]`: the next hops from some switches to some hosts.
fn route(
    section: Section<'_>,
    network: &Network,
    routing: &mut Routing,
) -> Result<(), ScenarioError> {
    let hosts = network.hosts.len();
    let required = |key, expected: &str| {
        let nodes = named_nodes(&section, key, expected, network)?;
        nodes.ok_or_else(|| section.missing(key, expected))
    };
    let wrong =
        |key, expected: &str| section.wrong(key, section.get(key).expect("it was read"), expected);
    let expected = (
        "switches such as \"s1\"",
        "hosts such as \"h1..h4\"",
        "neighbours of `at` such as \"s2\"",
    );
    let (at, to, via) =
        (required("at", expected.0)?, required("to", expected.1)?, required("via", expected.2)?);
    if at.iter().any(|&node| node < hosts) {
        return Err(wrong("at", expected.0));
    }
    if to.iter().any(|&node| node >= hosts) {
        return Err(wrong("to", expected.1));
    }
    for &switch in &at {
        for &host in &to {
            let is_next_hop =
                |&next: &usize| network.joins(switch, next) && (next >= hosts || next == host);
            if !via.iter().all(is_next_hop) {
                return Err(wrong("via", expected.2));
            }
            routing.fixed.insert((switch, host), via.clone());
        }
    }
    section.finish()
}

/// The turns that lead down and then up again (up*/down* routing). Up means nearer to a root; among
/// switches at the same distance, towards the one with the lower number.
fn down_up_turns(wiring: &Wiring, hosts: usize, roots: &[usize]) -> Vec<Turn> {
    let mut level = vec![usize::MAX; wiring.len()];
    let mut queue: VecDeque<usize> = roots.iter().copied().filter(|&n| n >= hosts).collect();
    queue.iter().for_each(|&root| level[root] = 0);
    while let Some(node) = queue.pop_front() {
        for &(next, _) in &wiring[node] {
            if next >= hosts && level[next] == usize::MAX {
                level[next] = level[node] + 1;
                queue.push_back(next);
            }
        }
    }
    let is_up = |from: usize, to: usize| (level[to], to) < (level[from], from);
    let mut turns = Vec::new();
    for (at, ports) in wiring.iter().enumerate().skip(hosts) {
        let neighbours = || ports.iter().map(|&(node, _)| node).filter(|&node| node >= hosts);
        for from in neighbours().filter(|&from| !is_up(from, at)) {
            turns.extend(neighbours().filter(|&to| is_up(at, to)).map(|to| (from, at, to)));
        }
    }
    turns
}
