//! Gates as text.

use std::io::{self, Write};

use crate::fabric::measure::FlowResult;
use crate::fabric::scenario::{Case, Kind, Scenario};
use crate::fabric::time::Time;
use crate::run::{CaseResult, GateResult, Verdict};

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
    if let Some(how) = &case.variant {
        writeln!(out, "  (a variant: {how})")?;
    }
    for gate_result in &case_result.gate_results {
        print_gate(out, gate_result)?;
    }
    if case_result.gate_results.is_empty() {
        print_traffic(out, case, case_result)?;
    }
    print_collectives(out, case, case_result)?;
    for loss in &case_result.violations {
        writeln!(out, "  {:40} {loss}: NOT LOSSLESS", "lossless")?;
    }
    Ok(())
}

/// Prints what became of each traffic group, for a case without gates.
#[allow(clippy::cast_precision_loss)] // Counts below 2^53.
fn print_traffic(out: &mut impl Write, case: &Case, case_result: &CaseResult) -> io::Result<()> {
    for (group, name) in (0_u32..).zip(&case.groups) {
        let flows = case_result.results.iter().flat_map(|result| &result.flows);
        let flows: Vec<&FlowResult> = flows.filter(|flow| flow.group == group).collect();
        let print = |out: &mut dyn Write, values: &[f64], what: &str| match values {
            [] => Ok(()),
            values => {
                let mean = format_number(values.iter().sum::<f64>() / values.len() as f64);
                writeln!(out, "  {name:40} {mean:>10}  {what}")
            }
        };
        let ends = flows.iter().filter_map(|flow| Some(flow.completion()?.seconds() * 1e6));
        let ends: Vec<f64> = ends.collect();
        let others = match flows.len() - ends.len() {
            0 => String::new(),
            others => format!("; {others} have not ended"),
        };
        let what = format!("us, mean completion of {} flows{others}", ends.len());
        print(out, &ends, &what)?;
        let rates = flows.iter().filter_map(|flow| Some(flow.goodput? / 1e9));
        let rates: Vec<f64> = rates.collect();
        print(out, &rates, &format!("Gb/s, mean goodput of {} flows", rates.len()))?;
    }
    Ok(())
}

/// Prints when each collective was complete, and which rank was the slowest.
fn print_collectives(
    out: &mut impl Write,
    case: &Case,
    case_result: &CaseResult,
) -> io::Result<()> {
    for (seed, results) in case.seeds.iter().zip(&case_result.results) {
        for (group, name, hosts) in case.collectives() {
            let name = match case.seeds.len() {
                1 => name.to_owned(),
                _ => format!("{name}, seed {seed}"),
            };
            let ranks = results.ranks(Some(group));
            let ends = ranks.iter().filter_map(|rank| rank.completion);
            let micros = |time: Time| format_number(time.seconds() * 1e6);
            match results.collective(Some(group)) {
                Some((slowest, time)) => writeln!(
                    out,
                    "  {name:40} {:>10}  us, slowest rank {}, fastest {} us",
                    micros(time),
                    case.network().name(slowest as usize),
                    ends.min().map_or_else(String::new, micros)
                )?,
                None => writeln!(
                    out,
                    "  {name:40} {:>10}  {} of {} ranks",
                    "incomplete",
                    ends.count(),
                    hosts.len()
                )?,
            }
        }
    }
    Ok(())
}

fn print_gate(out: &mut impl Write, gate_result: &GateResult) -> io::Result<()> {
    let GateResult { gate, value, least, most, unfinished, verdict, .. } = gate_result;
    let number = |name: &str, value: Option<f64>| {
        value.map_or(String::new(), |value| format!("{name} {}", format_number(value)))
    };
    let verdict = match verdict {
        Verdict::Holds => "ok",
        Verdict::Missed => "MISSED",
        // A known miss that is another one now, or none.
        Verdict::Fails if gate.explained.is_some() => "CHANGED",
        Verdict::Fails => "NOT MET",
        Verdict::Shown => "",
    };
    writeln!(
        out,
        "  {:40} {:>10}  {:20} {:12} {:24} {:10} {verdict}",
        gate.name,
        value.map_or("nothing".to_owned(), format_number),
        number("published", gate.published),
        number("ns-3", gate.ns3),
        bounds(*least, *most),
        gate.kind.map_or("", Kind::name),
    )?;
    if let Some(miss) = gate.explained.as_ref().filter(|_| verdict != "ok") {
        let why = miss.why.split_whitespace().collect::<Vec<_>>().join(" ");
        let (least, most) = (Some(miss.at_least), Some(miss.at_most));
        writeln!(out, "  {:40} {why} Known value: {}.", "", bounds(least, most))?;
    }
    if let Some(flows) = unfinished {
        writeln!(out, "  {:40} {flows:>10}  flows, not included", "  not finished")?;
    }
    Ok(())
}

/// The bounds of a value in words; empty without bounds.
pub fn bounds(least: Option<f64>, most: Option<f64>) -> String {
    match (least.map(format_number), most.map(format_number)) {
        (None, None) => String::new(),
        (Some(min), None) => format!("at least {min}"),
        (None, Some(max)) => format!("at most {max}"),
        (Some(min), Some(max)) => format!("{min} to {max}"),
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
