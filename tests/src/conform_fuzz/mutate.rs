//! Changes a capture packet by packet, as a network, an endpoint or a faulty card would.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::Head;

/// Length of a pcap file header, in bytes.
const FILE: usize = 24;
/// Length of a pcap record header, in bytes.
const RECORD: usize = 16;
/// Magic numbers of little-endian files, with microseconds and with nanoseconds.
const MAGICS: [[u8; 4]; 2] = [[0xd4, 0xc3, 0xb2, 0xa1], [0x4d, 0x3c, 0xb2, 0xa1]];

#[derive(Clone)]
struct Record {
    head: [u8; RECORD],
    bytes: Vec<u8>,
}

/// Changes the input in the first `size` bytes of `data`. Returns the new length, at most `most`,
/// or `None` if the input has no packets or the result is too long.
pub fn mutate(data: &mut [u8], size: usize, most: usize, seed: u32) -> Option<usize> {
    let (head, capture) = data.get(..size)?.split_at_checked(Head::LEN + FILE)?;
    if !MAGICS.iter().any(|magic| head[Head::LEN..].starts_with(magic)) {
        return None;
    }
    let mut records = records(capture);
    if records.is_empty() {
        return None;
    }
    let mut random = Xoshiro256StarStar::seed_from_u64(seed.into());
    for _ in 0..=below(&mut random, 3) {
        change(&mut records, &mut random);
    }
    let written: Vec<u8> =
        records.into_iter().flat_map(|record| [&record.head[..], &record.bytes].concat()).collect();
    let len = Head::LEN + FILE + written.len();
    if len > most {
        return None;
    }
    data.get_mut(Head::LEN + FILE..len)?.copy_from_slice(&written);
    Some(len)
}

/// Returns the complete records of `bytes`.
fn records(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some((&head, rest)) = bytes.split_first_chunk::<RECORD>() {
        let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        let Some((frame, rest)) = rest.split_at_checked(len as usize) else { break };
        records.push(Record { head, bytes: frame.to_vec() });
        bytes = rest;
    }
    records
}

fn below(random: &mut Xoshiro256StarStar, limit: usize) -> usize {
    usize::try_from(random.next_u64() % limit.max(1) as u64).expect("below the limit")
}

fn change(records: &mut Vec<Record>, random: &mut Xoshiro256StarStar) {
    let at = below(random, records.len());
    let other = below(random, records.len());
    let step = 1_u32 << below(random, 24);
    let step = if random.next_u64() & 1 == 0 { step } else { step.wrapping_neg() };
    #[allow(clippy::cast_possible_truncation)] // Any byte.
    let byte = random.next_u64() as u8;
    let several = records.len() > 1;
    let record = &mut records[at];
    match below(random, 12) {
        0 if several => drop(records.remove(at)),
        1 => {
            let copy = record.clone();
            records.insert(other, copy);
        }
        2 => records.swap(at, other),
        3 => record.change_psn(step),
        4 => {
            let qpn = record.qpn();
            let same = |later: &&mut Record| later.qpn() == qpn;
            records[at..].iter_mut().filter(same).for_each(|later| later.change_psn(step));
        }
        5 => record.put(0, byte),
        6 => record.put(below(random, 12), byte),
        7 => record.put(12 + below(random, 28), byte),
        8 => records[at..].iter_mut().for_each(|later| later.delay(step)),
        9 => record.resize(usize::from(byte)),
        10 => record.mark(byte),
        11 => record
            .put(12, [0, 0x1f, 0x20, 0x3f, 0x60, 0x61, 0x62, 0x63, 0x64][usize::from(byte) % 9]),
        _ => {}
    }
}

impl Record {
    /// Returns the offset of the BTH, after Ethernet, IP and UDP.
    fn bth(&self) -> usize {
        match self.bytes.get(12..14) {
            Some([0x86, 0xdd]) => 14 + 40 + 8,
            _ => 14 + 20 + 8,
        }
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.get(self.bth() + at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    }

    fn qpn(&self) -> Option<u32> {
        self.word(4).map(|word| word & 0x00ff_ffff)
    }

    fn put(&mut self, at: usize, byte: u8) {
        let at = self.bth() + at;
        if let Some(place) = self.bytes.get_mut(at) {
            *place = byte;
        }
    }

    fn change_psn(&mut self, step: u32) {
        let Some(word) = self.word(8) else { return };
        let psn = word.wrapping_add(step) & 0x00ff_ffff;
        let at = self.bth() + 8;
        self.bytes[at..at + 4].copy_from_slice(&(word & 0xff00_0000 | psn).to_be_bytes());
    }

    /// Moves the timestamp by `step` microseconds.
    fn delay(&mut self, step: u32) {
        let word = |at| u32::from_le_bytes(*self.head[at..].first_chunk().expect("two words"));
        let (seconds, micros) = (word(0), word(4).wrapping_add(step) % 1_000_000);
        let carry = if word(4).checked_add(step).is_none_or(|sum| sum < 1_000_000) { 0 } else { 1 };
        self.head[..4].copy_from_slice(&seconds.wrapping_add(carry).to_le_bytes());
        self.head[4..8].copy_from_slice(&micros.to_le_bytes());
    }

    /// Lengthens or shortens the payload.
    fn resize(&mut self, count: usize) {
        let Some(icrc) = self.bytes.len().checked_sub(4) else { return };
        if count < 128 {
            let from = icrc.saturating_sub(count).max(self.bth() + 12).min(icrc);
            self.bytes.drain(from..icrc);
        } else {
            self.bytes.splice(icrc..icrc, std::iter::repeat_n(0x5a, count - 127));
        }
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        self.head[8..12].copy_from_slice(&len);
        self.head[12..].copy_from_slice(&len);
    }

    /// Changes the ECN codepoint or the traffic class.
    fn mark(&mut self, byte: u8) {
        if let Some(class) = self.bytes.get_mut(15) {
            *class = if byte < 128 { *class ^ (byte & 3) } else { byte };
        }
    }
}
