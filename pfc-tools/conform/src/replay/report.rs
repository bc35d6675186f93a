//! The report of a replay, as text and as JSON.

use std::fmt::{self, Display};

use serde::Serialize;

use super::tolerance::Tolerance;
use super::{ConversationPlayed, Outcome, Played, Replay, Role};

/// Maximum number of differences printed per lane and end.
const MAX_DIFFERENCES: usize = 10;

impl Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lane = &self.lane;
        let (requester, responder) = (lane.requester, lane.responder);
        let part = match self.role {
            Role::Requester => "requester",
            Role::Responder => "responder",
        };
        write!(
            f,
            "{:?} {} qp {:#x} > {} qp {:#x}, as {part}: ",
            lane.service, requester.ip, requester.qpn, responder.ip, responder.qpn
        )?;
        let outcome = match &self.result {
            Ok(outcome) => outcome,
            Err(why) => return write!(f, "not played: {why}"),
        };
        write_outcome(f, outcome, "packets")
    }
}

impl Display for ConversationPlayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { active, passive, id, role, .. } = self;
        let end = match role {
            Role::Requester => "active",
            Role::Responder => "passive",
        };
        write!(f, "CM {active} > {passive} communication ID {id:#x}, as {end} end: ")?;
        match &self.result {
            Ok(outcome) => write_outcome(f, outcome, "messages"),
            Err(why) => write!(f, "not played: {why}"),
        }
    }
}

/// Writes what was played and compared, and what differs.
fn write_outcome(f: &mut fmt::Formatter<'_>, outcome: &Outcome, unit: &str) -> fmt::Result {
    let verdict = if outcome.differences.is_empty() { "agrees" } else { "DIFFERS" };
    write!(f, "{verdict}; {} {unit} played, {} compared", outcome.fed, outcome.compared)?;
    if unit == "packets" {
        write!(f, ", {} bytes, {} messages", outcome.bytes_checked, outcome.messages)?;
    }
    for (tolerance, count, first) in outcome.tolerances.iter() {
        write!(f, "\n    tolerance, {count} times, first packet {first}: {}", tolerance.text())?;
    }
    for difference in outcome.differences.iter().take(MAX_DIFFERENCES) {
        match difference.packet {
            Some(number) => write!(f, "\n    packet {number}: {}", difference.sentence)?,
            None => write!(f, "\n    {}", difference.sentence)?,
        }
    }
    if outcome.differences.len() > MAX_DIFFERENCES {
        write!(f, "\n    and {} more", outcome.differences.len() - MAX_DIFFERENCES)?;
    }
    Ok(())
}

impl Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for played in &self.played {
            writeln!(f, "{played}")?;
        }
        for played in &self.conversations {
            writeln!(f, "{played}")?;
        }
        if self.others > 0 {
            writeln!(f, "{} other packets: not played", self.others)?;
        }
        if self.copies > 0 {
            let copies = self.copies;
            writeln!(f, "the capture has each packet twice: {copies} packets are copies")?;
        }
        if self.not_roce > 0 {
            writeln!(f, "{} frames are not complete RoCEv2 packets", self.not_roce)?;
        }
        let (packets, messages) = (self.compared(), self.messages_compared());
        let compared = match (packets, messages) {
            (0, 0) => return write!(f, "nothing to play"),
            (packets, 0) => format!("{packets} packets"),
            (packets, messages) => {
                format!("{packets} packets and {messages} messages of communication management")
            }
        };
        let verdict = if self.agrees() { "agrees" } else { "differs" };
        write!(f, "{verdict}: {compared} compared")
    }
}

/// A permitted difference in JSON.
#[derive(Debug, Serialize)]
struct ToleranceRow {
    tolerance: Tolerance,
    is_deviation: bool,
    count: u64,
    first_packet: u64,
    text: &'static str,
}

/// A played part in the JSON report.
#[derive(Debug, Serialize)]
struct PartPlayed<'a> {
    service: String,
    requester: String,
    requester_qp: u32,
    responder: String,
    responder_qp: u32,
    role: Role,
    not_played: Option<&'a str>,
    played: u64,
    compared: u64,
    bytes: u64,
    messages: u64,
    tolerances: Vec<ToleranceRow>,
    differences: &'a [super::Difference],
}

/// A played end of a conversation of communication management in the JSON report.
#[derive(Debug, Serialize)]
struct ConversationPart<'a> {
    active: String,
    passive: String,
    communication_id: u32,
    role: Role,
    not_played: Option<&'a str>,
    played: u64,
    compared: u64,
    tolerances: Vec<ToleranceRow>,
    differences: &'a [super::Difference],
}

/// A replay in the JSON report.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    agrees: bool,
    compared: u64,
    other_packets: usize,
    other_frames: usize,
    copies: usize,
    parts: Vec<PartPlayed<'a>>,
    conversations: Vec<ConversationPart<'a>>,
}

impl<'a> Summary<'a> {
    /// Of the replay.
    pub fn of(replay: &'a Replay) -> Self {
        Self {
            agrees: replay.agrees(),
            compared: replay.compared(),
            other_packets: replay.others,
            other_frames: replay.not_roce,
            copies: replay.copies,
            parts: replay.played.iter().map(part).collect(),
            conversations: replay.conversations.iter().map(conversation).collect(),
        }
    }
}

fn part(played: &Played) -> PartPlayed<'_> {
    let lane = &played.lane;
    let outcome = played.result.as_ref().ok();
    PartPlayed {
        service: format!("{:?}", lane.service).to_uppercase(),
        requester: lane.requester.ip.to_string(),
        requester_qp: lane.requester.qpn,
        responder: lane.responder.ip.to_string(),
        responder_qp: lane.responder.qpn,
        role: played.role,
        not_played: played.result.as_ref().err().map(String::as_str),
        played: outcome.map_or(0, |outcome| outcome.fed),
        compared: outcome.map_or(0, |outcome| outcome.compared),
        bytes: outcome.map_or(0, |outcome| outcome.bytes_checked),
        messages: outcome.map_or(0, |outcome| outcome.messages),
        tolerances: rows(outcome),
        differences: outcome.map_or(&[], |outcome| outcome.differences.as_slice()),
    }
}

fn conversation(played: &ConversationPlayed) -> ConversationPart<'_> {
    let outcome = played.result.as_ref().ok();
    ConversationPart {
        active: played.active.to_string(),
        passive: played.passive.to_string(),
        communication_id: played.id,
        role: played.role,
        not_played: played.result.as_ref().err().map(String::as_str),
        played: outcome.map_or(0, |outcome| outcome.fed),
        compared: outcome.map_or(0, |outcome| outcome.compared),
        tolerances: rows(outcome),
        differences: outcome.map_or(&[], |outcome| outcome.differences.as_slice()),
    }
}

fn rows(outcome: Option<&Outcome>) -> Vec<ToleranceRow> {
    let tolerances = outcome.into_iter().flat_map(|outcome| outcome.tolerances.iter());
    let row = |(tolerance, count, first_packet): (Tolerance, u64, u64)| ToleranceRow {
        tolerance,
        is_deviation: tolerance.is_deviation(),
        count,
        first_packet,
        text: tolerance.text(),
    };
    tolerances.map(row).collect()
}
