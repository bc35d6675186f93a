//! Charts of the results.

use std::collections::BTreeMap;

use super::data::{Measured, ReportError, Row, grouped, number, text};
use super::sizes;
use crate::fabric::scenario::{Figure, FigureKind};
use crate::plot::{Axis, Chart, Kind, Series};
use crate::published;

type Points = Vec<(f64, f64)>;

/// Maximum number of series of one chart that a reader can distinguish.
const MAX_SERIES: usize = 7;

/// The charts of a figure.
pub(super) fn charts(figure: &Figure, measured: &Measured) -> Result<Vec<Chart>, ReportError> {
    let mut charts = match figure.shows {
        FigureKind::Goodput => flows_over_time(figure, measured, "goodput / Gb/s", goodput)?,
        FigureKind::Rate => flows_over_time(figure, measured, "allowed rate / Gb/s", |rows| {
            of(rows, "rate_bps", 1e9)
        })?,
        FigureKind::Alpha => {
            flows_over_time(figure, measured, "alpha", |rows| of(rows, "alpha", 1.0))?
        }
        FigureKind::Queue => queues_over_time(figure, measured)?,
        FigureKind::QueueCdf => vec![queue_cdf(figure, measured)?],
        FigureKind::GoodputCdf => vec![goodput_cdf(figure, measured)?],
        FigureKind::Slowdown => vec![slowdown(figure, measured)?],
        FigureKind::Ranks => vec![ranks(figure, measured)?],
        FigureKind::Gates => vec![gates(figure, measured)?],
    };
    for chart in &mut charts {
        for (name, file) in &figure.published {
            let points = published::find(file).map(published::points).unwrap_or_default();
            chart.series.push(Series::line(name, points).published());
        }
    }
    Ok(charts)
}

fn run_of(row: &Row) -> (String, String) {
    (text(row, "case").to_owned(), text(row, "seed").to_owned())
}

fn milliseconds(row: &Row) -> f64 {
    number(row, "time_ns") / 1e6
}

/// A column over time.
fn of(rows: &[&Row], column: &str, unit: f64) -> Points {
    rows.iter().map(|row| (milliseconds(row), number(row, column) / unit)).collect()
}

/// Goodput between consecutive samples.
fn goodput(rows: &[&Row]) -> Points {
    let mut before = (0.0, 0.0);
    let rate = |row: &&Row| {
        let (now, bytes) = (milliseconds(row), number(row, "delivered_bytes"));
        let point = (now, (bytes - before.1) * 8.0 / (now - before.0) / 1e6);
        before = (now, bytes);
        point
    };
    rows.iter().map(rate).collect()
}

fn time_axis(figure: &Figure) -> Axis {
    let axis = Axis::linear("time / ms");
    match figure.between {
        Some((from, to)) => axis.between(from, to),
        None => axis,
    }
}

fn y_axis(figure: &Figure, label: &str) -> Axis {
    if figure.log { Axis::log(label) } else { Axis::linear(label) }
}

/// One chart for each case (first seed), one line for each flow.
fn flows_over_time(
    figure: &Figure,
    measured: &Measured,
    label: &str,
    line: impl Fn(&[&Row]) -> Points,
) -> Result<Vec<Chart>, ReportError> {
    let mut names = BTreeMap::new();
    for row in measured.rows("flows")? {
        let name = format!("{} to {}", text(&row, "from"), text(&row, "to"));
        names.insert((run_of(&row), text(&row, "flow").to_owned()), name);
    }
    let mut charts: Vec<Chart> = Vec::new();
    let mut drawn = Vec::new();
    for (run, rows) in grouped(figure, measured.rows("flow_samples")?, run_of) {
        if drawn.contains(&run.0) {
            continue;
        }
        drawn.push(run.0.clone());
        let flows = grouped(figure, rows, |row| text(row, "flow").to_owned());
        let mut chart = Chart::new(
            titled(figure, &run.0, flows.len()),
            time_axis(figure),
            y_axis(figure, label),
        );
        for (flow, rows) in flows.iter().take(MAX_SERIES) {
            let name = names.get(&(run.clone(), flow.clone())).cloned().unwrap_or_default();
            let rows: Vec<&Row> = rows.iter().collect();
            chart = chart.with(Series::line(name, line(&rows)));
        }
        charts.push(chart);
    }
    Ok(charts)
}

fn titled(figure: &Figure, case: &str, lines: usize) -> String {
    let case = if case.is_empty() { String::new() } else { format!(", {case}") };
    let some = if lines > MAX_SERIES {
        format!(" ({MAX_SERIES} of {lines} flows)")
    } else {
        String::new()
    };
    format!("{}{case}{some}", figure.title)
}

/// The lines of a chart with their names: the case if there are several cases, and the part if
/// there are several parts.
fn lines(groups: &[((String, String), Vec<Row>)]) -> impl Iterator<Item = (String, &Vec<Row>)> {
    let (cases, parts) = (
        groups.iter().any(|(key, _)| key.0 != groups[0].0.0),
        groups.iter().any(|(key, _)| key.1 != groups[0].0.1),
    );
    let name = move |case: &str, part: &str| match (cases, parts) {
        (true, true) => format!("{case}, {part}"),
        (true, false) => case.to_owned(),
        _ => part.to_owned(),
    };
    groups.iter().map(move |((case, part), rows)| (name(case, part), rows)).take(MAX_SERIES)
}

fn queue_of(row: &Row) -> (String, String) {
    (text(row, "case").to_owned(), format!("{} to {}", text(row, "node"), text(row, "peer")))
}

/// One chart: a line for each case and queue (first seed).
fn queues_over_time(figure: &Figure, measured: &Measured) -> Result<Vec<Chart>, ReportError> {
    let groups = grouped(figure, measured.rows("queue_samples")?, queue_of);
    let title = titled(figure, "", 0);
    let mut chart = Chart::new(title, time_axis(figure), y_axis(figure, "queue / KB"));
    for (name, rows) in lines(&groups) {
        let first: Vec<&Row> =
            rows.iter().filter(|row| text(row, "seed") == text(&rows[0], "seed")).collect();
        chart = chart.with(Series::line(name, of(&first, "bytes", 1e3)));
    }
    Ok(vec![chart])
}

/// CDF of queue lengths over time, over all seeds.
fn queue_cdf(figure: &Figure, measured: &Measured) -> Result<Chart, ReportError> {
    let groups = grouped(figure, measured.rows("queue_lengths")?, queue_of);
    let x = y_axis(figure, "queue / KB");
    let mut chart =
        Chart::new(&figure.title, x, Axis::linear("part of the time").between(0.0, 1.0));
    for (name, rows) in lines(&groups) {
        let mut lengths: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for row in rows {
            lengths.entry(text(row, "part_of_time")).or_default().push(number(row, "bytes") / 1e3);
        }
        let mut points: Points = lengths
            .iter()
            .filter_map(|(part, lengths)| Some((mean(lengths), part.parse().ok()?)))
            .collect();
        points.sort_by(|a, b| a.1.total_cmp(&b.1));
        chart = chart.with(Series::line(name, points));
    }
    Ok(chart)
}

#[allow(clippy::cast_precision_loss)] // Counts of seeds.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// CDF of the flows' goodput over all seeds: a line for each case and traffic group.
fn goodput_cdf(figure: &Figure, measured: &Measured) -> Result<Chart, ReportError> {
    let key = |row: &Row| (text(row, "case").to_owned(), text(row, "traffic").to_owned());
    let groups = grouped(figure, measured.rows("flows")?, key);
    let x = y_axis(figure, "goodput / Gb/s");
    let mut chart =
        Chart::new(&figure.title, x, Axis::linear("part of the flows").between(0.0, 1.0));
    for (name, rows) in lines(&groups) {
        let values = rows.iter().map(|row| number(row, "goodput_bps") / 1e9).collect();
        chart = chart.with(Series::line(name, cumulative(values)).drawn(Kind::Steps));
    }
    Ok(chart)
}

/// Percentiles of the flows' slowdown by size, in groups with equal numbers of flows: lines for
/// each case. The name of a case has the number of its unfinished flows, which no line shows.
fn slowdown(figure: &Figure, measured: &Measured) -> Result<Chart, ReportError> {
    let mut chart =
        Chart::new(&figure.title, Axis::log("flow size / KB"), y_axis(figure, "slowdown"));
    for (case, flows) in sizes::flows(figure, measured)?.into_iter().take(MAX_SERIES) {
        let unfinished = flows.iter().filter(|flow| flow.1.is_none()).count();
        let sizes = sizes::by_size(flows);
        for (name, permille) in [("median", 500), ("95 %", 950), ("99 %", 990)] {
            let name = if case.is_empty() { name.to_owned() } else { format!("{case}, {name}") };
            let name = match unfinished {
                0 => name,
                some => format!("{name} ({some} unfinished)"),
            };
            let points = sizes
                .iter()
                .filter_map(|(size, sorted, _)| Some((*size, sizes::quantile(sorted, permille)?)));
            chart = chart.with(Series::line(name, points.collect()));
        }
    }
    Ok(chart)
}

/// Completion time of each rank: a line for each case and collective (first seed).
fn ranks(figure: &Figure, measured: &Measured) -> Result<Chart, ReportError> {
    let key = |row: &Row| (text(row, "case").to_owned(), text(row, "traffic").to_owned());
    let groups = grouped(figure, measured.rows("ranks")?, key);
    let y = y_axis(figure, "completion / us");
    let mut chart = Chart::new(&figure.title, Axis::linear("rank"), y);
    for (name, rows) in lines(&groups) {
        let first = rows.iter().filter(|row| text(row, "seed") == text(&rows[0], "seed"));
        let points = first.map(|row| (number(row, "rank"), number(row, "completion_us")));
        let done = points.filter(|point| point.1.is_finite());
        chart = chart.with(Series::line(name, done.collect()).drawn(Kind::Points));
    }
    Ok(chart)
}

#[allow(clippy::cast_precision_loss)] // Counts of flows.
fn cumulative(mut values: Vec<f64>) -> Points {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    values
        .into_iter()
        .enumerate()
        .map(|(below, value)| (value, (below + 1) as f64 / count))
        .collect()
}

/// Values of gates for each case, beside the published values.
fn gates(figure: &Figure, measured: &Measured) -> Result<Chart, ReportError> {
    let rows = measured.rows("gates")?;
    let mut cases: Vec<&str> = Vec::new();
    let mut gates: Vec<&str> = Vec::new();
    for row in &rows {
        let (case, gate) = (text(row, "case"), text(row, "gate"));
        if !figure.of.is_empty() && !figure.of.iter().any(|of| of == gate) {
            continue;
        }
        if !cases.contains(&case) {
            cases.push(case);
        }
        if !gates.contains(&gate) {
            gates.push(gate);
        }
    }
    let (axis, places, kind) = case_axis(&cases);
    let mut heads: Vec<&str> = places.iter().map(|(head, _)| head.as_str()).collect();
    heads.dedup();
    let mut chart = Chart::new(&figure.title, axis, y_axis(figure, ""));
    for (gate, head) in gates.iter().flat_map(|gate| heads.iter().map(move |head| (*gate, *head))) {
        let line = |column: &str| {
            let own = rows.iter().filter(|row| text(row, "gate") == gate);
            let point = |row: &Row| {
                let case = cases.iter().position(|case| *case == text(row, "case"))?;
                let (of, place) = &places[case];
                (of == head).then(|| (*place, number(row, column)))
            };
            own.filter_map(point).filter(|point| point.1.is_finite()).collect::<Points>()
        };
        let name = if head.is_empty() { gate.to_owned() } else { format!("{gate}, {head}") };
        let (value, published) = (line("value"), line("published"));
        if value.is_empty() {
            continue;
        }
        chart = chart.with(Series::line(name.as_str(), value).drawn(kind));
        if !published.is_empty() {
            let others = Series::line(format!("{name}, published"), published).drawn(kind);
            chart = chart.with(others.published());
        }
        let ns3 = line("ns3");
        if !ns3.is_empty() {
            let others = Series::line(format!("{name}, ns-3"), ns3).drawn(kind);
            chart = chart.with(others.published());
        }
    }
    Ok(chart)
}

/// The axis for `cases`. If all names end in a number of the same key, the cases lie along that
/// number, with one line for each common prefix; otherwise they stand side by side. Returns the
/// axis, the prefix and position of each case, and how the series is drawn.
fn case_axis(cases: &[&str]) -> (Axis, Vec<(String, f64)>, Kind) {
    let split = |case: &&str| {
        let (name, number) = case.rsplit_once([' ', '='])?;
        let name = name.trim_end_matches([' ', '=']);
        let (head, key) = name.rsplit_once(", ").unwrap_or(("", name));
        Some((head.to_owned(), key.to_owned(), number.trim_end_matches(']').parse::<f64>().ok()?))
    };
    let numbers: Option<Vec<(String, String, f64)>> = cases.iter().map(split).collect();
    match numbers {
        Some(numbers)
            if numbers.len() > 1 && numbers.iter().all(|(_, key, _)| *key == numbers[0].1) =>
        {
            let key = numbers[0].1.clone();
            (
                Axis::linear(key),
                numbers.into_iter().map(|(head, _, number)| (head, number)).collect(),
                Kind::Line,
            )
        }
        _ => {
            let names = cases.iter().map(|case| (*case).to_owned());
            let places = (0_u32..).take(cases.len()).map(|place| (String::new(), f64::from(place)));
            (Axis::named("", names), places.collect(), Kind::Bars)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_with_a_number_are_placed_on_an_axis() {
        type Case = (&'static [&'static str], &'static str, &'static [(&'static str, f64)], Kind);
        let rows: [Case; 4] = [
            (&["K = 1", "K = 16"], "K", &[("", 1.0), ("", 16.0)], Kind::Line),
            (
                &["Pmax 1 %, K = 2", "Pmax 10 %, K = 2"],
                "K",
                &[("Pmax 1 %", 2.0), ("Pmax 10 %", 2.0)],
                Kind::Line,
            ),
            (
                &["a [switch.pmax=0.1]", "a [switch.pmax=1]"],
                "a [switch.pmax",
                &[("", 0.1), ("", 1.0)],
                Kind::Line,
            ),
            (&["none", "with 2"], "", &[("", 0.0), ("", 1.0)], Kind::Bars),
        ];
        for (cases, label, due, drawn) in rows {
            let (axis, places, kind) = case_axis(cases);
            let places: Vec<_> =
                places.iter().map(|(head, place)| (head.as_str(), *place)).collect();
            assert_eq!((axis.label.as_str(), &places[..], kind), (label, due, drawn));
        }
    }

    #[test]
    fn a_cdf_ends_at_one() {
        assert_eq!(cumulative(vec![3.0, f64::NAN, 1.0]), [(1.0, 0.5), (3.0, 1.0)]);
    }
}
