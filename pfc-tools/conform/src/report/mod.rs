//! The self-contained HTML page of a check: findings, a graph of PSNs over time and a ladder
//! diagram.

mod graph;
mod ladder;

use maud::{Markup, PreEscaped, html};

use super::check::Report;
use super::flow::Channel;
use super::rules::Finding;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;
color:#111;background:#fff}
h1{font-size:1.5em}h2{font-size:1.2em;border-top:1px solid #ccc;padding-top:1em;margin-top:2em}
.failed{background:#fdecea;border-left:5px solid #b3261e;padding:.6em 1em;font-weight:bold}
.clean{background:#e8f5ee;border-left:5px solid #00734d;padding:.6em 1em}
li.error b{color:#b3261e}li.warning b{color:#8a5a00}li.quirk,li.note{color:#666}
svg{max-width:100%;height:auto;font:12px system-ui,sans-serif}
";

/// Maximum number of findings of a flow on the page.
const SHOWN: usize = 200;

/// Returns the page.
pub fn html(report: &Report) -> String {
    let title = format!("Conformance of {}", report.files.join(", "));
    let total = report.findings.total();
    let page = html! {
        (PreEscaped("<!doctype html>")) "\n"
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) } "\n"
                @match total {
                    0 => p.clean { "No findings in " (report.packets) " packets." },
                    1 => p { "1 finding in " (report.packets) " packets." },
                    _ => p { (total) " findings in " (report.packets) " packets." },
                } "\n"
                (list(report, None))
                @for (flow, channel) in report.shown() {
                    @if total == 0 || has_finding(report, flow) {
                        (section(report, flow, channel))
                    }
                }
            }
        } "\n"
    };
    page.into_string()
}

/// Returns true if the flow has a finding that is not a quirk.
fn has_finding(report: &Report, flow: u32) -> bool {
    report.counts(Some(flow)).any(|(rule, _)| rule.rule().severity.counts())
}

/// Returns the section of a flow: why it failed, the pictures and the findings.
fn section(report: &Report, flow: u32, channel: &Channel) -> Markup {
    let findings: Vec<&Finding> =
        report.findings().filter(|found| found.flow == Some(flow)).collect();
    html! {
        h2 id={ "flow-" (flow + 1) } {
            "Flow " (flow + 1) ": " (super::check::title(channel))
        } "\n"
        @if let Some(failure) = report.failure(flow) {
            p.failed {
                "Why it failed: " (failure.sentence) " (" (report.packet(failure)) ")"
            } "\n"
        }
        (graph::svg(channel, &findings))
        (ladder::svg(channel, &findings))
        (list(report, Some(flow)))
    }
}

/// Returns the findings of a flow as a list, each with an anchor for links from the pictures.
fn list(report: &Report, flow: Option<u32>) -> Markup {
    let of_flow = report.findings.detailed().iter().filter(|found| found.flow == flow);
    let findings: Vec<&Finding> = of_flow.collect();
    html! {
        @if !findings.is_empty() {
            ul {
                "\n"
                @for found in findings.iter().take(SHOWN) {
                    li class=(found.rule.rule().severity) id=(anchor(found)) {
                        b { (found.rule) } " " (report.packet(found)) ": " (found.sentence)
                    } "\n"
                }
                @if findings.len() > SHOWN {
                    li { "and " (findings.len() - SHOWN) " more" } "\n"
                }
            } "\n"
        }
    }
}

/// Returns the anchor of a finding.
fn anchor(found: &Finding) -> String {
    format!("{}-{}-{}", found.rule.rule().name, found.packet.file, found.packet.number)
}
