//! What happens to objects under traffic.

use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::verbs::LocalOp;

use super::super::check::Check;
use super::lane::{FILL, Lane, Outcome, WindowState};
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
            Action::Drain { pair, end } => self.drain(pair, end),
            Action::Resume { pair, end } => self.resume(pair, end),
            Action::Stay { pair, end } => self.stay(pair, end),
            Action::Break { pair, from } => self.break_queue(pair, from),
            Action::BreakReceive { pair, end } => {
                self.post_bad_receive(pair, end);
                Ok(())
            }
            Action::Recover { pair, from } => self.recover(pair, from),
            Action::Migrate { pair } => self.migrate(pair),
        }
    }

    /// Stops the send queue: requests that are not started wait.
    fn drain(&mut self, pair: usize, end: usize) -> Check {
        if self.look(pair, end)? != Some(QpState::Rts) {
            return Ok(());
        }
        self.tally.count(self.pairs[pair].kind.name(), "drained");
        self.move_to(pair, end, QpState::Sqd)
    }

    fn resume(&mut self, pair: usize, end: usize) -> Check {
        if self.look(pair, end)? != Some(QpState::Sqd) {
            return Ok(());
        }
        self.tally.count(self.pairs[pair].kind.name(), "resumed");
        self.move_to(pair, end, QpState::Rts)
    }

    /// Resumes every queue pair whose send queue is drained.
    pub fn resume_all(&mut self) -> Check {
        for pair in 0..self.pairs.len() {
            for end in 0..2 {
                self.resume(pair, end)?;
            }
        }
        Ok(())
    }

    /// Moves a queue pair to the state that it is in, where this is legal.
    fn stay(&mut self, pair: usize, end: usize) -> Check {
        match self.look(pair, end)? {
            None | Some(QpState::Rtr | QpState::Sqe) => Ok(()),
            Some(state) => self.move_to(pair, end, state),
        }
    }

    /// Posts a request that must fail, which stops the send queue of UC or UD.
    fn break_queue(&mut self, pair: usize, from: usize) -> Check {
        let can_send = matches!(self.look(pair, from)?, Some(QpState::Rts | QpState::Sqd));
        let owner = &self.pairs[pair];
        let is_broken = owner.lanes[from].as_ref().is_none_or(|lane| lane.broken_before.is_some());
        if owner.kind.is_reliable() || is_broken || !can_send {
            return Ok(());
        }
        self.post_broken(pair, from).map(drop)
    }

    /// Moves a queue pair from SQE to RTS. All flushed requests have completed.
    fn recover(&mut self, pair: usize, from: usize) -> Check {
        if self.look(pair, from)? != Some(QpState::Sqe) {
            return Ok(());
        }
        let lane = self.pairs[pair].lanes[from].as_mut().expect("a request has failed");
        if lane.resolved < lane.posted() || lane.broken_before.is_some() || !lane.is_stopped {
            return Err(format!("pair {pair}, end {from}: not flushed in SQE: {lane:?}"));
        }
        (lane.failed, lane.is_stopped) = (false, false);
        self.tally.count(self.pairs[pair].kind.name(), "left SQE");
        let (state, current_state) = (Some(QpState::Rts), Some(QpState::Sqe));
        self.modify(pair, from, &QpAttributes { state, current_state, ..QpAttributes::default() })
    }

    fn kill(&mut self, pair: usize, end: usize) -> Check {
        self.move_to(pair, end, QpState::Err)?;
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
        // A queue pair that was just resumed sends before the state changes.
        self.run_devices()?;
        self.check_frames()?;
        self.observe()?;
        self.rig.wire.clear();
        self.has_lost_frames = true;
        for end in 0..2 {
            self.move_to(pair, end, QpState::Reset)?;
            self.take_receives_along(pair, end);
        }
        (0..2).try_for_each(|end| self.walk(pair, end))?;
        self.connect(pair);
        let owner = &mut self.pairs[pair];
        for lane in owner.lanes.iter_mut().flatten() {
            drop_open(lane);
            lane.next_arrival = lane.posted();
        }
        (owner.dead, owner.may_break) = ([false; 2], [false; 2]);
        for from in 0..2 {
            // A window stays bound to the number of its queue pair.
            let Some(lane) = self.pairs[pair].lanes[from].as_mut() else { continue };
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
                inbox.bad = None;
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
    (lane.broken_before, lane.is_stopped) = (None, false);
}
