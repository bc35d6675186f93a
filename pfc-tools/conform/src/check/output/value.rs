//! The report as JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Report, title};

/// Writes the whole report as one value.
///
/// # Errors
/// If `out` cannot be written.
pub fn json(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let flows: Vec<Value> = report
        .shown()
        .map(|(flow, channel)| {
            json!({
                "flow": flow + 1,
                "title": title(channel),
                "source": channel.key.src.to_string(),
                "destination": channel.key.dst.to_string(),
                "tap": channel.key.tap,
                "qpn": (!channel.has_only_responses()).then_some(channel.key.qpn.value()),
                "response_qpn": channel.response_qpn.map(feroce_wire::Qpn::value),
                "path_mtu": channel.path_mtu,
                "figures": channel.figures,
                "bits_per_second": channel.figures.rate(),
                "failure": report.failure(flow).map(|found| &found.sentence),
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
    let value = json!({
        "files": report.files,
        "frames": report.frames,
        "packets": report.packets,
        "flows": flows,
        "counts": counts,
        "findings": findings,
        "total": report.findings.total(),
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}
