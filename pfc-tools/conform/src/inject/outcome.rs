//! What the endpoints say of an item: completions, memories, states, counters.

use std::collections::BTreeMap;

use feroce_engine::qp::QpState;
use feroce_engine::verbs::Status;

use super::trace::Trace;
use crate::endpoint::plan::Plan;

/// What a QP pair's endpoints say.
#[derive(Debug, Clone)]
pub struct FlowOutcome {
    /// What it was to do.
    pub plan: Plan,
    /// Numbers and statuses of completed requests, in order.
    pub sends: Vec<(u64, Status)>,
    /// The same of receives, which count from 0.
    pub receives: Vec<(u64, Status)>,
    /// Where memories are not as they must be.
    pub wrong_bytes: Vec<String>,
    /// States of the requester's and of the responder's QP.
    pub states: [QpState; 2],
}

/// How much a device has counted meanwhile.
pub type Counted = BTreeMap<String, u64>;

/// What was seen of an item.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// On the wire.
    pub trace: Trace,
    /// How often each event was met.
    pub met: Vec<u32>,
    /// By flow.
    pub flows: Vec<FlowOutcome>,
    /// Of the requester's and of the responder's device, if it says so.
    pub counted: [Option<Counted>; 2],
    /// How late an endpoint may be, in nanoseconds, with what it does at a time.
    pub slack: u64,
}

impl FlowOutcome {
    /// True if the connection ends with an error.
    pub fn is_doomed(&self) -> bool {
        self.plan.states[0] == QpState::Err
    }
}

/// What every counter of `now` has counted since `before`.
pub fn counted(before: &[(String, u64)], now: &[(String, u64)]) -> Counted {
    let more = before
        .iter()
        .zip(now)
        .map(|((name, before), (_, now))| (name.clone(), now.saturating_sub(*before)));
    more.collect()
}
