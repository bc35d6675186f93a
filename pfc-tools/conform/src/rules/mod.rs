//! The rules as data: what must hold, the severity of a violation, where the engine implements it,
//! and which test covers it.

mod list;
mod table;

use std::fmt;

use serde::Serialize;

pub use list::{Options, run};
pub use table::{RULES, RuleId};

/// Severity of a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A known harmless deviation of an endpoint. Not counted as a finding.
    Quirk,
    /// What a switch or router may legally do, or receivers ignore. Not counted as a finding.
    Note,
    /// A loss of time: a packet was lost, late or retransmitted, or no receive was posted.
    Warning,
    /// A violated rule, or a failed connection.
    Error,
}

/// The side that must obey a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The sender of requests.
    Requester,
    /// The sender of responses.
    Responder,
    /// The sender of any packet.
    Sender,
    /// The network, or the capture.
    Fabric,
}

/// A place in the source code: a file of the repository, and a word in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Path from the root of the repository.
    pub file: &'static str,
    /// A function, or another word in the file.
    pub word: &'static str,
}

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Identifier.
    #[serde(skip)]
    pub id: RuleId,
    /// Name in reports.
    pub name: &'static str,
    /// Severity of a violation.
    pub severity: Severity,
    /// The side that must obey it.
    pub side: Side,
    /// The compliance statement of the InfiniBand Architecture Specification, volume 1, if it is
    /// certain.
    pub statement: Option<&'static str>,
    /// What must hold.
    pub text: &'static str,
    /// Where Feroce's engine obeys or enforces it; `None` if the engine is not concerned.
    pub engine: Option<Place>,
    /// The test that covers it.
    pub proof: Option<Place>,
}

impl RuleId {
    /// Returns the rule.
    pub fn rule(self) -> &'static Rule {
        &RULES[self as usize]
    }

    /// Returns the identifier of the rule called `name`.
    pub fn named(name: &str) -> Option<Self> {
        RULES.iter().find(|rule| rule.name == name).map(|rule| rule.id)
    }
}

impl Severity {
    /// Returns true if violations count as findings.
    pub fn counts(self) -> bool {
        self >= Self::Warning
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.rule().name)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Quirk => "quirk",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A packet of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PacketRef {
    /// Number of the file, from 0.
    pub file: u16,
    /// Number of the packet in its file, from 1.
    pub number: u64,
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The violated rule.
    pub rule: RuleId,
    /// The packet that shows the violation.
    pub packet: PacketRef,
    /// Time of capture, in nanoseconds since 1970.
    pub at: u64,
    /// The flow of the packet, by its position in the summary.
    pub flow: Option<u32>,
    /// What happened, as text.
    pub sentence: String,
}
