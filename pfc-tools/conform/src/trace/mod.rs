//! Captures as one sequence of frames, in the order of time, whatever link they were taken on.

mod link;

use std::path::{Path, PathBuf};

pub use feroce_pfc_tools::capture::CaptureError;
use feroce_pfc_tools::capture::{self, Capture};

pub use link::Link;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// One of its files.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// None was given.
    #[error("no capture was given")]
    Nothing,
    /// More than a frame can name.
    #[error("{0} captures are too many: at most 65535")]
    TooMany(usize),
    /// Nothing of the kind that carries RoCE.
    #[error("frame {number} of capture {} is of link type {found}, which is none that carries RoCE", file + 1)]
    LinkType {
        /// Which file, from 0.
        file: u16,
        /// Which frame, from 1.
        number: u64,
        /// Its number in the registry of link types.
        found: u32,
    },
}

/// A captured frame.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Which file, from 0.
    pub file: u16,
    /// Where it was captured: files that follow each other share a place, files of the same time do not.
    pub tap: u16,
    /// Its number in its file, from 1, as packet analysers count.
    pub number: u64,
    /// When it was captured, in nanoseconds since 1970.
    pub at: u64,
    /// What its first header is.
    pub link: Link,
    /// As much as was captured, from that header on.
    pub bytes: &'a [u8],
    /// Its length on the line.
    pub original_len: u32,
}

impl Frame<'_> {
    /// Whether less was captured than there was.
    pub const fn is_cut(&self) -> bool {
        self.bytes.len() < self.original_len as usize
    }
}

/// Files that are being read.
#[derive(Debug)]
pub struct Trace {
    files: Vec<File>,
    /// Whether a place is taken by a file that has frames to come.
    taps: Vec<bool>,
}

#[derive(Debug)]
struct File {
    capture: Capture,
    tap: Option<u16>,
    /// When the next frame was captured, if several files wait for their turn.
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

    /// The frames of `captures`.
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

    /// The files, as they were named.
    pub fn names(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.capture.file())
    }

    /// The next frame, `None` at the end.
    ///
    /// # Errors
    /// If its file cannot be read on. The frames ahead of the fault have been handed over then.
    #[inline(always)] // What is said of a frame stays in registers: a copy would stall on the stores before it.
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

    /// Which file has the next frame, and its place of capture.
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

    /// A file that has ended leaves its place to one that begins later.
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

/// The frame that `capture` has come to.
#[inline(always)] // As `Trace::next_frame`.
fn frame_of(capture: &Capture, file: usize, tap: u16) -> Result<Option<Frame<'_>>, TraceError> {
    let Some(frame) = capture.frame() else { return Ok(None) };
    let capture::Frame { at, link, bytes, line_len } = frame;
    #[allow(clippy::cast_possible_truncation)] // `Trace::of` has counted them.
    let (file, number) = (file as u16, capture.frames());
    let Some((link, bytes, original_len)) = link::unwrap(u32::from(link), bytes, line_len) else {
        return Err(TraceError::LinkType { file, number, found: u32::from(link) });
    };
    Ok(Some(Frame { file, tap, number, at, link, bytes, original_len }))
}
