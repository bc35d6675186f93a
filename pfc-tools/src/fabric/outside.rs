//! Hosts that are real: what they send comes in from outside, and what is for them goes out, in real time.
//!
//! A host's line is there all the same, with its rate: what comes in faster waits as in a NIC, or is lost if that has no more room.

use super::Fabric;
use super::measure::histogram::TimeHistogram;
use super::packet::{Kind, Packet, PacketId};
use super::port::{ALL, Node, PortCounts, Watch};
use super::time::Time;

/// Something that has reached the end of its line, and leaves the fabric for a real host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// A frame.
    Frame {
        /// The host.
        host: u32,
        /// What [`Fabric::enter`] called it.
        frame: usize,
        /// It was marked on its way, or before.
        marked: bool,
        /// Bits flipped on its way.
        corrupted: bool,
    },
    /// A PFC frame: of the priorities in `enabled` those in `paused` stop for `quanta`, the others go.
    Pause {
        /// The host.
        host: u32,
        /// Priorities that it is about, a bit each.
        enabled: u8,
        /// Those of them that stop.
        paused: u8,
        /// For how long, in 512 bit times of the host's line.
        quanta: u16,
    },
}

/// A frame from a real host, as far as the fabric cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The host that it goes to.
    pub to: u32,
    /// Bytes, with FCS.
    pub size: u32,
    /// Priority.
    pub priority: u8,
    /// What ECMP sees of its addresses and ports.
    pub entropy: u32,
    /// It may be marked.
    pub ecn_capable: bool,
    /// It was marked before.
    pub marked: bool,
}

/// What real hosts have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outside {
    /// Bytes that wait for a host's line at most.
    pub nic_buffer: u64,
    /// Whether NICs hold back what the switch has paused, whatever the host does.
    pub nics_obey: bool,
}

/// What a real host's line has seen.
#[derive(Debug, Clone)]
pub struct LineReport {
    /// From the host to the switch: frames, marks and faults of this direction.
    pub sent: PortCounts,
    /// From the switch to the host, and what the switch dropped of what came in.
    pub received: PortCounts,
    /// Bytes that wait for the line to the host, now.
    pub queue: u64,
    /// The same over time.
    pub queues: TimeHistogram,
    /// For how long the line to the host was paused, its priorities added up.
    pub paused: Time,
}

impl Fabric {
    /// Makes every host of `hosts` a real one.
    pub fn open(&mut self, hosts: &[u32], outside: Outside) {
        self.outside = outside;
        for &host in hosts {
            let port = self.hosts[host as usize].port as usize;
            self.ports[port].node = Node::Outside(host);
            let peer = self.ports[port].peer as usize;
            self.ports[peer].watch = Some(Box::new(Watch::new(ALL)));
        }
    }

    /// Does everything that is due up to `now`. What left the fabric is in `exits`.
    pub fn run_until(&mut self, now: Time, exits: &mut Vec<Exit>) {
        while let Some((at, event)) = self.events.pop_until(now) {
            self.now = at;
            self.happened += 1;
            self.handle(event);
        }
        self.now = self.now.max(now);
        exits.append(&mut self.exits);
    }

    /// A frame comes from real host `from` now. What it is called until it leaves or another has its name: a small number.
    /// `None` if the host's NIC has no room.
    pub fn enter(&mut self, from: u32, entry: Entry) -> Option<usize> {
        let port = self.hosts[from as usize].port;
        let nic = &self.ports[port as usize];
        if nic.queued_all() + u64::from(entry.size) > self.outside.nic_buffer {
            return None;
        }
        let Entry { to, size, priority, entropy, ecn_capable, marked } = entry;
        let mut packet = Packet::new(Kind::Frame, u32::MAX, to, size, priority);
        (packet.entropy, packet.ecn_capable, packet.marked) = (entropy, ecn_capable, marked);
        let id = self.packets.add(packet);
        self.ports[port as usize].enqueue(priority, id, &mut self.packets, self.now);
        self.kick(port);
        Some(id.index())
    }

    /// A PFC frame comes from real host `from` now.
    pub fn enter_pause(&mut self, from: u32, enabled: u8, paused: u8, quanta: u16) {
        let port = self.hosts[from as usize].port;
        let kind = Kind::Pfc { enabled, paused: paused & enabled, quanta };
        let id = self.packets.add(Packet::new(kind, u32::MAX, u32::MAX, self.packet.control, 7));
        self.ports[port as usize].control.push(id, &mut self.packets);
        self.kick(port);
    }

    /// What the line of a real host has seen.
    pub fn line_report(&mut self, host: u32) -> LineReport {
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
        LineReport { sent, received: out.counts, queue, queues, paused: out.pauses.total(now) }
    }

    /// Packets that switches had no way for.
    pub fn unroutable(&self) -> u64 {
        self.switches.iter().map(|switch| switch.unroutable).sum()
    }

    /// The next frame of a real host goes onto its line. Whether there was one that may.
    pub(super) fn outside_sends(&mut self, port: u32) -> bool {
        let Some(id) = self.ports[port as usize].dequeue(&mut self.packets, self.now) else {
            return false;
        };
        self.transmit(port, id);
        true
    }

    /// A frame has reached a real host.
    pub(super) fn outside_receives(&mut self, host: u32, id: PacketId) {
        let Packet { marked, corrupted, .. } = *self.packets.get(id);
        self.packets.remove(id);
        self.exits.push(Exit::Frame { host, frame: id.index(), marked, corrupted });
    }
}
