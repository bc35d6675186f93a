//! Prepares a peer that this program controls: its QP, memory and receives.

use std::time::Duration;

use feroce_engine::device::Endpoint;
use feroce_engine::memory::Access;
use feroce_engine::verbs::{Completion, Extra, RemoteAddr, SendOp};
use feroce_wire::{Key, Psn};

use super::translation::{Names, keys};
use super::{SEED, is_window, offset_in_page, pattern};
use crate::endpoint::end::End;
use crate::endpoint::plan::{self, Family, Place, Plan, RESPONDER, RIGHTS, Settings};
use crate::endpoint::{Failure, failed};
use crate::replay::Difference;
use crate::replay::lanes::{Captured, Lane};
use crate::replay::messages::{Message, Place as At};
use crate::replay::regions::Region;
use crate::replay::responder::{DryRun, ResponderStep};

/// Index of the region for receives; the other regions follow.
const RECEIVES: usize = 0;
/// Alignment of receives, in bytes.
const ALIGNMENT: u32 = 64;
/// Maximum number of completions left in the queue: queues hold at least a hundred.
const MAX_WAITING: usize = 64;
/// Time limit for a completion after its response.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of unexpected completions that are read.
const MAX_UNEXPECTED: usize = 64;
/// A key XORed with this value is a key that was never issued.
const WRONG: u32 = 0x55;

/// A posted receive.
#[derive(Debug, Clone, Copy)]
struct Posted {
    message: At,
    offset: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub struct ControlledPeer {
    end: Box<dyn End>,
    /// Address, QP number and PSN of the peer.
    pub endpoint: Endpoint,
    regions: Vec<Region>,
    /// Addresses and keys of the peer's regions.
    names: Vec<RemoteAddr>,
    posted: Vec<Posted>,
    next: u32,
    done: Vec<Completion>,
}

impl ControlledPeer {
    /// Registers memory and creates a QP at `end` for the lane.
    ///
    /// # Errors
    /// The error of the stack.
    pub fn prepare(mut end: Box<dyn End>, lane: &Lane, dry_run: &DryRun) -> Result<Self, Failure> {
        let regions: Vec<Region> = dry_run.regions.list().collect();
        let wanted: Vec<plan::Region> = std::iter::once(receives(dry_run))
            .chain(regions.iter().map(|region| {
                let len = u32::try_from(offset_in_page(region) + region.len)
                    .map_err(failed("a region"))?;
                let access = Access::from_bits(region.access.bits() & RIGHTS.bits());
                let access = access.ok_or_else(|| Failure("a region's rights".to_owned()))?;
                Ok(plan::Region { len, access, window: is_window(region) })
            }))
            .collect::<Result<_, Failure>>()?;
        let family = if lane.responder.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let endpoint = end.prepare(family, &wanted, SEED, &settings(dry_run))?;
        let (names, posted, done) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { end, endpoint, regions, names, posted, next: 0, done })
    }

    /// Connects the peer's QP to ours.
    ///
    /// # Errors
    /// The error of the stack.
    pub fn connect(
        &mut self,
        lane: &Lane,
        dry_run: &DryRun,
        own: &Endpoint,
        first: Psn,
    ) -> Result<(), Failure> {
        self.end.connect(own, first, lane.mtu, &settings(dry_run))?;
        self.names = self.end.keys()?;
        Ok(())
    }

    /// Returns the mapping of captured PSNs, keys and addresses to those of the peer. A key without
    /// granted accesses is mapped to one that was never issued.
    pub fn names(&self, lane: &Lane, frames: &[Captured], psn: i64) -> Names {
        let wrong = self.names[RECEIVES].rkey.value() ^ WRONG;
        let mut names = Names { psn, ..Names::default() };
        names.keys.extend(keys(lane, frames).into_iter().map(|key| (key, wrong)));
        for (region, name) in self.regions.iter().zip(&self.names[RECEIVES + 1..]) {
            let start = name.addr.wrapping_add(offset_in_page(region) as u64);
            names.keys.insert(region.key.value(), name.rkey.value());
            let shift = start.wrapping_sub(region.start).cast_signed();
            names.addresses.insert(region.key.value(), shift);
        }
        names
    }

    /// Performs a step at the responder's end.
    ///
    /// # Errors
    /// The error of the stack.
    pub fn act(&mut self, step: &ResponderStep) -> Result<(), Failure> {
        match step {
            ResponderStep::PostReceive { message, length, .. } => self.receive(*message, *length),
            ResponderStep::SetMemory { key, va, bytes, .. } => self.show(*key, *va, bytes),
            ResponderStep::Request(_) => Ok(()),
        }
    }

    fn receive(&mut self, message: At, length: u32) -> Result<(), Failure> {
        let waiting = self.posted.len() - self.done.len();
        if waiting >= MAX_WAITING {
            let done = self.end.completions(waiting, Duration::ZERO)?;
            self.done.extend(done);
        }
        let offset = self.next;
        self.next += length.next_multiple_of(ALIGNMENT);
        let place = Place { region: RECEIVES, offset };
        self.end.post_receives(&[(self.posted.len() as u64, place, length)])?;
        self.posted.push(Posted { message, offset });
        Ok(())
    }

    fn show(&mut self, key: Key, va: u64, bytes: &[u8]) -> Result<(), Failure> {
        let at = self.regions.iter().position(|region| region.key == key);
        let Some(at) = at else { return Ok(()) };
        let region = &self.regions[at];
        let offset = (va - region.start) + offset_in_page(region) as u64;
        let offset = u32::try_from(offset).map_err(failed("a region"))?;
        self.end.write(Place { region: RECEIVES + 1 + at, offset }, bytes)
    }

    /// Compares completions and memory with the dry run. Returns the number of bytes compared and
    /// the differences.
    ///
    /// # Errors
    /// The error of the stack.
    pub fn check(&mut self, dry_run: &DryRun) -> Result<(u64, Vec<Difference>), Failure> {
        let expected = self.posted.iter().filter(|one| dry_run.received.contains(&one.message));
        let missing = expected.count().saturating_sub(self.done.len());
        let late = self.end.completions(missing, COMPLETION_TIMEOUT)?;
        self.done.extend(late);
        let unexpected = self.end.completions(MAX_UNEXPECTED, Duration::ZERO)?;
        self.done.extend(unexpected);
        let mut differences = Vec::new();
        let mut bytes = 0;
        let held = self.end.memory(RECEIVES)?;
        for (number, posted) in self.posted.iter().enumerate() {
            let message = dry_run.messages.at(posted.message);
            let message = message.filter(|one| dry_run.received.contains(&one.start));
            let Some(message) = message else { continue };
            bytes += message.bytes.len() as u64;
            if !self.is_received(number, message, &held) {
                let psn = dry_run.messages.psn(message.start).value();
                differences.push(difference(format!(
                    "the receive for the message with PSN {psn:#x} does not complete as expected"
                )));
            }
        }
        differences.extend(self.done.iter().enumerate().filter_map(|(number, done)| {
            let Some(posted) = self.posted.get(number) else {
                return Some(difference("more receives complete than were posted".to_owned()));
            };
            // After an error, posted receives complete, too, without a message.
            let is_due = dry_run.received.contains(&posted.message)
                || dry_run.is_refused && !done.is_success();
            let psn = dry_run.messages.psn(posted.message).value();
            (!is_due).then(|| {
                difference(format!(
                    "the receive for the message with PSN {psn:#x}, which was not received \
                     completely, completes ({:?})",
                    done.status
                ))
            })
        }));
        for (at, region) in self.regions.iter().enumerate() {
            let mut expected = pattern(region);
            expected.truncate(offset_in_page(region));
            expected.extend(dry_run.regions.image(region.key));
            let held = self.end.memory(RECEIVES + 1 + at)?;
            bytes += region.len as u64;
            if let Some(at) = expected.iter().zip(&held).position(|(a, b)| a != b) {
                let va = region.start + at as u64 - offset_in_page(region) as u64;
                let key = region.key.value();
                differences.push(difference(format!(
                    "the peer's memory differs at captured address {va:#x}, key {key:#x}"
                )));
            }
        }
        Ok((bytes, differences))
    }

    fn is_received(&self, number: usize, message: &Message, held: &[u8]) -> bool {
        let Some(done) = self.done.get(number) else { return false };
        let extra = match message.op {
            SendOp::SendImm(immediate) | SendOp::WriteImm(_, immediate) => {
                Extra::Immediate(immediate)
            }
            SendOp::SendInvalidate(key) => {
                let at = self.regions.iter().position(|region| region.key == key);
                Extra::Invalidated(at.map_or(key, |at| self.names[RECEIVES + 1 + at].rkey))
            }
            _ => Extra::None,
        };
        let is_write = matches!(message.op, SendOp::WriteImm(..));
        let offset = self.posted[number].offset as usize;
        let bytes = held.get(offset..offset + message.bytes.len());
        done.wr_id == number as u64
            && done.is_success()
            && done.extra == extra
            && done.byte_len as usize == message.bytes.len()
            && (is_write || bytes == Some(&message.bytes[..]))
    }
}

fn difference(sentence: String) -> Difference {
    Difference { packet: None, sentence }
}

/// Returns the region for all receives.
fn receives(dry_run: &DryRun) -> Result<plan::Region, Failure> {
    let length = |step: &ResponderStep| match step {
        ResponderStep::PostReceive { length, .. } => u64::from(length.next_multiple_of(ALIGNMENT)),
        _ => 0,
    };
    let len: u64 = dry_run.steps.iter().map(length).sum();
    let len = u32::try_from(len.max(u64::from(ALIGNMENT))).map_err(failed("all receives"))?;
    Ok(plan::Region { len, access: Access::LOCAL_WRITE, window: false })
}

/// Returns the settings of the peer's QP: those of any responder, except the RNR timer.
fn settings(dry_run: &DryRun) -> Settings {
    let min_rnr_timer = dry_run.begin.min_rnr_timer.code();
    Settings { min_rnr_timer, ..Plan::new().settings[RESPONDER] }
}
