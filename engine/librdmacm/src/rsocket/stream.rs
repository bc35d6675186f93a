//! A connected stream as a value: it consumes messages, completions and calls, and returns the work
//! requests to post. It owns no memory, no QP and no clock, so tests can connect two of them.
//!
//! Each side has a receive buffer of two halves. The peer writes into a half that an entry in its
//! target table announced, and reports the number of bytes in the immediate data of each WRITE. An
//! announced half is filled to the last byte before the next entry is used; a half that the program
//! has read is announced again. Credits limit the number of messages in flight.

use std::collections::VecDeque;

use super::protocol::{
    ConnectData, Control, MAPPING_LENGTH, Mapping, Message, Order, REMOTE_LENGTH, Remote, TARGETS,
};

/// A stream accepts data while this many bytes of its send buffer are free.
pub const SEND_LOW_WATER: u32 = 2048;
/// Work requests reserved for messages other than data.
const CONTROL_REQUESTS: u16 = 4;
/// The first piece of a send is small, so that the peer can start early; each next piece is twice
/// as long, up to `LARGEST_PIECE` bytes.
const FIRST_PIECE: u32 = 2048;
const LARGEST_PIECE: u32 = 65536;

/// Sizes of queues and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Work requests in the send queue.
    pub send_queue: u16,
    /// Messages that can be received before the program reads.
    pub receive_queue: u16,
    /// Bytes that can be queued for sending.
    pub send_buffer: u32,
    /// Bytes that can be received before the program reads.
    pub receive_buffer: u32,
}

/// The tables that the peer writes.
pub trait Tables {
    /// Takes the target with this index out of the table, if there is one.
    fn take_target(&mut self, index: u32) -> Option<Remote>;
}

/// Purpose of a work request; returned with its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Data or a table entry: this many bytes of the send buffer.
    Stream(u32),
    /// A message that does not consume a credit.
    Control {
        /// The last message of the stream.
        last: bool,
    },
}

impl Work {
    const CONTROL: u64 = 1 << 32;
    const LAST: u64 = 1 << 33;

    /// Encodes the purpose as work request ID.
    pub fn id(self) -> u64 {
        match self {
            Self::Stream(bytes) => u64::from(bytes),
            Self::Control { last: false } => Self::CONTROL,
            Self::Control { last: true } => Self::CONTROL | Self::LAST,
        }
    }

    /// Decodes a work request ID.
    #[allow(clippy::cast_possible_truncation)] // the lower half holds the bytes
    pub fn from_id(id: u64) -> Self {
        if id & Self::CONTROL != 0 {
            return Self::Control { last: id & Self::LAST != 0 };
        }
        Self::Stream(id as u32)
    }
}

/// Part of a buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Piece {
    /// Offset of the first byte.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
}

/// Where the bytes of a work request are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// No bytes.
    Nothing,
    /// This many bytes of the caller, sent inline.
    Inline(u32),
    /// Bytes of the caller, copied into these pieces of the send buffer first.
    Buffer([Piece; 2]),
    /// A table entry: the first bytes, as many as the number says.
    Entry([u8; MAPPING_LENGTH], usize),
}

/// A work request to post: an RDMA WRITE, with or without immediate data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Post {
    /// Purpose.
    pub work: Work,
    /// Local bytes.
    pub source: Source,
    /// Remote address.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// Immediate data.
    pub message: Option<Message>,
}

/// Direction to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// Receiving.
    Read,
    /// Sending.
    Write,
    /// Both directions.
    Both,
}

/// Connection state of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Connected in at least one direction.
    Connected,
    /// Closed in order.
    Disconnected,
    /// Broken.
    Failed,
}

/// The peer violated the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation;

/// Iterates over the lengths of the pieces of a send.
#[derive(Debug, Clone, Copy)]
pub struct Pieces(u32);

impl Default for Pieces {
    fn default() -> Self {
        Self(FIRST_PIECE)
    }
}

impl Pieces {
    fn next(&mut self, left: u32) -> u32 {
        if self.0 >= left {
            return left;
        }
        let length = self.0;
        self.0 = LARGEST_PIECE.min(self.0 * 2);
        length
    }
}

/// A connected stream.
#[derive(Debug)]
pub struct Stream {
    phase: Phase,
    readable: bool,
    writable: bool,
    sizes: Sizes,
    peer: ConnectData,
    receive_address: u64,
    receive_key: u32,

    // Sending.
    target: Remote,
    next_target: u32,
    sent: u16,
    sent_until: u16,
    requests_free: u16,
    controls_free: u16,
    send_offset: u32,
    send_free: u32,

    // Receiving.
    arrived: VecDeque<u32>,
    read_offset: u32,
    consumed: u16,
    credits_due: u16,
    /// Bytes that the program has read and that are not announced again.
    read_free: u32,
    announce_offset: u32,
    announce_entry: u32,
    /// Announced bytes that the peer has not filled.
    announced: u64,
}

impl Stream {
    /// Creates a stream of these sizes. `receive_buffer` is the local buffer, `peer` the peer's
    /// private data.
    pub fn new(sizes: Sizes, receive_buffer: Remote, peer: ConnectData) -> Self {
        let half = sizes.receive_buffer / 2;
        Self {
            phase: Phase::Connected,
            readable: true,
            writable: true,
            sizes,
            peer,
            receive_address: receive_buffer.address,
            receive_key: receive_buffer.key,
            target: peer.buffer,
            next_target: 1,
            sent: 0,
            sent_until: peer.credits,
            requests_free: sizes.send_queue - CONTROL_REQUESTS,
            controls_free: CONTROL_REQUESTS,
            send_offset: 0,
            send_free: sizes.send_buffer,
            arrived: VecDeque::with_capacity(usize::from(sizes.receive_queue)),
            read_offset: 0,
            consumed: 0,
            credits_due: sizes.receive_queue / 2,
            read_free: half,
            announce_offset: half,
            announce_entry: 1 % peer.targets.length,
            announced: u64::from(half),
        }
    }

    /// Returns the connection state.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns true if more data may arrive.
    pub fn is_readable(&self) -> bool {
        self.phase == Phase::Connected && self.readable
    }

    /// Returns true if data may be sent.
    pub fn is_writable(&self) -> bool {
        self.phase == Phase::Connected && self.writable
    }

    /// Marks the connection as broken.
    pub fn fail(&mut self) {
        if self.phase == Phase::Connected {
            self.phase = Phase::Failed;
        }
    }

    /// Marks the connection as closed.
    pub fn disconnect(&mut self) {
        if self.phase == Phase::Connected {
            self.phase = Phase::Disconnected;
        }
    }

    /// Returns the peer's private data.
    pub fn peer(&self) -> &ConnectData {
        &self.peer
    }

    /// Handles the completion of a work request.
    pub fn on_completion(&mut self, work: Work) {
        match work {
            Work::Stream(bytes) => {
                self.requests_free += 1;
                self.send_free += bytes;
            }
            Work::Control { last } => {
                self.controls_free += 1;
                if last {
                    self.disconnect();
                }
            }
        }
    }

    /// Handles immediate data from the peer.
    ///
    /// # Errors
    /// The message violates the protocol.
    pub fn on_message(&mut self, immediate: u32) -> Result<(), Violation> {
        match Message::decode(immediate).ok_or(Violation)? {
            Message::Data(bytes) => {
                let full = self.arrived.len() >= usize::from(self.sizes.receive_queue);
                let left = self.announced.checked_sub(u64::from(bytes)).filter(|_| !full);
                self.announced = left.ok_or(Violation)?;
                self.arrived.push_back(bytes);
            }
            Message::Credits(until) => self.sent_until = until,
            Message::Mapped(_) => self.consumed = self.consumed.wrapping_add(1),
            Message::Control(Control::KeepAlive) => {}
            Message::Control(Control::Disconnect) => self.disconnect(),
            Message::Control(Control::Shutdown) => {
                self.readable = false;
                if !self.writable {
                    self.disconnect();
                }
            }
        }
        Ok(())
    }

    /// Returns true if data can be sent now. Takes the next target if the current one is full.
    pub fn can_send(&mut self, tables: &mut impl Tables) -> bool {
        if self.target.length == 0
            && let Some(target) = tables.take_target(self.next_target)
        {
            self.target = target;
            self.next_target = (self.next_target + 1) % TARGETS;
        }
        self.has_room() && self.target.length > 0
    }

    fn has_room(&self) -> bool {
        let room = self.requests_free > 0 && self.send_free >= SEND_LOW_WATER;
        room && self.sent != self.sent_until
    }

    /// Returns the post for the next piece of `left` bytes, and its length. May be called only if
    /// [`can_send`](Self::can_send) returns true.
    pub fn send(&mut self, left: usize, pieces: &mut Pieces, inline_max: u32) -> (Post, u32) {
        let length = self.piece(left, pieces).min(self.target.length);
        let (source, work) = self.reserve(length, inline_max);
        let post = Post {
            work,
            source,
            address: self.target.address,
            key: self.target.key,
            message: Some(Message::Data(length)),
        };
        self.sent = self.sent.wrapping_add(1);
        self.target.address = self.target.address.wrapping_add(u64::from(length));
        self.target.length -= length;
        (post, length)
    }

    /// Returns the post that writes the next piece of `left` bytes into a mapped buffer, and its
    /// length. May be called only if [`can_send`](Self::can_send) returns true.
    pub fn send_mapped(
        &mut self,
        (left, offset): (usize, u64),
        mapping: &Mapping,
        pieces: &mut Pieces,
        inline_max: u32,
    ) -> (Post, u32) {
        let length = self.piece(left, pieces).min(mapping.left_at(offset));
        let (source, work) = self.reserve(length, inline_max);
        let address = mapping.buffer.address.wrapping_add(offset.wrapping_sub(mapping.offset));
        (Post { work, source, address, key: mapping.buffer.key, message: None }, length)
    }

    /// Returns the post that announces a mapped buffer under this index. May be called only if
    /// [`can_send`](Self::can_send) returns true.
    pub fn announce_mapping(&mut self, index: u32, mapping: &Mapping) -> Post {
        self.requests_free -= 1;
        self.sent = self.sent.wrapping_add(1);
        Post {
            work: Work::Stream(0),
            source: Source::Entry(mapping.encode(self.peer.order), MAPPING_LENGTH),
            address: self.peer.mapping_address(index),
            key: self.peer.targets.key,
            message: Some(Message::Mapped(index)),
        }
    }

    fn piece(&self, left: usize, pieces: &mut Pieces) -> u32 {
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        pieces.next(left).min(self.send_free)
    }

    /// Takes a work request and, for data longer than `inline_max`, room in the send buffer.
    fn reserve(&mut self, length: u32, inline_max: u32) -> (Source, Work) {
        self.requests_free -= 1;
        if length <= inline_max {
            return (Source::Inline(length), Work::Stream(0));
        }
        let to_end = self.sizes.send_buffer - self.send_offset;
        let first = Piece { offset: self.send_offset, length: length.min(to_end) };
        let second = Piece { offset: 0, length: length - first.length };
        self.send_offset = (self.send_offset + length) % self.sizes.send_buffer;
        self.send_free -= length;
        (Source::Buffer([first, second]), Work::Stream(length))
    }

    /// Returns true if there is data to read.
    pub fn has_data(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Returns the pieces of the receive buffer that hold the next data, at most `left` bytes,
    /// without consuming them.
    pub fn peek(&self, left: usize) -> impl Iterator<Item = Piece> {
        let size = self.sizes.receive_buffer;
        let mut left = u32::try_from(left).unwrap_or(u32::MAX);
        let mut at = self.read_offset;
        self.arrived.iter().flat_map(move |&bytes| {
            let length = bytes.min(left);
            let first = Piece { offset: at, length: length.min(size - at) };
            let second = Piece { offset: 0, length: length - first.length };
            at = (at + length) % size;
            left -= length;
            [first, second].into_iter().filter(|piece| piece.length > 0)
        })
    }

    /// Consumes and returns the next piece of received data, at most `left` bytes. The caller must
    /// copy it before it calls [`grant`](Self::grant), after which the peer may overwrite it.
    pub fn read(&mut self, left: usize) -> Option<Piece> {
        let message = self.arrived.front_mut()?;
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        let to_end = self.sizes.receive_buffer - self.read_offset;
        let length = left.min(*message).min(to_end);
        let piece = Piece { offset: self.read_offset, length };
        *message -= length;
        if *message == 0 {
            self.arrived.pop_front();
            self.consumed = self.consumed.wrapping_add(1);
        }
        self.read_offset = (self.read_offset + length) % self.sizes.receive_buffer;
        self.read_free += length;
        Some(piece)
    }

    /// Returns the post that grants credits to the peer and announces a free half, if due.
    pub fn grant(&mut self) -> Option<Post> {
        let half = self.sizes.receive_buffer / 2;
        let due = self.consumed.wrapping_sub(self.credits_due) < 0x8000;
        let has_half = self.read_free >= half;
        if !(has_half || due) || self.controls_free == 0 || self.phase != Phase::Connected {
            return None;
        }
        self.controls_free -= 1;
        self.credits_due = self.consumed.wrapping_add(self.sizes.receive_queue / 2);
        let until = self.consumed.wrapping_add(self.sizes.receive_queue);
        let mut post = control_post(Message::Credits(until), false);
        if has_half {
            let buffer = Remote {
                address: self.receive_address.wrapping_add(u64::from(self.announce_offset)),
                key: self.receive_key,
                length: half,
            };
            let entry = u64::from(self.announce_entry) * REMOTE_LENGTH as u64;
            post.source = table_entry(&buffer, self.peer.order);
            post.address = self.peer.targets.address.wrapping_add(entry);
            post.key = self.peer.targets.key;
            self.read_free -= half;
            self.announced += u64::from(half);
            self.announce_offset = if self.announce_offset == 0 { half } else { 0 };
            self.announce_entry = (self.announce_entry + 1) % self.peer.targets.length;
        }
        Some(post)
    }

    /// Returns true if a control message can be sent.
    pub fn can_control(&self) -> bool {
        self.controls_free > 0
    }

    /// Closes one direction or both. Returns the post that informs the peer, if needed. May be
    /// called only if [`can_control`](Self::can_control) returns true.
    pub fn close(&mut self, half: Half) -> Option<Post> {
        if self.phase != Phase::Connected || !(self.readable || self.writable) {
            return None;
        }
        let was_writable = self.writable;
        self.readable &= half == Half::Write;
        self.writable &= half == Half::Read;
        let message = match (self.readable, self.writable) {
            (false, false) => Control::Disconnect,
            (true, false) if was_writable => Control::Shutdown,
            _ => return None,
        };
        self.controls_free -= 1;
        Some(control_post(Message::Control(message), message == Control::Disconnect))
    }

    /// Returns a keep-alive: the peer's RNIC acknowledges it, and its program does not see it.
    pub fn keep_alive(&mut self) -> Option<Post> {
        if self.controls_free == 0 || self.phase != Phase::Connected {
            return None;
        }
        self.controls_free -= 1;
        Some(Post { message: None, ..control_post(Message::Control(Control::KeepAlive), false) })
    }

    /// Returns true if all posted work requests have completed.
    pub fn is_idle(&self) -> bool {
        self.requests_free == self.sizes.send_queue - CONTROL_REQUESTS
            && self.controls_free == CONTROL_REQUESTS
    }
}

fn control_post(message: Message, last: bool) -> Post {
    let work = Work::Control { last };
    Post { work, source: Source::Nothing, address: 0, key: 0, message: Some(message) }
}

fn table_entry(buffer: &Remote, order: Order) -> Source {
    let mut bytes = [0; MAPPING_LENGTH];
    bytes[..REMOTE_LENGTH].copy_from_slice(&buffer.encode(order));
    Source::Entry(bytes, REMOTE_LENGTH)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Addresses of the memory of each side.
    const TABLES: u64 = 0x1000;
    const RECEIVE: u64 = 0x10_0000;
    const MAPPED: u64 = 0x20_0000;
    const KEYS: [u32; 3] = [1, 2, 3];

    struct Targets([u8; 2 * REMOTE_LENGTH]);

    impl Tables for Targets {
        fn take_target(&mut self, index: u32) -> Option<Remote> {
            let at = index as usize * REMOTE_LENGTH;
            let entry = self.0[at..at + REMOTE_LENGTH].first_chunk_mut().unwrap();
            let target = Remote::decode(entry);
            entry[12..].fill(0);
            (target.length > 0).then_some(target)
        }
    }

    /// One side: its memory and its posted work requests.
    struct End {
        stream: Stream,
        targets: Targets,
        mapping: [u8; MAPPING_LENGTH],
        receive: Vec<u8>,
        mapped: Vec<u8>,
        send: Vec<u8>,
        /// Posted but not delivered, and delivered but not completed.
        posted: VecDeque<(Post, Vec<u8>)>,
        delivered: VecDeque<Work>,
        written: u8,
        read: u8,
    }

    fn data(sizes: Sizes) -> ConnectData {
        ConnectData {
            order: Order::Same,
            credits: sizes.receive_queue,
            targets: Remote { address: TABLES, key: KEYS[0], length: TARGETS },
            mappings: 1,
            buffer: Remote { address: RECEIVE, key: KEYS[1], length: sizes.receive_buffer / 2 },
        }
    }

    fn end(local: Sizes, peer: Sizes) -> End {
        let receive_buffer =
            Remote { address: RECEIVE, key: KEYS[1], length: local.receive_buffer };
        End {
            stream: Stream::new(local, receive_buffer, data(peer)),
            targets: Targets([0; 2 * REMOTE_LENGTH]),
            mapping: [0; MAPPING_LENGTH],
            receive: vec![0; local.receive_buffer as usize],
            mapped: vec![0; 100],
            send: vec![0; local.send_buffer as usize],
            posted: VecDeque::new(),
            delivered: VecDeque::new(),
            written: 0,
            read: 0,
        }
    }

    impl End {
        fn post(&mut self, post: Post, bytes: &[u8]) {
            let bytes = match post.source {
                Source::Nothing => Vec::new(),
                Source::Inline(length) => bytes[..length as usize].to_vec(),
                Source::Entry(bytes, length) => bytes[..length].to_vec(),
                Source::Buffer(pieces) => {
                    let mut bytes = bytes;
                    for Piece { offset, length } in pieces {
                        let place = &mut self.send[offset as usize..][..length as usize];
                        place.copy_from_slice(&bytes[..length as usize]);
                        bytes = &bytes[length as usize..];
                    }
                    // Read again at delivery, as an RNIC does.
                    Vec::new()
                }
            };
            self.posted.push_back((post, bytes));
        }

        /// Sends as much as possible of `left` bytes. Returns the number of bytes.
        fn write(&mut self, mut left: usize, inline_max: u32) -> usize {
            let mut pieces = Pieces::default();
            let before = left;
            while left > 0 && self.stream.can_send(&mut self.targets) {
                let (post, length) = self.stream.send(left, &mut pieces, inline_max);
                let bytes: Vec<u8> = (0..length)
                    .map(|_| {
                        self.written = self.written.wrapping_add(1);
                        self.written
                    })
                    .collect();
                self.post(post, &bytes);
                left -= length as usize;
            }
            before - left
        }

        /// Reads and checks at most `most` bytes. Returns the number of bytes.
        fn read(&mut self, most: usize) -> usize {
            let peeked: usize = self.stream.peek(most).map(|piece| piece.length as usize).sum();
            let mut total = 0;
            while total < most
                && let Some(Piece { offset, length }) = self.stream.read(most - total)
            {
                for &byte in &self.receive[offset as usize..][..length as usize] {
                    self.read = self.read.wrapping_add(1);
                    assert_eq!(byte, self.read);
                }
                total += length as usize;
            }
            assert_eq!(peeked, total);
            total
        }

        fn grant(&mut self) {
            while let Some(post) = self.stream.grant() {
                self.post(post, &[]);
            }
        }

        fn write_memory(&mut self, post: &Post, bytes: &[u8]) {
            let (place, base) = match post.address {
                0 => return assert!(bytes.is_empty()),
                MAPPED.. => (&mut self.mapped[..], MAPPED),
                RECEIVE.. => (&mut self.receive[..], RECEIVE),
                0x1020.. => (&mut self.mapping[..], 0x1020),
                _ => (&mut self.targets.0[..], TABLES),
            };
            let at = usize::try_from(post.address - base).unwrap();
            place[at..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Delivers the oldest work request of `from` to `to`.
    fn deliver(from: &mut End, to: &mut End) {
        let Some((post, mut bytes)) = from.posted.pop_front() else { return };
        if let Source::Buffer(pieces) = post.source {
            for Piece { offset, length } in pieces {
                bytes.extend(&from.send[offset as usize..][..length as usize]);
            }
        }
        to.write_memory(&post, &bytes);
        if let Some(message) = post.message {
            to.stream.on_message(message.encode()).unwrap();
        }
        from.delivered.push_back(post.work);
    }

    fn complete(end: &mut End) {
        if let Some(work) = end.delivered.pop_front() {
            end.stream.on_completion(Work::from_id(work.id()));
        }
    }

    const SMALL: Sizes =
        Sizes { send_queue: 16, receive_queue: 16, send_buffer: 5000, receive_buffer: 3000 };

    fn drain(ends: &mut [End; 2]) {
        for _ in 0..1000 {
            let [a, b] = ends;
            a.grant();
            b.grant();
            deliver(a, b);
            deliver(b, a);
            complete(a);
            complete(b);
        }
        assert!(ends.iter().all(|end| end.posted.is_empty() && end.stream.is_idle()));
    }

    proptest! {
        /// For any order of calls, deliveries and completions, the received bytes equal the sent
        /// bytes, and no data is stuck.
        #[test]
        fn received_bytes_equal_sent_bytes(
            sizes in (16u16..40, 16u16..40, 2100u32..9000, 1u32..5000),
            inline_max in 0u32..300,
            steps in prop::collection::vec((0u8..5, 0usize..2, 1usize..7000), 0..400),
        ) {
            let local = Sizes {
                send_queue: sizes.0,
                receive_queue: sizes.1,
                send_buffer: sizes.2,
                receive_buffer: sizes.3 * 2,
            };
            let mut ends = [end(local, SMALL), end(SMALL, local)];
            let mut under_way = [0, 0];
            for (step, at, amount) in steps {
                let [a, b] = &mut ends;
                let (one, other) = if at == 0 { (a, b) } else { (b, a) };
                match step {
                    0 => under_way[at] += one.write(amount, inline_max),
                    1 => under_way[1 - at] -= one.read(amount),
                    2 => one.grant(),
                    3 => deliver(one, other),
                    _ => complete(one),
                }
            }
            for _ in 0..200 {
                for at in 0..2 {
                    under_way[1 - at] -= ends[at].read(1 << 20);
                }
                drain(&mut ends);
            }
            prop_assert_eq!(under_way, [0, 0]);
            let [a, b] = &mut ends;
            prop_assert!(a.write(1, 0) == 1 && b.write(1, 0) == 1, "credits are back");
        }

        #[test]
        fn any_messages_are_handled(immediates in prop::collection::vec(any::<u32>(), 0..100)) {
            let mut end = end(SMALL, SMALL);
            for immediate in immediates {
                let _ = end.stream.on_message(immediate);
                end.stream.peek(100).count();
                end.stream.read(100);
                end.stream.grant();
                end.stream.can_send(&mut end.targets);
            }
        }
    }

    #[test]
    fn data_beyond_the_announced_room_is_a_violation() {
        let mut end = end(SMALL, SMALL);
        assert_eq!(end.stream.on_message(Message::Data(1500).encode()), Ok(()));
        assert_eq!(end.stream.on_message(Message::Data(1).encode()), Err(Violation));
        let mut end = self::end(SMALL, SMALL);
        for _ in 0..16 {
            assert_eq!(end.stream.on_message(Message::Data(1).encode()), Ok(()));
        }
        assert_eq!(end.stream.on_message(Message::Data(1).encode()), Err(Violation));
    }

    #[test]
    fn a_mapped_buffer_is_written_before_later_data() {
        let mut ends = [end(SMALL, SMALL), end(SMALL, SMALL)];
        drain(&mut ends);
        let [a, b] = &mut ends;
        let buffer = Remote { address: MAPPED, key: KEYS[2], length: 100 };
        assert!(b.stream.can_send(&mut b.targets));
        let post = b.stream.announce_mapping(0, &Mapping { offset: 1000, buffer });
        b.post(post, &[]);
        deliver(b, a);
        let mapping = Mapping {
            offset: u64::from_ne_bytes(*a.mapping.first_chunk().unwrap()),
            buffer: Remote::decode(a.mapping[8..].first_chunk().unwrap()),
        };
        assert_eq!(mapping, Mapping { offset: 1000, buffer });
        assert!(a.stream.can_send(&mut a.targets));
        let mut pieces = Pieces::default();
        let (post, length) = a.stream.send_mapped((50, 1010), &mapping, &mut pieces, 8);
        assert_eq!((length, post.message), (50, None));
        a.post(post, &[7; 50]);
        a.write(1, 8);
        deliver(a, b);
        assert_eq!(b.read(1), 0);
        assert_eq!((&b.mapped[10..60], b.mapped[60]), (&[7; 50][..], 0));
        deliver(a, b);
        assert_eq!(b.read(1), 1);
        drain(&mut ends);
    }

    #[test]
    fn a_closed_direction_stays_closed() {
        let mut ends = [end(SMALL, SMALL), end(SMALL, SMALL)];
        let [a, _] = &mut ends;
        a.write(10, 16);
        let shutdown = a.stream.close(Half::Write).unwrap();
        assert_eq!(shutdown.message, Some(Message::Control(Control::Shutdown)));
        assert_eq!(a.stream.close(Half::Write), None);
        a.post(shutdown, &[]);
        drain(&mut ends);
        let [a, b] = &mut ends;
        assert_eq!((a.stream.is_writable(), a.stream.is_readable()), (false, true));
        assert_eq!((b.stream.is_writable(), b.stream.is_readable()), (true, false));
        assert_eq!(b.read(100), 10, "data received before the end can still be read");
        assert_eq!(b.write(5, 16), 5);
        let disconnect = b.stream.close(Half::Both).unwrap();
        assert_eq!(disconnect.message, Some(Message::Control(Control::Disconnect)));
        b.post(disconnect, &[]);
        drain(&mut ends);
        assert!(ends.iter().all(|end| end.stream.phase() == Phase::Disconnected));
        assert_eq!(ends[0].read(100), 5);
        assert_eq!(ends[0].stream.close(Half::Both), None);
    }

    #[test]
    fn one_side_may_close_both_directions() {
        let mut ends = [end(SMALL, SMALL), end(SMALL, SMALL)];
        let disconnect = ends[0].stream.close(Half::Both).unwrap();
        assert_eq!(ends[0].stream.close(Half::Both), None);
        ends[0].post(disconnect, &[]);
        assert_eq!(ends[0].stream.phase(), Phase::Connected, "until it is delivered");
        drain(&mut ends);
        assert!(ends.iter().all(|end| end.stream.phase() == Phase::Disconnected));
    }

    #[test]
    fn a_keep_alive_carries_no_message() {
        let mut ends = [end(SMALL, SMALL), end(SMALL, SMALL)];
        let post = ends[0].stream.keep_alive().unwrap();
        assert_eq!((post.message, post.source), (None, Source::Nothing));
        ends[0].post(post, &[]);
        drain(&mut ends);
    }
}
