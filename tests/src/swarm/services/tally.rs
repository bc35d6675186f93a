//! Counts of what the scenarios covered. A long run fails if something of the table never occurred.

use std::collections::BTreeMap;
use std::fmt;

use super::super::transitions::Transitions;

/// What must occur in a long run: service, event.
const EXPECTED: &[(&str, &str)] = &[
    ("RC", "goes back to what is lost"),
    ("RC", "repeats only what is lost"),
    ("RC", "SEND: completed"),
    ("RC", "SEND with immediate: completed"),
    ("RC", "WRITE: completed"),
    ("RC", "WRITE with immediate: completed"),
    ("RC", "READ: completed"),
    ("RC", "received"),
    ("RC", "received from a shared queue"),
    ("RC", "remote access error"),
    ("RC", "transport retry counter exceeded"),
    ("RC", "Work Request Flushed Error"),
    ("RC", "receive flushed"),
    ("RC", "receive of a refused WRITE"),
    ("RC", "window opened"),
    ("RC", "window closed"),
    ("RC", "receive with a wrong key"),
    ("RC", "drained"),
    ("RC", "resumed"),
    ("RC", "path migrated"),
    ("RC", "destroyed"),
    ("RC", "moved to ERR"),
    ("RC", "connected again"),
    ("RC", "region deregistered"),
    ("UC", "SEND: completed"),
    ("UC", "SEND with immediate: completed"),
    ("UC", "WRITE: completed"),
    ("UC", "WRITE with immediate: completed"),
    ("UC", "received"),
    ("UC", "received from a shared queue"),
    ("UC", "lost"),
    ("UC", "received after a lost one"),
    ("UC", "received again or late"),
    ("UC", "Work Request Flushed Error"),
    ("UC", "receive flushed"),
    ("UC", "receive with a wrong key"),
    ("UC", "drained"),
    ("UC", "resumed"),
    ("UC", "local protection error"),
    ("UC", "left SQE"),
    ("UC", "destroyed"),
    ("UC", "moved to ERR"),
    ("UC", "connected again"),
    ("UC", "region deregistered"),
    ("UD", "SEND: completed"),
    ("UD", "SEND with immediate: completed"),
    ("UD", "received"),
    ("UD", "received from a shared queue"),
    ("UD", "received twice"),
    ("UD", "lost"),
    ("UD", "Work Request Flushed Error"),
    ("UD", "receive flushed"),
    ("UD", "receive with a wrong key"),
    ("UD", "drained"),
    ("UD", "resumed"),
    ("UD", "local protection error"),
    ("UD", "left SQE"),
    ("UD", "destroyed"),
    ("UD", "moved to ERR"),
    ("UD", "connected again"),
    ("XRC", "SEND: completed"),
    ("XRC", "SEND with immediate: completed"),
    ("XRC", "WRITE: completed"),
    ("XRC", "WRITE with immediate: completed"),
    ("XRC", "READ: completed"),
    ("XRC", "received"),
    ("XRC", "receive of a refused WRITE"),
    ("XRC", "remote access error"),
    ("XRC", "transport retry counter exceeded"),
    ("XRC", "Work Request Flushed Error"),
    ("XRC", "drained"),
    ("XRC", "resumed"),
    ("XRC", "path migrated"),
    ("XRC", "destroyed"),
    ("XRC", "moved to ERR"),
    ("XRC", "connected again"),
    ("XRC", "region deregistered"),
    ("CQ", "resized"),
    ("device", "frames handed over to other cores"),
    ("device", "rates cut by CNPs"),
];

/// Counts of one or many scenarios.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of scenarios.
    pub scenarios: u64,
    /// Number of frames sent.
    pub frames: u64,
    events: BTreeMap<(&'static str, String), u64>,
    pub(super) transitions: Transitions,
}

impl Tally {
    pub(super) fn of_one() -> Self {
        Self { scenarios: 1, ..Self::default() }
    }

    pub(super) fn count(&mut self, service: &'static str, event: &str) {
        *self.events.entry((service, event.to_owned())).or_default() += 1;
    }

    /// Returns what must occur in a long run and did not occur in this one, and the reverse.
    pub fn missing(&self) -> Vec<String> {
        let is_missing = |(service, event): &&(&'static str, &str)| {
            !self.events.contains_key(&(*service, (*event).to_owned()))
        };
        let missing = EXPECTED.iter().filter(is_missing);
        let missing = missing.map(|(service, event)| format!("{service} {event} never occurred"));
        missing.chain(self.transitions.contradictions()).collect()
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.scenarios += other.scenarios;
        self.frames += other.frames;
        for (event, count) in &other.events {
            *self.events.entry(event.clone()).or_default() += count;
        }
        self.transitions.add(&other.transitions);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} scenarios, {} frames", self.scenarios, self.frames)?;
        for ((service, event), count) in &self.events {
            writeln!(f, "  {count:>9} {service} {event}")?;
        }
        write!(f, "{}", self.transitions)
    }
}
