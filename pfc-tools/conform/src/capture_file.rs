//! Reads and writes the frames of pcap files.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, TsResolution};

use crate::endpoint::{Failure, failed};
use feroce_engine::files;

/// A captured frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Time of capture since the epoch.
    pub at: Duration,
    /// Bytes, from the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// Reads a capture.
///
/// # Errors
/// If the file cannot be read to its end.
pub fn read(path: &Path) -> Result<Vec<Frame>, Failure> {
    let read = || {
        let mut reader = PcapReader::new(BufReader::new(File::open(path)?))?;
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet?;
            frames.push(Frame { at: packet.timestamp, bytes: packet.data.into_owned() });
        }
        Ok(frames)
    };
    let frames: Result<_, Box<dyn std::error::Error>> = read();
    frames.map_err(failed(path.display()))
}

/// Writes a capture.
///
/// # Errors
/// If the file cannot be written.
pub fn write<'a>(path: &Path, frames: impl IntoIterator<Item = &'a Frame>) -> Result<(), Failure> {
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let write = || {
        let file = std::io::BufWriter::new(files::create_private(path)?);
        let mut writer = PcapWriter::with_header(file, header)?;
        for frame in frames {
            let orig_len = u32::try_from(frame.bytes.len()).expect("a frame");
            let data = Cow::Borrowed(&frame.bytes[..]);
            writer.write_packet(&PcapPacket { timestamp: frame.at, orig_len, data })?;
        }
        Ok(())
    };
    let written: Result<_, Box<dyn std::error::Error>> = write();
    written.map_err(failed(path.display()))
}
