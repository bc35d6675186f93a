//! Buffered bytes of a source; records are parsed in place.

use std::io::{self, Cursor, ErrorKind, Read};
use std::ops::Range;

use pcap_file::PcapError;

pub(super) type Source = Box<dyn Read>;

/// A source read in small blocks, so that the bytes are parsed while they are in the processor's
/// cache.
pub(super) struct Records {
    source: Source,
    bytes: Vec<u8>,
    /// Range of `bytes` that has been read and not consumed.
    left: Range<usize>,
}

/// Maximum number of bytes read at a time.
const BLOCK: usize = 256 << 10;
/// Longest record.
const LONGEST: usize = 8_000_000;

impl Records {
    pub(super) const fn new(source: Source) -> Self {
        Self { source, bytes: Vec::new(), left: 0..0 }
    }

    /// The first four bytes, without consuming them; missing bytes are zero.
    pub(super) fn magic(&mut self) -> io::Result<[u8; 4]> {
        let mut magic = [0; 4];
        while self.left.len() < magic.len() && self.fill()? > 0 {}
        let have = self.left.len().min(magic.len());
        magic[..have].copy_from_slice(&self.bytes[self.left.clone()][..have]);
        Ok(magic)
    }

    /// The source again, including the bytes that were read and not consumed.
    pub(super) fn into_source(mut self) -> Source {
        self.bytes.truncate(self.left.end);
        self.bytes.drain(..self.left.start);
        Box::new(Cursor::new(self.bytes).chain(self.source))
    }

    /// Parses the record at the front with `parse`. Returns the parsed value and the range of the
    /// record's bytes; `None` at the end. `parse` returns the rest of the bytes too, and is called
    /// again with more bytes if it returns [`IncompleteBuffer`](PcapError::IncompleteBuffer).
    // Inlined, so that the parsed values stay in registers: a copy would stall on earlier stores.
    #[inline(always)]
    pub(super) fn take<T>(
        &mut self,
        mut parse: impl FnMut(&[u8]) -> Result<(&[u8], T), PcapError>,
    ) -> Result<Option<(T, Range<usize>)>, PcapError> {
        if self.left.is_empty() && self.fill().map_err(PcapError::IoError)? == 0 {
            return Ok(None);
        }
        loop {
            match parse(&self.bytes[self.left.clone()]) {
                Ok((next, parsed)) => {
                    let at = self.left.start;
                    self.left.start = self.left.end - next.len();
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

    /// Bytes of the last record.
    #[inline]
    pub(super) fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self.bytes[place]
    }

    /// Reads more bytes and returns their number.
    fn fill(&mut self) -> io::Result<usize> {
        if self.left.len() == LONGEST {
            return Ok(0);
        }
        self.bytes.copy_within(self.left.clone(), 0);
        self.left = 0..self.left.len();
        let end = (self.left.end + BLOCK).min(LONGEST);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let count = self.source.read(&mut self.bytes[self.left.end..end])?;
        self.left.end += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns at most this many bytes per call.
    struct ShortReads(Cursor<Vec<u8>>, usize);

    impl Read for ShortReads {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let len = out.len().min(self.1);
            self.0.read(&mut out[..len])
        }
    }

    /// Records: a length of four bytes, then that many bytes, each equal to the lowest byte of the
    /// length.
    fn written(lengths: &[usize]) -> Vec<u8> {
        let record = |&len: &usize| {
            let head = u32::try_from(len).expect("short").to_le_bytes();
            [&head[..], &vec![head[0]; len]].concat()
        };
        lengths.iter().flat_map(record).collect()
    }

    fn parse(bytes: &[u8]) -> Result<(&[u8], usize), PcapError> {
        let (head, rest) = bytes.split_first_chunk().ok_or(PcapError::IncompleteBuffer)?;
        let len = u32::from_le_bytes(*head) as usize;
        let (_, next) = rest.split_at_checked(len).ok_or(PcapError::IncompleteBuffer)?;
        Ok((next, len))
    }

    fn records(bytes: Vec<u8>, per_call: usize) -> Records {
        Records::new(Box::new(ShortReads(Cursor::new(bytes), per_call)))
    }

    #[test]
    fn records_are_found_for_any_read_size() {
        let lengths = [0, 1, 70_000, 3, BLOCK - 12, BLOCK, 5, 3 * BLOCK + 1, 9];
        for per_call in [1000, BLOCK - 1, usize::MAX] {
            let mut records = records(written(&lengths), per_call);
            assert_eq!(records.magic().unwrap(), [0; 4]);
            for due in lengths {
                let (len, place) = records.take(parse).unwrap().expect("one more");
                let bytes = &records.bytes(place)[4..];
                assert_eq!((len, bytes.len()), (due, due));
                assert!(bytes.iter().all(|&byte| byte == due.to_le_bytes()[0]), "{due}");
            }
            assert!(records.take(parse).unwrap().is_none());
        }
    }

    #[test]
    fn into_source_returns_unconsumed_bytes() {
        let mut records = records(written(&[7, 300_000]), 100);
        assert_eq!(records.magic().unwrap(), [7, 0, 0, 0]);
        let mut bytes = Vec::new();
        records.into_source().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, written(&[7, 300_000]));
    }

    #[test]
    fn truncated_or_oversized_records_are_an_unexpected_end() {
        let mut cut = written(&[8, 8]);
        cut.pop();
        for bytes in [cut, written(&[8, LONGEST])] {
            let mut records = records(bytes, usize::MAX);
            records.take(parse).unwrap();
            let Err(PcapError::IoError(error)) = records.take(parse) else { panic!("no error") };
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
        let mut longest = records(written(&[LONGEST - 4]), usize::MAX);
        assert!(longest.take(parse).unwrap().is_some());
    }
}
