//! The self-contained HTML page of a check: findings, a graph of PSNs over time and a ladder
//! diagram.

mod graph;
mod ladder;

use maud::{Markup, PreEscaped, html};

use super::check::Report;
use super::flow::Channel;
use super::rules::{Finding, RuleId, Severity};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#111;--page:#fff;--line:#ccc;--dim:#666;--bad:#b3261e;
--warn:#8a5a00;--good:#00734d;--bad-page:#fdecea;--good-page:#e8f5ee;--request:#1f6fb4;
--again:#c96a00;--response:#2f8a4d;--rnr:#8e24aa;--cnp:#444}
@media(prefers-color-scheme:dark){:root{--ink:#e4e6ea;--page:#14171c;--line:#3a4049;--dim:#9aa1ab;
--bad:#ff8a80;--warn:#e0b050;--good:#6fd3a3;--bad-page:#3a1f1d;--good-page:#16302a;
--request:#6cb2f0;--again:#f0a04b;--response:#6fcb8c;--rnr:#ce93d8;--cnp:#c0c4cc}}
body{font:15px/1.5 system-ui,sans-serif;margin:1.5em auto;padding:0 1.5em;color:var(--ink);
background:var(--page);max-width:1800px;overflow-wrap:anywhere}
h1{font-size:1.4em}h2{font-size:1.2em;border-top:1px solid var(--line);padding-top:1em;
margin-top:2em}a{color:var(--request)}p,li{max-width:80em}
.failed{background:var(--bad-page);border-left:5px solid var(--bad);padding:.6em 1em;
font-weight:bold}
.clean{background:var(--good-page);border-left:5px solid var(--good);padding:.6em 1em}
li.error b,td.error{color:var(--bad)}li.warning b,td.warning{color:var(--warn)}
li.quirk,li.note{color:var(--dim)}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:1em 0;overflow-wrap:normal}
th,td{padding:.2em .8em .2em 0;border-bottom:1px solid var(--line);text-align:left;
vertical-align:top}td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;min-width:700px;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--ink)}svg text.dim{fill:var(--dim)}svg text.bad{fill:var(--bad)}
svg .axis{stroke:var(--dim);fill:none}svg .found{stroke:var(--bad)}
.request{fill:var(--request);stroke:var(--request)}.again{fill:var(--again);stroke:var(--again)}
.response{fill:var(--response);stroke:var(--response)}.nak{fill:var(--bad);stroke:var(--bad)}
.rnr{fill:var(--rnr);stroke:var(--rnr)}.cnp{fill:var(--cnp);stroke:var(--cnp)}
";

/// Maximum number of findings of a flow on the page.
const SHOWN: usize = 200;

/// Maximum number of flows in the overview, and of flows with pictures.
const FLOWS: usize = 50;

/// Returns the page.
pub fn html(report: &Report) -> String {
    html_of(std::slice::from_ref(report))
}

/// Returns the page of captures that were checked one by one.
pub fn html_of(reports: &[Report]) -> String {
    let files: Vec<_> = reports.iter().flat_map(|report| &report.files).cloned().collect();
    let title = match files.as_slice() {
        _ if reports.len() > 1 => format!("Conformance of {} captures", files.len()),
        files => format!("Conformance of {}", files.join(", ")),
    };
    let page = html! {
        (PreEscaped("<!doctype html>")) "\n"
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) } "\n"
                @if reports.len() > 1 { (captures(reports)) }
                @for (number, report) in reports.iter().enumerate() {
                    @if reports.len() > 1 {
                        h2 id={ "capture-" (number) } { (report.files.join(", ")) } "\n"
                    }
                    (Ids(number).body(report))
                }
            }
        } "\n"
    };
    page.into_string()
}

/// Returns the table of captures, those with the most findings first.
fn captures(reports: &[Report]) -> Markup {
    let mut numbered: Vec<_> = reports.iter().enumerate().collect();
    numbered.sort_by_key(|(_, report)| std::cmp::Reverse(report.findings.total()));
    html! {
        div.wide {
            table {
                tr { th.number { "findings" } th.number { "packets" } th { "capture" } } "\n"
                @for (number, report) in numbered {
                    tr {
                        td.number { (report.findings.total()) }
                        td.number { (report.packets) }
                        td { a href={ "#capture-" (number) } { (report.files.join(", ")) } }
                    } "\n"
                }
            }
        } "\n"
    }
}

/// The anchors of a report: its number on the page.
#[derive(Debug, Clone, Copy)]
struct Ids(usize);

impl Ids {
    fn body(self, report: &Report) -> Markup {
        let total = report.findings.total();
        let mut flows: Vec<_> = report.shown().collect();
        // The flows with the most serious findings first, then in the order of the capture.
        flows.sort_by_key(|(flow, _)| std::cmp::Reverse(rank(report, *flow)));
        let drawn = |&&(flow, _): &&(u32, _)| total == 0 || has_finding(report, flow);
        html! {
            @match total {
                0 => p.clean { "No findings in " (report.packets) " packets." },
                1 => p { "1 finding in " (report.packets) " packets." },
                _ => p { (total) " findings in " (report.packets) " packets." },
            } "\n"
            (self.overview(report, &flows))
            (self.list(report, None))
            @for (flow, channel) in flows.iter().filter(drawn).take(FLOWS) {
                (self.section(report, *flow, channel))
            }
        }
    }

    /// Returns the table of flows, those with findings first.
    fn overview(self, report: &Report, flows: &[(u32, &Channel)]) -> Markup {
        let total = report.findings.total();
        html! {
            @if flows.len() > 1 {
                div.wide {
                    table {
                        tr {
                            th.number { "flow" } th { "" } th.number { "requests" }
                            th.number { "again" } th.number { "responses" }
                            th.number { "Gb/s" } th.number { "findings" } th { "rules" }
                        } "\n"
                        @for (place, &(flow, channel)) in flows.iter().enumerate().take(FLOWS) {
                            @let figures = &channel.figures;
                            @let rules = violated(report, flow);
                            @let count: u64 = rules.iter().map(|(_, count)| count).sum();
                            @let has_section = place < FLOWS && (total == 0 || count > 0);
                            tr {
                                td.number { (flow + 1) }
                                td {
                                    @if has_section {
                                        a href={ "#" (self.flow(flow)) } {
                                            (super::check::title(channel))
                                        }
                                    } @else { (super::check::title(channel)) }
                                }
                                td.number { (figures.requests) }
                                td.number { (figures.retransmitted) }
                                td.number { (figures.responses) }
                                td.number {
                                    @if let Some(rate) = figures.rate() {
                                        (format!("{:.3}", rate / 1e9))
                                    }
                                }
                                td.number { (count) }
                                td class=(severity(&rules)) { (names(&rules)) }
                            } "\n"
                        }
                    }
                } "\n"
                @if flows.len() > FLOWS {
                    p { "and " (flows.len() - FLOWS) " more flows, with fewer findings" } "\n"
                }
            }
        }
    }

    fn flow(self, flow: u32) -> String {
        match self.0 {
            0 => format!("flow-{}", flow + 1),
            number => format!("flow-{number}-{}", flow + 1),
        }
    }

    /// Returns the anchor of a finding.
    fn anchor(self, found: &Finding) -> String {
        let name = found.rule.rule().name;
        format!("{name}-{}-{}-{}", self.0, found.packet.file, found.packet.number)
    }
}

/// Returns the violated rules of a flow and their number of findings, the most serious first.
fn violated(report: &Report, flow: u32) -> Vec<(RuleId, u64)> {
    let counted = |rule: &RuleId| rule.rule().severity.counts();
    let mut rules: Vec<_> = report.counts(Some(flow)).filter(|(rule, _)| counted(rule)).collect();
    rules.sort_by_key(|(rule, count)| {
        std::cmp::Reverse((rule.rule().severity == Severity::Error, *count))
    });
    rules
}

/// Returns the order of a flow: errors before warnings, then the number of findings.
fn rank(report: &Report, flow: u32) -> (bool, u64) {
    let rules = violated(report, flow);
    let is_error = rules.first().is_some_and(|(rule, _)| rule.rule().severity == Severity::Error);
    (is_error, rules.iter().map(|(_, count)| count).sum())
}

/// Returns the severity of the first rule.
fn severity(rules: &[(RuleId, u64)]) -> String {
    rules.first().map_or_else(String::new, |(rule, _)| rule.rule().severity.to_string())
}

/// Returns the first rules by name.
fn names(rules: &[(RuleId, u64)]) -> String {
    const NAMED: usize = 4;
    let named: Vec<_> = rules.iter().take(NAMED).map(|(rule, _)| rule.rule().name).collect();
    let more = if rules.len() > NAMED { ", ..." } else { "" };
    named.join(", ") + more
}

/// Returns true if the flow has a finding that is not a quirk.
fn has_finding(report: &Report, flow: u32) -> bool {
    report.counts(Some(flow)).any(|(rule, _)| rule.rule().severity.counts())
}

impl Ids {
    /// Returns the section of a flow: why it failed, the pictures and the findings.
    fn section(self, report: &Report, flow: u32, channel: &Channel) -> Markup {
        let findings: Vec<&Finding> =
            report.findings().filter(|found| found.flow == Some(flow)).collect();
        html! {
            h2 id=(self.flow(flow)) {
                "Flow " (flow + 1) ": " (super::check::title(channel))
            } "\n"
            @if let Some(failure) = report.failure(flow) {
                p.failed {
                    "Why it failed: " (failure.sentence) " (" (report.packet(failure)) ")"
                } "\n"
            }
            div.wide { (graph::svg(channel, &findings, self)) } "\n"
            div.wide { (ladder::svg(channel, &findings, self)) } "\n"
            (self.list(report, Some(flow)))
        }
    }

    /// Returns the findings of a flow as a list, those that count first, with anchors for links
    /// from the pictures.
    fn list(self, report: &Report, flow: Option<u32>) -> Markup {
        let of_flow = report.findings.detailed().iter().filter(|found| found.flow == flow);
        let mut findings: Vec<&Finding> = of_flow.collect();
        findings.sort_by_key(|found| !found.rule.rule().severity.counts());
        // A packet may violate a rule twice; links lead to the first finding.
        let is_first = |index: usize| {
            let place = |found: &Finding| (found.rule, found.packet);
            findings[..index].iter().all(|other| place(other) != place(findings[index]))
        };
        html! {
            @if !findings.is_empty() {
                ul {
                    "\n"
                    @for (index, found) in findings.iter().enumerate().take(SHOWN) {
                        li class=(found.rule.rule().severity)
                            id=[is_first(index).then(|| self.anchor(found))]
                        {
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
}
