//! Reads captures: pcap of either byte order and timestamp resolution, and pcapng; plain or
//! compressed with zstd or gzip.

mod records;
mod zstd;

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use pcap_file::pcap::PcapParser;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgParser};
use pcap_file::{DataLink, PcapError, TsResolution};

use records::{Records, Source};
use zstd::ZstdReader;

/// Why a capture cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file does not exist or is not readable.
    #[error("cannot read {}: {source}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file starts with no known magic number.
    #[error(
        "{} is neither pcap nor pcapng; Wireshark's `editcap IN OUT.pcapng` converts other formats",
        .0.display()
    )]
    NotACapture(PathBuf),
    /// The frames have no Ethernet header.
    #[error("{} was captured on a link of type {found:?}; only Ethernet has PFC", file.display())]
    LinkType {
        /// The file.
        file: PathBuf,
        /// The link type of the file.
        found: DataLink,
    },
    /// The file ends in the middle of a record.
    #[error("{} is truncated after frame {frames}", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Complete frames before the end.
        frames: u64,
    },
    /// The file is malformed.
    #[error("{} is malformed after frame {frames}: {why}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Frames before the error.
        frames: u64,
        /// The error.
        why: String,
    },
}

/// A frame of a capture.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Capture time, in nanoseconds since 1970.
    pub at: u64,
    /// Link type: the type of the first header.
    pub link: DataLink,
    /// The captured bytes, from the link header on.
    pub bytes: &'a [u8],
    /// Original length without the frame check sequence.
    pub original_len: u32,
}

/// A capture being read.
pub struct Capture {
    file: PathBuf,
    records: Records,
    format: Format,
    frames: u64,
    any_link: bool,
    current: Option<Current>,
}

enum Format {
    Pcap { parser: PcapParser, link: DataLink, nanos_per_tick: u64 },
    PcapNg { parser: Box<PcapNgParser>, interfaces: Vec<Interface>, last: u64 },
}

/// The current frame.
#[derive(Debug, Clone)]
struct Current {
    at: u64,
    link: DataLink,
    original_len: u32,
    bytes: Range<usize>,
}

/// An interface of a pcapng.
#[derive(Debug, Clone, Copy)]
struct Interface {
    link: DataLink,
    clock: Clock,
}

/// Timestamp resolution and offset of a pcapng interface. The pcapng parser leaves timestamps in
/// units of the interface.
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

/// Mask of the link type in the link type word of a pcap header.
const LINK_TYPE: u32 = 0x03ff_ffff;
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP: [u8; 2] = [0x1f, 0x8b];
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

impl Capture {
    /// Opens `file`, which must have been captured on Ethernet; `-` is standard input.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn open(file: &Path) -> Result<Self, CaptureError> {
        let capture = Self::open_any(file)?;
        if let Format::Pcap { link, .. } = capture.format
            && link != DataLink::ETHERNET
        {
            return Err(CaptureError::LinkType { file: file.to_owned(), found: link });
        }
        Ok(Self { any_link: false, ..capture })
    }

    /// Opens a capture of any link type.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn open_any(file: &Path) -> Result<Self, CaptureError> {
        let failed = |source| CaptureError::Open { file: file.to_owned(), source };
        let source: Source = match file.to_str() {
            Some("-") => Box::new(io::stdin()),
            _ => Box::new(File::open(file).map_err(failed)?),
        };
        Self::of_source(file, source)
    }

    /// Reads from `source`; error messages call it `name`.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn of_source(name: &Path, source: Box<dyn Read>) -> Result<Self, CaptureError> {
        Self::of_source_within(name, source, u64::MAX)
    }

    /// Like [`of_source`](Self::of_source), but reads at most `limit` bytes after decompression,
    /// since the size after decompression is not known in advance.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn of_source_within(
        name: &Path,
        source: Box<dyn Read>,
        limit: u64,
    ) -> Result<Self, CaptureError> {
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::UnexpectedEof => {
                CaptureError::Truncated { file: name.to_owned(), frames: 0 }
            }
            _ => CaptureError::Open { file: name.to_owned(), source },
        };
        let mut records = Records::new(source);
        let mut magic = records.magic().map_err(failed)?;
        if let Some(unpack) = decompressor(magic) {
            records = Records::new(Box::new(unpack(records.into_source()).take(limit)));
            magic = records.magic().map_err(failed)?;
        } else if limit < u64::MAX {
            records = Records::new(Box::new(records.into_source().take(limit)));
        }
        let format =
            if magic == PCAPNG { Format::pcapng(&mut records) } else { Format::pcap(&mut records) };
        let format =
            format.ok().flatten().ok_or_else(|| CaptureError::NotACapture(name.to_owned()))?;
        let file = name.to_owned();
        Ok(Self { file, records, format, frames: 0, any_link: true, current: None })
    }

    /// The file, as named by the caller.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The next frame; `None` at the end.
    ///
    /// # Errors
    /// See [`CaptureError`]. Reading cannot continue after an error.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        Ok(if self.advance()? { self.frame() } else { None })
    }

    /// Advances to the next frame. Returns false at the end.
    ///
    /// # Errors
    /// See [`next_frame`](Self::next_frame).
    pub fn advance(&mut self) -> Result<bool, CaptureError> {
        self.current = None; // Its bytes may move.
        let Self { records, format, any_link, .. } = self;
        let next = match format {
            Format::Pcap { parser, link, nanos_per_tick } => {
                next_of_pcap(records, parser, *link, *nanos_per_tick)
            }
            Format::PcapNg { parser, interfaces, last } => {
                next_of_pcapng(records, parser, interfaces, last, *any_link)
            }
        };
        self.current = next.map_err(|fault| fault.explain(&self.file, self.frames))?;
        self.frames += u64::from(self.current.is_some());
        Ok(self.current.is_some())
    }

    /// The current frame.
    #[inline]
    pub fn frame(&self) -> Option<Frame<'_>> {
        let Current { at, link, original_len, bytes } = self.current.as_ref()?;
        let bytes = self.records.bytes(bytes.clone());
        Some(Frame { at: *at, link: *link, bytes, original_len: *original_len })
    }

    /// Number of frames read.
    #[inline]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Calls `take` for every frame, in the order of the file.
    ///
    /// # Errors
    /// See [`CaptureError`]. The frames before the error have been passed to `take`.
    pub fn read(&mut self, mut take: impl FnMut(Frame<'_>)) -> Result<(), CaptureError> {
        while let Some(frame) = self.next_frame()? {
            take(frame);
        }
        Ok(())
    }
}

/// An error that ends reading.
enum Fault {
    Read(PcapError),
    LinkType(DataLink),
}

impl Fault {
    fn explain(self, file: &Path, frames: u64) -> CaptureError {
        let file = file.to_owned();
        match self {
            Self::LinkType(found) => CaptureError::LinkType { file, found },
            Self::Read(PcapError::IoError(source)) if source.kind() == ErrorKind::UnexpectedEof => {
                CaptureError::Truncated { file, frames }
            }
            Self::Read(PcapError::IoError(source)) => CaptureError::Open { file, source },
            Self::Read(error) => CaptureError::Damaged { file, frames, why: error.to_string() },
        }
    }
}

impl From<PcapError> for Fault {
    fn from(error: PcapError) -> Self {
        Self::Read(error)
    }
}

/// The decompressor for a source that starts with `magic`, if it is compressed.
fn decompressor(magic: [u8; 4]) -> Option<fn(Source) -> Source> {
    match magic {
        ZSTD => Some(|source| Box::new(ZstdReader::new(source))),
        [first, second, ..] if [first, second] == GZIP => {
            Some(|source| Box::new(MultiGzDecoder::new(source)))
        }
        _ => None,
    }
}

impl Format {
    /// Reads the file header of a pcap.
    fn pcap(records: &mut Records) -> Result<Option<Self>, PcapError> {
        let Some((parser, _)) = records.take(PcapParser::new)? else { return Ok(None) };
        let header = parser.header();
        // The upper bits hold the length of the frame check sequence. An FCS is recognised by its
        // value.
        let link = DataLink::from(u32::from(header.datalink) & LINK_TYPE);
        let nanos_per_tick = match header.ts_resolution {
            TsResolution::MicroSecond => 1000,
            TsResolution::NanoSecond => 1,
        };
        Ok(Some(Self::Pcap { parser, link, nanos_per_tick }))
    }

    /// Reads the section header of a pcapng.
    fn pcapng(records: &mut Records) -> Result<Option<Self>, PcapError> {
        let Some((parser, _)) = records.take(PcapNgParser::new)? else { return Ok(None) };
        Ok(Some(Self::PcapNg { parser: Box::new(parser), interfaces: Vec::new(), last: 0 }))
    }
}

#[inline(always)] // As `Records::take`.
fn next_of_pcap(
    records: &mut Records,
    parser: &PcapParser,
    link: DataLink,
    nanos_per_tick: u64,
) -> Result<Option<Current>, Fault> {
    let taken = records.take(|bytes| {
        // The raw form, since the checked form rejects frames longer than the snapshot length.
        let (next, packet) = parser.next_raw_packet(bytes)?;
        let at =
            u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * nanos_per_tick;
        Ok((next, (at, packet.orig_len, packet.data.len())))
    })?;
    let Some(((at, original_len, len), record)) = taken else { return Ok(None) };
    Ok(Some(Current { at, link, original_len, bytes: record.end - len..record.end }))
}

/// The parts of a pcapng block that are used.
enum Part {
    Section,
    Interface(Interface),
    Packet { interface: u32, ticks: Option<u64>, original_len: u32, from: usize, len: usize },
    Other,
}

impl From<Block<'_>> for Part {
    fn from(block: Block<'_>) -> Self {
        // Bytes of a block before the frame: type, length and packet fields.
        const HEAD: usize = 28;
        const SIMPLE_HEAD: usize = 12;
        match block {
            Block::SectionHeader(_) => Self::Section,
            Block::InterfaceDescription(interface) => Self::Interface(Interface {
                link: interface.linktype,
                clock: Clock::of(&interface.options),
            }),
            Block::EnhancedPacket(packet) => Self::Packet {
                interface: packet.interface_id,
                ticks: Some(u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX)),
                original_len: packet.original_len,
                from: HEAD,
                len: packet.data.len(),
            },
            Block::Packet(packet) => Self::Packet {
                interface: u32::from(packet.interface_id),
                ticks: Some(packet.timestamp),
                original_len: packet.original_len,
                from: HEAD,
                len: packet.data.len(),
            },
            // The parser leaves the padding of the block in place.
            Block::SimplePacket(packet) => Self::Packet {
                interface: 0,
                ticks: None,
                original_len: packet.original_len,
                from: SIMPLE_HEAD,
                len: packet.data.len().min(packet.original_len as usize),
            },
            _ => Self::Other,
        }
    }
}

fn next_of_pcapng(
    records: &mut Records,
    parser: &mut PcapNgParser,
    interfaces: &mut Vec<Interface>,
    last: &mut u64,
    any_link: bool,
) -> Result<Option<Current>, Fault> {
    loop {
        let taken = records.take(|bytes| {
            let (next, block) = parser.next_block(bytes)?;
            Ok((next, Part::from(block)))
        })?;
        let Some((part, record)) = taken else { return Ok(None) };
        match part {
            Part::Section => interfaces.clear(),
            Part::Interface(Interface { link, .. }) if link != DataLink::ETHERNET && !any_link => {
                return Err(Fault::LinkType(link));
            }
            Part::Interface(interface) => interfaces.push(interface),
            Part::Packet { interface: id, ticks, original_len, from, len } => {
                let interface = usize::try_from(id).ok().and_then(|place| interfaces.get(place));
                let interface = interface.ok_or(PcapError::InvalidInterfaceId(id))?;
                // A packet without a timestamp gets the time of the previous packet.
                *last = ticks.map_or(*last, |ticks| interface.clock.nanos(ticks));
                let at = record.start + from;
                let bytes = at..at + len;
                return Ok(Some(Current { at: *last, link: interface.link, original_len, bytes }));
            }
            Part::Other => {}
        }
    }
}

impl Clock {
    fn of(options: &[InterfaceDescriptionOption<'_>]) -> Self {
        let mut clock = Self { ticks_per_second: 1_000_000, offset_seconds: 0 };
        for option in options {
            match option {
                InterfaceDescriptionOption::IfTsResol(code) => {
                    let power = u32::from(code & 0x7f);
                    let base = if code & 0x80 == 0 { 10_u64 } else { 2 };
                    // Finer resolutions than this cannot be represented.
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
    fn pcapng_timestamps_use_the_interfaces_resolution() {
        let clock = |options: &[InterfaceDescriptionOption<'_>]| Clock::of(options);
        assert_eq!(clock(&[]).nanos(5), 5000, "microseconds by default");
        assert_eq!(clock(&[InterfaceDescriptionOption::IfTsResol(9)]).nanos(5), 5);
        assert_eq!(
            clock(&[InterfaceDescriptionOption::IfTsResol(0x80 | 10)]).nanos(512),
            500_000_000
        );
        let offset = InterfaceDescriptionOption::IfTsOffset((-1_i64).cast_unsigned());
        assert_eq!(clock(&[offset]).nanos(1_500_000), 500_000_000);
    }
}
