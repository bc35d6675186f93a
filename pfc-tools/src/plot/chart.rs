//! Charts as values: axes and series.

/// An axis of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Quantity and unit, such as `queue / KB`.
    pub label: String,
    /// Linear or logarithmic.
    pub scale: Scale,
    /// Range to show; `None` fits the series. A linear axis starts at 0 unless a value is below 0.
    pub range: Option<(f64, f64)>,
    /// Category names, shown instead of numbers.
    pub names: Vec<(f64, String)>,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; values that are not above 0 are left out.
    Log,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Straight lines between points.
    Line,
    /// Each value holds until the next.
    Steps,
    /// Markers only.
    Points,
    /// Bars from the axis, beside those of other series.
    Bars,
}

/// A data series.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// How the series is drawn.
    pub kind: Kind,
    /// Published values for comparison: drawn dashed, with open markers.
    pub published: bool,
    /// x and y, sorted by x.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title above the chart.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Series, in the order of the legend.
    pub series: Vec<Series>,
}

impl Axis {
    /// A linear axis that fits the series.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, range: None, names: Vec::new() }
    }

    /// A logarithmic axis that fits the series.
    pub fn log(label: impl Into<String>) -> Self {
        Self { scale: Scale::Log, ..Self::linear(label) }
    }

    /// Categories at 0, 1, 2 and so on.
    pub fn named(label: impl Into<String>, names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<_> = (0_u32..).map(f64::from).zip(names).collect();
        let last = names.last().map_or(0.0, |(at, _)| *at);
        Self { range: Some((-0.5, last + 0.5)), names, ..Self::linear(label) }
    }

    /// Restricts the axis to `from..=to`.
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

    /// Sets how the series is drawn.
    #[must_use]
    pub fn drawn(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Marks the values as published by others.
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

    /// Appends `series`.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }
}
