//! A capture, played again: the engine in the place of one end, in virtual time, hears what the captured end heard and has to
//! say what it said.
//!
//! QPs, regions, receives and work requests are told from the packets ([`lanes`], [`messages`], [`regions`]). Either part can be
//! played: the [`responder`]'s, the [`requester`]'s, and those of [`datagram`]s. What may differ has a name ([`liberty`]); anything
//! else is a [`Difference`]. The requester's part can be played to a real endpoint, too: [`live`].

pub mod align;
pub mod asked;
pub mod compare;
pub mod datagram;
pub mod judge;
pub mod lanes;
pub mod liberty;
pub mod live;
pub mod messages;
pub mod options;
pub mod peers;
pub mod regions;
pub mod report;
pub mod requester;
pub mod responder;
pub mod rewrite;
pub mod rig;
pub mod verdicts;

use feroce_engine::qp::Service;
use serde::Serialize;

use lanes::{Captured, Lane};
use liberty::Taken;

/// An end's part in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It asks, or sends.
    Requester,
    /// It answers, or receives.
    Responder,
}

/// Something that our engine does otherwise than the captured end, without an excuse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Number of the captured packet.
    pub packet: Option<u64>,
    /// What differs.
    pub sentence: String,
}

/// What came of a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets that the other end was given: our engine, or a live peer.
    pub fed: u64,
    /// Packets that were compared with captured ones.
    pub compared: u64,
    /// Messages that completed.
    pub messages: u64,
    /// Bytes of data that were compared.
    pub bytes_checked: u64,
    /// Liberties taken.
    pub liberties: Taken,
    /// Differences.
    pub differences: Vec<Difference>,
}

/// A lane, one part of it played.
#[derive(Debug, Clone)]
pub struct Played {
    /// Which.
    pub lane: Lane,
    /// In whose part.
    pub role: Role,
    /// What came of it, or why it cannot be played.
    pub result: Result<Outcome, String>,
}

/// A capture, played.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Each lane, each part.
    pub played: Vec<Played>,
    /// Frames that are no whole RoCEv2 packets, or whose ICRC is wrong.
    pub not_roce: usize,
    /// Packets that belong to no lane: connection management, congestion notifications.
    pub others: usize,
}

impl Replay {
    /// True if something was compared and nothing differs.
    pub fn agrees(&self) -> bool {
        self.compared() > 0
            && self.played.iter().all(|played| match &played.result {
                Ok(outcome) => outcome.differences.is_empty(),
                Err(_) => true,
            })
    }

    /// Packets compared.
    pub fn compared(&self) -> u64 {
        let outcomes = self.played.iter().filter_map(|played| played.result.as_ref().ok());
        outcomes.map(|outcome| outcome.compared).sum()
    }
}

/// Plays the parts `roles` of every lane of a capture.
pub fn replay(frames: Vec<Captured>, roles: &[Role]) -> Replay {
    let (frames, not_roce) = lanes::roce_frames(frames);
    let (lanes, others) = lanes::lanes(&frames);
    let mut played = Vec::new();
    for lane in lanes {
        for &role in roles {
            let result = play(&lane, &frames, role).map_err(|why| why.to_string());
            played.push(Played { lane: lane.clone(), role, result });
        }
    }
    Replay { played, not_roce, others }
}

fn play(lane: &Lane, frames: &[Captured], role: Role) -> Result<Outcome, rig::Unplayable> {
    match (lane.service, role) {
        (Service::Ud, Role::Responder) => datagram::receive(lane, frames),
        (Service::Ud, Role::Requester) => datagram::send(lane, frames),
        (_, Role::Responder) => responder::replay(lane, frames),
        (_, Role::Requester) => requester::replay(lane, frames),
    }
}
