//! `[[figure]]`: what a report draws of a scenario.

use serde::{Deserialize, Serialize};

use super::ScenarioError;
use super::section::Section;

/// What is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shows {
    /// What arrived of each flow, in Gb/s of payload, over time.
    Goodput,
    /// The rate that each flow's controller allows, in Gb/s, over time.
    Rate,
    /// DCQCN's alpha of each flow over time.
    Alpha,
    /// The length of each watched queue in KB over time.
    Queue,
    /// The part of the time for which a queue was no longer than so many KB.
    QueueCdf,
    /// The part of the flows that had no more than so many Gb/s.
    GoodputCdf,
    /// How many times as long flows took as they would have alone, by their size: median, 95th and 99th percentile.
    Slowdown,
    /// Values of gates, case by case, beside those that were published.
    Gates,
}

const SHOWS: [(&str, Shows); 8] = [
    ("goodput", Shows::Goodput),
    ("rate", Shows::Rate),
    ("alpha", Shows::Alpha),
    ("queue", Shows::Queue),
    ("queue-cdf", Shows::QueueCdf),
    ("goodput-cdf", Shows::GoodputCdf),
    ("slowdown", Shows::Slowdown),
    ("gates", Shows::Gates),
];

/// A chart of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Above it.
    pub title: String,
    /// What is drawn.
    pub shows: Shows,
    /// Names of cases, or of gates for [`Shows::Gates`]; all if empty.
    pub of: Vec<String>,
    /// Axes by logarithms.
    pub log: bool,
    /// From when to when, in milliseconds.
    pub between: Option<(f64, f64)>,
    /// What others published: names, and files of x and y below `published/`.
    pub published: Vec<(String, String)>,
}

/// Reads a figure.
pub(super) fn read(section: Section<'_>, cases: &[super::Case]) -> Result<Figure, ScenarioError> {
    let names: Vec<&str> = SHOWS.iter().map(|(name, _)| *name).collect();
    let shows = section.choice("shows", &names)?;
    let shows = SHOWS[shows.ok_or_else(|| section.missing("shows", names.join(", ")))?].1;
    let title = section.text("title")?;
    let title = title.ok_or_else(|| section.missing("title", "what stands above the figure"))?;
    let mut known: Vec<&str> = match shows {
        Shows::Gates => {
            cases.iter().flat_map(|case| &case.gates).map(|gate| gate.name.as_str()).collect()
        }
        _ => cases.iter().map(|case| case.name.as_str()).collect(),
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
        let name = entry.text("name")?.ok_or_else(|| entry.missing("name", "whose it is"))?;
        let file =
            entry.text("file")?.ok_or_else(|| entry.missing("file", "a file below published/"))?;
        if crate::scenarios::published(&file).is_none() {
            let known = crate::scenarios::PUBLISHED.iter().map(|(name, _)| *name);
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
