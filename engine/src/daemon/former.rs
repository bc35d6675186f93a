//! QPs of clients that have ended: requests of their peers get a NAK, so that the peers do not wait
//! until their retries are exhausted.
//!
//! A NAK acknowledges all requests before its PSN, but some outstanding requests of the peer may
//! have been lost. Therefore only a retransmission gets a NAK: it begins with the oldest request
//! without an acknowledgement.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use feroce_wire::{Packet, Psn, Qpn, Transport};

use super::frames::{Nak, reply_flow};
use super::slices::QUARANTINE;
use crate::time::Instant;

/// Maximum number of remembered QPs; the oldest are forgotten first.
const FORMER_MAX: usize = 1 << 16;

/// Connected QPs of clients that have ended, with their peers. A number is remembered until its
/// slice may be used again.
#[derive(Debug, Default)]
pub(super) struct FormerQps {
    /// The remembered QPs.
    qps: BTreeMap<Qpn, Former>,
    /// Number of remembered QPs by peer.
    by_peer: BTreeMap<(IpAddr, Qpn), u32>,
    /// When each QP is forgotten, in order of time.
    deadlines: VecDeque<(Instant, Qpn)>,
}

/// A QP of a client that has ended.
#[derive(Debug, Clone, Copy)]
struct Former {
    peer: (IpAddr, Qpn),
    /// The highest PSN of the requests that have arrived since the client's end.
    highest: Option<Psn>,
}

impl FormerQps {
    /// Adds QPs with their peers.
    pub(super) fn add(&mut self, qps: impl Iterator<Item = (Qpn, (IpAddr, Qpn))>, now: Instant) {
        self.forget(now);
        for (qpn, peer) in qps {
            if self.deadlines.len() == FORMER_MAX
                && let Some((_, oldest)) = self.deadlines.pop_front()
            {
                self.remove(oldest);
            }
            self.qps.insert(qpn, Former { peer, highest: None });
            *self.by_peer.entry(peer).or_default() += 1;
            self.deadlines.push_back((now + QUARANTINE, qpn));
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some((end, qpn)) = self.deadlines.front().copied()
            && end <= now
        {
            self.deadlines.pop_front();
            self.remove(qpn);
        }
    }

    fn remove(&mut self, qpn: Qpn) {
        let Some(Former { peer, .. }) = self.qps.remove(&qpn) else { return };
        if let Some(count) = self.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }

    /// Returns true if `peer` was the peer of a remembered QP. The peer may not know yet that the
    /// QP is gone.
    pub(super) fn has_peer(&mut self, peer: (IpAddr, Qpn), now: Instant) -> bool {
        self.forget(now);
        self.by_peer.contains_key(&peer)
    }

    /// Returns the NAK for a retransmitted request from the peer of a remembered QP; `None` for
    /// other packets.
    pub(super) fn refuse(&mut self, packet: &Packet<'_>, now: Instant) -> Option<Nak> {
        if !packet.info.is_request() || packet.info.transport != Transport::Rc {
            return None;
        }
        self.forget(now);
        let former = self.qps.get_mut(&packet.bth.dest_qp)?;
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
