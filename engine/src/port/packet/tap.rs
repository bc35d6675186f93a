//! A tap: all frames of an interface, in both directions, as a switch in user space needs them. It
//! has no addresses and no RoCE filter.
//!
//! The tap undoes or reports the changes that the kernel made to a frame. It puts a stripped VLAN
//! tag back and cuts super-frames of RoCE. A checksum that the sender left to its device is still
//! missing when the frame is forwarded ([`Offload`]).

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use feroce_wire::ROCE_PORT;

use super::error::PacketError;
use super::filter::flow_control;
use super::receive::{TAG, insert_tag, tag};
use super::socket::Socket;
use super::vnet::{FRAME_MAX, Kind, NEEDS_CHECKSUM, VNET_LEN, kind};
use crate::port::af_xdp::interface::Interface;
use crate::port::classic_bpf::{EVERYTHING, Instruction};
use crate::port::headers::{Headers, fold, sum_words};
use crate::port::pages::Pages;
use crate::port::socket::control_message;

/// Maximum number of frames of one burst.
const BURST: usize = 32;
/// Bytes for the control messages of a frame, which hold a `struct tpacket_auxdata` and a
/// `struct timespec`.
const CONTROL: usize = 128;

/// Work that a sender left to its device: a checksum to compute, or a TCP frame to segment. It must
/// be forwarded together with the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload([u8; VNET_LEN]);

impl Offload {
    /// Returns true if the frame must be cut into several.
    pub const fn is_super_frame(self) -> bool {
        self.0[1] != 0
    }

    /// Computes the missing checksum of `frame`, if any. Returns the work that is then left.
    pub fn complete(self, frame: &mut [u8]) -> Self {
        let mut header = self.0;
        if header[0] & NEEDS_CHECKSUM == 0 {
            return self;
        }
        header[0] &= !NEEDS_CHECKSUM;
        let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let (start, place) = (word(6), word(6) + word(8));
        // The sender may have written any offset.
        if let Some(covered) = frame.get(start..)
            && place + 2 <= frame.len()
        {
            let sum = match !fold(sum_words(covered)) {
                0 => 0xffff, // For UDP, 0 means no checksum; for TCP, both values are equal.
                sum => sum,
            };
            frame[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        }
        Self(header)
    }

    /// The work for the same frame after a tag of `bytes` bytes was inserted.
    fn behind_tag(self, bytes: u16) -> Self {
        let mut header = self.0;
        if header[0] & NEEDS_CHECKSUM != 0 {
            let start = u16::from_ne_bytes([header[6], header[7]]).saturating_add(bytes);
            header[6..8].copy_from_slice(&start.to_ne_bytes());
        }
        Self(header)
    }
}

/// A received frame.
#[derive(Debug, Clone, Copy)]
pub struct TapFrame<'a> {
    /// The frame from the destination address on, without FCS.
    pub bytes: &'a [u8],
    /// Work that the sender left to its device.
    pub offload: Offload,
    /// Arrival time by [`wall_clock`](crate::time::wall_clock); `None` without timestamps.
    pub arrived: Option<Duration>,
}

/// Position of a received frame.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    /// True if the frame is in `cut`, false if it is in `pages`.
    is_cut: bool,
    at: usize,
    len: usize,
    offload: Offload,
    arrived: Option<Duration>,
}

/// All frames of one interface.
#[derive(Debug)]
pub struct Tap {
    socket: Socket,
    name: String,
    mtu: u32,
    /// Buffers, each: control message, room for a tag, frame.
    pages: Pages,
    stride: usize,
    received: Vec<Received>,
    /// The packets of this burst's super-frames.
    cut: Vec<u8>,
    truncated: u64,
    drops: u64,
}

impl Tap {
    /// Opens a tap on an interface that is up. The kernel buffers at most `rx_bytes` bytes of
    /// frames.
    ///
    /// # Errors
    /// See [`PacketError`]: each error says what was refused and what helps.
    pub fn open(interface: &str, rx_bytes: u32) -> Result<Self, PacketError> {
        Self::open_filtered(interface, rx_bytes, &EVERYTHING)
    }

    /// Opens a tap with the arrival time of each frame ([`TapFrame::arrived`]).
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_timestamped(interface: &str, rx_bytes: u32) -> Result<Self, PacketError> {
        Self::open(interface, rx_bytes)?.with_timestamps()
    }

    /// Opens a tap that receives only flow-control frames: PFC, PAUSE, and malformed ones. The
    /// kernel reports the arrival time of each frame.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_flow_control(interface: &str, rx_bytes: u32) -> Result<Self, PacketError> {
        Self::open_filtered(interface, rx_bytes, &flow_control())?.with_timestamps()
    }

    fn with_timestamps(self) -> Result<Self, PacketError> {
        let turned_on = self.socket.enable_timestamps();
        turned_on.map_err(PacketError::system("turn on receive timestamps"))?;
        Ok(self)
    }

    fn open_filtered(
        interface: &str,
        rx_bytes: u32,
        filter: &[Instruction],
    ) -> Result<Self, PacketError> {
        let interface = Interface::query(interface).map_err(PacketError::interface)?;
        let socket = Socket::open_tap(interface.index, rx_bytes, filter)
            .map_err(|(action, source)| PacketError::system(action)(source))?;
        let stride = (CONTROL + TAG + FRAME_MAX).next_multiple_of(64);
        let pages =
            Pages::map(BURST * stride).map_err(PacketError::system("map packet buffers"))?;
        Ok(Self {
            socket,
            name: interface.name,
            mtu: interface.mtu,
            pages,
            stride,
            received: Vec::with_capacity(BURST),
            cut: Vec::new(),
            truncated: 0,
            drops: 0,
        })
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The MTU of the interface in bytes.
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Takes the frames that have arrived, at most one burst before super-frames are cut. Returns
    /// how many frames [`frame`](Self::frame) can show until the next call.
    ///
    /// # Errors
    /// The interface went down or was removed.
    pub fn receive(&mut self) -> io::Result<usize> {
        self.received.clear();
        self.cut.clear();
        let stride = self.stride;
        let mut headers = [[0_u8; VNET_LEN]; BURST];
        // SAFETY: plain data for which all zeros is a valid value.
        let mut vectors: [[libc::iovec; 2]; BURST] = unsafe { zeroed() };
        // SAFETY: plain data for which all zeros is a valid value.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { zeroed() };
        for (index, message) in messages.iter_mut().enumerate() {
            let buffer = index * stride;
            vectors[index] = [
                vector(headers[index].as_mut_ptr(), VNET_LEN),
                vector(self.pages.address(buffer + CONTROL + TAG), FRAME_MAX),
            ];
            message.msg_hdr.msg_iov = vectors[index].as_mut_ptr();
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_control = self.pages.address(buffer).cast();
            message.msg_hdr.msg_controllen = CONTROL as _;
        }
        // SAFETY: the messages point to `headers` and to the buffers. Both outlive the call, and
        // nothing else refers to them.
        let count = match unsafe { self.socket.receive(&mut messages) } {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        for (index, message) in messages[..count].iter().enumerate() {
            let len = (message.msg_len as usize).saturating_sub(VNET_LEN);
            if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                self.truncated += 1;
                continue;
            }
            // SAFETY: the kernel filled this message, and its control messages are in the pages.
            let (tag, arrived) = unsafe { (tag(&message.msg_hdr), arrival(&message.msg_hdr)) };
            let at = index * stride + CONTROL + TAG;
            let offload = Offload(headers[index]);
            let plain = Received { is_cut: false, at, len, offload, arrived };
            let frame = match tag {
                None => plain,
                Some(_) if len < 12 => continue,
                Some(tag) => self.put_back(plain, tag),
            };
            if !self.cut(frame) {
                self.received.push(frame);
            }
        }
        Ok(self.received.len())
    }

    /// Cuts a frame into its packets if it is a super-frame of RoCE; returns true then. UDP
    /// checksums over IPv4 are 0, as RoCE senders write them.
    fn cut(&mut self, frame: Received) -> bool {
        let bytes = self.pages.get(frame.at, frame.len);
        let Some(Kind::Super(segment)) = kind(&frame.offload.0) else { return false };
        let headers = Headers::find(bytes).filter(|headers| {
            headers.udp_destination(bytes) == ROCE_PORT && headers.can_be_cut(frame.len, segment)
        });
        let Some(headers) = headers else { return false };
        let (head, body) = bytes.split_at(headers.len());
        let mut identification = headers.identification(bytes);
        for part in body.chunks(segment) {
            let at = self.cut.len();
            self.cut.extend_from_slice(head);
            self.cut.extend_from_slice(part);
            headers.set(&mut self.cut[at..], part.len(), identification);
            headers.complete_v6(&mut self.cut[at..]);
            identification = identification.wrapping_add(1);
            let (len, offload) = (head.len() + part.len(), Offload::default());
            self.received.push(Received { is_cut: true, at, len, offload, ..frame });
        }
        true
    }

    fn put_back(&mut self, frame: Received, value: [u16; 2]) -> Received {
        let at = frame.at - TAG;
        insert_tag(self.pages.get_mut(at, TAG + 12), value);
        Received { at, len: frame.len + TAG, offload: frame.offload.behind_tag(4), ..frame }
    }

    /// Frame `index` of the last burst.
    ///
    /// # Panics
    /// If the burst had fewer frames.
    pub fn frame(&self, index: usize) -> TapFrame<'_> {
        let Received { is_cut, at, len, offload, arrived } = self.received[index];
        let bytes = if is_cut { &self.cut[at..at + len] } else { self.pages.get(at, len) };
        TapFrame { bytes, offload, arrived }
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] or `ENOBUFS` if the interface has no room. Other errors of the
    /// kernel, such as for a frame longer than the MTU of the interface allows.
    pub fn send(&mut self, bytes: &[u8], offload: Offload) -> io::Result<()> {
        let mut header = offload.0;
        let mut vectors =
            [vector(header.as_mut_ptr(), VNET_LEN), vector(bytes.as_ptr().cast_mut(), bytes.len())];
        // SAFETY: plain data for which all zeros is a valid value.
        let mut message: libc::mmsghdr = unsafe { zeroed() };
        message.msg_hdr.msg_iov = vectors.as_mut_ptr();
        message.msg_hdr.msg_iovlen = vectors.len() as _;
        // SAFETY: the message points to `header` and `bytes`, which outlive the call and are only
        // read.
        unsafe { self.socket.send(std::slice::from_mut(&mut message)) }.map(|_one| ())
    }

    /// Frames that the kernel dropped for lack of room.
    pub fn drops(&mut self) -> u64 {
        self.drops += self.socket.take_drops();
        self.drops
    }

    /// Frames that were dropped because they were longer than any IP packet.
    pub const fn truncated(&self) -> u64 {
        self.truncated
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.fd()
    }
}

/// The arrival time of a frame, if timestamps are on.
///
/// # Safety
/// The kernel filled the header, and the memory that the header points to is still valid.
unsafe fn arrival(header: &libc::msghdr) -> Option<Duration> {
    let kind = (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
    // SAFETY: the caller guarantees the header; a message of this type holds this structure.
    let time = unsafe { control_message::<libc::timespec>(header, kind) }?;
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    Some(Duration::new(seconds, nanos))
}

fn vector(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completed_checksum_is_valid_for_receivers() {
        // The checksum covers an odd or even number of bytes from offset 4 on, and is at offset 10.
        for len in 12..40_u8 {
            let mut frame: Vec<u8> = (0..len).map(|byte| byte.wrapping_mul(37) ^ len).collect();
            let mut header = [0; VNET_LEN];
            header[0] = NEEDS_CHECKSUM;
            header[6..8].copy_from_slice(&4_u16.to_ne_bytes());
            header[8..10].copy_from_slice(&6_u16.to_ne_bytes());
            // The sender leaves a partial sum in the checksum field.
            let left = [frame[10], frame[11]];
            assert_eq!(Offload(header).complete(&mut frame).0[0], 0);
            let total =
                u32::from(fold(sum_words(&frame[4..]))) + u32::from(u16::from_be_bytes(left));
            assert_eq!(fold(total), 0xffff, "{len} bytes");
            // An offset outside the frame changes nothing.
            let before = frame.clone();
            header[8..10].copy_from_slice(&u16::from(len).to_ne_bytes());
            Offload(header).complete(&mut frame);
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn the_offset_of_a_missing_checksum_moves_with_the_tag() {
        let mut header = [0; VNET_LEN];
        header[0] = NEEDS_CHECKSUM;
        header[6..8].copy_from_slice(&34_u16.to_ne_bytes());
        let moved = Offload(header).behind_tag(4);
        assert_eq!(u16::from_ne_bytes([moved.0[6], moved.0[7]]), 38);
        assert_eq!(Offload::default().behind_tag(4), Offload::default());
    }
}
