//! The event queue, ordered by (time, sequence number).
//!
//! A calendar queue: slots of 4 ns for the next 33 us, and a heap for later events. The slots are
//! lists in one memory area, so a run allocates nothing in the steady state. Events of the same
//! time are processed in the order in which they were scheduled.

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

/// A scheduled event, in the list of its slot.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))] // Never spans two cache lines.
struct Entry {
    at: Time,
    sequence: u64,
    event: Event,
    /// Index of the next entry of the list.
    next: u32,
}

impl Ord for Entry {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl PartialOrd for Entry {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

/// log2 of a slot's width in picoseconds.
const WIDTH: u32 = 12;
const SLOTS: usize = 8192;
const WORDS: usize = SLOTS / 64;

/// No index.
const NONE: u32 = u32::MAX;

/// The event queue.
#[derive(Debug)]
pub(crate) struct Events {
    /// Entries of the current slot, latest first.
    current: Vec<Entry>,
    /// First entry of each slot's list.
    slots: Box<[u32; SLOTS]>,
    /// The entries of all slots. A freed place is reused first, so that the memory stays in the
    /// processor's cache.
    places: Vec<Entry>,
    /// First entry of the list of free places.
    free: u32,
    /// An entry of the next slot's list, which is being fetched into the processor's cache. If the
    /// list has changed since, what is fetched is of no use.
    fetched: u32,
    /// Bit map of the slots that are not empty.
    used: [u64; WORDS],
    /// Number of the current slot, counted from time zero.
    base: u64,
    later: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

impl Events {
    pub fn new() -> Self {
        let slots = vec![NONE; SLOTS].into_boxed_slice();
        Self {
            current: Vec::new(),
            slots: slots.try_into().expect("so many"),
            places: Vec::new(),
            free: NONE,
            fetched: NONE,
            used: [0; WORDS],
            base: 0,
            later: BinaryHeap::new(),
            sequence: 0,
        }
    }

    /// Number of events scheduled so far.
    #[cfg(test)]
    pub const fn scheduled(&self) -> u64 {
        self.sequence
    }

    /// Schedules `event` at `at`, which must not be before the last event taken.
    #[inline]
    pub fn push(&mut self, at: Time, event: Event) {
        let entry = Entry { at, sequence: self.sequence, event, next: NONE };
        self.sequence += 1;
        let slot = at.0 >> WIDTH;
        debug_assert!(slot >= self.base, "events do not happen in the past");
        if slot <= self.base {
            let place = self.current.partition_point(|other| *other > entry);
            self.current.insert(place, entry);
        } else if slot - self.base < SLOTS as u64 {
            self.put(slot, entry);
        } else {
            self.later.push(Reverse(entry));
        }
    }

    #[inline]
    fn put(&mut self, slot: u64, entry: Entry) {
        let index = index_of(slot);
        let entry = Entry { next: self.slots[index], ..entry };
        self.slots[index] = match self.places.get_mut(self.free as usize) {
            Some(place) => {
                let free = std::mem::replace(&mut self.free, place.next);
                *place = entry;
                free
            }
            None => {
                self.places.push(entry);
                u32::try_from(self.places.len() - 1).expect("fewer than 2^32 events at a time")
            }
        };
        self.used[index / 64] |= 1 << (index % 64);
    }

    /// Moves the list of a slot into `current`.
    #[inline]
    fn take(&mut self, index: usize) {
        let mut place = std::mem::replace(&mut self.slots[index], NONE);
        while let Some(entry) = self.places.get_mut(place as usize) {
            self.current.push(*entry);
            let next = std::mem::replace(&mut entry.next, self.free);
            self.free = std::mem::replace(&mut place, next);
        }
    }

    /// Removes and returns the next event and its time.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, Event)> {
        if self.current.is_empty() && !self.advance() {
            return None;
        }
        self.fetch();
        self.current.pop().map(|entry| (entry.at, entry.event))
    }

    /// Fetches one more entry of the next slot's list. Its entries are far apart.
    #[inline]
    fn fetch(&mut self) {
        if let Some(entry) = self.places.get(self.fetched as usize) {
            self.fetched = entry.next;
            fetch_element(&self.places, self.fetched as usize, size_of::<Entry>());
        }
    }

    /// The event that follows the next `others` events of the current slot.
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

    /// Makes the next slot that is not empty the current one. Returns false if there is none.
    fn advance(&mut self) -> bool {
        let Some(base) = self.next_slot() else { return false };
        self.base = base;
        while let Some(Reverse(entry)) = self.later.peek() {
            let slot = entry.at.0 >> WIDTH;
            if slot - base >= SLOTS as u64 {
                break;
            }
            let entry = *entry;
            self.later.pop();
            self.put(slot, entry);
        }
        let index = index_of(base);
        self.used[index / 64] &= !(1 << (index % 64));
        self.take(index);
        // Usually one entry, or a few.
        self.current.sort_unstable_by(|a, b| b.cmp(a));
        let next = self.next_used().map(|slot| self.slots[index_of(slot)]);
        self.fetched = next.unwrap_or(NONE);
        fetch_element(&self.places, self.fetched as usize, size_of::<Entry>());
        true
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

    /// Compares with a sorted list: near and far times, pushed while others are taken.
    #[test]
    fn the_calendar_queue_equals_a_sorted_list() {
        for seed in 0..20 {
            let mut random = Xoshiro128PlusPlus::seed_from_u64(seed);
            let (mut events, mut list, mut now) = (Events::new(), Vec::new(), Time::ZERO);
            for flow in 0..5000 {
                let far = [1 << 8, 1 << 15, 1 << 22, 1 << 30][random.next_u32() as usize % 4];
                let at = now + Time(random.next_u64() % far);
                list.push((at, events.scheduled(), Event::Start { flow }));
                events.push(at, Event::Start { flow });
                if random.next_u32() % 3 > 0 {
                    list.sort();
                    let (at, _, event) = list.remove(0);
                    assert_eq!(events.pop(), Some((at, event)), "seed {seed}");
                    now = at;
                }
            }
            list.sort();
            for (at, _, event) in list {
                assert_eq!(events.pop(), Some((at, event)), "seed {seed}");
            }
            assert_eq!(events.pop(), None);
        }
    }
}
