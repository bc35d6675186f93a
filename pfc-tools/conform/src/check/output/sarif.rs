//! The report as SARIF 2.1.0, a format of findings that CI systems read.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::Report;
use crate::rules::{Finding, RULES, Severity};

/// Writes at most 1000 findings per rule and flow. The line number is the packet number.
///
/// # Errors
/// If `out` cannot be written.
pub fn sarif(out: &mut impl Write, report: &Report) -> io::Result<()> {
    all(out, std::slice::from_ref(report))
}

/// Writes one run for each report.
pub(super) fn all(out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
    let value = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": reports.iter().map(run).collect::<Vec<_>>(),
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}

fn run(report: &Report) -> Value {
    let level = |severity| match severity {
        Severity::Quirk | Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.name,
                "shortDescription": { "text": rule.text },
                "defaultConfiguration": { "level": level(rule.severity) },
            })
        })
        .collect();
    let results: Vec<Value> = report
        .findings
        .detailed()
        .iter()
        .map(|found| {
            json!({
                "ruleId": found.rule.rule().name,
                "ruleIndex": found.rule as usize,
                "level": level(found.rule.rule().severity),
                "message": { "text": sentence(found) },
                "locations": [{
                    "physicalLocation": {
                        "artifactLocation": { "uri": file_uri(report, found) },
                        "region": { "startLine": found.packet.number },
                    },
                }],
            })
        })
        .collect();
    json!({
        "tool": { "driver": {
            "name": "feroce-conform",
            "version": env!("CARGO_PKG_VERSION"),
            "rules": rules,
        }},
        "results": results,
    })
}

fn sentence(found: &Finding) -> String {
    format!("packet {}: {}", found.packet.number, found.sentence)
}

fn file_uri(report: &Report, found: &Finding) -> Option<String> {
    report.files.get(usize::from(found.packet.file)).map(|name| uri(name))
}

/// Converts a path to a URI reference (RFC 3986).
fn uri(path: &str) -> String {
    let mut uri = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                uri.push(byte.into());
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}
