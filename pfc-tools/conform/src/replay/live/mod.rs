//! The requester's part of a capture, played to a real endpoint: its answers are held against the captured ones.
//!
//! What the endpoint needs (memory, receives, when) is found by playing the responder's part with the engine first
//! ([`rehearse`]). Then the captured requests go out, rewritten ([`translation`]), each when the answers that were
//! captured ahead of it have come ([`causes`]): the order of cause and effect is the capture's, the time the endpoint's own.
//! [`stage`] prepares an endpoint whose stack can be told to; [`host`] is the interface that the requests leave by.

pub mod causes;
pub mod cli;
pub mod host;
pub mod needs;
pub mod player;
pub mod stage;
pub mod translation;

use std::time::Duration;

use feroce_engine::device::Endpoint;
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::port::Port;
use feroce_engine::qp::Service;
use feroce_wire::Qpn;

use super::Outcome;
use super::lanes::{Captured, Lane};
use super::regions::Region;
use super::responder::{self, Rehearsal};
use super::rewrite::shifted;
use super::rig::Unplayable;
use crate::endpoint::end::{End, Pace};
use crate::endpoint::model;
use player::Player;
use stage::Stage;
use translation::{Ends, Names, Translation};

/// Regions begin in a page where the captured ones do: atomics are aligned as they were.
const PAGE: u64 = 4096;
/// Seed of the pattern that the region for receives begins with; those of the others follow.
const SEED: u64 = 0x5eed;

/// Why nothing comes of a play.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// Of this lane; others may be played.
    #[error(transparent)]
    Unplayable(#[from] Unplayable),
    /// Of this lane: nothing was heard of the peer.
    #[error("{why}")]
    Silent {
        /// What may be the reason.
        why: String,
        /// Requests that were sent.
        fed: u64,
    },
    /// Of any.
    #[error("{0}")]
    Broken(String),
}

impl From<crate::endpoint::Failure> for Trouble {
    fn from(failure: crate::endpoint::Failure) -> Self {
        Self::Broken(failure.0)
    }
}

/// Bytes of a peer's region ahead of the captured one.
fn ahead(region: &Region) -> usize {
    usize::try_from(region.start % PAGE).expect("less than a page")
}

/// What a peer's region begins with, the bytes ahead included.
fn pattern(region: &Region) -> Vec<u8> {
    model::pattern(SEED + 1 + region.number as u64, ahead(region) + region.len)
}

/// Whether the region's key is to be a window's, which the peer can invalidate.
fn is_window(region: &Region) -> bool {
    region.access.contains(Access::REMOTE_INVALIDATE)
}

/// What the lane's responder needs, where its memory begins as [`stage`] has it.
///
/// # Errors
/// If the capture does not say enough, or nobody answers.
pub fn rehearse(lane: &Lane, frames: &[Captured]) -> Result<Rehearsal, Unplayable> {
    if lane.service != Service::Rc {
        return Err(Unplayable(format!("nobody answers requests of {:?}", lane.service)));
    }
    responder::rehearse(lane, frames, |region| pattern(region).split_off(ahead(region)))
}

/// The way to a peer.
#[derive(Debug)]
pub struct Way<'a> {
    /// Where frames go in and out.
    pub port: &'a mut dyn Port,
    /// How time goes by.
    pub pace: &'a mut dyn Pace,
    /// We, and the peer; its QP number counts if it is ready.
    pub ends: Ends,
    /// What is added to the captured PSNs.
    pub psn: i64,
    /// How long an answer is waited for.
    pub patience: Duration,
}

/// How the peer comes by what it needs.
#[derive(Debug)]
pub enum Responder {
    /// It is told.
    Told(Box<dyn End>),
    /// It has it already, and names it so; the PSN of the names does not count.
    Ready(Names),
}

/// Plays the requester's part of the lane.
///
/// # Errors
/// If the capture does not say enough, the peer cannot be prepared or does not answer at all.
pub fn play(
    lane: &Lane,
    frames: &[Captured],
    way: Way<'_>,
    responder: Responder,
) -> Result<Outcome, Trouble> {
    let rehearsal = rehearse(lane, frames)?;
    let Way { port, pace, mut ends, psn, patience } = way;
    if lane.responder.ip.is_ipv4() != ends.peer.ip.is_ipv4() {
        let family = if lane.responder.ip.is_ipv4() { "IPv4" } else { "IPv6" };
        return Err(Unplayable(format!("it is {family}, and {} is not", ends.peer.ip)).into());
    }
    let (mut stage, names) = match responder {
        Responder::Ready(names) => (None, Names { psn, ..names }),
        Responder::Told(end) => {
            let mut stage = Stage::prepare(end, lane, &rehearsal)?;
            let (found, asked) = (stage.endpoint.gid.ip(), ends.peer.ip);
            if found != asked {
                return Err(Trouble::Broken(format!("the peer's address is {found}, not {asked}")));
            }
            ends.peer.qpn = stage.endpoint.qpn.value();
            let (qpn, gid) = (Qpn::masked(ends.own.qpn), Gid::from(ends.own.ip));
            let first = shifted(rehearsal.begin.rq_psn, psn);
            let own = Endpoint { qpn, psn: first, gid, super_frames: None };
            stage.connect(lane, &rehearsal, &own, first)?;
            let names = stage.names(lane, frames, psn);
            (Some(stage), names)
        }
    };
    let translation = Translation::new(lane, frames, &ends, &names);
    let stage = stage.as_mut();
    let (rehearsal, translation) = (&rehearsal, &translation);
    Player { lane, frames, rehearsal, translation, port, pace, stage, patience }.play()
}
