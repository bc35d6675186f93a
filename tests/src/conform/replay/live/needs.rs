//! What a lane's responder needs, for who prepares it.

use std::fmt::{self, Display};

use super::rehearse;
use crate::conform::replay::lanes::{Captured, Lane};
use crate::conform::replay::responder::{Cue, Rehearsal};
use crate::conform::replay::rig::Unplayable;

/// See the [module](self).
#[derive(Debug)]
pub struct Needs<'a> {
    lane: &'a Lane,
    rehearsal: Rehearsal,
}

impl<'a> Needs<'a> {
    /// Of the lane.
    ///
    /// # Errors
    /// If it cannot be played.
    pub fn of(lane: &'a Lane, frames: &[Captured]) -> Result<Self, Unplayable> {
        Ok(Self { lane, rehearsal: rehearse(lane, frames)? })
    }
}

impl Display for Needs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asks, answers) = (self.lane.requester, self.lane.responder);
        let begin = &self.rehearsal.begin;
        writeln!(f, "QP {:#x} of {}:", answers.qpn, answers.ip)?;
        writeln!(f, "    connected to QP {:#x} of {}", asks.qpn, asks.ip)?;
        let (mtu, psn) = (self.lane.mtu.bytes(), begin.rq_psn.value());
        writeln!(f, "    path MTU {mtu}, expects PSN {psn:#x} first")?;
        let micros = begin.min_rnr_timer.nanos() / 1000;
        writeln!(f, "    RNR timer code {} ({micros} us)", begin.min_rnr_timer.code())?;
        for region in self.rehearsal.regions.list() {
            let (key, start, len) = (region.key.value(), region.start, region.len);
            writeln!(f, "    key {key:#x}: {len} bytes from {start:#x}, {:?}", region.access)?;
        }
        let length = |cue: &Cue| match cue {
            Cue::Receive { length, .. } => Some(*length),
            _ => None,
        };
        let receives: Vec<u32> = self.rehearsal.cues.iter().filter_map(length).collect();
        if let Some(longest) = receives.iter().max() {
            writeln!(f, "    {} receives, of {longest} bytes at most", receives.len())?;
        }
        Ok(())
    }
}
