//! What happens to objects under traffic.

use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::verbs::LocalOp;

use super::super::check::Check;
use super::super::options::random_psn;
use super::lane::{FILL, Lane, Outcome, WindowState};
use super::objects::connect;
use super::plan::Action;
use super::world::World;
use feroce_engine::memory::Access;

impl World<'_> {
    /// Does something to an object, unless it is gone.
    pub fn act(&mut self, action: Action) -> Check {
        if !matches!(action, Action::Resize { .. }) {
            self.observe()?; // Later completions may be a result of the action.
        }
        self.trace.note(self.rig.now, || format!("{action:?}"));
        match action {
            Action::Kill { pair, end } => self.kill(pair, end),
            Action::Destroy { pair, end } => self.destroy(pair, end),
            Action::Renew { pair } => self.renew(pair),
            Action::Resize { end, depth } => {
                self.tally.count("CQ", "resized");
                self.cqs[end].resize(depth).map_err(|error| format!("resize: {error}"))
            }
            Action::Deregister { pair, from } => self.deregister(pair, from),
            Action::CloseWindow { pair, from } => self.close_window(pair, from),
        }
    }

    fn modify(&mut self, pair: usize, end: usize, state: QpState) -> Check {
        let Some(qp) = &mut self.pairs[pair].qps[end] else { return Ok(()) };
        let attributes = QpAttributes { state: Some(state), ..QpAttributes::default() };
        qp.modify(&attributes).map_err(|error| format!("pair {pair}, end {end}: {error}"))
    }

    fn kill(&mut self, pair: usize, end: usize) -> Check {
        self.modify(pair, end, QpState::Err)?;
        self.pairs[pair].dead[end] = true;
        self.tally.count(self.pairs[pair].kind.name(), "moved to ERR");
        Ok(())
    }

    fn destroy(&mut self, pair: usize, end: usize) -> Check {
        let owner = &mut self.pairs[pair];
        owner.qps[end] = None;
        owner.lanes[end].iter_mut().for_each(drop_open);
        self.ending = Some((end, owner.qpns[end]));
        self.observe()?;
        self.ending = None;
        self.take_receives_along(pair, end);
        self.tally.count(self.pairs[pair].kind.name(), "destroyed");
        Ok(())
    }

    /// Moves both queue pairs to RESET and connects them again. Frames of the old connection do not
    /// arrive any more, as after the time that a program has to wait.
    fn renew(&mut self, pair: usize) -> Check {
        if (0..2).any(|end| self.pairs[pair].is_gone(end)) {
            return Ok(());
        }
        self.rig.wire.clear();
        self.has_cleared_wire = true;
        for end in 0..2 {
            self.modify(pair, end, QpState::Reset)?;
            self.take_receives_along(pair, end);
        }
        let psns = [0, 1].map(|_| random_psn(&mut self.random));
        let owner = &mut self.pairs[pair];
        for lane in owner.lanes.iter_mut().flatten() {
            drop_open(lane);
            lane.next_arrival = lane.posted();
        }
        let mut qps = owner.qps.each_mut().map(|qp| qp.take().expect("neither is gone"));
        connect(&mut qps, psns, &self.plan);
        owner.qps = qps.map(Some);
        (owner.dead, owner.may_break) = ([false; 2], [false; 2]);
        for from in 0..2 {
            // A window stays bound to the number of its queue pair.
            let lane = self.pairs[pair].lanes[from].as_mut().expect("a connected service");
            if let Some(window) = &mut lane.window
                && matches!(window.state, WindowState::Opening | WindowState::Closing)
            {
                window.state = WindowState::Unknown;
            }
            if lane.may_be_refused() {
                self.pairs[pair].may_break[1 - from] = true;
            }
        }
        let inboxes = self.pairs[pair].inboxes.concat();
        inboxes.into_iter().for_each(|inbox| self.post_receives(inbox));
        self.tally.count(self.pairs[pair].kind.name(), "connected again");
        Ok(())
    }

    /// The receives of a queue pair that is reset or destroyed do not complete. Of a shared queue,
    /// it may take one along, or two (XRC).
    fn take_receives_along(&mut self, pair: usize, end: usize) {
        for &number in &self.pairs[pair].inboxes[end] {
            let inbox = &mut self.inboxes[number];
            if inbox.is_shared() {
                inbox.depth += 1;
                self.reposts.push_back((self.rig.now, number));
            } else {
                inbox.free.extend(inbox.posted.drain(..));
                inbox.buffer.write(0, &vec![FILL; usize_of(inbox.buffer.region().len())]);
            }
        }
    }

    fn deregister(&mut self, pair: usize, from: usize) -> Check {
        let owner = &mut self.pairs[pair];
        let Some(lane) = &mut owner.lanes[from] else { return Ok(()) };
        if lane.window.is_some() {
            return Ok(()); // A region with a bound window cannot be deregistered.
        }
        let Some(target) = lane.target.take() else { return Ok(()) };
        let len = usize_of(target.region().len());
        drop(target);
        owner.may_break[1 - from] = true;
        let grave = self.pds[1 - from].alloc_buffer(len, Access::ALL).expect("room");
        grave.write(0, &vec![FILL; len]);
        self.graves.push(grave);
        self.tally.count(self.pairs[pair].kind.name(), "region deregistered");
        Ok(())
    }

    fn close_window(&mut self, pair: usize, from: usize) -> Check {
        let owner = &mut self.pairs[pair];
        let Some(window) = owner.lanes[from].as_mut().and_then(|lane| lane.window.as_mut()) else {
            return Ok(());
        };
        if window.state != WindowState::Open || owner.qps[1 - from].is_none() {
            return Ok(());
        }
        window.state = WindowState::Closing;
        let key = window.key;
        owner.may_break[1 - from] = true;
        self.post_local(pair, from, LocalOp::Invalidate(key))
    }
}

fn usize_of(len: u64) -> usize {
    usize::try_from(len).expect("small")
}

/// Requests that are not complete never will be.
fn drop_open(lane: &mut Lane) {
    let open = lane.outcomes.iter_mut().filter(|outcome| **outcome == Outcome::Open);
    open.for_each(|outcome| *outcome = Outcome::Dropped);
    (lane.resolved, lane.failed) = (lane.posted(), false);
}
