//! The report as text for a terminal.

use std::io::{self, Write};

use super::{Report, title};
use crate::check::findings::DETAILED;
use crate::flow::figures::{Figures, Times, duration};
use crate::rules::Severity;

/// Maximum number of findings of a rule printed per flow.
const SHOWN: usize = 5;

/// Writes flows, findings and quirks.
///
/// # Errors
/// If `out` cannot be written.
pub fn text(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let span = duration(report.last_at.saturating_sub(report.first_at));
    writeln!(out, "{} frames, {} RoCE packets, {span}", report.frames, report.packets)?;
    for (flow, channel) in report.shown() {
        writeln!(out, "\nflow {}: {}", flow + 1, title(channel))?;
        figures(out, &channel.figures)?;
        if let Some(failure) = report.failure(flow) {
            writeln!(out, "  FAILED: {} ({})", failure.sentence, report.packet(failure))?;
        }
        of_flow(out, report, Some(flow))?;
    }
    if report.counts(None).next().is_some() {
        writeln!(out, "\nwithout a flow:")?;
        of_flow(out, report, None)?;
    }
    if report.flows.left_out > 0 {
        writeln!(
            out,
            "\n{} packets belong to flows beyond the number kept",
            report.flows.left_out
        )?;
    }
    match report.findings.total() {
        0 => writeln!(out, "\nno findings"),
        1 => writeln!(out, "\n1 finding"),
        total => writeln!(out, "\n{total} findings"),
    }
}

/// Writes several reports, each under the name of its capture, and their sum.
pub(super) fn all(out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
    for report in reports {
        writeln!(out, "== {}", report.files.join(" "))?;
        text(out, report)?;
        writeln!(out)?;
    }
    let with = reports.iter().filter(|report| report.findings.total() > 0).count();
    writeln!(
        out,
        "{} captures, each judged by itself (--taps: one exchange); {with} with findings",
        reports.len()
    )
}

fn of_flow(out: &mut impl Write, report: &Report, flow: Option<u32>) -> io::Result<()> {
    for (rule, count) in report.counts(flow) {
        let severity = rule.rule().severity;
        if severity == Severity::Quirk {
            writeln!(out, "  quirk    {rule:22} {}", rule.rule().text)?;
            continue;
        }
        writeln!(out, "  {severity:8} {rule:22} {count}x: {}", rule.rule().text)?;
        let detailed = report
            .findings
            .detailed()
            .iter()
            .filter(|found| found.rule == rule && found.flow == flow);
        for found in detailed.take(SHOWN) {
            writeln!(out, "           {}: {}", report.packet(found), found.sentence)?;
        }
        if count > SHOWN as u64 {
            let more = if count > DETAILED { " (--json lists the first 1000)" } else { "" };
            writeln!(out, "           and {} more{more}", count - SHOWN as u64)?;
        }
    }
    Ok(())
}

fn figures(out: &mut impl Write, figures: &Figures) -> io::Result<()> {
    let Figures {
        requests, responses, retransmitted, messages, request_bytes, response_bytes, ..
    } = figures;
    write!(
        out,
        "  {requests} requests ({retransmitted} retransmitted, {messages} messages, \
         {request_bytes} bytes), {responses} responses ({response_bytes} bytes)"
    )?;
    if let Some(rate) = figures.rate() {
        write!(out, ", {:.3} Gb/s", rate / 1e9)?;
    }
    writeln!(out)?;
    for (name, times) in measured(figures) {
        if times.count > 0 {
            let [min, mean, max] = [times.min, times.mean(), times.max].map(duration);
            writeln!(out, "  {name}: {min} to {max}, mean {mean} ({})", times.count)?;
        }
    }
    Ok(())
}

/// Returns the measured times of a flow and their names.
pub(super) fn measured(figures: &Figures) -> [(&'static str, Times); 6] {
    [
        ("request to response", figures.response_times),
        ("gap to NAK", figures.nak_generation),
        ("NAK to retransmission", figures.nak_reaction),
        ("retransmission timeout", figures.timeouts),
        ("RNR NAK to next attempt", figures.rnr_waits),
        ("between CNPs", figures.cnp_intervals),
    ]
}
