//! Decompresses zstd: any number of concatenated frames.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// A source that remembers whether it has ended.
struct Source<R> {
    source: R,
    has_ended: bool,
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(out)?;
        self.has_ended |= count == 0 && !out.is_empty();
        Ok(count)
    }
}

/// The contents of all frames of a source.
pub(super) struct ZstdReader<R> {
    source: BufReader<Source<R>>,
    decoder: FrameDecoder,
}

impl<R: Read> ZstdReader<R> {
    pub(super) fn new(source: R) -> Self {
        let source = BufReader::new(Source { source, has_ended: false });
        Self { source, decoder: FrameDecoder::new() }
    }

    /// Starts the next frame. Returns false at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut rest = (&mut self.source).take(length.into());
                    io::copy(&mut rest, &mut io::sink())?;
                }
                Err(error) => return Err(self.fault(&error)),
            }
        }
        Ok(false)
    }

    /// Converts a decoder error. A source that ended in the middle of a frame is truncated.
    fn fault(&self, error: &FrameDecoderError) -> io::Error {
        match self.source.get_ref().has_ended {
            true => ErrorKind::UnexpectedEof.into(),
            false => io::Error::other(error.to_string()),
        }
    }
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if out.is_empty() || self.decoder.can_collect() > 0 {
                return self.decoder.read(out);
            }
            if self.decoder.is_finished() {
                if !self.next_frame()? {
                    return Ok(0);
                }
                continue;
            }
            let some = BlockDecodingStrategy::UptoBytes(out.len());
            if let Err(error) = self.decoder.decode_blocks(&mut self.source, some) {
                return Err(self.fault(&error));
            }
        }
    }
}
