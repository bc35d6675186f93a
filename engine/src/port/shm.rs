//! Two ports connected by rings in shared memory: a lossless cable between two cores.
//!
//! Each direction is one `frame_ring`. A full ring gives no slot, so no frame is lost while both
//! ends exist. A sleeping sender that waits for room is woken when there is some. After one end was
//! dropped, frames to it are lost, as on an unplugged cable, and [`Port::flush`] returns an error.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use feroce_wire::MacAddr;

use super::contract::{Port, PortAttributes, PortStats, Priority, RxFrame};
use crate::memory::arena::Arena;
use crate::memory::frame_ring::{FrameConsumer, FrameProducer, FrameRingError, frame_ring};

/// Ethernet header and one VLAN tag, in bytes.
const LINK_HEADER: usize = 18;

/// Configuration of an [`shm_pair`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmConfig {
    /// Name of the pair; its ends are called `name-0` and `name-1`.
    pub name: String,
    /// Frames that each direction holds; a power of two.
    pub slots: usize,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Ethernet addresses of the two ends.
    pub macs: [MacAddr; 2],
    /// Rate in bit/s of the link that the ring emulates, if any.
    pub link_rate: Option<u64>,
}

impl Default for ShmConfig {
    /// 512 frames in each direction; an MTU that carries a path MTU of 4096 with all headers, also
    /// over IPv6 (84 bytes); locally administered addresses.
    fn default() -> Self {
        Self {
            name: "shm".to_owned(),
            slots: 512,
            mtu: 4200,
            macs: [MacAddr([2, 0xfe, 0, 0, 0, 1]), MacAddr([2, 0xfe, 0, 0, 0, 2])],
            link_rate: None,
        }
    }
}

/// Creates two connected ports with memory from `arena`.
///
/// # Errors
/// [`FrameRingError::Shape`] if the number of slots is not a power of two or a frame is too large.
/// Otherwise memory or a descriptor is missing.
pub fn shm_pair(
    arena: &Arc<Arena>,
    config: ShmConfig,
) -> Result<(ShmPort, ShmPort), FrameRingError> {
    let frame_max = config.mtu as usize + LINK_HEADER;
    let (tx_0, rx_1) = frame_ring(arena, config.slots, frame_max)?;
    let (tx_1, rx_0) = frame_ring(arena, config.slots, frame_max)?;
    let end = |index: usize, tx, rx| {
        let attributes = PortAttributes {
            kind: "shm".to_owned(),
            name: format!("{}-{index}", config.name),
            mac: config.macs[index],
            mtu: config.mtu,
            frame_max,
            link_rate: config.link_rate,
            queues: 1,
            segments_max: 1,
            source_ports: Vec::new(),
        };
        ShmPort::new(attributes, tx, rx)
    };
    Ok((end(0, tx_0, rx_0), end(1, tx_1, rx_1)))
}

/// One end of two rings: of an [`shm_pair`], or between this process and a daemon.
#[derive(Debug)]
pub struct ShmPort {
    attributes: PortAttributes,
    stats: PortStats,
    tx: FrameProducer,
    rx: FrameConsumer,
    /// Frames committed since the last flush.
    queued: Queued,
    /// True if the core needed a slot and none was free.
    waits_for_room: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Queued {
    frames: u64,
    bytes: u64,
}

impl ShmPort {
    /// A port that sends into `tx` and receives from `rx`.
    pub(crate) fn new(attributes: PortAttributes, tx: FrameProducer, rx: FrameConsumer) -> Self {
        let (stats, queued) = (PortStats::default(), Queued::default());
        Self { attributes, stats, tx, rx, queued, waits_for_room: false }
    }

    fn commit(&mut self, len: usize, priority: Priority, joins: bool) {
        self.tx.commit(len, priority, joins);
        self.queued.frames += 1;
        self.queued.bytes += len as u64;
    }
}

impl Port for ShmPort {
    fn attributes(&self) -> &PortAttributes {
        &self.attributes
    }

    fn stats(&self) -> PortStats {
        self.stats
    }

    fn rx_burst(&mut self) -> usize {
        let burst = self.rx.burst();
        self.stats.rx_bytes += self.rx.bytes();
        self.stats.rx_frames += burst as u64;
        burst
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        RxFrame { first: self.rx.frame(index).0, second: &[] }
    }

    fn rx_fill(&mut self) -> Option<u8> {
        Some(self.rx.fill())
    }

    fn tx_room(&mut self) -> usize {
        let room = self.tx.room();
        self.waits_for_room = room == 0;
        room
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        let slot = self.tx.slot();
        self.waits_for_room = slot.is_none();
        slot
    }

    fn tx_commit(&mut self, len: usize, priority: Priority) {
        self.commit(len, priority, false);
    }

    fn tx_commit_next(&mut self, len: usize, priority: Priority) {
        self.commit(len, priority, true);
    }

    fn flush(&mut self) -> io::Result<()> {
        let queued = std::mem::take(&mut self.queued);
        if self.tx.publish() {
            self.stats.tx_frames += queued.frames;
            self.stats.tx_bytes += queued.bytes;
            Ok(())
        } else {
            self.stats.tx_dropped += queued.frames;
            Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the other end of the shared memory is gone",
            ))
        }
    }

    fn is_unfinished(&self) -> bool {
        false // The other end announces its frames, and room for more.
    }

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        if !self.rx.arm() {
            return false;
        }
        if self.waits_for_room {
            if !self.tx.arm() {
                self.rx.disarm();
                return false;
            }
            fds.push(self.tx.fd());
        }
        if !self.rx.producer_gone() {
            fds.push(self.rx.fd());
        }
        true
    }

    fn disarm_wakeup(&mut self) {
        self.rx.disarm();
        if self.waits_for_room {
            self.tx.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(slots: usize) -> (ShmPort, ShmPort) {
        let arena = Arena::new(1 << 23).unwrap();
        shm_pair(&arena, ShmConfig { slots, ..ShmConfig::default() }).unwrap()
    }

    fn send(port: &mut ShmPort, frame: &[u8]) {
        port.tx_slot().unwrap()[..frame.len()].copy_from_slice(frame);
        port.tx_commit(frame.len(), Priority::default());
    }

    #[test]
    fn the_ends_differ_and_carry_the_largest_roce_packet() {
        let (mut left, right) = pair(4);
        let (a, b) = (left.attributes().clone(), right.attributes().clone());
        assert_eq!((&*a.name, &*b.name), ("shm-0", "shm-1"));
        assert_ne!(a.mac, b.mac);
        assert!(a.mac.0[0] & 3 == 2 && b.mac.0[0] & 3 == 2, "unicast, locally administered");
        // IPv6, UDP, BTH, RETH, ImmDt, payload, ICRC; in front of them Ethernet and a VLAN tag.
        let packet = 40 + 8 + 12 + 16 + 4 + 4096 + 4;
        assert!(packet <= a.mtu as usize && packet + 18 <= a.frame_max);
        assert_eq!(left.tx_slot().unwrap().len(), a.frame_max);
    }

    #[test]
    fn frames_cross_both_ways_and_are_counted() {
        let (mut left, mut right) = pair(4);
        send(&mut left, b"ping");
        send(&mut left, &[9; 4218]);
        assert_eq!(right.rx_burst(), 0, "not before the flush");
        left.flush().unwrap();
        assert_eq!(right.rx_burst(), 2);
        assert_eq!(right.rx_frame(0).first, b"ping");
        assert_eq!((right.rx_frame(1).len(), right.rx_frame(1).second.len()), (4218, 0));
        send(&mut right, b"pong!");
        right.flush().unwrap();
        assert_eq!((left.rx_burst(), left.rx_frame(0).first), (1, &b"pong!"[..]));
        let (rx, tx) = (right.stats(), left.stats());
        assert_eq!((tx.tx_frames, tx.tx_bytes, rx.rx_frames, rx.rx_bytes), (2, 4222, 2, 4222));
        assert_eq!((left.stats().rx_frames, left.stats().rx_bytes), (1, 5));
    }

    #[test]
    fn a_full_ring_holds_the_sender_back_and_wakes_it_later() {
        let (mut left, mut right) = pair(2);
        let mut fds = Vec::new();
        assert!(left.arm_wakeup(&mut fds));
        assert_eq!(fds.len(), 1, "nothing to send, so free slots wake no thread");
        left.disarm_wakeup();
        send(&mut left, b"a");
        send(&mut left, b"b");
        left.flush().unwrap();
        assert_eq!((left.tx_room(), left.tx_slot().is_none()), (0, true));
        fds.clear();
        assert!(left.arm_wakeup(&mut fds));
        assert_eq!((fds.len(), readable(&fds)), (2, false));
        assert_eq!((right.rx_burst(), right.rx_burst()), (2, 0));
        assert!(readable(&fds));
        left.disarm_wakeup();
        assert!(!readable(&fds));
        assert!(!left.arm_wakeup(&mut fds), "there is room, do not sleep");
        assert_eq!(left.tx_room(), 2);
        assert_eq!((left.stats().tx_dropped, right.stats().rx_dropped), (0, 0));
    }

    #[test]
    fn a_frame_wakes_a_sleeping_receiver() {
        let (mut left, mut right) = pair(2);
        let mut fds = Vec::new();
        assert!(right.arm_wakeup(&mut fds));
        send(&mut left, b"a");
        assert!(!readable(&fds));
        left.flush().unwrap();
        assert!(readable(&fds));
        right.disarm_wakeup();
        assert!(!right.arm_wakeup(&mut fds), "a frame is waiting");
    }

    #[test]
    fn frames_to_a_dropped_end_are_lost() {
        let (mut left, right) = pair(2);
        drop(right);
        for _ in 0..10 {
            send(&mut left, b"a");
            assert_eq!(left.flush().unwrap_err().kind(), io::ErrorKind::NotConnected);
        }
        assert_eq!((left.stats().tx_frames, left.stats().tx_dropped), (0, 10));
    }

    fn readable(fds: &[RawFd]) -> bool {
        let mut scratch = Vec::new();
        crate::sys::poll_readable(fds, &mut scratch, Some(std::time::Duration::ZERO));
        scratch.iter().any(|fd| fd.revents != 0)
    }
}
