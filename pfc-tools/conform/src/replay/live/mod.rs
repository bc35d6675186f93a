//! Plays the requester of a capture to a real endpoint, and compares its responses with the
//! captured ones.
//!
//! The engine first plays the responder to find out what the endpoint needs: memory, receives,
//! times ([`dry_run`]). Then the captured requests are sent, rewritten by [`translation`], each
//! after the responses that were captured before it have arrived ([`causes`]): cause and effect
//! follow the capture, the timing is that of the endpoint. [`controlled_peer`] prepares an endpoint
//! whose stack this program controls; [`host`] is the sending interface.

pub mod causes;
pub mod cli;
pub mod controlled_peer;
pub mod host;
pub mod needs;
pub mod player;
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
use super::responder::{self, DryRun};
use super::rewrite::shifted;
use super::rig::Unplayable;
use crate::endpoint::end::{End, Pace};
use crate::endpoint::model;
use controlled_peer::ControlledPeer;
use player::Player;
use translation::{Ends, Names, Translation};

/// A peer's region starts at the captured offset in a page of this size, so that atomics keep their
/// alignment.
const PAGE: u64 = 4096;
/// Seed of the initial pattern of the region for receives; the other regions use the next numbers.
const SEED: u64 = 0x5eed;

/// Why a lane or a whole replay failed.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The lane cannot be played; other lanes may be.
    #[error(transparent)]
    Unplayable(#[from] Unplayable),
    /// The peer sent nothing for this lane.
    #[error("{why}")]
    Silent {
        /// The possible reason.
        why: String,
        /// Number of requests sent.
        fed: u64,
    },
    /// Nothing can be played.
    #[error("{0}")]
    Broken(String),
}

impl From<crate::endpoint::Failure> for LiveError {
    fn from(failure: crate::endpoint::Failure) -> Self {
        Self::Broken(failure.0)
    }
}

/// Returns the number of bytes in a peer's region before the captured part.
fn offset_in_page(region: &Region) -> usize {
    usize::try_from(region.start % PAGE).expect("less than a page")
}

/// Returns the initial contents of a peer's region, including the bytes before the captured part.
fn pattern(region: &Region) -> Vec<u8> {
    model::pattern(SEED + 1 + region.number as u64, offset_in_page(region) + region.len)
}

/// Returns true if the region's key must belong to a memory window, which the peer can invalidate.
fn is_window(region: &Region) -> bool {
    region.access.contains(Access::REMOTE_INVALIDATE)
}

/// Finds out what the lane's responder needs, for memory with the initial contents of
/// [`controlled_peer`].
///
/// # Errors
/// If the capture does not contain enough information, or the service has no responses.
pub fn dry_run(lane: &Lane, frames: &[Captured]) -> Result<DryRun, Unplayable> {
    if lane.service != Service::Rc {
        return Err(Unplayable(format!("{:?} requests have no responses", lane.service)));
    }
    responder::dry_run(lane, frames, |region| pattern(region).split_off(offset_in_page(region)))
}

/// The connection to a peer.
#[derive(Debug)]
pub struct PeerPath<'a> {
    /// The port that sends and receives frames.
    pub port: &'a mut dyn Port,
    /// The clock.
    pub pace: &'a mut dyn Pace,
    /// Our end and the peer; the peer's QP number counts only if the peer is ready.
    pub ends: Ends,
    /// Offset added to the captured PSNs.
    pub psn: i64,
    /// How long to wait for a response.
    pub response_timeout: Duration,
}

/// How the peer is prepared.
#[derive(Debug)]
pub enum Responder {
    /// By this program.
    Controlled(Box<dyn End>),
    /// Already prepared, with these names; the PSN offset in the names is ignored.
    Ready(Names),
}

/// Plays the requester of the lane.
///
/// # Errors
/// If the capture does not contain enough information, or the peer cannot be prepared or does not
/// respond.
pub fn play(
    lane: &Lane,
    frames: &[Captured],
    path: PeerPath<'_>,
    responder: Responder,
) -> Result<Outcome, LiveError> {
    let dry_run = dry_run(lane, frames)?;
    let PeerPath { port, pace, mut ends, psn, response_timeout } = path;
    if lane.responder.ip.is_ipv4() != ends.peer.ip.is_ipv4() {
        let family = if lane.responder.ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let why = format!("the capture is {family}, but the peer's address is {}", ends.peer.ip);
        return Err(Unplayable(why).into());
    }
    let (mut controlled, names) = match responder {
        Responder::Ready(names) => (None, Names { psn, ..names }),
        Responder::Controlled(end) => {
            let mut controlled = ControlledPeer::prepare(end, lane, &dry_run)?;
            let (found, expected) = (controlled.endpoint.gid.ip(), ends.peer.ip);
            if found != expected {
                let why = format!("the peer's address is {found} instead of {expected}");
                return Err(LiveError::Broken(why));
            }
            ends.peer.qpn = controlled.endpoint.qpn.value();
            let (qpn, gid) = (Qpn::masked(ends.own.qpn), Gid::from(ends.own.ip));
            let first = shifted(dry_run.begin.rq_psn, psn);
            let own = Endpoint::new(qpn, first, gid);
            controlled.connect(lane, &dry_run, &own, first)?;
            let names = controlled.names(lane, frames, psn);
            (Some(controlled), names)
        }
    };
    let translation = Translation::new(lane, frames, &ends, &names);
    let controlled = controlled.as_mut();
    let (dry_run, translation) = (&dry_run, &translation);
    Player { lane, frames, dry_run, translation, port, pace, controlled, response_timeout }.play()
}
