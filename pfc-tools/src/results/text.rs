//! Gates as text.

use std::io::{self, Write};

use crate::fabric::scenario::{Bound, Case, Measure, Scenario};
use crate::run::Judged;

/// Prints the gates of a case as text.
pub fn print(
    out: &mut impl Write,
    scenario: &Scenario,
    case: &Case,
    judged: &Judged,
) -> io::Result<()> {
    let several = scenario.cases.len() > 1;
    if several {
        writeln!(out, "{}", case.name)?;
    }
    for outcome in &judged.outcomes {
        let value = outcome.value.map_or("nothing".to_owned(), number);
        let published = outcome
            .published()
            .map_or(String::new(), |value| format!("published {}", number(value)));
        let ns3 = outcome.gate.ns3.map_or(String::new(), |value| format!("ns-3 {}", number(value)));
        let verdict = match &outcome.gate.explained {
            _ if outcome.holds() => "ok",
            Some(why) => &format!("not met: {why}"),
            None => "NOT MET",
        };
        let bounds: Vec<String> = outcome.gate.bounds.iter().filter_map(bound).collect();
        let is_gate = !bounds.is_empty();
        let verdict = if is_gate { verdict } else { "" };
        let bounds = bounds.join(", ");
        writeln!(
            out,
            "  {:40} {value:>10}  {published:20} {ns3:12} {bounds:24} {verdict}",
            outcome.gate.name
        )?;
        if let Measure::Completion(group) = outcome.gate.measure {
            let cut: usize = judged.results.iter().map(|result| result.unfinished(group)).sum();
            if cut > 0 {
                writeln!(out, "  {:40} {cut:>10}  flows, which it leaves out", "  not finished")?;
            }
        }
    }
    for loss in &judged.losses {
        writeln!(out, "  {:40} {loss}: NOT LOSSLESS", "lossless")?;
    }
    Ok(())
}

fn bound(bound: &Bound) -> Option<String> {
    match *bound {
        Bound::Within { part, .. } => Some(format!("within {} %", number(part * 100.0))),
        Bound::AtLeast(least) => Some(format!("at least {}", number(least))),
        Bound::AtMost(most) => Some(format!("at most {}", number(most))),
        Bound::Shown { .. } => None,
    }
}

/// Formats a number with about four significant digits.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1000.0 || size.fract() == 0.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
