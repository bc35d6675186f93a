//! The captured responses to each request, found by PSN between the request and its next
//! retransmission.

use std::collections::BTreeMap;

use feroce_wire::{NakCode, Operation, Packet, Psn, Syndrome};

use super::lanes::{Captured, Lane};

/// The responses of a lane, by PSN.
#[derive(Debug)]
pub struct CapturedResponses<'a> {
    frames: &'a [Captured],
    by_psn: BTreeMap<u32, Vec<usize>>,
    requests: BTreeMap<u32, Vec<usize>>,
}

impl<'a> CapturedResponses<'a> {
    /// Collects the responses of `lane`.
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

    /// Returns the index of the next retransmission of `psn` after the frame `after`.
    pub fn sent_again(&self, psn: Psn, after: usize) -> Option<usize> {
        let sent = self.requests.get(&psn.value())?;
        sent.iter().copied().find(|&index| index > after)
    }

    /// Returns the responses with the PSN `psn` after the frame `after` and before the next
    /// retransmission of the request.
    fn responses(&self, psn: Psn, after: usize) -> impl Iterator<Item = Packet<'a>> + '_ {
        let until = self.sent_again(psn, after).unwrap_or(usize::MAX);
        let all = self.by_psn.get(&psn.value()).into_iter().flatten();
        let between = all.filter(move |&&index| index > after && index < until);
        between.map(|&index| self.frames[index].packet())
    }

    /// Returns the first NAK among these responses that refuses the request.
    pub fn refusal(&self, psn: Psn, after: usize) -> Option<Syndrome> {
        let mut responses = self.responses(psn, after);
        responses.find_map(|packet| match packet.ext.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Nak(NakCode::PsnSequence) | Syndrome::Ack(_)) | None => None,
            other => other,
        })
    }

    /// Returns true if the responder reported the request `psn` in frame `after` as missing.
    pub fn is_missed(&self, psn: Psn, after: usize) -> bool {
        let mut responses = self.responses(psn, after);
        let first = responses.find_map(|packet| packet.ext.aeth.map(|aeth| aeth.syndrome));
        first == Some(Syndrome::Nak(NakCode::PsnSequence))
    }

    /// Returns the payload of the first READ response with the PSN after the frame `after`.
    pub fn read_response(&self, psn: Psn, after: usize) -> Option<Vec<u8>> {
        let all = self.by_psn.get(&psn.value())?;
        let packets = all.iter().filter(|&&index| index > after).map(|&i| self.frames[i].packet());
        let mut responses =
            packets.filter(|packet| packet.info.operation == Operation::ReadResponse);
        responses.next().map(|packet| packet.payload.slices().concat())
    }

    /// Returns which of `psns` PSNs from `first` on have captured responses, as distances.
    pub fn answered(&self, first: Psn, psns: u32) -> Vec<u32> {
        const PSNS: u32 = 1 << 24;
        let first = first.value();
        let end = first + psns.min(PSNS);
        let wrapped = 0..end.saturating_sub(PSNS);
        let found = self.by_psn.range(first..end.min(PSNS)).chain(self.by_psn.range(wrapped));
        found.map(|(psn, _)| psn.wrapping_sub(first) & (PSNS - 1)).collect()
    }

    /// Returns the value in the response to an atomic with the PSN.
    pub fn atomic_value(&self, psn: Psn, after: usize) -> Option<u64> {
        let all = self.by_psn.get(&psn.value())?;
        let packets = all.iter().filter(|&&index| index > after).map(|&i| self.frames[i].packet());
        packets.filter_map(|packet| packet.ext.atomic_ack).map(|ack| ack.original).next()
    }
}
