//! Reads captures in `tests/captures`, and runs a Feroce responder in the place of the captured
//! one.

use std::collections::BTreeMap;

use feroce_conform::party::Party;
use feroce_engine::device::{
    Addressing, Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Path as NetPath,
    ProtectionDomain, QpInit, QueuePair, StaticAddresses,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::port::{Port, Priority};
use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::RecvRequest;
use feroce_wire::{Key, Packet, PathMtu, Pkey, Psn, Qpn, RnrTimer};
use pcap_file::pcap::PcapReader;

use crate::capture_list::{captures, read_file};
use crate::manual_config;

/// A captured frame and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Time since the first frame.
    pub at: Duration,
    /// Bytes from the Ethernet header on.
    pub bytes: Vec<u8>,
}

impl CapturedFrame {
    /// Parses the frame.
    ///
    /// # Panics
    /// If it is not RoCEv2.
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes, &[]).expect("a RoCEv2 frame")
    }
}

/// Reads the frames of `tests/captures/<file>`.
///
/// # Panics
/// If the file does not exist, or is not a pcap compressed with zstd.
pub fn read(file: &str) -> Vec<CapturedFrame> {
    let plain = read_file(&captures().join(file));
    let mut reader = PcapReader::new(plain.as_slice()).expect("a capture");
    let mut frames = Vec::new();
    let mut start = None;
    while let Some(record) = reader.next_packet() {
        let record = record.expect("a whole record");
        let start = *start.get_or_insert(record.timestamp);
        let at = record.timestamp.saturating_sub(start);
        frames.push(CapturedFrame { at, bytes: record.data.into_owned() });
    }
    frames
}

/// A registered memory region of the responder.
#[derive(Debug, Clone, Copy)]
pub struct MemoryAt {
    /// Address that the requester uses.
    pub iova: u64,
    /// Length in bytes.
    pub len: usize,
    /// Key that the requester uses.
    pub rkey: u32,
    /// Access rights.
    pub access: Access,
    /// Initial contents.
    pub contents: Contents,
}

/// Initial contents of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Zeros: the contents do not appear in the capture, or the requester writes them first.
    Zeros,
    /// The data of the captured READ responses.
    OfReadResponses,
    /// The value in the first captured atomic response for each address.
    OfAtomicResponses,
}

/// State of the captured responder before the first request.
#[derive(Debug, Clone, Copy)]
pub struct ResponderSetup {
    /// The responder.
    pub local: Party,
    /// The requester.
    pub peer: Party,
    /// First expected PSN. The responder sends no requests, so it has no first PSN of its own.
    pub rq_psn: u32,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Maximum number of outstanding READs and atomics.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Registered memory.
    pub regions: &'static [MemoryAt],
    /// Time and length of each posted receive.
    pub receives: &'static [(Duration, u32)],
}

/// A Feroce device in the place of a captured responder: a QP in RTR on one end of an shm pair.
#[derive(Debug)]
pub struct Responder {
    device: Device,
    port: ShmPort,
    qp: QueuePair,
    setup: ResponderSetup,
    posted: usize,
    receive_into: Buffer,
    regions: Vec<Buffer>,
    _pd: ProtectionDomain,
    _cq: CompletionQueue,
}

/// Key of the region for receives. It does not appear in any capture.
const RECEIVE_KEY: u32 = 0xff_ff00;

impl Responder {
    /// Opens a device and moves a QP to RTR as described by `setup`.
    ///
    /// # Panics
    /// If the set-up is impossible.
    pub fn new(setup: &ResponderSetup) -> Self {
        let arena = Arena::new(16 << 20).expect("an arena");
        let shape = ShmConfig { name: "replay".to_owned(), ..ShmConfig::default() };
        let (near, port) = shm_pair(&arena, shape).expect("a pair of ports");
        let config = DeviceConfig {
            first_qpn: Some(setup.local.qpn),
            max_mr: 1 << 16,
            plain_keys: true,
            ..manual_config(1)
        };
        let device =
            Device::with_ports(vec![Box::new(near)], addresses(setup), config).expect("a device");
        let pd = device.alloc_pd();
        let cq = device.create_cq(1024).expect("a CQ");
        let init = QpInit { qpn: Qpn::new(setup.local.qpn), ..QpInit::new(&cq) };
        let mut qp = pd.create_qp(&init).expect("a QP");
        bring_to_rtr(&mut qp, setup);
        let region = |memory: &MemoryAt| {
            pd.alloc_buffer_as(memory.iova, memory.len, memory.access, Key(memory.rkey))
                .expect("a region")
        };
        let regions = setup.regions.iter().map(region).collect();
        let receive_into = pd
            .alloc_buffer_as(0, 1 << 16, Access::LOCAL_WRITE, Key(RECEIVE_KEY))
            .expect("a region");
        Self { device, port, qp, setup: *setup, posted: 0, receive_into, regions, _pd: pd, _cq: cq }
    }

    /// Fills each region with the contents that the capture shows.
    pub fn load(&self, capture: &[CapturedFrame]) {
        for (memory, buffer) in self.setup.regions.iter().zip(&self.regions) {
            let shown = match memory.contents {
                Contents::Zeros => continue,
                Contents::OfReadResponses => contents_from_reads(capture, &self.setup),
                Contents::OfAtomicResponses => contents_from_atomics(capture),
            };
            for (va, bytes) in shown {
                let offset = usize::try_from(va - memory.iova).expect("inside the region");
                buffer.write(offset, &bytes);
            }
        }
    }

    /// Delivers `frame` at the time `at`, after posting the receives that are due, and returns the
    /// responses.
    ///
    /// # Panics
    /// If the port takes no frame.
    pub fn respond(&mut self, frame: &[u8], at: Duration) -> Vec<Vec<u8>> {
        let now = Instant::ZERO + at;
        while let Some(&(when, len)) = self.setup.receives.get(self.posted)
            && when <= at
        {
            let sges = [self.receive_into.region().sge(0, len)];
            self.qp.post_recv(&RecvRequest { wr_id: 0, sges: &sges }).expect("room");
            self.posted += 1;
        }
        let slot = self.port.tx_slot().expect("room");
        slot[..frame.len()].copy_from_slice(frame);
        self.port.tx_commit(frame.len(), Priority::default());
        self.port.flush().expect("the device is open");
        let mut responses = Vec::new();
        while self.device.turn(now) > 0 {
            let count = self.port.rx_burst();
            responses.extend((0..count).map(|index| self.port.rx_frame(index).first.to_vec()));
        }
        responses
    }
}

fn addresses(setup: &ResponderSetup) -> Addressing {
    Addressing::Static(StaticAddresses {
        mac: setup.local.mac,
        gids: vec![(setup.local.gid(), None)],
        peers: BTreeMap::from([(setup.peer.gid(), setup.peer.mac)]),
        mtu: ShmConfig::default().mtu,
    })
}

fn bring_to_rtr(qp: &mut QueuePair, setup: &ResponderSetup) {
    let dest_qp = Qpn::masked(setup.peer.qpn);
    let flow = qp.resolve(&NetPath::new(setup.peer.gid(), 0), dest_qp).expect("a path");
    let init = QpAttributes {
        state: Some(QpState::Init),
        pkey: Some(Pkey::DEFAULT),
        port: Some(1),
        access: Some(ConnectOptions::default().access),
        ..QpAttributes::default()
    };
    let rtr = QpAttributes {
        state: Some(QpState::Rtr),
        flow: Some(flow),
        path_mtu: Some(setup.path_mtu),
        dest_qp: Some(dest_qp),
        rq_psn: Some(Psn::new(setup.rq_psn)),
        max_dest_rd_atomic: Some(setup.max_dest_rd_atomic),
        min_rnr_timer: RnrTimer::new(setup.min_rnr_timer),
        ..QpAttributes::default()
    };
    qp.modify(&init).expect("INIT");
    qp.modify(&rtr).expect("RTR");
}

/// Returns the addresses and data of the captured READ responses, matched with their requests.
fn contents_from_reads(capture: &[CapturedFrame], setup: &ResponderSetup) -> Vec<(u64, Vec<u8>)> {
    let mtu = setup.path_mtu.bytes();
    let mut requests = Vec::new();
    let mut shown = Vec::new();
    for packet in capture.iter().map(CapturedFrame::packet) {
        let psn = packet.bth.psn;
        if let (true, Some(reth)) = (packet.info.is_request(), packet.ext.reth) {
            requests.push((psn, reth.va, reth.dma_len));
        } else if packet.info.is_response() && !packet.payload.is_empty() {
            let matches = |&&(first, _, len): &&(Psn, u64, u32)| {
                first.distance_to(psn) < len.div_ceil(mtu).max(1)
            };
            let (first, va, _) = requests.iter().rev().find(matches).expect("its request");
            let va = va + u64::from(first.distance_to(psn) * mtu);
            shown.push((va, packet.payload.slices().concat()));
        }
    }
    shown
}

/// Returns the address and the value of the first captured atomic at each address.
fn contents_from_atomics(capture: &[CapturedFrame]) -> Vec<(u64, Vec<u8>)> {
    let mut addresses_by_psn = BTreeMap::new();
    let mut first = BTreeMap::new();
    for packet in capture.iter().map(CapturedFrame::packet) {
        if let Some(eth) = packet.ext.atomic_eth {
            addresses_by_psn.insert(packet.bth.psn.value(), eth.va);
        }
        if let Some(response) = packet.ext.atomic_ack {
            let va = addresses_by_psn[&packet.bth.psn.value()];
            first.entry(va).or_insert(response.original.to_ne_bytes().to_vec());
        }
    }
    first.into_iter().collect()
}
