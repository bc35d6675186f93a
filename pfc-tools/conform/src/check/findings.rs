//! What was found: counted by rule, and told as often as people want to read it.

use std::collections::{BTreeMap, BTreeSet};

use crate::packet::Seen;
use crate::rules::{Finding, PacketRef, RuleId, Severity};

/// All findings of a check.
#[derive(Debug, Default)]
pub struct Findings {
    told: Vec<Finding>,
    counts: BTreeMap<(RuleId, Option<u32>), u64>,
}

/// How many findings of a rule are told in each flow; all are counted.
pub const TOLD: u64 = 1000;

/// A packet that shows something: which, when, and in what flow.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The packet.
    pub packet: PacketRef,
    /// When it was captured.
    pub at: u64,
    /// Its flow.
    pub flow: Option<u32>,
}

impl Place {
    /// Where `seen` is, in the flow at `flow`.
    pub fn of(seen: &Seen<'_>, flow: Option<usize>) -> Self {
        let packet = PacketRef { file: seen.file, number: seen.number };
        Self { packet, at: seen.at, flow: flow.and_then(|flow| u32::try_from(flow).ok()) }
    }
}

impl Findings {
    /// `rule` does not hold at `place`.
    pub fn add(&mut self, rule: RuleId, place: Place, sentence: impl FnOnce() -> String) {
        let count = self.counts.entry((rule, place.flow)).or_default();
        *count += 1;
        if *count <= TOLD {
            let Place { packet, at, flow } = place;
            self.told.push(Finding { rule, packet, at, flow, sentence: sentence() });
        }
    }

    /// `rule` did hold at `place`, as has turned out since.
    pub fn take_back(&mut self, rule: RuleId, place: Place) {
        let Place { packet, flow, .. } = place;
        let is_it =
            |found: &Finding| (found.rule, found.packet, found.flow) == (rule, packet, flow);
        let Some(index) = self.told.iter().rposition(is_it) else { return };
        self.told.remove(index);
        let count = self.counts.get(&(rule, flow)).copied().unwrap_or(0);
        if count > 1 {
            self.counts.insert((rule, flow), count - 1);
        } else {
            self.counts.remove(&(rule, flow));
        }
    }

    /// Those that are told, in the order of packets.
    pub fn told(&self) -> &[Finding] {
        &self.told
    }

    /// How many there are of each rule in each flow.
    pub fn counts(&self) -> impl Iterator<Item = (RuleId, Option<u32>, u64)> {
        self.counts.iter().map(|(&(rule, flow), &count)| (rule, flow, count))
    }

    /// How many there are of each rule.
    pub fn by_rule(&self) -> BTreeMap<RuleId, u64> {
        let mut sums = BTreeMap::new();
        for (&(rule, _), &count) in &self.counts {
            *sums.entry(rule).or_default() += count;
        }
        sums
    }

    /// How many there are that are no quirks.
    pub fn total(&self) -> u64 {
        let is_finding = |rule: RuleId| rule.rule().severity != Severity::Quirk;
        self.counts.iter().filter(|((rule, _), _)| is_finding(*rule)).map(|(_, count)| count).sum()
    }

    /// Leaves only those of some flows, and those of which no flow is known, if `others`.
    pub fn choose(&mut self, flows: &BTreeSet<u32>, others: bool) {
        let is_chosen = |flow: Option<u32>| flow.map_or(others, |flow| flows.contains(&flow));
        self.told.retain(|found| is_chosen(found.flow));
        self.counts.retain(|(_, of), _| is_chosen(*of));
    }

    /// Brings those that were told at the end to where they belong.
    pub fn sort(&mut self) {
        self.told.sort_by_key(|finding| (finding.at, finding.packet, finding.rule));
    }
}
