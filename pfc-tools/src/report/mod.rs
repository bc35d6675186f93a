//! The report: every scenario with its gates and figures, as HTML and as Markdown with images
//! beside it.

mod data;
mod figures;

use std::fs;
use std::io;
use std::path::Path;

pub use data::{Measured, ReportError, Row};

use crate::plot::{Cell, Page, Part, Section, Table, Verdict};
use crate::results::format_number;
use data::{number, text};
use feroce_engine::files;

/// The first paragraph of every report.
const REPRODUCIBLE: &str = "Every value here comes from a scenario file and its seed; running it \
    again gives the same bytes.";

/// Builds the report page.
///
/// # Errors
/// See [`ReportError`].
pub fn page(title: &str, measured: &[Measured]) -> Result<Page, ReportError> {
    let sections = measured.iter().map(section).collect::<Result<Vec<_>, _>>()?;
    let parts = vec![Part::Paragraph(REPRODUCIBLE.into()), summary(measured)?];
    Ok(Page { title: title.to_owned(), parts, sections })
}

/// Returns true if every gate of every scenario holds or is explained, and no lossless network lost
/// packets.
///
/// # Errors
/// See [`ReportError`].
pub fn holds(measured: &[Measured]) -> Result<bool, ReportError> {
    for scenario in measured {
        let (held, explained, of) = count_gates(scenario)?;
        if held + explained < of {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes `report.html`, `report.md` and its images into `folder`.
///
/// # Errors
/// Errors of the file system.
pub fn write(page: &Page, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join("plots"))?;
    files::write(folder.join("report.html"), page.html())?;
    let (markdown, pictures) = page.markdown("plots");
    for (name, svg) in pictures {
        files::write(folder.join("plots").join(name), svg)?;
    }
    files::write(folder.join("report.md"), markdown)
}

/// Numbers of gates that hold, that fail but are explained, and of all gates. A loss in a lossless
/// network counts as a gate that fails.
fn count_gates(measured: &Measured) -> Result<(usize, usize, usize), ReportError> {
    let rows = measured.rows("gates")?;
    let verdicts: Vec<Verdict> = rows.iter().map(verdict).collect();
    let count = |which| verdicts.iter().filter(|verdict| **verdict == which).count();
    let of = verdicts.len() - count(Verdict::Shown);
    Ok((count(Verdict::Holds), count(Verdict::Explained), of))
}

fn verdict(row: &Row) -> Verdict {
    match (is_gate(row), text(row, "holds"), text(row, "explained")) {
        (false, ..) => Verdict::Shown,
        (true, "true", _) => Verdict::Holds,
        (true, _, "") => Verdict::Fails,
        _ => Verdict::Explained,
    }
}

fn is_gate(row: &Row) -> bool {
    !text(row, "least").is_empty() || !text(row, "most").is_empty()
}

/// The summary table: one row for each scenario.
#[allow(clippy::cast_precision_loss)] // Counts below 2^53.
fn summary(measured: &[Measured]) -> Result<Part, ReportError> {
    let head = ["scenario", "gates that hold", "runs", "simulated", "packet hops"];
    let mut rows = Vec::new();
    for scenario in measured {
        let (held, explained, of) = count_gates(scenario)?;
        let explained = match explained {
            0 => String::new(),
            some => format!(", {some} explained"),
        };
        let runs = scenario.rows("runs")?;
        let sum = |column: &str| runs.iter().map(|row| number(row, column)).sum::<f64>();
        rows.push(vec![
            Cell::Text(scenario.description.title.clone()),
            Cell::Number(format!("{held} of {of}{explained}")),
            Cell::Number(runs.len().to_string()),
            Cell::Number(format!("{} ms", format_number(sum("ended_ns") / 1e6))),
            Cell::Number(format!("{:.1} M", sum("packet_hops") / 1e6)),
        ]);
    }
    Ok(Part::Table(Table { head: head.map(String::from).into(), rows }))
}

fn section(measured: &Measured) -> Result<Section, ReportError> {
    let description = &measured.description;
    let mut parts = Vec::new();
    if !description.source.is_empty() {
        parts.push(Part::Paragraph(format!(
            "Published: {}.",
            description.source.trim_end_matches('.')
        )));
    }
    let paragraphs = description.notes.split("\n\n").filter(|text| !text.trim().is_empty());
    parts.extend(
        paragraphs
            .map(|text| Part::Paragraph(text.split_whitespace().collect::<Vec<_>>().join(" "))),
    );
    parts.push(simulated(measured)?);
    parts.extend(gates(measured)?);
    let mut charts = Vec::new();
    for figure in &description.figures {
        charts.extend(figures::charts(figure, measured)?);
    }
    if !charts.is_empty() {
        parts.push(Part::Charts(charts));
    }
    let id: String =
        description.scenario.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    Ok(Section { id, heading: description.title.clone(), parts })
}

/// The simulated time of the runs.
fn simulated(measured: &Measured) -> Result<Part, ReportError> {
    let mut cases: Vec<(String, u32, f64)> = Vec::new();
    for row in measured.rows("runs")? {
        let (case, took) = (text(&row, "case"), number(&row, "ended_ns") / 1e6);
        match cases.last_mut() {
            Some((known, runs, time)) if known == case => {
                (*runs, *time) = (*runs + 1, *time + took)
            }
            _ => cases.push((case.to_owned(), 1, took)),
        }
    }
    let duration = |(runs, each): (u32, f64)| match runs {
        1 => format!("{} ms", format_number(each)),
        runs => format!("{runs} runs of {} ms", format_number(each)),
    };
    let mut kinds: Vec<((u32, f64), Vec<String>)> = Vec::new();
    for (case, runs, time) in cases {
        let kind = (runs, time / f64::from(runs));
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, cases)) => cases.push(case),
            None => kinds.push((kind, vec![case])),
        }
    }
    let text = match &kinds[..] {
        [(kind, cases)] if cases.len() == 1 => duration(*kind),
        [(kind, _)] => format!("{} for each case", duration(*kind)),
        several => {
            let kind = |(kind, cases): &(_, Vec<String>)| {
                format!("{} ({})", duration(*kind), cases.join("; "))
            };
            several.iter().map(kind).collect::<Vec<_>>().join(", ")
        }
    };
    Ok(Part::Paragraph(format!("Simulated: {text}.")))
}

/// The table of gates: measured, published and expected values.
fn gates(measured: &Measured) -> Result<Vec<Part>, ReportError> {
    let head = ["case", "value", "Feroce", "published", "ns-3", "expected", "gate"];
    let cells = |row: &Row| {
        let value = |column: &str| {
            let value = number(row, column);
            if value.is_finite() { format_number(value) } else { String::new() }
        };
        let (min, max) = (value("least"), value("most"));
        let expected = match (min.as_str(), max.as_str()) {
            ("", "") => String::new(),
            (min, "") => format!("at least {min}"),
            ("", max) => format!("at most {max}"),
            (min, max) => format!("{min} to {max}"),
        };
        vec![
            Cell::Text(text(row, "case").to_owned()),
            Cell::Text(text(row, "gate").to_owned()),
            Cell::Number(value("value")),
            Cell::Number(value("published")),
            Cell::Number(value("ns3")),
            Cell::Text(expected),
            Cell::Verdict(verdict(row)),
        ]
    };
    let gates = measured.rows("gates")?;
    let rows = gates.iter().map(cells).collect();
    let mut parts = vec![Part::Table(Table { head: head.map(String::from).into(), rows })];
    for row in gates.iter().filter(|row| verdict(row) == Verdict::Explained) {
        let why = text(row, "explained").split_whitespace().collect::<Vec<_>>().join(" ");
        let gate = [text(row, "case"), text(row, "gate")].join(": ");
        parts.push(Part::Paragraph(format!("Not met, {gate}: {why}")));
    }
    Ok(parts)
}
