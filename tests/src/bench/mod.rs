//! Benchmarks: each figure is a ratio of medians within one run, against a loop that moves the same
//! frames on the same port, or against spinning TCP on the same link.

pub mod bare;
pub mod engine;
pub mod link;
pub mod tcp;

use std::time::Duration;

use feroce_engine::memory::buffer::SharedBytes;

/// How long one measurement takes.
pub const ROUND: Duration = Duration::from_millis(700);
/// Measurements of each kind, taken in turn: on a machine with others, single ones are up to a
/// fifth off.
pub const ROUNDS: usize = 21;

/// Bytes of one WRITE, and of the payload of a packet.
pub const WRITE_LEN: usize = 4096;
/// Bytes of a WRITE that is worth a super-frame.
pub const BULK_LEN: usize = 64 << 10;
/// Bytes of source and destination buffers: larger than the caches.
pub const BUFFER_LEN: usize = 128 << 20;

/// Touches every page of `buffer`, so that no measurement has the kernel's page faults in it.
pub fn touch(buffer: &SharedBytes) {
    for offset in (0..buffer.len()).step_by(4096) {
        buffer.write(offset, &[1]);
    }
}

/// Which way "better" is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bar {
    /// The figure must be at least this.
    AtLeast(f64),
    /// The figure must be at most this.
    AtMost(f64),
    /// Shown only.
    None,
}

/// One line of the report.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// What it must reach.
    pub bar: Bar,
    /// The measured values behind it, for people.
    pub note: String,
}

impl Figure {
    /// True if the figure reaches its bar.
    pub fn is_ok(&self) -> bool {
        match self.bar {
            Bar::AtLeast(bar) => self.value >= bar,
            Bar::AtMost(bar) => self.value <= bar,
            Bar::None => true,
        }
    }

    /// `name value bar ok|short (note)`
    pub fn line(&self) -> String {
        let bar = match self.bar {
            Bar::AtLeast(bar) => format!(">= {bar:.2}"),
            Bar::AtMost(bar) => format!("<= {bar:.2}"),
            Bar::None => "-".to_owned(),
        };
        let verdict = if self.is_ok() { "ok" } else { "short" };
        format!("{:<44} {:>9.3}  {bar:>8}  {verdict:<5}  {}", self.name, self.value, self.note)
    }
}

/// The median of `values`.
///
/// # Panics
/// If there are none.
pub fn median(values: &mut [f64]) -> f64 {
    assert!(!values.is_empty(), "a median of nothing");
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Takes two measurements in turn and returns the medians of both and of their ratio, the first
/// over the second.
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
