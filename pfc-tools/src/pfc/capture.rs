//! Captures: pcap of either byte order and resolution, and pcapng, plain or compressed with zstd or gzip.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

use super::unpacked::Unpacked;

/// Why a capture cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It is not there, or nobody may read it.
    #[error("cannot read {}: {source}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It begins with nothing known.
    #[error("{} is no capture: neither pcap nor pcapng", .0.display())]
    NotACapture(PathBuf),
    /// Its frames have no Ethernet header.
    #[error("{} was captured on a link of type {found:?}; only Ethernet has PFC", file.display())]
    LinkType {
        /// The file.
        file: PathBuf,
        /// What it says.
        found: DataLink,
    },
    /// It ends in the middle of something.
    #[error("{} is cut off behind its frame {frames}", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Whole frames ahead of that.
        frames: u64,
    },
    /// It contradicts itself.
    #[error("{} is damaged behind its frame {frames}: {why}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Frames ahead of that.
        frames: u64,
        /// What is wrong there.
        why: String,
    },
}

/// A frame of a capture.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// When it was captured, in nanoseconds since 1970.
    pub at: u64,
    /// From the Ethernet header on, as much as was captured.
    pub bytes: &'a [u8],
    /// Its length on the line, without the frame check sequence.
    pub line_len: u32,
}

type Source = Box<dyn Read>;

/// A capture that is being read.
pub struct Capture {
    file: PathBuf,
    reader: Reader,
    frames: u64,
}

enum Reader {
    Pcap { reader: Box<PcapReader<Source>>, nanos_per_tick: u64 },
    PcapNg { reader: Box<PcapNgReader<Source>>, clocks: Vec<Clock> },
}

/// How an interface of a pcapng counts time: the file's reader leaves it in the interface's own ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Clock {
    ticks_per_second: u64,
    offset_seconds: i64,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("file", &self.file).field("frames", &self.frames).finish()
    }
}

/// Of the word in the head of a pcap.
const LINK_TYPE: u32 = 0x03ff_ffff;
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP: [u8; 2] = [0x1f, 0x8b];
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

impl Capture {
    /// Opens `file`, `-` being standard input.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn open(file: &Path) -> Result<Self, CaptureError> {
        let failed = |source| CaptureError::Open { file: file.to_owned(), source };
        let source: Source = match file.to_str() {
            Some("-") => Box::new(io::stdin()),
            _ => Box::new(File::open(file).map_err(failed)?),
        };
        let (magic, source) = peek(source).map_err(failed)?;
        let (magic, source) = match unpacking(magic) {
            None => (magic, source),
            Some(unpack) => peek(unpack(source)).map_err(|source| match source.kind() {
                ErrorKind::UnexpectedEof => {
                    CaptureError::Truncated { file: file.to_owned(), frames: 0 }
                }
                _ => failed(source),
            })?,
        };
        let no_capture = |_error| CaptureError::NotACapture(file.to_owned());
        let reader = if magic == PCAPNG {
            let reader = PcapNgReader::new(source).map_err(no_capture)?;
            Reader::PcapNg { reader: Box::new(reader), clocks: Vec::new() }
        } else {
            let reader = PcapReader::new(source).map_err(no_capture)?;
            let header = reader.header();
            // The upper bits say how long the frame check sequence is; one is noticed by its value.
            let found = DataLink::from(u32::from(header.datalink) & LINK_TYPE);
            if found != DataLink::ETHERNET {
                return Err(CaptureError::LinkType { file: file.to_owned(), found });
            }
            let nanos_per_tick = match header.ts_resolution {
                TsResolution::MicroSecond => 1000,
                TsResolution::NanoSecond => 1,
            };
            Reader::Pcap { reader: Box::new(reader), nanos_per_tick }
        };
        Ok(Self { file: file.to_owned(), reader, frames: 0 })
    }

    /// Frames that have been read.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Hands every frame to `take`, in the order of the file.
    ///
    /// # Errors
    /// See [`CaptureError`]; what comes ahead of the fault has been handed over then.
    pub fn read(&mut self, mut take: impl FnMut(Frame<'_>)) -> Result<(), CaptureError> {
        let ended = match &mut self.reader {
            Reader::Pcap { reader, nanos_per_tick } => {
                read_pcap(reader, *nanos_per_tick, &mut self.frames, &mut take)
            }
            Reader::PcapNg { reader, clocks } => {
                read_pcapng(reader, clocks, &mut self.frames, &mut take)
            }
        };
        ended.map_err(|fault| self.error(fault))
    }

    fn error(&self, fault: Fault) -> CaptureError {
        let (file, frames) = (self.file.clone(), self.frames);
        match fault {
            Fault::LinkType(found) => CaptureError::LinkType { file, found },
            Fault::Read(PcapError::IoError(source))
                if source.kind() == ErrorKind::UnexpectedEof =>
            {
                CaptureError::Truncated { file, frames }
            }
            Fault::Read(PcapError::IoError(source)) => CaptureError::Open { file, source },
            Fault::Read(error) => CaptureError::Damaged { file, frames, why: error.to_string() },
        }
    }
}

/// What ends reading ahead of time.
enum Fault {
    Read(PcapError),
    LinkType(DataLink),
}

impl From<PcapError> for Fault {
    fn from(error: PcapError) -> Self {
        Self::Read(error)
    }
}

/// How a source is unpacked that begins so, if it is packed.
fn unpacking(magic: [u8; 4]) -> Option<fn(Source) -> Source> {
    match magic {
        ZSTD => Some(|source| Box::new(Unpacked::new(source))),
        [first, second, ..] if [first, second] == GZIP => {
            Some(|source| Box::new(MultiGzDecoder::new(source)))
        }
        _ => None,
    }
}

/// The first four bytes (fewer leave zeros), and the source from its beginning.
fn peek(mut source: Source) -> io::Result<([u8; 4], Source)> {
    let mut magic = [0; 4];
    let mut have = 0;
    while have < magic.len() {
        match source.read(&mut magic[have..])? {
            0 => break,
            more => have += more,
        }
    }
    Ok((magic, Box::new(io::Cursor::new(magic[..have].to_vec()).chain(source))))
}

fn read_pcap(
    reader: &mut PcapReader<Source>,
    nanos_per_tick: u64,
    frames: &mut u64,
    take: &mut impl FnMut(Frame<'_>),
) -> Result<(), Fault> {
    // Raw, since the checked form refuses frames that were longer than what is kept of each.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet?;
        let at =
            u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * nanos_per_tick;
        *frames += 1;
        take(Frame { at, bytes: &packet.data, line_len: packet.orig_len });
    }
    Ok(())
}

fn read_pcapng(
    reader: &mut PcapNgReader<Source>,
    clocks: &mut Vec<Clock>,
    frames: &mut u64,
    take: &mut impl FnMut(Frame<'_>),
) -> Result<(), Fault> {
    // A packet without a time is taken at that of the one before.
    let mut last = 0;
    while let Some(block) = reader.next_block() {
        let (interface, ticks, data, line_len) = match &block? {
            Block::SectionHeader(_) => {
                clocks.clear();
                continue;
            }
            Block::InterfaceDescription(interface) => {
                if interface.linktype != DataLink::ETHERNET {
                    return Err(Fault::LinkType(interface.linktype));
                }
                clocks.push(Clock::of(&interface.options));
                continue;
            }
            Block::EnhancedPacket(packet) => {
                let ticks = u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX);
                (packet.interface_id, Some(ticks), packet.data.clone(), packet.original_len)
            }
            Block::Packet(packet) => {
                let id = u32::from(packet.interface_id);
                (id, Some(packet.timestamp), packet.data.clone(), packet.original_len)
            }
            Block::SimplePacket(packet) => {
                // With the padding of the block, which the reader leaves there.
                let len = usize::try_from(packet.original_len).unwrap_or(usize::MAX);
                let data = &packet.data[..packet.data.len().min(len)];
                (0, None, data.to_vec().into(), packet.original_len)
            }
            _ => continue,
        };
        let clock = usize::try_from(interface).ok().and_then(|place| clocks.get(place));
        let clock = clock.ok_or(PcapError::InvalidInterfaceId(interface))?;
        last = ticks.map_or(last, |ticks| clock.nanos(ticks));
        *frames += 1;
        take(Frame { at: last, bytes: &data, line_len });
    }
    Ok(())
}

impl Clock {
    fn of(options: &[InterfaceDescriptionOption<'_>]) -> Self {
        let mut clock = Self { ticks_per_second: 1_000_000, offset_seconds: 0 };
        for option in options {
            match option {
                InterfaceDescriptionOption::IfTsResol(code) => {
                    let power = u32::from(code & 0x7f);
                    let base = if code & 0x80 == 0 { 10_u64 } else { 2 };
                    // Finer than that, no tick is told from the next.
                    clock.ticks_per_second = base.checked_pow(power).unwrap_or(u64::MAX);
                }
                InterfaceDescriptionOption::IfTsOffset(seconds) => {
                    clock.offset_seconds = seconds.cast_signed();
                }
                _ => {}
            }
        }
        clock
    }

    fn nanos(self, ticks: u64) -> u64 {
        let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(self.ticks_per_second);
        let nanos = i128::try_from(nanos).unwrap_or(i128::MAX);
        let nanos = nanos.saturating_add(i128::from(self.offset_seconds) * 1_000_000_000);
        u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pcapng_interface_counts_time_as_it_says() {
        let clock = |options: &[InterfaceDescriptionOption<'_>]| Clock::of(options);
        assert_eq!(clock(&[]).nanos(5), 5000, "microseconds unless told otherwise");
        assert_eq!(clock(&[InterfaceDescriptionOption::IfTsResol(9)]).nanos(5), 5);
        assert_eq!(
            clock(&[InterfaceDescriptionOption::IfTsResol(0x80 | 10)]).nanos(512),
            500_000_000
        );
        let offset = InterfaceDescriptionOption::IfTsOffset((-1_i64).cast_unsigned());
        assert_eq!(clock(&[offset]).nanos(1_500_000), 500_000_000);
    }
}
