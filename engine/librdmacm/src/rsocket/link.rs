//! A connected stream with its QP and memory: performs what the `Stream` value decides.

use std::ffi::c_int;

use super::gather::Gather;
use super::identifier::Identifier;
use super::memory::{PeerTables, Region, tables_length};
use super::protocol::{ConnectData, MAPPING_LENGTH, Mapping, Message, Order, TARGETS};
use super::queues::{Capacity, Queues};
use super::stream::{Half, Phase, Piece, Pieces, Post, Sizes, Source, Stream, Work};
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC, IBV_SEND_INLINE,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, ibv_send_wr, ibv_sge,
};

/// Bit that marks the work request ID of a receive.
const RECEIVE: u64 = 1 << 63;
/// Largest inline data of a work request, in bytes.
const INLINE_MAX: u16 = 256;

/// Bytes of the longest table entry.
const ENTRY_MAX: u32 = 24;
const _: () = assert!(ENTRY_MAX as usize == MAPPING_LENGTH);

/// The local side before the connection is established: queues and memory.
#[derive(Debug)]
pub struct Ready {
    queues: Queues,
    sizes: Sizes,
    /// Largest number of data bytes sent inline.
    inline: u32,
    send: Region,
    receive: Region,
    tables: PeerTables,
}

impl Ready {
    /// Creates queues and memory on the identifier's device and posts the receives.
    pub fn new(
        identifier: &Identifier,
        sizes: Sizes,
        inline: u16,
        mappings: u16,
    ) -> Result<Self, c_int> {
        let inline = u32::from(inline.min(INLINE_MAX));
        let capacity = Capacity {
            kind: IBV_QPT_RC,
            send_queue: sizes.send_queue,
            receive_queue: sizes.receive_queue,
            inline: inline.max(ENTRY_MAX), // table entries are always sent inline
        };
        let queues = Queues::new(identifier, capacity)?;
        let pd = queues.pd();
        let written = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: the PD is the device's, which lives until the process ends.
        let region = |length: usize, access| unsafe { Region::new(pd, length, access) };
        let ready = Self {
            sizes,
            inline,
            send: region(sizes.send_buffer as usize, IBV_ACCESS_LOCAL_WRITE)?,
            receive: region(sizes.receive_buffer as usize, written)?,
            tables: PeerTables { region: region(tables_length(mappings), written)?, mappings },
            queues,
        };
        for _ in 0..sizes.receive_queue {
            ready.post_receive()?;
        }
        Ok(ready)
    }

    /// Returns the private data for the peer.
    pub fn connect_data(&self) -> ConnectData {
        ConnectData {
            order: Order::Same,
            credits: self.sizes.receive_queue,
            targets: self.tables.region.remote(TARGETS),
            mappings: self.tables.mappings,
            buffer: self.receive.remote(self.sizes.receive_buffer / 2),
        }
    }

    /// Posts a receive without memory: WRITEs with immediate data consume receives.
    fn post_receive(&self) -> Result<(), c_int> {
        // SAFETY: the list is empty.
        unsafe { self.queues.receive(RECEIVE, &mut []) }
    }

    /// Connects to a peer that sent `peer` as private data.
    pub fn connect(self, peer: ConnectData) -> Link {
        let receive_buffer = self.receive.remote(self.sizes.receive_buffer);
        Link { stream: Stream::new(self.sizes, receive_buffer, peer), ready: self }
    }

    /// Posts a work request of the stream. Bytes of the program come from `from`.
    ///
    /// # Safety
    /// The memory in `from` is readable.
    unsafe fn post(&self, post: Post, from: &mut Gather<'_>) -> Result<(), c_int> {
        let mut bytes = [0u8; INLINE_MAX as usize];
        let (mut entries, inline) = match post.source {
            Source::Nothing => ([ibv_sge { addr: 0, length: 0, lkey: 0 }; 2], false),
            Source::Buffer(pieces) => {
                for piece in pieces {
                    // SAFETY: the memory in `from` is readable.
                    unsafe {
                        from.take(piece.length as usize, |part, at| {
                            let offset = piece.offset + u32::try_from(at).unwrap_or(0);
                            let length = u32::try_from(part.len()).unwrap_or(0);
                            self.send.copy_from(Piece { offset, length }, part.as_ptr());
                        });
                    }
                }
                (pieces.map(|piece| self.send.entry(piece)), false)
            }
            Source::Inline(length) => {
                let take =
                    |part: &[u8], at: usize| bytes[at..at + part.len()].copy_from_slice(part);
                // SAFETY: the memory in `from` is readable.
                unsafe { from.take(length as usize, take) };
                (inline_list(&bytes[..length as usize]), true)
            }
            Source::Entry(entry, length) => {
                bytes[..length].copy_from_slice(&entry[..length]);
                (inline_list(&bytes[..length]), true)
            }
        };
        let used = entries.iter().filter(|entry| entry.length > 0).count();
        let mut request = write(&post);
        (request.sg_list, request.num_sge) = (entries.as_mut_ptr(), used.try_into().unwrap_or(0));
        request.send_flags = if inline { IBV_SEND_INLINE } else { 0 };
        // SAFETY: the list is valid during the call; its memory is inline data, or part of the send
        // buffer, which stays reserved until the completion.
        unsafe { self.queues.send(&mut request) }
    }
}

fn inline_list(bytes: &[u8]) -> [ibv_sge; 2] {
    let length = u32::try_from(bytes.len()).unwrap_or(0);
    let addr = bytes.as_ptr().expose_provenance() as u64;
    [ibv_sge { addr, length, lkey: 0 }, ibv_sge { addr: 0, length: 0, lkey: 0 }]
}

/// Returns the RDMA WRITE for a post.
fn write(post: &Post) -> ibv_send_wr {
    // SAFETY: all-zero bytes are a valid request without a list.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = post.work.id();
    request.wr.rdma.remote_addr = post.address;
    request.wr.rdma.rkey = post.key;
    request.opcode =
        if post.message.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
    request.imm_data = post.message.map_or(0, Message::encode).to_be();
    request
}

/// A connected stream.
#[derive(Debug)]
pub struct Link {
    /// State of the connection.
    pub stream: Stream,
    ready: Ready,
}

impl Link {
    /// Processes completions, reposts receives and grants credits to the peer. Returns true if
    /// there was a completion or the connection broke.
    pub fn progress(&mut self) -> bool {
        let (stream, mut received, mut broken) = (&mut self.stream, 0u32, false);
        let polled = self.ready.queues.poll(|completion| {
            let good = completion.status == 0;
            if completion.wr_id & RECEIVE != 0 {
                // Receives that failed carry no message: the QP is in the error state.
                if good {
                    received += 1;
                    broken |= stream.on_message(u32::from_be(completion.imm_data)).is_err();
                }
            } else {
                stream.on_completion(Work::from_id(completion.wr_id));
                broken |= !good;
            }
        });
        broken |= polled.is_err() || (0..received).any(|_| self.ready.post_receive().is_err());
        if broken {
            self.stream.fail();
        }
        while let Some(post) = self.stream.grant() {
            self.post_without_data(post);
        }
        broken || polled != Ok(0)
    }

    /// Posts a work request that has no bytes of the program.
    fn post_without_data(&mut self, post: Post) {
        // SAFETY: the gather list is empty.
        if unsafe { self.ready.post(post, &mut Gather::default()) }.is_err() {
            self.stream.fail();
        }
    }

    /// Returns true if data can be sent now.
    pub fn can_send(&mut self) -> bool {
        self.stream.can_send(&mut self.ready.tables)
    }

    /// Sends the next piece. May be called only if [`can_send`](Self::can_send) returns true.
    ///
    /// # Safety
    /// The memory in `from` is readable.
    pub unsafe fn send(&mut self, from: &mut Gather<'_>, pieces: &mut Pieces) -> Result<(), c_int> {
        let (post, _) = self.stream.send(from.left(), pieces, self.ready.inline);
        // SAFETY: the memory in `from` is readable.
        unsafe { self.ready.post(post, from) }
    }

    /// Returns the buffer that the peer has mapped at an offset.
    pub fn mapping(&self, offset: u64) -> Option<Mapping> {
        self.ready.tables.find(offset)
    }

    /// Writes the next piece into a mapped buffer of the peer and returns its length. May be called
    /// only if [`can_send`](Self::can_send) returns true.
    ///
    /// # Safety
    /// The memory in `from` is readable.
    pub unsafe fn send_mapped(
        &mut self,
        from: &mut Gather<'_>,
        (offset, mapping): (u64, &Mapping),
        pieces: &mut Pieces,
    ) -> Result<u32, c_int> {
        let remaining = (from.left(), offset);
        let (post, length) = self.stream.send_mapped(remaining, mapping, pieces, self.ready.inline);
        // SAFETY: the memory in `from` is readable.
        unsafe { self.ready.post(post, from) }.map(|()| length)
    }

    /// Announces a mapped buffer to the peer. May be called only if [`can_send`](Self::can_send)
    /// returns true.
    pub fn announce_mapping(&mut self, index: u32, mapping: &Mapping) {
        let post = self.stream.announce_mapping(index, mapping);
        self.post_without_data(post);
    }

    /// Returns true if the connection broke instead of being closed.
    pub fn is_broken(&self) -> bool {
        self.stream.phase() == Phase::Failed
    }

    /// Closes one direction or both.
    pub fn close(&mut self, half: Half) {
        if let Some(post) = self.stream.close(half) {
            self.post_without_data(post);
        }
    }

    /// Sends an RDMA WRITE of no bytes. The peer's RNIC acknowledges it; without an acknowledgement
    /// the connection breaks.
    pub fn keep_alive(&mut self) {
        if let Some(post) = self.stream.keep_alive() {
            self.post_without_data(post);
        }
    }

    /// Copies received bytes to `to`, at most `length`. Returns the number of bytes.
    ///
    /// # Safety
    /// `to` has `length` writable bytes.
    pub unsafe fn read(&mut self, to: *mut u8, length: usize) -> usize {
        let mut total = 0;
        while total < length
            && let Some(piece) = self.stream.read(length - total)
        {
            // SAFETY: `to` has `length` writable bytes, of which `total` are filled.
            unsafe { self.ready.receive.copy_to(piece, to.add(total)) };
            total += piece.length as usize;
        }
        total
    }

    /// Like [`read`](Self::read), but leaves the bytes in the stream.
    ///
    /// # Safety
    /// `to` has `length` writable bytes.
    pub unsafe fn peek(&self, to: *mut u8, length: usize) -> usize {
        let mut total = 0;
        for piece in self.stream.peek(length) {
            // SAFETY: `to` has `length` writable bytes, of which `total` are filled.
            unsafe { self.ready.receive.copy_to(piece, to.add(total)) };
            total += piece.length as usize;
        }
        total
    }

    /// Returns the queues, for waiting on completions and registering memory.
    pub fn queues(&mut self) -> &mut Queues {
        &mut self.ready.queues
    }
}
