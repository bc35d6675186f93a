//! Finds the copies in a capture that has each packet twice, as captures on several interfaces and
//! of mirrored ports have.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lanes::Captured;

/// A copy follows its original within this time. A retransmission is later.
const LONGEST_DELAY: Duration = Duration::from_micros(100);

/// Returns the packets without copies, and the number of copies. Without a copy of at least 9 of 10
/// packets, equal packets are retransmissions, and all are returned.
pub fn without_copies(frames: Vec<Captured>) -> (Vec<Captured>, usize) {
    let mut originals: BTreeMap<&[u8], Duration> = BTreeMap::new();
    let mut is_copy = Vec::with_capacity(frames.len());
    for frame in &frames {
        // Each original has one copy.
        let original = originals.remove(&*frame.bytes);
        let copy = original.is_some_and(|at| frame.at.saturating_sub(at) <= LONGEST_DELAY);
        if !copy {
            originals.insert(&frame.bytes, frame.at);
        }
        is_copy.push(copy);
    }
    let copies = is_copy.iter().filter(|&&copy| copy).count();
    if copies * 20 < frames.len() * 9 {
        return (frames, 0);
    }
    let kept = frames.into_iter().zip(is_copy).filter(|(_, copy)| !copy).map(|(frame, _)| frame);
    (kept.collect(), copies)
}
