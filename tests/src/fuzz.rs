//! Turns fuzz input into packets for a connected QP. The fuzz target `qp` of `engine/fuzz` uses
//! this module; a plain test runs it on seeded bytes too.

use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, Endpoint, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::port::{Port, Priority};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, ExtHeaders, Feth, FlowHeader, FlowSpec, Headers, Ieth,
    ImmDt, IpAddresses, Key, Msn, Opcode, PathMtu, Pkey, Psn, Qpn, Reth, Syndrome, write_transport,
};

use crate::{MACS, addresses, drain, gid, manual_config};

const PEER: Qpn = Qpn::masked(0x77);
const START: Psn = Psn::new(0xff_fffe);
const BUFFER: usize = 4096;

/// One connected QP whose peer is the fuzzer.
struct Target {
    device: Device,
    far: ShmPort,
    cq: CompletionQueue,
    qp: QueuePair,
    buffer: Buffer,
    /// Buffers next to `buffer` in the arena. The peer has no key for them.
    guards: [Buffer; 2],
    flow: FlowHeader,
    now: Instant,
}

/// Reads the input byte by byte; returns zeros after its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u64 {
        u64::from_be_bytes([0; 8].map(|_: u8| self.next()))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Feeds `data` to a connected QP: packets with valid addresses and ICRC and arbitrary contents,
/// work requests, and time steps.
///
/// # Panics
/// If the engine panics, or writes outside the region.
pub fn feed(data: &[u8]) {
    let mut target = Target::new();
    let mut bytes = Bytes(data);
    while !bytes.is_empty() {
        match bytes.next() % 16 {
            0..=9 => target.inject_packet(&mut bytes),
            10 => target.inject_bytes(&mut bytes),
            11 => target.post_send(&mut bytes),
            12 | 13 => target.post_receive(&mut bytes),
            _ => target.now += Duration::from_micros(1 << (bytes.next() % 24)),
        }
        target.turn();
    }
    target.check_guards();
}

impl Target {
    fn new() -> Self {
        let arena = Arena::new(16 << 20).expect("an arena");
        let (near, far) =
            shm_pair(&arena, ShmConfig { slots: 64, ..ShmConfig::default() }).expect("ports");
        let device = Device::with_ports(vec![Box::new(near)], addresses(0), manual_config(1));
        let device = device.expect("a device");
        let cq = device.create_cq(256).expect("a CQ");
        let pd = device.alloc_pd();
        let init = QpInit { max_send_wr: 8, max_recv_wr: 8, ..QpInit::new(&cq) };
        let mut qp = pd.create_qp(&init).expect("a QP");
        let [before, buffer, after] =
            [0; 3].map(|_| pd.alloc_buffer(BUFFER, Access::ALL).expect("a buffer"));
        let peer = Endpoint::new(PEER, START, gid(1));
        let options = ConnectOptions {
            path_mtu: Some(PathMtu::Mtu256),
            timeout: 8,
            max_rd_atomic: Some(4),
            ..ConnectOptions::default()
        };
        qp.connect(START, &peer, &options).expect("connected");
        let ip = |end| match gid(end).ip() {
            std::net::IpAddr::V4(ip) => ip,
            std::net::IpAddr::V6(_) => unreachable!("GID 0 is IPv4"),
        };
        let flow = FlowHeader::new(&FlowSpec::new(
            MACS[0],
            MACS[1],
            IpAddresses::V4 { src: ip(1), dst: ip(0) },
        ));
        Self { device, far, cq, qp, buffer, guards: [before, after], flow, now: Instant::ZERO }
    }

    fn turn(&mut self) {
        while self.device.turn(self.now) > 0 {
            self.far.rx_burst();
        }
        self.far.rx_burst();
        drain(&self.cq);
    }

    /// Sends a packet with a known opcode. Most field values are valid or close to valid.
    fn inject_packet(&mut self, bytes: &mut Bytes<'_>) {
        let opcodes: Vec<_> = Opcode::all().collect();
        let info = opcodes[usize::from(bytes.next()) % opcodes.len()];
        let flags = bytes.next();
        let near = u32::from(bytes.next());
        let psn = START.add(near).add(0xff_fff8); // From eight before the start to 247 after it.
        let len = [0, 1, 4, 8, 64, 255, 256, 257][usize::from(bytes.next() % 8)];
        let bth = Bth {
            opcode: info.opcode,
            solicited: flags & 1 != 0,
            mig_req: flags & 2 != 0,
            pad: u8::try_from((4 - len % 4) % 4).expect("small"),
            version: 0,
            pkey: Pkey::DEFAULT,
            fecn: flags & 4 != 0,
            becn: flags & 8 != 0,
            reserved6: 0,
            dest_qp: self.qp.qpn(),
            ack_req: flags & 16 != 0,
            reserved7: 0,
            psn: if flags & 32 != 0 { Psn::new(u32::from(bytes.next()) << 16) } else { psn },
        };
        let ext = self.headers(info.headers, bytes);
        let slot = self.far.tx_slot().expect("the device takes every frame");
        let at = self.flow.len();
        let head = write_transport(&mut slot[at..], &bth, &ext);
        let total = head + len + usize::from(bth.pad);
        slot[at + head..at + total].fill(bytes.next());
        let sealed = self.flow.seal(slot, total, 1);
        self.far.tx_commit(sealed, Priority::default());
        self.far.flush().expect("the device is open");
    }

    fn headers(&self, wanted: Headers, bytes: &mut Bytes<'_>) -> ExtHeaders {
        let region = self.buffer.region();
        let choice = bytes.next();
        let va = match choice & 3 {
            0 => region.addr(),
            1 => region.addr() + u64::from(bytes.next()) * 16,
            2 => u64::MAX - u64::from(bytes.next()),
            _ => bytes.word(),
        };
        let rkey = if choice & 4 == 0 { region.rkey() } else { Key(u32::from(choice)) };
        let lengths = [0, 1, 8, 256, 257, 1024, 1 << 31, u32::MAX];
        let dma_len = lengths[usize::from(choice >> 4 & 7)];
        let has = |header| wanted.contains(header);
        ExtHeaders {
            reth: has(Headers::RETH).then_some(Reth { va, rkey, dma_len }),
            aeth: has(Headers::AETH).then(|| Aeth {
                syndrome: Syndrome::from_byte(bytes.next()),
                msn: Msn::new(u32::from(choice)),
            }),
            atomic_eth: has(Headers::ATOMIC_ETH).then(|| AtomicEth {
                va,
                rkey,
                swap_or_add: bytes.word(),
                compare: u64::from(choice),
            }),
            atomic_ack: has(Headers::ATOMIC_ACK_ETH)
                .then(|| AtomicAckEth { original: bytes.word() }),
            imm: has(Headers::IMM).then_some(ImmDt(7)),
            ieth: has(Headers::IETH).then_some(Ieth { rkey }),
            feth: has(Headers::FETH).then(|| Feth::parse(&[0, 0, 0, choice]).expect("four bytes")),
            deth: has(Headers::DETH)
                .then(|| feroce_wire::Deth::parse(&[0; 8]).expect("eight bytes")),
            xrceth: has(Headers::XRCETH)
                .then(|| feroce_wire::XrcEth::parse(&[0; 4]).expect("four bytes")),
        }
    }

    /// Sends a frame of arbitrary bytes.
    fn inject_bytes(&mut self, bytes: &mut Bytes<'_>) {
        let len = usize::from(bytes.next());
        let slot = self.far.tx_slot().expect("the device takes every frame");
        for byte in &mut slot[..len.max(1)] {
            *byte = bytes.next();
        }
        self.far.tx_commit(len.max(1), Priority::default());
        self.far.flush().expect("the device is open");
    }

    fn post_send(&mut self, bytes: &mut Bytes<'_>) {
        let choice = bytes.next();
        let remote = RemoteAddr { addr: bytes.word(), rkey: Key(u32::from(choice)) };
        let op = match choice % 8 {
            0 => SendOp::Send,
            1 => SendOp::SendImm(1),
            2 => SendOp::SendInvalidate(Key(1)),
            3 => SendOp::Write(remote),
            4 => SendOp::WriteImm(remote, 2),
            5 => SendOp::Read(remote),
            6 => SendOp::CompareSwap { remote, compare: 1, swap: 2 },
            _ => SendOp::FetchAdd { remote, add: 3 },
        };
        let length = if op.is_atomic() { 8 } else { u32::from(bytes.next()) * 4 };
        let sge = self.buffer.region().sge(0, length);
        let data = Data::Sges(std::slice::from_ref(&sge));
        let flags = SendFlags::SIGNALED;
        // A full queue is not an error here.
        let _ = self.qp.post_send(&SendRequest { wr_id: 1, op, data, flags });
    }

    fn post_receive(&mut self, bytes: &mut Bytes<'_>) {
        let length = u32::from(bytes.next()) * 4;
        let sge = self.buffer.region().sge(0, length);
        let _ = self.qp.post_recv(&RecvRequest { wr_id: 2, sges: std::slice::from_ref(&sge) });
    }

    /// Checks that nothing was written outside the buffer.
    fn check_guards(&self) {
        for guard in &self.guards {
            let mut bytes = [1; BUFFER];
            guard.read(0, &mut bytes);
            assert!(bytes.iter().all(|&byte| byte == 0), "written outside the region");
        }
    }
}
