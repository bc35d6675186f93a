//! Checks whether a request may complete with an error.

use feroce_engine::time::Instant;
use feroce_engine::verbs::Status;

use super::check::Check;
use super::model::{Model, Refused};
use super::request::{Failure, NOT_INVALIDATED, Op, PeerReport};

impl Model {
    /// Checks that request `index` may complete with `status`, which is neither success nor flush.
    pub fn check_failure(
        &mut self,
        pair: usize,
        end: usize,
        index: usize,
        status: Status,
    ) -> Check {
        match status {
            Status::RetryExceeded => return self.check_retries(pair, end, index),
            Status::RnrRetryExceeded => return self.check_rnr_retries(pair, end, index),
            // A QP that a request of its own has moved to ERR says so to its peer.
            Status::RemoteOperational if self.sides[pair][1 - end].has_own_failure => return Ok(()),
            _ => {}
        }
        let side = &self.sides[pair][end];
        let receive =
            side.receive_of(index).and_then(|n| self.sides[pair][1 - end].workload.receives.get(n));
        let risks = [side.workload.requests[index].risk, receive.and_then(|receive| receive.risk)];
        let deregistered =
            risks.iter().flatten().filter(|risk| self.memory.is_deregistered(risk.end, risk.area));
        let must = self.must_fail(pair, end, index).map(|(failure, _)| failure);
        let possible: Vec<Failure> =
            must.into_iter().chain(deregistered.flat_map(|risk| risk.failures).copied()).collect();
        let seen = |failure: &Failure| {
            let fits = |refused: Refused| {
                refused.report == failure.peer && refused.index.is_none_or(|at| at == index)
            };
            failure.peer == PeerReport::Nothing || side.refused.is_some_and(fits)
        };
        match possible.iter().any(|failure| failure.requester == status && seen(failure)) {
            true => Ok(()),
            false => {
                Err(format!("possible failures: {possible:?}, the peer saw {:?}", side.refused))
            }
        }
    }

    /// Retries may run out only if the peer is in ERR, if enough frames were lost or delayed, or if
    /// the timeout is too short.
    fn check_retries(&self, pair: usize, end: usize, index: usize) -> Check {
        let side = &self.sides[pair][end];
        if self.options.may_time_out_early(end) {
            return Ok(());
        }
        let peer = &self.sides[pair][1 - end];
        if peer.has_own_failure && !peer.killed && self.faults_over_time.is_empty() {
            return Err("the peer failed and did not report it, and no frame was lost".to_owned());
        }
        if peer.is_dead() {
            // Without faults, a peer that refused a request has reported the refusal. Only a key
            // that cannot be invalidated is not reported.
            let is_reported = |refused: Refused| {
                let is_silent = refused.report == NOT_INVALIDATED.peer;
                !(is_silent && refused.index.is_none_or(|refused| refused == index))
            };
            let is_reported = side.refused.is_some_and(is_reported);
            return match is_reported && self.faults_over_time.is_empty() {
                true => Err("the peer refused a request, and no frame was lost".to_owned()),
                false => Ok(()),
            };
        }
        let limits = &self.options.limits[end];
        // A frame that was delayed shortly before may still be in flight.
        let posted = side.posted[index].as_nanos();
        let delay = u64::try_from(self.options.max_one_way_delay().as_nanos()).expect("short");
        let faulted = self.faulted_since(Instant::from_nanos(posted.saturating_sub(delay)));
        // One lost frame may cost two retries: the timeout runs out while the NAK is in flight.
        if 2 * faulted <= u64::from(limits.retry_cnt) {
            return Err(format!(
                "only {faulted} frames had a fault, but {} retries ran out",
                limits.retry_cnt
            ));
        }
        let Some(timeout) = limits.ack_timeout() else { return Ok(()) };
        let wait = timeout + 2 * self.options.max_one_way_delay();
        match self.faults_ended {
            Some(faults_ended) if self.now > faults_ended + wait => {
                Err("the faults ended longer than a timeout ago".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// RNR retries may run out only while the receive is missing, after the configured number of
    /// waits.
    fn check_rnr_retries(&self, pair: usize, end: usize, index: usize) -> Check {
        let side = &self.sides[pair][end];
        let retries = self.options.limits[end].rnr_retry;
        let Some(receive) = side.receive_of(index) else {
            return Err("consumes no receive".to_owned());
        };
        if retries == 7 {
            return Err("RNR retries are unlimited".to_owned());
        }
        let delay = match self.options.is_faultless() {
            true => self.options.delay,
            false => self.options.max_one_way_delay(),
        };
        let posted = self.sides[pair][1 - end].receives_posted.get(receive);
        // The NAK follows the responses to earlier READs, which rate control holds up. Then only
        // the order in which request and receive were posted counts.
        let follows_read =
            side.workload.requests[..index].iter().any(|request| request.op == Op::Read);
        let is_held_up = self.options.rig.congestion && follows_read;
        let may_be_late = |posted| is_held_up && posted > side.posted[index];
        let in_time = |&&posted: &&Instant| self.now > posted + delay && !may_be_late(posted);
        if let Some(posted) = posted.filter(in_time) {
            return Err(format!("its receive was posted at {posted:?}"));
        }
        let waits = self.options.limits[1 - end].rnr_time() * u32::from(retries);
        if self.now < side.posted[index] + waits {
            return Err(format!("earlier than {retries} RNR waits"));
        }
        Ok(())
    }

    /// Returns true if the QP may wait forever: it has no timeout, and a frame was lost or the peer
    /// is in ERR.
    pub fn may_hang(&self, pair: usize, end: usize) -> bool {
        self.options.limits[end].timeout == 0
            && (!self.faults_over_time.is_empty() || self.sides[pair][1 - end].is_dead())
    }

    /// Returns true if there were no faults, no QP is in ERR, and all timeouts are long enough.
    pub fn is_undisturbed(&self) -> bool {
        let dead = self.sides.iter().flatten().any(|side| side.is_dead());
        let early_timeout = (0..2).any(|end| self.options.may_time_out_early(end));
        self.faults_over_time.is_empty() && !dead && !early_timeout
    }
}
