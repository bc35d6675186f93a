//! Two captures of one exchange: what passes one and not the other.

use std::collections::VecDeque;
use std::net::IpAddr;

use feroce_wire::Opcode;

use super::figures::duration;
use super::findings::{Findings, Place};
use super::requester::hex;
use crate::conform::packet::Seen;
use crate::conform::rules::RuleId;

/// What tells packets apart, wherever they are captured: the ICRC covers everything that does not change on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    src: IpAddr,
    dst: IpAddr,
    icrc: u32,
    psn: feroce_wire::Psn,
    qpn: feroce_wire::Qpn,
    opcode: Opcode,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    identity: Identity,
    place: Place,
    tap: u16,
}

/// Packets that have passed one place of capture and are waited for at the other.
#[derive(Debug, Default)]
pub(super) struct Sides {
    waiting: VecDeque<Waiting>,
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
            src: seen.src(),
            dst: seen.dst(),
            icrc: packet.icrc,
            psn: packet.bth.psn,
            qpn: packet.bth.dest_qp,
            opcode: packet.bth.opcode,
        };
        let other = |waiting: &Waiting| waiting.tap != seen.tap && waiting.identity == identity;
        if let Some(index) = self.waiting.iter().position(other) {
            self.waiting.remove(index);
            self.matched += 1;
        } else {
            self.waiting.push_back(Waiting { identity, place, tap: seen.tap });
        }
        while self.waiting.len() > MOST
            || self
                .waiting
                .front()
                .is_some_and(|first| seen.at.saturating_sub(first.place.at) > PATIENCE)
        {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        let Some(first) = self.waiting.pop_front() else { return };
        if self.lost.len() < LOST {
            self.lost.push(first);
        }
    }

    /// Nothing more comes.
    pub fn end(&mut self, out: &mut Findings) {
        while !self.waiting.is_empty() {
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
                format!("{} with PSN {} from {} passes this capture, and not the other one (capture {}), {} around it: it was lost between them", identity.opcode, hex(identity.psn), identity.src, 2 - tap, duration(PATIENCE))
            });
        }
    }
}
