//! One AF_XDP socket on one receive queue of the interface, with its own packet buffers.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use xsk_rs::config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue};

use super::config::{AfXdpConfig, BusyPoll, CopyMode};
use super::error::AfXdpError;
use super::umem::{Buffers, CHUNK_DATA, Layout, TxSlots, cause};
use crate::port::contract::RX_BURST;

/// Bytes of a frame beyond the MTU: Ethernet header and two VLAN tags.
const LINK_HEADERS: usize = 14 + 2 * 4;
/// Maximum number of chunks per frame.
const FRAME_CHUNKS: usize = 2;
/// Maximum number of descriptors taken from a ring in one call.
const BATCH: usize = 64;
/// Maximum number of descriptors that the kernel uses for one frame: 64 KiB, and some reserve.
const FRAME_DESCRIPTORS: usize = 32;
/// Attempts to bind, because a closed socket may still hold the queue for a while.
const BIND_TRIES: u32 = 100;
/// Time between two attempts to bind.
const BIND_RETRY: Duration = Duration::from_millis(20);
/// Frames that one `sendto` may send in copy mode (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.18; 32 before).
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// Properties common to all queues of a port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    pub config: &'a AfXdpConfig,
    /// Longest frame in bytes.
    pub frame_max: usize,
    /// Chunks per transmit slot.
    pub chunks_per_slot: u32,
}

impl<'a> Plan<'a> {
    /// The plan for an interface with an MTU of `mtu` bytes.
    pub fn new(config: &'a AfXdpConfig, mtu: u32) -> Self {
        let frame_max = (mtu as usize + LINK_HEADERS).min(FRAME_CHUNKS * CHUNK_DATA);
        Self { config, frame_max, chunks_per_slot: if frame_max > CHUNK_DATA { 2 } else { 1 } }
    }

    /// The packet buffers of a queue. `transmits`: the queue also sends.
    pub fn layout(self, transmits: bool) -> Layout {
        Layout {
            rx_chunks: self.config.rx_frames,
            tx_slots: if transmits { self.config.tx_slots } else { 0 },
            chunks_per_slot: self.chunks_per_slot,
        }
    }
}

/// A received frame: descriptors in [`Queue::taken`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Received {
    pub start: usize,
    /// 1 or 2.
    pub parts: usize,
    pub bytes: usize,
}

/// A bound socket with its four rings.
#[derive(Debug)]
pub(super) struct Queue {
    // The rings are dropped before the buffers they refer to.
    rx: RxQueue,
    tx: TxQueue,
    fill: FillQueue,
    completion: CompQueue,
    buffers: Buffers,
    slots: TxSlots,
    /// Descriptors from the receive ring that were not returned to the kernel, in order of arrival.
    taken: Vec<FrameDesc>,
    /// Number of descriptors in `taken` that belong to complete frames. The others are the
    /// beginning of a frame whose end has not arrived.
    whole: usize,
    zero_copy: bool,
    busy_poll: bool,
    /// Buffers of received frames.
    rx_chunks: u32,
    /// True if frames were committed since the last flush.
    committed: bool,
    backlog: Backlog,
    /// Buffer for frames that are dropped instead of sent; see [`Queue::room`].
    spare: Box<[u8]>,
    spare_taken: bool,
    /// Received frames of more than two descriptors, longer than any frame of a Feroce peer.
    too_long: u64,
    /// Frames that the kernel took but could not send.
    refused: u64,
}

/// Frames that the last flush left in the transmit ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backlog {
    /// None, or only frames that the kernel sends without another call.
    None,
    /// Frames for which the interface had no room.
    NoRoom,
    /// Frames that were not sent because of an error.
    Failed,
}

/// Maximum length of [`Queue::taken`]: a burst of frames of two descriptors each, and the beginning
/// of the next frame.
const TAKEN_MAX: usize = 2 * RX_BURST + FRAME_DESCRIPTORS;

impl Queue {
    /// Opens a socket on `queue` of the interface. It receives nothing until it is entered in the
    /// socket map of the program. `transmits`: the socket gets transmit slots.
    pub fn open(
        plan: Plan,
        queue: u32,
        zero_copy: bool,
        transmits: bool,
    ) -> Result<Self, BindError> {
        let layout = plan.layout(transmits);
        for _ in 1..BIND_TRIES {
            match Self::try_open(plan, layout, queue, zero_copy) {
                Err(BindError::Refused(e)) if e.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(BIND_RETRY);
                }
                other => return other,
            }
        }
        Self::try_open(plan, layout, queue, zero_copy)
    }

    fn try_open(
        plan: Plan,
        layout: Layout,
        queue: u32,
        zero_copy: bool,
    ) -> Result<Self, BindError> {
        let (buffers, chunks) = Buffers::map(layout, plan.config.hugepages)?;
        let mut bind = BindFlags::XDP_USE_NEED_WAKEUP;
        bind |= if zero_copy { BindFlags::XDP_ZEROCOPY } else { BindFlags::XDP_COPY };
        bind.set(BindFlags::XDP_USE_SG, plan.chunks_per_slot > 1);
        let ring = |size| QueueSize::new(size).expect("ring sizes are powers of two");
        let config = SocketConfig::builder()
            .rx_queue_size(ring(layout.rx_chunks))
            .tx_queue_size(ring(layout.tx_ring()))
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(bind)
            .build();
        let name: Interface = plan.config.interface.parse().expect("the kernel knew the name");
        // SAFETY: the UMEM is new and so not shared.
        let opened = unsafe { Socket::new(config, &buffers.umem, &name, queue) };
        let (tx, rx, rings) = opened.map_err(|e| BindError::Refused(cause(e)))?;
        let (fill, completion) = rings.expect("a UMEM that is not shared has rings of its own");
        let (tx_chunks, rx_chunks) = chunks.split_at(layout.tx_chunks() as usize);
        let mut opened = Self {
            rx,
            tx,
            fill,
            completion,
            slots: TxSlots::new(tx_chunks, layout.chunks_per_slot, plan.frame_max),
            buffers,
            taken: Vec::with_capacity(TAKEN_MAX),
            whole: 0,
            zero_copy,
            busy_poll: plan.config.busy_poll.is_some(),
            rx_chunks: layout.rx_chunks,
            committed: false,
            backlog: Backlog::None,
            spare: vec![0; plan.frame_max].into(),
            spare_taken: false,
            too_long: 0,
            refused: 0,
        };
        opened.tune(plan.config.busy_poll, layout)?;
        // SAFETY: the chunks are of this UMEM, and no reference to them exists.
        let filled = unsafe { opened.fill.produce(rx_chunks) };
        assert_eq!(filled, rx_chunks.len(), "the fill ring has room for every chunk twice");
        Ok(opened)
    }

    /// Sets the socket options.
    fn tune(&self, busy_poll: Option<BusyPoll>, layout: Layout) -> Result<(), AfXdpError> {
        let fd = self.fd();
        // Children inherit the sockets of libxdp and would keep the queue bound after this process
        // ended. SAFETY: no pointers are passed.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            let error = io::Error::last_os_error();
            return Err(AfXdpError::system("close a socket on exec", error));
        }
        // More frames per system call and more in flight. Both are optional: older kernels lack the
        // first option.
        let _older_kernel = set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, layout.tx_ring());
        let buffer = libc::c_int::try_from(2 * layout.bytes()).unwrap_or(libc::c_int::MAX);
        let _unprivileged = set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, buffer);
        let Some(poll) = busy_poll else { return Ok(()) };
        let options = [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, libc::c_int::from(poll.microseconds)),
            (SO_BUSY_POLL_BUDGET, libc::c_int::from(poll.budget)),
        ];
        for (option, value) in options {
            set_option(fd, libc::SOL_SOCKET, option, value)
                .map_err(|e| AfXdpError::system("set up busy polling", e))?;
        }
        Ok(())
    }

    /// The descriptor, for `poll` and the socket map of the program.
    pub fn fd(&self) -> RawFd {
        self.rx.fd().as_raw_fd()
    }

    /// Returns true if the packet buffers are in huge pages.
    pub fn hugepages(&self) -> bool {
        self.buffers.hugepages
    }

    /// Frames that arrived and were dropped for lack of a buffer or of room in the ring.
    pub fn rx_dropped(&self) -> u64 {
        let kernel = self.rx.fd().xdp_statistics().map_or(0, |s| s.rx_dropped() + s.rx_ring_full());
        kernel + self.too_long
    }

    /// Frames that could not be sent.
    pub fn tx_dropped(&self) -> u64 {
        let kernel = self.rx.fd().xdp_statistics().map_or(0, |s| s.tx_invalid_descs());
        kernel + self.refused
    }

    // ----- receive -----

    /// Returns the chunks of the last burst to the kernel.
    pub fn give_back(&mut self) {
        if self.whole > 0 {
            // SAFETY: the descriptors came from the receive ring. No frame shown from them is left:
            // frames borrow the port, which is borrowed mutably here.
            let given = unsafe { self.fill.produce(&self.taken[..self.whole]) };
            assert_eq!(given, self.whole, "the fill ring has room for every chunk twice");
            self.taken.drain(..self.whole);
            self.whole = 0;
        }
        if self.fill.needs_wakeup() {
            self.receive_kick();
        }
    }

    /// Takes up to `limit` frames from the receive ring.
    pub fn receive(&mut self, limit: usize, mut deliver: impl FnMut(Received)) {
        let mut delivered = 0;
        while delivered < limit {
            let start = self.taken.len();
            let most = (limit - delivered).min(TAKEN_MAX - start);
            let ready = self.rx.nb_avail(u32::try_from(most).expect("a burst is short")) as usize;
            if ready == 0 {
                break;
            }
            self.taken.resize(start + ready, FrameDesc::default());
            // SAFETY: the ring is of this UMEM.
            let count = unsafe { self.rx.consume(&mut self.taken[start..]) };
            self.taken.truncate(start + count);
            for index in start..start + count {
                if !self.taken[index].has_more_frames() {
                    delivered += self.finish(index + 1, &mut deliver);
                }
            }
        }
        if delivered == 0 && self.busy_poll {
            self.receive_kick();
        }
    }

    /// Delivers the frame whose last descriptor is before `end` in `taken`. Returns the number of
    /// delivered frames, 0 or 1.
    fn finish(&mut self, end: usize, deliver: &mut impl FnMut(Received)) -> usize {
        let start = std::mem::replace(&mut self.whole, end);
        let parts = end - start;
        if parts > 2 {
            self.too_long += 1;
            return 0;
        }
        let bytes = self.taken[start..end].iter().map(|d| d.lengths().data()).sum();
        deliver(Received { start, parts, bytes });
        1
    }

    /// The bytes of a frame of the last burst.
    pub fn parts(&self, frame: Received) -> (&[u8], &[u8]) {
        assert!(frame.start + frame.parts <= self.whole, "a frame of the last burst");
        let part = |index: usize| {
            // SAFETY: descriptors in `taken` came from the receive ring and were not returned.
            unsafe { self.buffers.received(&self.taken[frame.start + index]) }
        };
        (part(0), if frame.parts == 2 { part(1) } else { &[] })
    }

    /// Returns true if a frame waits in the receive ring.
    pub fn is_readable(&mut self) -> bool {
        self.rx.nb_avail_exact() > 0
    }

    /// Returns true if the kernel has no chunk to receive into until the next burst returns some.
    pub fn holds_all_chunks(&self) -> bool {
        self.taken.len() >= self.rx_chunks as usize
    }

    /// Percentage of the buffers not held by the port that contain waiting frames.
    pub fn rx_fill(&mut self) -> u8 {
        let waiting = u64::from(self.rx.nb_avail_exact());
        let chunks = u64::from(self.rx_chunks).saturating_sub(self.taken.len() as u64).max(1);
        u8::try_from(waiting * 100 / chunks).unwrap_or(100).min(100)
    }

    /// Makes the kernel continue to receive. The kernel stops receiving if it finds no buffer, or
    /// if only this process's system calls poll the device.
    fn receive_kick(&self) {
        // SAFETY: no bytes are requested; the call only drives the device.
        unsafe {
            libc::recvfrom(
                self.fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    // ----- transmit -----

    /// Number of transmit slots that can be taken. A link that is down loses frames, like an
    /// unplugged cable: if frames waited instead, no QP would ever exhaust its retries. Frames
    /// already in the ring cannot be removed from it.
    pub fn room(&mut self) -> usize {
        if self.slots.is_low() {
            self.collect();
        }
        match self.slots.room() {
            0 if self.backlog == Backlog::Failed => BATCH,
            room => room,
        }
    }

    /// The next slot to write.
    pub fn slot(&mut self) -> Option<&mut [u8]> {
        if self.slots.room() == 0 {
            self.collect();
        }
        self.spare_taken = self.slots.room() == 0 && self.backlog == Backlog::Failed;
        if self.spare_taken {
            return Some(&mut self.spare);
        }
        self.slots.take(&self.buffers)
    }

    /// Queues the slot taken last.
    pub fn commit(&mut self, len: usize) {
        if std::mem::take(&mut self.spare_taken) {
            self.refused += 1;
            return;
        }
        let descriptors = self.slots.commit(&self.buffers, len);
        // SAFETY: the chunks are of this UMEM, and no reference to them exists until they complete.
        let queued = unsafe { self.tx.produce(descriptors) };
        self.committed = true;
        assert_eq!(queued, descriptors.len(), "the transmit ring has room for every slot twice");
    }

    /// Frees the slots that the kernel has completed.
    fn collect(&mut self) {
        let mut completed = [FrameDesc::default(); BATCH];
        loop {
            // SAFETY: the ring is of this UMEM.
            let count = unsafe { self.completion.consume(&mut completed) };
            for descriptor in &completed[..count] {
                self.slots.complete(descriptor);
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// Makes the kernel send the committed frames.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.committed && self.backlog == Backlog::None {
            return Ok(());
        }
        self.committed = false;
        let sent = if self.zero_copy { self.wake_device() } else { self.send_copies() };
        self.collect();
        self.backlog = *sent.as_ref().unwrap_or(&Backlog::Failed);
        sent.map(drop)
    }

    /// Retries the frames that the kernel did not accept at the last flush.
    pub fn resume(&mut self) {
        if self.backlog != Backlog::None {
            // A lasting error is reported by the next flush.
            let _reported_later = self.flush();
        }
    }

    /// Returns true if the caller should retry soon instead of sleeping until a frame arrives.
    pub fn has_backlog(&self) -> bool {
        self.backlog == Backlog::NoRoom
    }

    /// Zero-copy mode: the driver sends by itself unless it requests a wake-up.
    fn wake_device(&mut self) -> io::Result<Backlog> {
        if !self.tx.needs_wakeup() {
            return Ok(Backlog::None);
        }
        match self.transmit_kick() {
            Err(e) if is_transient(&e) => Ok(Backlog::NoRoom),
            other => other.map(|()| Backlog::None),
        }
    }

    /// Copy mode: `sendto` itself sends all frames, or as many as its budget allows.
    fn send_copies(&mut self) -> io::Result<Backlog> {
        let mut free = self.tx.nb_free_exact();
        // Each iteration but the last sends a frame, so the loop ends.
        loop {
            match self.transmit_kick() {
                Ok(()) => return Ok(Backlog::None),
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    // A frame was discarded: the ring of the receiver is full, or there is no
                    // carrier. Continuing at once would lose the other frames, too.
                    self.refused += 1;
                    return Ok(Backlog::NoRoom);
                }
                Err(e) if is_transient(&e) => {
                    let before = std::mem::replace(&mut free, self.tx.nb_free_exact());
                    if free <= before {
                        return Ok(Backlog::NoRoom);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn transmit_kick(&self) -> io::Result<()> {
        // SAFETY: no bytes and no address are passed.
        let sent = unsafe {
            libc::sendto(self.fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Returns true if the same call may succeed later.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR))
}

fn set_option<T>(fd: RawFd, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of_val(&value)).expect("a few bytes");
    // SAFETY: `value` is `size` bytes long and outlives the call.
    match unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Why a queue could not be opened.
#[derive(Debug)]
pub(super) enum BindError {
    /// The kernel refused to bind the socket.
    Refused(io::Error),
    /// Another step failed.
    Other(AfXdpError),
}

impl From<AfXdpError> for BindError {
    fn from(error: AfXdpError) -> Self {
        Self::Other(error)
    }
}

impl BindError {
    /// Returns true if zero-copy was refused and copy mode may work.
    pub fn lacks_zero_copy(&self) -> bool {
        let Self::Refused(error) = self else { return false };
        matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
    }

    /// The error to report for `queue`.
    pub fn explain(self, config: &AfXdpConfig, queue: u32) -> AfXdpError {
        let interface = config.interface.clone();
        let lacks_zero_copy = self.lacks_zero_copy();
        match self {
            Self::Refused(source) if lacks_zero_copy && config.copy == CopyMode::ZeroCopy => {
                AfXdpError::ZeroCopyRefused { interface, queue, source }
            }
            Self::Other(error) => error,
            Self::Refused(source) => match source.raw_os_error() {
                Some(libc::EBUSY) => AfXdpError::QueueBusy { interface, queue },
                Some(libc::ENETDOWN) => AfXdpError::Down(interface),
                _ => AfXdpError::system("bind an AF_XDP socket", source),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::interface::in_own_namespace;
    use super::*;

    #[test]
    fn opening_waits_a_limited_time_for_a_busy_queue() {
        in_own_namespace(|_veth| {
            let config = AfXdpConfig::new("v0");
            let plan = Plan { config: &config, frame_max: 1522, chunks_per_slot: 1 };
            let open = || Queue::open(plan, 0, false, true);
            let first = open().expect("a free queue");
            let second = std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(10 * BIND_RETRY);
                    drop(first);
                });
                open()
            });
            let _second = second.expect("bound when the first one had gone");
            let error = open().expect_err("held").explain(&config, 0);
            assert!(matches!(error, AfXdpError::QueueBusy { queue: 0, .. }), "{error}");
        });
    }
}
