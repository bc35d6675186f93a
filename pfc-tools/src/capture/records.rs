//! Bytes of a source, of which records are taken where they lie.

use std::io::{self, Cursor, ErrorKind, Read};
use std::ops::Range;

use pcap_file::PcapError;

pub(super) type Source = Box<dyn Read>;

/// A source, little of which is read at a time: it is looked at while it is still in the processor's cache.
pub(super) struct Records {
    source: Source,
    bytes: Vec<u8>,
    /// What of `bytes` has been read and not taken.
    left: Range<usize>,
}

/// Most bytes that are read at a time.
const BLOCK: usize = 256 << 10;
/// Longest record.
const LONGEST: usize = 8_000_000;

impl Records {
    pub(super) const fn new(source: Source) -> Self {
        Self { source, bytes: Vec::new(), left: 0..0 }
    }

    /// The first four bytes, which stay; of fewer, zeros are the rest.
    pub(super) fn magic(&mut self) -> io::Result<[u8; 4]> {
        let mut magic = [0; 4];
        while self.left.len() < magic.len() && self.fill()? > 0 {}
        let have = self.left.len().min(magic.len());
        magic[..have].copy_from_slice(&self.bytes[self.left.clone()][..have]);
        Ok(magic)
    }

    /// The source again, from where nothing was taken.
    pub(super) fn into_source(mut self) -> Source {
        self.bytes.truncate(self.left.end);
        self.bytes.drain(..self.left.start);
        Box::new(Cursor::new(self.bytes).chain(self.source))
    }

    /// What `parse` makes of the record at the front, and where its bytes are; `None` at the end. `parse` returns the bytes behind the
    /// record, too, and is called again if it finds its own [`incomplete`](PcapError::IncompleteBuffer).
    #[inline(always)] // What is parsed stays in registers: a copy would stall on the stores before it.
    pub(super) fn take<T>(
        &mut self,
        mut parse: impl FnMut(&[u8]) -> Result<(&[u8], T), PcapError>,
    ) -> Result<Option<(T, Range<usize>)>, PcapError> {
        if self.left.is_empty() && self.fill().map_err(PcapError::IoError)? == 0 {
            return Ok(None);
        }
        loop {
            match parse(&self.bytes[self.left.clone()]) {
                Ok((behind, parsed)) => {
                    let at = self.left.start;
                    self.left.start = self.left.end - behind.len();
                    return Ok(Some((parsed, at..self.left.start)));
                }
                Err(PcapError::IncompleteBuffer) => {
                    if self.fill().map_err(PcapError::IoError)? == 0 {
                        return Err(PcapError::IoError(ErrorKind::UnexpectedEof.into()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the record that was taken last.
    #[inline]
    pub(super) fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self.bytes[place]
    }

    /// Reads on, behind what is left; how much.
    fn fill(&mut self) -> io::Result<usize> {
        if self.left.len() == LONGEST {
            return Ok(0);
        }
        self.bytes.copy_within(self.left.clone(), 0);
        self.left = 0..self.left.len();
        let most = (self.left.end + BLOCK).min(LONGEST);
        if self.bytes.len() < most {
            self.bytes.resize(most, 0);
        }
        let count = self.source.read(&mut self.bytes[self.left.end..most])?;
        self.left.end += count;
        Ok(count)
    }
}
