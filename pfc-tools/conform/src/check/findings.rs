//! The findings of a check: all are counted by rule, and a bounded number keeps its details.

use std::collections::{BTreeMap, BTreeSet};

use feroce_wire::Psn;

use crate::packet::Seen;
use crate::rules::{Finding, PacketRef, RuleId};

/// All findings of a check.
#[derive(Debug, Default)]
pub struct Findings {
    detailed: Vec<Finding>,
    counts: BTreeMap<(RuleId, Option<u32>), u64>,
}

/// Maximum number of findings of a rule and flow that keep their details.
pub const DETAILED: u64 = 1000;

/// The packet that shows a finding.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The packet.
    pub packet: PacketRef,
    /// Time of capture, in nanoseconds since 1970.
    pub at: u64,
    /// Flow of the packet, if known.
    pub flow: Option<u32>,
}

impl Place {
    /// The place of `seen`, in flow number `flow`.
    pub fn of(seen: &Seen<'_>, flow: Option<usize>) -> Self {
        let packet = PacketRef { file: seen.file, number: seen.number };
        Self { packet, at: seen.at, flow: flow.and_then(|flow| u32::try_from(flow).ok()) }
    }
}

impl Findings {
    /// Adds a violation of `rule` at `place`.
    pub fn add(&mut self, rule: RuleId, place: Place, sentence: impl FnOnce() -> String) {
        let count = self.counts.entry((rule, place.flow)).or_default();
        *count += 1;
        if *count <= DETAILED {
            let Place { packet, at, flow } = place;
            self.detailed.push(Finding { rule, packet, at, flow, sentence: sentence() });
        }
    }

    /// Removes a finding that turned out to be wrong.
    pub fn remove(&mut self, rule: RuleId, place: Place) {
        let Place { packet, flow, .. } = place;
        let is_same =
            |found: &Finding| (found.rule, found.packet, found.flow) == (rule, packet, flow);
        let Some(index) = self.detailed.iter().rposition(is_same) else { return };
        self.detailed.remove(index);
        let count = self.counts.get(&(rule, flow)).copied().unwrap_or(0);
        if count > 1 {
            self.counts.insert((rule, flow), count - 1);
        } else {
            self.counts.remove(&(rule, flow));
        }
    }

    /// Returns the findings with details, in packet order.
    pub fn detailed(&self) -> &[Finding] {
        &self.detailed
    }

    /// Returns the number of findings by rule and flow.
    pub fn counts(&self) -> impl Iterator<Item = (RuleId, Option<u32>, u64)> {
        self.counts.iter().map(|(&(rule, flow), &count)| (rule, flow, count))
    }

    /// Returns the number of findings by rule.
    pub fn by_rule(&self) -> BTreeMap<RuleId, u64> {
        let mut sums = BTreeMap::new();
        for (&(rule, _), &count) in &self.counts {
            *sums.entry(rule).or_default() += count;
        }
        sums
    }

    /// Returns the number of findings, without notes and quirks.
    pub fn total(&self) -> u64 {
        let is_finding = |rule: RuleId| rule.rule().severity.counts();
        self.counts.iter().filter(|((rule, _), _)| is_finding(*rule)).map(|(_, count)| count).sum()
    }

    /// Keeps only findings of the given flows, and, if `others` is true, findings without a flow.
    pub fn retain_flows(&mut self, flows: &BTreeSet<u32>, others: bool) {
        let is_chosen = |flow: Option<u32>| flow.map_or(others, |flow| flows.contains(&flow));
        self.detailed.retain(|found| is_chosen(found.flow));
        self.counts.retain(|(_, of), _| is_chosen(*of));
    }

    /// Sorts the findings by time: some are added only at the end.
    pub fn sort(&mut self) {
        self.detailed.sort_by_key(|finding| (finding.at, finding.packet, finding.rule));
    }
}

/// Formats a PSN as packet analysers do.
pub(super) fn hex(psn: Psn) -> String {
    format!("{:#08x}", psn.value())
}
