//! Pairs the engine's responses with the captured ones. Either side may lack some of them.

use feroce_wire::{NakCode, Operation, Packet, Psn, Syndrome};

use super::tolerance::Tolerance;

/// Number of responses that are searched for a counterpart.
const MAX_DISTANCE: usize = 64;

/// The identity of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseId {
    /// PSN.
    pub psn: Psn,
    /// Kind.
    pub kind: Kind,
    /// True for MSN 0 and PSN 0xffffff: rxe sends such an ACK before it has received a request.
    before_first: bool,
}

/// The kind of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// ACK of everything up to the PSN.
    Ack,
    /// NAK (PSN sequence error).
    Sequence,
    /// RNR NAK.
    Rnr,
    /// NAK of any other kind: the request is refused.
    Refusal,
    /// READ response.
    Read,
    /// Atomic acknowledgement.
    Atomic,
}

impl ResponseId {
    /// Reads a response packet.
    pub fn of(packet: &Packet<'_>) -> Self {
        let kind = match (packet.info.operation, packet.ext.aeth.map(|aeth| aeth.syndrome)) {
            (Operation::ReadResponse, _) => Kind::Read,
            (Operation::AtomicAcknowledge, _) => Kind::Atomic,
            (_, Some(Syndrome::RnrNak(_))) => Kind::Rnr,
            (_, Some(Syndrome::Nak(NakCode::PsnSequence))) => Kind::Sequence,
            (_, Some(Syndrome::Nak(_))) => Kind::Refusal,
            _ => Kind::Ack,
        };
        let psn = packet.bth.psn;
        let msn = packet.ext.aeth.map(|aeth| aeth.msn.value());
        Self { psn, kind, before_first: msn == Some(0) && psn.value() == 0xff_ffff }
    }

    /// Returns true for an ACK that rxe sends before it has received a request.
    pub const fn is_before_first(&self) -> bool {
        self.before_first
    }

    /// Returns true if the response shows that the request `psn` has arrived.
    pub fn acknowledges(&self, psn: Psn) -> bool {
        self.kind != Kind::Sequence && self.kind != Kind::Rnr && psn.at_or_before(self.psn)
            || matches!(self.kind, Kind::Sequence | Kind::Rnr) && psn.is_before(self.psn)
    }

    /// Returns true if `other` contains the information of this response.
    pub fn is_conveyed_by(&self, other: &Self) -> bool {
        match self.kind {
            Kind::Ack if self.before_first => other.kind == Kind::Ack,
            Kind::Ack => other.acknowledges(self.psn),
            _ => other.matches(self),
        }
    }

    /// Returns true if `self`, of the engine, and `theirs`, of the capture, are the same response.
    fn matches(&self, theirs: &Self) -> bool {
        self.kind == theirs.kind
            && (self.psn == theirs.psn || self.kind == Kind::Ack && theirs.before_first)
    }
}

/// A step of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Both sides have the response.
    Both(usize, usize),
    /// Only the engine has it: permitted, or a difference.
    Ours(usize, Option<Tolerance>),
    /// Only the capture has it: permitted, or a difference.
    Theirs(usize, Option<Tolerance>),
}

/// Pairs `ours` with `theirs`. `lost` returns true if an engine's response may have been lost
/// before the capture point; `open` returns true if it may have followed the end of the capture;
/// `unsent` says why the engine may lack a captured response.
pub fn align(
    ours: &[ResponseId],
    theirs: &[ResponseId],
    lost: impl Fn(usize) -> bool,
    open: impl Fn(usize) -> bool,
    unsent: impl Fn(usize) -> Option<Tolerance>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut i, mut j) = (0, 0);
    // Each answer is needed up to MAX_DISTANCE times.
    let lost: Vec<bool> = (0..ours.len()).map(lost).collect();
    let open: Vec<bool> = (0..ours.len()).map(open).collect();
    let own_tolerance = |i: usize, j: usize| {
        if coalesced(&ours[i], &theirs[j..]) {
            return Some(Tolerance::AckCoalescing);
        }
        if lost[i] {
            return Some(Tolerance::NotCaptured);
        }
        (j == theirs.len() && open[i]).then_some(Tolerance::CaptureEnds)
    };
    let their_tolerance = |i: usize, j: usize| {
        let no_sequence_error = |response: &&ResponseId| response.kind != Kind::Sequence;
        let before = theirs[..j].iter().rev().find(no_sequence_error);
        if theirs[j].kind == Kind::Sequence
            && before.is_some_and(|rnr| rnr.kind == Kind::Rnr && rnr.psn == theirs[j].psn)
        {
            return Some(Tolerance::NakBehindRnrNak);
        }
        let is_conveyed = coalesced(&theirs[j], &ours[i..]);
        is_conveyed.then_some(Tolerance::AckCoalescing).or_else(|| unsent(j))
    };
    while i < ours.len() || j < theirs.len() {
        if i < ours.len() && j < theirs.len() && ours[i].matches(&theirs[j]) {
            steps.push(Step::Both(i, j));
            (i, j) = (i + 1, j + 1);
            continue;
        }
        // Takes the nearest pair for which all skipped responses are permitted; else the nearest
        // pair.
        let tolerated_theirs = run(j, theirs.len(), |at| their_tolerance(i, at).is_some());
        let tolerated_ours = run(i, ours.len(), |at| own_tolerance(at, j).is_some());
        let (to_i, to_j) = nearest(ours, theirs, (i, j), (tolerated_ours, tolerated_theirs))
            .or_else(|| {
                let limits =
                    ((i + MAX_DISTANCE).min(ours.len()), (j + MAX_DISTANCE).min(theirs.len()));
                nearest(ours, theirs, (i, j), limits)
            })
            .unwrap_or(((i + 1).min(ours.len()), (j + 1).min(theirs.len())));
        steps.extend((j..to_j).map(|at| Step::Theirs(at, their_tolerance(i, at))));
        steps.extend((i..to_i).map(|at| Step::Ours(at, own_tolerance(at, to_j))));
        (i, j) = (to_i, to_j);
    }
    steps
}

/// Returns true for an ACK whose information a later response contains.
fn coalesced(response: &ResponseId, others: &[ResponseId]) -> bool {
    response.kind == Kind::Ack
        && others.iter().take(MAX_DISTANCE).any(|other| other.acknowledges(response.psn))
}

/// Returns the end of the run of permitted indices that begins at `from`.
fn run(from: usize, end: usize, tolerated: impl Fn(usize) -> bool) -> usize {
    (from..end.min(from + MAX_DISTANCE))
        .find(|&at| !tolerated(at))
        .unwrap_or(end.min(from + MAX_DISTANCE))
}

/// Returns the nearest pair from `from` within `limits`.
fn nearest(
    ours: &[ResponseId],
    theirs: &[ResponseId],
    from: (usize, usize),
    limits: (usize, usize),
) -> Option<(usize, usize)> {
    let (most_i, most_j) = (limits.0 - from.0, limits.1 - from.1);
    for distance in 1..=most_i + most_j {
        for own in distance.saturating_sub(most_j)..=distance.min(most_i) {
            let (i, j) = (from.0 + own, from.1 + distance - own);
            let at_end = i == ours.len() && j == theirs.len();
            if at_end || i < ours.len() && j < theirs.len() && ours[i].matches(&theirs[j]) {
                return Some((i, j));
            }
        }
    }
    None
}
