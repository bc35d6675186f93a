//! Which published figures are reproduced: decided by the gates of kind `paper` and `model`.

use super::data::{Measured, ReportError, Row, number, text, verdict};
use crate::plot::{Cell, Part, Table, Verdict};
use crate::results::format_number;

/// A figure or claim, with its gates.
struct Figure {
    name: String,
    source: String,
    gates: Vec<Row>,
}

impl Figure {
    fn held(&self) -> usize {
        self.gates.iter().filter(|row| verdict(row) == Verdict::Holds).count()
    }

    fn verdict(&self) -> &'static str {
        match self.held() {
            0 => "not reproduced",
            held if held == self.gates.len() => "reproduced",
            _ => "partly",
        }
    }

    /// The gates that do not hold: case, value, measured and published number.
    fn misses(&self) -> String {
        let missed = self.gates.iter().filter(|row| verdict(row) != Verdict::Holds);
        let miss = |row: &Row| {
            let names = [text(row, "case"), text(row, "gate")];
            let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
            let published = match number(row, "published") {
                value if value.is_finite() => format!(", published {}", format_number(value)),
                _ => match number(row, "most") {
                    most if most.is_finite() => format!(", allowed {}", format_number(most)),
                    _ => String::new(),
                },
            };
            let value = format_number(number(row, "value"));
            format!("{}: {value}{published}", names.join(", "))
        };
        missed.map(miss).collect::<Vec<_>>().join("; ")
    }
}

/// The figures of a scenario, in order of appearance.
fn figures(measured: &Measured) -> Result<Vec<Figure>, ReportError> {
    let mut figures: Vec<Figure> = Vec::new();
    for row in measured.rows("gates")? {
        let name = text(&row, "reproduces").to_owned();
        if name.is_empty() || verdict(&row) == Verdict::Shown {
            continue;
        }
        match figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.gates.push(row),
            None => {
                let source = measured.description.source.clone();
                figures.push(Figure { name, source, gates: vec![row] });
            }
        }
    }
    Ok(figures)
}

/// The table of all figures, after a sentence with the counts. Nothing without figures.
pub(super) fn part(measured: &[Measured]) -> Result<Vec<Part>, ReportError> {
    let mut all = Vec::new();
    for scenario in measured {
        all.extend(figures(scenario)?);
    }
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let count = |which| all.iter().filter(|figure| figure.verdict() == which).count();
    let text = format!(
        "Of {} published figures and claims, {} are reproduced, {} partly, and {} are not.",
        all.len(),
        count("reproduced"),
        count("partly"),
        count("not reproduced")
    );
    let head = ["figure or claim", "verdict", "gates that hold", "misses", "source"];
    let row = |figure: &Figure| {
        vec![
            Cell::Text(figure.name.clone()),
            Cell::Text(figure.verdict().to_owned()),
            Cell::Number(format!("{} of {}", figure.held(), figure.gates.len())),
            Cell::Text(figure.misses()),
            Cell::Text(figure.source.split_whitespace().collect::<Vec<_>>().join(" ")),
        ]
    };
    let rows = all.iter().map(row).collect();
    let table = Table { head: head.map(String::from).into(), rows };
    Ok(vec![Part::Paragraph(text), Part::Table(table)])
}

/// The verdicts of one scenario, as text.
pub(super) fn of(measured: &Measured) -> Result<Vec<Part>, ReportError> {
    let text = |figure: &Figure| {
        let (held, of) = (figure.held(), figure.gates.len());
        format!("{}: {} ({held} of {of} gates).", figure.name, figure.verdict())
    };
    let all: Vec<String> = figures(measured)?.iter().map(text).collect();
    Ok(if all.is_empty() { Vec::new() } else { vec![Part::Paragraph(all.join(" "))] })
}
