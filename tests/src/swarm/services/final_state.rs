//! What must hold when nothing happens any more.

use super::super::check::Check;
use super::lane::{FILL, Lane, Outcome};
use super::plan::Kind;
use super::world::World;

impl World<'_> {
    /// Checks that nothing is left open.
    pub fn check_quiet(&mut self) -> Check {
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            let is_healthy = pair.is_healthy();
            for (from, lane) in pair.lanes.iter_mut().enumerate() {
                let Some(lane) = lane else { continue };
                if pair.qps[from].is_none() {
                    continue;
                }
                check_lane(lane, is_healthy)
                    .map_err(|why| format!("pair {number}, end {from}: {why}"))?;
                if !lane.kind.is_reliable() && is_healthy {
                    let name = lane.kind.name();
                    lost(lane).into_iter().for_each(|event| self.tally.count(name, event));
                }
            }
        }
        self.check_flushed()
    }

    /// The receives of a queue pair in ERR are all flushed.
    fn check_flushed(&self) -> Check {
        for (number, pair) in self.pairs.iter().enumerate() {
            for end in 0..2 {
                for &inbox in &pair.inboxes[end] {
                    let inbox = &self.inboxes[inbox];
                    let must_be_empty = pair.dead[end] && !pair.is_gone(end) && !inbox.is_shared();
                    if must_be_empty && !inbox.posted.is_empty() {
                        let left = &inbox.posted;
                        return Err(format!("pair {number}, end {end}: not flushed: {left:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks everything at the end of the scenario.
    pub fn check_end(&mut self) -> Check {
        self.check_quiet()?;
        for (number, pair) in self.pairs.iter().enumerate() {
            for (from, lane) in pair.lanes.iter().enumerate() {
                let Some(lane) = lane else { continue };
                lane.check_memory().map_err(|why| format!("pair {number}, end {from}: {why}"))?;
            }
        }
        for grave in &self.graves {
            let mut bytes = vec![0; usize::try_from(grave.region().len()).expect("small")];
            grave.read(0, &mut bytes);
            if bytes.iter().any(|&byte| byte != FILL) {
                return Err("a request wrote to memory after its region was deregistered".into());
            }
        }
        Ok(())
    }
}

/// `is_healthy`: nothing has happened to the queue pairs, so that nothing may have failed.
fn check_lane(lane: &mut Lane, is_healthy: bool) -> Check {
    if lane.broken_before.is_some() {
        return Err("the request with a wrong key is not complete".into());
    }
    let unsignaled = |index: &usize| !lane.plan.messages[*index].signaled && !lane.failed;
    let open: Vec<usize> = (lane.resolved..lane.posted()).collect();
    if let Some(index) = open.iter().find(|index| !unsignaled(index)) {
        return Err(format!("request {index} is not complete"));
    }
    // Unsignaled requests at the end of the queue. Where something may have failed, or nothing is
    // acknowledged, nobody knows what became of them.
    let is_known = lane.kind.is_reliable() && is_healthy;
    for index in open {
        lane.outcomes[index] = if is_known { Outcome::Succeeded } else { Outcome::Dropped };
        if is_known {
            lane.check_moved(index)?;
            if lane.plan.messages[index].op.consumes_receive() && lane.arrivals[index] != 1 {
                return Err(format!("message {index} has not arrived"));
            }
        }
    }
    lane.resolved = lane.posted();
    Ok(())
}

fn lost(lane: &Lane) -> Option<&'static str> {
    let is_lost = |index: &usize| {
        let message = &lane.plan.messages[*index];
        let was_sent = lane.outcomes[*index] != Outcome::Failed && !message.wrong_qkey;
        message.op.consumes_receive() && lane.arrivals[*index] == 0 && was_sent
    };
    let is_lost = (0..lane.posted()).any(|index| is_lost(&index));
    (is_lost && matches!(lane.kind, Kind::Uc | Kind::Ud)).then_some("lost")
}
