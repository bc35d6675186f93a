//! Finds the request that caused a response.

use feroce_wire::Psn;

use super::align::Kind;
use super::lanes::{Captured, Lane, read_span};
use super::spans::Spans;

/// The requests sent so far. Responses are passed in the order of arrival.
#[derive(Debug, Default)]
pub struct SentRequests {
    by_psn: Spans,
    sent: Vec<(Psn, usize)>,
    /// The last NAK (PSN sequence error).
    last_nak: Option<LastNak>,
}

/// A missing PSN in a NAK, and where in `sent` the next search begins.
#[derive(Debug, Clone, Copy)]
struct LastNak {
    psn: Psn,
    /// Position of the request that revealed the gap.
    cause: usize,
    /// Number of requests sent when the NAK arrived.
    until: usize,
}

impl SentRequests {
    /// All requests of the lane, as sent.
    pub fn of(lane: &Lane, frames: &[Captured]) -> Self {
        let mut requests = Self::default();
        (0..lane.requests.len()).for_each(|at| requests.add(lane, frames, at));
        requests
    }

    /// Returns the last request for `psn`, by its index among those of the lane.
    pub fn last_for(&self, psn: Psn) -> Option<usize> {
        self.by_psn.last_of(psn)
    }

    /// Adds the request at index `at` among those of the lane.
    pub fn add(&mut self, lane: &Lane, frames: &[Captured], at: usize) {
        let packet = frames[lane.requests[at]].packet();
        self.add_span(packet.bth.psn, read_span(&packet, lane.mtu.bytes()), at);
    }

    fn add_span(&mut self, psn: Psn, psns: u32, at: usize) {
        self.by_psn.add(psn, psns, at);
        self.sent.push((psn, at));
    }

    /// Returns the last request sent.
    pub fn last(&self) -> Option<usize> {
        self.sent.last().map(|&(_, at)| at)
    }

    /// Returns the request that caused a response with `psn`. A NAK is caused by the first request
    /// after the gap, which may have been sent long before the NAK arrives: the NAK crosses later
    /// requests, even the retransmission of the missing one.
    pub fn cause(&mut self, psn: Psn, kind: Kind) -> Option<usize> {
        let requests = match kind {
            Kind::Sequence => self.first_after_gap(psn),
            _ => self.last_for(psn),
        };
        requests.or(self.last())
    }

    /// Returns the first request after the gap at `psn`, or after its latest retransmission.
    fn first_after_gap(&mut self, psn: Psn) -> Option<usize> {
        let since = match self.last_nak {
            Some(nak) if nak.psn == psn => nak.until,
            // Nothing else was accepted until the missing request arrived.
            Some(nak) if nak.psn.is_before(psn) => self.retransmitted_at(nak).unwrap_or(nak.cause),
            _ => 0,
        };
        let mut after = self.sent.iter().enumerate().skip(since);
        let (cause, at) =
            after.find_map(|(place, &(sent, at))| psn.is_before(sent).then_some((place, at)))?;
        self.last_nak = Some(LastNak { psn, cause, until: self.sent.len() });
        Some(at)
    }

    /// Returns the position at which the missing request was sent again.
    fn retransmitted_at(&self, nak: LastNak) -> Option<usize> {
        let after = self.sent[nak.cause..].iter().position(|&(sent, _)| sent == nak.psn);
        after.map(|steps| nak.cause + steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds requests with these PSNs, each with its position as the index.
    fn sent(requests: &mut SentRequests, psns: impl IntoIterator<Item = u32>) {
        for psn in psns {
            let at = requests.sent.len();
            requests.add_span(Psn::new(psn), 1, at);
        }
    }

    fn nak(requests: &mut SentRequests, psn: u32) -> Option<usize> {
        requests.cause(Psn::new(psn), Kind::Sequence)
    }

    #[test]
    fn a_nak_is_caused_by_the_first_request_after_the_gap() {
        let mut requests = SentRequests::default();
        assert_eq!(nak(&mut requests, 3), None, "nothing was sent");
        sent(&mut requests, [1, 2, 4, 5]);
        assert_eq!(nak(&mut requests, 3), Some(2));
        // A NAK of a request that was not sent: takes the last request.
        assert_eq!(nak(&mut requests, 9), Some(3));
    }

    #[test]
    fn a_nak_crosses_the_retransmission_of_the_missing_request() {
        let mut requests = SentRequests::default();
        sent(&mut requests, [1, 2, 4, 5, 3, 4, 5]);
        assert_eq!(nak(&mut requests, 3), Some(2), "the first 4, before the retransmitted 3");
        assert_eq!(requests.cause(Psn::new(4), Kind::Ack), Some(5), "the last 4");
    }

    #[test]
    fn a_psn_may_be_missing_more_than_once() {
        let mut requests = SentRequests::default();
        sent(&mut requests, [1, 2, 3, 4, 5]);
        assert_eq!(nak(&mut requests, 3), Some(3));
        sent(&mut requests, [3, 4, 5]);
        assert_eq!(nak(&mut requests, 3), Some(6), "4 of the second time");
        sent(&mut requests, [3, 4]);
        assert_eq!(nak(&mut requests, 3), Some(9), "4 of the third time");
        assert_eq!(nak(&mut requests, 3), Some(9), "nothing was sent since: the last one");
    }

    #[test]
    fn a_later_psn_may_be_missing_after_a_retransmission() {
        let mut requests = SentRequests::default();
        sent(&mut requests, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(nak(&mut requests, 3), Some(3));
        sent(&mut requests, [3, 4, 5, 6]);
        assert_eq!(nak(&mut requests, 5), Some(10), "6 after the retransmitted 3, not the first 6");
        sent(&mut requests, [5, 6, 7]);
        assert_eq!(nak(&mut requests, 6), Some(13), "7, after the retransmitted 5");
        // The capture does not show a retransmission of the first missing PSN.
        let mut requests = SentRequests::default();
        sent(&mut requests, [1, 3, 5]);
        assert_eq!((nak(&mut requests, 2), nak(&mut requests, 4)), (Some(1), Some(2)));
    }

    #[test]
    fn psns_wrap() {
        let mut requests = SentRequests::default();
        sent(&mut requests, [0xff_fffd, 0xff_fffe, 0, 1]);
        assert_eq!(nak(&mut requests, 0xff_ffff), Some(2));
        sent(&mut requests, [0xff_ffff, 0, 1, 2]);
        assert_eq!(nak(&mut requests, 0), Some(6), "1, after the retransmitted 0xffffff");
        let at = requests.sent.len();
        requests.add_span(Psn::new(0xff_ffff), 3, at);
        let last = |psn: u32| requests.last_for(Psn::new(psn));
        assert_eq!(
            [last(0xff_ffff), last(0), last(1), last(2)],
            [Some(at), Some(at), Some(at), Some(7)]
        );
    }
}
