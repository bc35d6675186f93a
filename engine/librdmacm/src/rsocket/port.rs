//! A local address of a datagram socket: its UD QP and its memory.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use super::gather::Gather;
use super::identifier::Identifier;
use super::memory::Region;
use super::protocol::{DATAGRAM_HEADER_MAX, DatagramHeader};
use super::queues::{Capacity, Queues};
use super::stream::Piece;
use super::verbs::{ibv_create_ah, ibv_destroy_ah, ibv_query_gid};
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_QPT_UD, IBV_WR_SEND, RDMA_PS_UDP, RDMA_UDP_QKEY, ibv_ah,
    ibv_ah_attr, ibv_grh, ibv_send_wr, send_wr_ud,
};
use crate::errno;

/// Largest datagram with its header, in bytes.
pub const DATAGRAM_MAX: usize = SEND_SLOT as usize;
/// Bytes ahead of a received datagram that the RNIC fills with the GRH.
const GRH: u32 = 40;
const _: () = assert!(GRH as usize == size_of::<ibv_grh>());
/// Size of a receive slot: GRH and datagram, rounded up to a multiple of 64 bytes.
const RECEIVE_SLOT: u32 = (GRH + SEND_SLOT).next_multiple_of(64);
/// Size of a send slot: the largest datagram with its header.
const SEND_SLOT: u32 = 2048;
/// Bit that marks the work request ID of a receive.
const RECEIVE: u64 = 1 << 63;
/// Number of GID table entries that are searched.
const GIDS: c_int = 256;

/// Address handle and QP number of a peer.
#[derive(Debug)]
pub struct Handle {
    ah: *mut ibv_ah,
    /// The peer's QP number.
    pub qpn: u32,
}

// SAFETY: the library's objects may be used from any thread, and this is the only owner.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { ibv_destroy_ah(self.ah) };
    }
}

/// A received datagram: its slot, and its length including the header.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    slot: u32,
    length: u32,
}

/// The QP and memory of a local address. Field order is drop order.
#[derive(Debug)]
pub struct Port {
    queues: Queues,
    send: Region,
    receive: Region,
    identifier: Identifier,
    /// Slots of `send` that no posted request uses.
    free: Vec<u32>,
    slots: u16,
    /// The local address.
    pub source: SocketAddr,
}

impl Port {
    /// Creates a port for a local address, with queues of the given sizes.
    pub fn new(source: SocketAddr, send_queue: u16, receive_queue: u16) -> Result<Self, c_int> {
        let identifier = Identifier::new(RDMA_PS_UDP)?;
        identifier.bind(source)?;
        let capacity = Capacity { kind: IBV_QPT_UD, send_queue, receive_queue, inline: 0 };
        let queues = Queues::new(&identifier, capacity)?;
        // SAFETY: the PD is the device's, which lives until the process ends.
        let region = |slots: u16, size: usize| unsafe {
            Region::new(queues.pd(), usize::from(slots) * size, IBV_ACCESS_LOCAL_WRITE)
        };
        let port = Self {
            send: region(send_queue, DATAGRAM_MAX)?,
            receive: region(receive_queue, RECEIVE_SLOT as usize)?,
            free: (0..send_queue.into()).collect(),
            slots: send_queue,
            queues,
            identifier,
            source,
        };
        for slot in 0..receive_queue.into() {
            port.post_receive(slot)?;
        }
        Ok(port)
    }

    /// Returns the QP number.
    pub fn qpn(&self) -> u32 {
        self.queues.qpn()
    }

    /// Returns true if a send slot is free.
    pub fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns true if all sends have completed.
    pub fn is_idle(&self) -> bool {
        self.free.len() == usize::from(self.slots)
    }

    fn post_receive(&self, slot: u32) -> Result<(), c_int> {
        let piece = Piece { offset: slot * RECEIVE_SLOT, length: GRH + SEND_SLOT };
        let mut list = [self.receive.entry(piece)];
        // SAFETY: the slot is part of the receive region, and nothing uses it.
        unsafe { self.queues.receive(RECEIVE | u64::from(slot), &mut list) }
    }

    /// Processes completions and passes received datagrams to `take`. Returns true if there was a
    /// completion.
    pub fn progress(&mut self, mut take: impl FnMut(Arrived)) -> bool {
        let (mut failed, free) = (Vec::new(), &mut self.free);
        let polled = self.queues.poll(|completion| {
            #[allow(clippy::cast_possible_truncation)] // the lower half is the slot number
            let slot = completion.wr_id as u32;
            if completion.wr_id & RECEIVE == 0 {
                free.push(slot);
            } else if completion.status == 0 && completion.byte_len > GRH {
                take(Arrived { slot, length: completion.byte_len - GRH });
            } else {
                failed.push(slot);
            }
        });
        for slot in failed {
            let _ = self.post_receive(slot); // fails only in the error state of the QP
        }
        polled.is_ok_and(|count| count > 0)
    }

    /// Returns the source and the payload of a datagram; `None` if it has no valid header.
    pub fn read(&self, arrived: Arrived) -> Option<(SocketAddr, &[u8])> {
        let piece = Piece { offset: arrived.slot * RECEIVE_SLOT + GRH, length: arrived.length };
        let (DatagramHeader(source), payload) = DatagramHeader::decode(self.receive.bytes(piece))?;
        Some((source, payload))
    }

    /// Posts the slot of a datagram again.
    pub fn release(&self, arrived: Arrived) {
        let _ = self.post_receive(arrived.slot); // fails only in the error state of the QP
    }

    /// Sends a datagram. May be called only if [`can_send`](Self::can_send) returns true.
    ///
    /// # Errors
    /// EMSGSIZE if the datagram is too long, or the error of the post.
    ///
    /// # Safety
    /// The memory in `from` is readable.
    pub unsafe fn send(&mut self, from: &mut Gather<'_>, to: &Handle) -> Result<(), c_int> {
        let (header, header_length) = DatagramHeader(self.source).encode();
        let length = from.left();
        if length > DATAGRAM_MAX - header_length {
            return Err(libc::EMSGSIZE);
        }
        let slot = self.free.pop().ok_or(libc::EAGAIN)?;
        let mut datagram = [0; DATAGRAM_MAX + DATAGRAM_HEADER_MAX];
        datagram[..header_length].copy_from_slice(&header[..header_length]);
        let payload = &mut datagram[header_length..];
        // SAFETY: the memory in `from` is readable.
        unsafe {
            from.take(length, |part, at| payload[at..at + part.len()].copy_from_slice(part));
        }
        let total = u32::try_from(header_length + length).unwrap_or(0);
        let piece = Piece { offset: slot * SEND_SLOT, length: total };
        // SAFETY: `datagram` holds `piece.length` bytes, and no posted request uses the slot.
        unsafe { self.send.copy_from(piece, datagram.as_ptr()) };
        let mut list = [self.send.entry(piece)];
        // SAFETY: all-zero bytes are a valid request without a list.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        (request.wr_id, request.opcode) = (slot.into(), IBV_WR_SEND);
        (request.sg_list, request.num_sge) = (list.as_mut_ptr(), 1);
        request.wr.ud = send_wr_ud { ah: to.ah, remote_qpn: to.qpn, remote_qkey: RDMA_UDP_QKEY };
        // SAFETY: the list is valid during the call, the slot is part of the send region, and the
        // address handle is live.
        let posted = unsafe { self.queues.send(&mut request) };
        posted.inspect_err(|_| self.free.push(slot))
    }

    /// Creates the address handle for a peer's QP.
    pub fn handle(&self, peer: IpAddr, qpn: u32) -> Result<Handle, c_int> {
        // SAFETY: the identifier is live; all-zero bytes are valid attributes.
        let (id, mut attributes) =
            unsafe { (&*self.identifier.raw(), std::mem::zeroed::<ibv_ah_attr>()) };
        (attributes.is_global, attributes.port_num) = (1, id.port_num);
        attributes.grh.dgid = gid(peer);
        let local = gid(self.source.ip());
        let index = (0..GIDS).find(|&index| {
            let mut found = [0; 2];
            // SAFETY: the context is the identifier's; `found` is writable.
            let code = unsafe { ibv_query_gid(id.verbs, id.port_num, index, &raw mut found) };
            code == 0 && found == local
        });
        attributes.grh.sgid_index =
            index.and_then(|index| u8::try_from(index).ok()).ok_or(libc::EADDRNOTAVAIL)?;
        // SAFETY: the PD is that of the QP; the attributes are valid during the call.
        let ah = unsafe { ibv_create_ah(self.queues.pd(), &raw mut attributes) };
        if ah.is_null() { Err(errno::last()) } else { Ok(Handle { ah, qpn }) }
    }

    /// Requests a notification for the next completion. Returns the descriptor that reports it.
    pub fn arm(&mut self) -> RawFd {
        self.queues.arm();
        self.queues.fd()
    }

    /// Consumes the notification, if it has arrived.
    pub fn disarm(&mut self) {
        self.queues.disarm();
    }
}

/// Returns the GID of an address in C form: two halves in memory order.
fn gid(address: IpAddr) -> [u64; 2] {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
    .octets();
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&octets[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    [half(0), half(8)]
}
