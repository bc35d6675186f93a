//! The responder's memory: its regions and their contents, derived from the packets.

use std::collections::{BTreeMap, BTreeSet};

use feroce_engine::device::{Buffer, ProtectionDomain};
use feroce_engine::memory::Access;
use feroce_wire::{Key, NakCode, Operation, Packet, Syndrome};

use super::captured_responses::CapturedResponses;
use super::lanes::{Captured, Lane};
use super::rewrite::Rewrite;
use super::rig::{Unplayable, unplayable};

/// The most bytes of regions created for a lane: lengths in packets are not trusted, and addresses
/// may be far apart.
const MOST_BYTES: u64 = 512 << 20;

/// The highest key index of a region; the index above is for receives.
const HIGHEST_INDEX: u32 = 0xfffe;

/// A region before its creation.
#[derive(Debug, Clone, Copy)]
struct Shape {
    start: u64,
    end: u64,
    access: Access,
}

/// A region, and which of its bytes the packets show.
#[derive(Debug)]
struct Known {
    start: u64,
    access: Access,
    memory: Memory,
    shown: Vec<bool>,
    /// The first contents that packets show, by offset, before requests change them.
    first: BTreeMap<usize, Vec<u8>>,
}

/// The memory of a region.
#[derive(Debug)]
enum Memory {
    Registered(Buffer),
    /// No access is granted any more, so the contents do not matter.
    Withdrawn,
}

impl Memory {
    fn read(&self, at: usize, out: &mut [u8]) {
        if let Self::Registered(buffer) = self {
            buffer.read(at, out);
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        if let Self::Registered(buffer) = self {
            buffer.write(at, bytes);
        }
    }
}

/// A region, described for a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Number, in the order of keys.
    pub number: usize,
    /// Captured key.
    pub key: Key,
    /// Captured address.
    pub start: u64,
    /// Length, in bytes.
    pub len: usize,
    /// Access rights.
    pub access: Access,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Regions {
    by_key: BTreeMap<u32, Known>,
    /// Captured keys that our device cannot use, and their replacements.
    pub renamed: Rewrite,
}

/// Returns the memory that a request accesses: key, address, length, and the required right.
fn extent(packet: &Packet<'_>) -> Option<(Key, u64, u64, Access)> {
    if let Some(eth) = packet.ext.atomic_eth {
        return Some((eth.rkey, eth.va, 8, Access::REMOTE_ATOMIC));
    }
    let reth = packet.ext.reth?;
    let right = match packet.info.operation {
        Operation::ReadRequest => Access::REMOTE_READ,
        Operation::Flush => Access::FLUSH_GLOBAL,
        _ => Access::REMOTE_WRITE,
    };
    Some((reth.rkey, reth.va, u64::from(reth.dma_len), right))
}

/// Returns the smallest regions that the granted requests need. Keys without granted accesses get
/// no region.
fn shapes(
    lane: &Lane,
    frames: &[Captured],
    verdicts: &CapturedResponses<'_>,
) -> Result<BTreeMap<u32, Shape>, Unplayable> {
    let mut shapes: BTreeMap<u32, Shape> = BTreeMap::new();
    let mut invalidated = BTreeSet::new();
    for &index in &lane.requests {
        let packet = frames[index].packet();
        invalidated.extend(packet.ext.ieth.map(|ieth| ieth.rkey.value()));
        let Some((key, va, length, right)) = extent(&packet) else { continue };
        let refused = verdicts.refusal(packet.bth.psn, index);
        if length == 0 || refused == Some(Syndrome::Nak(NakCode::RemoteAccess)) {
            continue; // An empty access checks no key.
        }
        let end = va.checked_add(length).filter(|end| end - va <= MOST_BYTES);
        let end = end.ok_or_else(|| Unplayable(format!("a granted access of {length} bytes")))?;
        let shape = shapes.entry(key.value()).or_insert(Shape { start: va, end, access: right });
        shape.start = shape.start.min(va);
        shape.end = shape.end.max(end);
        shape.access |= right | Access::LOCAL_WRITE;
    }
    let total =
        shapes.values().fold(0_u64, |sum, shape| sum.saturating_add(shape.end - shape.start));
    if total > MOST_BYTES {
        let most = MOST_BYTES >> 20;
        return Err(Unplayable(format!(
            "the requests access regions of {total} bytes; at most {most} MiB are played"
        )));
    }
    for (key, shape) in &mut shapes {
        if invalidated.contains(key) {
            shape.access |= Access::REMOTE_INVALIDATE;
        }
    }
    Ok(shapes)
}

/// The regions that a lane needs, before their creation.
#[derive(Debug)]
pub struct Plan(BTreeMap<u32, Shape>);

impl Plan {
    /// Derives the regions of the lane.
    ///
    /// # Errors
    /// If a region would be too large.
    pub fn of(
        lane: &Lane,
        frames: &[Captured],
        verdicts: &CapturedResponses<'_>,
    ) -> Result<Self, Unplayable> {
        shapes(lane, frames, verdicts).map(Self)
    }

    /// Returns the total size, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.values().map(|shape| length(shape).next_multiple_of(4096)).sum()
    }
}

fn length(shape: &Shape) -> usize {
    usize::try_from(shape.end - shape.start).expect("checked against the longest")
}

impl Regions {
    /// Registers the planned regions.
    ///
    /// # Errors
    /// If the engine refuses.
    pub fn register(plan: &Plan, pd: &ProtectionDomain) -> Result<Self, Unplayable> {
        let mut by_key = BTreeMap::new();
        let mut renamed = Rewrite::default();
        let mut taken: BTreeSet<u32> = BTreeSet::new();
        let mut spare = HIGHEST_INDEX;
        for (&key, shape) in &plan.0 {
            let len = length(shape);
            let mut own = Key(key);
            if own.index() > HIGHEST_INDEX || !taken.insert(own.index()) {
                own = Key::from_parts(spare, own.variant());
                spare -= 1;
                renamed.keys.insert(key, own.value());
            }
            let buffer = pd.alloc_buffer_as(shape.start, len, shape.access, own);
            let buffer = buffer.map_err(unplayable("register memory"))?;
            let &Shape { start, access, .. } = shape;
            let (shown, first) = (vec![false; len], BTreeMap::new());
            let memory = Memory::Registered(buffer);
            by_key.insert(key, Known { start, access, memory, shown, first });
        }
        Ok(Self { by_key, renamed })
    }

    /// Returns true if some keys are replaced.
    pub fn renames(&self) -> bool {
        !self.renamed.keys.is_empty()
    }

    /// Deregisters the region with the captured key: from now on accesses with it are refused.
    /// Returns false if there is none.
    pub fn withdraw(&mut self, key: Key) -> bool {
        let Some(known) = self.by_key.get_mut(&key.value()) else { return false };
        known.memory = Memory::Withdrawn;
        true
    }

    /// Returns true if the region with the captured key grants the access of `packet`, which begins
    /// a message.
    pub fn grants(&self, packet: &Packet<'_>) -> bool {
        let Some((key, va, length, right)) = extent(packet) else { return false };
        let Some(known) = self.by_key.get(&key.value()) else { return false };
        let end = known.start + known.shown.len() as u64;
        // A key that the peer may invalidate loses its access without help.
        let stays = !known.access.contains(Access::REMOTE_INVALIDATE);
        stays
            && known.access.contains(right)
            && va >= known.start
            && va.checked_add(length).is_some_and(|last| last <= end)
    }

    /// Writes `bytes` unless they are already there. Returns true if other contents were known
    /// there: then the responder's application changed them.
    pub fn show(&mut self, key: Key, va: u64, bytes: &[u8]) -> bool {
        let Some((known, at)) = self.find(key, va, bytes.len()) else { return false };
        let mut held = vec![0; bytes.len()];
        known.memory.read(at, &mut held);
        let shown = &mut known.shown[at..at + bytes.len()];
        let mut offset = 0;
        for run in shown.chunk_by(|a, b| a == b) {
            if !run[0] {
                known.first.insert(at + offset, bytes[offset..offset + run.len()].to_vec());
            }
            offset += run.len();
        }
        let changed = held.iter().zip(bytes).zip(&*shown).any(|((a, b), &shown)| shown && a != b);
        if held != bytes {
            known.memory.write(at, bytes);
        }
        shown.fill(true);
        changed
    }

    /// Returns the regions.
    pub fn list(&self) -> impl Iterator<Item = Region> + '_ {
        self.by_key.iter().enumerate().map(|(number, (&key, known))| {
            let &Known { start, access, .. } = known;
            Region { number, key: Key(key), start, len: known.shown.len(), access }
        })
    }

    /// Sets the contents of every region.
    pub fn fill(&mut self, fill: impl Fn(&Region) -> Vec<u8>) {
        let regions: Vec<Region> = self.list().collect();
        for (region, known) in regions.iter().zip(self.by_key.values()) {
            known.memory.write(0, &fill(region));
        }
    }

    /// Returns the initial contents of the region with the captured key: captured addresses and
    /// bytes.
    pub fn at_first(&self, key: Key) -> Vec<(u64, Vec<u8>)> {
        let Some(known) = self.by_key.get(&key.value()) else { return Vec::new() };
        let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
        for (&offset, bytes) in &known.first {
            let address = known.start + offset as u64;
            match all.last_mut() {
                Some((start, held)) if *start + held.len() as u64 == address => {
                    held.extend_from_slice(bytes);
                }
                _ => all.push((address, bytes.clone())),
            }
        }
        all
    }

    /// Returns the contents of the region with the captured key; empty if there is none.
    pub fn image(&self, key: Key) -> Vec<u8> {
        let Some(known) = self.by_key.get(&key.value()) else { return Vec::new() };
        let mut bytes = vec![0; known.shown.len()];
        known.memory.read(0, &mut bytes);
        bytes
    }

    /// Returns true if `bytes` are at `va`; `None` if no region contains this range.
    pub fn holds(&mut self, key: Key, va: u64, bytes: &[u8]) -> Option<bool> {
        let (known, at) = self.find(key, va, bytes.len())?;
        let mut held = vec![0; bytes.len()];
        known.memory.read(at, &mut held);
        Some(held == bytes)
    }

    /// Records that a request wrote `bytes`. Returns true if they are there.
    pub fn written(&mut self, key: Key, va: u64, bytes: &[u8]) -> bool {
        let Some((known, at)) = self.find(key, va, bytes.len()) else { return bytes.is_empty() };
        let mut held = vec![0; bytes.len()];
        known.memory.read(at, &mut held);
        known.shown[at..at + bytes.len()].fill(true);
        held == bytes
    }

    fn find(&mut self, key: Key, va: u64, len: usize) -> Option<(&mut Known, usize)> {
        let known = self.by_key.get_mut(&key.value())?;
        let at = usize::try_from(va.checked_sub(known.start)?).ok()?;
        (at.checked_add(len)? <= known.shown.len()).then_some((known, at))
    }
}
