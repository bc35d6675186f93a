//! Bytes to `check`: the entry of the fuzz target `check` of `engine/fuzz`.

use std::io::{self, Cursor};
use std::path::Path;

use feroce_pfc_tools::capture::Capture;

use super::check::{Checker, Filter, Format};
use super::report;
use super::trace::Trace;

/// Holds the capture `data` against the rules, and writes every kind of report of it.
///
/// # Panics
/// If the check does, or its reports cannot be written.
pub fn feed(data: &[u8]) {
    let source = Box::new(Cursor::new(data.to_vec()));
    let Ok(capture) = Capture::of_source(Path::new("fuzz"), source) else { return };
    let mut trace = Trace::of(vec![capture]).expect("one capture");
    let (report, _read_to_its_end) = Checker::new(Filter::default(), true).check(&mut trace);
    for format in Format::ALL {
        format.write(&mut io::sink(), &report).expect("a sink takes everything");
    }
    report::html(&report);
}
