//! A queue of unmatched packets. The oldest of all packets and the oldest of equal packets are
//! found in constant time.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::num::NonZeroU32;

use feroce_wire::Qpn;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::findings::Place;

/// What identifies a packet at any capture point. The ICRC covers everything that does not change
/// on the way; it is the first field because most comparisons end there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub icrc: u32,
    pub psn: u32,
    pub qpn: Qpn,
    pub opcode: u8,
    pub src: IpAddr,
    pub dst: IpAddr,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Unmatched {
    pub identity: Identity,
    pub place: Place,
    /// Number of its capture point.
    pub tap: u16,
}

/// A queue by age, from which the oldest of equal packets can be removed at any position. The cost
/// of a step does not depend on the number of packets.
#[derive(Debug, Default)]
pub(super) struct Queue {
    slots: Vec<Slot>,
    /// Unused slots.
    free: Vec<Link>,
    /// Slots of the oldest and of the youngest packet.
    ends: Option<(Link, Link)>,
    /// For each set of equal packets, the slot of the oldest.
    known: HashTable<Link>,
    digests: DefaultHashBuilder,
}

/// Index of a slot. An `Option<Link>` takes four bytes: slots are usually no longer in the
/// processor's cache when they are read, so they are kept small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link(NonZeroU32);

#[derive(Debug)]
struct Slot {
    packet: Unmatched,
    digest: u64,
    /// The next older packet.
    older: Option<Link>,
    /// The next younger packet.
    younger: Option<Link>,
    /// The next younger packet among equal ones.
    next_equal: Option<Link>,
    /// The youngest of the equal packets, valid in the slot of the oldest.
    last_equal: Link,
}

impl Link {
    fn to(place: usize) -> Self {
        let number = u32::try_from(place + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("the queue is bounded"))
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl Queue {
    /// Number of packets.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the hash under which packets with this identity are found.
    pub fn digest(&self, identity: &Identity) -> u64 {
        self.digests.hash_one(identity)
    }

    /// Returns the oldest packet.
    pub fn oldest(&self) -> Option<&Unmatched> {
        self.ends.map(|(oldest, _)| &self.slots[oldest.place()].packet)
    }

    /// Adds `packet` as the youngest.
    pub fn push(&mut self, digest: u64, packet: Unmatched) {
        let Self { slots, free, ends, known, .. } = self;
        let place = free.pop().unwrap_or_else(|| Link::to(slots.len()));
        let older = ends.map(|(_, youngest)| youngest);
        let is_equal = |&other: &Link| slots[other.place()].packet.is(&packet.identity, packet.tap);
        match known.entry(digest, is_equal, |&other| slots[other.place()].digest) {
            Entry::Occupied(entry) => {
                let first = *entry.get();
                let last = std::mem::replace(&mut slots[first.place()].last_equal, place);
                slots[last.place()].next_equal = Some(place);
            }
            Entry::Vacant(entry) => {
                entry.insert(place);
            }
        }
        let slot =
            Slot { packet, digest, older, younger: None, next_equal: None, last_equal: place };
        match slots.get_mut(place.place()) {
            Some(free) => *free = slot,
            None => slots.push(slot),
        }
        if let Some(older) = older {
            slots[older.place()].younger = Some(place);
        }
        *ends = Some((ends.map_or(place, |(oldest, _)| oldest), place));
    }

    /// Removes and returns the oldest packet with `identity` that was captured at `tap`.
    pub fn take(&mut self, digest: u64, identity: &Identity, tap: u16) -> Option<Unmatched> {
        self.leave(digest, |slots, place| slots[place.place()].packet.is(identity, tap))
    }

    /// Removes and returns the oldest packet.
    pub fn pop_oldest(&mut self) -> Option<Unmatched> {
        let (oldest, _) = self.ends?;
        // The oldest of all is also the oldest of its equals.
        self.leave(self.slots[oldest.place()].digest, |_, place| place == oldest)
    }

    fn leave(
        &mut self,
        digest: u64,
        is_match: impl Fn(&[Slot], Link) -> bool,
    ) -> Option<Unmatched> {
        let Self { slots, free, ends, known, .. } = self;
        let mut entry = known.find_entry(digest, |&place| is_match(slots, place)).ok()?;
        let place = *entry.get();
        let Slot { packet, older, younger, next_equal, last_equal, .. } = slots[place.place()];
        match next_equal {
            Some(next) => {
                *entry.get_mut() = next;
                slots[next.place()].last_equal = last_equal;
            }
            None => {
                entry.remove();
            }
        }
        free.push(place);
        let (oldest, youngest) = (*ends)?;
        if let Some(older) = older {
            slots[older.place()].younger = younger;
        }
        if let Some(younger) = younger {
            slots[younger.place()].older = older;
        }
        *ends = match (older, younger) {
            (None, None) => None,
            (None, Some(younger)) => Some((younger, youngest)),
            (Some(older), None) => Some((oldest, older)),
            (Some(_), Some(_)) => Some((oldest, youngest)),
        };
        Some(packet)
    }

    /// All packets, oldest first.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Unmatched> {
        let first = self.ends.map(|(oldest, _)| oldest);
        let places = std::iter::successors(first, |place| self.slots[place.place()].younger);
        places.map(|place| &self.slots[place.place()].packet)
    }
}

impl Unmatched {
    fn is(&self, identity: &Identity, tap: u16) -> bool {
        self.tap == tap && self.identity == *identity
    }
}
