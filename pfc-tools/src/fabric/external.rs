//! External hosts: frames enter the fabric from real hosts and leave it to them, in real time.
//!
//! The link of an external host keeps its rate: frames that arrive faster queue as in a NIC and are
//! lost when its buffer is full.

use super::Fabric;
use super::measure::histogram::TimeHistogram;
use super::packet::{Flags, Kind, Packet, PacketId};
use super::port::{ALL, Node, PortCounts, QueueMonitor};
use super::time::Time;

/// A frame that has reached the end of its link and leaves the fabric for an external host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// A frame.
    Frame {
        /// The host.
        host: u32,
        /// The number returned by [`Fabric::inject`].
        frame: usize,
        /// True if the frame was marked, in the fabric or before.
        marked: bool,
        /// True if bits of the frame were flipped in the fabric.
        corrupted: bool,
    },
    /// A PFC frame: of the priorities in `enabled`, those in `paused` stop for `quanta`, the others
    /// resume.
    Pause {
        /// The host.
        host: u32,
        /// Enabled priorities, one bit each.
        enabled: u8,
        /// Priorities to pause, one bit each.
        paused: u8,
        /// Pause time, in units of 512 bit times of the host's link.
        quanta: u16,
    },
}

/// The properties of a frame from an external host that the fabric uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalFrame {
    /// Destination host.
    pub to: u32,
    /// Size in bytes, including FCS.
    pub size: u32,
    /// Priority.
    pub priority: u8,
    /// Flow hash for ECMP, computed from addresses and ports.
    pub entropy: u32,
    /// True if the frame is ECN-capable.
    pub ecn_capable: bool,
    /// True if the frame was already marked.
    pub marked: bool,
}

/// Settings of external hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalConfig {
    /// Maximum number of bytes that may queue for a host's link.
    pub nic_buffer: u64,
    /// True if the NIC model obeys the switch's pauses, even if the host does not.
    pub nics_obey: bool,
}

/// Statistics of an external host's link.
#[derive(Debug, Clone)]
pub struct LinkReport {
    /// From the host to the switch: frames, marks and faults of this direction.
    pub sent: PortCounts,
    /// From the switch to the host; also packets from the host that the switch dropped.
    pub received: PortCounts,
    /// Bytes queued for the link to the host, now.
    pub queue: u64,
    /// Bytes queued for the link to the host, over time.
    pub queues: TimeHistogram,
    /// Pause time of the link to the host, summed over the priorities.
    pub paused: Time,
}

impl Fabric {
    /// Makes the hosts in `hosts` external.
    pub fn open(&mut self, hosts: &[u32], external: ExternalConfig) {
        self.external = external;
        for &host in hosts {
            let port = self.hosts[host as usize].port as usize;
            self.ports[port].node = Node::External(host);
            let peer = self.ports[port].peer as usize;
            self.ports[peer].watch = Some(Box::new(QueueMonitor::new(ALL)));
        }
    }

    /// Processes all events up to `now`. Frames that left the fabric are appended to `departures`.
    pub fn run_until(&mut self, now: Time, departures: &mut Vec<Departure>) {
        while let Some((at, event)) = self.events.pop_until(now) {
            debug_assert!(at >= self.now, "virtual time never decreases");
            self.now = at;
            self.processed += 1;
            self.handle(event);
        }
        self.now = self.now.max(now);
        departures.append(&mut self.departures);
    }

    /// Sends a frame from external host `from` at the current time. Returns a small number that
    /// identifies the frame until it leaves the fabric or the number is used again; `None` if the
    /// host's NIC has no room.
    pub fn inject(&mut self, from: u32, frame: ExternalFrame) -> Option<usize> {
        let port = self.hosts[from as usize].port;
        let nic = &self.ports[port as usize];
        if nic.queued_all() + u64::from(frame.size) > self.external.nic_buffer {
            return None;
        }
        let ExternalFrame { to, size, priority, entropy, ecn_capable, marked } = frame;
        let mut packet = Packet::new(Kind::Frame, u32::MAX, to, size, priority);
        packet.entropy = entropy;
        packet.flags.set(Flags::ECN_CAPABLE, ecn_capable);
        packet.flags.set(Flags::MARKED, marked);
        let id = self.packets.add(packet);
        self.ports[port as usize].enqueue(priority, id, &mut self.packets, self.now);
        self.try_transmit(port);
        Some(id.index())
    }

    /// Sends a PFC frame from external host `from` at the current time.
    pub fn inject_pause(&mut self, from: u32, enabled: u8, paused: u8, quanta: u16) {
        let port = self.hosts[from as usize].port;
        let kind = Kind::Pfc { enabled, paused: paused & enabled, quanta };
        let id = self.packets.add(Packet::new(kind, u32::MAX, u32::MAX, self.packet.control, 7));
        self.ports[port as usize].control.push(id, &mut self.packets);
        self.try_transmit(port);
    }

    /// Statistics of an external host's link.
    pub fn link_report(&mut self, host: u32) -> LinkReport {
        let now = self.now;
        let port = self.hosts[host as usize].port as usize;
        let sent = self.ports[port].counts;
        let peer = self.ports[port].peer as usize;
        let out = &mut self.ports[peer];
        let queue = out.queued_all();
        if let Some(watch) = &mut out.watch {
            watch.set(queue, now);
        }
        let queues = out.watch.as_ref().map(|watch| watch.histogram.clone()).unwrap_or_default();
        LinkReport { sent, received: out.counts, queue, queues, paused: out.pauses.total(now) }
    }

    /// Packets dropped by switches because no route exists.
    pub fn unroutable(&self) -> u64 {
        self.switches.iter().map(|switch| switch.unroutable).sum()
    }

    /// Transmits the next frame of an external host on its link. Returns true if a frame was sent.
    pub(super) fn external_sends(&mut self, port: u32) -> bool {
        let Some(id) = self.ports[port as usize].dequeue(&mut self.packets, self.now) else {
            return false;
        };
        self.transmit(port, id);
        true
    }

    /// Delivers a frame to an external host.
    pub(super) fn external_receives(&mut self, host: u32, id: PacketId) {
        let packet = *self.packets.get(id);
        let (marked, corrupted) = (packet.has(Flags::MARKED), packet.has(Flags::CORRUPTED));
        self.packets.remove(id);
        self.departures.push(Departure::Frame { host, frame: id.index(), marked, corrupted });
    }
}
