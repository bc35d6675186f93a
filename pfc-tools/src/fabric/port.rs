//! A port: its egress queues, their scheduling and their PFC state.

use std::mem::offset_of;

use feroce_engine::memory::ahead::fetch;

use super::error_model::LinkErrors;
use super::measure::histogram::TimeHistogram;
use super::packet::{Fifo, Packet, PacketId, Packets};
use super::pause::Pauses;
use super::scheduler::{Scheduler, SchedulerConfig};
use super::time::{LinkRate, Time};

/// The node that owns a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Host(u32),
    Switch(u32),
    /// An external host, with its number.
    External(u32),
    /// An engine host, with its number.
    Engine(u32),
}

/// Counters of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortCounts {
    /// Frames sent, of all kinds.
    pub frames: u64,
    /// Bytes sent as they occupy the link, including preamble and inter-frame gap.
    pub wire_bytes: u64,
    /// PFC frames sent that pause at least one priority.
    pub pauses_sent: u64,
    /// PFC frames sent that only resume.
    pub resumes_sent: u64,
    /// PFC frames received that pause at least one priority.
    pub pauses_received: u64,
    /// Received packets dropped for lack of buffer.
    pub dropped: u64,
    /// Received packets stored in headroom.
    pub headroom: u64,
    /// Packets marked at egress.
    pub marked: u64,
    /// Frames lost on the link.
    pub lost: u64,
    /// Frames corrupted on the link.
    pub corrupted: u64,
}

/// In place of a priority: the queues of all priorities together.
pub(crate) const ALL: u8 = u8::MAX;

/// Records the length of a queue over time.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueMonitor {
    pub priority: u8,
    since: Time,
    bytes: u64,
    pub histogram: TimeHistogram,
}

impl QueueMonitor {
    pub fn new(priority: u8) -> Self {
        Self { priority, ..Self::default() }
    }

    #[inline]
    pub fn set(&mut self, bytes: u64, now: Time) {
        self.histogram.add(self.bytes, now - self.since);
        (self.bytes, self.since) = (bytes, now);
    }

    /// Records that the queue of `priority` among `queues` has changed.
    #[inline(never)] // Few ports are watched.
    fn record(&mut self, priority: u8, queues: &[Fifo; 8], now: Time) {
        if self.priority == priority {
            self.set(queues[usize::from(priority)].bytes(), now);
        } else if self.priority == ALL {
            self.set(queues.iter().map(Fifo::bytes).sum(), now);
        }
    }

    /// Forgets the records up to now.
    pub fn restart(&mut self, now: Time) {
        self.histogram = TimeHistogram::default();
        self.since = now;
    }

    /// The current length.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// One end of a link, with its egress queues. The processor's cache does not hold the ports of a
/// large network. So what every packet of a strict priority needs is in three cache lines: that of
/// its queue, and two from the last field of `pauses` to the first two of `counts`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Port {
    queues: [Fifo; 8],
    pub pauses: Pauses,
    pub node: Node,
    /// The port at the other end of the link.
    pub peer: u32,
    /// Number of the port within its node.
    pub local: u16,
    backlog: u8,
    /// Strict priorities, one bit each.
    strict: u8,
    pub rate: LinkRate,
    pub delay: Time,
    /// Time at which the current transmission ends.
    pub free_at: Time,
    /// Time of the next scheduled transmission attempt.
    pub wake_at: Time,
    pub faults: Option<Box<LinkErrors>>,
    pub watch: Option<Box<QueueMonitor>>,
    /// PFC frames, sent before all other frames.
    pub control: Fifo,
    pub counts: PortCounts,
    scheduler: Scheduler,
    /// Counters at the end of the warm-up.
    pub counts_before: PortCounts,
}

/// Number of the cache line that holds a byte of a port.
const fn line(offset: usize) -> usize {
    offset / 64
}

/// The end of the first two counters.
const HOT_END: usize = offset_of!(Port, counts) + offset_of!(PortCounts, pauses_sent);

/// The last word of `pauses` is before `node`.
const HOT: usize = offset_of!(Port, node) - size_of::<u64>();

const _: () = assert!(line(HOT_END - 1) - line(HOT) == 1, "hot fields take two cache lines");
const _: () = assert!(offset_of!(Port, queues) == 0, "no queue spans two cache lines");

impl Port {
    pub fn new(
        node: Node,
        local: u16,
        rate: LinkRate,
        delay: Time,
        scheduling: SchedulerConfig,
    ) -> Self {
        Self {
            node,
            local,
            peer: u32::MAX,
            rate,
            delay,
            faults: None,
            free_at: Time::ZERO,
            wake_at: Time::FAR,
            control: Fifo::EMPTY,
            queues: [Fifo::EMPTY; 8],
            backlog: 0,
            pauses: Pauses::default(),
            strict: scheduling.strict,
            scheduler: Scheduler::new(&scheduling),
            watch: None,
            counts: PortCounts::default(),
            counts_before: PortCounts::default(),
        }
    }

    /// Bytes in the queue of `priority`.
    #[inline]
    pub fn queued(&self, priority: u8) -> u64 {
        self.queues[usize::from(priority)].bytes()
    }

    /// The queue of `priority`.
    pub const fn queue(&self, priority: u8) -> &Fifo {
        &self.queues[priority as usize]
    }

    /// Bytes in all queues.
    pub fn queued_all(&self) -> u64 {
        self.queues.iter().map(Fifo::bytes).sum()
    }

    /// The priorities whose queues are not empty, one bit each.
    pub const fn backlog(&self) -> u8 {
        self.backlog
    }

    #[inline]
    pub fn enqueue(&mut self, priority: u8, id: PacketId, packets: &mut Packets, now: Time) {
        let queue = &mut self.queues[usize::from(priority)];
        queue.push(id, packets);
        self.backlog |= 1 << priority;
        self.record_length(priority, now);
    }

    /// Fetches the queues and what else is used for every packet into the processor's cache.
    #[inline]
    pub fn fetch(&self) {
        fetch(&self.queues, size_of_val(&self.queues));
        fetch(&self.node, HOT_END - offset_of!(Self, node));
    }

    /// Fetches the first packet of each queue into the processor's cache.
    #[inline]
    pub fn prepare(&self, packets: &Packets) {
        let mut left = self.backlog;
        while left != 0 {
            if let Some(id) = self.queues[left.trailing_zeros() as usize].front() {
                packets.prepare(id);
            }
            left &= left - 1;
        }
    }

    /// The first packet of the highest priority that has one.
    #[inline]
    pub fn first<'a>(&self, packets: &'a Packets) -> Option<&'a Packet> {
        let priority = self.backlog.checked_ilog2()?;
        self.queues[priority as usize].front().map(|id| packets.get(id))
    }

    /// Removes and returns the next packet among the priorities that are not paused.
    #[inline]
    pub fn dequeue(&mut self, packets: &mut Packets, now: Time) -> Option<PacketId> {
        let ready = self.backlog & !self.pauses.waiting(now);
        let queues = &self.queues;
        let head = |p| queues[usize::from(p)].front().map_or(0, |id| packets.get(id).size);
        let priority = self.scheduler.pick(ready, self.strict, head)?;
        let queue = &mut self.queues[usize::from(priority)];
        let id = queue.pop(packets)?;
        if queue.is_empty() {
            self.backlog &= !(1 << priority);
            // A strict priority has no deficit, and the scheduler's state is rarely in the cache.
            if self.strict >> priority & 1 == 0 {
                self.scheduler.reset_deficit(priority);
            }
        }
        self.record_length(priority, now);
        Some(id)
    }

    /// End of the first pause that holds back a queued packet.
    pub fn next_release(&mut self, now: Time) -> Option<Time> {
        self.pauses.waiting(now);
        self.pauses.first_end(self.backlog)
    }

    #[inline]
    fn record_length(&mut self, priority: u8, now: Time) {
        if let Some(watch) = &mut self.watch {
            watch.record(priority, &self.queues, now);
        }
    }
}
