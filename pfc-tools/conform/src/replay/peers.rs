//! What a responder that is not the captured one may say: what had been sent to it by then decides, not what was captured.

use std::collections::BTreeMap;

use feroce_engine::verbs::SendOp;
use feroce_wire::{Packet, Psn};

use super::align::{Answer, Kind};
use super::asked::Asked;
use super::judge::Sent;
use super::lanes::{Captured, Lane, read_span};
use super::messages::{Messages, Place};

/// See the [module](self).
#[derive(Debug)]
pub struct Peers<'a> {
    lane: &'a Lane,
    messages: Messages,
    /// Place with which each message counts as completed, in their order. What the peer takes for duplicates does not count.
    counted: Vec<Place>,
    /// Indices of the requests that make these messages whole, in their order.
    whole: Vec<usize>,
    /// The place that the peer expects first, and the least one that is asked for.
    base: Place,
    least: Place,
    /// One past the last place that had been asked for when each request of the lane had been sent.
    asked: Vec<Place>,
    /// Index of the request that each captured answer is for.
    causes: Vec<usize>,
}

impl<'a> Peers<'a> {
    /// Of the lane, for a peer whose QP is new and expects the PSN `expects` first.
    pub fn of(lane: &'a Lane, frames: &[Captured], expects: Psn) -> Self {
        let messages = Messages::of(lane, frames);
        let base = Place::from(expects.offset_from(messages.first));
        let mut first_at = BTreeMap::new();
        let (mut asked, mut end) = (Vec::new(), Place::MIN);
        for (&place, &index) in messages.places.iter().zip(&lane.requests) {
            first_at.entry(place).or_insert(index);
            end =
                end.max(place + Place::from(read_span(&frames[index].packet(), lane.mtu.bytes())));
            asked.push(end);
        }
        let counted = messages.list.iter().filter_map(|message| {
            // A READ counts from its first response on.
            let is_read = matches!(message.op, SendOp::Read(_));
            let last = if is_read { message.start } else { message.end() - 1 };
            Some((last, *first_at.get(&last)?)).filter(|_| last >= base)
        });
        let (counted, mut whole): (Vec<_>, Vec<_>) = counted.unzip();
        whole.sort_unstable();
        let least = messages.places.iter().copied().min().unwrap_or(base);
        let causes = causes(lane, frames);
        Self { lane, messages, counted, whole, base, least, asked, causes }
    }

    /// Index of the request that the captured answer at the place `at` among those of the lane is for.
    pub fn cause(&self, at: usize) -> usize {
        self.causes[at]
    }

    /// The place among those of the lane of the request with that index.
    fn at(&self, index: usize) -> usize {
        let at = self.lane.requests.partition_point(|&request| request < index);
        at.min(self.lane.requests.len() - 1)
    }

    /// The place of a PSN that is told when the request with the index `near` had been sent.
    fn place(&self, psn: Psn, near: usize) -> Place {
        let place = self.messages.places[self.at(near)];
        place + Place::from(psn.offset_from(self.messages.psn(place)))
    }

    /// What is wrong with the peer's answers, in the order in which they came, whatever was captured: which, and why.
    pub fn wrong(&self, sent: &[Sent]) -> Vec<(usize, String)> {
        let mut wrong = Vec::new();
        let (mut last_msn, mut last_ack) = (0, Place::MIN);
        for (at, sent) in sent.iter().enumerate() {
            let Ok(packet) = Packet::parse(&sent.bytes, &[]) else { continue };
            let answer = Answer::of(&packet);
            if answer.is_before_first() && last_ack == Place::MIN && last_msn == 0 {
                continue; // Nothing was received so far.
            }
            let place = self.place(answer.psn, sent.until);
            let asked = self.least..self.asked[self.at(sent.until)];
            // What is ahead of all that it expects is what it has received last.
            if !asked.contains(&place) && place != self.base - 1 {
                wrong.push((at, "its PSN was not asked for".to_owned()));
                continue;
            }
            if let Some(aeth) = packet.ext.aeth {
                let msn = aeth.msn.value() as usize;
                let [least, most] = self.msns(&answer, place, sent.until);
                if msn < least || msn > most {
                    wrong.push((at, format!("{least} to {most} messages can have completed")));
                } else if msn < last_msn {
                    wrong.push((at, format!("its MSN goes back from {last_msn}")));
                } else {
                    last_msn = msn;
                }
            }
            if answer.kind == Kind::Ack && place < last_ack {
                let later = self.messages.psn(last_ack).value();
                wrong.push((at, format!("{later:#x} has been acknowledged before")));
            } else if answer.kind == Kind::Ack {
                last_ack = place;
            }
        }
        wrong
    }

    /// The least and the greatest MSN of an answer that comes when the request `until` is the last that was sent.
    fn msns(&self, answer: &Answer, place: Place, until: usize) -> [usize; 2] {
        let is_done = matches!(answer.kind, Kind::Ack | Kind::Read | Kind::Atomic);
        let done = |&counted: &Place| counted < place || is_done && counted == place;
        let least = self.counted.partition_point(done);
        // Who refuses or misses something has done nothing behind it.
        let most = self.whole.partition_point(|&index| index <= until);
        [least, if is_done { most } else { least }]
    }
}

fn causes(lane: &Lane, frames: &[Captured]) -> Vec<usize> {
    let mut asked = Asked::default();
    let mut next = 0;
    let cause = |&index: &usize| {
        while lane.requests.get(next).is_some_and(|&request| request < index) {
            asked.ask(lane, frames, next);
            next += 1;
        }
        let answer = Answer::of(&frames[index].packet());
        asked.cause(answer.psn, answer.kind).map_or(0, |cause| lane.requests[cause])
    };
    lane.responses.iter().map(cause).collect()
}

/// What a peer's answers say, to be found at once.
#[derive(Debug)]
pub struct Said<'a> {
    peers: &'a Peers<'a>,
    /// Of each answer, the last request that had been sent.
    until: Vec<usize>,
    /// The last place that each answer, or one behind it, acknowledges.
    acknowledged: Vec<Place>,
    /// The last answer of each kind and PSN, and of each kind.
    last: BTreeMap<(Kind, Option<u32>), usize>,
}

impl<'a> Said<'a> {
    /// By the answers `own`, which came as `sent`.
    pub fn by(own: &[Answer], sent: &[Sent], peers: &'a Peers<'a>) -> Self {
        let until: Vec<usize> = sent.iter().map(|sent| sent.until).collect();
        let mut acknowledged = vec![Place::MIN; own.len()];
        let mut last = BTreeMap::new();
        let mut most = Place::MIN;
        for (at, answer) in own.iter().enumerate().rev() {
            for psn in [Some(answer.psn.value()), None] {
                last.entry((answer.kind, psn)).or_insert(at);
            }
            let place = peers.place(answer.psn, until[at]);
            if !answer.is_before_first() {
                most = most.max(if answer.acknowledges(answer.psn) { place } else { place - 1 });
            }
            acknowledged[at] = most;
        }
        Self { peers, until, acknowledged, last }
    }

    /// Whether the captured `answer`, at the place `at` among those of the lane, is said behind the request that it is for.
    pub fn is_said(&self, answer: &Answer, at: usize) -> bool {
        let cause = self.peers.cause(at);
        let since = self.until.partition_point(|&until| until < cause);
        let is_last = |psn| self.last.get(&(answer.kind, psn)).is_some_and(|&last| last >= since);
        match answer.kind {
            Kind::Ack if answer.is_before_first() => is_last(None),
            Kind::Ack => {
                let place = self.peers.place(answer.psn, cause);
                self.acknowledged.get(since).is_some_and(|&most| most >= place)
            }
            _ => is_last(Some(answer.psn.value())),
        }
    }
}
