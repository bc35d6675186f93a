//! The report as JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Report, title};

/// Version of the format, which `docs/conform-check.schema.json` describes. It rises when a field
/// disappears or gets another meaning; new fields do not change it.
const VERSION: u32 = 1;

/// Writes the report as one JSON object, with at most 1000 findings per rule and flow.
///
/// # Errors
/// If `out` cannot be written.
pub fn json(out: &mut impl Write, report: &Report) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &value(report))?;
    writeln!(out)
}

/// Writes the reports as one array of such objects.
pub(super) fn all(out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
    let values: Vec<Value> = reports.iter().map(value).collect();
    serde_json::to_writer_pretty(&mut *out, &values)?;
    writeln!(out)
}

fn value(report: &Report) -> Value {
    let flows: Vec<Value> = report
        .shown()
        .map(|(index, flow)| {
            json!({
                "flow": index + 1,
                "title": title(flow),
                "source": flow.key.src.to_string(),
                "destination": flow.key.dst.to_string(),
                "tap": flow.key.tap,
                "qpn": (!flow.has_only_responses()).then_some(flow.key.qpn.value()),
                "response_qpn": flow.response_qpn.map(feroce_wire::Qpn::value),
                "path_mtu": flow.path_mtu,
                "figures": flow.figures,
                "bits_per_second": flow.figures.rate(),
                "failure": report.failure(index).map(|found| &found.sentence),
            })
        })
        .collect();
    let findings: Vec<Value> = report
        .findings
        .detailed()
        .iter()
        .map(|found| {
            json!({
                "rule": found.rule.rule().name,
                "severity": found.rule.rule().severity,
                "flow": found.flow.map(|flow| flow + 1),
                "file": report.files.get(usize::from(found.packet.file)),
                "packet": found.packet.number,
                "at": found.at,
                "sentence": found.sentence,
            })
        })
        .collect();
    let counts: serde_json::Map<_, _> = report
        .findings
        .by_rule()
        .into_iter()
        .map(|(rule, count)| (rule.rule().name.to_owned(), json!(count)))
        .collect();
    json!({
        "version": VERSION,
        "files": report.files,
        "frames": report.frames,
        "packets": report.packets,
        "flows": flows,
        "counts": counts,
        "findings": findings,
        "total": report.findings.total(),
    })
}
