//! The report as JUnit XML: each rule is a test case.
//!
//! For one capture the root of the document is `testsuite`. The crate quick-junit always wraps it
//! in `testsuites`, which would break consumers that look for `/testsuite/testcase`. Therefore this
//! module writes the document itself.

use std::io::{self, Write};

use super::Report;
use crate::rules::RULES;

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";

/// Writes the rules as test cases; a rule with findings has failed. A failure lists at most 1000
/// findings per flow.
///
/// # Errors
/// If `out` cannot be written.
pub fn junit(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "{DECLARATION}")?;
    suite(out, report)
}

/// Writes one suite for each report.
pub(super) fn all(out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
    writeln!(out, "{DECLARATION}\n<testsuites>")?;
    for report in reports {
        suite(out, report)?;
    }
    writeln!(out, "</testsuites>")
}

fn suite(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let counts = report.findings.by_rule();
    let rules: Vec<_> = RULES.iter().filter(|rule| rule.severity.counts()).collect();
    let failed = rules.iter().filter(|rule| counts.contains_key(&rule.id)).count();
    let name = escaped(&report.files.join(" "));
    writeln!(out, "<testsuite name=\"{name}\" tests=\"{}\" failures=\"{failed}\">", rules.len())?;
    for rule in rules {
        let name = rule.name;
        let Some(count) = counts.get(&rule.id) else {
            writeln!(out, "  <testcase classname=\"feroce-conform\" name=\"{name}\"/>")?;
            continue;
        };
        writeln!(out, "  <testcase classname=\"feroce-conform\" name=\"{name}\">")?;
        writeln!(out, "    <failure message=\"{count}x: {}\">", escaped(rule.text))?;
        for found in report.findings.detailed().iter().filter(|found| found.rule == rule.id) {
            writeln!(out, "{}: {}", escaped(&report.packet(found)), escaped(&found.sentence))?;
        }
        writeln!(out, "    </failure>\n  </testcase>")?;
    }
    writeln!(out, "</testsuite>")
}

/// Escapes text for XML. Control characters, which XML cannot represent, become question marks.
fn escaped(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
