//! Gates as text.

use std::io::{self, Write};

use crate::fabric::scenario::{Bound, Case, Measure, Scenario};
use crate::run::CaseResult;

/// Prints the gates of a case as text.
pub fn print(
    out: &mut impl Write,
    scenario: &Scenario,
    case: &Case,
    case_result: &CaseResult,
) -> io::Result<()> {
    let several = scenario.cases.len() > 1;
    if several {
        writeln!(out, "{}", case.name)?;
    }
    for gate_result in &case_result.gate_results {
        let value = gate_result.value.map_or("nothing".to_owned(), format_number);
        let published = gate_result
            .published()
            .map_or(String::new(), |value| format!("published {}", format_number(value)));
        let ns3 = gate_result
            .gate
            .ns3
            .map_or(String::new(), |value| format!("ns-3 {}", format_number(value)));
        let verdict = match &gate_result.gate.explained {
            _ if gate_result.holds() => "ok",
            Some(why) => &format!("not met: {why}"),
            None => "NOT MET",
        };
        let bounds: Vec<String> = gate_result.gate.bounds.iter().filter_map(bound).collect();
        let is_gate = !bounds.is_empty();
        let verdict = if is_gate { verdict } else { "" };
        let bounds = bounds.join(", ");
        writeln!(
            out,
            "  {:40} {value:>10}  {published:20} {ns3:12} {bounds:24} {verdict}",
            gate_result.gate.name
        )?;
        if let Measure::Completion(group) = gate_result.gate.measure {
            let cut: usize =
                case_result.results.iter().map(|result| result.unfinished(group)).sum();
            if cut > 0 {
                writeln!(out, "  {:40} {cut:>10}  flows, not included", "  not finished")?;
            }
        }
    }
    for loss in &case_result.violations {
        writeln!(out, "  {:40} {loss}: NOT LOSSLESS", "lossless")?;
    }
    Ok(())
}

fn bound(bound: &Bound) -> Option<String> {
    match *bound {
        Bound::Within { part, .. } => Some(format!("within {} %", format_number(part * 100.0))),
        Bound::AtLeast(least) => Some(format!("at least {}", format_number(least))),
        Bound::AtMost(most) => Some(format!("at most {}", format_number(most))),
        Bound::Shown { .. } => None,
    }
}

/// Formats a number with about four significant digits.
pub fn format_number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1000.0 || size.fract() == 0.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
