//! CNPs to be sent, and the notification points that no single QP has: those of pairs of addresses, of the port, and of
//! the senders to a UD QP.

use std::net::{IpAddr, Ipv4Addr};

use feroce_congestion::NotificationPoint;
use feroce_congestion::params::{CnpScope, NotificationParams};
use feroce_wire::{FlowHeader, FlowSpec, IpAddresses, Packet, Pkey, Qpn, cnp};

use crate::time::Instant;

/// Points kept at most: with more pairs than that at a time, a pair may get a CNP earlier than it should.
const SETS: usize = 64;
const WAYS: usize = 4;

/// A congestion notification packet, and where it goes.
#[derive(Debug, Clone, Copy)]
pub struct Cnp {
    /// Headers.
    pub flow: FlowHeader,
    /// The QP that is to slow down.
    pub dest_qp: Qpn,
    /// Partition.
    pub pkey: Pkey,
}

impl Cnp {
    /// Whether it slows the same QP down.
    pub fn is_for_same(&self, other: &Self) -> bool {
        self.dest_qp == other.dest_qp && self.flow.spec() == other.flow.spec()
    }

    /// One along `way`, a flow to the host of `dest_qp`.
    pub fn new(way: &FlowSpec, dest_qp: Qpn, pkey: Pkey, params: &NotificationParams) -> Self {
        let flow = cnp::flow(way, params.cnp_dscp, params.cnp_priority);
        Self { flow, dest_qp, pkey }
    }

    /// One to the sender of the datagram `packet`, back the way that it came. `None` if it came to a group, from an address that no
    /// single host has, or from this one: it passed no switch.
    pub fn to_sender(packet: &Packet<'_>, params: &NotificationParams) -> Option<Self> {
        let dest_qp = packet.ext.deth?.src_qp;
        let (src, dst) = (packet.ip.src(), packet.ip.dst());
        let is_group =
            src.is_multicast() || dst.is_multicast() || packet.ethernet.src.is_multicast();
        let is_nobody = src.is_unspecified() || src.is_loopback() || src == Ipv4Addr::BROADCAST;
        if is_group || is_nobody || src == dst {
            return None;
        }
        let addresses = match (packet.ip.dst(), packet.ip.src()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IpAddresses::V4 { src, dst },
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpAddresses::V6 { src, dst },
            _ => return None,
        };
        let way = FlowSpec {
            dst_mac: packet.ethernet.src,
            src_mac: packet.ethernet.dst,
            vlan: packet.vlan,
            addresses,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            flow_label: 0,
            udp_source_port: 0,
            super_frames: false,
        };
        Some(Self::new(&way, dest_qp, packet.bth.pkey, params))
    }
}

/// Of a CNP to the sender of a datagram: there is no flow of our own to take it from.
const HOP_LIMIT: u8 = 64;

/// Who shares a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    peer: Option<IpAddr>,
    own: Option<IpAddr>,
    /// The sending and the receiving QP.
    qps: Option<(Qpn, Qpn)>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    point: NotificationPoint,
    /// To whom, if an interval ends with a mark, and for which QP of this core.
    cnp: Cnp,
    own: Qpn,
    used: Instant,
}

/// The notification points that no single QP has: those of pairs of addresses, of the port, and of the senders to a UD QP.
/// Each core has its own, as it shares nothing with others: a pair of addresses, or a port, whose QPs live on several cores
/// may get a CNP from each in an interval.
#[derive(Debug)]
pub struct Points {
    /// Sets of places, by a hash of the key.
    entries: Box<[[Option<Entry>; WAYS]; SETS]>,
    params: NotificationParams,
    /// The earliest end of an interval with a mark in it, or one that was.
    next: Instant,
}

impl Points {
    /// None yet.
    pub fn new(params: &NotificationParams) -> Self {
        Self { entries: Box::new([[None; WAYS]; SETS]), params: *params, next: Instant::FAR }
    }

    /// From now on by these parameters: what runs is forgotten.
    pub fn set_params(&mut self, params: &NotificationParams) {
        *self = Self::new(params);
    }

    /// The marked `packet` came, for the QP `own`; `cnp` would tell its sender. Whether to send it now.
    pub fn on_mark(&mut self, packet: &Packet<'_>, own: Qpn, cnp: Cnp, now: Instant) -> bool {
        let (peer, dst) = (Some(packet.ip.src()), Some(packet.ip.dst()));
        let key = match self.params.cnp_scope {
            CnpScope::Qp => Key { peer, own: dst, qps: Some((cnp.dest_qp, own)) },
            CnpScope::IpPair => Key { peer, own: dst, qps: None },
            CnpScope::Port => Key { peer: None, own: None, qps: None },
        };
        let new = NotificationPoint::new(&self.params);
        let set = &mut self.entries[set_of(&key)];
        let is_its = |entry: &Option<Entry>| entry.is_some_and(|entry| entry.key == key);
        let oldest = |entry: &Option<Entry>| entry.map_or(Instant::ZERO, |entry| entry.used);
        let place = set.iter().position(is_its).unwrap_or_else(|| {
            let places = (0..WAYS).min_by_key(|&place| (set[place].is_some(), oldest(&set[place])));
            places.unwrap_or(0)
        });
        let point = set[place].filter(|entry| entry.key == key).map_or(new, |entry| entry.point);
        let entry = set[place].insert(Entry { key, point, cnp, own, used: now });
        let due = entry.point.on_packet(true, now);
        self.next = self.next.min(entry.point.next_event());
        due
    }

    /// Calls `send` with the CNPs that are due because an interval with a mark in it has ended by `now`, each with the QP
    /// that was marked last.
    pub fn expire(&mut self, now: Instant, mut send: impl FnMut(Cnp, Qpn)) {
        self.next = Instant::FAR;
        for entry in self.entries.iter_mut().flatten().flatten() {
            if entry.point.next_event() <= now && entry.point.advance(now) {
                send(entry.cnp, entry.own);
            }
            self.next = self.next.min(entry.point.next_event());
        }
    }

    /// When to call [`Points::expire`]; [`Instant::FAR`] if a mark must come first.
    pub fn next_event(&self) -> Instant {
        self.next
    }
}

fn set_of(key: &Key) -> usize {
    let fold = |ip: Option<IpAddr>| match ip {
        None => 0,
        Some(IpAddr::V4(ip)) => u64::from(ip.to_bits()),
        Some(IpAddr::V6(ip)) => {
            let [high, low] =
                [ip.to_bits() >> 64, ip.to_bits()].map(|bits| bits & u128::from(u64::MAX));
            u64::try_from(high ^ low).expect("64 bits")
        }
    };
    let qps = key.qps.map_or(0, |(a, b)| u64::from(a.value()) << 24 | u64::from(b.value()));
    let mixed = (fold(key.peer) ^ fold(key.own).rotate_left(32) ^ qps.rotate_left(8))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(mixed >> 58).expect("six bits") % SETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_congestion::params::{CnpTiming, Params};
    use feroce_wire::{Bth, Deth, ExtHeaders, MacAddr, Opcode, Qkey, write_transport};
    use std::net::Ipv6Addr;

    /// A datagram from the QP 0x20 of `src` to `dst`.
    fn datagram(src_mac: u8, src: [u8; 4], dst: [u8; 4]) -> Vec<u8> {
        datagram_with(src_mac, IpAddresses::V4 { src: src.into(), dst: dst.into() })
    }

    fn datagram_with(src_mac: u8, addresses: IpAddresses) -> Vec<u8> {
        let flow = FlowHeader::new(&FlowSpec {
            dst_mac: MacAddr([2; 6]),
            src_mac: MacAddr([src_mac; 6]),
            vlan: None,
            addresses,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
            super_frames: false,
        });
        let mut frame = vec![0; 128];
        let deth = Some(Deth { qkey: Qkey(1), reserved: 0, src_qp: Qpn::masked(0x20) });
        let bth = Bth { opcode: Opcode::UD_SEND_ONLY, ..Bth::default() };
        let ext = ExtHeaders { deth, ..ExtHeaders::default() };
        let len = write_transport(&mut frame[flow.len()..], &bth, &ext);
        let len = flow.seal(&mut frame, len, 1);
        frame.truncate(len);
        frame
    }

    #[test]
    fn only_single_hosts_are_told() {
        let params = Params::default().notification;
        let to = |src_mac, src, dst| {
            let frame = datagram(src_mac, src, dst);
            Cnp::to_sender(&Packet::parse(&frame, &[]).unwrap(), &params)
        };
        let (a, b, group) = ([10, 0, 0, 1], [10, 0, 0, 2], [239, 0, 0, 1]);
        let cnp = to(4, a, b).unwrap();
        let (src, dst) = (Ipv4Addr::from(b), Ipv4Addr::from(a));
        assert_eq!(cnp.flow.spec().addresses, IpAddresses::V4 { src, dst });
        assert_eq!((cnp.dest_qp, cnp.flow.spec().dst_mac), (Qpn::masked(0x20), MacAddr([4; 6])));
        for (src_mac, src, dst) in [(4, a, group), (4, group, b), (5, a, b), (4, a, a)] {
            assert!(to(src_mac, src, dst).is_none(), "{src_mac} {src:?} {dst:?}");
        }
        for src in [[0; 4], [127, 0, 0, 1], [127, 255, 3, 4], [255; 4]] {
            assert!(to(4, src, b).is_none(), "{src:?}");
        }
        for src in [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST] {
            let dst = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
            let frame = datagram_with(4, IpAddresses::V6 { src, dst });
            let packet = Packet::parse(&frame, &[]).unwrap();
            assert!(Cnp::to_sender(&packet, &params).is_none(), "{src}");
        }
    }

    #[test]
    fn what_an_interval_owes_is_the_last_ones() {
        let mut params = Params::default().notification;
        (params.cnp_timing, params.cnp_scope) = (CnpTiming::Window, CnpScope::Port);
        let mut points = Points::new(&params);
        let frame = datagram(4, [10, 0, 0, 1], [10, 0, 0, 2]);
        let packet = Packet::parse(&frame, &[]).unwrap();
        let cnp = Cnp::to_sender(&packet, &params).unwrap();
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut mark = |own, micros| points.on_mark(&packet, Qpn::masked(own), cnp, at(micros));
        assert_eq!([mark(1, 1), mark(2, 2), mark(3, 3)], [true, false, false]);
        assert_eq!(points.next_event(), at(51));
        let mut told = Vec::new();
        points.expire(at(51), |_, own| told.push(own.value()));
        assert_eq!(told, [3]);
    }
}
