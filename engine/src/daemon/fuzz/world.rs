//! A daemon in virtual time: the attacker's programs, a neighbour, and the other end of the cable.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

use feroce_wire::{Bth, ExtHeaders, FlowSpec, IpAddresses, Opcode, Packet, Pkey, Psn, Qpn};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use super::HOSTILE;
use super::network::{HOST, HOST_MAC, MTU, NEIGHBOURS_PEER, PEER, PEER_MAC, local, sealed};
use crate::core::SLICE;
use crate::daemon::admission::Dscps;
use crate::daemon::cm_router::CmRouter;
use crate::daemon::control::Control;
use crate::daemon::shared::Shared;
use crate::daemon::switch::Switch;
use crate::device::{Addressing, StaticAddresses};
use crate::memory::arena::Arena;
use crate::memory::bell::{Bell, RemoteBell};
use crate::memory::frame_ring::{FrameConsumer, FrameProducer};
use crate::memory::shared_memory::SharedMemory;
use crate::net::{Gid, multicast_mac};
use crate::port::daemon::channel;
use crate::port::daemon::limits::Limits;
use crate::port::daemon::protocol::{Answer, Attached, Call, Message, Refusal, Request, VERSION};
use crate::port::shm::{ShmConfig, ShmPort, shm_pair};
use crate::port::{Port, Priority};
use crate::time::{Clock, Duration, Instant};
use crate::wake::EventFd;

/// Slots of the cable, each way.
const SLOTS: usize = 256;
const NEIGHBOUR: u32 = 1000;
const ATTACKER: u32 = 1001;
/// Turns in which the daemon has handled everything that one step can cause.
const TURNS: usize = 64;
/// Time until QP numbers of a program that has ended can be used again, and more.
const LATER: Duration = Duration::from_secs(120);

/// The request for the path to the peer.
pub(super) fn path_to_peer() -> Request {
    Request::Resolve { destination: Gid::from(PEER).0, source: local(), timeout_ms: 0 }
}

/// The bytes of a call.
pub(super) fn message(request: &Request) -> Vec<u8> {
    serde_json::to_vec(&Call { id: 1, request: request.clone() }).expect("a request")
}

/// The program's end of a socket to the daemon, and its rings once it is attached.
struct Program {
    socket: OwnedFd,
    rings: Option<Rings>,
    /// The first numbers of its slices.
    slices: Vec<u32>,
}

struct Rings {
    memory: Arc<SharedMemory>,
    /// Bytes of the memory.
    len: usize,
    tx: FrameProducer,
    rx: FrameConsumer,
    /// The program has written values into the memory that do not belong there.
    is_corrupt: bool,
}

impl Rings {
    fn open(attached: &Attached, fds: Vec<OwnedFd>) -> Self {
        let [tx, rx] = attached.shapes().expect("shapes of rings");
        let len = tx.bytes() + rx.bytes();
        let [memory, waits_on, signals] = <[OwnedFd; 3]>::try_from(fds).expect("three descriptors");
        let memory = SharedMemory::open(memory, len).expect("the memory of the rings");
        let bell = Bell::Remote(Arc::new(RemoteBell::of_client([waits_on, signals])));
        let (tx, rx) = (tx.producer(&memory, 0, &bell), rx.consumer(&memory, tx.bytes(), &bell));
        Self { memory, len, tx, rx, is_corrupt: false }
    }

    fn send(&mut self, frame: &[u8]) {
        if self.tx.push(frame, &[], Priority::default()) {
            self.tx.publish();
        }
    }

    /// The frames that have arrived.
    fn take(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let burst = self.rx.burst();
            frames.extend((0..burst).map(|index| self.rx.frame(index).0.to_vec()));
            if burst == 0 {
                return frames;
            }
        }
    }
}

pub(super) struct World {
    shared: Arc<Shared>,
    control: Control,
    wire: ShmPort,
    neighbour: Program,
    hostile: [Option<Program>; HOSTILE],
    now: Instant,
    /// PSN of the neighbour's last frame.
    psn: u32,
}

impl World {
    pub(super) fn new() -> Self {
        let arena = Arena::new(1 << 20).expect("an arena");
        let config = ShmConfig { slots: SLOTS, mtu: MTU, ..ShmConfig::default() };
        let (port, wire) = shm_pair(&arena, config).expect("ports");
        let shared = Arc::new(shared(Box::new(port)));
        let (listener, _) = pair();
        let control = Control::new(Arc::clone(&shared), listener);
        let now = Instant::from_nanos(1 << 40);
        let neighbour = Program { socket: pair().0, rings: None, slices: Vec::new() };
        let hostile = [const { None }; HOSTILE];
        let mut world = Self { shared, control, wire, neighbour, hostile, now, psn: 0 };
        world.neighbour = world.attach(NEIGHBOUR).expect("the first program");
        world
    }

    /// A program of `user` that attaches and connects a QP to the peer.
    fn attach(&mut self, user: u32) -> Option<Program> {
        let mut program = self.newcomer(user);
        let attach = Request::Attach { version: VERSION, program: "good".to_owned() };
        self.call_of(&mut program, &attach)?;
        self.call_of(&mut program, &Request::Ready)?;
        let Some(Answer::Slice(qpn)) = self.call_of(&mut program, &Request::QpnSlice) else {
            return None;
        };
        let connect =
            Request::Connect { qpn, remote: PEER.into(), remote_qpn: NEIGHBOURS_PEER.value() };
        self.call_of(&mut program, &connect);
        self.call_of(&mut program, &path_to_peer())?;
        Some(program)
    }

    fn newcomer(&mut self, user: u32) -> Program {
        let (socket, theirs) = pair();
        self.control.admit(theirs, user, 7);
        Program { socket, rings: None, slices: Vec::new() }
    }

    pub(super) fn connect(&mut self, chosen: usize) {
        let program = self.newcomer(ATTACKER);
        self.hostile[chosen] = Some(program);
        self.turn();
    }

    pub(super) fn close(&mut self, chosen: usize) {
        self.hostile[chosen] = None;
        self.turn();
    }

    pub(super) fn qpns(&self, chosen: usize) -> Vec<u32> {
        self.hostile[chosen].as_ref().map_or(Vec::new(), |program| program.slices.clone())
    }

    /// The attacker's program `chosen` makes a call.
    pub(super) fn call(&mut self, chosen: usize, request: &Request) -> Option<Answer> {
        let mut program = self.hostile[chosen].take()?;
        let answer = self.call_of(&mut program, request);
        self.hostile[chosen] = Some(program);
        answer
    }

    fn call_of(&mut self, program: &mut Program, request: &Request) -> Option<Answer> {
        // An error: the daemon has closed the socket.
        rustix::net::send(&program.socket, &message(request), SendFlags::NOSIGNAL).ok()?;
        self.turn();
        self.answers(program).pop()?.ok()
    }

    /// Reads the daemon's answers.
    fn answers(&self, program: &mut Program) -> Vec<Result<Answer, Refusal>> {
        let (mut answers, mut buffer) = (Vec::new(), Vec::new());
        while let Ok(Some((message, fds))) = channel::receive(&program.socket, &mut buffer) {
            let Message::Answer { result, .. } = message else { continue };
            match &result {
                Ok(Answer::Attached(attached)) => {
                    program.rings = Some(Rings::open(attached, fds));
                }
                Ok(Answer::Slice(first)) => program.slices.push(*first),
                _ => {}
            }
            answers.push(result);
        }
        answers
    }

    pub(super) fn send_bytes(&mut self, chosen: usize, bytes: &[u8]) {
        let Some(mut program) = self.hostile[chosen].take() else { return };
        // An error: the socket is closed.
        let _ = rustix::net::send(&program.socket, bytes, SendFlags::NOSIGNAL);
        self.turn();
        self.answers(&mut program);
        self.hostile[chosen] = Some(program);
    }

    /// Writes `value` into the memory of the rings: one in two writes hits their indices.
    pub(super) fn corrupt(&mut self, chosen: usize, at: u32, value: u32) {
        let Some(rings) = self.rings(chosen) else { return };
        let range = [384, rings.len][usize::from(at >> 31 == 1)];
        rings.memory.corrupt(((at & (u32::MAX >> 1)) as usize % (range - 3)) & !3, value);
        rings.is_corrupt = true;
        self.turn();
    }

    fn rings(&mut self, chosen: usize) -> Option<&mut Rings> {
        self.hostile[chosen].as_mut()?.rings.as_mut()
    }

    /// Sends `frame`, and the same again `more` times.
    pub(super) fn send_frame(&mut self, chosen: usize, frame: &[u8], more: usize) {
        let Some(rings) = self.rings(chosen) else { return };
        let times = if more < 200 { 1 } else { more };
        (0..times).for_each(|_| rings.send(frame));
    }

    /// Puts `frame` on the cable to the daemon, unless it is for the neighbour: another host may
    /// send anything to it, and the daemon delivers it.
    pub(super) fn arrive_for_others(&mut self, frame: &[u8]) {
        let neighbours = self.neighbour.slices[0];
        let packet = Packet::parse(frame, &[]);
        if !packet.is_ok_and(|packet| is_in_slice(packet.bth.dest_qp, neighbours)) {
            self.arrive(frame);
        }
    }

    /// Puts `frame` on the cable to the daemon.
    fn arrive(&mut self, frame: &[u8]) {
        if let Some(slot) = self.wire.tx_slot() {
            slot[..frame.len()].copy_from_slice(frame);
            self.wire.tx_commit(frame.len(), Priority::default());
            self.wire.flush().expect("the other end");
        }
    }

    /// The program takes its frames, none of which may be the neighbour's.
    pub(super) fn take_frames(&mut self, chosen: usize) {
        let neighbours = self.neighbour.slices[0];
        let Some(rings) = self.rings(chosen) else { return };
        let frames = rings.take();
        if rings.is_corrupt {
            return;
        }
        for frame in frames {
            let packet = Packet::parse(&frame, &[]).expect("a packet");
            assert!(!is_in_slice(packet.bth.dest_qp, neighbours), "the neighbour's: {packet:?}");
        }
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    /// Lets the daemon handle what there is. Returns the frames that left the host.
    fn turn(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for _ in 0..TURNS {
            self.control.wait(Duration::ZERO);
            self.control.turn(self.now);
            let moved = self.shared.lock_switch().turn(self.now);
            let burst = self.wire.rx_burst();
            sent.extend((0..burst).map(|index| self.wire.rx_frame(index).first.to_vec()));
            if moved == 0 && burst == 0 {
                break;
            }
        }
        for frame in &sent {
            self.check_sent(frame);
        }
        sent
    }

    /// Checks a frame that has left the host, and is not the neighbour's.
    fn check_sent(&self, frame: &[u8]) {
        let packet = Packet::parse(frame, &[]).expect("only packets leave the host");
        if frame == self.own_frame() {
            return;
        }
        let to = packet.ip.dst();
        assert_eq!(packet.ip.src(), IpAddr::from(HOST), "{packet:?}");
        assert_eq!((packet.ethernet.src, packet.vlan), (HOST_MAC, None), "{packet:?}");
        let is_group = packet.ethernet.dst == multicast_mac(to);
        assert!(packet.ethernet.dst == PEER_MAC || to.is_multicast() && is_group, "{packet:?}");
        match packet.ext.deth {
            Some(deth) => assert!(!is_in_slice(deth.src_qp, self.neighbour.slices[0])),
            None => assert_ne!((to, packet.bth.dest_qp), (PEER.into(), NEIGHBOURS_PEER)),
        }
    }

    /// The neighbour's present frame.
    fn own_frame(&self) -> Vec<u8> {
        neighbours_frame(HOST, NEIGHBOURS_PEER, self.psn)
    }

    /// The neighbour and its peer exchange a frame, each exactly once.
    pub(super) fn check_neighbour(&mut self) {
        self.psn = self.psn.wrapping_add(1) & 0xff_ffff;
        let qpn = self.neighbour.slices[0];
        let incoming = neighbours_frame(PEER, Qpn::masked(qpn), self.psn);
        let outgoing = self.own_frame();
        self.neighbour.rings.as_mut().expect("attached").send(&outgoing);
        self.arrive(&incoming);
        let sent = self.turn();
        let count = |frames: &[Vec<u8>], wanted| frames.iter().filter(|it| **it == wanted).count();
        assert_eq!(count(&sent, outgoing), 1, "the neighbour's frame is sent");
        let got = self.neighbour.rings.as_mut().expect("attached").take();
        assert_eq!(count(&got, incoming.clone()), 1, "the neighbour gets its peer's frame");
        for frame in got.iter().filter(|frame| **frame != incoming) {
            let packet = Packet::parse(frame, &[]).expect("a packet");
            let source = packet.ext.deth.map(|deth| deth.src_qp);
            // Others may only send datagrams to the neighbour.
            let is_fair = source.is_some_and(|source| source != Qpn::GSI);
            assert!(is_fair && is_in_slice(packet.bth.dest_qp, qpn), "{packet:?}");
        }
    }

    /// After the attacker's programs have ended, another program of the same user attaches.
    pub(super) fn check_newcomer(&mut self) {
        self.hostile = [const { None }; HOSTILE];
        self.turn();
        self.now += LATER;
        self.turn();
        let mut newcomer = self.attach(ATTACKER).expect("a new program attaches");
        let Some(Answer::Stat(stat)) = self.call_of(&mut newcomer, &Request::Stat) else {
            panic!("no statistics");
        };
        let of_attacker = stat.programs.iter().filter(|program| program.user == ATTACKER);
        let numbers: Vec<u32> = of_attacker.map(|program| program.qp_numbers).collect();
        assert_eq!(numbers, [SLICE], "of its programs, only the new one is left: {stat:?}");
        self.check_neighbour();
    }
}

/// A SEND of the neighbour's QP, or to it if `src` is the peer.
fn neighbours_frame(src: Ipv4Addr, dest_qp: Qpn, psn: u32) -> Vec<u8> {
    let (dst, to, from) =
        if src == PEER { (HOST, HOST_MAC, PEER_MAC) } else { (PEER, PEER_MAC, HOST_MAC) };
    let flow = FlowSpec::new(to, from, IpAddresses::V4 { src, dst });
    let psn = Psn::new(psn);
    let bth =
        Bth { opcode: Opcode::RC_SEND_ONLY, pkey: Pkey::DEFAULT, dest_qp, psn, ..Bth::default() };
    sealed(&flow, &bth, &ExtHeaders::default(), &[7; 32])
}

fn is_in_slice(qpn: Qpn, first: u32) -> bool {
    (first..first + SLICE).contains(&qpn.value())
}

/// Both ends of a socket to a daemon.
fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a pair of sockets")
}

/// A daemon of `port` without threads.
fn shared(port: Box<dyn Port>) -> Shared {
    let limits =
        Limits { clients: 8, qps: 8 * SLICE, connections: 16, services: 8, ..Limits::default() };
    let router = CmRouter::new(1, || 7);
    let mut switch = Switch::new(port, router, (limits, Dscps::default()), 5);
    let gid = Gid::from(HOST);
    let addresses = StaticAddresses {
        mac: HOST_MAC,
        gids: vec![(gid, None)],
        peers: BTreeMap::from([(Gid::from(PEER), PEER_MAC)]),
        mtu: MTU,
    };
    let addressing = Addressing::Static(addresses);
    switch.tables.host.set_gids(addressing.gids().into_iter().map(|(_, entry)| entry).collect());
    let eventfd = || EventFd::new().expect("an eventfd");
    Shared {
        interface: "fuzz".to_owned(),
        switch: Mutex::new(switch),
        waiters: AtomicU32::new(0),
        addressing,
        filter: None,
        filtering: Mutex::default(),
        hops: Mutex::default(),
        limits,
        window_max: None,
        clock: Clock::start(),
        sockets: Mutex::default(),
        stop: AtomicBool::new(false),
        is_lost: AtomicBool::new(false),
        wake_switch: eventfd(),
        wake_control: eventfd(),
        polls: false,
    }
}
