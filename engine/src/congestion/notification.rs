//! CNPs for received packets with a congestion mark: when one is sent, and the queue of CNPs that a
//! core has yet to send.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use feroce_congestion::NotificationPoint;
use feroce_congestion::params::{CnpScope, NotificationParams};
use feroce_wire::{
    Audience, FlowHeader, FlowSpec, IpAddresses, Operation, PacketView, Pkey, Qpn, cnp,
};

use super::sender::Sender;
use crate::time::{Duration, Instant};

/// Number of notification points per core, in sets. With more active keys, a point is replaced and
/// its key may get a CNP earlier than the interval allows.
const SETS: usize = 64;
const POINTS_PER_SET: usize = 4;

/// CNPs that wait for transmission at most. More arrive only if that many senders are marked in one
/// burst.
const QUEUE_LEN: usize = 256;

/// Time until a port that had no room for CNPs is tried again. A port whose link is down may never
/// have room.
const RETRY: Duration = Duration::from_micros(50);

/// A congestion notification packet and its destination.
#[derive(Debug, Clone, Copy)]
pub struct Cnp {
    /// Headers below the BTH.
    pub flow: FlowHeader,
    /// The QP that must slow down.
    pub dest_qp: Qpn,
    /// Partition key.
    pub pkey: Pkey,
}

impl Cnp {
    /// Returns true if `other` slows the same QP down.
    pub fn is_for_same(&self, other: &Self) -> bool {
        self.dest_qp == other.dest_qp && self.flow.spec() == other.flow.spec()
    }

    /// A CNP to `dest_qp` along `path`, a flow to the host of that QP.
    pub fn new(path: &FlowSpec, dest_qp: Qpn, pkey: Pkey, params: &NotificationParams) -> Self {
        let flow = cnp::flow(path, params.cnp_dscp, params.cnp_priority);
        Self { flow, dest_qp, pkey }
    }

    /// A CNP to the sender of the datagram `packet`, along the reverse path. `None` if the datagram
    /// was sent to a multicast group, has a source address that no single host has, or was sent
    /// by this host: then it passed no switch.
    pub fn to_sender(packet: &PacketView<'_>, params: &NotificationParams) -> Option<Self> {
        let dest_qp = packet.ext().deth()?.src_qp;
        let (src, dst) = (packet.ip().src(), packet.ip().dst());
        let is_group =
            src.is_multicast() || dst.is_multicast() || packet.ethernet().src.is_multicast();
        let is_no_host = src.is_unspecified() || src.is_loopback() || src == Ipv4Addr::BROADCAST;
        if is_group || is_no_host || src == dst {
            return None;
        }
        let addresses = match (packet.ip().dst(), packet.ip().src()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IpAddresses::V4 { src, dst },
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpAddresses::V6 { src, dst },
            _ => return None,
        };
        let path = FlowSpec {
            vlan: packet.vlan(),
            hop_limit: HOP_LIMIT,
            udp_source_port: 0,
            ..FlowSpec::new(packet.ethernet().src, packet.ethernet().dst, addresses)
        };
        Some(Self::new(&path, dest_qp, packet.bth().pkey, params))
    }
}

/// Hop limit of a CNP to the sender of a datagram: the receiver has no flow to that sender.
const HOP_LIMIT: u8 = 64;

/// What shares a notification point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    peer: Option<IpAddr>,
    local: Option<IpAddr>,
    /// The sending and the receiving QP.
    qps: Option<(Qpn, Qpn)>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    point: NotificationPoint,
    /// The CNP to send if an interval ends with a mark in it, and the local QP that it is counted
    /// for.
    cnp: Cnp,
    local_qp: Qpn,
    used: Instant,
}

/// The notification points that do not belong to one connected QP: those of pairs of addresses, of
/// the port, and of the senders to a UD QP. Each core has its own: a pair of addresses, or a port,
/// whose QPs are on several cores may get one CNP per core and interval.
#[derive(Debug)]
pub struct NotificationPoints {
    /// Sets of entries, indexed by a hash of the key.
    entries: Box<[[Option<Entry>; POINTS_PER_SET]; SETS]>,
    params: NotificationParams,
    /// A lower bound for the earliest end of an interval with a mark in it.
    next: Instant,
}

impl NotificationPoints {
    /// No notification points yet.
    pub fn new(params: &NotificationParams) -> Self {
        let entries = Box::new([[None; POINTS_PER_SET]; SETS]);
        Self { entries, params: *params, next: Instant::FAR }
    }

    /// Changes the parameters. Running intervals are dropped.
    pub fn set_params(&mut self, params: &NotificationParams) {
        *self = Self::new(params);
    }

    /// The marked `packet` arrived for the QP `local_qp`; `cnp` would notify its sender. Returns
    /// true if the CNP must be sent now.
    pub fn on_mark(
        &mut self,
        packet: &PacketView<'_>,
        local_qp: Qpn,
        cnp: Cnp,
        now: Instant,
    ) -> bool {
        let (peer, local) = (Some(packet.ip().src()), Some(packet.ip().dst()));
        let key = match self.params.cnp_scope {
            CnpScope::Qp => Key { peer, local, qps: Some((cnp.dest_qp, local_qp)) },
            CnpScope::IpPair => Key { peer, local, qps: None },
            CnpScope::Port => Key { peer: None, local: None, qps: None },
        };
        let new = NotificationPoint::new(&self.params);
        let set = &mut self.entries[set_of(&key)];
        let has_key = |entry: &Option<Entry>| entry.is_some_and(|entry| entry.key == key);
        let last_use = |entry: &Option<Entry>| entry.map_or(Instant::ZERO, |entry| entry.used);
        let index = set.iter().position(has_key).unwrap_or_else(|| {
            let oldest =
                (0..POINTS_PER_SET).min_by_key(|&at| (set[at].is_some(), last_use(&set[at])));
            oldest.unwrap_or(0)
        });
        let point = set[index].filter(|entry| entry.key == key).map_or(new, |entry| entry.point);
        let entry = set[index].insert(Entry { key, point, cnp, local_qp, used: now });
        let is_due = entry.point.on_packet(true, now);
        self.next = self.next.min(entry.point.next_event());
        is_due
    }

    /// Calls `send` for each CNP that is due because an interval with a mark in it has ended by
    /// `now`, with the local QP that received the last marked packet.
    pub fn expire(&mut self, now: Instant, mut send: impl FnMut(Cnp, Qpn)) {
        self.next = Instant::FAR;
        for entry in self.entries.iter_mut().flatten().flatten() {
            if entry.point.next_event() <= now && entry.point.advance(now) {
                send(entry.cnp, entry.local_qp);
            }
            self.next = self.next.min(entry.point.next_event());
        }
    }

    /// Next time to call [`NotificationPoints::expire`]; [`Instant::FAR`] if a mark must arrive
    /// first.
    pub fn next_event(&self) -> Instant {
        self.next
    }
}

/// The QP that received a packet, as far as a CNP for that packet needs it.
#[derive(Debug, Clone, Copy)]
pub struct Receiver<'a> {
    /// Number of the QP.
    pub qpn: Qpn,
    /// Headers, QP number and partition key of packets to the peer of a connected QP.
    pub peer: Option<(&'a FlowHeader, Qpn, Pkey)>,
}

/// Generates the CNPs of a core: decides when one is sent, and queues it until the port has room.
#[derive(Debug)]
pub struct CnpGenerator {
    params: NotificationParams,
    points: NotificationPoints,
    /// CNPs to send, oldest first.
    ready: VecDeque<Cnp>,
    /// CNPs whose priority is paused. They wait here so that other CNPs can pass them.
    paused: VecDeque<Cnp>,
    /// The time to try again after the port had no room; in the past if it had room the last time.
    retry_at: Instant,
}

impl CnpGenerator {
    /// A generator that has received no packet.
    pub fn new(params: &NotificationParams) -> Self {
        Self {
            params: *params,
            points: NotificationPoints::new(params),
            // With room for the CNPs that return from a pause.
            ready: VecDeque::with_capacity(2 * QUEUE_LEN),
            paused: VecDeque::with_capacity(QUEUE_LEN),
            retry_at: Instant::ZERO,
        }
    }

    /// Changes the parameters. Running intervals are dropped; queued CNPs are sent.
    pub fn set_params(&mut self, params: &NotificationParams) {
        self.params = *params;
        self.points.set_params(params);
    }

    /// The priority of CNPs.
    pub const fn priority(&self) -> u8 {
        self.params.cnp_priority
    }

    /// A packet arrived, with a congestion mark if `is_marked`. Queues a CNP if one is due now.
    pub fn on_packet(
        &mut self,
        receiver: Receiver<'_>,
        sender: &mut Sender,
        packet: &PacketView<'_>,
        is_marked: bool,
        now: Instant,
    ) {
        // Marks of acknowledgements do not count: a lower rate of the sender does not make them
        // shorter. Multicast has many receivers and no flow to notify.
        let counts = is_marked
            && packet.info.operation != Operation::Acknowledge
            && packet.bth().dest_qp != Qpn::MULTICAST;
        let has_own_point = self.params.cnp_scope == CnpScope::Qp && receiver.peer.is_some();
        let due = match has_own_point {
            true if sender.on_received(counts, now) => self.to_peer(receiver),
            false if counts => {
                let params = &self.params;
                let cnp = self.to_peer(receiver).or_else(|| Cnp::to_sender(packet, params));
                cnp.filter(|cnp| self.points.on_mark(packet, receiver.qpn, *cnp, now))
            }
            _ => None,
        };
        if let Some(cnp) = due {
            sender.count_cnp();
            self.push(cnp);
        }
    }

    /// An interval of the QP's own notification point ended with a mark in it: queues the CNP.
    pub fn on_interval_end(&mut self, receiver: Receiver<'_>, sender: &mut Sender) {
        if let Some(cnp) = self.to_peer(receiver) {
            sender.count_cnp();
            self.push(cnp);
        }
    }

    /// A CNP to the peer of a connected QP. `None` for other QPs, and for a peer on this device,
    /// whose packets pass no switch.
    fn to_peer(&self, receiver: Receiver<'_>) -> Option<Cnp> {
        let (flow, dest_qp, pkey) = receiver.peer?;
        let passes_switches = flow.audience() == Audience::Host;
        passes_switches.then(|| Cnp::new(flow.spec(), dest_qp, pkey, &self.params))
    }

    /// Runs the shared notification points at `now`: queues the CNPs that are due and calls `count`
    /// with the local QP of each.
    pub fn expire(&mut self, now: Instant, mut count: impl FnMut(Qpn)) {
        let Self { points, ready, .. } = self;
        points.expire(now, |cnp, local_qp| {
            count(local_qp);
            push(ready, cnp);
        });
    }

    /// Next time to call [`CnpGenerator::expire`]; [`Instant::FAR`] if a mark must arrive first.
    pub fn next_event(&self) -> Instant {
        self.points.next_event()
    }

    /// Time at which queued CNPs are to be sent: in the past if the port had room the last time.
    /// `None` without queued CNPs.
    pub fn due(&self) -> Option<Instant> {
        (!self.ready.is_empty()).then_some(self.retry_at)
    }

    /// The CNP to send next.
    pub fn front(&self) -> Option<&Cnp> {
        self.ready.front()
    }

    /// The CNP at the front was sent.
    pub fn pop(&mut self) {
        self.ready.pop_front();
    }

    /// The priority of the CNP at the front is paused: sets the CNP aside until the pause ends.
    /// Later CNPs to the same QP are dropped: sent together, they would cut the rate of that QP
    /// several times.
    pub fn set_aside(&mut self) {
        let Some(cnp) = self.ready.pop_front() else { return };
        if !self.paused.iter().any(|other| other.is_for_same(&cnp)) {
            push(&mut self.paused, cnp);
        }
    }

    /// A pause ended: the CNPs that were set aside are next, ahead of later ones.
    pub fn resume(&mut self) {
        while let Some(cnp) = self.paused.pop_back() {
            self.ready.push_front(cnp);
        }
    }

    /// All CNPs that the port had room for were sent: sets the time of the next attempt.
    pub fn set_retry(&mut self, now: Instant) {
        self.retry_at = match self.ready.is_empty() {
            true => Instant::ZERO,
            false => now + RETRY,
        };
    }

    fn push(&mut self, cnp: Cnp) {
        push(&mut self.ready, cnp);
    }
}

/// Appends a CNP. If the queue is full, the CNP is lost, as it could be in a switch.
fn push(queue: &mut VecDeque<Cnp>, cnp: Cnp) {
    if queue.len() < QUEUE_LEN {
        queue.push_back(cnp);
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
    let mixed = (fold(key.peer) ^ fold(key.local).rotate_left(32) ^ qps.rotate_left(8))
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
            traffic_class: 2,
            ..FlowSpec::new(MacAddr([2; 6]), MacAddr([src_mac; 6]), addresses)
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
    fn only_single_hosts_get_a_cnp() {
        let params = Params::default().notification;
        let to = |src_mac, src, dst| {
            let frame = datagram(src_mac, src, dst);
            Cnp::to_sender(&PacketView::parse(&frame, &[]).unwrap(), &params)
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
            let packet = PacketView::parse(&frame, &[]).unwrap();
            assert!(Cnp::to_sender(&packet, &params).is_none(), "{src}");
        }
    }

    #[test]
    fn the_cnp_at_the_end_of_an_interval_is_counted_for_the_last_marked_qp() {
        let mut params = Params::default().notification;
        (params.cnp_timing, params.cnp_scope) = (CnpTiming::Window, CnpScope::Port);
        let mut points = NotificationPoints::new(&params);
        let frame = datagram(4, [10, 0, 0, 1], [10, 0, 0, 2]);
        let packet = PacketView::parse(&frame, &[]).unwrap();
        let cnp = Cnp::to_sender(&packet, &params).unwrap();
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut mark = |qp, micros| points.on_mark(&packet, Qpn::masked(qp), cnp, at(micros));
        assert_eq!([mark(1, 1), mark(2, 2), mark(3, 3)], [true, false, false]);
        assert_eq!(points.next_event(), at(51));
        let mut counted = Vec::new();
        points.expire(at(51), |_, qp| counted.push(qp.value()));
        assert_eq!(counted, [3]);
    }
}
