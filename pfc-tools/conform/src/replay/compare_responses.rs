//! Compares the responses to a lane's requests with the captured ones.

use feroce_wire::{Msn, Packet, Psn};

use super::align::{Kind, ResponseId, Step, align};
use super::compare::{compare, sealed_again};
use super::holes::Hole;
use super::lanes::{Captured, Lane};
use super::missing::{Missing, holes_ahead};
use super::peer_rules::{PeerRules, PeerStatements};
use super::response_cause::SentRequests;
use super::sent_response::SentResponse;
use super::tolerance::{Tolerance, UsedTolerances};
use super::{Difference, Outcome};

/// MSNs have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// The sender of the responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Responding<'a> {
    /// The engine: deviations of peers are not permitted.
    Engine {
        /// Holes of the capture, behind which the engine's QP started anew.
        holes: &'a [Hole],
    },
    /// A live peer with a new QP.
    Peer {
        /// The PSN that it expects first.
        expects: Psn,
    },
}

impl<'a> Responding<'a> {
    /// Name of the sender in sentences.
    const fn name(self) -> &'static str {
        match self {
            Self::Engine { .. } => "the engine",
            Self::Peer { .. } => "the peer",
        }
    }

    /// The holes of the capture.
    const fn holes(self) -> &'a [Hole] {
        match self {
            Self::Engine { holes } => holes,
            Self::Peer { .. } => &[],
        }
    }
}

/// Compares the responses `sent` to the lane's requests with the captured ones.
pub fn compare_responses(
    lane: &Lane,
    frames: &[Captured],
    sent: Vec<SentResponse>,
    responding: Responding<'_>,
    outcome: &mut Outcome,
) {
    let is_engine = matches!(responding, Responding::Engine { .. });
    let missing = Missing::of(lane, frames, responding.holes());
    let (sent, theirs) = match is_engine {
        true => comparable(lane, frames, sent, &missing, outcome),
        false => (sent, lane.responses.clone()),
    };
    let parsed = |sent: &SentResponse| {
        Packet::parse(&sent.bytes, &[]).map(|packet| ResponseId::of(&packet)).ok()
    };
    let ours: Vec<ResponseId> = sent.iter().filter_map(parsed).collect();
    let captured: Vec<ResponseId> =
        theirs.iter().map(|&index| ResponseId::of(&frames[index].packet())).collect();
    // A response may have been lost before the capture if the requester retransmits its request.
    let requests = SentRequests::of(lane, frames);
    // A live peer receives all requests, so a loss before the capture point cannot explain an extra
    // NAK of the peer.
    let may_be_extra =
        |at: usize| is_engine || matches!(ours[at].kind, Kind::Ack | Kind::Read | Kind::Atomic);
    let is_requested_again = |at: usize| {
        requests.last_for(ours[at].psn).is_some_and(|last| lane.requests[last] > sent[at].after)
    };
    let lost = |at: usize| may_be_extra(at) && is_requested_again(at);
    // `align` uses this only for responses after the last captured one.
    let open = |at: usize| may_be_extra(at) && missing.is_behind_end(&sent[at]);
    let peers = match responding {
        Responding::Engine { .. } => None,
        Responding::Peer { expects } => Some(PeerRules::of(lane, frames, expects)),
    };
    outcome.differences.extend(peers.iter().flat_map(|peers| wrong(peers, frames, &sent)));
    let statements = peers.as_ref().map(|peers| PeerStatements::by(&ours, &sent, peers));
    // One response to consecutive duplicates replaces a response to each of them.
    let conveyed = |at: usize| {
        let statements = statements.as_ref().filter(|_| captured[at].kind != Kind::Sequence);
        statements.is_some_and(|statements| statements.is_conveyed(&captured[at], at))
    };
    let unsent = |at: usize| match conveyed(at) {
        true => Some(Tolerance::AckCoalescing),
        false => missing.why_unsent(theirs[at]).filter(|_| is_engine),
    };
    let steps = align(&ours, &captured, lost, open, unsent);
    let sides = (lane, frames, &sent[..], &theirs[..]);
    compare_pairs(steps, sides, responding, outcome);
}

/// Both sides of a comparison: the lane, the frames of the capture, the responses sent, and the
/// indices of the captured ones.
type Sides<'a> = (&'a Lane, &'a [Captured], &'a [SentResponse], &'a [usize]);

/// Compares the paired responses, and reports those without a counterpart.
fn compare_pairs(
    steps: Vec<Step>,
    (lane, frames, sent, theirs): Sides<'_>,
    responding: Responding<'_>,
    outcome: &mut Outcome,
) {
    let is_peers = matches!(responding, Responding::Peer { .. });
    let mut msn = MsnShift::new(lane, frames);
    let sender = responding.name();
    for step in steps {
        let (number, sentence) = match step {
            Step::Both(own, other) => {
                let frame = &frames[theirs[other]];
                outcome.compared += 1;
                let tolerances = &mut outcome.tolerances;
                let shifted = msn.applied(responding, &sent[own], frame, tolerances);
                let bytes = shifted.as_deref().unwrap_or(&sent[own].bytes);
                match compare(bytes, &frame.bytes, frame.number, is_peers, tolerances) {
                    None => continue,
                    Some(sentence) => (frame.number, sentence),
                }
            }
            Step::Ours(own, Some(tolerance)) => {
                outcome.tolerances.count_use(tolerance, frames[sent[own].after].number);
                continue;
            }
            Step::Theirs(other, Some(tolerance)) => {
                outcome.tolerances.count_use(tolerance, frames[theirs[other]].number);
                continue;
            }
            Step::Ours(own, None) => {
                let (response, number) = (text(&sent[own].bytes), frames[sent[own].after].number);
                (number, format!("{sender} sends {response}, which the capture lacks"))
            }
            Step::Theirs(other, None) => {
                let Captured { number, ref bytes, .. } = frames[theirs[other]];
                let response = text(bytes);
                (number, format!("the capture has {response}, which {sender} does not send"))
            }
        };
        outcome.differences.push(Difference { packet: Some(number), sentence });
    }
}

/// Returns the engine's responses and the indices of the captured ones, without those whose
/// counterpart the capture misses.
fn comparable(
    lane: &Lane,
    frames: &[Captured],
    mut sent: Vec<SentResponse>,
    missing: &Missing<'_>,
    outcome: &mut Outcome,
) -> (Vec<SentResponse>, Vec<usize>) {
    let used = &mut outcome.tolerances;
    let mut count = |index: usize| used.count_use(Tolerance::CaptureHole, frames[index].number);
    let hides = |index: &usize| missing.hides_request(*index);
    let (hidden, theirs): (Vec<usize>, Vec<usize>) =
        lane.responses.iter().copied().partition(hides);
    hidden.into_iter().for_each(&mut count);
    sent.retain(|sent| {
        let Ok(packet) = Packet::parse(&sent.bytes, &[]) else { return false };
        let is_hidden = missing.hides_response(sent, &ResponseId::of(&packet));
        if is_hidden {
            count(sent.after);
        }
        !is_hidden
    });
    (sent, theirs)
}

/// Returns what is wrong with a peer's responses, whatever was captured.
fn wrong(peers: &PeerRules<'_>, frames: &[Captured], sent: &[SentResponse]) -> Vec<Difference> {
    let difference = |(at, why): (usize, String)| {
        let sentence = format!("the peer sends {}: {why}", text(&sent[at].bytes));
        Difference { packet: Some(frames[sent[at].after].number), sentence }
    };
    peers.wrong(sent).into_iter().map(difference).collect()
}

/// The MSN counts from the start of a connection. Where the capture lacks that, or has a hole, the
/// first response tells how many messages are missing.
struct MsnShift {
    /// Number of holes ahead.
    passed: usize,
    /// Number of messages that the capture lacks.
    missing: Option<u32>,
}

impl MsnShift {
    fn new(lane: &Lane, frames: &[Captured]) -> Self {
        Self { passed: 0, missing: lane.begins_in(frames).then_some(0) }
    }

    /// Returns the engine's response with the MSN that counts the missing messages, too.
    fn applied(
        &mut self,
        responding: Responding<'_>,
        ours: &SentResponse,
        theirs: &Captured,
        used: &mut UsedTolerances,
    ) -> Option<Vec<u8>> {
        let Responding::Engine { holes } = responding else { return None };
        let passed = holes_ahead(holes, ours.after);
        if passed != self.passed {
            *self = Self { passed, missing: None };
        }
        let mut packet = Packet::parse(&ours.bytes, &[]).ok()?;
        let captured = theirs.packet().ext.aeth?.msn.value();
        let aeth = packet.ext.aeth.as_mut()?;
        let ahead = captured.wrapping_sub(aeth.msn.value()) & MSN_MASK;
        let missing = *self.missing.get_or_insert(if ahead <= MSN_MASK / 2 { ahead } else { 0 });
        if missing == 0 {
            return None;
        }
        aeth.msn = Msn::new(aeth.msn.value().wrapping_add(missing) & MSN_MASK);
        let tolerance = if passed == 0 { Tolerance::CaptureEnds } else { Tolerance::CaptureHole };
        used.count_use(tolerance, theirs.number);
        Some(sealed_again(&packet))
    }
}

/// Describes a packet in words.
pub fn text(bytes: &[u8]) -> String {
    Packet::parse(bytes, &[]).map_or_else(|error| error.to_string(), |packet| packet.to_string())
}
