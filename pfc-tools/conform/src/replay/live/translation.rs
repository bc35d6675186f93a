//! Translates captured requests for the peer, and the peer's responses for the captured requester.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use feroce_wire::{MacAddr, Packet, VlanTag};

use crate::packet::roce_ip_at;
use crate::party::Party;
use crate::replay::compare::sealed_again;
use crate::replay::lanes::{Captured, Lane};
use crate::replay::rewrite::Rewrite;

/// The two ends of a live replay.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// The end that this program plays.
    pub own: Party,
    /// The peer, which responds.
    pub peer: Party,
}

/// Maps captured PSNs, keys and addresses to those of the peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Offset added to the PSNs.
    pub psn: i64,
    /// Keys, by captured key.
    pub keys: BTreeMap<u32, u32>,
    /// Offsets added to the addresses used with a key, by captured key.
    pub addresses: BTreeMap<u32, i64>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Translation {
    to_peer: Rewrite,
    from_peer: Rewrite,
    ends: Ends,
    /// VLAN tag of the captured responses. Live frames have no tag; a VLAN interface adds it.
    tag: Option<VlanTag>,
}

impl Translation {
    /// Creates the translation for the lane, between `ends`.
    pub fn new(lane: &Lane, frames: &[Captured], ends: &Ends, names: &Names) -> Self {
        let (requester, responder) = (lane.requester, lane.responder);
        let macs = |from: [MacAddr; 2], to: [MacAddr; 2]| {
            from.into_iter().map(|mac| mac.0).zip(to).collect::<BTreeMap<_, _>>()
        };
        let ips = |from: [IpAddr; 2], to: [IpAddr; 2]| from.into_iter().zip(to).collect();
        let &Ends { own, peer } = ends;
        let to_peer = Rewrite {
            macs: macs([requester.mac, responder.mac], [own.mac, peer.mac]),
            ips: ips([requester.ip, responder.ip], [own.ip, peer.ip]),
            qpns: BTreeMap::from([(responder.qpn, peer.qpn)]),
            psns: BTreeMap::from([(responder.qpn, names.psn)]),
            keys: names.keys.clone(),
            addresses: names.addresses.clone(),
            ..Rewrite::default()
        };
        // A captured response may have passed through different routers than its request.
        let first = lane.responses.first().map(|&index| frames[index].packet());
        let macs_seen = first.map_or([responder.mac, requester.mac], |packet| {
            [packet.ethernet.src, packet.ethernet.dst]
        });
        let from_peer = Rewrite {
            macs: macs([peer.mac, own.mac], macs_seen),
            ips: ips([peer.ip, own.ip], [responder.ip, requester.ip]),
            qpns: BTreeMap::from([(own.qpn, requester.qpn)]),
            psns: BTreeMap::from([(own.qpn, -names.psn)]),
            ..Rewrite::default()
        };
        Self { to_peer, from_peer, ends: *ends, tag: first.and_then(|packet| packet.vlan) }
    }

    /// Returns both ends.
    pub const fn ends(&self) -> Ends {
        self.ends
    }

    /// Translates a captured request for the peer.
    pub fn request(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let Ends { own, peer } = self.ends;
        rebuilt(&self.to_peer.apply(frame)?, |packet| {
            // The Ethernet addresses are ours and the next hop's, not those of the captured
            // routers.
            (packet.ethernet.src, packet.ethernet.dst, packet.vlan) = (own.mac, peer.mac, None);
        })
    }

    /// Returns true if the packet is a response of the peer to our QP.
    pub fn is_response(&self, packet: &Packet<'_>) -> bool {
        let Ends { own, peer } = self.ends;
        let is_ours = packet.bth.dest_qp.value() == own.qpn;
        is_ours && packet.ip.src() == peer.ip && packet.info.is_response()
    }

    /// Returns true if the frame has the peer's and our IP address and the RoCE port. Nothing else
    /// is checked, not even the ICRC.
    pub fn claims_to_be_from_peer(&self, frame: &[u8]) -> bool {
        let Ends { own, peer } = self.ends;
        claimed_ends(frame) == Some([peer.ip, own.ip])
    }

    /// Translates a response of the peer for the captured requester; `None` if its ICRC is wrong.
    pub fn response(&self, frame: &[u8]) -> Option<Vec<u8>> {
        rebuilt(&self.from_peer.apply(frame)?, |packet| packet.vlan = self.tag)
    }
}

/// Applies `change` to a frame.
fn rebuilt(frame: &[u8], change: impl FnOnce(&mut Packet<'_>)) -> Option<Vec<u8>> {
    let mut packet = Packet::parse(frame, &[]).ok()?;
    change(&mut packet);
    Some(sealed_again(&packet))
}

/// Returns source and destination of a frame addressed to the RoCE port, without checking anything
/// else.
fn claimed_ends(frame: &[u8]) -> Option<[IpAddr; 2]> {
    let ip = frame.get(roce_ip_at(frame)?..)?;
    let v4 = |at: usize| Some(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?.into());
    let v6 = |at: usize| Some(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?.into());
    Some(match ip.first()? >> 4 {
        4 => [v4(12)?, v4(16)?],
        _ => [v6(8)?, v6(24)?],
    })
}

/// Returns the keys in the requests of the lane.
pub fn keys(lane: &Lane, frames: &[Captured]) -> BTreeSet<u32> {
    let named = |&index: &usize| {
        let ext = frames[index].packet().ext;
        let keys = [
            ext.reth.map(|reth| reth.rkey),
            ext.atomic_eth.map(|eth| eth.rkey),
            ext.ieth.map(|ieth| ieth.rkey),
        ];
        keys.into_iter().flatten().map(feroce_wire::Key::value)
    };
    lane.requests.iter().flat_map(named).collect()
}
