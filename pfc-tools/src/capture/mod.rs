//! Captures: pcap of either byte order and resolution, and pcapng, plain or compressed with zstd or gzip.

mod unpacked;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

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

type Source = Box<dyn Read>;

/// A source of which little is read at a time: it is looked at while it is still in the processor's cache.
struct Sips(Source);

/// Most bytes of a sip.
const SIP: usize = 256 << 10;

impl Read for Sips {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let most = out.len().min(SIP);
        self.0.read(&mut out[..most])
    }
}

/// A capture that is being read.
pub struct Capture {
    file: PathBuf,
    reader: Reader,
    frames: u64,
    any_link: bool,
    /// What of the current frame the reader does not keep.
    copy: Vec<u8>,
}

enum Reader {
    Pcap { reader: Box<PcapReader<Sips>>, link: DataLink, nanos_per_tick: u64 },
    PcapNg { reader: Box<PcapNgReader<Sips>>, interfaces: Vec<Interface>, last: u64 },
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
        if let Reader::Pcap { link, .. } = capture.reader
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
        let (magic, source) = peek(source).map_err(failed)?;
        let (magic, source) = match unpacking(magic) {
            None => (magic, source),
            Some(unpack) => peek(unpack(source)).map_err(failed)?,
        };
        let source: Source = if most == u64::MAX { source } else { Box::new(source.take(most)) };
        let no_capture = |_error| CaptureError::NotACapture(name.to_owned());
        let reader = if magic == PCAPNG {
            let reader = Box::new(PcapNgReader::new(Sips(source)).map_err(no_capture)?);
            Reader::PcapNg { reader, interfaces: Vec::new(), last: 0 }
        } else {
            let reader = PcapReader::new(Sips(source)).map_err(no_capture)?;
            let header = reader.header();
            // The upper bits say how long the frame check sequence is; one is noticed by its value.
            let link = DataLink::from(u32::from(header.datalink) & LINK_TYPE);
            let nanos_per_tick = match header.ts_resolution {
                TsResolution::MicroSecond => 1000,
                TsResolution::NanoSecond => 1,
            };
            Reader::Pcap { reader: Box::new(reader), link, nanos_per_tick }
        };
        Ok(Self { file: name.to_owned(), reader, frames: 0, any_link: true, copy: Vec::new() })
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
        let Self { file, reader, frames, any_link, copy } = self;
        let next = match reader {
            Reader::Pcap { reader, link, nanos_per_tick } => {
                next_of_pcap(reader, *link, *nanos_per_tick, copy)
            }
            Reader::PcapNg { reader, interfaces, last } => {
                next_of_pcapng(reader, interfaces, last, *any_link, copy)
            }
        };
        match next {
            Ok(frame) => {
                *frames += u64::from(frame.is_some());
                Ok(frame)
            }
            Err(fault) => Err(fault.explain(file, *frames)),
        }
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

fn next_of_pcap<'a>(
    reader: &'a mut PcapReader<Sips>,
    link: DataLink,
    nanos_per_tick: u64,
    copy: &'a mut Vec<u8>,
) -> Result<Option<Frame<'a>>, Fault> {
    // Raw, since the checked form refuses frames that were longer than what is kept of each.
    let Some(packet) = reader.next_raw_packet() else { return Ok(None) };
    let packet = packet?;
    let at = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * nanos_per_tick;
    let bytes = match packet.data {
        Cow::Borrowed(bytes) => bytes,
        Cow::Owned(bytes) => {
            *copy = bytes;
            copy
        }
    };
    Ok(Some(Frame { at, link, bytes, line_len: packet.orig_len }))
}

fn next_of_pcapng<'a>(
    reader: &mut PcapNgReader<Sips>,
    interfaces: &mut Vec<Interface>,
    last: &mut u64,
    any_link: bool,
    copy: &'a mut Vec<u8>,
) -> Result<Option<Frame<'a>>, Fault> {
    while let Some(block) = reader.next_block() {
        let (id, ticks, data, line_len) = match &block? {
            Block::SectionHeader(_) => {
                interfaces.clear();
                continue;
            }
            Block::InterfaceDescription(interface) => {
                let link = interface.linktype;
                if link != DataLink::ETHERNET && !any_link {
                    return Err(Fault::LinkType(link));
                }
                interfaces.push(Interface { link, clock: Clock::of(&interface.options) });
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
            // With the padding of the block, which the reader leaves there.
            Block::SimplePacket(packet) => (0, None, packet.data.clone(), packet.original_len),
            _ => continue,
        };
        let interface = usize::try_from(id).ok().and_then(|place| interfaces.get(place));
        let interface = interface.ok_or(PcapError::InvalidInterfaceId(id))?;
        // A packet without a time is taken at that of the one before.
        *last = ticks.map_or(*last, |ticks| interface.clock.nanos(ticks));
        copy.clear();
        copy.extend_from_slice(&data);
        if ticks.is_none() {
            copy.truncate(usize::try_from(line_len).unwrap_or(usize::MAX));
        }
        return Ok(Some(Frame { at: *last, link: interface.link, bytes: copy, line_len }));
    }
    Ok(None)
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
