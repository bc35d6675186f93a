//! Pictures for people: charts as values, drawn as SVG that goes into a page or a paper as it is.
//!
//! The same chart gives the same bytes on every machine: no font of the machine is measured.

mod draw;
mod markdown;
mod page;
mod thin;

pub(crate) use page::escaped;
pub use page::{Cell, Page, Part, Section, Table, Verdict};

/// What an axis shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Quantity and unit, as `queue / KB`.
    pub label: String,
    /// How values lie along it.
    pub scale: Scale,
    /// What is shown; what the series need if `None`. A linear axis begins at 0 unless a value is below.
    pub range: Option<(f64, f64)>,
    /// Names of values, in place of numbers: categories.
    pub names: Vec<(f64, String)>,
}

/// How values lie along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By their logarithms; values that are not above 0 are left out.
    Log,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Straight lines from point to point.
    Line,
    /// Each value holds until the next.
    Steps,
    /// Marks only.
    Points,
    /// Bars from the axis, beside those of the other series.
    Bars,
}

/// What belongs together.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// How it is drawn.
    pub kind: Kind,
    /// Numbers of others, to compare with: drawn dashed, marks open.
    pub published: bool,
    /// x and y, by x.
    pub points: Vec<(f64, f64)>,
}

/// A picture with axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below it.
    pub x: Axis,
    /// Left of it.
    pub y: Axis,
    /// In the order of the legend.
    pub series: Vec<Series>,
}

impl Axis {
    /// An axis of even numbers, with the range that the series need.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, range: None, names: Vec::new() }
    }

    /// The same, by logarithms.
    pub fn log(label: impl Into<String>) -> Self {
        Self { scale: Scale::Log, ..Self::linear(label) }
    }

    /// Categories, at 0, 1, 2 and so on.
    pub fn named(label: impl Into<String>, names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<_> = (0_u32..).map(f64::from).zip(names).collect();
        let last = names.last().map_or(0.0, |(at, _)| *at);
        Self { range: Some((-0.5, last + 0.5)), names, ..Self::linear(label) }
    }

    /// Shows no more and no less than `from..=to`.
    #[must_use]
    pub fn between(self, from: f64, to: f64) -> Self {
        Self { range: Some((from, to)), ..self }
    }
}

impl Series {
    /// A line of measured values.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), kind: Kind::Line, published: false, points }
    }

    /// Drawn as `kind`.
    #[must_use]
    pub fn drawn(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Numbers of others.
    #[must_use]
    pub fn published(self) -> Self {
        Self { published: true, ..self }
    }
}

impl Chart {
    /// An empty chart.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new() }
    }

    /// With `series` as the last.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// As SVG, 640 by 400 units.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }
}
