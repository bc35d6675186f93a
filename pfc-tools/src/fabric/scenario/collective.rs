//! The keys of a `[[traffic]]` that is a collective.

use super::error::ScenarioError;
use super::node_names::hosts;
use super::section::Section;
use crate::fabric::config::FabricConfig;
use crate::fabric::time::Time;
use crate::fabric::traffic::collective::{Collective, Kind};

/// The values of `kind` that are collectives.
pub(super) const KINDS: [&str; 4] =
    ["ring-all-reduce", "tree-all-reduce", "all-to-all", "pipeline"];

/// The keys that only collectives have.
pub(super) const KEYS: [&str; 6] = ["ranks", "size", "chunks", "compute", "at_once", "backward"];

/// The keys that collectives do not have.
pub(super) const OTHER_KEYS: [&str; 5] = ["from", "to", "message", "messages", "stagger"];

/// Messages of a tree, and micro-batches of a pipeline.
const DEFAULT_CHUNKS: u32 = 8;

/// Reads the collective of kind `kind`, an index of [`KINDS`].
pub(super) fn read(
    section: &Section<'_>,
    kind: usize,
    config: &FabricConfig,
) -> Result<Collective, ScenarioError> {
    let because = format!("with kind = \"{}\"", KINDS[kind]);
    section.reject_ineffective(&OTHER_KEYS, &format!("{because}: see `ranks` and `size`"))?;
    let ranks = ranks(section, config)?;
    let size = section.bytes("size")?.filter(|&size| size > 0);
    let Some(size) = size else {
        let expected = "the bytes of a rank, such as \"64MB\"";
        return Err(match section.get("size") {
            Some(node) => section.wrong("size", node, expected),
            None => section.missing("size", expected),
        });
    };
    let chunks = section.small("chunks", 1)?.unwrap_or(DEFAULT_CHUNKS);
    let compute = section.time("compute")?.unwrap_or_default();
    let backward = section.time("backward")?;
    let at_once = section.size("at_once", ranks.len())?;
    if let (0, Some(node)) = (at_once, section.get("at_once")) {
        return Err(section.wrong("at_once", node, "at least one"));
    }
    let (kind, without): (Kind, &[&'static str]) = match kind {
        0 => (Kind::RingAllReduce, &["chunks", "backward", "at_once"]),
        1 => (Kind::TreeAllReduce, &["backward", "at_once"]),
        2 => (Kind::AllToAll { at_once }, &["chunks", "backward"]),
        _ => (Kind::Pipeline { backward }, &["at_once"]),
    };
    section.reject_ineffective(without, &because)?;
    let collective = Collective { kind, ranks, size, chunks, compute };
    check_size(section, &collective, config.packet.payload)?;
    refuse_engines(section, &collective, config)?;
    Ok(collective)
}

fn ranks(section: &Section<'_>, config: &FabricConfig) -> Result<Vec<u32>, ScenarioError> {
    let ranks = hosts(section, "ranks", &config.network)?;
    let mut sorted = ranks.clone();
    sorted.sort_unstable();
    sorted.dedup();
    match section.get("ranks") {
        Some(node) if sorted.len() < ranks.len().max(2) => {
            Err(section.wrong("ranks", node, "at least two hosts, each of them once"))
        }
        _ => Ok(ranks),
    }
}

fn check_size(
    section: &Section<'_>,
    collective: &Collective,
    payload: u32,
) -> Result<(), ScenarioError> {
    let (message, messages) = collective.messages();
    let packets = message.div_ceil(payload.into()).checked_mul(messages.into());
    match packets {
        Some(packets) if packets < 1 << 32 => Ok(()),
        _ => Err(section.refused("size", "leads to flows of 2^32 packets or more")),
    }
}

/// An engine host posts all messages of a flow itself.
fn refuse_engines(
    section: &Section<'_>,
    collective: &Collective,
    config: &FabricConfig,
) -> Result<(), ScenarioError> {
    let is_engine = collective.ranks.iter().any(|rank| config.engines.contains(rank));
    match collective.kind {
        Kind::AllToAll { .. } => Ok(()),
        _ if !is_engine => Ok(()),
        _ => Err(section.refused(
            "kind",
            "is not for engine hosts, whose messages wait for nothing; use all-to-all, or flows \
             with `after`",
        )),
    }
}

/// The time `delay` and the keys that have no effect beside `after`.
pub(super) fn delay(section: &Section<'_>) -> Result<Time, ScenarioError> {
    let delay = section.time("delay")?.unwrap_or_default();
    match section.get("after") {
        Some(_) => section.reject_ineffective(&["start"], "with `after`: use `delay`")?,
        None => section.reject_ineffective(&["delay"], "without `after`")?,
    }
    Ok(delay)
}
