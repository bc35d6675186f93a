//! What a responder still has to send: READ responses and atomic results in PSN order, and at most one
//! acknowledgement behind them.

use std::collections::VecDeque;

use feroce_wire::{Key, NakCode, Psn, RnrTimer};

use crate::memory::PdId;

/// Most READs and atomics that a QP answers or keeps for replay at a time.
pub const MAX_RD_ATOMIC: u8 = 64;
/// READs and atomics outstanding, where nothing else is said, and what programs are told (`max_qp_rd_atom`): as many as a ConnectX answers,
/// since a program may take the limit of its own device for the peer's.
pub const RD_ATOMIC: u8 = 16;
/// Answers, and results of atomics, that any QP has room for.
const ROOM: usize = RD_ATOMIC as usize;

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
    answers: VecDeque<Answer>,
    /// How many it may hold. It has the memory, and allocates none for an answer.
    room: usize,
    /// How many of them are replays.
    replays: usize,
}

/// The queue holds as many answers as it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

impl Default for AnswerQueue {
    fn default() -> Self {
        Self { answers: VecDeque::with_capacity(ROOM), room: ROOM, replays: 0 }
    }
}

impl AnswerQueue {
    /// Makes room for `depth` answers.
    pub fn make_room(&mut self, depth: u8) {
        self.room = self.room.max(depth.into());
        self.answers.reserve_exact(self.room - self.answers.len());
    }

    /// Answers waiting to requests that came once.
    pub fn first_time(&self) -> usize {
        self.answers.len() - self.replays
    }

    /// The answer to send from next.
    #[inline]
    pub fn front(&mut self) -> Option<&mut Answer> {
        self.answers.front_mut()
    }

    /// True if the packet with `psn` is going to be sent anyway.
    pub fn will_send(&self, psn: Psn) -> bool {
        let covers = |a: &Answer| a.next.at_or_before(psn) && psn.at_or_before(a.last);
        self.answers.iter().any(covers)
    }

    /// Inserts an answer in PSN order. A replay takes the place of an answer to the same request; any
    /// other takes that of a replay if the queue is full.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn insert(&mut self, answer: Answer) -> Result<(), QueueFull> {
        let full = self.answers.len() == self.room;
        let stale = match answer.replay {
            true => self.answers.iter().position(|a| a.last == answer.last),
            false if full => self.answers.iter().position(|a| a.replay),
            false => None,
        };
        if let Some(at) = stale {
            self.remove(at);
        } else if full {
            return Err(QueueFull);
        }
        let ahead = |a: &Answer| !answer.next.is_before(a.next);
        if self.answers.back().is_none_or(ahead) {
            self.answers.push_back(answer); // Nearly always.
        } else {
            let at = self.answers.iter().rposition(ahead).map_or(0, |last| last + 1);
            self.answers.insert(at, answer);
        }
        self.replays += usize::from(answer.replay);
        Ok(())
    }

    /// Drops the answer at the front.
    pub fn pop(&mut self) {
        let popped = self.answers.pop_front().expect("something to pop");
        self.replays -= usize::from(popped.replay);
    }

    fn remove(&mut self, at: usize) {
        let removed = self.answers.remove(at);
        self.replays -= usize::from(removed.is_some_and(|answer| answer.replay));
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.answers.clear();
        self.replays = 0;
    }
}

/// Results of the last atomics, for requests that come again (C9-105: never executed twice).
#[derive(Debug)]
pub struct AtomicReplay {
    /// Position in the request stream (see [`AtomicReplay::save`]) and result.
    results: VecDeque<(u64, u64)>,
    /// How many are kept. It has the memory, and allocates none for a result.
    room: usize,
}

impl Default for AtomicReplay {
    fn default() -> Self {
        Self { results: VecDeque::with_capacity(ROOM), room: ROOM }
    }
}

impl AtomicReplay {
    /// Makes room for the results of `depth` atomics.
    pub fn make_room(&mut self, depth: u8) {
        self.room = self.room.max(depth.into());
        self.results.reserve_exact(self.room - self.results.len());
    }

    /// Keeps the result of the atomic at `position`, a count of PSNs that does not wrap.
    pub fn save(&mut self, position: u64, result: u64) {
        if self.results.len() == self.room {
            self.results.pop_front();
        }
        self.results.push_back((position, result));
    }

    /// The result of the atomic at `position`, if it is still kept.
    pub fn find(&self, position: u64) -> Option<u64> {
        self.results.iter().find(|(at, _)| *at == position).map(|(_, result)| *result)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.results.clear();
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
        for n in 0..u32::from(RD_ATOMIC) {
            queue.insert(answer(n, n)).unwrap();
        }
        assert_eq!(queue.insert(answer(99, 99)), Err(QueueFull));
        queue.pop();
        assert_eq!(queue.insert(answer(99, 99)), Ok(()));
    }

    #[test]
    fn room_is_made_for_a_larger_depth_and_stays() {
        let (mut queue, mut replay) = (AnswerQueue::default(), AtomicReplay::default());
        for depth in [MAX_RD_ATOMIC, 1] {
            queue.make_room(depth);
            replay.make_room(depth);
        }
        for n in 0..MAX_RD_ATOMIC {
            queue.insert(answer(n.into(), n.into())).unwrap();
            replay.save(n.into(), 7);
        }
        assert_eq!(queue.insert(answer(99, 99)), Err(QueueFull));
        assert_eq!(replay.find(0), Some(7));
    }

    #[test]
    fn replays_make_room_and_replace() {
        let mut queue = AnswerQueue::default();
        for n in 0..u32::from(RD_ATOMIC) {
            queue.insert(Answer { replay: n < 2, ..answer(n, n) }).unwrap();
        }
        let all = usize::from(RD_ATOMIC);
        assert_eq!(queue.first_time(), all - 2);
        let replay = |next, last| Answer { replay: true, ..answer(next, last) };
        assert_eq!(queue.insert(replay(200, 200)), Err(QueueFull));
        queue.insert(answer(100, 104)).unwrap();
        assert_eq!((queue.first_time(), queue.will_send(Psn::new(0))), (all - 1, false));
        queue.insert(replay(102, 104)).unwrap();
        assert_eq!((queue.first_time(), queue.will_send(Psn::new(101))), (all - 2, false));
        assert!(queue.will_send(Psn::new(102)));
    }

    #[test]
    fn only_the_newest_results_are_kept() {
        let mut replay = AtomicReplay::default();
        assert_eq!(replay.find(0), None);
        let newest = 3 + ROOM as u64;
        for n in 0..=newest {
            replay.save(n, n * 10);
        }
        assert_eq!(replay.find(3), None);
        assert_eq!(replay.find(4), Some(40));
        assert_eq!(replay.find(newest), Some(newest * 10));
        replay.clear();
        assert_eq!(replay.find(newest), None);
    }
}
