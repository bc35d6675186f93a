//! `[[figure]]`: a figure of the report.

use serde::{Deserialize, Serialize};

use super::error::ScenarioError;
use super::section::Section;

/// The quantity that a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    /// Goodput of each flow in Gb/s over time.
    Goodput,
    /// Rate allowed by each flow's controller, in Gb/s, over time.
    Rate,
    /// Alpha of DCQCN of each flow over time.
    Alpha,
    /// Length of each watched queue in KB over time.
    Queue,
    /// Distribution of queue lengths in KB over time (CDF).
    QueueCdf,
    /// Distribution of the flows' goodput in Gb/s (CDF).
    GoodputCdf,
    /// Slowdown of flows by size: median, 95th and 99th percentile.
    Slowdown,
    /// Completion time of each rank of the collectives, in us.
    Ranks,
    /// Values of gates for each case, beside the published values.
    Gates,
}

const FIGURE_KINDS: [(&str, FigureKind); 9] = [
    ("goodput", FigureKind::Goodput),
    ("rate", FigureKind::Rate),
    ("alpha", FigureKind::Alpha),
    ("queue", FigureKind::Queue),
    ("queue-cdf", FigureKind::QueueCdf),
    ("goodput-cdf", FigureKind::GoodputCdf),
    ("slowdown", FigureKind::Slowdown),
    ("ranks", FigureKind::Ranks),
    ("gates", FigureKind::Gates),
];

/// A figure of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Title above the figure.
    pub title: String,
    /// The quantity shown.
    pub shows: FigureKind,
    /// Names of cases, or of gates for [`FigureKind::Gates`]; all if empty.
    pub of: Vec<String>,
    /// Logarithmic axes.
    pub log: bool,
    /// Time range in milliseconds.
    pub between: Option<(f64, f64)>,
    /// Published curves: a name, and a file of x and y values in `published/`.
    pub published: Vec<(String, String)>,
}

/// The names that a figure may refer to.
pub(super) struct Known<'a> {
    /// Names of the cases.
    pub cases: Vec<&'a str>,
    /// Names of the gates.
    pub gates: Vec<&'a str>,
}

/// Reads a figure.
pub(super) fn read(section: Section<'_>, known: &Known<'_>) -> Result<Figure, ScenarioError> {
    let names: Vec<&str> = FIGURE_KINDS.iter().map(|(name, _)| *name).collect();
    let shows = section.choice("shows", &names)?;
    let shows = FIGURE_KINDS[shows.ok_or_else(|| section.missing("shows", names.join(", ")))?].1;
    let title = section.text("title")?;
    let title = title.ok_or_else(|| section.missing("title", "the title of the figure"))?;
    let mut known = match shows {
        FigureKind::Gates => known.gates.clone(),
        _ => known.cases.clone(),
    };
    known.dedup();
    let mut of = Vec::new();
    for (name, node) in section.texts("of")?.unwrap_or_default() {
        if !known.contains(&name.as_str()) {
            return Err(section.wrong("of", node, format!("one of {}", known.join("; "))));
        }
        of.push(name);
    }
    let mut published = Vec::new();
    for entry in section.sections("published")? {
        let name =
            entry.text("name")?.ok_or_else(|| entry.missing("name", "the name of the curve"))?;
        let file =
            entry.text("file")?.ok_or_else(|| entry.missing("file", "a file in published/"))?;
        if crate::published::find(&file).is_none() {
            let known = crate::published::ALL.iter().map(|(name, _)| *name);
            let expected = format!("one of {}", known.collect::<Vec<_>>().join(", "));
            return Err(match entry.get("file") {
                Some(node) => entry.wrong("file", node, expected),
                None => entry.missing("file", expected),
            });
        }
        entry.finish()?;
        published.push((name, file));
    }
    let ms = |time: crate::fabric::time::Time| time.seconds() * 1e3;
    let between = match (section.time("from")?.map(ms), section.time("to")?.map(ms)) {
        (None, None) => None,
        (Some(from), Some(to)) if from < to => Some((from, to)),
        _ => return Err(section.missing("to", "`from` and a later `to`, or neither")),
    };
    let figure = Figure { title, shows, of, log: section.flag("log", false)?, between, published };
    section.finish()?;
    Ok(figure)
}
