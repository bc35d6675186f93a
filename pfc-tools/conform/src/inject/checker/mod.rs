//! What the trace and the endpoints' words must be like, whatever happened to packets.

mod answers;
mod completions;
mod counters;
mod marks;
mod reads;
mod requester;
mod responder;

pub use requester::{RequesterStory, Restart};
pub use responder::ResponderStory;

use serde::{Deserialize, Serialize};

use super::outcome::{Evidence, FlowOutcome};
use super::script::Script;
use super::trace::{Side, Step};

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Numbers of the packets that show it.
    pub packets: Vec<usize>,
    /// What is wrong, in a sentence.
    pub sentence: String,
}

/// A time that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Of what.
    pub name: String,
    /// Nanoseconds.
    pub nanos: u64,
}

/// A number of things.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Of what.
    pub name: String,
    /// How many.
    pub count: u64,
}

/// What a checker says of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the checker.
    pub check: String,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What was measured.
    pub measures: Vec<Measure>,
    /// What was counted.
    pub counts: Vec<Count>,
}

/// What a checker looks at: one flow.
#[derive(Debug)]
pub struct View<'a> {
    /// What was played.
    pub script: &'a Script,
    /// What was seen.
    pub evidence: &'a Evidence,
    /// Index of the flow.
    pub flow: usize,
    /// What its endpoints say; `None` if they are not ours to ask.
    pub outcome: Option<&'a FlowOutcome>,
    /// What went by, in order.
    pub steps: Vec<Step<'a>>,
    /// First PSN of the requester.
    pub first_psn: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// The requester's part.
    pub requester: RequesterStory,
    /// The responder's.
    pub responder: ResponderStory,
}

/// A checker.
#[derive(Debug, Clone, Copy)]
pub struct Checker {
    /// Its name.
    pub name: &'static str,
    /// What it demands.
    pub demands: &'static str,
    /// Whose fault it is if it finds something; `None` if either's, or the script's.
    pub side: Option<Side>,
    /// Looks.
    look: fn(&View<'_>, &mut Found),
}

/// What a checker has found so far.
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
    look: fn(&View<'_>, &mut Found),
    demands: &'static str,
) -> Checker {
    Checker { name, demands, side, look }
}

const REQUESTER: Option<Side> = Some(Side::Requester);
const RESPONDER: Option<Side> = Some(Side::Responder);

/// All of them, in the order of reports.
#[rustfmt::skip] // A table.
pub const CHECKERS: &[Checker] = &[
    checker("events-met", None, completions::events_met, "every event of the script met a packet"),
    checker("completions", None, completions::completions, "requests and receives complete as they must, in order; the QPs end in the right states"),
    checker("data-intact", None, completions::data, "the memories of both ends hold what the requests say, byte by byte"),
    checker("go-back-n", REQUESTER, requester::go_back_n, "requests go out in PSN order; the requester goes back only for a NAK, an RNR NAK whose time is over, an implied NAK or a timeout, to the packet that is missing, and leaves no hole"),
    checker("recovery", REQUESTER, requester::recovery, "what makes the requester go back, and where to, is what the script expects"),
    checker("nak-reaction", REQUESTER, requester::nak_reaction, "behind each NAK (PSN sequence error) the packet that it names is sent again"),
    checker("rnr-wait", REQUESTER, requester::rnr_wait, "nothing is sent before the time of an RNR NAK is over"),
    checker("timeout", REQUESTER, requester::timeout, "the local ACK timeout runs out after one to four times its value"),
    checker("tries", REQUESTER, requester::tries, "a packet is sent once, and then as often as the retries say"),
    checker("nak-generation", RESPONDER, responder::nak_generation, "one NAK (PSN sequence error) for each gap, with the expected PSN, and none without a gap"),
    checker("refusal", RESPONDER, responder::refusal, "what cannot be executed is refused with the right code, once, and nothing is answered behind it"),
    checker("rnr-naks", RESPONDER, responder::rnr_naks, "a request without a receive is answered with an RNR NAK, with the time that the QP was given"),
    checker("ack-order", RESPONDER, answers::ack_order, "an acknowledgement never falls below one that went before"),
    checker("ack-justified", RESPONDER, answers::ack_justified, "nothing is acknowledged that has not arrived"),
    checker("msn", RESPONDER, answers::msn, "the MSN counts the messages that are completed"),
    checker("duplicates-answered", RESPONDER, answers::duplicates_answered, "a duplicate request is acknowledged again"),
    checker("read-responses", RESPONDER, reads::responses, "each READ is answered once, in PSN order, with the right opcodes and lengths"),
    checker("read-recovery", REQUESTER, reads::recovery, "a READ is asked for again from within what is missing, with address and length to match"),
    checker("cnps", None, marks::cnps, "packets marked CE are answered with CNPs to the sender's QP, and nothing else is"),
    checker("counters", None, counters::counters, "the device's counters are what the trace shows"),
];

/// Has every checker look at an item.
pub fn check(script: &Script, evidence: &Evidence) -> Vec<Verdict> {
    let flows = evidence.trace.flows().max(evidence.flows.len());
    let views: Vec<_> = (0..flows).map(|flow| View::new(script, evidence, flow)).collect();
    let verdict = |checker: &Checker| {
        let mut found = Found::default();
        views.iter().for_each(|view| (checker.look)(view, &mut found));
        let Found { findings, measures, counts } = found;
        Verdict { check: checker.name.to_owned(), findings, measures, counts }
    };
    CHECKERS.iter().map(verdict).collect()
}

impl<'a> View<'a> {
    fn new(script: &'a Script, evidence: &'a Evidence, flow: usize) -> Self {
        let steps = evidence.trace.steps(flow);
        let first_psn = evidence.trace.first_psns.get(&flow).copied().unwrap_or_default();
        let mtu = script.traffic.mtu.bytes();
        let requester = RequesterStory::new(&steps, script, first_psn, evidence.slack);
        let responder = ResponderStory::new(&steps, first_psn, mtu);
        let outcome = evidence.flows.get(flow);
        Self { script, evidence, flow, outcome, steps, first_psn, mtu, requester, responder }
    }

    /// A PSN as scripts count it.
    fn relative(&self, psn: feroce_wire::Psn) -> u32 {
        feroce_wire::Psn::new(self.first_psn).distance_to(psn)
    }
}

/// `12.3 us`, as people read it.
pub fn time(nanos: u64) -> String {
    match nanos {
        0..1_000_000 => format!("{}.{} us", nanos / 1000, nanos % 1000 / 100),
        _ => format!("{}.{} ms", nanos / 1_000_000, nanos % 1_000_000 / 100_000),
    }
}
