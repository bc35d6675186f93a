//! Setting up many QPs: limits of the device, memory, and what the loops that create and connect
//! QPs do in between: signs of life to the peer, Ctrl-C, and progress output.

use std::time::{Duration, Instant};

use feroce_engine::device::DeviceConfig;
use feroce_engine::device::settings::{Origin, Settings};
use indicatif::{ProgressBar, ProgressStyle};

use super::error::PerfError;
use super::exchange::Control;
use super::plan::MAX_QPS;
use crate::signal;

/// QPs between two looks at the clock.
const STEPS: u32 = 64;
/// Time before the first progress output and between two.
const PROGRESS: Duration = Duration::from_millis(500);

/// Raises the limits of the device to those of the largest test: the server opens its device before
/// it knows the test. A larger limit takes address space, but no memory. A limit that is set stays.
pub fn limits(settings: &Settings, config: &mut DeviceConfig) {
    if settings.origin("max_qp") == Origin::Default {
        config.max_qp = config.max_qp.max(MAX_QPS);
    }
    if let Some(total) = memory("MemTotal").and_then(|bytes| usize::try_from(bytes).ok()) {
        config.arena_bytes = config.arena_bytes.max(total);
    }
}

/// Checks that this host has `needed` bytes of free memory. More would end in the kernel's OOM
/// killer.
///
/// # Errors
/// [`PerfError::Plan`].
pub fn check_memory(needed: u64) -> Result<(), PerfError> {
    match memory("MemAvailable") {
        Some(available) if needed > available => Err(PerfError::Plan(format!(
            "the test takes {} MiB of memory at each end, and this host has {} MiB free: use fewer \
             --qps, a smaller -s or a smaller --tx-depth",
            needed >> 20,
            available >> 20
        ))),
        _ => Ok(()),
    }
}

/// A line of `/proc/meminfo` in bytes; `None` if there is none.
fn memory(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// State of a loop over QPs.
#[derive(Debug)]
pub struct Setup<'a> {
    control: &'a mut Control,
    /// Draws only if standard error is a terminal.
    progress: ProgressBar,
    started: Instant,
    what: &'static str,
    steps: u32,
    next_progress: Instant,
}

impl<'a> Setup<'a> {
    /// For loops over `qps` QPs.
    pub fn new(control: &'a mut Control, qps: u32) -> Self {
        let style = ProgressStyle::with_template("{pos} of {len} {msg} {wide_bar} {elapsed}");
        let progress =
            ProgressBar::new(u64::from(qps)).with_style(style.expect("a valid template"));
        let (started, what, steps) = (Instant::now(), "", 0);
        Self { control, progress, started, what, steps, next_progress: started + PROGRESS }
    }

    /// Begins a loop; `what` follows the number of QPs in the progress output.
    pub fn begin(&mut self, what: &'static str) {
        (self.what, self.steps) = (what, 0);
    }

    /// One QP more is done. Cheap: most calls only count.
    ///
    /// # Errors
    /// If the peer is gone; on Ctrl-C.
    pub fn step(&mut self) -> Result<(), PerfError> {
        self.steps += 1;
        if !self.steps.is_multiple_of(STEPS) {
            return Ok(());
        }
        if signal::interrupted() {
            return Err(PerfError::Interrupted);
        }
        self.control.keep_alive()?;
        let now = Instant::now();
        if now >= self.next_progress && !self.progress.is_hidden() {
            self.next_progress = now + PROGRESS;
            self.progress.set_message(self.what);
            self.progress.set_position(u64::from(self.steps));
            self.progress.tick();
        }
        Ok(())
    }

    /// Removes the progress output. Returns the time since [`Setup::new`].
    pub fn end(self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for Setup<'_> {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}
