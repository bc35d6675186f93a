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

use feroce_engine::memory::Access;

use super::lanes::{Captured, Lane};
use super::regions::Region;
use super::responder::{self, Rehearsal};
use super::rig::Unplayable;
use crate::rxe::model;

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
    /// Of any.
    #[error("{0}")]
    Broken(String),
}

impl From<crate::rxe::Failure> for Trouble {
    fn from(failure: crate::rxe::Failure) -> Self {
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
    if lane.service != feroce_engine::qp::Service::Rc {
        return Err(Unplayable(format!("nobody answers requests of {:?}", lane.service)));
    }
    responder::rehearse(lane, frames, |region| pattern(region).split_off(ahead(region)))
}
