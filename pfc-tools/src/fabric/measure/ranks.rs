//! Completion of the ranks of a traffic group: of a collective, or of any other group.

use std::collections::BTreeMap;

use super::Results;
use crate::fabric::time::Time;

/// A host that receives data of a traffic group or works on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Number of the host.
    pub host: u32,
    /// Time from the start of the group until all data for the host has arrived and its work is
    /// done; `None` if that did not happen.
    pub completion: Option<Time>,
}

impl Results {
    /// The ranks of a traffic group by host; `None` stands for all groups. The group starts with
    /// its first flow or, if its ranks work before that, with this work.
    pub fn ranks(&self, group: Option<u32>) -> Vec<Rank> {
        let is_own = |other: u32| group.is_none_or(|group| group == other);
        let flows = || self.flows.iter().filter(|flow| is_own(flow.group));
        let start = flows().filter_map(|flow| flow.started).min();
        let mut ends: BTreeMap<u32, Option<Time>> = BTreeMap::new();
        let mut add = |host: u32, end: Option<Time>| {
            let known = ends.entry(host).or_insert(Some(Time::ZERO));
            *known = known.zip(end).map(|(known, end)| known.max(end));
        };
        for flow in flows() {
            add(flow.to, flow.arrived);
        }
        for step in self.steps.iter().filter(|step| is_own(step.group)) {
            if let Some(host) = step.host {
                add(host, step.done);
            }
        }
        let rank = |(host, end): (u32, Option<Time>)| Rank {
            host,
            completion: end.zip(start).map(|(end, start)| end - start),
        };
        ends.into_iter().map(rank).collect()
    }

    /// Completion of a traffic group: that of its slowest rank, which comes first.
    pub fn collective(&self, group: Option<u32>) -> Option<(u32, Time)> {
        let mut slowest = None;
        for rank in self.ranks(group) {
            let completion = rank.completion?;
            if slowest.is_none_or(|(_, known)| completion > known) {
                slowest = Some((rank.host, completion));
            }
        }
        slowest
    }
}
