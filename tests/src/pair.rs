//! A connected pair of QPs in virtual time, and the packets on its wire as lines of text. The tests
//! of RC and UC use it.
//!
//! End 0 starts at PSN 100, end 1 at PSN 5000. The path MTU is 256 bytes, and the one-way delay is
//! 1 us.

use std::fmt::Write;
use std::net::Ipv4Addr;

use feroce_engine::counters::Counter;
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, DeviceConfig, Endpoint, ProtectionDomain, QpInit,
    QueuePair, SharedReceiveQueue, SrqInit,
};
use feroce_engine::memory::Access;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{
    AsyncEvent, Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Sge, Status,
};
use feroce_wire::{
    Bth, ExtHeaders, FlowHeader, FlowSpec, IpAddresses, MacAddr, Opcode, Operation, Packet,
    PathMtu, Pkey, Psn, Qpn, Reth, Sack, write_transport,
};

use crate::wire::Seen;
use crate::{MACS, Rig, drain, manual_config, new_rig};

/// First PSN of each end.
pub const FIRST_PSN: [u32; 2] = [100, 5000];

/// Default path MTU of a pair, in bytes.
pub const MTU: u32 = 256;

/// Configuration of a pair.
#[derive(Debug, Clone)]
pub struct PairSetup {
    /// Service of both QPs.
    pub service: Service,
    /// Connection options of each end.
    pub options: [ConnectOptions; 2],
    /// Configuration of both devices.
    pub config: DeviceConfig,
    /// Depth of each end's CQ.
    pub cq_depth: u32,
    /// Length of each end's buffer in bytes.
    pub buffer: usize,
    /// Attributes of a shared receive queue for end 1, if it uses one.
    pub srq: Option<SrqInit>,
}

impl Default for PairSetup {
    /// A local ACK timeout of 4.194304 ms (code 10) and an RNR NAK timer of 640 us (code 12).
    fn default() -> Self {
        let options = ConnectOptions {
            path_mtu: PathMtu::from_bytes(MTU),
            timeout: 10,
            ..ConnectOptions::default()
        };
        let (config, buffer) = (manual_config(1), 1 << 16);
        let service = Service::Rc;
        Self { service, options: [options; 2], config, cq_depth: 1024, buffer, srq: None }
    }
}

impl PairSetup {
    /// Returns the default with the options of both ends changed by `change`.
    pub fn with(change: impl Fn(&mut ConnectOptions)) -> Self {
        let mut setup = Self::default();
        setup.options.iter_mut().for_each(change);
        setup
    }
}

/// A connected pair of QPs. See the [module](self).
#[derive(Debug)]
pub struct Pair {
    /// Devices, wire, clock.
    pub rig: Rig,
    /// One protection domain per end.
    pub pds: [ProtectionDomain; 2],
    /// CQ of each end, for sends and receives.
    pub cqs: [CompletionQueue; 2],
    /// The QPs.
    pub qps: [QueuePair; 2],
    /// End 1's shared receive queue, if it has one.
    pub srq: Option<SharedReceiveQueue>,
    /// One buffer per end, with all access rights.
    pub buffers: [Buffer; 2],
    options: [ConnectOptions; 2],
}

impl Default for Pair {
    fn default() -> Self {
        Self::new(&PairSetup::default())
    }
}

impl Pair {
    /// Creates a connected pair; the wire is recorded.
    ///
    /// # Panics
    /// If the set-up is impossible.
    pub fn new(setup: &PairSetup) -> Self {
        let mut rig = new_rig(&setup.config, Duration::from_micros(1));
        rig.wire.set_record(true);
        let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
        let cqs = [0, 1].map(|end| rig.devices[end].create_cq(setup.cq_depth).expect("a CQ"));
        let buffers = [0, 1]
            .map(|end: usize| pds[end].alloc_buffer(setup.buffer, Access::ALL).expect("a buffer"));
        let srq = setup.srq.map(|init| pds[1].create_srq(&init).expect("an SRQ"));
        let init = |end: usize| QpInit {
            service: setup.service,
            max_send_wr: 512,
            max_recv_wr: 512,
            max_send_sge: 16,
            max_recv_sge: 2,
            srq: srq.as_ref().filter(|_| end == 1),
            ..QpInit::new(&cqs[end])
        };
        let qps = [0, 1].map(|end: usize| pds[end].create_qp(&init(end)).expect("a QP"));
        let mut pair = Self { rig, pds, cqs, qps, srq, buffers, options: setup.options };
        pair.connect();
        pair
    }

    /// Connects both QPs, which must be in RESET, with the PSNs of [`FIRST_PSN`].
    ///
    /// # Panics
    /// If a QP is not in RESET.
    pub fn connect(&mut self) {
        let psns = FIRST_PSN.map(Psn::new);
        let ends = [0, 1].map(|end: usize| {
            let index = self.options[end].sgid_index;
            self.qps[end].endpoint(psns[end], index).expect("a GID")
        });
        self.connect_ends(&ends);
    }

    /// Connects both QPs again, after a reset, as `ends` say.
    ///
    /// # Panics
    /// If `ends` are not the ends of the pair.
    pub fn connect_to(&mut self, ends: &[Endpoint; 2]) {
        for end in 0..2 {
            let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
            self.qps[end].modify(&reset).expect("every state may be reset");
        }
        self.connect_ends(ends);
    }

    fn connect_ends(&mut self, ends: &[Endpoint; 2]) {
        for end in 0..2 {
            let (psn, peer, options) = (ends[end].psn, &ends[1 - end], &self.options[end]);
            self.qps[end].connect(psn, peer, options).expect("in RESET");
        }
    }

    /// Posts a signaled request of `len` bytes from the start of end 0's buffer.
    ///
    /// # Panics
    /// If the work queue is full.
    pub fn post(&mut self, wr_id: u64, op: SendOp, len: u32) {
        self.post_flagged(wr_id, op, len, SendFlags::SIGNALED);
    }

    /// Like [`Pair::post`], with other flags.
    ///
    /// # Panics
    /// If the work queue is full.
    pub fn post_flagged(&mut self, wr_id: u64, op: SendOp, len: u32, flags: SendFlags) {
        let sges = [self.buffers[0].region().sge(0, len)];
        self.post_sges(wr_id, op, &sges, flags);
    }

    /// Like [`Pair::post_flagged`], with the scatter/gather entries `sges`.
    ///
    /// # Panics
    /// If the work queue is full.
    pub fn post_sges(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) {
        let request = SendRequest { wr_id, op, data: Data::Sges(sges), flags };
        self.qps[0].post_send(&request).expect("room in the send queue");
    }

    /// Posts a receive of `len` bytes at end 1, in the upper half of its buffer.
    ///
    /// # Panics
    /// If the work queue is full.
    pub fn post_recv(&mut self, wr_id: u64, len: u32) {
        let half = self.buffers[1].region().len() / 2;
        let sges = [self.buffers[1].region().sge(half, len)];
        let request = RecvRequest { wr_id, sges: &sges };
        match &self.srq {
            Some(srq) => srq.post_recv(&request).expect("room"),
            None => self.qps[1].post_recv(&request).expect("room"),
        }
    }

    /// Returns the address and key of `offset` in end 1's buffer.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        let region = self.buffers[1].region();
        RemoteAddr { addr: region.addr() + offset, rkey: region.rkey() }
    }

    /// Lets `micros` microseconds pass.
    pub fn run(&mut self, micros: u64) {
        self.rig.run_for(Duration::from_micros(micros));
    }

    /// Drops the first `times` frames from end `from` with the PSN `psn`. Replaces earlier calls.
    pub fn lose(&mut self, from: usize, psn: u32, times: u32) {
        self.lose_all(&[(from, psn, times)]);
    }

    /// Like [`Pair::lose`], for several PSNs.
    pub fn lose_all(&mut self, losses: &[(usize, u32, u32)]) {
        let mut losses = losses.to_vec();
        self.rig.wire.set_filter(Some(Box::new(move |from, _, bytes| {
            let psn = parse(bytes).bth.psn.value();
            let matching =
                |loss: &&mut (usize, u32, u32)| (loss.0, loss.1) == (from, psn) && loss.2 > 0;
            let lost = losses.iter_mut().find(matching);
            lost.map(|loss| loss.2 -= 1).is_some()
        })));
    }

    /// Sends a frame to end 1, as if from end 0.
    pub fn inject(&mut self, crafted: &Crafted<'_>) {
        let bytes = self.as_from(0, crafted).frame(self.qps[1].qpn());
        self.inject_bytes(&bytes);
    }

    /// Sends a frame to end 0, as if from end 1.
    pub fn inject_response(&mut self, crafted: &Crafted<'_>) {
        let bytes = self.as_from(1, crafted).frame_between(1, self.qps[0].qpn());
        self.rig.wire.inject(0, &bytes, self.rig.now);
    }

    /// The packet `crafted` with the UDP source port of end `from`, unless it has one.
    fn as_from<'a>(&self, from: usize, crafted: &Crafted<'a>) -> Crafted<'a> {
        let source_port = crafted.source_port.unwrap_or_else(|| self.source_port(from));
        Crafted { source_port: Some(source_port), ..crafted.clone() }
    }

    /// UDP source port of the packets of end `from`; 0 without a connection.
    pub fn source_port(&self, from: usize) -> u16 {
        self.qps[from].query().flow.map_or(0, |flow| flow.spec().udp_source_port)
    }

    /// Sends a READ of eight bytes of end 0's buffer, as if from end 1.
    pub fn inject_read_of_end_0(&mut self) {
        let region = self.buffers[0].region();
        let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
        let read = Crafted::new(Opcode::RC_READ_REQUEST, FIRST_PSN[1], &[]).reth(remote, 8);
        self.inject_response(&read);
    }

    /// Sends the frame `bytes` to end 1.
    pub fn inject_bytes(&mut self, bytes: &[u8]) {
        self.rig.wire.inject(1, bytes, self.rig.now);
    }

    /// Returns the frames sent since the last call, lost or not: time in us, direction, operation,
    /// PSN, flags, headers.
    pub fn trace(&mut self) -> Vec<String> {
        let base = self.buffers[1].region().addr();
        self.rig.wire.take_record().iter().map(|seen| line(seen, base)).collect()
    }

    /// Like [`Pair::trace`], without times.
    pub fn packets(&mut self) -> Vec<String> {
        let without_time = |line: String| line.split_once(' ').expect("a time").1.to_owned();
        self.trace().into_iter().map(without_time).collect()
    }

    /// Returns the frames sent since the last call as bytes.
    pub fn frames(&mut self) -> Vec<Seen> {
        self.rig.wire.take_record()
    }

    /// Returns the new completions of an end: `wr_id` and status.
    pub fn done(&self, end: usize) -> Vec<(u64, Status)> {
        drain(&self.cqs[end]).into_iter().map(|done| (done.wr_id, done.status)).collect()
    }

    /// Returns the new asynchronous events of an end.
    pub fn events(&self, end: usize) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.rig.devices[end].poll_event()).collect()
    }

    /// Returns the QP state of an end.
    pub fn state(&self, end: usize) -> QpState {
        self.qps[end].query().state.expect("a QP has a state")
    }

    /// Returns every counter of an end that is not zero, except those that count all packets.
    pub fn counters(&self, end: usize) -> Vec<(Counter, u64)> {
        let all =
            Counter::ALL.iter().map(|&counter| (counter, self.rig.devices[end].counter(counter)));
        all.filter(|&(counter, value)| value > 0 && !counts_all_packets(counter)).collect()
    }
}

fn counts_all_packets(counter: Counter) -> bool {
    matches!(
        counter,
        Counter::PortXmitData
            | Counter::PortXmitPackets
            | Counter::PortRcvData
            | Counter::PortRcvPackets
            | Counter::AcksSent
    )
}

fn parse(bytes: &[u8]) -> Packet<'_> {
    Packet::parse(bytes, &[]).expect("a frame of the engine")
}

/// Formats a frame as `12.5 > Write First 100 at 0 len 600`. Addresses are relative to `base`.
fn line(seen: &Seen, base: u64) -> String {
    let packet = parse(&seen.bytes);
    let direction = if seen.from == 0 { '>' } else { '<' };
    let name = packet.info.name.trim_start_matches("RC ").trim_start_matches("RDMA ");
    let nanos = seen.at.saturating_since(Instant::ZERO).as_nanos();
    let mut line = (nanos / 1000).to_string();
    if !nanos.is_multiple_of(1000) {
        let fraction = format!(".{:03}", nanos % 1000);
        line.push_str(fraction.trim_end_matches('0'));
    }
    let mut add = |text: std::fmt::Arguments<'_>| line.write_fmt(text).expect("a string");
    add(format_args!(" {direction} {name} {}", packet.bth.psn.value()));
    if packet.bth.ack_req {
        add(format_args!(" A"));
    }
    if packet.bth.solicited {
        add(format_args!(" S"));
    }
    if let Some(reth) = packet.ext.reth {
        add(format_args!(" at {} len {}", reth.va.wrapping_sub(base), reth.dma_len));
    }
    if let Some(aeth) = packet.ext.aeth {
        add(format_args!(" {} msn {}", aeth.syndrome, aeth.msn.value()));
    }
    if let Some(sack) =
        Sack::parse(packet.payload).filter(|_| packet.info.operation == Operation::Acknowledge)
    {
        let arrived = (1..=Sack::SPAN).filter(|&distance| sack.contains(distance));
        let arrived: Vec<u32> =
            arrived.map(|distance| packet.bth.psn.add(distance).value()).collect();
        add(format_args!(" sack {arrived:?}"));
    }
    line
}

/// A hand-made packet, by default as end 0 would send it.
#[derive(Debug, Clone)]
pub struct Crafted<'a> {
    /// Base transport header. `dest_qp` is filled in later, `pad` is not.
    pub bth: Bth,
    /// Extended headers.
    pub ext: ExtHeaders,
    /// Payload and pad.
    pub payload: &'a [u8],
    /// Address of end 0.
    pub source: Ipv4Addr,
    /// Destination QP other than the peer's.
    pub dest_qp: Option<Qpn>,
    /// UDP source port other than the default.
    pub source_port: Option<u16>,
    /// Ethernet source address other than that of the end.
    pub source_mac: Option<MacAddr>,
}

impl<'a> Crafted<'a> {
    /// Creates a packet with AckReq set and no headers other than the BTH.
    pub fn new(opcode: Opcode, psn: u32, payload: &'a [u8]) -> Self {
        let pad = u8::try_from(payload.len().wrapping_neg() % 4).expect("less than four");
        assert_eq!(pad, 0, "the pad is part of a crafted payload");
        let (pkey, psn) = (Pkey::DEFAULT, Psn::new(psn));
        let bth = Bth { opcode, ack_req: true, mig_req: true, pkey, psn, ..Bth::default() };
        let source = Ipv4Addr::new(10, 0, 0, 1);
        let (dest_qp, source_port, source_mac) = (None, None, None);
        let ext = ExtHeaders::default();
        Self { bth, ext, payload, source, dest_qp, source_port, source_mac }
    }

    /// Adds a RETH.
    #[must_use]
    pub fn reth(mut self, remote: RemoteAddr, dma_len: u32) -> Self {
        self.ext.reth = Some(Reth { va: remote.addr, rkey: remote.rkey, dma_len });
        self
    }

    /// Returns the complete frame from end 0 to end 1.
    pub fn frame(&self, dest_qp: Qpn) -> Vec<u8> {
        self.frame_between(0, dest_qp)
    }

    /// Returns the complete frame from end `from` to the other end.
    fn frame_between(&self, from: usize, dest_qp: Qpn) -> Vec<u8> {
        let (end_0, end_1) = (self.source, Ipv4Addr::new(10, 0, 0, 2));
        let (src, dst) = if from == 0 { (end_0, end_1) } else { (end_1, end_0) };
        let mut flow = FlowHeader::new(&FlowSpec::new(
            MACS[1 - from],
            self.source_mac.unwrap_or(MACS[from]),
            IpAddresses::V4 { src, dst },
        ));
        if let Some(port) = self.source_port {
            flow = flow.with_source_port(port);
        }
        let mut frame = vec![0; flow.len() + 64 + self.payload.len()];
        let bth = Bth { dest_qp: self.dest_qp.unwrap_or(dest_qp), ..self.bth };
        let at = flow.len() + write_transport(&mut frame[flow.len()..], &bth, &self.ext);
        frame[at..at + self.payload.len()].copy_from_slice(self.payload);
        let transport_len = at + self.payload.len() - flow.len();
        let len = flow.seal(&mut frame, transport_len, 1);
        frame.truncate(len);
        frame
    }
}
