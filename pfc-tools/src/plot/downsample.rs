//! Thins out points: where several fall into one pixel column, keeps the first, the lowest, the
//! highest and the last, so that the chart looks the same.

/// Approximate width of a chart in pixels.
const COLUMNS: usize = 600;

/// The thinned-out `points`, which are sorted by x.
pub(super) fn downsample(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    if points.len() <= 4 * COLUMNS {
        return points.to_vec();
    }
    #[allow(clippy::cast_precision_loss)] // A count of pixels.
    let width = (last.0 - first.0) / COLUMNS as f64;
    let mut kept = Vec::with_capacity(4 * COLUMNS);
    let mut rest = points;
    while let Some(&(start, _)) = rest.first() {
        let (column, others) =
            rest.split_at(rest.partition_point(|point| point.0 <= start + width));
        keep(column, &mut kept);
        rest = others;
    }
    kept
}

fn keep(column: &[(f64, f64)], kept: &mut Vec<(f64, f64)>) {
    let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let ends = [column.first(), column.last()];
    let extremes = [column.iter().min_by(by_y), column.iter().max_by(by_y)];
    let mut chosen: Vec<_> = ends.into_iter().chain(extremes).flatten().copied().collect();
    chosen.sort_by(|a, b| a.0.total_cmp(&b.0));
    chosen.dedup();
    kept.append(&mut chosen);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_points_are_unchanged() {
        let points = [(0.0, 1.0), (1.0, 5.0), (2.0, 3.0)];
        assert_eq!(downsample(&points), points);
        assert_eq!(downsample(&[]), []);
    }

    #[test]
    fn a_single_peak_is_kept() {
        let mut points: Vec<_> = (0..1_000_000).map(|x| (f64::from(x), 1.0)).collect();
        points[777_777].1 = 9.0;
        points[123_456].1 = -9.0;
        let thinned = downsample(&points);
        assert!(thinned.len() <= 4 * COLUMNS + 4, "{}", thinned.len());
        assert!(thinned.contains(&(777_777.0, 9.0)) && thinned.contains(&(123_456.0, -9.0)));
        assert!(thinned.is_sorted_by(|a, b| a.0 <= b.0));
        assert_eq!((thinned[0], thinned[thinned.len() - 1]), (points[0], points[999_999]));
    }

    #[test]
    fn equal_points_terminate() {
        assert_eq!(downsample(&vec![(1.0, 1.0); 10_000]), [(1.0, 1.0)]);
    }
}
