//! The receive side. A socket shows the payload of packets, and some header fields in control
//! messages; this module writes the frame around the payload.
//!
//! ```text
//!  buffer    control messages | source address | spare | headers | payload ...
//!  packet of a merged message    first: its headers and the start of its segment, in a scratch
//!                                       buffer
//!                                second: the rest of the segment, where the kernel wrote it
//! ```
//!
//! The Ethernet addresses are not those of the link: the destination is the interface, the source
//! [`PEER`]. The IPv4 identification and DF are recovered from the ICRC ([`Recovery`]); if they
//! cannot be, the ICRC stays wrong and the core drops the packet. The UDP checksum is 0.

use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use feroce_wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use feroce_wire::{
    Bth, EthernetHeader, Ipv4Header, Ipv6Header, MacAddr, Payload, ROCE_PORT, Recovery, UdpHeader,
    icrc,
};

use super::PEER;
use super::socket::RxSocket;
use crate::port::contract::{RX_BURST, RxFrame};
use crate::port::headers::{Headers, IP_MAX, PROTOCOL_UDP};
use crate::port::pages::Pages;
use crate::port::socket::{control_message, receive};

/// Bytes of a segment that are shown with its headers. More than all transport headers together,
/// and a multiple of four, so that most payload is split between words.
const SEGMENT_START: usize = 60;
/// Bytes of a scratch buffer.
const SCRATCH: usize = 128;
/// Bytes for the control messages of a packet.
const CONTROL: usize = 192;
/// Offset of the source address in a buffer.
const NAME: usize = CONTROL;
/// Offset of the payload in a buffer. The headers end there.
const PAYLOAD: usize = 320;
const _: () = assert!(NAME + size_of::<libc::sockaddr_in6>() + 14 + 40 + 8 <= PAYLOAD);

/// Messages that one system call receives: many, or, after long messages, only a few that fit the
/// cache.
const SHORT_MESSAGES: usize = RX_BURST;
const LONG_MESSAGES: usize = 4;
const LONG: usize = 16 << 10;

/// Reads without a message after which a socket is read less often, and how often then. A system
/// call for each socket in each burst would delay those that have messages.
const QUIET_AFTER: u32 = 256;
const QUIET_INTERVAL: u32 = 16;

/// The order in which sockets are read: round-robin.
#[derive(Debug)]
struct ReadOrder {
    /// For each socket: consecutive reads without a message. Skipped reads count, too.
    quiet: Vec<u32>,
    /// Index of the socket to read next.
    next: usize,
}

impl ReadOrder {
    fn new(sockets: usize) -> Self {
        Self { quiet: vec![0; sockets], next: 0 }
    }

    /// Reads one socket after the other, each at most once, until one has messages. `read` receives
    /// the messages of a socket and returns their number. Returns the index of the socket and that
    /// number.
    fn read_next(&mut self, mut read: impl FnMut(usize) -> usize) -> Option<(usize, usize)> {
        for _ in 0..self.quiet.len() {
            let index = self.next;
            self.next = if index + 1 < self.quiet.len() { index + 1 } else { 0 };
            let quiet = &mut self.quiet[index];
            *quiet += 1;
            if (QUIET_AFTER + 1..QUIET_AFTER + QUIET_INTERVAL).contains(quiet) {
                continue;
            }
            let received = read(index);
            if received > 0 {
                self.quiet[index] = 0;
                return Some((index, received));
            }
            self.quiet[index] = self.quiet[index].min(QUIET_AFTER);
        }
        None
    }

    /// No socket is skipped next.
    fn reset(&mut self) {
        self.quiet.fill(0);
    }
}

/// Fields of a received message that its control messages state.
#[derive(Debug, Clone, Copy)]
struct Info {
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    /// Length of the merged packets; `None` for a single packet.
    segment: Option<usize>,
}

impl Info {
    /// Maximum payload of an IP packet of 65535 bytes. A longer IPv6 datagram, reassembled from
    /// fragments, is not a RoCE packet.
    fn longest(&self) -> usize {
        let ip = if self.dst.is_ipv6() { Ipv6Header::LEN } else { Ipv4Header::LEN };
        IP_MAX - ip - UdpHeader::LEN
    }
}

/// A range of bytes in the pages.
#[derive(Debug, Clone, Copy)]
struct Part {
    at: usize,
    len: usize,
}

/// A frame of the present burst.
#[derive(Debug, Clone, Copy)]
struct Shown {
    first: Part,
    second: Part,
}

/// A message of merged packets that were not all shown yet.
#[derive(Debug, Clone, Copy)]
struct Rest {
    headers: Headers,
    /// The headers, as those of a packet of `segment` bytes.
    head: usize,
    /// The bytes that were not shown.
    left: Part,
    segment: usize,
}

/// Descriptors of the buffers into which the kernel writes messages.
#[derive(Debug)]
struct Vectors {
    /// The buffers; the messages point to these entries.
    _parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the addresses point to memory that belongs to the same receiver and does not move.
unsafe impl Send for Vectors {}

/// The receive side of one core.
#[derive(Debug)]
pub(super) struct Receiver {
    sockets: Vec<RxSocket>,
    order: ReadOrder,
    /// One scratch buffer for each frame of a burst, then the receive buffers.
    pages: Pages,
    stride: usize,
    vectors: Vectors,
    /// Messages to receive at a time.
    batch: usize,
    /// Messages received, how many of them were processed, and their address family.
    received: usize,
    processed: usize,
    is_v6: bool,
    rest: Option<Rest>,
    recovery: Recovery,
    own: MacAddr,
    shown: Vec<Shown>,
    /// Bytes of the present burst.
    bytes: u64,
    /// Messages that arrived in a form that this port cannot take.
    pub refused: u64,
}

impl Receiver {
    /// Creates a receiver for the messages of `sockets`, to the interface with the address `own`.
    pub fn new(sockets: Vec<RxSocket>, own: MacAddr) -> std::io::Result<Self> {
        // An odd number of cache lines, so that buffers do not all start in the same cache sets.
        let stride = ((PAYLOAD + IP_MAX).div_ceil(64) | 1) * 64;
        let pages = Pages::map(RX_BURST * SCRATCH + SHORT_MESSAGES * stride)?;
        let buffer = |index: usize| RX_BURST * SCRATCH + index * stride;
        let part = |index: usize| libc::iovec {
            iov_base: pages.address(buffer(index) + PAYLOAD).cast(),
            iov_len: IP_MAX,
        };
        let mut parts: Vec<_> = (0..SHORT_MESSAGES).map(part).collect();
        let message = |(index, part): (usize, &mut libc::iovec)| {
            // SAFETY: `mmsghdr` is plain data for which all zeros is a value.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = pages.address(buffer(index)).cast();
            message.msg_hdr.msg_name = pages.address(buffer(index) + NAME).cast();
            message
        };
        let messages = parts.iter_mut().enumerate().map(message).collect();
        Ok(Self {
            order: ReadOrder::new(sockets.len()),
            sockets,
            pages,
            stride,
            vectors: Vectors { _parts: parts, messages },
            batch: SHORT_MESSAGES,
            received: 0,
            processed: 0,
            is_v6: false,
            rest: None,
            recovery: Recovery::new(),
            own,
            shown: Vec::with_capacity(RX_BURST),
            bytes: 0,
            refused: 0,
        })
    }

    /// Takes the next burst. Returns the number of its frames and of their bytes.
    pub fn burst(&mut self) -> (usize, u64) {
        self.shown.clear();
        self.bytes = 0;
        // The buffers may be overwritten only before the first frame of a burst is shown.
        if !self.has_frames() {
            self.receive();
        }
        while self.shown.len() < RX_BURST && self.has_frames() {
            match self.rest {
                Some(rest) => self.show_rest(rest),
                None => self.process_message(),
            }
        }
        (self.shown.len(), self.bytes)
    }

    /// Returns true if received packets were not shown yet.
    pub fn has_frames(&self) -> bool {
        self.rest.is_some() || self.processed < self.received
    }

    /// Frame `index` of the burst.
    pub fn frame(&self, index: usize) -> RxFrame<'_> {
        let Shown { first, second } = self.shown[index];
        RxFrame { first: self.get(first), second: self.get(second) }
    }

    /// Makes the next bursts read every socket, since any of them may end the sleep of the core.
    pub fn prepare_to_sleep(&mut self) {
        self.order.reset();
    }

    /// The sockets, for `poll` and for their figures.
    pub fn sockets(&self) -> &[RxSocket] {
        &self.sockets
    }

    fn get(&self, Part { at, len }: Part) -> &[u8] {
        self.pages.get(at, len)
    }

    /// Receives messages of the next socket that has some.
    fn receive(&mut self) {
        let Self { order, sockets, vectors, batch, .. } = self;
        let messages = &mut vectors.messages[..*batch];
        let found = order.read_next(|index| read(&sockets[index], messages));
        (self.received, self.processed) = (0, 0);
        let Some((index, received)) = found else { return };
        (self.received, self.is_v6) = (received, self.sockets[index].is_v6);
        let longest = self.vectors.messages[..received].iter().map(|message| message.msg_len).max();
        let is_long = longest.is_some_and(|len| len as usize >= LONG);
        self.batch = if is_long { LONG_MESSAGES } else { SHORT_MESSAGES };
    }

    fn buffer(&self, index: usize) -> usize {
        RX_BURST * SCRATCH + index * self.stride
    }

    /// Shows the next message, or starts to show its packets if several were merged.
    fn process_message(&mut self) {
        let index = self.processed;
        self.processed += 1;
        let payload = Part {
            at: self.buffer(index) + PAYLOAD,
            len: self.vectors.messages[index].msg_len as usize,
        };
        let info = self.info(index).filter(|info| (1..=info.longest()).contains(&payload.len));
        let Some(info) = info else {
            self.refused += 1;
            return;
        };
        let segment = info.segment.unwrap_or(payload.len).min(payload.len);
        let (head, headers) = self.write_headers(payload.at, &info, segment);
        match segment == payload.len {
            true => {
                let len = payload.at - head + payload.len;
                let whole = Part { at: head, len };
                self.finish(headers, whole, Part { at: head, len: 0 });
            }
            false => self.rest = Some(Rest { headers, head, left: payload, segment }),
        }
    }

    /// What the kernel states about message `index`; `None` if it was cut off or states too little.
    fn info(&self, index: usize) -> Option<Info> {
        let header = &self.vectors.messages[index].msg_hdr;
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        let name = self.buffer(index) + NAME;
        // SAFETY: the kernel filled this message, whose control messages are in the pages, and
        // wrote a source address of the socket's family. Messages of each type hold this type.
        unsafe {
            let segment = control_message::<libc::c_int>(header, (libc::SOL_UDP, libc::UDP_GRO));
            let segment = segment.and_then(|len| usize::try_from(len).ok()).filter(|len| *len > 0);
            let name = self.pages.address(name);
            if self.is_v6 {
                let v6 = libc::IPPROTO_IPV6;
                let from: libc::sockaddr_in6 = name.cast::<libc::sockaddr_in6>().read_unaligned();
                let to: libc::in6_pktinfo = control_message(header, (v6, libc::IPV6_PKTINFO))?;
                let tos: libc::c_int = control_message(header, (v6, libc::IPV6_TCLASS))?;
                let ttl: libc::c_int = control_message(header, (v6, libc::IPV6_HOPLIMIT))?;
                return Some(Info {
                    src: Ipv6Addr::from(from.sin6_addr.s6_addr).into(),
                    dst: Ipv6Addr::from(to.ipi6_addr.s6_addr).into(),
                    src_port: u16::from_be(from.sin6_port),
                    traffic_class: low_byte(tos),
                    hop_limit: low_byte(ttl),
                    segment,
                });
            }
            let v4 = libc::IPPROTO_IP;
            let from: libc::sockaddr_in = name.cast::<libc::sockaddr_in>().read_unaligned();
            let to: libc::in_pktinfo = control_message(header, (v4, libc::IP_PKTINFO))?;
            let traffic_class: u8 = control_message(header, (v4, libc::IP_TOS))?;
            let ttl: libc::c_int = control_message(header, (v4, libc::IP_TTL))?;
            Some(Info {
                src: Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes()).into(),
                dst: Ipv4Addr::from(to.ipi_addr.s_addr.to_ne_bytes()).into(),
                src_port: u16::from_be(from.sin_port),
                traffic_class,
                hop_limit: low_byte(ttl),
                segment,
            })
        }
    }

    /// Writes the headers of a packet with `len` bytes of UDP payload in front of offset `payload`.
    /// Returns where they begin, and their offsets.
    fn write_headers(&mut self, payload: usize, info: &Info, len: usize) -> (usize, Headers) {
        let Info { src_port, traffic_class, hop_limit, .. } = *info;
        let (ip_len, ethertype) = match info.dst {
            IpAddr::V4(_) => (Ipv4Header::LEN, ETHERTYPE_IPV4),
            IpAddr::V6(_) => (Ipv6Header::LEN, ETHERTYPE_IPV6),
        };
        let udp_at = EthernetHeader::LEN + ip_len;
        let head = payload - udp_at - UdpHeader::LEN;
        let out = self.pages.get_mut(head, payload - head);
        EthernetHeader { dst: self.own, src: PEER, ethertype }.write(out);
        let ip = &mut out[EthernetHeader::LEN..];
        match (info.src, info.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ipv4Header {
                tos: traffic_class,
                total_length: 0,
                identification: 0,
                reserved_flag: false,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: hop_limit,
                protocol: PROTOCOL_UDP,
                checksum: 0,
                src,
                dst,
            }
            .write(ip),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ipv6Header {
                traffic_class,
                flow_label: 0,
                payload_length: 0,
                next_header: PROTOCOL_UDP,
                hop_limit,
                src,
                dst,
            }
            .write(ip),
            _ => unreachable!("a message has addresses of one family"),
        }
        let udp = UdpHeader { src_port, dst_port: ROCE_PORT, length: 0, checksum: 0 };
        udp.write(&mut out[udp_at..]);
        let headers = Headers::find(out).expect("the headers were just written");
        headers.set(out, len, 0);
        (head, headers)
    }

    /// Shows the next packet of merged packets.
    fn show_rest(&mut self, Rest { headers, head, left, segment }: Rest) {
        let bytes = segment.min(left.len);
        let start = bytes.min(SEGMENT_START);
        let scratch = self.shown.len() * SCRATCH;
        self.pages.copy(head, scratch, headers.len());
        self.pages.copy(left.at, scratch + headers.len(), start);
        headers.set(self.pages.get_mut(scratch, headers.len()), bytes, 0);
        let first = Part { at: scratch, len: headers.len() + start };
        let left = Part { at: left.at + bytes, len: left.len - bytes };
        self.rest = (left.len > 0).then_some(Rest { headers, head, left, segment });
        self.finish(headers, first, Part { at: left.at - (bytes - start), len: bytes - start });
    }

    /// Recovers the fields of the packet in `first` and `second` that the kernel did not state, and
    /// shows it.
    fn finish(&mut self, headers: Headers, first: Part, second: Part) {
        if !headers.is_v6() {
            self.recover(headers, first, second);
        }
        self.shown.push(Shown { first, second });
        self.bytes += (first.len + second.len) as u64;
    }

    fn recover(&mut self, headers: Headers, first: Part, second: Part) {
        let len = first.len + second.len;
        if len < headers.len() + Bth::LEN + icrc::LEN {
            return;
        }
        let ip = headers.ip();
        let packet = Payload { first: &self.get(first)[ip..], second: self.get(second) };
        let (covered, found) = split_icrc(packet);
        let computed = icrc::icrc(covered);
        if computed == found {
            return;
        }
        let Some(fields) = self.recovery.recover(computed, found, covered.len()) else { return };
        let payload = len - headers.len();
        let frame = self.pages.get_mut(first.at, headers.len());
        if !fields.dont_fragment {
            frame[ip + 6] = 0;
        }
        headers.set(frame, payload, fields.identification);
    }
}

/// Receives messages into their buffers. Returns their number.
fn read(from: &RxSocket, messages: &mut [libc::mmsghdr]) -> usize {
    for message in messages.iter_mut() {
        message.msg_hdr.msg_controllen = CONTROL as _;
        message.msg_hdr.msg_namelen =
            libc::socklen_t::try_from(size_of::<libc::sockaddr_in6>()).expect("a few bytes");
    }
    // SAFETY: the messages point to the buffers of the receiver, which shows no frame in a buffer
    // when it receives. The error is an empty socket, or that of an interface that is down, which
    // the next send reports.
    unsafe { receive(&from.socket, messages) }.unwrap_or(0)
}

fn low_byte(value: libc::c_int) -> u8 {
    value.to_le_bytes()[0]
}

/// The bytes of a packet that the ICRC covers, and the ICRC.
fn split_icrc(packet: Payload<'_>) -> (Payload<'_>, u32) {
    let Payload { first, second } = packet;
    let mut found = [0; icrc::LEN];
    let behind = icrc::LEN.min(second.len());
    let (first, front) = first.split_at(first.len() - (icrc::LEN - behind));
    let (second, back) = second.split_at(second.len() - behind);
    found[..front.len()].copy_from_slice(front);
    found[front.len()..].copy_from_slice(back);
    (Payload { first, second }, u32::from_le_bytes(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sockets that always have messages do not keep others from being read.
    #[test]
    fn a_quiet_socket_is_read_beside_busy_ones() {
        for busy in [&[0_usize, 2][..], &[0], &[1, 2, 3], &[0, 1, 2, 3, 4, 5, 6]] {
            let mut order = ReadOrder::new(8);
            let is_busy = |index: usize| busy.contains(&index);
            for _ in 0..10_000 {
                order.read_next(|index| usize::from(is_busy(index)));
            }
            let mut reads = [0; 8];
            for _ in 0..1000 {
                order.read_next(|index| {
                    reads[index] += 1;
                    usize::from(is_busy(index))
                });
            }
            let least = 1000 / (busy.len() * QUIET_INTERVAL as usize) - 1;
            assert!(reads.iter().all(|&count| count >= least), "{busy:?} busy: {reads:?}");
            order.reset();
            let found = order.read_next(|index| usize::from(index == 7));
            assert_eq!(found, Some((7, 1)));
        }
    }

    #[test]
    fn the_icrc_is_found_across_two_slices() {
        let bytes: Vec<u8> = (0..20).collect();
        for at in 10..=20 {
            let (first, second) = bytes.split_at(at);
            let (covered, found) = split_icrc(Payload { first, second });
            assert_eq!(found, u32::from_le_bytes([16, 17, 18, 19]), "split at {at}");
            assert_eq!([covered.first, covered.second].concat(), &bytes[..16]);
        }
    }
}
