//! Captures: pcap of either byte order and resolution, and pcapng, plain or compressed with zstd or gzip.

mod records;
mod unpacked;

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
use unpacked::Unpacked;

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
    /// What its first header is.
    pub link: DataLink,
    /// From the link's header on, as much as was captured.
    pub bytes: &'a [u8],
    /// Its length on the line, without the frame check sequence.
    pub line_len: u32,
}

/// A capture that is being read.
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

/// The frame that was taken last.
#[derive(Debug, Clone)]
struct Current {
    at: u64,
    link: DataLink,
    line_len: u32,
    bytes: Range<usize>,
}

/// An interface of a pcapng.
#[derive(Debug, Clone, Copy)]
struct Interface {
    link: DataLink,
    clock: Clock,
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
    /// Opens `file`, `-` being standard input, which must have been captured on Ethernet.
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

    /// The same of a link of any type.
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

    /// Reads `source`, which messages call `name`.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn of_source(name: &Path, source: Box<dyn Read>) -> Result<Self, CaptureError> {
        Self::of_source_within(name, source, u64::MAX)
    }

    /// The same, of which the first `most` bytes are looked at, unpacked if it is packed: what little unpacks to does not show ahead.
    ///
    /// # Errors
    /// See [`CaptureError`].
    pub fn of_source_within(
        name: &Path,
        source: Box<dyn Read>,
        most: u64,
    ) -> Result<Self, CaptureError> {
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::UnexpectedEof => {
                CaptureError::Truncated { file: name.to_owned(), frames: 0 }
            }
            _ => CaptureError::Open { file: name.to_owned(), source },
        };
        let mut records = Records::new(source);
        let mut magic = records.magic().map_err(failed)?;
        if let Some(unpack) = unpacking(magic) {
            records = Records::new(Box::new(unpack(records.into_source()).take(most)));
            magic = records.magic().map_err(failed)?;
        } else if most < u64::MAX {
            records = Records::new(Box::new(records.into_source().take(most)));
        }
        let format =
            if magic == PCAPNG { Format::pcapng(&mut records) } else { Format::pcap(&mut records) };
        let format =
            format.ok().flatten().ok_or_else(|| CaptureError::NotACapture(name.to_owned()))?;
        let file = name.to_owned();
        Ok(Self { file, records, format, frames: 0, any_link: true, current: None })
    }

    /// The file, as it was named.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The next frame, `None` at the end.
    ///
    /// # Errors
    /// See [`CaptureError`]; there is nothing behind an error.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        Ok(if self.advance()? { self.frame() } else { None })
    }

    /// Goes on to the next frame; whether there is one.
    ///
    /// # Errors
    /// As [`next_frame`](Self::next_frame).
    pub fn advance(&mut self) -> Result<bool, CaptureError> {
        self.current = None; // Its bytes may be moved.
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

    /// The frame that [`advance`](Self::advance) has come to.
    #[inline]
    pub fn frame(&self) -> Option<Frame<'_>> {
        let Current { at, link, line_len, bytes } = self.current.as_ref()?;
        let bytes = self.records.bytes(bytes.clone());
        Some(Frame { at: *at, link: *link, bytes, line_len: *line_len })
    }

    /// Frames that have been read.
    #[inline]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Hands every frame to `take`, in the order of the file.
    ///
    /// # Errors
    /// See [`CaptureError`]; what comes ahead of the fault has been handed over then.
    pub fn read(&mut self, mut take: impl FnMut(Frame<'_>)) -> Result<(), CaptureError> {
        while let Some(frame) = self.next_frame()? {
            take(frame);
        }
        Ok(())
    }
}

/// What ends reading ahead of time.
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

impl Format {
    /// Reads the head of a pcap.
    fn pcap(records: &mut Records) -> Result<Option<Self>, PcapError> {
        let Some((parser, _)) = records.take(PcapParser::new)? else { return Ok(None) };
        let header = parser.header();
        // The upper bits say how long the frame check sequence is; one is noticed by its value.
        let link = DataLink::from(u32::from(header.datalink) & LINK_TYPE);
        let nanos_per_tick = match header.ts_resolution {
            TsResolution::MicroSecond => 1000,
            TsResolution::NanoSecond => 1,
        };
        Ok(Some(Self::Pcap { parser, link, nanos_per_tick }))
    }

    /// The same of a pcapng.
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
        // Raw, since the checked form refuses frames that were longer than what is kept of each.
        let (behind, packet) = parser.next_raw_packet(bytes)?;
        let at =
            u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * nanos_per_tick;
        Ok((behind, (at, packet.orig_len, packet.data.len())))
    })?;
    let Some(((at, line_len, len), record)) = taken else { return Ok(None) };
    Ok(Some(Current { at, link, line_len, bytes: record.end - len..record.end }))
}

/// A block of a pcapng, as far as it matters.
enum Part {
    Section,
    Interface(Interface),
    Packet { interface: u32, ticks: Option<u64>, line_len: u32, from: usize, len: usize },
    Other,
}

impl From<Block<'_>> for Part {
    fn from(block: Block<'_>) -> Self {
        // Bytes of a block ahead of the frame: its type and length, and what it says of the frame.
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
                line_len: packet.original_len,
                from: HEAD,
                len: packet.data.len(),
            },
            Block::Packet(packet) => Self::Packet {
                interface: u32::from(packet.interface_id),
                ticks: Some(packet.timestamp),
                line_len: packet.original_len,
                from: HEAD,
                len: packet.data.len(),
            },
            // With the padding of the block, which the parser leaves there.
            Block::SimplePacket(packet) => Self::Packet {
                interface: 0,
                ticks: None,
                line_len: packet.original_len,
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
            let (behind, block) = parser.next_block(bytes)?;
            Ok((behind, Part::from(block)))
        })?;
        let Some((part, record)) = taken else { return Ok(None) };
        match part {
            Part::Section => interfaces.clear(),
            Part::Interface(Interface { link, .. }) if link != DataLink::ETHERNET && !any_link => {
                return Err(Fault::LinkType(link));
            }
            Part::Interface(interface) => interfaces.push(interface),
            Part::Packet { interface: id, ticks, line_len, from, len } => {
                let interface = usize::try_from(id).ok().and_then(|place| interfaces.get(place));
                let interface = interface.ok_or(PcapError::InvalidInterfaceId(id))?;
                // A packet without a time is taken at that of the one before.
                *last = ticks.map_or(*last, |ticks| interface.clock.nanos(ticks));
                let at = record.start + from;
                let bytes = at..at + len;
                return Ok(Some(Current { at: *last, link: interface.link, line_len, bytes }));
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
