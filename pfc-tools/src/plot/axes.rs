//! What the axes of a chart show: ranges, positions, labels.

use super::chart::{Axis, Chart, Kind, Scale};

/// A peak that would hide the rest of the chart.
pub struct Peak {
    /// The highest point.
    pub at: (f64, f64),
    /// The largest value that is shown.
    pub shown: f64,
}

/// The peak of a chart of many points, if nearly all of them lie far below it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
pub fn peak(chart: &Chart) -> Option<Peak> {
    const MANY: usize = 200;
    const NEARLY_ALL: f64 = 0.98;
    let Axis { scale: Scale::Linear, range: None, .. } = chart.y else { return None };
    if chart.series.iter().any(|series| series.kind == Kind::Bars) {
        return None;
    }
    let is_within = |x: f64| chart.x.range.is_none_or(|(from, to)| (from..=to).contains(&x));
    let points = chart.series.iter().flat_map(|series| &series.points);
    let mut points: Vec<_> =
        points.copied().filter(|(x, y)| is_within(*x) && y.is_finite()).collect();
    if points.len() < MANY {
        return None;
    }
    points.sort_by(|a, b| a.1.total_cmp(&b.1));
    let usual = points[(points.len() as f64 * NEARLY_ALL) as usize].1;
    let at = *points.last()?;
    (usual > 0.0 && at.1 > 4.0 * usual).then_some(Peak { at, shown: 1.5 * usual })
}

/// Positions of the points along the axes, without those that cannot be shown.
pub fn placed(chart: &Chart, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let is_within = |x: f64| chart.x.range.is_none_or(|(from, to)| (from..=to).contains(&x));
    let shown = points.iter().filter(|(x, _)| is_within(*x));
    let placed = shown.map(|&(x, y)| (place(&chart.x, x), place(&chart.y, y)));
    placed.filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
}

pub fn place(axis: &Axis, value: f64) -> f64 {
    match axis.scale {
        Scale::Linear => value,
        Scale::Log if value > 0.0 => value.log10(),
        Scale::Log => f64::NAN,
    }
}

/// Start and end of an axis.
pub fn range(axis: &Axis, values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    if let Some((from, to)) = axis.range {
        let (from, to) = (place(axis, from), place(axis, to));
        if from < to {
            return (from, to);
        }
    }
    let values =
        values.into_iter().map(|value| place(axis, value)).filter(|value| value.is_finite());
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    match axis.scale {
        _ if low > high => (0.0, 1.0),
        Scale::Log => {
            (low.floor(), if high.ceil() > low.floor() { high.ceil() } else { low.floor() + 1.0 })
        }
        Scale::Linear => {
            let low = low.min(0.0);
            (low, if high > low { high + (high - low) * 0.05 } else { low + 1.0 })
        }
    }
}

/// Label of a grid line.
pub fn label(axis: &Axis, at: f64) -> String {
    if !axis.names.is_empty() {
        let near = axis.names.iter().find(|(value, _)| (value - at).abs() < 1e-6);
        return near.map_or(String::new(), |(_, name)| name.clone());
    }
    let value = match axis.scale {
        Scale::Linear => at,
        Scale::Log => 10_f64.powf(at),
    };
    number(value)
}

/// A number with at most four digits and a unit prefix.
pub fn number(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e4, "k")];
    let (divisor, letter) = match units.iter().find(|(from, _)| value.abs() >= *from) {
        Some((1e4, letter)) => (1e3, *letter),
        Some((from, letter)) => (*from, *letter),
        None => (1.0, ""),
    };
    let scaled = value / divisor;
    let digits = if scaled.abs() >= 100.0 {
        0
    } else if scaled.abs() >= 10.0 {
        1
    } else {
        3
    };
    let text = format!("{scaled:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{letter}")
}

/// The words of `name` in lines of at most `width` letters. A longer word has a line of its own.
pub fn wrapped(name: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let rows = [
            (0.0, "0"),
            (0.25, "0.25"),
            (5.0, "5"),
            (12.5, "12.5"),
            (100.0, "100"),
            (2000.0, "2000"),
            (40_000.0, "40k"),
            (1_250_000.0, "1.25M"),
            (-20_000.0, "-20k"),
            (6e9, "6G"),
        ];
        for (value, due) in rows {
            assert_eq!(number(value), due);
        }
    }

    #[test]
    fn ranges_fit_the_values() {
        let linear = Axis::linear("");
        assert_eq!(range(&linear, [5.0, 100.0]), (0.0, 105.0));
        assert_eq!(range(&linear, []), (0.0, 1.0));
        assert_eq!(range(&linear, [0.0]), (0.0, 1.0));
        assert_eq!(range(&linear, [f64::NAN, f64::INFINITY]), (0.0, 1.0));
        assert_eq!(range(&linear.between(2.0, 3.0), [100.0]), (2.0, 3.0));
        assert_eq!(range(&Axis::log(""), [0.0, 3.0, 4000.0]), (0.0, 4.0));
        assert_eq!(range(&Axis::log(""), [10.0]), (1.0, 2.0));
    }

    #[test]
    fn points_outside_the_range_are_left_out() {
        let chart = Chart::new("", Axis::linear("").between(1.0, 2.0), Axis::log(""));
        let points = [(0.5, 10.0), (1.0, 10.0), (1.5, 0.0), (2.0, 100.0), (2.5, 10.0)];
        assert_eq!(placed(&chart, &points), [(1.0, 1.0), (2.0, 2.0)]);
    }

    #[test]
    fn names_are_wrapped_between_words() {
        assert_eq!(wrapped("DCQCN, no PFC, 1.5 MB", 10), ["DCQCN, no", "PFC, 1.5", "MB"]);
        assert_eq!(wrapped("misconfigured at once", 5), ["misconfigured", "at", "once"]);
    }
}
