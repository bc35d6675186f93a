//! Two captures of one exchange: what passes one and not the other.

use feroce_wire::{Opcode, Psn};

use super::figures::duration;
use super::findings::{Findings, Place};
use super::requester::hex;
use super::waiting::{Identity, Queue, Waiting};
use crate::packet::Seen;
use crate::rules::RuleId;

/// Packets that have passed one place of capture and are waited for at the other.
#[derive(Debug, Default)]
pub(super) struct Sides {
    waiting: Queue,
    /// When each place has captured its first and its last packet.
    times: [Option<(u64, u64)>; 2],
    matched: u64,
    lost: Vec<Waiting>,
}

/// How long a packet is waited for, in nanoseconds.
const PATIENCE: u64 = 1_000_000_000;
/// How many are waited for.
const MOST: usize = 1 << 16;
/// How many lost ones are remembered until it is known that both captures show the same exchange.
const LOST: usize = 1 << 14;

impl Sides {
    /// A packet at one of two places.
    pub fn take(&mut self, seen: &Seen<'_>, place: Place) {
        let Some(times) = self.times.get_mut(usize::from(seen.tap)) else { return };
        *times = Some((times.map_or(seen.at, |(first, _)| first), seen.at));
        let packet = &seen.packet;
        let identity = Identity {
            icrc: packet.icrc,
            psn: packet.bth.psn.value(),
            qpn: packet.bth.dest_qp,
            opcode: packet.bth.opcode.0,
            src: seen.src(),
            dst: seen.dst(),
        };
        self.meet(Waiting { identity, place, tap: seen.tap });
    }

    /// Of equal packets, the oldest is met first.
    fn meet(&mut self, new: Waiting) {
        let Waiting { identity, place, tap } = new;
        let digest = self.waiting.digest(&identity);
        match self.waiting.take(digest, &identity, 1 - tap) {
            Some(_) => self.matched += 1,
            None => self.waiting.push(digest, new),
        }
        let is_old = |oldest: &Waiting| place.at.saturating_sub(oldest.place.at) > PATIENCE;
        while self.waiting.len() > MOST || self.waiting.oldest().is_some_and(is_old) {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        let Some(first) = self.waiting.pop_oldest() else { return };
        if self.lost.len() < LOST {
            self.lost.push(first);
        }
    }

    /// Nothing more comes.
    pub fn end(&mut self, out: &mut Findings) {
        while self.waiting.oldest().is_some() {
            self.give_up();
        }
        let [Some(first), Some(second)] = self.times else { return };
        if self.matched == 0 {
            return;
        }
        for lost in &self.lost {
            let (from, to) = if lost.tap == 0 { second } else { first };
            // At either end, the other capture may not have run.
            if lost.place.at < from || lost.place.at > to {
                continue;
            }
            let Waiting { identity, place, tap } = lost;
            out.add(RuleId::Between, *place, || {
                format!("{} with PSN {} from {} passes this capture, and not the other one (capture {}), {} around it: it was lost between them", Opcode(identity.opcode), hex(Psn::new(identity.psn)), identity.src, 2 - tap, duration(PATIENCE))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use feroce_wire::Qpn;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::rules::PacketRef;

    fn packet(icrc: u32, tap: u16, at: u64) -> Waiting {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let identity = Identity { icrc, psn: 0, qpn: Qpn::GSI, opcode: 4, src: ip, dst: ip };
        let place = Place { packet: PacketRef { file: tap, number: at }, at, flow: None };
        Waiting { identity, place, tap }
    }

    /// Against a list that is searched from its front.
    #[test]
    fn the_oldest_equal_packet_of_the_other_place_is_met() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut sides = Sides::default();
        let (mut list, mut matched) = (Vec::<Waiting>::new(), 0);
        for at in 0..20_000 {
            let (icrc, tap) = (random.next_u32() % 300, u16::from(random.next_u32() % 2 == 1));
            let new = packet(icrc, tap, at);
            sides.meet(new);
            let is_other = |other: &Waiting| other.tap != tap && other.identity == new.identity;
            match list.iter().position(is_other) {
                Some(place) => {
                    list.remove(place);
                    matched += 1;
                }
                None => list.push(new),
            }
            let waiting = sides.waiting.iter().map(|one| one.place.packet);
            assert!(waiting.eq(list.iter().map(|one| one.place.packet)), "packet {at}");
        }
        assert_eq!((sides.matched, sides.waiting.len()), (matched, list.len()));
        assert!(matched > 5000 && list.len() > 10, "{matched}, {}", list.len());
    }

    /// As many as may wait do, when each packet that is looked for is the youngest: a search from the oldest would take minutes.
    #[test]
    fn what_waits_is_bounded_and_not_searched() {
        let mut sides = Sides::default();
        let most = u32::try_from(MOST).expect("fits");
        for icrc in 0..2 * most {
            sides.meet(packet(icrc, 0, u64::from(icrc)));
        }
        for icrc in (most..2 * most).rev() {
            assert_eq!(sides.waiting.len(), (icrc + 1 - most) as usize);
            sides.meet(packet(icrc, 1, u64::from(2 * most)));
        }
        assert_eq!((sides.matched, sides.lost.len()), (u64::from(most), LOST));
        sides.meet(packet(0, 0, 0));
        sides.meet(packet(1, 0, PATIENCE + 1));
        assert_eq!(sides.waiting.len(), 1, "one has waited too long");
    }
}
