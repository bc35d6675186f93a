//! Turns fuzz input into captures for the checker. The fuzz target `check` of `engine/fuzz` uses
//! this module.
//!
//! An input is a [`Head`], followed by a capture of any format.

mod mutate;
mod seal;

use std::io::Cursor;
use std::path::Path;

use feroce_pfc_tools::capture::Capture;
use feroce_wire::Qpn;

use feroce_conform::check::{Checker, Filter, Format};
use feroce_conform::report;
use feroce_conform::trace::Trace;

pub use mutate::mutate;
pub use seal::seal;

/// Flag: lengths, checksums and ICRCs of the frames are corrected. Otherwise most mutations end at
/// the ICRC check.
pub const SEALED: u8 = 1;
/// Flag: there are two captures. The input is cut in two; if it is shorter than the cut, both
/// captures are the whole input.
pub const TWO: u8 = 2;
const QPN: u8 = 4;
const FROM: u8 = 8;
const TO: u8 = 16;
const FLOW: u8 = 32;

/// Maximum number of unpacked bytes of a capture. 64 KiB of zstd may unpack to 2 GiB, which finds
/// no more than this.
pub const MAX_UNPACKED: u64 = 32 << 20;

/// Header of an input.
#[derive(Debug, Clone, Copy, Default)]
pub struct Head {
    /// Flags that say which other fields apply.
    pub how: u8,
    /// Number of the only QP to check, or index of the only flow to report.
    pub qpn: u8,
    /// Start of the checked time, as a power of two in nanoseconds.
    pub from: u8,
    /// End of the checked time, as a power of two in nanoseconds.
    pub to: u8,
    /// Offset of the second capture.
    pub cut: u16,
}

impl Head {
    /// Length in bytes.
    pub const LEN: usize = 6;

    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let [low, high] = self.cut.to_le_bytes();
        [self.how, self.qpn, self.from, self.to, low, high]
    }

    /// Splits an input into its header and the rest.
    pub(crate) fn split(data: &[u8]) -> Option<(Self, &[u8])> {
        let (&[how, qpn, from, to, low, high], rest) = data.split_first_chunk()?;
        Some((Self { how, qpn, from, to, cut: u16::from_le_bytes([low, high]) }, rest))
    }

    fn has(self, bit: u8) -> bool {
        self.how & bit != 0
    }

    fn filter(self) -> Filter {
        let time = |bit: u8, power: u8| self.has(bit).then(|| 1 << (power % 64));
        Filter {
            qpn: self.has(QPN).then(|| Qpn::masked(u32::from(self.qpn))),
            from: time(FROM, self.from),
            to: time(TO, self.to),
        }
    }
}

/// Checks the capture in `data` against all rules, and writes the report in every format.
///
/// # Panics
/// If the checker panics, or a report cannot be written or is invalid.
pub fn feed(data: &[u8]) {
    let Some((head, bytes)) = Head::split(data) else { return };
    let parts = match bytes.split_at_checked(head.cut.into()) {
        _ if !head.has(TWO) => vec![bytes],
        Some((first, second)) => vec![first, second],
        None => vec![bytes, bytes],
    };
    let captures: Option<Vec<_>> =
        parts.into_iter().map(|part| opened(part, head.has(SEALED))).collect();
    let Some(captures) = captures else { return };
    let mut trace = Trace::of(captures).expect("one capture or two");
    let records = !head.has(QPN);
    let (mut report, _read_to_its_end) = Checker::new(head.filter(), records).check(&mut trace);
    if head.has(FLOW) && usize::from(head.qpn) < report.flows.all().len() {
        report.retain_flows(false, |index, _| index == u32::from(head.qpn));
    }
    for format in Format::ALL {
        let mut out = Vec::new();
        format.write(&mut out, &report).expect("memory takes everything");
        if matches!(format, Format::Json | Format::Sarif) {
            serde_json::from_slice::<serde::de::IgnoredAny>(&out).expect("JSON");
        }
    }
    let page = report::html(&report);
    assert!(page.ends_with("</html>\n"), "the page has an end");
}

/// Opens a capture in memory, with frames sealed or as they are.
pub(crate) fn opened(bytes: &[u8], is_sealed: bool) -> Option<Capture> {
    let open = |bytes: Vec<u8>| {
        Capture::of_source_within(Path::new("fuzz"), Box::new(Cursor::new(bytes)), MAX_UNPACKED)
            .ok()
    };
    match is_sealed {
        true => open(seal::sealed(open(bytes.to_vec())?)),
        false => open(bytes.to_vec()),
    }
}
