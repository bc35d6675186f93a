//! `feroce conform replay`: plays one end of a captured connection with the engine, in virtual
//! time. The engine receives what the captured end received and must send what it sent.
//!
//! QPs, regions, receives and work requests are derived from the packets ([`lanes`], [`messages`],
//! [`regions`]). Either end can be played: the [`responder`], the [`requester`], and those of
//! [`datagram`]s, and those of communication management ([`cm`]). Permitted differences have names
//! ([`tolerance`]); any other difference is a
//! [`Difference`]. The requester can also be played to a real endpoint: [`live`].

pub mod align;
pub mod captured_responses;
pub mod cm;
pub mod cm_compare;
pub mod compare;
pub mod compare_responses;
pub mod conversations;
pub mod copies;
pub mod datagram;
pub mod holes;
pub mod lanes;
pub mod live;
pub mod messages;
pub mod missing;
pub mod options;
pub mod peer_rules;
pub mod regions;
pub mod report;
pub mod requester;
pub mod responder;
pub mod response_cause;
pub mod rewrite;
pub mod rig;
pub mod sent_response;
pub mod spans;
pub mod tolerance;

use std::net::IpAddr;

use feroce_engine::qp::Service;
use serde::Serialize;

use conversations::Conversation;
use lanes::{Captured, Lane};
use tolerance::UsedTolerances;

/// The end of a lane that is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The end that sends requests or datagrams.
    Requester,
    /// The end that responds to requests or receives datagrams.
    Responder,
}

/// A difference between the engine and the captured end that is not permitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Number of the captured packet.
    pub packet: Option<u64>,
    /// The difference.
    pub sentence: String,
}

/// The result of playing one end of a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets given to the other end: the engine or a live peer.
    pub fed: u64,
    /// Packets compared with captured ones.
    pub compared: u64,
    /// Completed messages.
    pub messages: u64,
    /// Bytes of payload compared.
    pub bytes_checked: u64,
    /// Permitted differences that occurred.
    pub tolerances: UsedTolerances,
    /// Differences that are not permitted.
    pub differences: Vec<Difference>,
}

/// One end of a lane, played.
#[derive(Debug, Clone)]
pub struct Played {
    /// The lane.
    pub lane: Lane,
    /// The end.
    pub role: Role,
    /// The result, or why the end cannot be played.
    pub result: Result<Outcome, String>,
}

/// One end of a conversation of communication management, played.
#[derive(Debug, Clone)]
pub struct ConversationPlayed {
    /// Address of the end that requests.
    pub active: IpAddr,
    /// Address of the other end.
    pub passive: IpAddr,
    /// Communication ID of the active end.
    pub id: u32,
    /// The end: the requester is the active one.
    pub role: Role,
    /// The result, or why the end cannot be played.
    pub result: Result<Outcome, String>,
}

/// A capture, played.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The results by lane and end.
    pub played: Vec<Played>,
    /// The results by conversation of communication management and end.
    pub conversations: Vec<ConversationPlayed>,
    /// Frames that are not complete RoCEv2 packets or have a wrong ICRC.
    pub not_roce: usize,
    /// Copies of other packets, left out: the capture has each packet twice.
    pub copies: usize,
    /// Packets of no lane and no conversation: CNPs, other management.
    pub others: usize,
}

impl Replay {
    /// Returns true if packets were compared and all agree.
    pub fn agrees(&self) -> bool {
        self.compared() + self.messages_compared() > 0
            && self.outcomes().all(|outcome| outcome.differences.is_empty())
    }

    /// Returns the results of all ends that could be played.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        let lanes = self.played.iter().map(|played| &played.result);
        let conversations = self.conversations.iter().map(|played| &played.result);
        lanes.chain(conversations).filter_map(|result| result.as_ref().ok())
    }

    /// Returns the number of packets compared, without communication management.
    pub fn compared(&self) -> u64 {
        let outcomes = self.played.iter().filter_map(|played| played.result.as_ref().ok());
        outcomes.map(|outcome| outcome.compared).sum()
    }

    /// Returns the number of messages of communication management compared.
    pub fn messages_compared(&self) -> u64 {
        let outcomes = self.conversations.iter().filter_map(|played| played.result.as_ref().ok());
        outcomes.map(|outcome| outcome.compared).sum()
    }
}

/// Plays the ends `roles` of every lane of a capture.
pub fn replay(frames: Vec<Captured>, roles: &[Role]) -> Replay {
    let (frames, not_roce) = lanes::roce_frames(frames);
    let (frames, copies) = copies::without_copies(frames);
    let (lanes, others) = lanes::lanes(&frames);
    let mut played = Vec::new();
    for lane in lanes {
        for &role in roles {
            let result = play(&lane, &frames, role).map_err(|why| why.to_string());
            played.push(Played { lane: lane.clone(), role, result });
        }
    }
    let conversations = conversations::conversations(&frames);
    let messages: usize = conversations.iter().map(|one| one.messages.len()).sum();
    let ends = conversations.iter().flat_map(|one| roles.iter().map(move |&role| (one, role)));
    let conversations = ends.map(|(conversation, role)| {
        let result = cm::play(conversation, &frames, role == Role::Requester);
        let &Conversation { active, passive, id, .. } = conversation;
        let result = result.map_err(|why| why.to_string());
        ConversationPlayed { active, passive, id, role, result }
    });
    let conversations = conversations.collect();
    Replay { played, conversations, not_roce, copies, others: others - messages }
}

fn play(lane: &Lane, frames: &[Captured], role: Role) -> Result<Outcome, rig::Unplayable> {
    match (lane.service, role) {
        (Service::Ud, Role::Responder) => datagram::receive(lane, frames),
        (Service::Ud, Role::Requester) => datagram::send(lane, frames),
        (_, Role::Responder) => responder::replay(lane, frames),
        (_, Role::Requester) => requester::replay(lane, frames),
    }
}
