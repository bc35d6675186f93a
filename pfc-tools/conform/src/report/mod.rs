//! The self-contained HTML page of a check: findings, a graph of PSNs over time and a ladder
//! diagram.

mod graph;
mod ladder;

use std::fmt::Write as _;

use super::check::Report;
use super::rules::{Finding, Severity};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;
color:#111;background:#fff}
h1{font-size:1.5em}h2{font-size:1.2em;border-top:1px solid #ccc;padding-top:1em;margin-top:2em}
.failed{background:#fdecea;border-left:5px solid #b3261e;padding:.6em 1em;font-weight:bold}
.clean{background:#e8f5ee;border-left:5px solid #00734d;padding:.6em 1em}
li.error b{color:#b3261e}li.warning b{color:#8a5a00}li.quirk{color:#666}
svg{max-width:100%;height:auto;font:12px system-ui,sans-serif}
";

/// The most findings of a flow on the page.
const SHOWN: usize = 200;

/// Returns the page.
pub fn html(report: &Report) -> String {
    let title = format!("Conformance of {}", escaped(&report.files.join(", ")));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta \
         charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    let _ = match report.findings.total() {
        0 => writeln!(page, "<p class=\"clean\">No findings in {} packets.</p>", report.packets),
        1 => writeln!(page, "<p>1 finding in {} packets.</p>", report.packets),
        total => writeln!(page, "<p>{total} findings in {} packets.</p>", report.packets),
    };
    list(&mut page, report, None);
    for (flow, channel) in report.shown() {
        let found =
            report.counts(Some(flow)).any(|(rule, _)| rule.rule().severity != Severity::Quirk);
        if !found && report.findings.total() > 0 {
            continue;
        }
        let name = escaped(&super::check::title(channel));
        let _ = writeln!(page, "<h2 id=\"flow-{0}\">Flow {0}: {name}</h2>", flow + 1);
        if let Some(failure) = report.failure(flow) {
            let _ = writeln!(
                page,
                "<p class=\"failed\">Why it failed: {} ({})</p>",
                escaped(&failure.sentence),
                escaped(&report.packet(failure))
            );
        }
        let findings: Vec<&Finding> =
            report.findings().filter(|found| found.flow == Some(flow)).collect();
        page.push_str(&graph::svg(channel, &findings));
        page.push_str(&ladder::svg(channel, &findings));
        list(&mut page, report, Some(flow));
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// Writes the findings of a flow, each with an anchor for links from the pictures.
fn list(page: &mut String, report: &Report, flow: Option<u32>) {
    let mut found = report.findings.told().iter().filter(|found| found.flow == flow).peekable();
    if found.peek().is_none() {
        return;
    }
    page.push_str("<ul>\n");
    for found in found.by_ref().take(SHOWN) {
        let rule = found.rule.rule();
        let _ = writeln!(
            page,
            "<li class=\"{}\" id=\"{}\"><b>{}</b> {}: {}</li>",
            rule.severity,
            anchor(found),
            rule.name,
            escaped(&report.packet(found)),
            escaped(&found.sentence)
        );
    }
    let more = found.count();
    if more > 0 {
        let _ = writeln!(page, "<li>and {more} more</li>");
    }
    page.push_str("</ul>\n");
}

/// Returns the anchor of a finding.
fn anchor(found: &Finding) -> String {
    format!("{}-{}-{}", found.rule.rule().name, found.packet.file, found.packet.number)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
