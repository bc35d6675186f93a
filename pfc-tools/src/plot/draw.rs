//! A chart as SVG.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Axis, Chart, Kind, Scale, Series};
use super::downsample::downsample;

const SIZE: (u32, u32) = (640, 400);
const FONT: &str = "sans-serif";
/// The Okabe-Ito palette, suitable for colour-blind readers.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
/// Width in pixels of a legend character; an estimate, since no font is measured.
const LETTER: usize = 7;
const LEGEND_LINE: i32 = 16;
/// Share of the space between two categories that bars take.
const BARS: f64 = 0.8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Grid<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
/// Drawing into a string fails only for an empty range, and [`range`] never returns one.
const INTO_TEXT: &str = "drawing into text does not fail";

impl Chart {
    /// Draws the chart as SVG of 640 by 400 units.
    pub fn svg(&self) -> String {
        svg(self)
    }
}

fn svg(chart: &Chart) -> String {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).expect(INTO_TEXT);
        let head = 28 + LEGEND_LINE * i32::try_from(legend_rows(chart).len()).unwrap_or(0);
        let (above, below) = area.split_vertically(head);
        draw_head(&above, chart);
        draw_body(&below, chart);
        area.present().expect(INTO_TEXT);
    }
    text
}

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// The legend's rows: indexes of the series, with their x positions.
fn legend_rows(chart: &Chart) -> Vec<Vec<(usize, i32)>> {
    let mut rows: Vec<Vec<(usize, i32)>> = Vec::new();
    let (mut at, end) = (i32::MAX, 620);
    for (number, series) in chart.series.iter().enumerate() {
        let width = i32::try_from(34 + LETTER * series.name.chars().count()).unwrap_or(end);
        if at.saturating_add(width) > end {
            rows.push(Vec::new());
            at = 60;
        }
        rows.last_mut().expect("pushed").push((number, at));
        at += width;
    }
    rows
}

fn draw_head(area: &Area<'_>, chart: &Chart) {
    let title = (FONT, 15).into_font().style(FontStyle::Bold).color(&BLACK);
    let centred = title.pos(Pos::new(HPos::Center, VPos::Top));
    area.draw(&Text::new(chart.title.clone(), (320, 8), centred)).expect(INTO_TEXT);
    let style = (FONT, 12).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    for (row, y) in legend_rows(chart).iter().zip((0..).map(|row| 34 + row * LEGEND_LINE)) {
        for &(number, x) in row {
            let series = &chart.series[number];
            draw_sign(area, series, colour(number), (x, y));
            area.draw(&Text::new(series.name.clone(), (x + 24, y), style.clone()))
                .expect(INTO_TEXT);
        }
    }
}

/// The symbol before a name in the legend.
fn draw_sign(area: &Area<'_>, series: &Series, colour: RGBColor, (x, y): (i32, i32)) {
    match (series.kind, series.published) {
        (Kind::Points, true) => area.draw(&Circle::new((x + 9, y), 3, colour.stroke_width(1))),
        (Kind::Points, false) => area.draw(&Circle::new((x + 9, y), 3, colour.filled())),
        (Kind::Bars, true) => {
            area.draw(&Rectangle::new([(x, y - 5), (x + 18, y + 5)], colour.stroke_width(1)))
        }
        (Kind::Bars, false) => {
            area.draw(&Rectangle::new([(x, y - 5), (x + 18, y + 5)], colour.filled()))
        }
        (_, true) => [0, 7, 14].iter().try_for_each(|dash| {
            let dash = vec![(x + dash, y), (x + dash + 4, y)];
            area.draw(&PathElement::new(dash, colour.stroke_width(2)))
        }),
        (_, false) => {
            area.draw(&PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)))
        }
    }
    .expect(INTO_TEXT);
}

fn draw_body(area: &Area<'_>, chart: &Chart) {
    let x = range(
        &chart.x,
        chart.series.iter().flat_map(|series| series.points.iter().map(|point| point.0)),
    );
    let y = range(
        &chart.y,
        chart.series.iter().flat_map(|series| series.points.iter().map(|point| point.1)),
    );
    let mut grid = ChartBuilder::on(area)
        .margin(4)
        .margin_right(20)
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(x.0..x.1, y.0..y.1)
        .expect(INTO_TEXT);
    let labels = |axis: &Axis| {
        let axis = axis.clone();
        move |value: &f64| label(&axis, *value)
    };
    let (x_labels, y_labels) = (labels(&chart.x), labels(&chart.y));
    let categories = chart.x.names.len();
    let mut mesh = grid.configure_mesh();
    mesh.x_desc(&chart.x.label)
        .y_desc(&chart.y.label)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13));
    mesh.x_label_formatter(&x_labels).y_label_formatter(&y_labels).light_line_style(TRANSPARENT);
    mesh.bold_line_style(RGBColor(225, 225, 225)).axis_style(BLACK).y_labels(8);
    mesh.x_labels(if categories > 0 { 2 * categories + 1 } else { 10 });
    if categories > 0 {
        mesh.disable_x_mesh();
    }
    mesh.draw().expect(INTO_TEXT);
    let bars = chart.series.iter().filter(|series| series.kind == Kind::Bars).count();
    let mut bar = 0;
    for (number, series) in chart.series.iter().enumerate() {
        match series.kind {
            Kind::Bars => {
                draw_bars(&mut grid, chart, series, colour(number), (bar, bars));
                bar += 1;
            }
            _ => draw_series(&mut grid, chart, series, colour(number)),
        }
    }
}

fn draw_series(grid: &mut Grid<'_, '_>, chart: &Chart, series: &Series, colour: RGBColor) {
    let points = placed(chart, &series.points);
    let drawn = match (series.kind, series.published) {
        (Kind::Points, true) => grid
            .draw_series(points.into_iter().map(|at| Circle::new(at, 3, colour.stroke_width(1))))
            .map(drop),
        (Kind::Points, false) => grid
            .draw_series(points.into_iter().map(|at| Circle::new(at, 3, colour.filled())))
            .map(drop),
        (kind, published) => {
            let points = if kind == Kind::Steps { steps(&points) } else { points };
            let points = downsample(&points);
            if published {
                let line = DashedLineSeries::new(points, 8, 5, colour.stroke_width(2));
                grid.draw_series(line).map(drop)
            } else {
                grid.draw_series(LineSeries::new(points, colour.stroke_width(1))).map(drop)
            }
        }
    };
    drawn.expect(INTO_TEXT);
}

/// Bars of series number `bar` of `bars` series that share each category.
fn draw_bars(
    grid: &mut Grid<'_, '_>,
    chart: &Chart,
    series: &Series,
    colour: RGBColor,
    (bar, bars): (usize, usize),
) {
    #[allow(clippy::cast_precision_loss)] // A handful of series.
    let (width, left) = (BARS / bars as f64, BARS * (bar as f64 / bars as f64 - 0.5));
    let floor = range(&chart.y, [0.0]).0.max(0.0);
    let rectangles = placed(chart, &series.points).into_iter().map(|(x, y)| {
        let corners = [(x + left, floor.min(y)), (x + left + width * 0.94, y)];
        let style = if series.published { colour.stroke_width(1) } else { colour.filled() };
        Rectangle::new(corners, style)
    });
    grid.draw_series(rectangles).map(drop).expect(INTO_TEXT);
}

/// Positions of the points along the axes, without those that cannot be shown.
fn placed(chart: &Chart, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let is_within = |x: f64| chart.x.range.is_none_or(|(from, to)| (from..=to).contains(&x));
    let shown = points.iter().filter(|(x, _)| is_within(*x));
    let placed = shown.map(|&(x, y)| (place(&chart.x, x), place(&chart.y, y)));
    placed.filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
}

fn place(axis: &Axis, value: f64) -> f64 {
    match axis.scale {
        Scale::Linear => value,
        Scale::Log if value > 0.0 => value.log10(),
        Scale::Log => f64::NAN,
    }
}

/// Corners of a step line: each value holds until the next.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
    corners.chain(points.last().copied()).collect()
}

/// Start and end of an axis.
fn range(axis: &Axis, values: impl IntoIterator<Item = f64>) -> (f64, f64) {
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
fn label(axis: &Axis, at: f64) -> String {
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
fn number(value: f64) -> String {
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
    fn a_line_holds_each_value_until_the_next() {
        assert_eq!(steps(&[(0.0, 1.0), (2.0, 5.0)]), [(0.0, 1.0), (2.0, 1.0), (2.0, 5.0)]);
        assert_eq!(steps(&[]), []);
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

    fn every_kind(axis: Axis) -> Chart {
        let points = vec![(0.0, 1.0), (1.0, 30.0), (2.0, 20.0)];
        let kinds = [Kind::Line, Kind::Steps, Kind::Points, Kind::Bars];
        let mut chart = Chart::new("every <kind> & more", axis, Axis::linear("y / Gb/s"));
        for (kind, published) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            let series = Series::line(format!("{kind:?} {published}"), points.clone()).drawn(kind);
            chart = chart.with(Series { published, ..series });
        }
        chart
    }

    #[test]
    fn every_kind_is_drawn_and_text_is_escaped() {
        let svg = every_kind(Axis::linear("x")).svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("every &lt;kind&gt; &amp; more"), "{svg}");
        assert!(svg.matches("<circle").count() >= 6 + 2, "marks of two series and their legend");
        assert_eq!(svg, every_kind(Axis::linear("x")).svg());
    }

    #[test]
    fn categories_are_labelled_with_their_names_only() {
        let names = ["none", "misconfigured", "good"].map(String::from);
        let svg = every_kind(Axis::named("configuration", names.clone())).svg();
        for name in names {
            assert_eq!(svg.matches(&format!("\n{name}\n")).count(), 1, "{name}: {svg}");
        }
    }

    #[test]
    fn points_outside_the_range_are_left_out() {
        let chart = Chart::new("", Axis::linear("").between(1.0, 2.0), Axis::log(""));
        let points = [(0.5, 10.0), (1.0, 10.0), (1.5, 0.0), (2.0, 100.0), (2.5, 10.0)];
        assert_eq!(placed(&chart, &points), [(1.0, 1.0), (2.0, 2.0)]);
    }

    #[test]
    fn a_chart_without_points_is_drawn() {
        let svg = Chart::new("empty", Axis::log("x"), Axis::log("y")).svg();
        assert!(svg.contains("empty"));
    }
}
