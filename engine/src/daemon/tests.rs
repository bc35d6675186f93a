//! The switch against clients that behave and clients that do not, on a shm port in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use feroce_wire::cm::{CmMad, IpCmHeader, PortSpace, Req, ServiceId};
use feroce_wire::{
    Bth, Deth, ExtHeaders, FlowHeader, FlowSpec, IpAddresses, MacAddr, Opcode, Packet, Psn, Qkey,
    Qpn, Syndrome, VlanTag, write_transport,
};
use proptest::prelude::*;

use super::admission::Dscps;
use super::client::{Client, ClientId, Credentials, STALLED_AFTER};
use super::cm_router::CmRouter;
use super::early_requests::HELD_MAX;
use super::slices::QUARANTINE;
use super::switch::Switch;
use crate::core::SLICE;
use crate::device::EARLY_REQUEST_TIME;
use crate::memory::arena::Arena;
use crate::memory::bell::{Bell, RemoteBell};
use crate::memory::frame_ring::{FrameConsumer, FrameProducer, RingShape};
use crate::memory::shared_memory::SharedMemory;
use crate::net::{Gid, GidEntry};
use crate::port::daemon::limits::Limits;
use crate::port::daemon::protocol::Refusal;
use crate::port::kind::ServicePort;
use crate::port::shm::{ShmConfig, ShmPort, shm_pair};
use crate::port::{Port, Priority};
use crate::time::{Duration, Instant};

const HOST_MAC: MacAddr = MacAddr([2, 0xfe, 0, 0, 0, 1]);
const PEER_MAC: MacAddr = MacAddr([2, 0xfe, 0, 0, 0, 2]);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const FRAME_MAX: usize = 4218;
const SLOTS: usize = 256;
const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// A daemon's switch, the other end of its cable, and the programs' ends of the rings.
struct Rig {
    switch: Switch,
    wire: ShmPort,
    programs: Vec<Program>,
}

struct Program {
    id: ClientId,
    qpn: Qpn,
    memory: Arc<SharedMemory>,
    tx: FrameProducer,
    rx: FrameConsumer,
}

fn rig(programs: usize) -> Rig {
    rig_with(programs, Limits::default())
}

fn rig_with(programs: usize, limits: Limits) -> Rig {
    let arena = Arena::new(1 << 24).unwrap();
    let (port, wire) = shm_pair(&arena, ShmConfig { slots: 1024, ..ShmConfig::default() }).unwrap();
    let router = CmRouter::new(1, || 7);
    let mut switch = Switch::new(Box::new(port), router, (limits, Dscps::default()), 5);
    let own =
        GidEntry { gid: Gid::from(HOST), vlan: None, interface: 1, interface_name: "a".into() };
    switch.tables.host.set_gids(vec![own]);
    let mut rig = Rig { switch, wire, programs: Vec::new() };
    (0..programs).for_each(|user| rig.attach(u32::try_from(user).unwrap()));
    rig
}

impl Rig {
    /// Attaches a program of `user` with one QP, connected to the QP of the same number plus 1 of
    /// the peer.
    fn attach(&mut self, user: u32) {
        let shape = RingShape::new(SLOTS, FRAME_MAX).unwrap();
        let memory = SharedMemory::create(2 * shape.bytes()).unwrap();
        let (own, theirs) = RemoteBell::pair().unwrap();
        let [own, theirs] =
            [own, RemoteBell::of_client(theirs)].map(|bell| Bell::Remote(Arc::new(bell)));
        let (tx, rx) =
            (shape.producer(&memory, 0, &theirs), shape.consumer(&memory, shape.bytes(), &theirs));
        let rings =
            (shape.consumer(&memory, 0, &own), shape.producer(&memory, shape.bytes(), &own));
        let who = Credentials { user, pid: 1, program: "test".to_owned() };
        let tables = &mut self.switch.tables;
        let id = tables.add(|id| Client::new(id, who, rings.0, rings.1), NOW);
        let qpn = Qpn::masked(tables.slices.give(id, (user, u32::MAX), NOW).unwrap());
        tables.connect(id, qpn, (PEER.into(), next(qpn)), NOW).unwrap();
        let client = tables.get_mut(id).unwrap();
        client.permits.next_hops.insert(PEER_MAC);
        client.is_ready = true;
        self.programs.push(Program { id, qpn, memory, tx, rx });
    }

    /// Ends the connections of all QPs.
    fn disconnect_all(&mut self) {
        for program in &self.programs {
            let client = self.switch.tables.get_mut(program.id).unwrap();
            client.permits.disconnect(program.qpn);
        }
    }

    /// Runs a turn after the program has published `frames`. Returns what left the host.
    fn send(&mut self, program: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in frames {
            assert!(self.programs[program].tx.push(frame, &[], Priority::default()));
        }
        self.programs[program].tx.publish();
        self.turn(NOW);
        self.on_the_wire()
    }

    fn turn(&mut self, now: Instant) {
        self.switch.turn(now);
    }

    fn on_the_wire(&mut self) -> Vec<Vec<u8>> {
        let burst = self.wire.rx_burst();
        (0..burst).map(|index| self.wire.rx_frame(index).first.to_vec()).collect()
    }

    /// Puts a frame on the wire, runs a turn, and returns the frames that each program gets.
    fn receive(&mut self, frame: &[u8]) -> Vec<usize> {
        self.receive_at(frame, NOW)
    }

    fn receive_at(&mut self, frame: &[u8], now: Instant) -> Vec<usize> {
        self.wire.tx_slot().unwrap()[..frame.len()].copy_from_slice(frame);
        self.wire.tx_commit(frame.len(), Priority::default());
        self.wire.flush().unwrap();
        self.turn(now);
        self.got()
    }

    fn got(&mut self) -> Vec<usize> {
        self.programs.iter_mut().map(|program| program.rx.burst()).collect()
    }

    fn refused(&mut self, program: usize) -> u64 {
        let id = self.programs[program].id;
        self.switch.tables.get_mut(id).unwrap().stats.tx_refused
    }
}

fn flow(src: Ipv4Addr, dst: Ipv4Addr) -> FlowSpec {
    let (src_mac, dst_mac) = if src == PEER { (PEER_MAC, HOST_MAC) } else { (HOST_MAC, PEER_MAC) };
    FlowSpec::new(dst_mac, src_mac, IpAddresses::V4 { src, dst })
}

/// A SEND Only packet of `payload` bytes: it needs no extended headers.
fn send_only(flow: &FlowSpec, dest_qp: Qpn, payload: usize) -> Vec<u8> {
    let bth = Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp, psn: Psn::new(3), ..Bth::default() };
    frame(flow, &bth, &ExtHeaders::default(), payload)
}

fn datagram(flow: &FlowSpec, dest_qp: Qpn, src_qp: Qpn) -> Vec<u8> {
    let bth = Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp, ..Bth::default() };
    let deth = Deth { qkey: Qkey(5), src_qp, ..Deth::default() };
    frame(flow, &bth, &ExtHeaders { deth: Some(deth), ..ExtHeaders::default() }, 64)
}

fn frame(flow: &FlowSpec, bth: &Bth, ext: &ExtHeaders, payload: usize) -> Vec<u8> {
    let header = FlowHeader::new(flow);
    let mut frame = vec![0; FRAME_MAX];
    let at = write_transport(&mut frame[header.len()..], bth, ext);
    let len = header.seal(&mut frame, at + payload, 1);
    frame.truncate(len);
    frame
}

fn next(qpn: Qpn) -> Qpn {
    Qpn::masked(qpn.value() + 1)
}

#[test]
fn a_program_sends_to_its_peers_only() {
    let mut rig = rig(2);
    let [own, other] = [rig.programs[0].qpn, rig.programs[1].qpn];
    let out = flow(HOST, PEER);
    let valid = send_only(&out, next(own), 256);
    assert_eq!(rig.send(0, std::slice::from_ref(&valid)), std::slice::from_ref(&valid));
    let valid = datagram(&out, Qpn::masked(0x123), own);
    assert_eq!(rig.send(0, std::slice::from_ref(&valid)), std::slice::from_ref(&valid));
    assert_eq!(rig.refused(0), 0);

    let [a, b] = [MacAddr([6; 6]), MacAddr([0xff; 6])];
    let tagged = VlanTag { id: 9, pcp: 0, dei: false };
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let mut long = send_only(&out, next(own), 256);
    long.push(0);
    let forged = [
        send_only(&out, next(other), 256),
        send_only(&out, Qpn::masked(0x777), 256),
        send_only(&FlowSpec { src_mac: a, ..out }, next(own), 256),
        send_only(&FlowSpec { dst_mac: a, ..out }, next(own), 256),
        send_only(&FlowSpec { dst_mac: b, ..out }, next(own), 256),
        send_only(&FlowSpec { vlan: Some(tagged), ..out }, next(own), 256),
        send_only(&flow(PEER, PEER), next(own), 256),
        send_only(&flow(HOST, Ipv4Addr::new(10, 77, 0, 3)), next(own), 256),
        datagram(&out, Qpn::masked(0x123), other),
        datagram(&out, Qpn::masked(0x123), Qpn::GSI),
        datagram(&out, Qpn::GSI, own),
        datagram(&out, Qpn::GSI, Qpn::GSI),
        datagram(&out, Qpn::MULTICAST, own),
        datagram(&flow(HOST, group), Qpn::MULTICAST, other),
        datagram(&flow(HOST, group), Qpn::masked(5), own),
        long,
        vec![0; 60],
        Vec::new(),
        vec![0xff; FRAME_MAX],
    ];
    for (number, frame) in (1..).zip(&forged) {
        let sent = rig.send(0, std::slice::from_ref(frame));
        assert!(sent.is_empty(), "forged frame {number} left the host: {frame:02x?}");
        assert_eq!(rig.refused(0), number);
        assert_eq!(rig.got(), [0, 0]);
    }
}

#[test]
fn a_program_receives_frames_to_its_own_qps_only() {
    let mut rig = rig(2);
    let [own, other] = [rig.programs[0].qpn, rig.programs[1].qpn];
    let back = flow(PEER, HOST);
    assert_eq!(rig.receive(&send_only(&back, own, 64)), [1, 0]);
    let last = Qpn::masked(other.value() + SLICE - 1);
    assert_eq!(rig.receive(&datagram(&back, last, Qpn::masked(9))), [0, 1]);
    assert_eq!(rig.receive(&send_only(&back, Qpn::masked(0x777_777), 64)), [0, 0]);
    assert_eq!(rig.receive(&datagram(&back, Qpn::GSI, Qpn::GSI)), [0, 0]);
}

#[test]
fn programs_of_one_host_reach_each_other() {
    let mut rig = rig(2);
    let [own, other] = [rig.programs[0].qpn, rig.programs[1].qpn];
    rig.disconnect_all();
    let tables = &mut rig.switch.tables;
    tables.connect(rig.programs[0].id, own, (HOST.into(), other), NOW).unwrap();
    let to_self = FlowSpec { dst_mac: MacAddr([2; 6]), ..flow(HOST, HOST) };
    assert_eq!(rig.send(0, &[send_only(&to_self, other, 1024)]), Vec::<Vec<u8>>::new());
    assert_eq!(rig.got(), [0, 1]);
    let tables = &mut rig.switch.tables;
    let foreign = tables.connect(rig.programs[1].id, own, (PEER.into(), Qpn::masked(99)), NOW);
    assert!(foreign.is_err(), "the QP is not the program's");
}

/// A QP of this host decides by its own connection who may send to it.
#[test]
fn the_peer_of_another_program_cannot_be_taken() {
    let mut rig = rig(3);
    let [a, b, c] = [0, 1, 2].map(|program| (rig.programs[program].id, rig.programs[program].qpn));
    rig.disconnect_all();
    let tables = &mut rig.switch.tables;
    let own = |qpn| (IpAddr::from(HOST), qpn);
    tables.connect(c.0, c.1, own(b.1), NOW).unwrap();
    tables.connect(b.0, b.1, own(a.1), NOW).unwrap();
    assert!(!tables.get_mut(c.0).unwrap().permits.is_peer(HOST.into(), b.1), "evicted");
    assert_eq!(tables.connect(c.0, c.1, own(b.1), NOW), Err(Refusal::InUse));
    // A QP of another host belongs to the first program, and for 60 s after that program's end.
    let theirs = (IpAddr::from(PEER), Qpn::masked(0x55));
    tables.connect(a.0, a.1, theirs, NOW).unwrap();
    assert_eq!(tables.connect(b.0, b.1, theirs, NOW), Err(Refusal::InUse));
    tables.remove(a.0, NOW);
    assert_eq!(tables.connect(b.0, b.1, theirs, NOW), Err(Refusal::InUse));
    tables.connect(b.0, b.1, theirs, NOW + QUARANTINE).unwrap();
}

#[test]
fn a_group_reaches_its_members_but_not_the_sender_again() {
    let mut rig = rig(3);
    let group = Ipv4Addr::new(239, 1, 2, 3);
    for program in [0, 1] {
        rig.switch.tables.join(rig.programs[program].id, group.into());
    }
    let mac = MacAddr([1, 0, 0x5e, 1, 2, 3]);
    let out = FlowSpec { dst_mac: mac, ..flow(HOST, group) };
    let sent = rig.send(0, &[datagram(&out, Qpn::MULTICAST, rig.programs[0].qpn)]);
    assert_eq!((sent.len(), rig.got()), (1, vec![0, 1, 0]));
    let incoming = FlowSpec { dst_mac: mac, ..flow(PEER, group) };
    assert_eq!(rig.receive(&datagram(&incoming, Qpn::MULTICAST, Qpn::masked(5))), [1, 1, 0]);
}

#[test]
fn a_flood_leaves_the_others_their_share() {
    let mut rig = rig(3);
    let frames: Vec<Vec<u8>> = (0..3)
        .map(|program| send_only(&flow(HOST, PEER), next(rig.programs[program].qpn), 4096))
        .collect();
    let ack = send_only(&flow(HOST, PEER), next(rig.programs[2].qpn), 0);
    let mut sent = [0u32; 3];
    for _ in 0..200 {
        // The third program sends a small frame in each turn, the others fill their rings.
        let offered = [(&frames[0], SLOTS), (&frames[1], SLOTS), (&ack, 1)];
        for (program, (frame, most)) in rig.programs.iter_mut().zip(offered) {
            let tx = &mut program.tx;
            let _ = (0..most).take_while(|_| tx.push(frame, &[], Priority::default())).count();
            tx.publish();
        }
        rig.turn(NOW);
        loop {
            let burst = rig.on_the_wire();
            for frame in &burst {
                let to = Packet::parse(frame, &[]).unwrap().bth.dest_qp;
                let from = rig.programs.iter().position(|program| next(program.qpn) == to);
                sent[from.unwrap()] += 1;
            }
            if burst.is_empty() {
                break;
            }
        }
    }
    assert!(sent[0].abs_diff(sent[1]) <= 32, "{sent:?}");
    assert_eq!(sent[2], 200, "frames without data do not wait: {sent:?}");
}

#[test]
fn the_rate_of_a_user_is_kept() {
    let mut rig = rig_with(2, Limits { packets: Some(1000), ..Limits::default() });
    let frames: Vec<Vec<u8>> = (0..2)
        .map(|program| send_only(&flow(HOST, PEER), next(rig.programs[program].qpn), 64))
        .collect();
    let mut sent = [0; 2];
    for step in 0..1000 {
        for (program, frame) in rig.programs.iter_mut().zip(&frames) {
            while program.tx.push(frame, &[], Priority::default()) {}
            program.tx.publish();
        }
        rig.turn(NOW + Duration::from_micros(100 * step));
        for frame in rig.on_the_wire() {
            sent[usize::from(frame == frames[1])] += 1;
        }
    }
    for count in sent {
        assert!((95..=105).contains(&count), "{sent:?} packets in 100 ms at 1000 per second");
    }
    let throttled = rig.switch.tables.programs(None)[0].frames.tx_throttled;
    assert!((90..=110).contains(&throttled), "{throttled} waits for 100 packets");
    let users = rig.switch.tables.users(None, NOW);
    assert_eq!((users.len(), users[0].programs, users[0].qp_numbers), (2, 1, SLICE));
}

#[test]
fn peers_of_a_dead_program_are_refused() {
    let mut rig = rig(2);
    let (dead, qpn) = (rig.programs[0].id, rig.programs[0].qpn);
    rig.switch.tables.remove(dead, NOW);
    let request = send_only(&flow(PEER, HOST), qpn, 64);
    // Requests before the first arrival may be lost: a NAK would acknowledge them.
    assert_eq!(rig.receive(&request), [0, 0]);
    assert!(rig.on_the_wire().is_empty());
    assert_eq!(rig.receive(&request), [0, 0]);
    let sent = rig.on_the_wire();
    let nak = Packet::parse(&sent[0], &[]).unwrap();
    assert_eq!((sent.len(), nak.bth.dest_qp, nak.bth.psn), (1, next(qpn), Psn::new(3)));
    let syndrome = nak.ext.aeth.unwrap().syndrome;
    assert!(nak.icrc_valid() && matches!(syndrome, Syndrome::Nak(_)), "{syndrome:?}");
    // No NAK to other hosts, and none for packets with a wrong ICRC.
    let other = send_only(&flow(Ipv4Addr::new(10, 77, 0, 3), HOST), qpn, 64);
    let mut damaged = request.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for frame in [other, damaged] {
        rig.receive(&frame);
        assert!(rig.on_the_wire().is_empty());
    }
}

#[test]
fn what_a_program_left_in_its_ring_is_sent() {
    let mut rig = rig(1);
    let frame = send_only(&flow(HOST, PEER), next(rig.programs[0].qpn), 64);
    (0..200).for_each(|_| assert!(rig.programs[0].tx.push(&frame, &[], Priority::default())));
    rig.programs[0].tx.publish();
    let id = rig.programs[0].id;
    rig.switch.drain(id, NOW);
    rig.switch.tables.remove(id, NOW);
    let sent: usize = (0..4).map(|_| rig.on_the_wire().len()).sum();
    assert_eq!(sent, 200);
}

/// A REQ from the peer for port 7000 of TCP.
fn request() -> Vec<u8> {
    request_to(HOST)
}

fn request_to(to: Ipv4Addr) -> Vec<u8> {
    let service_id = ServiceId::new(PortSpace::Tcp, 7000);
    let mut req = Req { local_comm_id: 9, service_id, ..Req::default() };
    let header = IpCmHeader { source: (PEER, 40_000).into(), destination: to.into() };
    req.private_data[..IpCmHeader::LEN].copy_from_slice(&header.to_bytes());
    let mad = CmMad { transaction: 1, modifier: 0, message: req.into() };
    let mut flow = flow(PEER, to);
    std::mem::swap(&mut flow.src_mac, &mut flow.dst_mac);
    super::frames::mad_frame(&flow, &mad.to_bytes())
}

fn service() -> ServicePort {
    let (space, ip) = (PortSpace::Tcp.number(), IpAddr::from([0; 4]));
    ServicePort { space, port: 7000, ip, reuse: false, v6_only: false }
}

fn listen(rig: &mut Rig, program: usize) {
    rig.switch.tables.claim(rig.programs[program].id, service()).unwrap();
}

/// A request that arrives at `now` has no answer before the second program listens. Then it reaches
/// that program.
fn check_that_a_request_waits(rig: &mut Rig, now: Instant) {
    assert_eq!(rig.receive_at(&request(), now), [0, 0]);
    assert!(rig.on_the_wire().is_empty(), "no REJ");
    listen(rig, 1);
    rig.turn(now);
    assert_eq!(rig.got(), [0, 1]);
    assert!(rig.on_the_wire().is_empty());
}

/// A peer that connects just before the program listens is not rejected; one that does so when all
/// programs have been attached for long is.
#[test]
fn a_request_that_comes_early_waits_for_its_program() {
    check_that_a_request_waits(&mut rig(2), NOW);
}

/// With `-R`, perftest listens again about a second after it has closed its first listener.
#[test]
fn a_request_waits_for_a_program_that_has_just_listened() {
    let mut rig = rig(2);
    listen(&mut rig, 1);
    let closed = NOW + 5 * EARLY_REQUEST_TIME;
    rig.switch.tables.release(rig.programs[1].id, service(), closed);
    check_that_a_request_waits(&mut rig, closed + EARLY_REQUEST_TIME);
}

/// The daemon does not answer for addresses that are not the host's.
#[test]
fn a_request_to_another_address_has_no_answer() {
    let mut rig = rig(1);
    let later = NOW + EARLY_REQUEST_TIME;
    assert_eq!(rig.receive_at(&request_to(Ipv4Addr::new(10, 77, 0, 3)), later), [0]);
    assert!(rig.on_the_wire().is_empty());
    assert_eq!(rig.receive_at(&request(), later), [0]);
    assert_eq!(rig.on_the_wire().len(), 1, "a REJ");
}

#[test]
fn a_request_for_which_no_program_listens_is_rejected() {
    let mut rig = rig(1);
    assert_eq!(rig.receive(&request()), [0]);
    assert_eq!(rig.switch.next_deadline(), Some(NOW + EARLY_REQUEST_TIME));
    rig.turn(NOW + EARLY_REQUEST_TIME);
    assert_eq!(rig.on_the_wire().len(), 1, "a REJ");
    assert_eq!(rig.receive_at(&request(), NOW + EARLY_REQUEST_TIME), [0]);
    assert_eq!(rig.on_the_wire().len(), 1, "later, at once");
    // As many as are held: the next one is rejected at once.
    rig.attach(1);
    (0..HELD_MAX).for_each(|_| drop(rig.receive(&request())));
    assert!(rig.on_the_wire().is_empty());
    rig.receive(&request());
    assert_eq!(rig.on_the_wire().len(), 1);
}

/// A link that takes few frames at a time is shared as well.
#[test]
fn a_slow_link_is_shared() {
    let mut rig = rig(2);
    let frames: Vec<Vec<u8>> = (0..2)
        .map(|program| send_only(&flow(HOST, PEER), next(rig.programs[program].qpn), 4096))
        .collect();
    let mut sent = [0u32; 2];
    for turn in 0..20_000 {
        for (program, frame) in rig.programs.iter_mut().zip(&frames) {
            while program.tx.push(frame, &[], Priority::default()) {}
            program.tx.publish();
        }
        rig.turn(NOW);
        // The link takes a burst now and then.
        if turn % 8 == 0 {
            rig.on_the_wire().iter().for_each(|f| sent[usize::from(*f == frames[1])] += 1);
        }
    }
    assert!(sent[0].abs_diff(sent[1]) <= sent[0] / 20, "{sent:?}");
}

/// A program that makes the daemon drain its ring repeatedly gets no more than its share.
#[test]
fn a_drain_is_paid_for() {
    let mut rig = rig(2);
    let frames: Vec<Vec<u8>> = (0..2)
        .map(|program| send_only(&flow(HOST, PEER), next(rig.programs[program].qpn), 4096))
        .collect();
    let mut sent = [0u32; 2];
    for _ in 0..100 {
        for (program, frame) in rig.programs.iter_mut().zip(&frames) {
            while program.tx.push(frame, &[], Priority::default()) {}
            program.tx.publish();
        }
        if sent[0] == 0 {
            rig.switch.drain(rig.programs[0].id, NOW);
        }
        rig.turn(NOW);
        loop {
            let burst = rig.on_the_wire();
            burst.iter().for_each(|frame| sent[usize::from(*frame == frames[1])] += 1);
            if burst.is_empty() {
                break;
            }
        }
    }
    assert!(sent[0].abs_diff(sent[1]) <= 120, "more than a burst: {sent:?}");
}

#[test]
fn a_program_that_takes_no_frames_loses_them_and_goes() {
    let mut rig = rig(2);
    let frame = send_only(&flow(PEER, HOST), rig.programs[0].qpn, 64);
    for _ in 0..SLOTS + 10 {
        rig.wire.tx_slot().unwrap()[..frame.len()].copy_from_slice(&frame);
        rig.wire.tx_commit(frame.len(), Priority::default());
        rig.wire.flush().unwrap();
        rig.turn(NOW);
    }
    let id = rig.programs[0].id;
    let stats = rig.switch.tables.get_mut(id).unwrap().stats;
    assert_eq!((stats.rx_frames, stats.rx_dropped), (SLOTS as u64, 10));
    assert_eq!(rig.switch.tables.faulty(NOW), []);
    let faulty = rig.switch.tables.faulty(NOW + STALLED_AFTER);
    assert_eq!(faulty.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id]);
    rig.programs[0].rx.burst();
    rig.programs[0].rx.burst();
    rig.receive(&frame);
    assert_eq!(rig.switch.tables.faulty(NOW + STALLED_AFTER), [], "it takes frames again");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A program repeatedly writes any value anywhere in its memory: the switch does not panic,
    /// only admissible frames leave the host, and the other program is not affected.
    #[test]
    fn memory_full_of_garbage_harms_nobody_else(
        writes in prop::collection::vec((any::<u32>(), any::<u32>(), 0..3u8), 1..200)
    ) {
        let mut rig = rig(2);
        let shape = RingShape::new(SLOTS, FRAME_MAX).unwrap();
        let neighbour = send_only(&flow(HOST, PEER), next(rig.programs[1].qpn), 128);
        let incoming = send_only(&flow(PEER, HOST), rig.programs[1].qpn, 128);
        for (at, value, place) in writes {
            // The indices and flags, the first slots, or anywhere.
            let range = [384, 16_384, 2 * shape.bytes()][usize::from(place)];
            let at = (at as usize % (range - 3)) & !3;
            rig.programs[0].memory.corrupt(at, value);
            let sent = rig.send(1, std::slice::from_ref(&neighbour));
            prop_assert!(sent.contains(&neighbour));
            for frame in &sent {
                let packet = Packet::parse(frame, &[]).expect("only packets leave");
                prop_assert_eq!(packet.ip.src(), IpAddr::from(HOST));
            }
            let got = rig.receive(&incoming);
            prop_assert_eq!(got[1], 1);
        }
    }
}
