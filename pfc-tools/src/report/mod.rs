//! The report: every scenario with its gates and figures, as HTML and as Markdown with images
//! beside it.

mod data;
mod figures;
mod sizes;
mod verdicts;

use std::io;
use std::path::Path;

pub use data::{Measured, ReportError, Row};

use crate::fabric::scenario::{FigureKind, Kind};
use crate::plot::{Cell, Page, Part, Section, Table, Verdict};
use crate::results::{bounds, format_number};
use data::{number, text, verdict};
use feroce_engine::files;

/// The first paragraph of every report.
const REPRODUCIBLE: &str = "Every value here comes from a scenario file and its seed; running it \
    again gives the same bytes.";

/// What the columns of the summary are.
const KINDS: &str = "Gates that hold, by where the expectation comes from: a measurement of a \
    paper, a model of a paper or a closed form, another simulator, what must hold by construction \
    (nothing is lost; two implementations agree), and an earlier version of Feroce. Only the first \
    two decide about figures. Completion times and slowdowns leave out unfinished flows.";

/// Builds the report page.
///
/// # Errors
/// See [`ReportError`].
pub fn page(title: &str, measured: &[Measured]) -> Result<Page, ReportError> {
    let sections = measured.iter().map(section).collect::<Result<Vec<_>, _>>()?;
    let mut parts = vec![Part::Paragraph(REPRODUCIBLE.into())];
    parts.extend(verdicts::part(measured)?);
    parts.push(Part::Paragraph(KINDS.into()));
    parts.push(summary(measured)?);
    Ok(Page { title: title.to_owned(), parts, sections })
}

/// Returns true if no gate of any scenario fails, and no lossless network lost packets.
///
/// # Errors
/// See [`ReportError`].
pub fn holds(measured: &[Measured]) -> Result<bool, ReportError> {
    for scenario in measured {
        if scenario.rows("gates")?.iter().any(|row| verdict(row) == Verdict::Fails) {
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
    files::create_folder(folder.join("plots"))?;
    files::write(folder.join("report.html"), page.html())?;
    let (markdown, pictures) = page.markdown("plots");
    for (name, svg) in pictures {
        files::write(folder.join("plots").join(name), svg)?;
    }
    files::write(folder.join("report.md"), markdown)
}

/// The summary table: one row for each scenario, one column for each kind of gate.
#[allow(clippy::cast_precision_loss)] // Counts below 2^53.
fn summary(measured: &[Measured]) -> Result<Part, ReportError> {
    let mut head = vec!["scenario".to_owned()];
    head.extend(Kind::ALL.map(|kind| kind.name().to_owned()));
    head.extend(["unfinished flows", "runs", "simulated", "packet hops"].map(String::from));
    let mut rows = Vec::new();
    for scenario in measured {
        let gates = scenario.rows("gates")?;
        let runs = scenario.rows("runs")?;
        let sum = |column: &str| runs.iter().map(|row| number(row, column)).sum::<f64>();
        let mut row = vec![Cell::Text(scenario.description.title.clone())];
        for kind in Kind::ALL {
            let own = gates.iter().filter(|row| text(row, "kind") == kind.name());
            row.push(Cell::Number(tally(own)));
        }
        row.extend([
            Cell::Number(format!("{}", sum("unfinished_flows"))),
            Cell::Number(runs.len().to_string()),
            Cell::Number(format!("{} ms", format_number(sum("ended_ns") / 1e6))),
            Cell::Number(format!("{:.1} M", sum("packet_hops") / 1e6)),
        ]);
        rows.push(row);
    }
    Ok(Part::Table(Table { head, rows }))
}

/// "3 of 4", and how many of the others are not known misses.
fn tally<'a>(gates: impl Iterator<Item = &'a Row>) -> String {
    let verdicts: Vec<Verdict> = gates.map(verdict).collect();
    let count = |which| verdicts.iter().filter(|verdict| **verdict == which).count();
    let of = verdicts.len() - count(Verdict::Shown);
    match (of, count(Verdict::Fails)) {
        (0, _) => String::new(),
        (of, 0) => format!("{} of {of}", count(Verdict::Holds)),
        (of, fails) => format!("{} of {of}, {fails} FAIL", count(Verdict::Holds)),
    }
}

fn section(measured: &Measured) -> Result<Section, ReportError> {
    let description = &measured.description;
    let mut parts = verdicts::of(measured)?;
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
    for figure in description.figures.iter().filter(|f| f.shows == FigureKind::Slowdown) {
        parts.push(sizes::table(figure, measured)?);
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
    let gates = measured.rows("gates")?;
    let has_unfinished = gates.iter().any(|row| !text(row, "unfinished").is_empty());
    let mut head = vec!["case", "value", "Feroce", "published", "ns-3", "expected", "kind", "gate"];
    if has_unfinished {
        head.insert(3, "unfinished flows");
    }
    let cells = |row: &Row| {
        let value = |column: &str| {
            let value = number(row, column);
            if value.is_finite() { format_number(value) } else { String::new() }
        };
        let limit = |column: &str| Some(number(row, column)).filter(|value| value.is_finite());
        let mut cells = vec![
            Cell::Text(text(row, "case").to_owned()),
            Cell::Text(text(row, "gate").to_owned()),
            Cell::Number(value("value")),
            Cell::Number(value("published")),
            Cell::Number(value("ns3")),
            Cell::Text(bounds(limit("least"), limit("most"))),
            Cell::Text(text(row, "kind").to_owned()),
            Cell::Verdict(verdict(row)),
        ];
        if has_unfinished {
            cells.insert(3, Cell::Number(text(row, "unfinished").to_owned()));
        }
        cells
    };
    let rows = gates.iter().map(cells).collect();
    let head = head.into_iter().map(String::from).collect();
    let mut parts = vec![Part::Table(Table { head, rows })];
    parts.extend(variants(measured)?);
    for row in gates.iter().filter(|row| !text(row, "explained").is_empty()) {
        let why = text(row, "explained").split_whitespace().collect::<Vec<_>>().join(" ");
        let names = [text(row, "case"), text(row, "gate")].map(str::to_owned);
        let gate = names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(": ");
        parts.push(Part::Paragraph(format!("Missed, {gate}: {why}")));
    }
    Ok(parts)
}

/// How cases differ from the published experiment.
fn variants(measured: &Measured) -> Result<Vec<Part>, ReportError> {
    let mut variants: Vec<(String, Vec<String>)> = Vec::new();
    for row in measured.rows("runs")? {
        let (case, how) = (text(&row, "case"), text(&row, "variant"));
        if how.is_empty() {
            continue;
        }
        let known = variants.iter_mut().find(|(known, _)| known == how);
        match known {
            Some((_, cases)) if cases.iter().any(|known| known == case) => {}
            Some((_, cases)) => cases.push(case.to_owned()),
            None => variants.push((how.to_owned(), vec![case.to_owned()])),
        }
    }
    let text = |(how, cases): (String, Vec<String>)| {
        let how = how.trim_end_matches('.');
        Part::Paragraph(format!("Not the published experiment: {how} ({}).", cases.join("; ")))
    };
    Ok(variants.into_iter().map(text).collect())
}
