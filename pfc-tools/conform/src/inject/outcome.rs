//! What the endpoints report after an item: completions, memories, states, counters.

use std::collections::BTreeMap;

use feroce_engine::qp::QpState;
use feroce_engine::verbs::Status;

use super::connection::Connection;
use super::trace::Trace;
use crate::endpoint::plan::Plan;

/// What the endpoints of a QP pair report.
#[derive(Debug, Clone)]
pub struct FlowOutcome {
    /// The plan of the pair.
    pub plan: Plan,
    /// Request numbers and statuses of the send completions, in order.
    pub sends: Vec<(u64, Status)>,
    /// Receive numbers, from 0, and statuses of the receive completions, in order.
    pub receives: Vec<(u64, Status)>,
    /// Descriptions of memory contents that differ from the expected contents.
    pub wrong_bytes: Vec<String>,
    /// States of the requester's and of the responder's QP.
    pub states: [QpState; 2],
}

/// Increments of a device's counters.
pub type Counted = BTreeMap<String, u64>;

/// Everything observed of an item.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The packets.
    pub trace: Trace,
    /// For each event of the script, the number of packets it was applied to.
    pub times_applied: Vec<u32>,
    /// Reports of the endpoints, by flow.
    pub flows: Vec<FlowOutcome>,
    /// Counters of the requester's and of the responder's device, if known.
    pub counted: [Option<Counted>; 2],
    /// How much later than required an endpoint may act, in nanoseconds.
    pub slack: u64,
    /// What is known of each flow.
    pub known: Vec<Known>,
    /// End of the recording, in nanoseconds; [`u64::MAX`] if the endpoints had come to rest.
    pub until: u64,
}

/// What is known of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Its connection.
    pub connection: Connection,
    /// True if the recording contains the first packet of the connection.
    pub from_start: bool,
}

impl FlowOutcome {
    /// Returns true if the connection must end with an error.
    pub fn must_fail(&self) -> bool {
        self.plan.states[0] == QpState::Err
    }
}

/// Returns the increments of the counters from `before` to `now`.
pub fn counted(before: &[(String, u64)], now: &[(String, u64)]) -> Counted {
    let increments = before
        .iter()
        .zip(now)
        .map(|((name, before), (_, now))| (name.clone(), now.saturating_sub(*before)));
    increments.collect()
}
