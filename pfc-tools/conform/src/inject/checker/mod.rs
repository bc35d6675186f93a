//! Checks of the trace and of the endpoints' reports that hold for any faults.

mod acknowledgements;
mod completions;
mod counters;
mod marks;
mod reads;
mod requester;
mod responder;

pub use requester::{RequesterHistory, Restart};
pub use responder::ResponderHistory;

use feroce_wire::{PathMtu, Psn};
use serde::{Deserialize, Serialize};

use super::connection::{self, Connection};
use super::outcome::{Evidence, FlowOutcome, Known};
use super::script::{Expect, Script};
use super::trace::{Side, Step};

/// A violation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Numbers of the packets that show it.
    pub packets: Vec<usize>,
    /// What is wrong, in one sentence.
    pub sentence: String,
}

/// A measured time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Name.
    pub name: String,
    /// Time, in nanoseconds.
    pub nanos: u64,
}

/// A count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Name.
    pub name: String,
    /// Number.
    pub count: u64,
}

/// The result of a checker for an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the checker.
    pub check: String,
    /// Violations.
    pub findings: Vec<Finding>,
    /// Measured times.
    pub measures: Vec<Measure>,
    /// Counts.
    pub counts: Vec<Count>,
}

/// The input of a checker: one flow.
#[derive(Debug)]
pub struct View<'a> {
    /// The script.
    pub script: &'a Script,
    /// Everything observed.
    pub evidence: &'a Evidence,
    /// Index of the flow.
    pub flow: usize,
    /// Reports of the endpoints; `None` if the endpoints are not under control.
    pub outcome: Option<&'a FlowOutcome>,
    /// Sent and arrived packets, in order.
    pub steps: Vec<Step<'a>>,
    /// Starting PSN of the requester.
    pub first_psn: u32,
    /// Path MTU, in bytes.
    pub mtu: u32,
    /// What is known of the connection.
    pub known: Known,
    /// Behaviour of the requester.
    pub requester: RequesterHistory,
    /// Behaviour of the responder.
    pub responder: ResponderHistory,
}

/// A checker.
#[derive(Debug, Clone, Copy)]
pub struct Checker {
    /// Name.
    pub name: &'static str,
    /// The requirement that it checks.
    pub demands: &'static str,
    /// The side that violates the requirement; `None` if it can be either side or the script.
    pub side: Option<Side>,
    /// The check.
    check: fn(&View<'_>, &mut Found),
}

/// The results of a checker so far.
#[derive(Debug, Default)]
pub struct Found {
    findings: Vec<Finding>,
    measures: Vec<Measure>,
    counts: Vec<Count>,
}

impl Found {
    fn wrong(&mut self, packets: impl IntoIterator<Item = usize>, sentence: impl Into<String>) {
        let packets = packets.into_iter().collect();
        self.findings.push(Finding { packets, sentence: sentence.into() });
    }

    fn counted(&mut self, name: &str, count: u64) {
        self.counts.push(Count { name: name.to_owned(), count });
    }

    fn measured(&mut self, name: &str, nanos: u64) {
        self.measures.push(Measure { name: name.to_owned(), nanos });
    }
}

const fn checker(
    name: &'static str,
    side: Option<Side>,
    check: fn(&View<'_>, &mut Found),
    demands: &'static str,
) -> Checker {
    Checker { name, demands, side, check }
}

const REQUESTER: Option<Side> = Some(Side::Requester);
const RESPONDER: Option<Side> = Some(Side::Responder);

/// All checkers, in the order of reports.
pub const CHECKERS: &[Checker] = &[
    checker(
        "events-applied",
        None,
        completions::events_applied,
        "every event of the script applied to a packet",
    ),
    checker(
        "completions",
        None,
        completions::completions,
        "requests and receives complete in order with the expected status; the QPs end in the \
         expected states",
    ),
    checker(
        "data-intact",
        None,
        completions::data,
        "the memories of both ends hold the result of the requests, byte by byte",
    ),
    checker(
        "go-back-n",
        REQUESTER,
        requester::go_back_n,
        "requests are sent in PSN order without gaps; the requester goes back only for a NAK, an \
         expired RNR NAK, an implied NAK or a timeout, and to the missing packet",
    ),
    checker(
        "recovery",
        REQUESTER,
        requester::recovery,
        "the requester goes back for the causes and to the PSNs that the script expects",
    ),
    checker(
        "nak-reaction",
        REQUESTER,
        requester::nak_reaction,
        "after each NAK (PSN sequence error) the packet that it names is retransmitted",
    ),
    checker(
        "rnr-wait",
        REQUESTER,
        requester::rnr_wait,
        "nothing is sent before the time of an RNR NAK has passed",
    ),
    checker(
        "timeout",
        REQUESTER,
        requester::timeout,
        "the local ACK timeout expires after one to four times its value",
    ),
    checker(
        "tries",
        REQUESTER,
        requester::tries,
        "a packet is sent once, and then as often as the retry count says",
    ),
    checker(
        "nak-generation",
        RESPONDER,
        responder::nak_generation,
        "one NAK (PSN sequence error) is sent per gap, with the expected PSN, and none without a \
         gap",
    ),
    checker(
        "refusal",
        RESPONDER,
        responder::refusal,
        "an invalid request is refused once, with the right NAK code, and no response follows",
    ),
    checker(
        "rnr-naks",
        RESPONDER,
        responder::rnr_naks,
        "a request without a receive gets an RNR NAK with the timer of the QP",
    ),
    checker(
        "ack-order",
        RESPONDER,
        acknowledgements::ack_order,
        "an acknowledgement never names a lower PSN than an earlier one",
    ),
    checker(
        "ack-justified",
        RESPONDER,
        acknowledgements::ack_justified,
        "only packets that have arrived are acknowledged",
    ),
    checker("msn", RESPONDER, acknowledgements::msn, "the MSN counts the completed messages"),
    checker(
        "duplicates-acknowledged",
        RESPONDER,
        acknowledgements::duplicates_acknowledged,
        "a duplicate request is acknowledged again",
    ),
    checker(
        "read-responses",
        RESPONDER,
        reads::responses,
        "each READ is answered once, in PSN order, with the right opcodes and lengths",
    ),
    checker(
        "read-recovery",
        REQUESTER,
        reads::recovery,
        "a retransmitted READ requests missing data, with matching address and length",
    ),
    checker(
        "read-depth",
        REQUESTER,
        reads::depth,
        "no more READs and atomics are outstanding than the responder accepts",
    ),
    checker(
        "cnps",
        None,
        marks::cnps,
        "CNPs go to the sender's QP of packets marked CE, and to no other",
    ),
    checker("counters", None, counters::counters, "the device's counters match the trace"),
];

/// Runs every checker on an item.
pub fn check(script: &Script, evidence: &Evidence) -> Vec<Verdict> {
    let flows = evidence.trace.flows().max(evidence.flows.len());
    let views: Vec<_> = (0..flows).map(|flow| View::new(script, evidence, flow)).collect();
    let verdict = |checker: &Checker| {
        let mut found = Found::default();
        views.iter().for_each(|view| (checker.check)(view, &mut found));
        let Found { findings, measures, counts } = found;
        Verdict { check: checker.name.to_owned(), findings, measures, counts }
    };
    CHECKERS.iter().map(verdict).collect()
}

impl<'a> View<'a> {
    fn new(script: &'a Script, evidence: &'a Evidence, flow: usize) -> Self {
        let steps = evidence.trace.steps(flow);
        let first_psn = evidence.trace.first_psns.get(&flow).copied().unwrap_or_default();
        let unknown = Known { connection: Connection::default(), from_start: false };
        let known = evidence.known.get(flow).copied().unwrap_or(unknown);
        let mtu = known.connection.mtu.or_else(|| connection::mtu_of(&steps));
        // Without an answer no packet depends on it.
        let mtu = mtu.unwrap_or(PathMtu::Mtu4096).bytes();
        let requester = RequesterHistory::new(&steps, &known, first_psn, mtu, evidence.slack);
        let responder = ResponderHistory::new(&steps, known.from_start, first_psn, mtu);
        let outcome = evidence.flows.get(flow);
        Self { script, evidence, flow, outcome, steps, first_psn, mtu, known, requester, responder }
    }

    /// Returns what the script expects of this flow. A script describes the first flow, and the
    /// behaviour with its own traffic: other traffic repairs the same loss in another way.
    fn expected(&self) -> Option<&'a Expect> {
        (self.flow == 0 && self.outcome.is_some()).then_some(&self.script.expect)
    }

    /// Returns true if the recording ended before what `at` requires had to be done.
    fn is_cut_off(&self, at: u64) -> bool {
        at.saturating_add(self.evidence.slack) >= self.evidence.until
    }

    /// Returns true if the responder's state is known at `at`, and everything that it owed before
    /// has been sent.
    fn is_settled(&self, at: u64) -> bool {
        let settled = self.responder.settled.saturating_add(self.evidence.slack);
        self.known.from_start || at > settled
    }

    /// Returns true if `psn` belongs to a part of the connection that was not recorded.
    fn is_unseen(&self, psn: Psn) -> bool {
        !self.known.from_start && psn.is_before(Psn::new(self.first_psn))
    }

    /// Returns the PSN relative to the starting PSN, as scripts count.
    fn relative(&self, psn: Psn) -> u32 {
        Psn::new(self.first_psn).distance_to(psn)
    }
}

/// Formats a time for display: `12.3 us`.
pub fn time(nanos: u64) -> String {
    match nanos {
        0..1_000_000 => format!("{}.{} us", nanos / 1000, nanos % 1000 / 100),
        _ => format!("{}.{} ms", nanos / 1_000_000, nanos % 1_000_000 / 100_000),
    }
}
