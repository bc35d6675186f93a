//! The progress of runs on a terminal, and their speed.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use crate::fabric::measure::Results;
use crate::fabric::scenario::Case;
use crate::fabric::time::Time;

/// Shows the progress of runs on standard error if that is a terminal, and prints the speed of all
/// runs at the end.
#[derive(Debug)]
pub(crate) struct Meter {
    bar: ProgressBar,
    began: Instant,
    events: u64,
    hops: u64,
    runs: usize,
    of: usize,
}

impl Meter {
    /// A meter of all runs of `cases`.
    #[allow(clippy::disallowed_methods)] // Wall-clock time of the user; no result depends on it.
    pub fn new(cases: &[&Case]) -> Self {
        let each = |case: &&Case| (case.seeds.len(), case.duration().0);
        let (mut of, mut time) = (0, 0_u64);
        for (seeds, duration) in cases.iter().map(each) {
            of += seeds;
            time = time.saturating_add(duration.saturating_mul(seeds as u64));
        }
        // Draws nothing if standard error is not a terminal.
        let bar = ProgressBar::new(time.max(1));
        let style = "{msg} {wide_bar} {percent} % of virtual time, {elapsed}";
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        let meter = Self { bar, began: Instant::now(), events: 0, hops: 0, runs: 0, of };
        meter.count();
        meter
    }

    /// A function that runs call, on any thread, with the virtual time that they have advanced.
    pub fn progress(&self) -> impl Fn(Time) + Sync + use<> {
        let bar = self.bar.clone();
        move |by: Time| bar.inc(by.0)
    }

    /// Calls `print` while the bar is not on the terminal.
    pub fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Counts runs that have ended.
    pub fn add(&mut self, results: &[Results]) {
        self.events += results.iter().map(|run| run.events).sum::<u64>();
        self.hops += results.iter().map(|run| run.hops).sum::<u64>();
        self.runs += results.len();
        self.count();
    }

    fn count(&self) {
        self.bar.set_message(format!("{} of {} runs", self.runs, self.of));
    }

    /// Removes the bar and prints the speed.
    #[allow(clippy::cast_precision_loss)] // Counts below 2^53.
    pub fn finish(self) {
        self.bar.finish_and_clear();
        let seconds = self.began.elapsed().as_secs_f64().max(1e-9);
        let (events, hops) = (self.events as f64 / 1e6, self.hops as f64 / 1e6);
        eprintln!(
            "{} runs, {events:.1} M events, {hops:.1} M packet hops in {seconds:.1} s: \
             {:.2} M events/s, {:.2} M packet hops/s",
            self.runs,
            events / seconds,
            hops / seconds
        );
    }
}
