//! What the captured responder said to each request: found by PSN, behind the request and ahead of its next repetition.

use std::collections::BTreeMap;

use feroce_wire::{NakCode, Operation, Packet, Psn, Syndrome};

use super::lanes::{Captured, Lane};

/// The answers of a lane, by PSN.
#[derive(Debug)]
pub struct Verdicts<'a> {
    frames: &'a [Captured],
    by_psn: BTreeMap<u32, Vec<usize>>,
    requests: BTreeMap<u32, Vec<usize>>,
}

impl<'a> Verdicts<'a> {
    /// Of the lane's responder.
    pub fn of(lane: &Lane, frames: &'a [Captured]) -> Self {
        let by_psn = |indices: &[usize]| {
            let mut map: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
            for &index in indices {
                map.entry(frames[index].packet().bth.psn.value()).or_default().push(index);
            }
            map
        };
        Self { frames, by_psn: by_psn(&lane.responses), requests: by_psn(&lane.requests) }
    }

    /// The request `psn` is sent again behind the frame `after`: its index.
    pub fn sent_again(&self, psn: Psn, after: usize) -> Option<usize> {
        let sent = self.requests.get(&psn.value())?;
        sent.iter().copied().find(|&index| index > after)
    }

    /// The answers with the PSN `psn` behind the frame `after`, and ahead of the request's next repetition.
    fn answers(&self, psn: Psn, after: usize) -> impl Iterator<Item = Packet<'a>> + '_ {
        let until = self.sent_again(psn, after).unwrap_or(usize::MAX);
        let all = self.by_psn.get(&psn.value()).into_iter().flatten();
        let between = all.filter(move |&&index| index > after && index < until);
        between.map(|&index| self.frames[index].packet())
    }

    /// The first negative answer of those.
    pub fn refusal(&self, psn: Psn, after: usize) -> Option<Syndrome> {
        let mut answers = self.answers(psn, after);
        answers.find_map(|packet| match packet.ext.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Nak(NakCode::PsnSequence) | Syndrome::Ack(_)) | None => None,
            other => other,
        })
    }

    /// The responder said that the request `psn`, captured as `after`, is missing: it did not get there.
    pub fn is_missed(&self, psn: Psn, after: usize) -> bool {
        let mut answers = self.answers(psn, after);
        let first = answers.find_map(|packet| packet.ext.aeth.map(|aeth| aeth.syndrome));
        first == Some(Syndrome::Nak(NakCode::PsnSequence))
    }

    /// The payload of the first READ response with the PSN, behind the frame `after`.
    pub fn read_response(&self, psn: Psn, after: usize) -> Option<Vec<u8>> {
        let all = self.by_psn.get(&psn.value())?;
        let packets = all.iter().filter(|&&index| index > after).map(|&i| self.frames[i].packet());
        let mut answers = packets.filter(|packet| packet.info.operation == Operation::ReadResponse);
        answers.next().map(|packet| packet.payload.slices().concat())
    }

    /// The value that an atomic with the PSN found.
    pub fn atomic_value(&self, psn: Psn, after: usize) -> Option<u64> {
        let all = self.by_psn.get(&psn.value())?;
        let packets = all.iter().filter(|&&index| index > after).map(|&i| self.frames[i].packet());
        packets.filter_map(|packet| packet.ext.atomic_ack).map(|ack| ack.original).next()
    }
}
