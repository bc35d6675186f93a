//! Compares two captures of one exchange: a packet that only one of them has was lost between them.

use feroce_wire::{Opcode, Psn};

use super::findings::{Findings, Place, hex};
use super::unmatched::{Identity, Queue, Unmatched};
use crate::flow::figures::duration;
use crate::packet::Seen;
use crate::rules::RuleId;

/// Packets seen at one capture point and not yet at the other.
#[derive(Debug, Default)]
pub(super) struct TwoCaptures {
    waiting: Queue,
    /// Times of the first and the last packet, by capture point.
    times: [Option<(u64, u64)>; 2],
    matched: u64,
    lost: Vec<Unmatched>,
}

/// A packet that the other capture point has not captured after this time is lost, in nanoseconds.
const MATCH_TIMEOUT: u64 = 1_000_000_000;
/// Maximum number of unmatched packets kept.
const MAX_UNMATCHED: usize = 1 << 16;
/// Maximum number of lost packets kept until it is certain that both captures show the same
/// exchange.
const MAX_LOST: usize = 1 << 14;

impl TwoCaptures {
    /// Adds a packet of one of two capture points.
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
        self.match_packet(Unmatched { identity, place, tap: seen.tap });
    }

    /// Matches `new` with the oldest equal packet of the other capture point, or keeps it as
    /// unmatched.
    fn match_packet(&mut self, new: Unmatched) {
        let Unmatched { identity, place, tap } = new;
        let digest = self.waiting.digest(&identity);
        match self.waiting.take(digest, &identity, 1 - tap) {
            Some(_) => self.matched += 1,
            None => self.waiting.push(digest, new),
        }
        let is_old = |oldest: &Unmatched| place.at.saturating_sub(oldest.place.at) > MATCH_TIMEOUT;
        while self.waiting.len() > MAX_UNMATCHED || self.waiting.oldest().is_some_and(is_old) {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        let Some(first) = self.waiting.pop_oldest() else { return };
        if self.lost.len() < MAX_LOST {
            self.lost.push(first);
        }
    }

    /// Ends the captures and reports the lost packets.
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
            // The other capture may not have been running at this time.
            if lost.place.at < from || lost.place.at > to {
                continue;
            }
            let Unmatched { identity, place, tap } = lost;
            out.add(RuleId::Between, *place, || {
                format!(
                    "{} with PSN {} from {} is missing in the other capture ({}) within {}: it was \
                     lost between the two capture points",
                    Opcode(identity.opcode),
                    hex(Psn::new(identity.psn)),
                    identity.src,
                    2 - tap,
                    duration(MATCH_TIMEOUT)
                )
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

    fn packet(icrc: u32, tap: u16, at: u64) -> Unmatched {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let identity = Identity { icrc, psn: 0, qpn: Qpn::GSI, opcode: 4, src: ip, dst: ip };
        let place = Place { packet: PacketRef { file: tap, number: at }, at, flow: None };
        Unmatched { identity, place, tap }
    }

    /// Compares with a list that is searched from its front.
    #[test]
    fn a_packet_matches_the_oldest_equal_packet_of_the_other_capture() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut sides = TwoCaptures::default();
        let (mut list, mut matched) = (Vec::<Unmatched>::new(), 0);
        for at in 0..20_000 {
            let (icrc, tap) = (random.next_u32() % 300, u16::from(random.next_u32() % 2 == 1));
            let new = packet(icrc, tap, at);
            sides.match_packet(new);
            let is_other = |other: &Unmatched| other.tap != tap && other.identity == new.identity;
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

    /// Fills the queue and matches the youngest packet first: a linear search from the oldest would
    /// take minutes.
    #[test]
    fn unmatched_packets_are_bounded_and_found_without_a_search() {
        let mut sides = TwoCaptures::default();
        let limit = u32::try_from(MAX_UNMATCHED).expect("fits");
        for icrc in 0..2 * limit {
            sides.match_packet(packet(icrc, 0, u64::from(icrc)));
        }
        for icrc in (limit..2 * limit).rev() {
            assert_eq!(sides.waiting.len(), (icrc + 1 - limit) as usize);
            sides.match_packet(packet(icrc, 1, u64::from(2 * limit)));
        }
        assert_eq!((sides.matched, sides.lost.len()), (u64::from(limit), MAX_LOST));
        sides.match_packet(packet(0, 0, 0));
        sides.match_packet(packet(1, 0, MATCH_TIMEOUT + 1));
        assert_eq!(sides.waiting.len(), 1, "one packet has been unmatched for too long");
    }
}
