//! `[topology]` and `[[link]]`: nodes and links. Routing is read by [`routes`].

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::error::ScenarioError;
use super::files;
use super::routes;
use super::section::Section;
use super::tree::Node;
use crate::fabric::config::Network;
use crate::fabric::time::{LinkRate, Time};
use crate::fabric::topology::{self, Clos, LinkSpec};

/// The values of `kind` in `[topology]`.
const KINDS: [&str; 8] =
    ["single", "dumbbell", "parking-lot", "two-tier", "clos", "fat-tree", "hpcc", "explicit"];

/// Maximum number of links. Building the network takes links times hosts steps.
const MAX_LINKS: usize = 20_000;

/// Reads topology, links and routing of the scenario `file`.
pub(super) fn read(all: &Section<'_>, file: &str) -> Result<Network, ScenarioError> {
    let mut network = topology(all.section("topology")?, file)?;
    let mut down = BTreeSet::new();
    for link in all.sections("link")? {
        change_link(link, &mut network, &mut down)?;
    }
    let mut number = 0..;
    network.links.retain(|_| number.next().is_some_and(|number| !down.contains(&number)));
    network.routing = routes::read(all, &network)?;
    Ok(network)
}

fn topology(section: Section<'_>, file: &str) -> Result<Network, ScenarioError> {
    let kind =
        section.choice("kind", &KINDS)?.ok_or_else(|| section.missing("kind", KINDS.join(", ")))?;
    if KINDS[kind] == "hpcc" {
        return files::topology(section, file);
    }
    section.reject_ineffective(&["file"], "without kind = \"hpcc\"")?;
    let rate = section.rate("rate")?.unwrap_or(LinkRate::new(40_000_000_000));
    let delay = section.time("delay")?.unwrap_or(Time::from_micros(1));
    let host = LinkSpec { rate, delay };
    if matches!(KINDS[kind], "single" | "explicit") {
        section
            .reject_ineffective(&["trunk_rate", "trunk_delay"], "because all links are alike")?;
    }
    let trunk = LinkSpec {
        rate: section.rate("trunk_rate")?.unwrap_or(rate),
        delay: section.time("trunk_delay")?.unwrap_or(delay),
    };
    let inconsistent = |message| inconsistent(section.place(), message);
    let fit = |count: usize| match count {
        0..=MAX_LINKS => Ok(()),
        _ => Err(inconsistent(format!("{count} links or switches; the limit is {MAX_LINKS}"))),
    };
    let network = match KINDS[kind] {
        "single" => {
            let hosts = section.size("hosts", 2)?;
            fit(hosts)?;
            topology::single(hosts, host)
        }
        "dumbbell" => {
            let (left, right) = (section.size("left", 1)?, section.size("right", 1)?);
            fit(left + right)?;
            topology::dumbbell(left, right, host, trunk)
        }
        "parking-lot" => {
            let hosts = chain_hosts(&section)?;
            fit(hosts.iter().sum())?;
            topology::chain(&hosts, host, trunk)
        }
        "two-tier" => {
            let (leaves, spines) = (section.size("leaves", 2)?, section.size("spines", 2)?);
            let hosts = section.size("hosts", 2)?;
            fit(leaves.saturating_mul(hosts + spines))?;
            topology::two_tier(leaves, hosts, spines, host, trunk)
        }
        "clos" => {
            let measures = Clos {
                pods: section.size("pods", 2)?,
                tors: section.size("tors", 2)?,
                leaves: section.size("leaves", 2)?,
                spines: section.size("spines", 2)?,
                hosts: section.size("hosts", 2)?,
                planes: section.flag("planes", false)?,
            };
            fit(measures.links().max(measures.switches()))?;
            topology::clos(measures, host, trunk).map_err(inconsistent)?
        }
        "fat-tree" => {
            let ports = section.size("ports", 4)?;
            fit(ports.saturating_pow(3) / 4 * 3)?;
            topology::fat_tree(ports, host, trunk).map_err(inconsistent)?
        }
        _ => explicit(&section, host, fit)?,
    };
    section.finish()?;
    Ok(network)
}

fn chain_hosts(section: &Section<'_>) -> Result<Vec<usize>, ScenarioError> {
    let expected = "the number of hosts of each switch, such as [1, 1, 2]";
    let Some(nodes) = section.list("hosts", expected)? else {
        return Err(section.missing("hosts", expected));
    };
    let number = |node: &Node| {
        let number = node.to_text().parse().ok().filter(|n| *n <= 10_000_usize);
        number.ok_or_else(|| section.wrong("hosts", node, expected))
    };
    nodes.iter().map(number).collect()
}

fn explicit(
    section: &Section<'_>,
    link: LinkSpec,
    fit: impl Fn(usize) -> Result<(), ScenarioError>,
) -> Result<Network, ScenarioError> {
    let known = RefCell::new(BTreeSet::new());
    let names = |key| -> Result<Vec<String>, ScenarioError> {
        let texts = section.texts(key)?.ok_or_else(|| section.missing(key, "a list of names"))?;
        for (text, node) in &texts {
            if !known.borrow_mut().insert(text.clone()) {
                let message = format!("unique names; `{text}` occurs twice");
                return Err(section.wrong(key, node, message));
            }
        }
        Ok(texts.into_iter().map(|(text, _)| text).collect())
    };
    let (hosts, switches) = (names("hosts")?, names("switches")?);
    let expected = "a list of links such as \"h1 - s1\"";
    let texts = section.texts("links")?.ok_or_else(|| section.missing("links", expected))?;
    fit(texts.len())?;
    let mut links = Vec::new();
    for (text, node) in texts {
        let Some((a, b)) = text.split_once('-') else {
            return Err(section.wrong("links", node, "a link such as \"h1 - s1\""));
        };
        let (a, b) = (a.trim().to_owned(), b.trim().to_owned());
        for name in [&a, &b] {
            if !hosts.contains(name) && !switches.contains(name) {
                return Err(section.wrong(
                    "links",
                    node,
                    format!("known nodes; `{name}` is unknown"),
                ));
            }
        }
        links.push((a, b, link));
    }
    topology::explicit(hosts, switches, &links)
        .map_err(|message| inconsistent(section.place(), message))
}

fn inconsistent(place: String, message: impl std::fmt::Display) -> ScenarioError {
    ScenarioError::Inconsistent { place, message: format!("`topology`: {message}") }
}

/// `[[link]]`: overrides for the links between the nodes of `between`; `"s1 - *"` stands for all
/// links of s1. Numbers of links that are down go into `down`.
fn change_link(
    section: Section<'_>,
    network: &mut Network,
    down: &mut BTreeSet<usize>,
) -> Result<(), ScenarioError> {
    let expected = "two nodes with a link such as \"h1 - s1\"; * is any";
    let between = section.texts("between")?.ok_or_else(|| section.missing("between", expected))?;
    let (rate, delay) = (section.rate("rate")?, section.time("delay")?);
    let loss = section.error_model("loss", "loss_every")?;
    let corruption = section.error_model("corruption", "corruption_every")?;
    let is_down = section.flag("down", false)?;
    for (text, node) in between {
        let wrong = || section.wrong("between", node, expected);
        let (a, b) = text.split_once('-').ok_or_else(wrong)?;
        let (a, b) = (a.trim(), b.trim());
        let is =
            |node: usize, name: &str, network: &Network| name == "*" || network.name(node) == name;
        let mut found = false;
        for at in 0..network.links.len() {
            let (one, other) = (network.links[at].a, network.links[at].b);
            let here = is(one, a, network) && is(other, b, network)
                || is(one, b, network) && is(other, a, network);
            if here {
                found = true;
                if is_down {
                    down.insert(at);
                }
                let link = &mut network.links[at];
                link.rate = rate.unwrap_or(link.rate);
                link.delay = delay.unwrap_or(link.delay);
                link.loss = loss.unwrap_or(link.loss);
                link.corruption = corruption.unwrap_or(link.corruption);
            }
        }
        if !found {
            return Err(wrong());
        }
    }
    section.finish()
}
