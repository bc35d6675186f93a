//! The report of a check in all formats.

mod json;
mod junit;
mod sarif;
mod text;

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::findings::Findings;
use crate::flow::{Channel, Flows};
use crate::rules::{Finding, RuleId};

use json::json;
use junit::junit;
use sarif::sarif;
use text::text;

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text for a terminal.
    Text,
    /// JSON.
    Json,
    /// SARIF 2.1.0, with the findings.
    Sarif,
    /// A JUnit test suite, with the rules as test cases.
    Junit,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Text, Self::Json, Self::Sarif, Self::Junit];

    /// Writes `report`.
    ///
    /// # Errors
    /// If `out` cannot be written to.
    pub fn write(self, out: &mut impl Write, report: &Report) -> io::Result<()> {
        match self {
            Self::Text => text(out, report),
            Self::Json => json(out, report),
            Self::Sarif => sarif(out, report),
            Self::Junit => junit(out, report),
        }
    }

    /// Writes the reports of captures that were checked one by one, as one document.
    ///
    /// # Errors
    /// If `out` cannot be written to.
    pub fn write_all(self, out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
        match (self, reports) {
            (_, [one]) => self.write(out, one),
            (Self::Text, all) => text::all(out, all),
            (Self::Json, all) => json::all(out, all),
            (Self::Sarif, all) => sarif::all(out, all),
            (Self::Junit, all) => junit::all(out, all),
        }
    }
}

/// The result of a check.
#[derive(Debug)]
pub struct Report {
    /// Names of the files, as given.
    pub files: Vec<String>,
    /// The flows.
    pub flows: Flows,
    /// The findings and quirks.
    pub findings: Findings,
    /// Number of frames checked.
    pub frames: u64,
    /// Number of RoCE packets among them.
    pub packets: u64,
    /// Time of the first frame, in nanoseconds since 1970.
    pub first_at: u64,
    /// Time of the last frame.
    pub last_at: u64,
}

impl Report {
    /// Keeps only flows for which `is_chosen` returns true, by number from 0, and their findings.
    /// If `others` is true, findings without a flow stay, too, such as damaged packets.
    pub fn retain_flows(&mut self, others: bool, is_chosen: impl Fn(u32, &Channel) -> bool) {
        let mut chosen = BTreeSet::new();
        for (index, channel) in (0..).zip(self.flows.all_mut()) {
            match is_chosen(index, channel) {
                true => _ = chosen.insert(index),
                false => channel.is_merged = true,
            }
        }
        self.findings.retain_flows(&chosen, others);
    }

    /// Returns the flows shown in reports, with their numbers from 0.
    pub fn shown(&self) -> impl Iterator<Item = (u32, &Channel)> {
        (0..).zip(self.flows.all()).filter(|(_, channel)| {
            !channel.is_merged && channel.figures.requests + channel.figures.responses > 0
        })
    }

    /// Returns the finding that explains the failure of a flow.
    pub fn failure(&self, flow: u32) -> Option<&Finding> {
        let is_failure = |rule: RuleId| {
            (RuleId::RetryExceeded..=RuleId::PsnMismatch).contains(&rule)
                || rule == RuleId::CmRejected
                || rule == RuleId::CmSilent
        };
        self.findings
            .detailed()
            .iter()
            .find(|found| found.flow == Some(flow) && is_failure(found.rule))
    }

    /// Returns the number of findings of a flow by rule, including quirks.
    pub fn counts(&self, flow: Option<u32>) -> impl Iterator<Item = (RuleId, u64)> {
        self.findings
            .counts()
            .filter(move |row| row.1 == flow)
            .map(|(rule, _, count)| (rule, count))
    }

    /// Returns the packet of a finding as text, with the file name if there are several files.
    pub fn packet(&self, finding: &Finding) -> String {
        let number = finding.packet.number;
        match self.files.get(usize::from(finding.packet.file)) {
            Some(file) if self.files.len() > 1 => format!("{file}:{number}"),
            _ => format!("packet {number}"),
        }
    }

    /// Returns the findings with details, without notes and quirks.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.detailed().iter().filter(|found| found.rule.rule().severity.counts())
    }
}

/// Describes a flow in one line.
pub fn title(channel: &Channel) -> String {
    let (src, dst) = channel.ends();
    let service = channel.key.service.name();
    let answers = match channel.response_qpn {
        Some(qpn) => format!(", responses to QP {qpn}"),
        None => String::new(),
    };
    match channel.has_only_responses() {
        true => format!("{service} {src} -> {dst}, requests not captured{answers}"),
        false => format!("{service} {src} -> {dst} QP {}{answers}", channel.key.qpn),
    }
}
