//! The event queue, ordered by time and then in the order of scheduling.
//!
//! A calendar queue: slots of 2 ns for the next 17 us, and a heap for later events. The buffer of
//! an emptied slot goes to the next slot that needs one, so a run allocates nothing once the
//! buffers have grown. Events of the same time are processed in the order in which they were
//! scheduled.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use feroce_engine::memory::ahead::fetch_element;

use super::packet::PacketId;
use super::time::Time;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A frame reaches port `at`.
    Arrive { at: u32, packet: PacketId },
    /// A port may have something to send.
    Wake { port: u32 },
    /// A switch checks whether it must repeat a pause at this port.
    Refresh { port: u32, priority: u8 },
    /// A host's response is ready to be sent.
    Response { host: u32, packet: PacketId },
    /// A flow starts.
    Start { flow: u32 },
    /// A flow stops sending.
    Stop { flow: u32 },
    /// A flow's retransmission timer expires.
    Timeout { flow: u32 },
    /// An interval of a notification point ends.
    Notify { point: u32 },
    /// Rates and queues are sampled.
    Sample,
    /// The warm-up ends.
    WarmupEnd,
    /// An engine host's deadline expires.
    Engine { host: u32 },
    /// A step that flows wait for ends.
    StepDone { step: u32 },
}

/// An event of the current slot.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Time,
    event: Event,
}

/// An event of a later slot of the calendar. A large network has tens of thousands, so the time is
/// kept in 32 bits.
#[derive(Debug, Clone, Copy)]
#[repr(align(16))] // Never spans two cache lines.
struct Entry {
    /// Time since the start of the slot.
    offset: u32,
    event: Event,
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Entry {
    /// The event, of a slot that starts at `start`.
    #[inline]
    fn due(self, start: u64) -> Due {
        Due { at: Time(start + u64::from(self.offset)), event: self.event }
    }

    /// Orders the entries of a slot by time, then by their place: in the order of scheduling.
    #[inline]
    fn key(self, place: u32) -> u64 {
        u64::from(self.offset) << 32 | u64::from(place)
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // The place is the lower half.
    const fn place(key: u64) -> usize {
        key as u32 as usize
    }
}

/// An event behind the calendar.
#[derive(Debug, Clone, Copy)]
struct Late {
    at: Time,
    sequence: u64,
    event: Event,
}

impl Ord for Late {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Late {}

/// log2 of a slot's width in picoseconds.
const WIDTH: u32 = 11;
const SLOTS: usize = 8192;
const WORDS: usize = SLOTS / 64;

/// Up to so many events ahead of another, [`Events::ahead`] may know an event.
pub(super) const LOOK_AHEAD: usize = 12;
/// With so many events left, the next slot becomes the current one: the last moment at which each
/// of its events is still known [`LOOK_AHEAD`] events ahead.
const JOIN: usize = LOOK_AHEAD + 1;

/// No buffer.
const NONE: u32 = u32::MAX;

/// The event queue.
#[derive(Debug)]
pub(crate) struct Events {
    /// Events up to the end of the current slot, latest first.
    current: Vec<Due>,
    /// Those of the slot before, while the next one becomes the current one.
    rest: Vec<Due>,
    /// The [`Entry::key`] of each entry of the slot that becomes the current one, in order.
    order: Vec<u64>,
    /// The number of each slot's buffer.
    slots: Box<[u32; SLOTS]>,
    buffers: Vec<Vec<Entry>>,
    /// Buffers without a slot. The last one is used first: it may be in the processor's cache.
    free: Vec<u32>,
    /// Bit map of the slots that are not empty.
    used: [u64; WORDS],
    /// Number of the current slot, counted from time zero.
    base: u64,
    later: BinaryHeap<Reverse<Late>>,
    sequence: u64,
}

impl Events {
    pub fn new() -> Self {
        let slots = vec![NONE; SLOTS].into_boxed_slice();
        Self {
            current: Vec::new(),
            rest: Vec::new(),
            order: Vec::new(),
            slots: slots.try_into().expect("so many"),
            buffers: Vec::new(),
            free: Vec::new(),
            used: [0; WORDS],
            base: 0,
            later: BinaryHeap::new(),
            sequence: 0,
        }
    }

    /// Number of events scheduled so far.
    pub const fn scheduled(&self) -> u64 {
        self.sequence
    }

    /// Schedules `event` at `at`, which must not be before the last event taken.
    #[inline]
    pub fn push(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        let slot = at.0 >> WIDTH;
        if slot <= self.base {
            let place = self.current.partition_point(|other| other.at > at);
            self.current.insert(place, Due { at, event });
        } else if slot - self.base < SLOTS as u64 {
            self.put(at, event);
        } else {
            self.later.push(Reverse(Late { at, sequence: self.sequence, event }));
        }
    }

    /// Appends an event to its slot. What goes there directly was scheduled after what comes from
    /// behind the calendar, so a slot has events of the same time in the order of scheduling.
    #[inline]
    fn put(&mut self, at: Time, event: Event) {
        let index = index_of(at.0 >> WIDTH);
        if self.slots[index] == NONE {
            self.slots[index] = self.free.pop().unwrap_or_else(|| {
                self.buffers.push(Vec::new());
                u32::try_from(self.buffers.len() - 1).expect("at most one for each slot")
            });
            self.used[index / 64] |= 1 << (index % 64);
        }
        #[allow(clippy::cast_possible_truncation)] // Below 2^WIDTH.
        let offset = (at.0 % (1 << WIDTH)) as u32;
        self.buffers[self.slots[index] as usize].push(Entry { offset, event });
    }

    /// Removes and returns the next event and its time.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, Event)> {
        match self.current.len() {
            0 => self.advance(),
            JOIN => self.join_next(),
            _ => {}
        }
        self.current.pop().map(|entry| (entry.at, entry.event))
    }

    /// Makes the next slot the current one while the current one still has events, so that
    /// [`Self::ahead`] sees past its end. Does nothing if the next slot is empty: then nothing is
    /// seen ahead until a slot has more than [`JOIN`] events.
    fn join_next(&mut self) {
        let next = self.base + 1;
        if self.slots[index_of(next)] != NONE {
            self.advance_to(next);
        }
    }

    /// The event that follows the next `others` events, at most [`LOOK_AHEAD`]: only if there are
    /// many in a short time.
    #[inline]
    pub fn ahead(&self, others: usize) -> Option<Event> {
        let at = self.current.len().checked_sub(1 + others)?;
        Some(self.current[at].event)
    }

    /// Removes and returns the next event and its time, if the time is not after `limit`. Events
    /// may still be scheduled from `limit` on.
    pub fn pop_until(&mut self, limit: Time) -> Option<(Time, Event)> {
        if self.current.is_empty() && self.next_slot()? <= limit.0 >> WIDTH {
            self.advance();
        }
        let entry = self.current.pop_if(|entry| entry.at <= limit)?;
        Some((entry.at, entry.event))
    }

    /// Number of the next slot that is not empty.
    fn next_slot(&self) -> Option<u64> {
        let later = self.later.peek().map(|Reverse(entry)| entry.at.0 >> WIDTH);
        match (self.next_used(), later) {
            (Some(used), Some(later)) => Some(used.min(later)),
            (used, later) => used.or(later),
        }
    }

    /// Makes the next slot that is not empty the current one, if there is one.
    fn advance(&mut self) {
        if let Some(next) = self.next_slot() {
            self.advance_to(next);
        }
    }

    /// Makes a slot that is not empty the current one.
    fn advance_to(&mut self, base: u64) {
        self.base = base;
        while let Some(Reverse(entry)) = self.later.peek() {
            let slot = entry.at.0 >> WIDTH;
            if slot - base >= SLOTS as u64 {
                break;
            }
            let Late { at, event, .. } = *entry;
            self.later.pop();
            self.put(at, event);
        }
        let index = index_of(base);
        let buffer = std::mem::replace(&mut self.slots[index], NONE);
        self.used[index / 64] &= !(1 << (index % 64));
        self.free.push(buffer);
        let entries = &mut self.buffers[buffer as usize];
        let start = base << WIDTH;
        if let [entry] = entries[..]
            && self.current.is_empty()
        {
            self.current.push(entry.due(start));
        } else {
            self.order.clear();
            self.order.extend((0..).zip(&*entries).map(|(place, entry)| entry.key(place)));
            self.order.sort_unstable();
            std::mem::swap(&mut self.rest, &mut self.current);
            let sorted = self.order.iter().rev().map(|key| entries[Entry::place(*key)].due(start));
            self.current.extend(sorted);
            self.current.append(&mut self.rest);
        }
        entries.clear();
        if self.current.len() > LOOK_AHEAD {
            self.fetch_next();
        }
    }

    /// Fetches the entries of the slot after the current one into the processor's cache.
    fn fetch_next(&self) {
        let buffer = self.slots[index_of(self.base + 1)];
        if let Some(buffer) = self.buffers.get(buffer as usize) {
            fetch_element(buffer, 0, size_of_val(buffer.as_slice()));
        }
    }

    /// The first slot of the calendar after the current one that is not empty.
    fn next_used(&self) -> Option<u64> {
        let from = index_of(self.base + 1);
        let (word, bit) = (from / 64, from % 64);
        let ahead = |index: usize| {
            let distance = (index + SLOTS - from) % SLOTS;
            self.base + 1 + distance as u64
        };
        let first = self.used[word] & (u64::MAX << bit);
        if first != 0 {
            return Some(ahead(word * 64 + first.trailing_zeros() as usize));
        }
        for step in 1..=WORDS {
            let at = (word + step) % WORDS;
            let bits =
                if step == WORDS { self.used[at] & !(u64::MAX << bit) } else { self.used[at] };
            if bits != 0 {
                return Some(ahead(at * 64 + bits.trailing_zeros() as usize));
            }
        }
        None
    }
}

#[allow(clippy::cast_possible_truncation)] // Below SLOTS.
const fn index_of(slot: u64) -> usize {
    (slot % SLOTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro128PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut events = Events::new();
        for flow in 0..5 {
            events.push(Time(77), Event::Start { flow });
        }
        events.push(Time(3), Event::Sample);
        assert_eq!(events.pop(), Some((Time(3), Event::Sample)));
        events.push(Time(77), Event::Start { flow: 5 });
        let order = std::iter::from_fn(|| events.pop()).map(|(_, event)| event);
        assert!(order.eq((0..6).map(|flow| Event::Start { flow })));
    }

    /// Compares with a sorted list: near and far times, pushed while others are taken. With only
    /// near times, slots have dozens of events. Of two seeds in three, most times are equal to
    /// others, also behind the calendar.
    #[test]
    fn the_calendar_queue_equals_a_sorted_list() {
        for seed in 0..20 {
            let mut random = Xoshiro128PlusPlus::seed_from_u64(seed);
            let (mut events, mut list, mut now) = (Events::new(), Vec::new(), Time::ZERO);
            let kinds = if seed % 2 == 0 { 4 } else { 2 };
            for flow in 0..5000 {
                let far = [1 << 8, 1 << 15, 1 << 22, 1 << 30][random.next_u32() as usize % kinds];
                let at = now + Time(random.next_u64() % far);
                let at = if seed % 3 == 0 { at } else { Time(at.0.next_multiple_of(1 << 20)) };
                list.push((at, events.scheduled(), Event::Start { flow }));
                events.push(at, Event::Start { flow });
                list.sort();
                let (first, _, event) = list[0];
                let limit = now + Time(random.next_u64() % (2 * far));
                let popped = match random.next_u32() % 4 {
                    0 => continue,
                    1 => events.pop_until(limit),
                    _ => events.pop(),
                };
                match popped {
                    None => assert!(first > limit, "seed {seed}"),
                    Some(_) => {
                        list.remove(0);
                        assert_eq!(popped, Some((first, event)), "seed {seed}");
                    }
                }
                now = popped.map_or(limit, |(at, _)| at);
            }
            list.sort();
            for (at, _, event) in list {
                assert_eq!(events.pop(), Some((at, event)), "seed {seed}");
            }
            assert_eq!(events.pop(), None);
        }
    }
}
