//! What the program of one QP posts, and the regions that are revoked meanwhile.

use super::layout::{Area, Range};
use super::request::{Receive, Request};

/// What the program of one QP posts.
#[derive(Debug, Clone, Default)]
pub struct SideWorkload {
    /// Send requests, in order.
    pub requests: Vec<Request>,
    /// Receives, in order.
    pub receives: Vec<Receive>,
    /// Indices of the first final send request and receive. The final ones are posted after all
    /// others have completed.
    pub final_from: (usize, usize),
    /// Value of `word` before the first atomic of this QP, then after each of its atomics.
    pub word_values: Vec<u64>,
    /// A word in the peer's memory that only this QP's atomics change.
    pub word: Option<Range>,
}

/// A region that is deregistered or invalidated during the scenario.
#[derive(Debug, Clone, Copy)]
pub(super) struct Revocation {
    /// End that the region belongs to.
    pub end: usize,
    /// The region.
    pub area: Area,
    /// Pair whose requests use the region.
    pub pair: usize,
    /// How the pair uses it.
    pub region_use: RegionUse,
}

/// How requests use a region that is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegionUse {
    /// The peer invalidates the key of the region.
    Invalidated,
    /// The region is deregistered while the peer writes to it.
    Target,
    /// The region is deregistered while the peer reads it.
    Source,
    /// The region is deregistered while its own end sends from it.
    Local,
    /// The region is deregistered while a receive in it waits for a SEND.
    Receive,
}
