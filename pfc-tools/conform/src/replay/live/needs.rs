//! What a lane's responder needs, for the person who prepares it: as text, or as JSON with all
//! bytes.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::net::IpAddr;

use feroce_engine::memory::Access;
use serde::{Serialize, Serializer};

use super::dry_run;
use crate::replay::lanes::{Captured, Lane};
use crate::replay::responder::{DryRun, ResponderStep};
use crate::replay::rig::{self, Unplayable};

/// Number of bytes shown in text per memory range.
const SHOWN: usize = 32;

/// Names of memory access rights.
const RIGHTS: [(Access, &str); 5] = [
    (Access::REMOTE_WRITE, "remote write"),
    (Access::REMOTE_READ, "remote read"),
    (Access::REMOTE_ATOMIC, "remote atomic"),
    (Access::FLUSH_GLOBAL, "flush global"),
    (Access::REMOTE_INVALIDATE, "remote invalidate"),
];

/// See the [module](self).
#[derive(Debug, Serialize)]
pub struct Needs {
    address: IpAddr,
    qp: u32,
    peer_address: IpAddr,
    peer_qp: u32,
    path_mtu: u32,
    first_psn: u32,
    rnr_timer: u8,
    rnr_timer_us: u64,
    depth: u8,
    regions: Vec<Memory>,
    receives: Vec<Receive>,
    changes: Vec<Change>,
}

/// An endpoint that cannot be played to.
#[derive(Debug, Serialize)]
pub struct NotPlayed {
    address: IpAddr,
    qp: u32,
    /// The reason.
    pub not_played: String,
}

/// What one responder of a capture needs.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Endpoint {
    /// The responder can be prepared.
    Playable(Needs),
    /// The responder cannot be played to.
    Not(NotPlayed),
}

#[derive(Debug, Serialize)]
struct Memory {
    rkey: u32,
    address: u64,
    length: usize,
    rights: Vec<&'static str>,
    holds: Vec<Bytes>,
}

#[derive(Debug, Serialize)]
struct Bytes {
    address: u64,
    #[serde(serialize_with = "hex")]
    bytes: Vec<u8>,
}

#[derive(Debug, Serialize)]
struct Receive {
    length: u32,
    /// Number of the packet that must get an RNR NAK before the receive is posted; `None` if the
    /// receive is posted at the start.
    after_packet: Option<u64>,
}

/// A change of the memory by the captured responder's application.
#[derive(Debug, Serialize)]
struct Change {
    before_packet: u64,
    rkey: u32,
    address: u64,
    #[serde(serialize_with = "hex")]
    bytes: Vec<u8>,
}

fn hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&digits(bytes))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Endpoint {
    /// Derives the needs of the lane's responder.
    pub fn of(lane: &Lane, frames: &[Captured]) -> Self {
        Needs::of(lane, frames).map_or_else(|why| Self::not(lane, &why), Self::Playable)
    }

    fn not(lane: &Lane, why: &Unplayable) -> Self {
        let (address, qp) = (lane.responder.ip, lane.responder.qpn);
        Self::Not(NotPlayed { address, qp, not_played: why.to_string() })
    }
}

impl Needs {
    /// Derives the needs of the lane's responder.
    ///
    /// # Errors
    /// If the lane cannot be played.
    pub fn of(lane: &Lane, frames: &[Captured]) -> Result<Self, Unplayable> {
        let dry_run = dry_run(lane, frames)?;
        let (receives, changes) = receives_and_changes(lane, frames, &dry_run);
        let regions = dry_run.regions.list().map(|region| {
            let holds = dry_run.regions.at_first(region.key).into_iter();
            let rights = RIGHTS.into_iter().filter(|(right, _)| region.access.contains(*right));
            Memory {
                rkey: region.key.value(),
                address: region.start,
                length: region.len,
                rights: rights.map(|(_, name)| name).collect(),
                holds: holds.map(|(address, bytes)| Bytes { address, bytes }).collect(),
            }
        });
        let timer = dry_run.begin.min_rnr_timer;
        Ok(Self {
            address: lane.responder.ip,
            qp: lane.responder.qpn,
            peer_address: lane.requester.ip,
            peer_qp: lane.requester.qpn,
            path_mtu: lane.mtu.bytes(),
            first_psn: dry_run.begin.rq_psn.value(),
            rnr_timer: timer.code(),
            rnr_timer_us: timer.nanos() / 1000,
            depth: rig::depth(lane),
            regions: regions.collect(),
            receives,
            changes,
        })
    }
}

/// Returns the receives, and the changes that happen while requests arrive.
fn receives_and_changes(
    lane: &Lane,
    frames: &[Captured],
    dry_run: &DryRun,
) -> (Vec<Receive>, Vec<Change>) {
    let (mut receives, mut changes) = (Vec::new(), Vec::new());
    let (mut numbers, mut awaiting) = (BTreeMap::new(), Vec::new());
    for step in &dry_run.steps {
        match step {
            ResponderStep::PostReceive { length, late, .. } => awaiting.push((*length, *late)),
            ResponderStep::SetMemory { key, va, bytes, is_change: true } => {
                let (rkey, address, bytes) = (key.value(), *va, bytes.clone());
                changes.push(Change { before_packet: 0, rkey, address, bytes });
            }
            ResponderStep::SetMemory { .. } => {}
            ResponderStep::Request(at) => {
                let number = frames[lane.requests[*at]].number;
                let new = changes.iter_mut().rev().take_while(|change| change.before_packet == 0);
                new.for_each(|change| change.before_packet = number);
                let before = numbers.insert(dry_run.messages.places[*at], number);
                let posted = awaiting.drain(..).map(|(length, late)| Receive {
                    length,
                    after_packet: before.filter(|_| late),
                });
                receives.extend(posted);
            }
        }
    }
    (receives, changes)
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Playable(needs) => needs.fmt(f),
            Self::Not(NotPlayed { address, qp, not_played }) => {
                writeln!(f, "QP {qp:#x} of {address} cannot be played to: {not_played}")
            }
        }
    }
}

impl Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, qp, peer_address, peer_qp, path_mtu, first_psn, .. } = self;
        writeln!(f, "QP {qp:#x} of {address}, a new RC QP:")?;
        writeln!(f, "    connected to QP {peer_qp:#x} of {peer_address}")?;
        writeln!(f, "    path MTU {path_mtu}, first expected PSN {first_psn:#x}")?;
        let Self { rnr_timer, rnr_timer_us, depth, .. } = self;
        writeln!(
            f,
            "    RNR timer code {rnr_timer} ({rnr_timer_us} us), at most {depth} outstanding READs \
             and atomics"
        )?;
        for Memory { rkey, address, length, rights, holds } in &self.regions {
            let rights = rights.join(", ");
            writeln!(f, "    key {rkey:#x}: {length} bytes from {address:#x}, {rights}")?;
            for Bytes { address, bytes } in holds {
                writeln!(f, "        initially at {address:#x}: {}", Shown(bytes))?;
            }
        }
        let same = |a: &Receive, b: &Receive| a.length == b.length && b.after_packet.is_none();
        for run in self.receives.chunk_by(same) {
            let plural = if run.len() == 1 { "" } else { "s" };
            write!(f, "    {} receive{plural} of {} bytes", run.len(), run[0].length)?;
            match run[0].after_packet {
                Some(number) => writeln!(f, ", not before packet {number} was refused")?,
                None => writeln!(f)?,
            }
        }
        for Change { before_packet, rkey, address, bytes } in &self.changes {
            let bytes = Shown(bytes);
            writeln!(
                f,
                "    before packet {before_packet}: key {rkey:#x} holds at {address:#x} {bytes}"
            )?;
        }
        Ok(())
    }
}

/// Formats bytes, or the first of them.
struct Shown<'a>(&'a [u8]);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_at_checked(SHOWN) {
            Some((first, rest)) if !rest.is_empty() => {
                write!(f, "{}.. ({} bytes; --json has all)", digits(first), self.0.len())
            }
            _ => f.write_str(&digits(self.0)),
        }
    }
}
