//! QPs of clients that have ended: their peers' requests are refused, so that they need not wait
//! for the end of their retries.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use feroce_wire::{Packet, Qpn, Transport};

use super::frames::{Nak, reply_flow};
use super::slices::QUARANTINE;
use crate::time::Instant;

/// QPs that are remembered; the oldest are forgotten first.
const FORMER_MAX: usize = 1 << 16;

/// Connected QPs of clients that have ended, with their peers. A number is remembered until its
/// slice may be used again.
#[derive(Debug, Default)]
pub(super) struct FormerQps {
    peers: BTreeMap<Qpn, (IpAddr, Qpn)>,
    /// When each is forgotten, in order.
    ends: VecDeque<(Instant, Qpn)>,
}

impl FormerQps {
    /// Adds QPs with their peers.
    pub(super) fn add(&mut self, qps: impl Iterator<Item = (Qpn, (IpAddr, Qpn))>, now: Instant) {
        self.forget(now);
        for (qpn, peer) in qps {
            if self.ends.len() == FORMER_MAX
                && let Some((_, oldest)) = self.ends.pop_front()
            {
                self.peers.remove(&oldest);
            }
            self.peers.insert(qpn, peer);
            self.ends.push_back((now + QUARANTINE, qpn));
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some((end, qpn)) = self.ends.front().copied()
            && end <= now
        {
            self.ends.pop_front();
            self.peers.remove(&qpn);
        }
    }

    /// The NAK of a request to such a QP from its peer; `None` for other packets.
    pub(super) fn refuse(&mut self, packet: &Packet<'_>, now: Instant) -> Option<Nak> {
        if !packet.info.is_request() || packet.info.transport != Transport::Rc {
            return None;
        }
        self.forget(now);
        let (remote, dest_qp) = *self.peers.get(&packet.bth.dest_qp)?;
        let is_peers = remote == packet.ip.src() && packet.icrc_valid();
        is_peers.then(|| Nak { flow: reply_flow(packet), dest_qp, psn: packet.bth.psn })
    }
}
