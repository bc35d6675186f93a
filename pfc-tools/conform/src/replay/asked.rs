//! Which request an answer is for.

use std::collections::BTreeMap;

use feroce_wire::Psn;

use super::align::Kind;
use super::lanes::{Captured, Lane, read_span};

/// The requests that were sent so far, for who hears the answers in their order.
#[derive(Debug, Default)]
pub struct Asked {
    by_psn: BTreeMap<u32, usize>,
    sent: Vec<(Psn, usize)>,
    /// What was told to be missing last.
    told: Option<Told>,
}

/// A PSN that was told to be missing, and where in `sent` the next such request is looked for.
#[derive(Debug, Clone, Copy)]
struct Told {
    psn: Psn,
    /// The request that it was told for.
    cause: usize,
    /// One past the last request that had been sent when it was told.
    until: usize,
}

impl Asked {
    /// All of the lane's requests were sent.
    pub fn of(lane: &Lane, frames: &[Captured]) -> Self {
        let mut asked = Self::default();
        (0..lane.requests.len()).for_each(|at| asked.ask(lane, frames, at));
        asked
    }

    /// The last request for `psn`, by its place among those of the lane.
    pub fn last_for(&self, psn: Psn) -> Option<usize> {
        self.by_psn.get(&psn.value()).copied()
    }

    /// The request at the place `at` among those of the lane is sent.
    pub fn ask(&mut self, lane: &Lane, frames: &[Captured], at: usize) {
        let packet = frames[lane.requests[at]].packet();
        self.ask_for(packet.bth.psn, read_span(&packet, lane.mtu.bytes()), at);
    }

    fn ask_for(&mut self, psn: Psn, psns: u32, at: usize) {
        self.by_psn.extend((0..psns).map(|step| (psn.add(step).value(), at)));
        self.sent.push((psn, at));
    }

    /// The last request that was sent.
    pub fn last(&self) -> Option<usize> {
        self.sent.last().map(|&(_, at)| at)
    }

    /// The request that an answer with `psn` is for, of those that were sent. What is missing is told when the first behind it
    /// comes, which may be long ahead of the answer: it crosses requests, even the missing one sent again.
    pub fn cause(&mut self, psn: Psn, kind: Kind) -> Option<usize> {
        let asked = match kind {
            Kind::Sequence => self.missed(psn),
            _ => self.last_for(psn),
        };
        asked.or(self.last())
    }

    /// The first request behind `psn`, which is missing, or missing again.
    fn missed(&mut self, psn: Psn) -> Option<usize> {
        let since = match self.told {
            Some(told) if told.psn == psn => told.until,
            // Nothing else was taken until what had been missing came.
            Some(told) if told.psn.is_before(psn) => self.again(told).unwrap_or(told.cause),
            _ => 0,
        };
        let mut behind = self.sent.iter().enumerate().skip(since);
        let (cause, at) =
            behind.find_map(|(place, &(sent, at))| psn.is_before(sent).then_some((place, at)))?;
        self.told = Some(Told { psn, cause, until: self.sent.len() });
        Some(at)
    }

    /// Where what was missing was sent again.
    fn again(&self, told: Told) -> Option<usize> {
        let behind = self.sent[told.cause..].iter().position(|&(sent, _)| sent == told.psn);
        behind.map(|steps| told.cause + steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests with these PSNs were sent, each at its place.
    fn sent(asked: &mut Asked, psns: impl IntoIterator<Item = u32>) {
        for psn in psns {
            let at = asked.sent.len();
            asked.ask_for(Psn::new(psn), 1, at);
        }
    }

    fn nak(asked: &mut Asked, psn: u32) -> Option<usize> {
        asked.cause(Psn::new(psn), Kind::Sequence)
    }

    #[test]
    fn what_is_missing_is_told_for_the_first_behind_it() {
        let mut asked = Asked::default();
        assert_eq!(nak(&mut asked, 3), None, "nothing was sent");
        sent(&mut asked, [1, 2, 4, 5]);
        assert_eq!(nak(&mut asked, 3), Some(2));
        // It tells of a request that was not sent: the last one is as good as any.
        assert_eq!(nak(&mut asked, 9), Some(3));
    }

    #[test]
    fn a_nak_crosses_what_it_asks_for() {
        let mut asked = Asked::default();
        sent(&mut asked, [1, 2, 4, 5, 3, 4, 5]);
        assert_eq!(nak(&mut asked, 3), Some(2), "the first 4, ahead of 3");
        assert_eq!(asked.cause(Psn::new(4), Kind::Ack), Some(5), "the last 4");
    }

    #[test]
    fn the_same_is_missed_twice() {
        let mut asked = Asked::default();
        sent(&mut asked, [1, 2, 3, 4, 5]);
        assert_eq!(nak(&mut asked, 3), Some(3));
        sent(&mut asked, [3, 4, 5]);
        assert_eq!(nak(&mut asked, 3), Some(6), "4 of the second time");
        sent(&mut asked, [3, 4]);
        assert_eq!(nak(&mut asked, 3), Some(9), "4 of the third time");
        assert_eq!(nak(&mut asked, 3), Some(9), "nothing was sent since: the last one");
    }

    #[test]
    fn a_later_one_is_missed_then() {
        let mut asked = Asked::default();
        sent(&mut asked, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(nak(&mut asked, 3), Some(3));
        sent(&mut asked, [3, 4, 5, 6]);
        assert_eq!(nak(&mut asked, 5), Some(10), "6 behind what had been missing, not the first 6");
        sent(&mut asked, [5, 6, 7]);
        assert_eq!(nak(&mut asked, 6), Some(13), "7, behind 5 sent again");
        // What had been missing never came, as far as was captured.
        let mut asked = Asked::default();
        sent(&mut asked, [1, 3, 5]);
        assert_eq!((nak(&mut asked, 2), nak(&mut asked, 4)), (Some(1), Some(2)));
    }

    #[test]
    fn psns_wrap() {
        let mut asked = Asked::default();
        sent(&mut asked, [0xff_fffd, 0xff_fffe, 0, 1]);
        assert_eq!(nak(&mut asked, 0xff_ffff), Some(2));
        sent(&mut asked, [0xff_ffff, 0, 1, 2]);
        assert_eq!(nak(&mut asked, 0), Some(6), "1, behind what had been missing");
        let at = asked.sent.len();
        asked.ask_for(Psn::new(0xff_ffff), 3, at);
        let last = |psn: u32| asked.last_for(Psn::new(psn));
        assert_eq!(
            [last(0xff_ffff), last(0), last(1), last(2)],
            [Some(at), Some(at), Some(at), Some(7)]
        );
    }
}
