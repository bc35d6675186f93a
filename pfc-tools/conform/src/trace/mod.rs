//! Reads captures as one sequence of frames in time order, for any link type.

mod link;

use std::path::{Path, PathBuf};

pub use feroce_pfc_tools::capture::CaptureError;
use feroce_pfc_tools::capture::{self, Capture};

pub use link::Link;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// No file was given.
    #[error("no capture was given")]
    Nothing,
    /// There are more files than a frame can number.
    #[error("{0} captures are too many: at most 65535")]
    TooMany(usize),
    /// The link type does not carry RoCE.
    #[error("frame {number} of capture {} has link type {found}, which carries no RoCE", file + 1)]
    LinkType {
        /// Number of the file, from 0.
        file: u16,
        /// Number of the frame, from 1.
        number: u64,
        /// Number in the registry of link types.
        found: u32,
    },
}

/// A captured frame.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Number of the file, from 0.
    pub file: u16,
    /// Number of the capture point. Files that follow each other in time share a capture point,
    /// files that overlap in time do not.
    pub tap: u16,
    /// Number of the frame in its file, from 1, as packet analysers count.
    pub number: u64,
    /// Time of capture, in nanoseconds since 1970.
    pub at: u64,
    /// Type of the first header.
    pub link: Link,
    /// The captured bytes, from the first header on.
    pub bytes: &'a [u8],
    /// Length on the wire, in bytes.
    pub original_len: u32,
}

impl Frame<'_> {
    /// Returns true if the capture truncated the frame.
    pub const fn is_cut(&self) -> bool {
        self.bytes.len() < self.original_len as usize
    }
}

/// The files of a trace.
#[derive(Debug)]
pub struct Trace {
    files: Vec<File>,
    /// For each capture point, true if it belongs to a file with frames to come.
    taps: Vec<bool>,
}

#[derive(Debug)]
struct File {
    capture: Capture,
    tap: Option<u16>,
    /// Time of the next frame, if several files are merged.
    next: Option<u64>,
    is_read: bool,
}

impl Trace {
    /// Opens `files`; `-` is standard input.
    ///
    /// # Errors
    /// See [`TraceError`].
    pub fn open(files: &[PathBuf]) -> Result<Self, TraceError> {
        let captures: Result<Vec<_>, _> =
            files.iter().map(|file| Capture::open_any(file)).collect();
        Self::of(captures?)
    }

    /// Creates a trace of `captures`.
    ///
    /// # Errors
    /// If there are none, or too many.
    pub fn of(captures: Vec<Capture>) -> Result<Self, TraceError> {
        match captures.len() {
            0 => return Err(TraceError::Nothing),
            count if u16::try_from(count).is_err() => return Err(TraceError::TooMany(count)),
            _ => {}
        }
        let file = |capture| File { capture, tap: None, next: None, is_read: false };
        Ok(Self { files: captures.into_iter().map(file).collect(), taps: Vec::new() })
    }

    /// Returns the names of the files, as given.
    pub fn names(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.capture.file())
    }

    /// Returns true if several files with frames, as far as they were read, follow each other in
    /// time.
    pub fn is_in_parts(&self) -> bool {
        let begun = self.files.iter().filter(|file| file.tap.is_some()).count();
        self.taps.len() == 1 && begun > 1
    }

    /// Returns the next frame, or `None` at the end.
    ///
    /// # Errors
    /// If a file cannot be read further. The frames before the error have been returned.
    #[inline(always)] // Keeps the frame in registers; a copy would stall on the preceding stores.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, TraceError> {
        let (index, tap) = match &mut self.files[..] {
            [only] => {
                only.capture.advance()?;
                (0, 0)
            }
            _ => match self.next_of_several()? {
                Some(next) => next,
                None => return Ok(None),
            },
        };
        frame_of(&self.files[index].capture, index, tap)
    }

    /// Returns the file with the next frame, and its capture point.
    fn next_of_several(&mut self) -> Result<Option<(usize, u16)>, TraceError> {
        for index in 0..self.files.len() {
            if !self.files[index].is_read && self.files[index].next.is_none() {
                self.files[index].peek(index)?;
                self.release(index);
            }
        }
        let ahead = |(index, file): (usize, &File)| Some((file.next?, index));
        let Some((_, index)) = self.files.iter().enumerate().filter_map(ahead).min() else {
            return Ok(None);
        };
        self.files[index].next = None;
        Ok(Some((index, self.tap_of(index))))
    }

    /// Frees the capture point of a file that has ended, for a file that begins later.
    fn release(&mut self, index: usize) {
        let File { is_read: true, tap: Some(tap), .. } = self.files[index] else { return };
        self.taps[usize::from(tap)] = false;
    }

    fn tap_of(&mut self, index: usize) -> u16 {
        if let Some(tap) = self.files[index].tap {
            return tap;
        }
        let free = self.taps.iter().position(|&taken| !taken).unwrap_or(self.taps.len());
        if free == self.taps.len() {
            self.taps.push(true);
        }
        self.taps[free] = true;
        let tap = u16::try_from(free).expect("no more places than files");
        self.files[index].tap = Some(tap);
        tap
    }
}

impl File {
    fn peek(&mut self, index: usize) -> Result<(), TraceError> {
        self.is_read = !self.capture.advance()?;
        self.next = frame_of(&self.capture, index, 0)?.map(|frame| frame.at);
        Ok(())
    }
}

/// Returns the current frame of `capture`.
#[inline(always)] // As `Trace::next_frame`.
fn frame_of(capture: &Capture, file: usize, tap: u16) -> Result<Option<Frame<'_>>, TraceError> {
    let Some(frame) = capture.frame() else { return Ok(None) };
    let capture::Frame { at, link, bytes, original_len } = frame;
    #[allow(clippy::cast_possible_truncation)] // `Trace::of` limits the number of files.
    let (file, number) = (file as u16, capture.frames());
    let Some((link, bytes, original_len)) = link::unwrap(u32::from(link), bytes, original_len)
    else {
        return Err(TraceError::LinkType { file, number, found: u32::from(link) });
    };
    Ok(Some(Frame { file, tap, number, at, link, bytes, original_len }))
}
