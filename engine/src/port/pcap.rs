//! Captures the frames that cross a port to a pcap file.
//!
//! A [`PcapPort`] wraps any port and writes every frame, in both directions, as classic pcap with
//! nanosecond timestamps. It is meant for debugging: it reads the wall clock itself, once per
//! received burst and once per sent frame, so that captures of several hosts are comparable. This
//! is the only exception to the rule that time is an argument. The core itself writes the file, so
//! a slow disk makes a slow port.
//!
//! The capture contains packets, even if the link carries several of them in one frame.
//!
//! The file is flushed when the core goes to sleep or is idle, and on drop. If writing fails (disk
//! full), the capture ends with one error in the log and traffic continues.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};

use super::contract::{Port, PortAttributes, PortStats, Priority, RX_BURST, RxFrame};

/// Bytes buffered before a write to the file.
const BUFFER: usize = 1 << 20;

/// Minimum snapshot length in the file header. It may exceed the actual limit: some readers refuse
/// a frame that was longer on the wire than the header states, even if the frame was cut.
const STATED_SNAPLEN: u32 = 262_144;

/// Empty bursts after which a core that never sleeps counts as idle.
const IDLE_BURSTS: u32 = 1_024;

/// A port whose frames are captured.
pub struct PcapPort {
    inner: Box<dyn Port>,
    capture: Capture,
    /// True if [`Port::tx_slot`] returned a slot that was not committed yet.
    taken: bool,
    idle_bursts: u32,
}

impl PcapPort {
    /// Captures the frames of `inner` to `writer`, at most `snaplen` bytes of each frame
    /// (`u32::MAX`: all). `writer` need not be buffered.
    ///
    /// # Errors
    /// The file header cannot be written.
    pub fn new(
        inner: Box<dyn Port>,
        writer: impl Write + Send + 'static,
        snaplen: u32,
    ) -> io::Result<Self> {
        let frame_max = inner.attributes().frame_max;
        let capture = Capture::start(Box::new(writer), snaplen, frame_max)?;
        Ok(Self { inner, capture, taken: false, idle_bursts: 0 })
    }
}

impl fmt::Debug for PcapPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PcapPort").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl PcapPort {
    /// Records the first `len` bytes of the slot taken last.
    fn record_taken(&mut self, len: usize) {
        assert!(self.taken, "commit without a slot");
        self.taken = false;
        self.idle_bursts = 0;
        let slot = self.inner.tx_slot().expect("the slot taken before");
        self.capture.record(wall_clock(), RxFrame { first: &slot[..len], second: &[] });
    }
}

impl Port for PcapPort {
    fn attributes(&self) -> &PortAttributes {
        self.inner.attributes()
    }

    fn stats(&self) -> PortStats {
        self.inner.stats()
    }

    fn rx_burst(&mut self) -> usize {
        let burst = self.inner.rx_burst();
        debug_assert!(burst <= RX_BURST, "a burst is bounded by contract");
        if burst == 0 {
            self.idle_bursts = self.idle_bursts.saturating_add(1);
            if self.idle_bursts == IDLE_BURSTS {
                self.capture.flush();
            }
            return 0;
        }
        self.idle_bursts = 0;
        let time = wall_clock();
        for index in 0..burst {
            self.capture.record(time, self.inner.rx_frame(index));
        }
        burst
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        self.inner.rx_frame(index)
    }

    fn rx_fill(&mut self) -> Option<u8> {
        self.inner.rx_fill()
    }

    fn tx_room(&mut self) -> usize {
        self.inner.tx_room()
    }

    fn tx_moved(&mut self) -> bool {
        self.inner.tx_moved()
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        let slot = self.inner.tx_slot();
        self.taken = slot.is_some();
        slot
    }

    fn tx_identification(&self, len: usize, joins: bool) -> Option<u16> {
        self.inner.tx_identification(len, joins)
    }

    fn tx_commit(&mut self, len: usize, priority: Priority) {
        self.record_taken(len);
        self.inner.tx_commit(len, priority);
    }

    fn tx_commit_next(&mut self, len: usize, priority: Priority) {
        self.record_taken(len);
        self.inner.tx_commit_next(len, priority);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn is_unfinished(&self) -> bool {
        self.capture.has_buffered() || self.inner.is_unfinished()
    }

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        self.capture.flush();
        self.inner.arm_wakeup(fds)
    }

    fn disarm_wakeup(&mut self) {
        self.inner.disarm_wakeup();
    }
}

/// The capture file, until a write fails.
struct Capture {
    writer: Option<PcapWriter<SharedWriter>>,
    file: SharedWriter,
    snaplen: usize,
    /// Buffer to join frames that came in two parts.
    joined: Vec<u8>,
}

impl Capture {
    fn start(writer: Box<dyn Write + Send>, snaplen: u32, frame_max: usize) -> io::Result<Self> {
        let file = SharedWriter(Arc::new(Mutex::new(BufWriter::with_capacity(BUFFER, writer))));
        let header = PcapHeader {
            snaplen: snaplen.max(STATED_SNAPLEN),
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(file.clone(), header).map_err(io_error)?;
        file.lock().flush()?;
        let snaplen = usize::try_from(snaplen).unwrap_or(usize::MAX);
        let joined = Vec::with_capacity(frame_max.min(snaplen));
        Ok(Self { writer: Some(writer), file, snaplen, joined })
    }

    fn record(&mut self, time: Duration, frame: RxFrame<'_>) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let first = &frame.first[..frame.first.len().min(self.snaplen)];
        let second = &frame.second[..frame.second.len().min(self.snaplen - first.len())];
        let data = if second.is_empty() {
            first
        } else {
            self.joined.clear();
            self.joined.extend_from_slice(first);
            self.joined.extend_from_slice(second);
            &self.joined
        };
        let packet = PcapPacket {
            timestamp: time,
            orig_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(data),
        };
        if let Err(error) = writer.write_packet(&packet) {
            self.stop(&io_error(error));
        }
    }

    /// Returns true if frames were not written to the file yet.
    fn has_buffered(&self) -> bool {
        self.writer.is_some() && !self.file.lock().buffer().is_empty()
    }

    fn flush(&mut self) {
        if self.writer.is_some() {
            let flushed = self.file.lock().flush();
            if let Err(error) = flushed {
                self.stop(&error);
            }
        }
    }

    fn stop(&mut self, error: &io::Error) {
        tracing::error!("the packet capture ends: cannot write its file: {error}");
        self.writer = None;
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Dropping the buffer also writes it, but would ignore an error.
        self.flush();
    }
}

/// The buffered file. It is shared because the pcap writer owns its writer and has no flush.
#[derive(Clone)]
struct SharedWriter(Arc<Mutex<BufWriter<Box<dyn Write + Send>>>>);

impl SharedWriter {
    fn lock(&self) -> MutexGuard<'_, BufWriter<Box<dyn Write + Send>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for SharedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().flush()
    }
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// Time since 1970.
#[allow(clippy::disallowed_methods)] // The module documentation gives the reason.
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::PcapReader;

    use super::*;
    use crate::memory::arena::Arena;
    use crate::port::shm::{ShmConfig, ShmPort, shm_pair};

    /// A file in memory on a disk with limited space.
    #[derive(Debug, Clone)]
    struct Disk {
        bytes: Arc<Mutex<Vec<u8>>>,
        space: usize,
    }

    impl Disk {
        fn of(space: usize) -> Self {
            Self { bytes: Arc::default(), space }
        }

        fn packets(&self) -> Vec<(Duration, u32, Vec<u8>)> {
            let bytes = self.bytes.lock().unwrap().clone();
            let mut reader = PcapReader::new(&bytes[..]).unwrap();
            let header = reader.header();
            assert_eq!(header.datalink, DataLink::ETHERNET);
            assert_eq!(header.ts_resolution, TsResolution::NanoSecond);
            let mut packets = Vec::new();
            while let Some(packet) = reader.next_packet() {
                let packet = packet.unwrap();
                packets.push((packet.timestamp, packet.orig_len, packet.data.to_vec()));
            }
            packets
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut file = self.bytes.lock().unwrap();
            let fits = bytes.len().min(self.space - file.len());
            if fits == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.extend_from_slice(&bytes[..fits]);
            Ok(fits)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pair() -> (ShmPort, ShmPort) {
        shm_pair(&Arena::new(1 << 23).unwrap(), ShmConfig::default()).unwrap()
    }

    fn captured(disk: &Disk, snaplen: u32) -> (PcapPort, ShmPort) {
        let (left, right) = pair();
        (PcapPort::new(Box::new(left), disk.clone(), snaplen).unwrap(), right)
    }

    fn send(port: &mut dyn Port, frame: &[u8]) {
        port.tx_slot().unwrap()[..frame.len()].copy_from_slice(frame);
        port.tx_commit(frame.len(), Priority::default());
        port.flush().unwrap();
    }

    #[test]
    fn both_directions_are_captured_with_timestamps() {
        let disk = Disk::of(usize::MAX);
        let (mut port, mut peer) = captured(&disk, u32::MAX);
        let before = wall_clock();
        send(&mut port, &[1; 60]);
        send(&mut peer, &[2; 4218]);
        send(&mut peer, &[3; 14]);
        assert_eq!((port.rx_burst(), peer.rx_burst()), (2, 1));
        assert_eq!(port.rx_frame(1).first, [3; 14]);
        assert_eq!(peer.rx_frame(0).first, [1; 60]);
        let after = wall_clock();
        assert_eq!(disk.packets().len(), 0, "still in the buffer");
        drop(port);
        let packets = disk.packets();
        let data: Vec<&[u8]> = packets.iter().map(|packet| &packet.2[..]).collect();
        assert_eq!(data, [&[1; 60][..], &[2; 4218], &[3; 14]]);
        assert!(packets.is_sorted_by_key(|packet| packet.0));
        assert!(packets.iter().all(|packet| (before..=after).contains(&packet.0)));
    }

    #[test]
    fn a_short_snapshot_keeps_the_length_on_the_wire() {
        let disk = Disk::of(usize::MAX);
        let (mut port, _peer) = captured(&disk, 64);
        send(&mut port, &[7; 100]);
        send(&mut port, &[8; 30]);
        drop(port);
        let lengths: Vec<_> =
            disk.packets().iter().map(|packet| (packet.1, packet.2.len())).collect();
        assert_eq!(lengths, [(100, 64), (30, 30)]);
    }

    #[test]
    fn sleeping_and_idling_flush_the_file() {
        let disk = Disk::of(usize::MAX);
        let (mut port, _peer) = captured(&disk, u32::MAX);
        send(&mut port, &[1; 60]);
        port.arm_wakeup(&mut Vec::new());
        assert_eq!(disk.packets().len(), 1);
        port.disarm_wakeup();
        send(&mut port, &[2; 60]);
        for _ in 0..IDLE_BURSTS {
            assert_eq!(disk.packets().len(), 1);
            port.rx_burst();
        }
        assert_eq!(disk.packets().len(), 2);
    }

    #[test]
    fn a_full_disk_ends_the_capture_but_not_the_traffic() {
        let disk = Disk::of(1 << 20);
        let (mut port, mut peer) = captured(&disk, u32::MAX);
        for serial in 0..=255_u8 {
            for _ in 0..4 {
                send(&mut port, &[serial; 4000]);
                assert_eq!((peer.rx_burst(), peer.rx_frame(0).first), (1, &[serial; 4000][..]));
            }
        }
        assert!(port.capture.writer.is_none());
        drop(port);
        assert!(disk.bytes.lock().unwrap().len() <= 1 << 20);

        let no_header = PcapPort::new(Box::new(pair().0), Disk::of(10), 64);
        assert_eq!(no_header.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_frame_in_two_parts_is_captured_completely() {
        let disk = Disk::of(usize::MAX);
        for (snaplen, parts) in [(4_096, 5_000), (3_500, 5_000), (2_000, 5_000)] {
            let mut capture = Capture::start(Box::new(disk.clone()), snaplen, parts).unwrap();
            capture.record(Duration::ZERO, RxFrame { first: &[1; 3_000], second: &[2; 2_000] });
            drop(capture);
            let mut whole = vec![1; 3_000];
            whole.extend([2; 2_000]);
            whole.truncate(snaplen as usize);
            assert_eq!(disk.packets(), [(Duration::ZERO, 5_000, whole)]);
            disk.bytes.lock().unwrap().clear();
        }
    }
}
