//! The rules, as data: what must hold, how bad it is if it does not, who implements it here and what proves it.

mod list;
mod table;

use std::fmt;

use serde::Serialize;

pub use list::{Options, run};
pub use table::{RULES, RuleId};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A known habit of an endpoint, which nobody is hurt by. It is no finding.
    Quirk,
    /// It costs time: something was lost, late, sent again, or nobody was ready for it.
    Warning,
    /// A rule is broken, or a connection has failed.
    Error,
}

/// Who has to keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Whoever sends requests.
    Requester,
    /// Whoever answers them.
    Responder,
    /// Whoever sends anything.
    Sender,
    /// The network between, or the capture.
    Fabric,
}

/// A place in the source: a file of the repository, and a word that stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Place {
    /// From the root of the repository.
    pub file: &'static str,
    /// A function, or another word of the file.
    pub word: &'static str,
}

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Which.
    #[serde(skip)]
    pub id: RuleId,
    /// Its name, for people and programs.
    pub name: &'static str,
    /// How bad it is if it does not hold.
    pub severity: Severity,
    /// Who has to keep it.
    pub side: Side,
    /// The compliance statement of the InfiniBand Architecture Specification, volume 1, where that is certain.
    pub statement: Option<&'static str>,
    /// What must hold.
    pub text: &'static str,
    /// Where Feroce's engine keeps it, or refuses those who do not; `None` if the engine has nothing to do with it.
    pub engine: Option<Place>,
    /// The test that proves it.
    pub proof: Option<Place>,
}

impl RuleId {
    /// The rule.
    pub fn rule(self) -> &'static Rule {
        &RULES[self as usize]
    }

    /// The rule of that name.
    pub fn named(name: &str) -> Option<Self> {
        RULES.iter().find(|rule| rule.name == name).map(|rule| rule.id)
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
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A packet of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PacketRef {
    /// Which file, from 0.
    pub file: u16,
    /// Its number there, from 1.
    pub number: u64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which rule does not hold.
    pub rule: RuleId,
    /// The packet that shows it.
    pub packet: PacketRef,
    /// When that was captured, in nanoseconds since 1970.
    pub at: u64,
    /// Its flow, by its place in the summary.
    pub flow: Option<u32>,
    /// What happened, for people.
    pub sentence: String,
}
