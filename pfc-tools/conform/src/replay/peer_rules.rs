//! The responses that a live peer may send, derived from the requests sent to the peer and not from
//! the capture.

use std::collections::BTreeMap;

use feroce_engine::verbs::SendOp;
use feroce_wire::{Packet, Psn};

use super::align::{Kind, ResponseId};
use super::lanes::{Captured, Lane, read_span};
use super::messages::{Messages, Place};
use super::response_cause::SentRequests;
use super::sent_response::SentResponse;

/// See the [module](self).
#[derive(Debug)]
pub struct PeerRules<'a> {
    lane: &'a Lane,
    messages: Messages,
    /// Place at which each message counts as complete, in order. Messages that the peer treats as
    /// duplicates do not count.
    counted: Vec<Place>,
    /// Indices of the requests that complete these messages, in order.
    whole: Vec<usize>,
    /// The place that the peer expects first, and the lowest place requested.
    base: Place,
    lowest: Place,
    /// For each request of the lane, one past the highest place requested so far.
    requested: Vec<Place>,
    /// Index of the request that caused each captured response.
    causes: Vec<usize>,
}

impl<'a> PeerRules<'a> {
    /// Prepares the checks of a peer whose QP is new and expects the PSN `expects` first.
    pub fn of(lane: &'a Lane, frames: &[Captured], expects: Psn) -> Self {
        let messages = Messages::of(lane, frames);
        let base = Place::from(expects.offset_from(messages.first));
        let mut first_at = BTreeMap::new();
        let (mut requested, mut end) = (Vec::new(), Place::MIN);
        for (&place, &index) in messages.places.iter().zip(&lane.requests) {
            first_at.entry(place).or_insert(index);
            end =
                end.max(place + Place::from(read_span(&frames[index].packet(), lane.mtu.bytes())));
            requested.push(end);
        }
        let counted = messages.list.iter().filter_map(|message| {
            // A READ counts from its first response on.
            let is_read = matches!(message.op, SendOp::Read(_));
            let last = if is_read { message.start } else { message.end() - 1 };
            Some((last, *first_at.get(&last)?)).filter(|_| last >= base)
        });
        let (counted, mut whole): (Vec<_>, Vec<_>) = counted.unzip();
        whole.sort_unstable();
        let lowest = messages.places.iter().copied().min().unwrap_or(base);
        let causes = causes(lane, frames);
        Self { lane, messages, counted, whole, base, lowest, requested, causes }
    }

    /// Returns the index of the request that caused the captured response number `at` of the lane.
    pub fn cause(&self, at: usize) -> usize {
        self.causes[at]
    }

    /// Returns the position among the lane's requests of the request with that index.
    fn at(&self, index: usize) -> usize {
        let at = self.lane.requests.partition_point(|&request| request < index);
        at.min(self.lane.requests.len() - 1)
    }

    /// Returns the place of a PSN in a response after the request with the index `near`.
    fn place(&self, psn: Psn, near: usize) -> Place {
        let place = self.messages.places[self.at(near)];
        place + Place::from(psn.offset_from(self.messages.psn(place)))
    }

    /// Checks the peer's responses in the order of arrival, whatever was captured. Returns the
    /// wrong ones, each with a reason.
    pub fn wrong(&self, sent: &[SentResponse]) -> Vec<(usize, String)> {
        let mut wrong = Vec::new();
        let (mut last_msn, mut last_ack) = (0, Place::MIN);
        for (at, sent) in sent.iter().enumerate() {
            let Ok(packet) = Packet::parse(&sent.bytes, &[]) else { continue };
            let response = ResponseId::of(&packet);
            if response.is_before_first() && last_ack == Place::MIN && last_msn == 0 {
                continue; // The peer has received nothing yet.
            }
            let place = self.place(response.psn, sent.until);
            let requested = self.lowest..self.requested[self.at(sent.until)];
            // The PSN before the expected one is that of the last packet received.
            if !requested.contains(&place) && place != self.base - 1 {
                wrong.push((at, "no request has its PSN".to_owned()));
                continue;
            }
            if let Some(aeth) = packet.ext.aeth {
                let msn = aeth.msn.value() as usize;
                let [min, max] = self.msns(&response, place, sent.until);
                if msn < min || msn > max {
                    wrong.push((at, format!("{min} to {max} messages can be complete")));
                } else if msn < last_msn {
                    wrong.push((at, format!("its MSN goes back from {last_msn}")));
                } else {
                    last_msn = msn;
                }
            }
            if response.kind == Kind::Ack && place < last_ack {
                let later = self.messages.psn(last_ack).value();
                wrong.push((at, format!("{later:#x} is already acknowledged")));
            } else if response.kind == Kind::Ack {
                last_ack = place;
            }
        }
        wrong
    }

    /// Returns the lowest and the highest MSN of a response that arrives when the request `until`
    /// is the last one sent.
    fn msns(&self, response: &ResponseId, place: Place, until: usize) -> [usize; 2] {
        let is_done = matches!(response.kind, Kind::Ack | Kind::Read | Kind::Atomic);
        let done = |&counted: &Place| counted < place || is_done && counted == place;
        let min = self.counted.partition_point(done);
        // A NAK completes nothing beyond its PSN.
        let max = self.whole.partition_point(|&index| index <= until);
        [min, if is_done { max } else { min }]
    }
}

fn causes(lane: &Lane, frames: &[Captured]) -> Vec<usize> {
    let mut requests = SentRequests::default();
    let mut next = 0;
    let cause = |&index: &usize| {
        while lane.requests.get(next).is_some_and(|&request| request < index) {
            requests.add(lane, frames, next);
            next += 1;
        }
        let response = ResponseId::of(&frames[index].packet());
        requests.cause(response.psn, response.kind).map_or(0, |cause| lane.requests[cause])
    };
    lane.responses.iter().map(cause).collect()
}

/// The information in a peer's responses, indexed.
#[derive(Debug)]
pub struct PeerStatements<'a> {
    peers: &'a PeerRules<'a>,
    /// For each response, the last request sent before.
    until: Vec<usize>,
    /// For each response, the highest place that it or a later one acknowledges.
    acknowledged: Vec<Place>,
    /// The last response of each kind and PSN, and of each kind.
    last: BTreeMap<(Kind, Option<u32>), usize>,
}

impl<'a> PeerStatements<'a> {
    /// Indexes the responses `own`, which arrived as `sent`.
    pub fn by(own: &[ResponseId], sent: &[SentResponse], peers: &'a PeerRules<'a>) -> Self {
        let until: Vec<usize> = sent.iter().map(|sent| sent.until).collect();
        let mut acknowledged = vec![Place::MIN; own.len()];
        let mut last = BTreeMap::new();
        let mut highest = Place::MIN;
        for (at, response) in own.iter().enumerate().rev() {
            for psn in [Some(response.psn.value()), None] {
                last.entry((response.kind, psn)).or_insert(at);
            }
            let place = peers.place(response.psn, until[at]);
            if !response.is_before_first() {
                highest = highest.max(if response.acknowledges(response.psn) {
                    place
                } else {
                    place - 1
                });
            }
            acknowledged[at] = highest;
        }
        Self { peers, until, acknowledged, last }
    }

    /// Returns true if the information of the captured response number `at` of the lane arrives
    /// after the request that caused it.
    pub fn is_conveyed(&self, response: &ResponseId, at: usize) -> bool {
        let cause = self.peers.cause(at);
        let since = self.until.partition_point(|&until| until < cause);
        let is_last = |psn| self.last.get(&(response.kind, psn)).is_some_and(|&last| last >= since);
        match response.kind {
            Kind::Ack if response.is_before_first() => is_last(None),
            Kind::Ack => {
                let place = self.peers.place(response.psn, cause);
                self.acknowledged.get(since).is_some_and(|&highest| highest >= place)
            }
            _ => is_last(Some(response.psn.value())),
        }
    }
}
