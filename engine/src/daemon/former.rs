//! QPs of clients that have ended: their peers' requests are refused, so that they need not wait
//! for the end of their retries.
//!
//! A NAK acknowledges all requests before its PSN. Some of those that a peer had outstanding may
//! have been lost, so only a retransmission is refused: it begins with the oldest request without
//! an acknowledgement.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use feroce_wire::{Packet, Psn, Qpn, Transport};

use super::frames::{Nak, reply_flow};
use super::slices::QUARANTINE;
use crate::time::Instant;

/// QPs that are remembered; the oldest are forgotten first.
const FORMER_MAX: usize = 1 << 16;

/// Connected QPs of clients that have ended, with their peers. A number is remembered until its
/// slice may be used again.
#[derive(Debug, Default)]
pub(super) struct FormerQps {
    peers: BTreeMap<Qpn, Former>,
    /// The peers, and how many QPs had each.
    reserved: BTreeMap<(IpAddr, Qpn), u32>,
    /// When each is forgotten, in order.
    ends: VecDeque<(Instant, Qpn)>,
}

/// A QP of a client that has ended.
#[derive(Debug, Clone, Copy)]
struct Former {
    peer: (IpAddr, Qpn),
    /// The highest PSN of the requests that have arrived since.
    highest: Option<Psn>,
}

impl FormerQps {
    /// Adds QPs with their peers.
    pub(super) fn add(&mut self, qps: impl Iterator<Item = (Qpn, (IpAddr, Qpn))>, now: Instant) {
        self.forget(now);
        for (qpn, peer) in qps {
            if self.ends.len() == FORMER_MAX
                && let Some((_, oldest)) = self.ends.pop_front()
            {
                self.remove(oldest);
            }
            self.peers.insert(qpn, Former { peer, highest: None });
            *self.reserved.entry(peer).or_default() += 1;
            self.ends.push_back((now + QUARANTINE, qpn));
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some((end, qpn)) = self.ends.front().copied()
            && end <= now
        {
            self.ends.pop_front();
            self.remove(qpn);
        }
    }

    fn remove(&mut self, qpn: Qpn) {
        let Some(Former { peer, .. }) = self.peers.remove(&qpn) else { return };
        if let Some(count) = self.reserved.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.reserved.remove(&peer);
            }
        }
    }

    /// Returns true if `peer` was the peer of such a QP, and may not know yet that it has ended.
    pub(super) fn has_peer(&mut self, peer: (IpAddr, Qpn), now: Instant) -> bool {
        self.forget(now);
        self.reserved.contains_key(&peer)
    }

    /// The NAK of a request to such a QP from its peer; `None` for other packets.
    pub(super) fn refuse(&mut self, packet: &Packet<'_>, now: Instant) -> Option<Nak> {
        if !packet.info.is_request() || packet.info.transport != Transport::Rc {
            return None;
        }
        self.forget(now);
        let former = self.peers.get_mut(&packet.bth.dest_qp)?;
        let (remote, dest_qp) = former.peer;
        if remote != packet.ip.src() || !packet.icrc_valid() {
            return None;
        }
        let psn = packet.bth.psn;
        if former.highest.is_none_or(|highest| psn.is_after(highest)) {
            former.highest = Some(psn);
            return None;
        }
        Some(Nak { flow: reply_flow(packet), dest_qp, psn })
    }
}
