//! Captured frames that a test may change, and what the check says of them.

use std::collections::BTreeMap;
use std::path::Path;

use feroce_conform::check::{Checker, Filter};
use feroce_conform::packet::Reader;
use feroce_conform::rules::Severity;
use feroce_conform::trace::{Frame, Link, Trace};

/// A captured frame.
#[derive(Debug, Clone)]
pub struct Captured {
    /// Time of capture, in nanoseconds since 1970.
    pub at: u64,
    /// Type of the first header.
    pub link: Link,
    /// The captured bytes.
    pub bytes: Vec<u8>,
    /// Length on the wire, in bytes.
    pub original_len: u32,
}

/// Reads the frames of a capture.
///
/// # Panics
/// If the file is not a capture that can be read to its end.
pub fn read(file: &Path) -> Vec<Captured> {
    let mut trace = Trace::open(&[file.to_owned()]).expect("a capture");
    let mut frames = Vec::new();
    while let Some(frame) = trace.next_frame().expect("a frame") {
        let Frame { at, link, original_len, .. } = frame;
        frames.push(Captured { at, link, bytes: frame.bytes.to_vec(), original_len });
    }
    frames
}

/// The findings in `frames` of at least that severity, counted by rule.
pub fn findings<'a>(
    frames: impl IntoIterator<Item = &'a Captured>,
    severity: Severity,
) -> BTreeMap<&'static str, u64> {
    let mut checker = Checker::new(Filter::default(), false);
    let mut reader = Reader::default();
    for (number, frame) in (1..).zip(frames) {
        let Captured { at, link, original_len, .. } = *frame;
        let bytes = &frame.bytes;
        let frame = Frame { file: 0, tap: 0, number, at, link, bytes, original_len };
        checker.frame(&frame, &mut reader);
    }
    let rules = checker.finish(vec!["made".to_owned()]).findings.by_rule().into_iter();
    let wanted = rules.filter(|(rule, _)| rule.rule().severity >= severity);
    wanted.map(|(rule, count)| (rule.rule().name, count)).collect()
}
