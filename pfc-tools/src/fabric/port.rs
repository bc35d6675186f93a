//! A port: what waits for its line, who goes first, and who has to wait because of PFC.

use super::fault::Faults;
use super::measure::histogram::TimeHistogram;
use super::packet::{Fifo, PacketId, Packets};
use super::pause::Pauses;
use super::scheduler::{Plan, Scheduler};
use super::time::{LineRate, Time};

/// Who owns a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Host(u32),
    Switch(u32),
    /// A real host, whose number this is.
    Outside(u32),
    /// A host that is the engine.
    Engine(u32),
}

/// What a port has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortCounts {
    /// Frames sent, of every kind.
    pub frames: u64,
    /// Bytes sent as they occupy the line: with preamble and gap.
    pub line_bytes: u64,
    /// Pauses sent: PFC frames that pause something.
    pub pauses_sent: u64,
    /// PFC frames sent that only let go.
    pub resumes_sent: u64,
    /// Pauses received.
    pub pauses_received: u64,
    /// Packets dropped on their way in: no buffer.
    pub dropped: u64,
    /// Packets that went into headroom.
    pub headroom: u64,
    /// Packets marked on their way out.
    pub marked: u64,
    /// Frames that the line lost.
    pub lost: u64,
    /// Frames that the line damaged.
    pub corrupted: u64,
}

/// In place of a priority: the queues of all of them together.
pub(crate) const ALL: u8 = u8::MAX;

/// A queue whose length over time is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch {
    pub priority: u8,
    since: Time,
    bytes: u64,
    pub histogram: TimeHistogram,
}

impl Watch {
    pub fn new(priority: u8) -> Self {
        Self { priority, ..Self::default() }
    }

    #[inline]
    pub fn set(&mut self, bytes: u64, now: Time) {
        self.histogram.add(self.bytes, now - self.since);
        (self.bytes, self.since) = (bytes, now);
    }

    /// Forgets what was until now.
    pub fn restart(&mut self, now: Time) {
        self.histogram = TimeHistogram::default();
        self.since = now;
    }

    /// The length now.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// One end of a line, and the line out of it. What every packet needs comes first: the processor's cache does not hold all of every port.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Port {
    pub node: Node,
    /// The port at the other end of the line.
    pub peer: u32,
    /// The port's number at its node.
    pub local: u16,
    backlog: u8,
    pub rate: LineRate,
    pub delay: Time,
    /// When the line is free.
    pub free_at: Time,
    /// When the port is looked at next.
    pub wake_at: Time,
    pub faults: Option<Box<Faults>>,
    pub watch: Option<Box<Watch>>,
    /// PFC frames, ahead of everything.
    pub control: Fifo,
    pub counts: PortCounts,
    pub pauses: Pauses,
    plan: Plan,
    scheduler: Scheduler,
    queues: [Fifo; 8],
    /// What had been counted when figures began to count.
    pub counts_before: PortCounts,
}

impl Port {
    pub fn new(node: Node, local: u16, rate: LineRate, delay: Time, plan: Plan) -> Self {
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
            plan,
            scheduler: Scheduler::default(),
            watch: None,
            counts: PortCounts::default(),
            counts_before: PortCounts::default(),
        }
    }

    /// Bytes that wait in the queue of `priority`.
    #[inline]
    pub fn queued(&self, priority: u8) -> u64 {
        self.queues[usize::from(priority)].bytes()
    }

    /// The packets that wait in the queue of `priority`.
    pub const fn queue(&self, priority: u8) -> &Fifo {
        &self.queues[priority as usize]
    }

    /// Bytes that wait in all queues.
    pub fn queued_all(&self) -> u64 {
        self.queues.iter().map(Fifo::bytes).sum()
    }

    /// The priorities that have something waiting, a bit each.
    pub const fn backlog(&self) -> u8 {
        self.backlog
    }

    #[inline]
    pub fn enqueue(&mut self, priority: u8, id: PacketId, packets: &mut Packets, now: Time) {
        let queue = &mut self.queues[usize::from(priority)];
        queue.push(id, packets);
        self.backlog |= 1 << priority;
        self.note_length(priority, now);
    }

    /// Takes the packet that goes next of those whose priority need not wait.
    #[inline]
    pub fn dequeue(&mut self, packets: &mut Packets, now: Time) -> Option<PacketId> {
        let ready = self.backlog & !self.pauses.waiting(now);
        let queues = &self.queues;
        let head = |p| queues[usize::from(p)].front().map_or(0, |id| packets.get(id).size);
        let priority = self.scheduler.pick(ready, &self.plan, head)?;
        let queue = &mut self.queues[usize::from(priority)];
        let id = queue.pop(packets)?;
        if queue.is_empty() {
            self.backlog &= !(1 << priority);
            self.scheduler.emptied(priority);
        }
        self.note_length(priority, now);
        Some(id)
    }

    /// When something that waits may go that now has to wait for the end of a pause.
    pub fn next_release(&mut self, now: Time) -> Option<Time> {
        self.pauses.waiting(now);
        self.pauses.first_end(self.backlog)
    }

    #[inline]
    fn note_length(&mut self, priority: u8, now: Time) {
        if let Some(watch) = &mut self.watch {
            if watch.priority == priority {
                watch.set(self.queues[usize::from(priority)].bytes(), now);
            } else if watch.priority == ALL {
                watch.set(self.queues.iter().map(Fifo::bytes).sum(), now);
            }
        }
    }
}
