//! Counts of what the scenarios covered. A long swarm run fails if an operation, a status or a flaw
//! never occurred.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use feroce_engine::verbs::Status;

use super::request::{ErrorEvent, Flaw, Op, Request};

const OPERATIONS: [&str; 8] = [
    "SEND",
    "SEND with immediate",
    "SEND with invalidate",
    "WRITE",
    "WRITE with immediate",
    "READ",
    "compare and swap",
    "fetch and add",
];

/// Statuses that must occur in a long swarm run. The others need a peer that violates the protocol,
/// or a full completion queue.
const STATUSES: [Status; 11] = [
    Status::Success,
    Status::LocalLength,
    Status::LocalQpOperation,
    Status::LocalProtection,
    Status::WorkRequestFlushed,
    Status::LocalAccess,
    Status::RemoteInvalidRequest,
    Status::RemoteAccess,
    Status::RemoteOperational,
    Status::RetryExceeded,
    Status::RnrRetryExceeded,
];

/// Counts of what happened in one or many scenarios.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of scenarios.
    pub scenarios: u64,
    /// Number of completions by status code, with the text of the status.
    pub statuses: BTreeMap<u8, (&'static str, u64)>,
    /// Number of successful requests by kind.
    pub operations: BTreeMap<&'static str, u64>,
    /// Number of posted requests by flaw.
    pub flaws: BTreeMap<Flaw, u64>,
    /// Number of asynchronous error events.
    pub error_events: BTreeMap<ErrorEvent, u64>,
    /// Number of SQ drained events.
    pub drained: u64,
    /// Payload bytes of requests that succeeded.
    pub bytes: u64,
    /// Number of frames sent.
    pub frames: u64,
    /// Virtual time that passed.
    pub time: Duration,
    /// Number of frames that the wire lost, duplicated, delayed or corrupted.
    pub faulted: u64,
}

impl Coverage {
    pub(super) fn status(&mut self, status: Status) {
        self.statuses.entry(status as u8).or_insert((status.text(), 0)).1 += 1;
    }

    pub(super) fn error_event(&mut self, error_event: ErrorEvent) {
        *self.error_events.entry(error_event).or_default() += 1;
    }

    pub(super) fn success(&mut self, request: &Request) {
        let index = match request.op {
            Op::Send => 0,
            Op::SendImm(_) => 1,
            Op::SendInvalidate => 2,
            Op::Write => 3,
            Op::WriteImm(_) => 4,
            Op::Read => 5,
            Op::CompareSwap { .. } => 6,
            Op::FetchAdd(_) => 7,
        };
        *self.operations.entry(OPERATIONS[index]).or_default() += 1;
        self.bytes += request.payload.len() as u64;
    }

    /// Returns what must occur in a long swarm run and did not occur in this one.
    pub fn missing(&self) -> Vec<String> {
        let statuses =
            STATUSES.iter().filter(|status| !self.statuses.contains_key(&(**status as u8)));
        let operations = OPERATIONS.iter().filter(|name| !self.operations.contains_key(*name));
        let flaws = Flaw::ALL.iter().filter(|flaw| !self.flaws.contains_key(*flaw));
        let error_events = [ErrorEvent::Access, ErrorEvent::Request];
        let error_events =
            error_events.iter().filter(|error_event| !self.error_events.contains_key(*error_event));
        let mut missing: Vec<String> = statuses.map(|status| status.text().to_owned()).collect();
        missing.extend(operations.map(|name| (*name).to_owned()));
        missing.extend(flaws.map(|flaw| format!("{flaw:?}")));
        missing.extend(error_events.map(|error_event| format!("{error_event:?} events")));
        missing.extend((self.drained == 0).then(|| "an SQ drained event".to_owned()));
        missing
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.scenarios += other.scenarios;
        for (&code, &(text, count)) in &other.statuses {
            self.statuses.entry(code).or_insert((text, 0)).1 += count;
        }
        for (&name, count) in &other.operations {
            *self.operations.entry(name).or_default() += count;
        }
        for (&flaw, count) in &other.flaws {
            *self.flaws.entry(flaw).or_default() += count;
        }
        for (&error_event, count) in &other.error_events {
            *self.error_events.entry(error_event).or_default() += count;
        }
        self.drained += other.drained;
        self.bytes += other.bytes;
        self.frames += other.frames;
        self.faulted += other.faulted;
        self.time += other.time;
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenarios, frames, faulted, bytes, drained, .. } = self;
        writeln!(
            f,
            "{scenarios} scenarios, {frames} frames, {faulted} of them with a fault, \
             {bytes} bytes moved"
        )?;
        for (name, count) in &self.operations {
            writeln!(f, "  {count:>9} {name}")?;
        }
        for (text, count) in self.statuses.values() {
            writeln!(f, "  {count:>9} completed: {text}")?;
        }
        for (flaw, count) in &self.flaws {
            writeln!(f, "  {count:>9} posted with flaw {flaw:?}")?;
        }
        for (error_event, count) in &self.error_events {
            writeln!(f, "  {count:>9} events: {error_event:?}")?;
        }
        writeln!(f, "  {drained:>9} events: SQ drained")
    }
}
