//! Checks of the state after a scenario: every request has completed, and the memory holds what the
//! executed requests wrote.

use super::check::Check;
use super::layout::Range;
use super::model::Model;
use super::request::Op;

impl Model {
    /// Checks, after both ends became idle, that every posted request has completed.
    pub fn check_quiet(&mut self) -> Check {
        for pair in 0..self.sides.len() {
            for end in 0..2 {
                let what = format!("pair {pair}, end {end}");
                let side = &self.sides[pair][end];
                let open = side.resolved..side.posted.len();
                let signaled = |&index: &usize| {
                    self.options.all_signaled || side.workload.requests[index].signaled
                };
                if side.is_dead() && side.receives_resolved < side.receives_posted.len() {
                    return Err(format!("{what}: in ERR, and not all receives are flushed"));
                }
                if !side.is_dead() && self.may_hang(pair, end) {
                    continue;
                }
                if let Some(index) = open.clone().find(signaled) {
                    return Err(format!("{what}: request {index} never completes"));
                }
                // The remaining requests are unsignaled and successful.
                self.imply(pair, end, open.end)?;
            }
        }
        Ok(())
    }

    /// Checks the memory: the peer of a working QP has executed all requests, the peer of a QP in
    /// ERR the first requests in order and none after them.
    pub fn check_memory(&mut self) -> Check {
        for pair in 0..self.sides.len() {
            for end in 0..2 {
                self.check_targets(pair, end)?;
                self.check_read_destinations(pair, end)?;
                self.check_word(pair, end)?;
            }
        }
        for end in 0..2 {
            self.check_sums(end)?;
        }
        self.memory.check_all()
    }

    /// Checks what requests without a known outcome left in the peer's memory: the first ones
    /// completely, then at most one partly, and nothing of the requests after that.
    fn check_targets(&mut self, pair: usize, end: usize) -> Check {
        let mut stopped = false;
        let side = &self.sides[pair][end];
        for index in side.executed..side.posted.len() {
            let fails = self.must_fail(pair, end, index).is_some();
            let Some((ranges, bytes)) = self.target(pair, end, index) else {
                stopped |= fails;
                continue;
            };
            let mtu = self.options.mtu_bytes();
            let what = || format!("pair {pair}, end {end}, request {index}, at the peer");
            let (least, most) = self.memory.arrived_bytes(&ranges, &bytes, mtu, what)?;
            if least > 0 && stopped {
                return Err(format!("{}: arrived although an earlier request did not", what()));
            }
            stopped |= fails || most < bytes.len();
        }
        Ok(())
    }

    /// Returns where the bytes of a request go at the peer, and how many of them may arrive.
    fn target(&self, pair: usize, end: usize, index: usize) -> Option<(Vec<Range>, Vec<u8>)> {
        let request = self.request(pair, end, index);
        if request.op.is_write() {
            let range = request.remote_range(1 - end)?;
            return Some((vec![range], request.payload.clone()));
        }
        if !request.op.is_send() || request.flaw.is_some_and(|flaw| flaw.is_local()) {
            return None;
        }
        let number = self.sides[pair][end].receive_of(index)?;
        let peer = &self.sides[pair][1 - end];
        let open = number >= peer.received && number < peer.receives_posted.len();
        let receive =
            peer.workload.receives.get(number).filter(|receive| open && !receive.wrong_key)?;
        let most = self.must_fail(pair, end, index).map_or(request.payload.len(), |(_, most)| most);
        Some((receive.local.clone(), request.payload[..most].to_vec()))
    }

    /// Checks that a READ without success stored whole packets only: the first ones, or any of them
    /// with selective repeat. On a QP that waits forever,
    /// unsignaled atomics may also have finished; with selective repeat, any atomic behind one that
    /// did not.
    fn check_read_destinations(&mut self, pair: usize, end: usize) -> Check {
        let side = &self.sides[pair][end];
        for index in side.succeeded..side.posted.len() {
            let request = self.request(pair, end, index);
            let selective = self.options.repeats_selectively();
            let unresolved = index >= self.sides[pair][end].resolved;
            let silent = (unresolved || selective) && request.op.is_atomic();
            if request.flaw.is_some() || !(request.op == Op::Read || silent) {
                continue;
            }
            let (local, payload) = (request.local.clone(), request.payload.clone());
            if request.shared_word {
                self.memory.atomic_result(&local);
                continue;
            }
            let what = || format!("pair {pair}, end {end}, request {index}, local memory");
            let mtu = self.options.mtu_bytes();
            match selective {
                true => self.memory.arrived_packets(&local, &payload, mtu, what)?,
                false => {
                    self.memory.arrived_bytes(&local, &payload, mtu, what)?;
                }
            }
        }
        Ok(())
    }

    /// Checks the word that only this QP's atomics change: each atomic was executed once and in
    /// order.
    fn check_word(&mut self, pair: usize, end: usize) -> Check {
        let side = &self.sides[pair][end];
        let atomics = |until: usize| {
            let requests = &side.workload.requests[..until];
            let word_atomics =
                requests.iter().filter(|r| r.op.is_atomic() && !r.shared_word && r.flaw.is_none());
            word_atomics.count()
        };
        let (least, most) = (atomics(side.executed), atomics(side.posted.len()));
        let Some(word) = side.workload.word else { return Ok(()) };
        let possible = side.workload.word_values[least..=most].to_vec();
        let is = self.memory.word(word);
        match possible.contains(&is) {
            true => Ok(()),
            false => Err(format!(
                "pair {pair}, end {end}: after {least} to {most} atomics the word is {is:#x}, \\
                 not one of {possible:x?}"
            )),
        }
    }

    /// Checks the word that all QPs add to. Each addition sets a bit of its own: the word shows
    /// which additions were executed, and the returned values show their order.
    fn check_sums(&mut self, end: usize) -> Check {
        let Some(word) = self.shared_words[end] else { return Ok(()) };
        let (mut done, mut posted) = (0, 0);
        for side in self.sides.iter().map(|pair| &pair[1 - end]) {
            for index in 0..side.posted.len() {
                let request = &side.workload.requests[index];
                if let (true, Op::FetchAdd(bit)) = (request.shared_word, request.op) {
                    posted |= bit;
                    done |= if index < side.executed { bit } else { 0 };
                }
            }
        }
        let is = self.memory.word(word);
        if is & done != done || is & !posted != 0 {
            return Err(format!(
                "end {end}: the shared word is {is:#x}, with {done:#x} done of {posted:#x}"
            ));
        }
        self.shared_adds[end].sort_by_key(|(before, _)| before.count_ones());
        let mut at_least = 0;
        for &(before, added) in &self.shared_adds[end] {
            if before & at_least != at_least {
                return Err(format!(
                    "end {end}: {added:#x} was added to {before:#x}, after {at_least:#x}"
                ));
            }
            at_least = before | added;
        }
        match is & at_least == at_least {
            true => Ok(()),
            false => Err(format!("end {end}: the shared word lost some of {at_least:#x}: {is:#x}")),
        }
    }
}
