//! Timeline of a sender's pauses: intervals of equal length with the run time of each timer,
//! limited in number for a chart.

use super::timer::TIMERS;
use crate::fabric::time::Time;

/// Maximum number of intervals; when they are used up, pairs are merged.
const MAX_INTERVALS: usize = 512;

/// Intervals of equal length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    width: Time,
    /// Run time of each timer in picoseconds.
    parts: Vec<[u64; TIMERS]>,
}

impl Timeline {
    pub(super) const fn new() -> Self {
        Self { width: Time::from_micros(1), parts: Vec::new() }
    }

    /// Adds intervals up to `until`, and merges pairs if there are too many.
    fn reach(&mut self, until: Time) {
        let parts = |width: Time| usize::try_from(until.0.div_ceil(width.0)).unwrap_or(usize::MAX);
        while parts(self.width) > MAX_INTERVALS {
            self.width = self.width + self.width;
            self.parts = self.parts.chunks(2).map(merged).collect();
        }
        self.parts.resize(self.parts.len().max(parts(self.width)), [0; TIMERS]);
    }

    /// Records that a timer ran from `since` to `until`.
    pub(super) fn add(&mut self, timer: usize, since: Time, until: Time) {
        self.reach(until);
        let mut from = since;
        while from < until {
            let part = from.0 / self.width.0;
            let end = Time((part + 1).saturating_mul(self.width.0)).min(until);
            let Some(part) = usize::try_from(part).ok().and_then(|n| self.parts.get_mut(n)) else {
                break;
            };
            part[timer] += (end - from).0;
            from = end;
        }
    }

    /// Length of an interval.
    pub const fn width(&self) -> Time {
        self.width
    }

    /// For a timer: the start of each interval until `now`, and the share of the interval for which
    /// the timer ran.
    #[allow(clippy::cast_precision_loss)] // Picoseconds below 2^53: 2.5 hours of an interval.
    pub fn shares(&self, timer: usize, now: Time) -> Vec<(Time, f64)> {
        let mut whole = self.clone();
        whole.reach(now);
        let begins = (0_u64..).map(|n| Time(n.saturating_mul(whole.width.0)));
        let parts = begins.zip(&whole.parts).take_while(|(begin, _)| *begin < now);
        // The last interval ends at `now`.
        let share = |begin, part: &[u64; TIMERS]| {
            part[timer] as f64 / whole.width.min(now - begin).0 as f64
        };
        parts.map(|(begin, part)| (begin, share(begin, part))).collect()
    }
}

fn merged(pair: &[[u64; TIMERS]]) -> [u64; TIMERS] {
    let mut sum = [0; TIMERS];
    pair.iter().for_each(|part| sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_intervals_keeps_the_total() {
        let mut timeline = Timeline::new();
        let spans = [(0, 500), (700, 2500), (400_000, 400_100), (9_000_000, 12_000_000)];
        for (since, until) in spans {
            timeline.add(3, Time::from_nanos(since), Time::from_nanos(until));
        }
        let due: u64 = spans.iter().map(|(since, until)| 1000 * (until - since)).sum();
        let sum: u64 = timeline.parts.iter().map(|part| part[3]).sum();
        assert_eq!(sum, due);
        let shares = |timer| timeline.shares(timer, Time::from_nanos(12_000_000)).into_iter();
        assert!(timeline.parts.len() <= MAX_INTERVALS && shares(3).all(|(_, share)| share <= 1.0));
        assert!(shares(2).all(|(_, share)| share == 0.0));
    }

    #[test]
    fn the_last_interval_ends_at_the_current_time() {
        let mut timeline = Timeline::new();
        timeline.add(8, Time::from_nanos(500), Time::from_nanos(2500));
        let shares = timeline.shares(8, Time::from_nanos(2500));
        assert_eq!(shares.iter().map(|(_, share)| *share).collect::<Vec<_>>(), [0.5, 1.0, 1.0]);
        assert_eq!(timeline.shares(8, Time::from_nanos(4000)).len(), 4, "nothing until now");
    }

    #[test]
    fn the_largest_time_is_accepted() {
        let mut timeline = Timeline::new();
        timeline.add(0, Time(u64::MAX - 10), Time::FAR);
        let sum: f64 = timeline.shares(0, Time::FAR).iter().map(|(_, share)| share).sum();
        assert!(sum > 0.0 && timeline.parts.len() <= MAX_INTERVALS);
    }
}
