//! The requester's behaviour: go-back-N, the causes of retransmissions, RNR and timeout waits.

use feroce_wire::{NakCode, Operation, Psn, Syndrome};

use super::{Found, View, time};
use crate::inject::connection::Connection;
use crate::inject::outcome::Known;
use crate::inject::script::Cause;
use crate::inject::trace::{Side, Step};

/// The start of a retransmission: the requester goes back to an earlier PSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// The first retransmitted packet.
    pub number: usize,
    /// Time, in nanoseconds.
    pub at: u64,
    /// PSN of the packet.
    pub psn: Psn,
    /// The cause and the packet that triggered it; `None` if no cause is visible.
    pub cause: Option<(Cause, Option<usize>)>,
    /// Time since the trigger, or since the packet was last sent, in nanoseconds.
    pub after: u64,
    /// Time since the timer was last started: by that packet, or by progress since.
    pub timer_ran: u64,
}

/// A received packet that makes the requester go back.
#[derive(Debug, Clone, Copy)]
struct GoBackTrigger {
    cause: Cause,
    number: usize,
    at: u64,
    psn: Psn,
    /// Time that the requester must wait first, in nanoseconds.
    wait: u64,
}

/// A READ or atomic with an outstanding response.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    from: Psn,
    end: Psn,
}

/// The observed behaviour of a requester.
#[derive(Debug, Default)]
pub struct RequesterHistory {
    /// Retransmissions.
    pub restarts: Vec<Restart>,
    /// Violations of the PSN order: packets and a sentence.
    pub disorder: Vec<(Vec<usize>, String)>,
    /// Packets sent before the RNR timer expired.
    pub too_early: Vec<(Vec<usize>, String)>,
    /// NAKs (PSN sequence error) that arrived: number, time, PSN.
    pub naks: Vec<(usize, u64, Psn)>,
    /// Number of these NAKs that acknowledged something.
    pub acknowledging_naks: u64,
    /// Number of RNR NAKs that arrived.
    pub rnr_naks: u64,
    /// Number of retransmitted packets.
    pub resent: u64,
    /// The oldest packet that is not acknowledged at the end.
    pub unacknowledged: Option<Psn>,
}

/// The state while following a requester.
struct TraceState<'a> {
    history: RequesterHistory,
    /// The PSN to be sent next.
    cursor: Psn,
    /// The PSN after the newest one sent.
    high: Psn,
    /// The oldest outstanding PSN, and its history by time.
    una: Psn,
    since: Vec<(u64, Psn)>,
    go_back: Vec<GoBackTrigger>,
    outstanding: Vec<Outstanding>,
    /// First PSN of the recording.
    first: Psn,
    /// When each PSN was last sent.
    sent_at: std::collections::BTreeMap<u32, u64>,
    /// The shortest possible timeout.
    timeout: u64,
    slack: u64,
    mtu: u32,
    steps: &'a [Step<'a>],
}

impl RequesterHistory {
    /// Follows the requester through `steps`.
    pub fn new(steps: &[Step<'_>], known: &Known, first_psn: u32, mtu: u32, slack: u64) -> Self {
        let first = Psn::new(first_psn);
        let timeout = known.connection.timeout.map_or(0, |codes| codes.nanos()[0]);
        let mut state = TraceState {
            history: Self::default(),
            cursor: first,
            high: first,
            una: first,
            since: vec![(0, first)],
            go_back: Vec::new(),
            outstanding: Vec::new(),
            first,
            sent_at: std::collections::BTreeMap::new(),
            timeout,
            slack,
            mtu,
            steps,
        };
        for index in 0..state.steps.len() {
            let step = state.steps[index];
            if step.is_sent_by(Side::Requester) && step.packet.info.is_request() {
                state.on_sent(&step);
            } else if step.reaches(Side::Requester) && step.packet.info.is_response() {
                state.on_received(&step);
            }
        }
        state.history.unacknowledged = state.una.is_before(state.high).then_some(state.una);
        state.history
    }
}

impl TraceState<'_> {
    fn on_sent(&mut self, step: &Step<'_>) {
        let (psn, end) = (step.psn(), step.psn().add(step.span(self.mtu)));
        if psn.is_before(self.first) {
            // The recording began later.
            self.cursor = end;
            return;
        }
        if psn.is_before(self.cursor) {
            self.on_restart(step);
        } else if psn.is_after(self.cursor) && psn.is_after(self.una) {
            let sentence = format!(
                "packet {} with PSN {:#x} leaves a gap: PSN {:#x} is next",
                step.number,
                psn.value(),
                self.cursor.value()
            );
            self.history.disorder.push((vec![step.number], sentence));
        }
        if psn.is_before(self.high) {
            self.history.resent += 1;
        }
        let has_response_data = matches!(
            step.packet.info.operation,
            Operation::ReadRequest | Operation::FetchAdd | Operation::CompareSwap
        );
        if has_response_data && !psn.is_before(self.high) {
            self.outstanding.push(Outstanding { from: psn, end });
        }
        self.cursor = end;
        self.high = if end.is_after(self.high) { end } else { self.high };
        self.sent_at.insert(psn.value(), step.at);
    }

    fn on_restart(&mut self, step: &Step<'_>) {
        let psn = step.psn();
        // A missing response may still arrive after the response that implied its loss. Then the
        // retransmission begins at the next missing response.
        let passed = |go_back: &GoBackTrigger| {
            go_back.cause == Cause::Implied && go_back.psn.is_before(psn) && psn == self.una
        };
        let go_back =
            self.go_back.iter().rev().find(|go_back| go_back.psn == psn || passed(go_back));
        let go_back = go_back.copied();
        let last = self.sent_at.get(&psn.value()).or_else(|| self.covering(psn)).copied();
        let quiet = step.at.saturating_sub(last.unwrap_or_default());
        let is_quiet = self.was_oldest(psn, step.at) && quiet + self.slack >= self.timeout;
        // After a full timeout the timer is the cause, not an old trigger. An RNR NAK remains the
        // cause, since it delays the retransmission.
        let has_expired = is_quiet && self.timeout > 0;
        let go_back = go_back.filter(|go_back| !has_expired || go_back.cause == Cause::Rnr);
        let (cause, after) = match go_back {
            Some(go_back) => {
                (Some((go_back.cause, Some(go_back.number))), step.at.saturating_sub(go_back.at))
            }
            None if is_quiet => (Some((Cause::Timeout, None)), quiet),
            None => (None, quiet),
        };
        if let Some(go_back) = go_back {
            // This retransmission also satisfies the triggers that arrived well before this one.
            let satisfied = go_back.at.saturating_sub(self.slack);
            self.go_back.retain(|other| other.at > satisfied && other.number != go_back.number);
            if step.at + self.slack < go_back.at + go_back.wait {
                let sentence = format!(
                    "packet {} is sent {} after the RNR NAK in packet {}, whose timer is {}",
                    step.number,
                    time(after),
                    go_back.number,
                    time(go_back.wait)
                );
                self.history.too_early.push((vec![go_back.number, step.number], sentence));
            }
        }
        let progress = self.since.last().map_or(0, |(at, _)| *at);
        let timer_ran = quiet.min(step.at.saturating_sub(progress));
        let restart = Restart { number: step.number, at: step.at, psn, cause, after, timer_ran };
        self.history.restarts.push(restart);
    }

    /// Returns when the request whose responses include `psn` was last sent.
    fn covering(&self, psn: Psn) -> Option<&u64> {
        let open = self.outstanding.iter().find(|open| in_range(psn, open.from, open.end))?;
        self.sent_at.get(&open.from.value())
    }

    /// Returns true if `psn` is the oldest outstanding PSN at `at`, or was that within the slack
    /// before `at`.
    fn was_oldest(&self, psn: Psn, at: u64) -> bool {
        let ago = at.saturating_sub(self.slack);
        let then = self.since.iter().rev().find(|(since, _)| *since <= ago);
        let then = then.map_or(self.una, |(_, psn)| *psn);
        // A READ may be retransmitted as a whole or from the first missing response on.
        let whole = self.outstanding.iter().find(|open| in_range(self.una, open.from, open.end));
        let from =
            whole.map_or(then, |open| if open.from.is_before(then) { open.from } else { then });
        !psn.is_before(from) && !psn.is_after(self.una)
    }

    fn on_received(&mut self, step: &Step<'_>) {
        let psn = step.psn();
        let syndrome = step.packet.ext.aeth.map(|aeth| aeth.syndrome);
        let is_nak = syndrome.is_some_and(|syndrome| !matches!(syndrome, Syndrome::Ack(_)));
        // Ignores responses to PSNs that were not sent, and NAKs for acknowledged PSNs.
        if !psn.is_before(self.high) || is_nak && psn.is_before(self.una) {
            return;
        }
        let mut trigger = |cause, wait| {
            let go_back = GoBackTrigger { cause, number: step.number, at: step.at, psn, wait };
            self.go_back.push(go_back);
        };
        let up_to = match syndrome {
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                trigger(Cause::Nak, 0);
                self.history.naks.push((step.number, step.at, psn));
                self.history.acknowledging_naks += u64::from(self.una.is_before(psn));
                psn
            }
            Some(Syndrome::RnrNak(timer)) => {
                trigger(Cause::Rnr, timer.nanos());
                self.history.rnr_naks += 1;
                psn
            }
            Some(Syndrome::Nak(_)) => psn,
            _ => psn.next(),
        };
        let has_data = matches!(
            step.packet.info.operation,
            Operation::ReadResponse | Operation::AtomicAcknowledge
        );
        self.answered(up_to, has_data.then_some(psn), step);
        if self.since.last().is_none_or(|(_, psn)| *psn != self.una) {
            self.since.push((step.at, self.una));
        }
    }

    /// Marks everything before `up_to` as acknowledged. READs and atomics are acknowledged only by
    /// their responses: `data` is the PSN of such a response.
    fn answered(&mut self, up_to: Psn, data: Option<Psn>, step: &Step<'_>) {
        while self.una.is_before(up_to) && self.una.is_before(self.high) {
            let open = self.outstanding.iter().find(|open| in_range(self.una, open.from, open.end));
            match open {
                Some(_) if data == Some(self.una) => self.una = self.una.next(),
                Some(_) => {
                    let go_back = GoBackTrigger {
                        cause: Cause::Implied,
                        number: step.number,
                        at: step.at,
                        psn: self.una,
                        wait: 0,
                    };
                    self.go_back.push(go_back);
                    return;
                }
                None => {
                    let una = self.una;
                    let next = self.outstanding.iter().map(|open| open.from);
                    let next = next.filter(|from| from.is_after(una) && from.is_before(up_to));
                    self.una = next.min_by_key(|from| una.distance_to(*from)).unwrap_or(up_to);
                }
            }
        }
    }
}

fn in_range(psn: Psn, from: Psn, end: Psn) -> bool {
    from.distance_to(psn) < from.distance_to(end)
}

pub(super) fn go_back_n(view: &View<'_>, found: &mut Found) {
    let history = &view.requester;
    for (packets, sentence) in &history.disorder {
        found.wrong(packets.iter().copied(), sentence.clone());
    }
    for restart in history.restarts.iter().filter(|restart| restart.cause.is_none()) {
        found.wrong(
            [restart.number],
            format!(
                "packet {} goes back to PSN {:#x} ({} after the last transmission) without a NAK, \
                 a timeout or an implied NAK",
                restart.number,
                restart.psn.value(),
                time(restart.after)
            ),
        );
    }
    for restart in &history.restarts {
        if let Some((cause, _)) = restart.cause {
            found.measured(&format!("goes back by {cause}"), restart.after);
        }
    }
}

pub(super) fn recovery(view: &View<'_>, found: &mut Found) {
    let Some(expect) = view.expected() else { return };
    let restarts = &view.requester.restarts;
    let packets = || restarts.iter().map(|restart| restart.number);
    if let Some(expected) = &expect.back_by {
        let causes: Vec<_> =
            restarts.iter().filter_map(|restart| restart.cause.map(|(cause, _)| cause)).collect();
        if causes != *expected {
            let sentence = format!(
                "the requester goes back by {} instead of {}",
                listed(&causes),
                listed(expected)
            );
            found.wrong(packets(), sentence);
        }
    }
    if let Some(expected) = &expect.back_to {
        let to: Vec<_> = restarts.iter().map(|restart| view.relative(restart.psn)).collect();
        if to != *expected {
            let sentence = format!(
                "the requester goes back to PSN {} instead of {}",
                listed(&to),
                listed(expected)
            );
            found.wrong(packets(), sentence);
        }
    }
}

/// Formats a list, such as `1, 2`, or `nothing`.
fn listed<T: std::fmt::Display>(items: &[T]) -> String {
    match items {
        [] => "nothing".to_owned(),
        items => items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

pub(super) fn nak_reaction(view: &View<'_>, found: &mut Found) {
    let is_refused_after = |at| {
        let is_refusal = |step: &&Step<'_>| {
            step.at >= at
                && step.reaches(Side::Requester)
                && step.packet.ext.aeth.is_some_and(|aeth| {
                    matches!(aeth.syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequence)
                })
        };
        view.steps.iter().any(|step| is_refusal(&step))
    };
    // Then the packet had arrived after all; a forged NAK may say otherwise.
    let is_answered = |at: u64, psn: Psn| {
        let is_answer = |step: &&Step<'_>| {
            let is_in_time = (at..=at.saturating_add(view.evidence.slack)).contains(&step.at);
            let is_positive = step.packet.ext.aeth.is_some_and(|aeth| {
                matches!(aeth.syndrome, Syndrome::Ack(_)) && !step.psn().is_before(psn)
            });
            is_in_time && step.reaches(Side::Requester) && is_positive
        };
        view.steps.iter().any(|step| is_answer(&step))
    };
    for &(number, at, psn) in &view.requester.naks {
        let sent = view.steps.iter().filter(|step| {
            step.is_sent_by(Side::Requester) && step.packet.info.is_request() && step.psn() == psn
        });
        // Skips the first transmission, which was lost.
        let again = sent.skip(1).find(|step| step.at + view.evidence.slack >= at);
        match again {
            Some(step) => {
                found.measured("NAK to retransmission", step.at.saturating_sub(at));
            }
            None if is_refused_after(at) || view.is_cut_off(at) || is_answered(at, psn) => {}
            None => found.wrong(
                [number],
                format!(
                    "PSN {:#x} is not retransmitted after its NAK (packet {number})",
                    psn.value()
                ),
            ),
        }
    }
}

pub(super) fn rnr_wait(view: &View<'_>, found: &mut Found) {
    for restart in &view.requester.restarts {
        if let Some((Cause::Rnr, _)) = restart.cause {
            found.measured("RNR NAK to retransmission", restart.after);
        }
    }
    for (packets, sentence) in &view.requester.too_early {
        found.wrong(packets.iter().copied(), sentence.clone());
    }
}

pub(super) fn timeout(view: &View<'_>, found: &mut Found) {
    let Some(codes) = view.known.connection.timeout else { return };
    let [_, value] = codes.nanos();
    for restart in &view.requester.restarts {
        let Some((Cause::Timeout, _)) = restart.cause else { continue };
        found.measured("timeout", restart.after);
        if restart.timer_ran > value.saturating_mul(4).saturating_add(view.evidence.slack) {
            let sentence = format!(
                "packet {} is retransmitted after {}, more than four times the timeout of {}",
                restart.number,
                time(restart.after),
                time(value)
            );
            found.wrong([restart.number], sentence);
        }
    }
}

/// Reports a packet that is sent again for `cause` more often than the QP allows.
fn too_often(view: &View<'_>, cause: Cause, limit: Option<u8>, found: &mut Found) {
    let Some(limit) = limit else { return };
    let restarts = &view.requester.restarts;
    let of_cause = |restart: &&Restart| restart.cause.is_some_and(|(other, _)| other == cause);
    let restarts: Vec<_> = restarts.iter().filter(of_cause).collect();
    for same in restarts.chunk_by(|one, other| one.psn == other.psn) {
        if same.len() > usize::from(limit) {
            let sentence = format!(
                "PSN {:#x} is sent again {} times by {cause}; the QP allows {limit}",
                same[0].psn.value(),
                same.len()
            );
            found.wrong(same.iter().map(|restart| restart.number), sentence);
        }
    }
}

pub(super) fn tries(view: &View<'_>, found: &mut Found) {
    let Connection { retries, rnr_retries, .. } = view.known.connection;
    too_often(view, Cause::Timeout, retries, found);
    // 7 means without limit.
    too_often(view, Cause::Rnr, rnr_retries.filter(|count| *count < 7), found);
    let Some(expected) = view.expected().and_then(|expect| expect.tries) else { return };
    let Some(psn) = view.requester.unacknowledged else { return };
    let sent = view.steps.iter().filter(|step| {
        step.is_sent_by(Side::Requester) && step.packet.info.is_request() && step.psn() == psn
    });
    let numbers: Vec<_> = sent.map(|step| step.number).collect();
    if numbers.len() != expected as usize {
        let sentence =
            format!("PSN {:#x} is sent {} times instead of {expected}", psn.value(), numbers.len());
        found.wrong(numbers, sentence);
    }
}
