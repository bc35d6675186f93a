//! When priorities were paused: parts of time with how long each priority was paused in them, as few as fit a picture.

use crate::fabric::time::Time;

/// Most parts; when they are used up, two become one.
const PARTS: usize = 512;

/// Parts of equal length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    width: Time,
    /// Picoseconds of each priority.
    parts: Vec<[u64; 8]>,
}

impl Timeline {
    pub(super) const fn new() -> Self {
        Self { width: Time::from_micros(1), parts: Vec::new() }
    }

    /// A priority was paused from `since` until `until`.
    pub(super) fn add(&mut self, priority: usize, since: Time, until: Time) {
        let last = |width: Time| usize::try_from(until.0 / width.0).unwrap_or(usize::MAX);
        while last(self.width) >= PARTS {
            self.width = self.width + self.width;
            self.parts = self.parts.chunks(2).map(merged).collect();
        }
        let mut from = since;
        while from < until {
            let part = usize::try_from(from.0 / self.width.0).unwrap_or(PARTS - 1);
            let end = Time((from.0 / self.width.0 + 1) * self.width.0).min(until);
            if self.parts.len() <= part {
                self.parts.resize(part + 1, [0; 8]);
            }
            self.parts[part][priority] += (end - from).0;
            from = end;
        }
    }

    /// How long a part is.
    pub const fn width(&self) -> Time {
        self.width
    }

    /// Of a priority: the beginning of each part, and which share of it the priority was paused.
    #[allow(clippy::cast_precision_loss)] // Picoseconds below 2^53: 2.5 hours of a part.
    pub fn shares(&self, priority: usize) -> impl Iterator<Item = (Time, f64)> + '_ {
        let width = self.width.0;
        (0_u64..)
            .zip(&self.parts)
            .map(move |(n, part)| (Time(n * width), part[priority] as f64 / width as f64))
    }
}

fn merged(pair: &[[u64; 8]]) -> [u64; 8] {
    let mut sum = [0; 8];
    pair.iter().for_each(|part| sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_parts_are_merged() {
        let mut timeline = Timeline::new();
        let spans = [(0, 500), (700, 2500), (400_000, 400_100), (9_000_000, 12_000_000)];
        for (since, until) in spans {
            timeline.add(3, Time::from_nanos(since), Time::from_nanos(until));
        }
        let due: u64 = spans.iter().map(|(since, until)| 1000 * (until - since)).sum();
        let sum: u64 = timeline.parts.iter().map(|part| part[3]).sum();
        assert_eq!(sum, due);
        assert!(timeline.parts.len() <= PARTS && timeline.shares(3).all(|(_, share)| share <= 1.0));
        assert!(timeline.shares(2).all(|(_, share)| share == 0.0));
    }
}
