//! What a responder still has to send: READ responses and atomic results in PSN order, and at most one
//! acknowledgement behind them.

use feroce_wire::{Key, NakCode, Psn, RnrTimer};

use crate::memory::PdId;

/// Most READs and atomics that a QP answers or keeps for replay at a time (`max_qp_rd_atom`).
pub const MAX_RD_ATOMIC: u8 = 16;
const CAPACITY: usize = MAX_RD_ATOMIC as usize;

/// An answer with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// PSN of the next packet to send.
    pub next: Psn,
    /// PSN of its last packet.
    pub last: Psn,
    /// The next packet is the answer's first.
    pub starts: bool,
    /// Where the data come from.
    pub source: Source,
    /// The request came again. Such answers do not count against the responder's depth: the requester may
    /// have got the first answer meanwhile, and gone on.
    pub replay: bool,
}

/// The data of an [`Answer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A READ: memory from `va` on, `left` bytes not yet sent.
    Memory {
        /// Address of the next byte.
        va: u64,
        /// Key, checked again for each packet.
        rkey: Key,
        /// Bytes to go.
        left: u32,
        /// Its protection domain.
        pd: PdId,
    },
    /// An atomic: the value before.
    Value(u64),
    /// A FLUSH or ATOMIC WRITE: nothing but that it is done.
    Placed,
}

/// Answers to be sent, in PSN order.
#[derive(Debug)]
pub struct AnswerQueue {
    answers: [Answer; CAPACITY],
    len: usize,
}

/// The queue holds as many answers as it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

impl Default for AnswerQueue {
    fn default() -> Self {
        let none = Psn::new(0);
        let source = Source::Value(0);
        let empty = Answer { next: none, last: none, starts: true, source, replay: false };
        Self { answers: [empty; CAPACITY], len: 0 }
    }
}

impl AnswerQueue {
    /// Answers waiting to requests that came once.
    pub fn first_time(&self) -> usize {
        self.answers[..self.len].iter().filter(|answer| !answer.replay).count()
    }

    /// The answer to send from next.
    #[inline]
    pub fn front(&mut self) -> Option<&mut Answer> {
        self.answers[..self.len].first_mut()
    }

    /// True if the packet with `psn` is going to be sent anyway.
    pub fn will_send(&self, psn: Psn) -> bool {
        let covers = |a: &Answer| a.next.at_or_before(psn) && psn.at_or_before(a.last);
        self.answers[..self.len].iter().any(covers)
    }

    /// Inserts an answer in PSN order. A replay takes the place of an answer to the same request; any
    /// other takes that of a replay if the queue is full.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn insert(&mut self, answer: Answer) -> Result<(), QueueFull> {
        let stale = self.answers[..self.len].iter().position(|a| match answer.replay {
            true => a.last == answer.last,
            false => a.replay && self.len == CAPACITY,
        });
        if let Some(at) = stale {
            self.remove(at);
        }
        if self.len == CAPACITY {
            return Err(QueueFull);
        }
        let behind = |a: &Answer| answer.next.is_before(a.next);
        let at = self.answers[..self.len].iter().position(behind).unwrap_or(self.len);
        self.answers.copy_within(at..self.len, at + 1);
        self.answers[at] = answer;
        self.len += 1;
        Ok(())
    }

    /// Drops the answer at the front.
    pub fn pop(&mut self) {
        assert!(self.len > 0, "nothing to pop");
        self.remove(0);
    }

    fn remove(&mut self, at: usize) {
        self.answers.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// Results of the last atomics, for requests that come again (C9-105: never executed twice).
#[derive(Debug, Default)]
pub struct AtomicReplay {
    /// Position in the request stream (see [`AtomicReplay::save`]) and result.
    results: [(u64, u64); CAPACITY],
    saved: u64,
}

impl AtomicReplay {
    /// Keeps the result of the atomic at `position`, a count of PSNs that does not wrap.
    pub fn save(&mut self, position: u64, result: u64) {
        let slot = usize::try_from(self.saved % CAPACITY as u64).expect("small");
        self.results[slot] = (position, result);
        self.saved += 1;
    }

    /// The result of the atomic at `position`, if it is still kept.
    pub fn find(&self, position: u64) -> Option<u64> {
        let kept = usize::try_from(self.saved.min(CAPACITY as u64)).expect("small");
        self.results[..kept].iter().find(|(at, _)| *at == position).map(|(_, result)| *result)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.saved = 0;
    }
}

/// An acknowledgement to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Everything before the expected PSN has arrived.
    Ack,
    /// A packet is missing: the expected one.
    SequenceNak,
    /// No receive is posted for the expected packet.
    RnrNak(RnrTimer),
    /// The packet with this PSN is refused, and the QP in error.
    Refusal(NakCode, Psn),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(next: u32, last: u32) -> Answer {
        let (next, last) = (Psn::new(next), Psn::new(last));
        Answer { next, last, starts: true, source: Source::Value(0), replay: false }
    }

    #[test]
    fn answers_stay_in_psn_order_across_the_wrap() {
        let mut queue = AnswerQueue::default();
        for (next, last) in [(2, 5), (0xff_fff0, 0xff_ffff), (6, 6), (0, 1)] {
            queue.insert(answer(next, last)).unwrap();
        }
        assert!(queue.will_send(Psn::new(0xff_fff1)) && queue.will_send(Psn::new(6)));
        assert!(!queue.will_send(Psn::new(7)));
        let mut order = Vec::new();
        while let Some(front) = queue.front() {
            order.push(front.next.value());
            queue.pop();
        }
        assert_eq!(order, [0xff_fff0, 0, 2, 6]);
    }

    #[test]
    fn a_full_queue_refuses() {
        let mut queue = AnswerQueue::default();
        for n in 0..u32::from(MAX_RD_ATOMIC) {
            queue.insert(answer(n, n)).unwrap();
        }
        assert_eq!(queue.insert(answer(99, 99)), Err(QueueFull));
        queue.pop();
        assert_eq!(queue.insert(answer(99, 99)), Ok(()));
    }

    #[test]
    fn replays_make_room_and_replace() {
        let mut queue = AnswerQueue::default();
        for n in 0..u32::from(MAX_RD_ATOMIC) {
            queue.insert(Answer { replay: n < 2, ..answer(n, n) }).unwrap();
        }
        assert_eq!(queue.first_time(), 14);
        let replay = |next, last| Answer { replay: true, ..answer(next, last) };
        assert_eq!(queue.insert(replay(50, 50)), Err(QueueFull));
        queue.insert(answer(16, 20)).unwrap();
        assert_eq!((queue.first_time(), queue.will_send(Psn::new(0))), (15, false));
        queue.insert(replay(18, 20)).unwrap();
        assert_eq!((queue.first_time(), queue.will_send(Psn::new(17))), (14, false));
        assert!(queue.will_send(Psn::new(18)));
    }

    #[test]
    fn only_the_newest_results_are_kept() {
        let mut replay = AtomicReplay::default();
        assert_eq!(replay.find(0), None);
        for n in 0..20 {
            replay.save(n, n * 10);
        }
        assert_eq!(replay.find(3), None);
        assert_eq!(replay.find(4), Some(40));
        assert_eq!(replay.find(19), Some(190));
        replay.clear();
        assert_eq!(replay.find(19), None);
    }
}
