//! From captured requests to those that a peer understands, and from its answers to what the captured requester would have heard.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use feroce_wire::{MacAddr, Packet, VlanTag};

use crate::packet::roce_ip_at;
use crate::party::Party;
use crate::replay::compare::sealed_again;
use crate::replay::lanes::{Captured, Lane};
use crate::replay::rewrite::Rewrite;

/// The two ends of the play.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// We.
    pub own: Party,
    /// Who answers.
    pub peer: Party,
}

/// How the peer names what the capture names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// What is added to the PSNs.
    pub psn: i64,
    /// Keys.
    pub keys: BTreeMap<u32, u32>,
    /// What is added to the addresses used with a key, by its captured value.
    pub addresses: BTreeMap<u32, i64>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Translation {
    there: Rewrite,
    back: Rewrite,
    ends: Ends,
    /// Tag of the captured answers: frames of the play have none, an interface of a VLAN adds it.
    tag: Option<VlanTag>,
}

impl Translation {
    /// For the lane, between `ends`.
    pub fn new(lane: &Lane, frames: &[Captured], ends: &Ends, names: &Names) -> Self {
        let (asks, answers) = (lane.requester, lane.responder);
        let macs = |from: [MacAddr; 2], to: [MacAddr; 2]| {
            from.into_iter().map(|mac| mac.0).zip(to).collect::<BTreeMap<_, _>>()
        };
        let ips = |from: [IpAddr; 2], to: [IpAddr; 2]| from.into_iter().zip(to).collect();
        let &Ends { own, peer } = ends;
        let there = Rewrite {
            macs: macs([asks.mac, answers.mac], [own.mac, peer.mac]),
            ips: ips([asks.ip, answers.ip], [own.ip, peer.ip]),
            qpns: BTreeMap::from([(answers.qpn, peer.qpn)]),
            psns: BTreeMap::from([(answers.qpn, names.psn)]),
            keys: names.keys.clone(),
            addresses: names.addresses.clone(),
        };
        // On its way back a captured answer may have passed other routers.
        let first = lane.responses.first().map(|&index| frames[index].packet());
        let heard = first
            .map_or([answers.mac, asks.mac], |packet| [packet.ethernet.src, packet.ethernet.dst]);
        let back = Rewrite {
            macs: macs([peer.mac, own.mac], heard),
            ips: ips([peer.ip, own.ip], [answers.ip, asks.ip]),
            qpns: BTreeMap::from([(own.qpn, asks.qpn)]),
            psns: BTreeMap::from([(own.qpn, -names.psn)]),
            ..Rewrite::default()
        };
        Self { there, back, ends: *ends, tag: first.and_then(|packet| packet.vlan) }
    }

    /// We, and who answers.
    pub const fn ends(&self) -> Ends {
        self.ends
    }

    /// A captured request, as the peer understands it.
    pub fn request(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let Ends { own, peer } = self.ends;
        anew(&self.there.apply(frame)?, |packet| {
            // Whoever had sent it, and over whichever router: it is we, and this is the way.
            (packet.ethernet.src, packet.ethernet.dst, packet.vlan) = (own.mac, peer.mac, None);
        })
    }

    /// Whether the packet is an answer of the peer's to our QP.
    pub fn is_answer(&self, packet: &Packet<'_>) -> bool {
        let Ends { own, peer } = self.ends;
        let is_ours = packet.bth.dest_qp.value() == own.qpn;
        is_ours && packet.ip.src() == peer.ip && packet.info.is_response()
    }

    /// Whether the frame says that it is RoCE from the peer to us, be it what it may.
    pub fn is_of_peer(&self, frame: &[u8]) -> bool {
        let Ends { own, peer } = self.ends;
        claimed_ends(frame) == Some([peer.ip, own.ip])
    }

    /// An answer of the peer's, as the captured requester would have heard it; `None` if its ICRC is wrong.
    pub fn answer(&self, frame: &[u8]) -> Option<Vec<u8>> {
        anew(&self.back.apply(frame)?, |packet| packet.vlan = self.tag)
    }
}

/// The frame, changed.
fn anew(frame: &[u8], change: impl FnOnce(&mut Packet<'_>)) -> Option<Vec<u8>> {
    let mut packet = Packet::parse(frame, &[]).ok()?;
    change(&mut packet);
    Some(sealed_again(&packet))
}

/// Source and destination of a frame that goes to the port of RoCE, by those fields alone.
fn claimed_ends(frame: &[u8]) -> Option<[IpAddr; 2]> {
    let ip = frame.get(roce_ip_at(frame)?..)?;
    let v4 = |at: usize| Some(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?.into());
    let v6 = |at: usize| Some(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?.into());
    Some(match ip.first()? >> 4 {
        4 => [v4(12)?, v4(16)?],
        _ => [v6(8)?, v6(24)?],
    })
}

/// The keys that requests of the lane name.
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
