//! SARIF 2.1.0, the format in which CI systems take findings.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::Report;
use crate::rules::{RULES, Severity};

/// Prints the findings. A packet's number is given as the line of its capture.
///
/// # Errors
/// If nothing can be written.
pub fn sarif(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let level = |severity| match severity {
        Severity::Quirk => "note",
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
        .told()
        .iter()
        .map(|found| {
            json!({
                "ruleId": found.rule.rule().name,
                "ruleIndex": found.rule as usize,
                "level": level(found.rule.rule().severity),
                "message": { "text": format!("packet {}: {}", found.packet.number, found.sentence) },
                "locations": [{
                    "physicalLocation": {
                        "artifactLocation": { "uri": report.files.get(usize::from(found.packet.file)).map(|name| uri(name)) },
                        "region": { "startLine": found.packet.number },
                    },
                }],
            })
        })
        .collect();
    let value = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "feroce-conform",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "results": results,
        }],
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}

/// A path as a URI reference (RFC 3986) has it.
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
