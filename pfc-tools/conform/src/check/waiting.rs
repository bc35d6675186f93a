//! Packets that wait for the same packet at another place: the oldest of all is at hand, and the oldest of those that are equal.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::num::NonZeroU32;

use feroce_wire::Qpn;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::findings::Place;

/// What tells packets apart, wherever they are captured: the ICRC covers everything that does not change on the way. It comes first: most
/// comparisons end there.
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
pub(super) struct Waiting {
    pub identity: Identity,
    pub place: Place,
    /// Where it was captured.
    pub tap: u16,
}

/// A queue by age that the oldest of equal packets may leave wherever it stands. However many wait, a step takes as long.
#[derive(Debug, Default)]
pub(super) struct Queue {
    slots: Vec<Slot>,
    /// Slots that nobody is in.
    free: Vec<Link>,
    /// The slots of the oldest and of the youngest.
    ends: Option<(Link, Link)>,
    /// Of packets that are equal, the slot of the oldest.
    known: HashTable<Link>,
    digests: DefaultHashBuilder,
}

/// A slot's place. It and its absence take four bytes: slots are fetched after they have left the processor's cache, so they are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link(NonZeroU32);

#[derive(Debug)]
struct Slot {
    packet: Waiting,
    digest: u64,
    /// The next that is older.
    older: Option<Link>,
    /// The next that is younger.
    younger: Option<Link>,
    /// The next younger one of those that are equal.
    next_equal: Option<Link>,
    /// The youngest of those that are equal, if this is the oldest.
    last_equal: Link,
}

impl Link {
    fn to(place: usize) -> Self {
        let number = u32::try_from(place + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("what waits is bounded"))
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl Queue {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// What packets like this are found by.
    pub fn digest(&self, identity: &Identity) -> u64 {
        self.digests.hash_one(identity)
    }

    /// The oldest.
    pub fn oldest(&self) -> Option<&Waiting> {
        self.ends.map(|(oldest, _)| &self.slots[oldest.place()].packet)
    }

    /// `packet` waits, the youngest of all.
    pub fn push(&mut self, digest: u64, packet: Waiting) {
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

    /// The oldest packet with `identity` that was captured at `tap` leaves, if there is one.
    pub fn take(&mut self, digest: u64, identity: &Identity, tap: u16) -> Option<Waiting> {
        self.leave(digest, |slots, place| slots[place.place()].packet.is(identity, tap))
    }

    /// The oldest leaves.
    pub fn pop_oldest(&mut self) -> Option<Waiting> {
        let (oldest, _) = self.ends?;
        // It is the oldest of those that are equal, too.
        self.leave(self.slots[oldest.place()].digest, |_, place| place == oldest)
    }

    fn leave(&mut self, digest: u64, is_it: impl Fn(&[Slot], Link) -> bool) -> Option<Waiting> {
        let Self { slots, free, ends, known, .. } = self;
        let mut entry = known.find_entry(digest, |&place| is_it(slots, place)).ok()?;
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

    /// All that wait, by age.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        let first = self.ends.map(|(oldest, _)| oldest);
        let places = std::iter::successors(first, |place| self.slots[place.place()].younger);
        places.map(|place| &self.slots[place.place()].packet)
    }
}

impl Waiting {
    fn is(&self, identity: &Identity, tap: u16) -> bool {
        self.tap == tap && self.identity == *identity
    }
}
