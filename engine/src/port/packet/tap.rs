//! A tap: every frame of an interface, in and out, as a switch in user space needs them; no addresses, no filter, no RoCE.
//!
//! What the kernel does to frames on their way is undone or handed on: a VLAN tag that it took off is put back, and a checksum
//! that the sender left to its device stays left, to whoever gets the frame ([`Offload`]).

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, RawFd};

use super::error::PacketError;
use super::filter::{EVERYTHING, Instruction, flow_control};
use super::receive::{CONTROL, TAG, insert_tag, tag};
use super::socket::{Pages, Socket};
use super::super_frame::VNET_LEN;
use crate::port::af_xdp::interface::Interface;

/// Frames of one burst.
const BURST: usize = 32;
/// `virtio_net_hdr.flags`: the checksum is left to do.
const NEEDS_CHECKSUM: u8 = 1;

/// What a sender has left to its device: a checksum to compute, a frame to cut. It goes with the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload([u8; VNET_LEN]);

impl Offload {
    /// Whether the frame is to be cut into several.
    pub const fn is_super_frame(self) -> bool {
        self.0[1] != 0
    }

    /// What a frame needs that got a tag of `bytes` bytes.
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
    /// From the destination address on, without FCS.
    pub bytes: &'a [u8],
    /// What is left to do about it.
    pub offload: Offload,
}

/// Where a received frame lies.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    at: usize,
    len: usize,
    offload: Offload,
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
    frame_max: usize,
    received: Vec<Received>,
    truncated: u64,
    drops: u64,
}

impl Tap {
    /// Opens a tap on an interface that is up, with room for `rx_bytes` bytes of frames in the kernel. Frames that are longer than
    /// the interface's MTU allows are counted and left out.
    ///
    /// # Errors
    /// See [`PacketError`]: each says what was refused and what helps.
    pub fn open(interface: &str, rx_bytes: u32) -> Result<Self, PacketError> {
        Self::open_filtered(interface, rx_bytes, &EVERYTHING)
    }

    /// The same, with frames of flow control only: PFC, PAUSE, and what wants to be either.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_flow_control(interface: &str, rx_bytes: u32) -> Result<Self, PacketError> {
        Self::open_filtered(interface, rx_bytes, &flow_control())
    }

    fn open_filtered(
        interface: &str,
        rx_bytes: u32,
        filter: &[Instruction],
    ) -> Result<Self, PacketError> {
        let interface = Interface::query(interface).map_err(PacketError::interface)?;
        let socket = Socket::open_tap(interface.index, rx_bytes, filter)
            .map_err(|(action, source)| PacketError::system(action)(source))?;
        // Two tags.
        let frame_max = 14 + 2 * TAG + interface.mtu as usize;
        let stride = (CONTROL + TAG + frame_max).next_multiple_of(64);
        let pages =
            Pages::map(BURST * stride).map_err(PacketError::system("map packet buffers"))?;
        Ok(Self {
            socket,
            name: interface.name,
            mtu: interface.mtu,
            pages,
            stride,
            frame_max,
            received: Vec::with_capacity(BURST),
            truncated: 0,
            drops: 0,
        })
    }

    /// The interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface's MTU.
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Takes what has arrived, a burst at most; how many frames [`frame`](Self::frame) shows until the next call.
    ///
    /// # Errors
    /// What the kernel says of an interface that went down or away.
    pub fn receive(&mut self) -> io::Result<usize> {
        self.received.clear();
        let (stride, frame_max) = (self.stride, self.frame_max);
        let mut headers = [[0_u8; VNET_LEN]; BURST];
        // SAFETY: plain data for which all zeros is a value.
        let mut vectors: [[libc::iovec; 2]; BURST] = unsafe { zeroed() };
        // SAFETY: the same.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { zeroed() };
        for (index, message) in messages.iter_mut().enumerate() {
            let buffer = index * stride;
            vectors[index] = [
                vector(headers[index].as_mut_ptr(), VNET_LEN),
                vector(self.pages.address(buffer + CONTROL + TAG), frame_max),
            ];
            message.msg_hdr.msg_iov = vectors[index].as_mut_ptr();
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_control = self.pages.address(buffer).cast();
            message.msg_hdr.msg_controllen = CONTROL as _;
        }
        // SAFETY: the messages point at `headers` and at the buffers, which outlive the call and which nothing else refers to.
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
            // SAFETY: the kernel has filled this message, whose control message lies in the pages.
            let tag = unsafe { tag(&message.msg_hdr) };
            let at = index * stride + CONTROL + TAG;
            let plain = Received { at, len, offload: Offload(headers[index]) };
            let frame = match tag {
                None => plain,
                Some(_) if len < 12 => continue,
                Some(tag) => self.put_back(plain, tag),
            };
            self.received.push(frame);
        }
        Ok(self.received.len())
    }

    fn put_back(&mut self, frame: Received, value: [u16; 2]) -> Received {
        let at = frame.at - TAG;
        insert_tag(self.pages.get_mut(at, TAG + 12), value);
        Received { at, len: frame.len + TAG, offload: frame.offload.behind_tag(4) }
    }

    /// A frame of the last burst.
    ///
    /// # Panics
    /// If it had not so many.
    pub fn frame(&self, index: usize) -> TapFrame<'_> {
        let Received { at, len, offload } = self.received[index];
        TapFrame { bytes: self.pages.get(at, len), offload }
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] or `ENOBUFS` if the interface has no room; what else the kernel says, as of a frame that is
    /// longer than the interface's MTU allows.
    pub fn send(&mut self, bytes: &[u8], offload: Offload) -> io::Result<()> {
        let mut header = offload.0;
        let mut vectors =
            [vector(header.as_mut_ptr(), VNET_LEN), vector(bytes.as_ptr().cast_mut(), bytes.len())];
        // SAFETY: plain data for which all zeros is a value.
        let mut message: libc::mmsghdr = unsafe { zeroed() };
        message.msg_hdr.msg_iov = vectors.as_mut_ptr();
        message.msg_hdr.msg_iovlen = vectors.len() as _;
        // SAFETY: the message points at `header` and `bytes`, which outlive the call and are only read by it.
        unsafe { self.socket.send(std::slice::from_mut(&mut message)) }.map(|_one| ())
    }

    /// Frames that the kernel dropped for want of room.
    pub fn drops(&mut self) -> u64 {
        self.drops += self.socket.take_drops();
        self.drops
    }

    /// Frames that were longer than the interface's MTU: super-frames of a sender with segmentation offload.
    pub const fn truncated(&self) -> u64 {
        self.truncated
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.fd()
    }
}

fn vector(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_that_is_left_to_do_moves_with_the_tag() {
        let mut header = [0; VNET_LEN];
        header[0] = NEEDS_CHECKSUM;
        header[6..8].copy_from_slice(&34_u16.to_ne_bytes());
        let moved = Offload(header).behind_tag(4);
        assert_eq!(u16::from_ne_bytes([moved.0[6], moved.0[7]]), 38);
        assert_eq!(Offload::default().behind_tag(4), Offload::default());
    }
}
