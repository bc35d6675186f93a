//! The transmit side. Packets are written into slots as frames; the kernel gets what follows the
//! UDP header, and writes equal headers itself. A burst takes one system call per source port.
//!
//! The kernel writes IPv4 identification 0 for a packet, and 0, 1, 2 ... for the packets of a
//! super-frame. The core reads this number from the port before it computes the ICRC.

use std::io;
use std::mem::{size_of, zeroed};
use std::ptr;
use std::sync::Arc;

use feroce_wire::ROCE_PORT;

use super::socket::Source;
use crate::net;
use crate::port::af_xdp::interface::Interface;
use crate::port::headers::Headers;
use crate::port::pages::Pages;
use crate::port::socket::send;

/// Messages per system call.
const BATCH: usize = 64;
/// Bytes of the control messages of a packet: source address, traffic class, hop limit, length of
/// the segments.
const CONTROL: usize = 160;

/// One message for the kernel: a packet, or several as a super-frame.
#[derive(Debug, Clone, Copy)]
struct Message {
    /// First slot; the other slots follow it.
    slot: usize,
    slots: usize,
    headers: Headers,
    /// Index of the source port.
    source: usize,
    /// Bytes behind the headers, of all packets together.
    len: usize,
    /// Bytes behind the headers of the first packet.
    segment: usize,
    /// True if the last packet is shorter than the others, so that no packet can follow.
    closed: bool,
}

impl Message {
    /// Returns true if a further packet with `len` bytes behind its headers fits. The message has
    /// at most `most` packets.
    fn has_room_for(&self, len: usize, most: usize) -> bool {
        !self.closed
            && self.slots < most
            && (1..=self.segment).contains(&len)
            && self.len + len <= self.headers.segments_max()
    }

    fn is_super_frame(&self) -> bool {
        self.slots > 1
    }

    /// The source port, the family and the kind of the socket that sends the message.
    fn socket_kind(&self) -> (usize, bool, bool) {
        (self.source, self.headers.is_v6(), self.is_super_frame())
    }
}

/// Descriptors of messages for the kernel.
#[derive(Debug)]
struct Vectors {
    parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// Destinations and control messages, one each for a message.
    names: Vec<libc::sockaddr_in6>,
    controls: Vec<Controls>,
}

// SAFETY: the addresses are used only during a call, which writes all of them first.
unsafe impl Send for Vectors {}

/// The transmit side of one core.
#[derive(Debug)]
pub(super) struct Transmitter {
    sources: Arc<Vec<Source>>,
    interface: Interface,
    pages: Pages,
    frame_max: usize,
    stride: usize,
    slots: usize,
    /// Number of slots in use, counted from the first.
    used: usize,
    /// True if [`Transmitter::slot`] has returned the next slot and the slot is not committed yet.
    taken: bool,
    queued: Vec<Message>,
    /// Number of queued messages that were sent.
    sent: usize,
    /// Maximum number of packets in a super-frame; 1: no super-frames.
    segments_max: usize,
    /// True if the kernel had no room for the rest of the queued messages.
    backlog: bool,
    /// True if the kernel took messages since the last call of [`Transmitter::moved`].
    moved: bool,
    vectors: Vectors,
    /// Packets that the kernel refused.
    pub dropped: u64,
}

impl Transmitter {
    pub fn new(
        sources: Arc<Vec<Source>>,
        interface: Interface,
        slots: usize,
        frame_max: usize,
        segments_max: usize,
    ) -> io::Result<Self> {
        // An odd number of cache lines, so that slots do not all start in the same cache sets.
        let stride = (frame_max.div_ceil(64) | 1) * 64;
        // SAFETY: a socket address is plain data for which all zeros is a valid value.
        let name: libc::sockaddr_in6 = unsafe { zeroed() };
        Ok(Self {
            sources,
            interface,
            pages: Pages::map(slots * stride)?,
            frame_max,
            stride,
            slots,
            used: 0,
            taken: false,
            queued: Vec::with_capacity(slots),
            sent: 0,
            segments_max,
            backlog: false,
            moved: false,
            vectors: Vectors {
                parts: Vec::with_capacity(slots),
                messages: Vec::with_capacity(BATCH),
                names: vec![name; BATCH],
                controls: vec![Controls::NONE; BATCH],
            },
            dropped: 0,
        })
    }

    /// Number of slots that can be taken.
    pub fn room(&self) -> usize {
        self.slots - self.used
    }

    /// Returns true if the kernel took messages since the last call. Slots are free again only when
    /// the kernel has taken all messages.
    pub fn moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// The next slot to write.
    pub fn slot(&mut self) -> Option<&mut [u8]> {
        self.taken = self.used < self.slots;
        self.taken.then(|| self.pages.get_mut(self.used * self.stride, self.frame_max))
    }

    /// The IPv4 identification of the next packet. `joins`: it has `len` bytes behind its headers
    /// and may share a super-frame with the packet before it.
    pub fn identification(&self, len: usize, joins: bool) -> u16 {
        let joined = if joins { self.joined_by(len) } else { None };
        joined.map_or(0, |at| u16::try_from(self.queued[at].slots).expect("at most 64"))
    }

    /// Index of the message that the next packet joins: it holds the packet before, and has room
    /// for `len` bytes behind the headers.
    fn joined_by(&self, len: usize) -> Option<usize> {
        let last = self.queued[self.sent..].last()?;
        let holds_previous = last.slot + last.slots == self.used;
        let fits = holds_previous && last.has_room_for(len, self.segments_max);
        fits.then(|| self.queued.len() - 1)
    }

    /// Queues the slot taken last as a message of its own. Drops a frame that is not a RoCE packet
    /// from one of the source ports.
    pub fn commit(&mut self, len: usize) {
        let frame = self.take(len);
        let headers = Headers::find(frame);
        let Some(headers) = headers.filter(|found| found.udp_destination(frame) == ROCE_PORT)
        else {
            self.dropped += 1;
            return;
        };
        let port = u16::from_be_bytes([frame[headers.udp()], frame[headers.udp() + 1]]);
        let Some(source) = self.sources.iter().position(|source| source.port == port) else {
            self.dropped += 1;
            return;
        };
        let (slot, len) = (self.used - 1, len - headers.len());
        let message = Message { slot, slots: 1, headers, source, len, segment: len, closed: false };
        self.queued.push(message);
    }

    /// Queues the slot taken last, in the super-frame of the packet before it if that super-frame
    /// has room.
    pub fn join(&mut self, len: usize) {
        let Some(last) = self.queued[self.sent..].last() else { return self.commit(len) };
        let added = len - last.headers.len();
        let Some(at) = self.joined_by(added) else { return self.commit(len) };
        let last = &mut self.queued[at];
        last.slots += 1;
        last.len += added;
        last.closed = added < last.segment;
        self.take(len);
    }

    fn take(&mut self, len: usize) -> &[u8] {
        assert!(std::mem::take(&mut self.taken), "commit without a slot");
        assert!(len <= self.frame_max, "commit of {len} bytes in a slot of {}", self.frame_max);
        self.used += 1;
        self.pages.get((self.used - 1) * self.stride, len)
    }

    /// Sends the committed packets.
    ///
    /// # Errors
    /// The interface is down or gone, and the packets are lost.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut failed = Ok(());
        self.backlog = false;
        while self.sent < self.queued.len() {
            let error = match self.send_batch() {
                Ok(count) => {
                    self.sent += count;
                    self.moved = true;
                    continue;
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => {
                    self.backlog = true;
                    return failed;
                }
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.give_up();
                    failed = Err(error);
                }
                // There is no route: either the interface is down, or only this destination is
                // affected.
                Some(libc::ENETUNREACH) if failed.is_ok() && self.is_interface_down() => {
                    self.give_up();
                    failed = Err(error);
                }
                Some(libc::EIO | libc::EINVAL) if self.queued[self.sent].is_super_frame() => {
                    self.give_up();
                    self.stop_super_frames(&error);
                }
                // The error concerns only this destination: no room in the interface's queue, no
                // route, no response from the next hop, a firewall, or a removed source address.
                _ => self.give_up(),
            }
        }
        self.queued.clear();
        (self.sent, self.used, self.taken) = (0, 0, false);
        failed
    }

    fn is_interface_down(&self) -> bool {
        // By index: the interface may have another name now.
        net::Interface::by_index(self.interface.index).is_ok_and(|interface| !interface.up)
    }

    /// From now on every packet is sent alone. The packets of the refused super-frame are lost:
    /// their ICRCs cover IPv4 identifications that the kernel writes only in super-frames. The
    /// kernel refuses super-frames where it cannot compute checksums (before Linux 6.11: no
    /// transmit checksum offload; IPsec).
    fn stop_super_frames(&mut self, error: &io::Error) {
        if self.segments_max > 1 {
            tracing::warn!(%error, "the kernel takes no super-frames: every packet is sent alone");
            self.segments_max = 1;
        }
    }

    /// Counts the next message as lost.
    fn give_up(&mut self) {
        self.dropped += self.queued[self.sent].slots as u64;
        self.sent += 1;
    }

    /// Retries the packets that the kernel did not accept at the last flush.
    pub fn resume(&mut self) {
        if self.has_backlog() {
            // A lasting error is reported by the next flush.
            let _reported_later = self.flush();
        }
    }

    /// Returns true if messages wait for room in the kernel.
    pub fn has_backlog(&self) -> bool {
        self.backlog
    }

    /// Sends the next messages that go through the same socket. Returns their number.
    fn send_batch(&mut self) -> io::Result<usize> {
        let Self { sources, pages, stride, queued, vectors, interface, .. } = self;
        let waiting = &queued[self.sent..];
        let socket = waiting[0].socket_kind();
        let batch = waiting.iter().take(BATCH);
        vectors.parts.clear();
        vectors.messages.clear();
        for message in batch.take_while(|message| message.socket_kind() == socket) {
            vectors.push(pages, *stride, message, interface.index);
        }
        let (source, is_v6, is_super_frame) = socket;
        let socket = sources[source].socket(is_v6, is_super_frame);
        let socket = socket.ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
        // SAFETY: each message points to parts, a name and control messages in `vectors`, and the
        // parts to bytes of `pages`.
        unsafe { send(socket, &mut vectors.messages) }
    }
}

impl Vectors {
    /// Appends the descriptor of `message`, whose slots are every `stride` bytes in `pages`.
    fn push(&mut self, pages: &Pages, stride: usize, message: &Message, interface: u32) {
        let (index, first) = (self.messages.len(), self.parts.len());
        let mut left = message.len;
        for slot in message.slot..message.slot + message.slots {
            let len = left.min(message.segment);
            let bytes = pages.get(slot * stride + message.headers.len(), len);
            let base = bytes.as_ptr().cast_mut().cast();
            self.parts.push(libc::iovec { iov_base: base, iov_len: len });
            left -= len;
        }
        debug_assert_eq!(left, 0, "every byte is in a slot");
        let ip = &pages.get(message.slot * stride, message.headers.len())[message.headers.ip()..];
        let (name, controls) = (&mut self.names[index], &mut self.controls[index]);
        controls.len = 0;
        let name_len = match message.headers.is_v6() {
            true => address_v6(ip, interface, name, controls),
            false => address_v4(ip, interface, name, controls),
        };
        if message.is_super_frame() {
            let segment = u16::try_from(message.segment).expect("a packet").to_ne_bytes();
            controls.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment);
        }
        // SAFETY: `mmsghdr` is plain data for which all zeros is a valid value.
        let mut entry: libc::mmsghdr = unsafe { zeroed() };
        // No vector grows beyond its initial capacity, so their entries do not move.
        entry.msg_hdr.msg_iov = self.parts[first..].as_mut_ptr();
        entry.msg_hdr.msg_iovlen = message.slots as _;
        entry.msg_hdr.msg_name = ptr::from_mut(name).cast();
        entry.msg_hdr.msg_namelen = libc::socklen_t::try_from(name_len).expect("a few bytes");
        entry.msg_hdr.msg_control = controls.bytes.as_mut_ptr().cast();
        entry.msg_hdr.msg_controllen = controls.len as _;
        self.messages.push(entry);
    }
}

/// The control messages of one message.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
struct Controls {
    bytes: [u8; CONTROL],
    len: usize,
}

impl Controls {
    const NONE: Self = Self { bytes: [0; CONTROL], len: 0 };

    /// Appends a control message (`struct cmsghdr`: length, level and type, then the data).
    fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let head = size_of::<libc::cmsghdr>();
        let len = head + data.len();
        let out = &mut self.bytes[self.len..];
        out[..8].copy_from_slice(&len.to_ne_bytes());
        out[8..12].copy_from_slice(&level.to_ne_bytes());
        out[12..head].copy_from_slice(&kind.to_ne_bytes());
        out[head..len].copy_from_slice(data);
        self.len += len.next_multiple_of(size_of::<usize>());
    }

    /// Appends a value of type `int`.
    fn push_int(&mut self, level: libc::c_int, kind: libc::c_int, value: u8) {
        self.push(level, kind, &libc::c_int::from(value).to_ne_bytes());
    }
}

const _: () = assert!(size_of::<libc::cmsghdr>() == 16 && size_of::<usize>() == 8);

/// Writes the destination of an IPv4 packet with the header `ip`, and control messages with its
/// other fields. Returns the length of the destination.
fn address_v4(
    ip: &[u8],
    interface: u32,
    name: &mut libc::sockaddr_in6,
    controls: &mut Controls,
) -> usize {
    let [src, dst] = [12, 16].map(|at| [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    let destination = libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).expect("a small number"),
        sin_port: ROCE_PORT.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(dst) },
        sin_zero: [0; 8],
    };
    // SAFETY: an IPv6 socket address has room for one of IPv4, which needs less alignment.
    unsafe { ptr::from_mut(name).cast::<libc::sockaddr_in>().write(destination) };
    // `struct in_pktinfo`: interface, source address, and a field of received packets.
    let mut info = [0; 12];
    info[..4].copy_from_slice(&interface.to_ne_bytes());
    info[4..8].copy_from_slice(&src);
    controls.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
    controls.push_int(libc::IPPROTO_IP, libc::IP_TOS, ip[1]);
    controls.push_int(libc::IPPROTO_IP, libc::IP_TTL, ip[8]);
    size_of::<libc::sockaddr_in>()
}

/// As [`address_v4`], for IPv6. The kernel chooses the flow label, which the ICRC does not cover.
fn address_v6(
    ip: &[u8],
    interface: u32,
    name: &mut libc::sockaddr_in6,
    controls: &mut Controls,
) -> usize {
    name.sin6_family = libc::sa_family_t::try_from(libc::AF_INET6).expect("a small number");
    name.sin6_port = ROCE_PORT.to_be();
    name.sin6_flowinfo = 0;
    name.sin6_addr.s6_addr.copy_from_slice(&ip[24..40]);
    name.sin6_scope_id = interface;
    // `struct in6_pktinfo`: source address, interface.
    let mut info = [0; 20];
    info[..16].copy_from_slice(&ip[8..24]);
    info[16..].copy_from_slice(&interface.to_ne_bytes());
    controls.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
    controls.push_int(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ip[0] << 4 | ip[1] >> 4);
    controls.push_int(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, ip[7]);
    size_of::<libc::sockaddr_in6>()
}
