//! Benchmarks. Each figure is a ratio of medians of one run: the engine against a loop that moves
//! the same frames on the same port, or against TCP on the same link with both ends spinning.

pub mod bare;
pub mod engine;
pub mod link;
pub mod tcp;

use std::time::Duration;

use feroce_engine::memory::buffer::SharedBytes;

/// Duration of one measurement.
pub const ROUND: Duration = Duration::from_millis(700);
/// Measurements of each kind, alternating. On a shared machine, a single measurement is up to 20 %
/// off.
pub const ROUNDS: usize = 21;

/// Length of a WRITE, and payload of a packet, in bytes.
pub const WRITE_LEN: usize = 4096;
/// Length of a WRITE that fills a super-frame, in bytes.
pub const BULK_LEN: usize = 64 << 10;
/// Length of the source and destination buffers in bytes. Larger than the caches.
pub const BUFFER_LEN: usize = 128 << 20;

/// Touches every page of `buffer`, so that measurements include no page faults.
pub fn touch(buffer: &SharedBytes) {
    for offset in (0..buffer.len()).step_by(4096) {
        buffer.write(offset, &[1]);
    }
}

/// The bound of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The figure must be at least this.
    AtLeast(f64),
    /// The figure must be at most this.
    AtMost(f64),
    /// No bound: the figure is only shown.
    None,
}

/// One line of the report.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// Value of the figure.
    pub value: f64,
    /// The bound that the figure must meet.
    pub bound: Bound,
    /// The measured values from which the figure is computed, as text.
    pub note: String,
}

impl Figure {
    /// Returns true if the figure meets its bound.
    pub fn is_ok(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.value >= bound,
            Bound::AtMost(bound) => self.value <= bound,
            Bound::None => true,
        }
    }

    /// Formats the figure as `name value bound ok|missed note`.
    pub fn line(&self) -> String {
        let bound = match self.bound {
            Bound::AtLeast(bound) => format!(">= {bound:.2}"),
            Bound::AtMost(bound) => format!("<= {bound:.2}"),
            Bound::None => "-".to_owned(),
        };
        let verdict = if self.is_ok() { "ok" } else { "missed" };
        format!("{:<44} {:>9.3}  {bound:>8}  {verdict:<6}  {}", self.name, self.value, self.note)
    }
}

/// Returns the median of `values`.
///
/// # Panics
/// If `values` is empty.
pub fn median(values: &mut [f64]) -> f64 {
    assert!(!values.is_empty(), "no values");
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Takes both measurements alternately, [`ROUNDS`] times. Returns the median of the first, of the
/// second, and of the ratio of first to second.
pub fn paired(mut first: impl FnMut() -> f64, mut second: impl FnMut() -> f64) -> (f64, f64, f64) {
    let (mut firsts, mut seconds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (a, b) = (first(), second());
        firsts.push(a);
        seconds.push(b);
        ratios.push(a / b);
    }
    (median(&mut firsts), median(&mut seconds), median(&mut ratios))
}
