//! What a check has found, for people and for programs.

mod junit;
mod sarif;
mod text;
mod value;

use std::collections::BTreeSet;
use std::io::{self, Write};

use feroce_wire::Transport;

use super::findings::Findings;
use crate::flow::{Channel, Flows};
use crate::rules::{Finding, RuleId, Severity};

use junit::junit;
use sarif::sarif;
use text::text;
use value::json;

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// The findings as SARIF 2.1.0.
    Sarif,
    /// The rules as a JUnit test suite.
    Junit,
}

impl Format {
    /// All of them.
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
}

/// What a check has found.
#[derive(Debug)]
pub struct Report {
    /// Files, as they were named.
    pub files: Vec<String>,
    /// Flows.
    pub flows: Flows,
    /// Findings and quirks.
    pub findings: Findings,
    /// Frames that were looked at.
    pub frames: u64,
    /// RoCE packets among them.
    pub packets: u64,
    /// Time of the first frame, in nanoseconds since 1970.
    pub first_at: u64,
    /// Time of the last one.
    pub last_at: u64,
}

impl Report {
    /// Leaves only what is about the flows that `is_chosen` says, by their numbers from 0; and what is of no flow, as a damaged packet is,
    /// if `others`.
    pub fn choose(&mut self, others: bool, is_chosen: impl Fn(u32, &Channel) -> bool) {
        let mut chosen = BTreeSet::new();
        for (index, channel) in (0..).zip(self.flows.all_mut()) {
            match is_chosen(index, channel) {
                true => _ = chosen.insert(index),
                false => channel.is_merged = true,
            }
        }
        self.findings.choose(&chosen, others);
    }

    /// The flows that are shown, with their numbers from 0.
    pub fn shown(&self) -> impl Iterator<Item = (u32, &Channel)> {
        (0..).zip(self.flows.all()).filter(|(_, channel)| {
            !channel.is_merged && channel.figures.requests + channel.figures.answers > 0
        })
    }

    /// The finding that says why a flow has failed.
    pub fn failure(&self, flow: u32) -> Option<&Finding> {
        let is_failure = |rule: RuleId| {
            (RuleId::RetryExceeded..=RuleId::PsnMismatch).contains(&rule)
                || rule == RuleId::CmRejected
                || rule == RuleId::CmSilent
        };
        self.findings.told().iter().find(|found| found.flow == Some(flow) && is_failure(found.rule))
    }

    /// How many findings of each rule a flow has; quirks, too.
    pub fn counts(&self, flow: Option<u32>) -> impl Iterator<Item = (RuleId, u64)> {
        self.findings
            .counts()
            .filter(move |row| row.1 == flow)
            .map(|(rule, _, count)| (rule, count))
    }

    /// How a finding names its packet: by its file, too, if there are several.
    pub fn packet(&self, finding: &Finding) -> String {
        let number = finding.packet.number;
        match self.files.get(usize::from(finding.packet.file)) {
            Some(file) if self.files.len() > 1 => format!("{file}:{number}"),
            _ => format!("packet {number}"),
        }
    }

    /// Findings that are no quirks, with those whose details are told.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.told().iter().filter(|found| found.rule.rule().severity != Severity::Quirk)
    }
}

/// What a flow is, in a line.
pub fn title(channel: &Channel) -> String {
    let (src, dst) = channel.ends();
    let service = match channel.transport {
        Some(Transport::Rc) => "RC",
        Some(Transport::Uc) => "UC",
        Some(Transport::Ud) => "UD",
        Some(Transport::Xrc) => "XRC",
        _ => "?",
    };
    let answers = match channel.answers {
        Some(qpn) => format!(", answers to QP {qpn}"),
        None => String::new(),
    };
    match channel.is_alone() {
        true => format!("{service} {src} -> {dst}, requests not captured{answers}"),
        false => format!("{service} {src} -> {dst} QP {}{answers}", channel.key.qpn),
    }
}
