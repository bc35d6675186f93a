//! Distances of measured curves from published ones.

use crate::fabric::measure::histogram::TimeHistogram;
use crate::fabric::measure::{Results, Samples};
use crate::fabric::scenario::Curve;
use crate::published;

/// The distance of a run's curve from the published curve `file`; `None` if the run does not cover
/// it.
pub(crate) fn distance(of: Curve, file: &str, results: &Results) -> Option<f64> {
    let points = published::points(published::find(file)?);
    match of {
        Curve::Goodput(group) => {
            let delivered = delivered(group, results);
            // Gigabytes per second are 8 Gb/s; bytes per millisecond are kB/s.
            root_mean_square(&points, |from, to| {
                Some((delivered.at(to)? - delivered.at(from)?) * 8.0 / (to - from) / 1e6)
            })
        }
        Curve::Queue { node, next } => {
            let lengths = lengths((node, next), results)?;
            root_mean_square(&points, |from, to| lengths.mean(from, to).map(|bytes| bytes / 1e3))
        }
        Curve::QueueCdf { node, next } => {
            let queues = results.queues.iter();
            let queue =
                queues.into_iter().find(|queue| (queue.node, queue.peer) == (node, next))?;
            Some(largest_difference(&points, &queue.lengths))
        }
    }
}

/// Values over time, in milliseconds.
struct Line(Vec<(f64, f64)>);

impl Line {
    /// The value at a time, interpolated linearly; `None` outside the line.
    fn at(&self, time: f64) -> Option<f64> {
        let after = self.0.partition_point(|point| point.0 < time);
        let (x1, y1) = *self.0.get(after)?;
        let (x0, y0) = *self.0.get(after.checked_sub(1).unwrap_or(after))?;
        Some(if x1 > x0 { y0 + (y1 - y0) * (time - x0) / (x1 - x0) } else { y1 })
    }

    /// The mean of the values from one time to another; `None` if there are none.
    #[allow(clippy::cast_precision_loss)] // Counts of samples.
    fn mean(&self, from: f64, to: f64) -> Option<f64> {
        let range = |time| self.0.partition_point(|point| point.0 <= time);
        let values = &self.0[range(from)..range(to)];
        let sum: f64 = values.iter().map(|point| point.1).sum();
        (!values.is_empty()).then(|| sum / values.len() as f64)
    }
}

/// Payload bytes that the flows of a group have delivered.
#[allow(clippy::cast_precision_loss)] // Bytes below 2^53.
fn delivered(group: Option<u32>, results: &Results) -> Line {
    let Samples { times, flows, .. } = &results.samples;
    let is_own = |flow: usize| group.is_none_or(|group| results.flows[flow].group == group);
    let mut points = vec![(0.0, 0.0)];
    for (time, flows) in times.iter().zip(flows.chunks(results.samples.flows_per_time().max(1))) {
        let own = flows.iter().enumerate().filter(|(flow, _)| is_own(*flow));
        points.push((time.seconds() * 1e3, own.map(|(_, sample)| sample.delivered as f64).sum()));
    }
    Line(points)
}

/// Lengths of a queue in bytes.
#[allow(clippy::cast_precision_loss)] // Bytes below 2^53.
fn lengths(at: (usize, usize), results: &Results) -> Option<Line> {
    let own = results.queues.iter().position(|queue| (queue.node, queue.peer) == at)?;
    let Samples { times, queues, .. } = &results.samples;
    let lengths = queues.chunks(results.queues.len()).map(|queues| queues[own] as f64);
    Some(Line(times.iter().map(|time| time.seconds() * 1e3).zip(lengths).collect()))
}

/// Root mean square of the differences of window means. Each point is the middle of a window and
/// the published mean; windows are as long as the points are apart.
#[allow(clippy::cast_precision_loss)] // Counts of points.
fn root_mean_square(
    points: &[(f64, f64)],
    measured: impl Fn(f64, f64) -> Option<f64>,
) -> Option<f64> {
    let half = (points.get(1)?.0 - points.first()?.0) / 2.0;
    let mut sum = 0.0;
    for (middle, mean) in points {
        sum += (measured(middle - half, middle + half)? - mean).powi(2);
    }
    Some((sum / points.len() as f64).sqrt())
}

/// The largest difference of a published distribution, points of KB and part of the time, and the
/// measured one.
fn largest_difference(points: &[(f64, f64)], lengths: &TimeHistogram) -> f64 {
    let quantiles: Vec<u64> = (0..=1000).map(|permille| lengths.quantile(permille)).collect();
    let mut largest = 0.0_f64;
    for (number, (length, part)) in points.iter().enumerate() {
        // Of a vertical step, its upper end is the part of the time up to this length.
        if points.get(number + 1).is_some_and(|next| next.0 <= *length) {
            continue;
        }
        let up_to = quantiles.partition_point(|&bytes| bytes_to_kb(bytes) <= length.max(0.0));
        let measured = f64::from(u32::try_from(up_to).unwrap_or(u32::MAX)) / 1001.0;
        largest = largest.max((measured - part).abs());
    }
    largest
}

#[allow(clippy::cast_precision_loss)] // Lengths below 2^53.
fn bytes_to_kb(bytes: u64) -> f64 {
    bytes as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::time::Time;

    #[test]
    fn a_line_is_interpolated_and_averaged() {
        let line = Line(vec![(0.0, 0.0), (1.0, 10.0), (3.0, 30.0)]);
        let values = [0.0, 0.5, 2.0, 3.0].map(|time| line.at(time));
        assert_eq!(values, [Some(0.0), Some(5.0), Some(20.0), Some(30.0)]);
        assert_eq!(line.at(3.1), None);
        assert_eq!((line.mean(0.0, 3.0), line.mean(1.0, 2.0)), (Some(20.0), None));
    }

    #[test]
    fn the_distance_of_curves_is_a_root_mean_square() {
        let published = [(0.5, 1.0), (1.5, 2.0), (2.5, 3.0)];
        let off = |by: f64| root_mean_square(&published, move |from, _| Some(from + 1.0 + by));
        assert_eq!((off(0.0), off(2.0)), (Some(0.0), Some(2.0)));
        assert_eq!(root_mean_square(&published, |from, _| (from < 2.0).then_some(0.0)), None);
    }

    #[test]
    fn the_distance_of_distributions_is_their_largest_difference() {
        let mut lengths = TimeHistogram::default();
        lengths.add(0, Time::from_millis(1));
        lengths.add(50_000, Time::from_millis(3));
        let same = [(0.0, 0.0), (0.0, 0.25), (40.0, 0.25), (60.0, 1.0)];
        assert!(largest_difference(&same, &lengths) < 0.002);
        let other = [(0.0, 0.0), (0.0, 0.75), (40.0, 0.75), (60.0, 1.0)];
        assert!((largest_difference(&other, &lengths) - 0.5).abs() < 0.002);
    }
}
