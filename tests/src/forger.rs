//! A forger: sends packets in the name of a peer as fast as the machine allows. It has a raw socket
//! on the peer's side of a link of [`live`](crate::live), and sees none of the packets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use feroce_engine::cm::{CmConfig, DeviceKey, Endpoint, Parameters, Path, QpKind};
use feroce_engine::time::Instant;
use feroce_wire::cm::{CmMad, CmMessage, IpCmHeader, PortSpace};
use feroce_wire::{
    Aeth, Bth, CreditCode, Deth, ExtHeaders, FlowHeader, FlowSpec, IpAddresses, Key, MacAddr, Msn,
    NakCode, Opcode, PathMtu, Pkey, Psn, Qkey, Qpn, Reth, RnrTimer, Syndrome, write_transport,
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::live::Net;

/// Bytes of an Ethernet header, which the kernel writes.
const ETHERNET: usize = 14;

/// A thread that sends forged packets until it is dropped.
#[derive(Debug)]
pub struct Forger {
    is_stopped: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Forger {
    /// Sends the frames that `forge` writes, from end 1 of `net` to `target`. `forge` gets room for
    /// a frame and returns its length.
    ///
    /// # Panics
    /// If the system gives no raw socket.
    pub fn start(
        net: &Net,
        target: Ipv4Addr,
        mut forge: impl FnMut(&mut [u8]) -> usize + Send + 'static,
    ) -> Self {
        let raw = raw_socket(net);
        let (is_stopped, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, count) = (Arc::clone(&is_stopped), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let to = SockaddrIn::from(std::net::SocketAddrV4::new(target, 0));
            let mut frame = [0; 1024];
            while !stop.load(Ordering::Relaxed) {
                let len = forge(&mut frame);
                // A full queue drops packets, as a link does.
                let flags = MsgFlags::MSG_DONTWAIT;
                let result = sendto(raw.as_raw_fd(), &frame[ETHERNET..len], &to, flags);
                count.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
            }
        });
        Self { is_stopped, sent, thread: Some(thread) }
    }

    /// How many packets were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A raw IP socket in the namespace of end 1.
fn raw_socket(net: &Net) -> OwnedFd {
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            net.enter(1);
            let flags = SockFlag::SOCK_CLOEXEC;
            socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Raw)
        });
        opened.join().expect("no panic").expect("a raw socket, as root")
    })
}

/// What a forger knows of a connection beside the addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// Nothing.
    Addresses,
    /// The number of the QP that it sends to.
    QpNumber(Qpn),
}

/// A kind of forged packet.
#[derive(Debug, Clone, Copy)]
struct Kind {
    opcode: Opcode,
    syndrome: Option<Syndrome>,
    /// Bytes of payload.
    payload: usize,
}

const fn kind(opcode: Opcode, syndrome: Option<Syndrome>, payload: usize) -> Kind {
    Kind { opcode, syndrome, payload }
}

const ACK: Option<Syndrome> = Some(Syndrome::Ack(CreditCode::UNLIMITED));
const FATAL_NAK: Kind = kind(Opcode::RC_ACKNOWLEDGE, Some(Syndrome::Nak(NakCode::RemoteAccess)), 0);

/// The kinds in the order in which they are sent.
const KINDS: [Kind; 14] = [
    FATAL_NAK,
    kind(Opcode::RC_ACKNOWLEDGE, Some(Syndrome::Nak(NakCode::PsnSequence)), 0),
    FATAL_NAK,
    kind(Opcode::RC_ACKNOWLEDGE, Some(Syndrome::RnrNak(RNR_TIMER)), 0),
    FATAL_NAK,
    kind(Opcode::RC_ACKNOWLEDGE, ACK, 0),
    FATAL_NAK,
    kind(Opcode::RC_READ_RESPONSE_ONLY, ACK, 64),
    FATAL_NAK,
    kind(Opcode::CNP, None, 16),
    FATAL_NAK,
    kind(Opcode::RC_WRITE_ONLY, None, 64),
    FATAL_NAK,
    kind(Opcode::RC_SEND_ONLY, None, 64),
];
/// 655 ms.
const RNR_TIMER: RnrTimer = RnrTimer::new(0).expect("a code");

/// Returns a function for [`Forger::start`] that writes packets of all kinds, every second one a
/// fatal NAK. With the QP number known, PSNs are tried in steps of 64: less than a QP has
/// outstanding.
pub fn packets(
    (from, to): (Ipv4Addr, Ipv4Addr),
    knowledge: Knowledge,
    seed: u64,
) -> impl FnMut(&mut [u8]) -> usize + Send + 'static {
    let mut random = Xoshiro256StarStar::seed_from_u64(seed);
    let (mut n, mut psn) = (0usize, Psn::new(0));
    let flow = flow(from, to);
    move |frame| {
        n = n.wrapping_add(1);
        psn = Psn::new(psn.value().wrapping_add(64));
        let dest_qp = match knowledge {
            Knowledge::Addresses => Qpn::masked(random.next_u32()),
            Knowledge::QpNumber(qpn) => qpn,
        };
        let msn = Msn::new(random.next_u32());
        let Kind { opcode, syndrome, payload } = KINDS[n % KINDS.len()];
        let aeth = syndrome.map(|syndrome| Aeth { syndrome, msn });
        let mut ext = ExtHeaders { aeth, ..ExtHeaders::default() };
        if opcode == Opcode::RC_WRITE_ONLY {
            let (va, rkey) = (random.next_u64(), Key(random.next_u32()));
            ext.reth = Some(Reth { va, rkey, dma_len: 64 });
        }
        let becn = opcode == Opcode::CNP;
        let bth = Bth { opcode, becn, dest_qp, psn, pkey: Pkey::DEFAULT, ..Bth::default() };
        let port = u16::try_from(0xc000 | random.next_u32() & 0x3fff).expect("16 bits");
        write(&flow.with_source_port(port), frame, &bth, &ext, &[0x66; 64][..payload])
    }
}

/// Returns a function for [`Forger::start`] that writes requests for a connection like `pattern`,
/// each of another node, QP and ID.
///
/// # Panics
/// When it writes, if `pattern` is no REQ.
pub fn requests(
    (from, to): (Ipv4Addr, Ipv4Addr),
    pattern: CmMad,
) -> impl FnMut(&mut [u8]) -> usize + Send + 'static {
    let flow = flow(from, to).with_source_port(0xc066);
    let mut n = 0;
    move |frame| {
        n += 1;
        let mad = numbered(&pattern, from.into(), n).to_bytes();
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI, ..Deth::default() };
        let ext = ExtHeaders { deth: Some(deth), ..ExtHeaders::default() };
        let (opcode, dest_qp) = (Opcode::UD_SEND_ONLY, Qpn::GSI);
        let (pkey, psn) = (Pkey::DEFAULT, Psn::new(n));
        let bth = Bth { opcode, dest_qp, pkey, psn, ..Bth::default() };
        write(&flow, frame, &bth, &ext, &mad)
    }
}

/// A REQ of an RC connection from `from` to the service at `to`.
///
/// # Panics
/// If the addresses are of different families.
pub fn request_pattern(from: IpAddr, to: SocketAddr) -> CmMad {
    let (now, device) = (Instant::ZERO, DeviceKey(0));
    let mut endpoint = Endpoint::new(CmConfig::default(), || 1);
    endpoint.add_device(device, 1);
    let id = endpoint.create(PortSpace::Tcp, QpKind::Rc);
    endpoint.resolve_address(id, None, to).expect("unbound");
    let (local, remote, mtu) = (from, to.ip(), PathMtu::Mtu1024);
    let path = Path { device, local, remote, mtu, hop_limit: 64, traffic_class: 0 };
    endpoint.address_resolved(id, Ok(path)).expect("pending");
    endpoint.resolve_route(id).expect("resolved");
    endpoint.route_resolved(id, Ok(())).expect("pending");
    endpoint.connect(id, &Parameters::default(), b"", now).expect("a route");
    CmMad::parse(&endpoint.transmit().expect("a REQ").mad).expect("valid")
}

/// The REQ `pattern` as number `n` of many, from `source` and of another node, QP and ID.
///
/// # Panics
/// If `pattern` is no REQ.
pub fn numbered(pattern: &CmMad, source: IpAddr, n: u32) -> CmMad {
    let mut mad = *pattern;
    let CmMessage::Req(req) = &mut mad.message else { panic!("a REQ") };
    (req.local_comm_id, req.local_qpn) = (n, Qpn::masked(n));
    req.local_ca_guid = u64::from(n) << 20;
    let mut header = IpCmHeader::parse(&req.private_data).expect("of a REQ");
    header.source.set_ip(source);
    req.private_data[..IpCmHeader::LEN].copy_from_slice(&header.to_bytes());
    mad
}

fn flow(src: Ipv4Addr, dst: Ipv4Addr) -> FlowHeader {
    let mac = MacAddr::default(); // The kernel writes the Ethernet header.
    FlowHeader::new(&FlowSpec::new(mac, mac, IpAddresses::V4 { src, dst }))
}

fn write(
    flow: &FlowHeader,
    frame: &mut [u8],
    bth: &Bth,
    ext: &ExtHeaders,
    payload: &[u8],
) -> usize {
    let at = flow.len() + write_transport(&mut frame[flow.len()..], bth, ext);
    frame[at..at + payload.len()].copy_from_slice(payload);
    flow.seal(frame, at + payload.len() - flow.len(), 1)
}
