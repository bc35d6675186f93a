//! A chart as SVG.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axes::{Peak, label, number, peak, placed, range, wrapped};
use super::chart::{Axis, Chart, Kind, Series};
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
/// The same of a label below a category.
const LABEL_LETTER: usize = 6;
const LABEL_LINE: i32 = 12;
/// Width in pixels of what is left and right of the grid.
const BESIDE: usize = 4 + 58 + 20;
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
        let rows = legend_rows(chart).len() + usize::from(peak(chart).is_some());
        let head = 28 + LEGEND_LINE * i32::try_from(rows).unwrap_or(0);
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
    let mut lines = (0..).map(|row| 34 + row * LEGEND_LINE);
    for (row, y) in legend_rows(chart).iter().zip(&mut lines) {
        for &(number, x) in row {
            let series = &chart.series[number];
            draw_sign(area, series, colour(number), (x, y));
            if series.kind != Kind::Bars {
                draw_mark(area, number, (x + 9, y));
            }
            area.draw(&Text::new(series.name.clone(), (x + 24, y), style.clone()))
                .expect(INTO_TEXT);
        }
    }
    if let (Some(Peak { at: (x, y), .. }), Some(line)) = (peak(chart), lines.next()) {
        let words = format!("cut off above: a peak of {} at {}", number(y), number(x));
        area.draw(&Text::new(words, (60, line), style)).expect(INTO_TEXT);
    }
}

/// The mark of series `number` at `at`. The first series have none; those after them have the same
/// colours again, and a mark.
fn draw_mark(area: &Area<'_>, number: usize, at: (i32, i32)) {
    let style = colour(number).filled();
    match number / COLOURS.len() {
        0 => Ok(()),
        1 => area.draw(&TriangleMarker::new(at, 4, style)),
        _ => area.draw(&Cross::new(at, 4, style)),
    }
    .expect(INTO_TEXT);
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
    let most = peak(chart).map_or(f64::INFINITY, |peak| peak.shown);
    let y = range(
        &chart.y,
        chart.series.iter().flat_map(|series| series.points.iter().map(|point| point.1.min(most))),
    );
    let names = category_lines(chart);
    let most_lines = names.iter().map(|(_, lines)| lines.len()).max().unwrap_or(0);
    let below = 40.max(16 + LABEL_LINE * i32::try_from(most_lines).unwrap_or(0));
    let mut grid = ChartBuilder::on(area)
        .margin(4)
        .margin_right(20)
        .x_label_area_size(below)
        .y_label_area_size(58)
        .build_cartesian_2d(x.0..x.1, y.0..y.1)
        .expect(INTO_TEXT);
    let labels = |axis: &Axis| {
        let axis = axis.clone();
        move |value: &f64| label(&axis, *value)
    };
    let (x_labels, y_labels) = (labels(&chart.x), labels(&chart.y));
    let mut mesh = grid.configure_mesh();
    mesh.x_desc(&chart.x.label)
        .y_desc(&chart.y.label)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13));
    mesh.x_label_formatter(&x_labels).y_label_formatter(&y_labels).light_line_style(TRANSPARENT);
    mesh.bold_line_style(RGBColor(225, 225, 225)).axis_style(BLACK).y_labels(8);
    if !names.is_empty() {
        mesh.x_labels(0).disable_x_mesh();
    }
    mesh.draw().expect(INTO_TEXT);
    draw_categories(area, &grid, &names);
    let bars = chart.series.iter().filter(|series| series.kind == Kind::Bars).count();
    let mut bar = 0;
    // Feroce's curves lie above those of others.
    let numbered = || chart.series.iter().enumerate();
    let below = numbered().filter(|(_, series)| series.published && series.kind != Kind::Bars);
    let above = numbered().filter(|(_, series)| !series.published || series.kind == Kind::Bars);
    for (number, series) in below.chain(above) {
        match series.kind {
            Kind::Bars => {
                draw_bars(&mut grid, chart, series, colour(number), (bar, bars));
                bar += 1;
            }
            _ => {
                draw_series(&mut grid, chart, series, colour(number));
                for at in marked(chart, series) {
                    draw_mark(area, number, position(area, &grid, at));
                }
            }
        }
    }
}

/// The names of the categories, each in lines that fit its share of the axis.
fn category_lines(chart: &Chart) -> Vec<(f64, Vec<String>)> {
    let share = (SIZE.0 as usize - BESIDE) / chart.x.names.len().max(1);
    let names = chart.x.names.iter();
    names.map(|(at, name)| (*at, wrapped(name, share / LABEL_LETTER))).collect()
}

/// plotters writes labels in one line, over each other.
fn draw_categories(area: &Area<'_>, grid: &Grid<'_, '_>, names: &[(f64, Vec<String>)]) {
    let style = (FONT, 11).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
    for (at, lines) in names {
        let (x, bottom) = position(area, grid, (*at, grid.y_range().start));
        for (line, y) in lines.iter().zip((0..).map(|line| bottom + 6 + line * LABEL_LINE)) {
            area.draw(&Text::new(line.clone(), (x, y), style.clone())).expect(INTO_TEXT);
        }
    }
}

/// The position in `area` of a point of the grid.
fn position(area: &Area<'_>, grid: &Grid<'_, '_>, at: (f64, f64)) -> (i32, i32) {
    let ((x, y), (left, top)) = (grid.backend_coord(&at), area.get_base_pixel());
    (x - left, y - top)
}

/// The points of a series that bear its mark: about twelve.
fn marked(chart: &Chart, series: &Series) -> Vec<(f64, f64)> {
    const MARKS: usize = 12;
    let points = placed(chart, &series.points);
    let step = points.len().div_ceil(MARKS).max(1);
    points.into_iter().step_by(step).collect()
}

fn draw_series(grid: &mut Grid<'_, '_>, chart: &Chart, series: &Series, colour: RGBColor) {
    let most = peak(chart).map_or(f64::INFINITY, |peak| peak.shown);
    let points: Vec<_> =
        placed(chart, &series.points).into_iter().map(|(x, y)| (x, y.min(most))).collect();
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

/// Corners of a step line: each value holds until the next.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
    corners.chain(points.last().copied()).collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_line_holds_each_value_until_the_next() {
        assert_eq!(steps(&[(0.0, 1.0), (2.0, 5.0)]), [(0.0, 1.0), (2.0, 1.0), (2.0, 5.0)]);
        assert_eq!(steps(&[]), []);
    }

    #[test]
    fn a_peak_far_above_the_rest_is_cut_off_and_named() {
        let series = |peak: f64| {
            let points = (0..1000_u32).map(f64::from);
            Series::line("queue", points.map(|x| (x, if x == 7.0 { peak } else { 10.0 })).collect())
        };
        let chart =
            |peak| Chart::new("Queue", Axis::linear("t"), Axis::linear("KB")).with(series(peak));
        let svg = chart(5000.0).svg();
        assert!(
            svg.contains("cut off above: a peak of 5000 at 7") && !svg.contains("4000"),
            "{svg}"
        );
        assert!(!chart(30.0).svg().contains("cut off"));
    }

    #[test]
    fn the_curves_of_others_lie_below() {
        let points = vec![(0.0, 1.0), (1.0, 2.0)];
        let chart = Chart::new("", Axis::linear(""), Axis::linear(""))
            .with(Series::line("Feroce", points.clone()))
            .with(Series::line("paper", points).published());
        let svg = chart.svg();
        // The first colour is that of the first series, in the legend and on the chart.
        let last = |colour: &str| svg.rfind(colour).expect("drawn");
        assert!(last("#0072B2") > last("#D55E00"), "{svg}");
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
    fn long_names_of_categories_have_several_lines() {
        let names = (0..7).map(|_| "DCQCN, misconfigured, PFC from 49 KB on".to_owned());
        let svg = every_kind(Axis::named("configuration", names)).svg();
        assert_eq!(svg.matches("\nmisconfigured,\n").count(), 7, "{svg}");
    }

    #[test]
    fn fourteen_lines_can_be_told_apart() {
        let points = vec![(0.0, 1.0), (1.0, 2.0)];
        let lines = (0..14).map(|number| Series::line(number.to_string(), points.clone()));
        let mut chart = Chart::new("", Axis::linear(""), Axis::linear(""));
        chart.series.extend(lines);
        // One in the legend, two on the line.
        assert_eq!(chart.svg().matches("<polygon").count(), 7 * 3, "{}", chart.svg());
    }

    #[test]
    fn a_chart_without_points_is_drawn() {
        let svg = Chart::new("empty", Axis::log("x"), Axis::log("y")).svg();
        assert!(svg.contains("empty"));
    }
}
