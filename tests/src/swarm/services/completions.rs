//! What completions may say.

use feroce_engine::time::Duration;
use feroce_engine::verbs::{Completion, CompletionOpcode, Extra, GRH_LEN, Status};

use super::super::check::Check;
use super::lane::{FILL, Lane, Outcome, WindowState};
use super::objects::SLOT;
use super::plan::{Kind, Op};
use super::posts::{BROKEN, LOCAL, RECEIVE, unpack};
use super::world::World;

impl World<'_> {
    /// Checks a completion of `end`.
    pub fn on_completion(&mut self, end: usize, done: &Completion) -> Check {
        if self.ending == Some((end, done.qp)) {
            return Ok(());
        }
        let pair = self.pair_of(end, done.qp)?;
        if done.wr_id & RECEIVE != 0 {
            return self.on_receive(pair, end, done);
        }
        let (lane, index) = unpack(done.wr_id);
        if lane / 2 != pair {
            return Err("another queue pair posted it".into());
        }
        match done.wr_id & (LOCAL | BROKEN) {
            LOCAL => self.on_local(pair, lane % 2, done),
            _ if lane % 2 != end => Err("the peer posted it".into()),
            BROKEN => self.on_broken(pair, end, done),
            _ => self.on_sent(pair, end, index, done),
        }
    }

    /// A request with a wrong key, of UC or UD. It fails, or an earlier one did.
    fn on_broken(&mut self, pair: usize, from: usize, done: &Completion) -> Check {
        let owner = &mut self.pairs[pair];
        let may_flush = owner.dead[from] || owner.may_break[from];
        let lane = owner.lanes[from].as_mut().expect("it was posted");
        let before = lane.broken_before.take().ok_or("completed twice")?;
        match done.status {
            Status::LocalProtection if !lane.failed => {
                for earlier in lane.resolved..before {
                    if lane.plan.messages[earlier].signaled {
                        return Err(format!("request {earlier} has no completion"));
                    }
                    succeed(lane, earlier)?;
                }
                lane.resolved = lane.resolved.max(before);
                (lane.failed, lane.is_stopped) = (true, true);
            }
            Status::WorkRequestFlushed if may_flush || lane.failed => {}
            _ => return Err("it must fail".into()),
        }
        self.tally.count(lane.kind.name(), done.status.text());
        Ok(())
    }

    /// A bind or an invalidate of the window of the lane from `from`.
    fn on_local(&mut self, pair: usize, from: usize, done: &Completion) -> Check {
        let owner = &mut self.pairs[pair];
        let may_flush = owner.dead[1 - from] || owner.may_break[1 - from];
        let lane = owner.lanes[from].as_mut().expect("a lane with a window");
        let window = lane.window.as_mut().expect("it was posted for a window");
        let is_done = match done.status {
            Status::Success => true,
            Status::WorkRequestFlushed if may_flush => false,
            _ => return Err("it must succeed".into()),
        };
        let (next, opcode, what) = match window.state {
            WindowState::Opening => {
                (WindowState::Open, CompletionOpcode::BindWindow, "window opened")
            }
            WindowState::Closing => {
                (WindowState::Closed, CompletionOpcode::LocalInvalidate, "window closed")
            }
            WindowState::Open | WindowState::Closed | WindowState::Unknown => {
                return Err("completed twice".into());
            }
        };
        if is_done && done.opcode != opcode {
            return Err(format!("expected {opcode:?}"));
        }
        window.state = if is_done { next } else { WindowState::Closed };
        if is_done {
            self.tally.count("RC", what);
        }
        Ok(())
    }

    fn on_sent(&mut self, pair: usize, from: usize, index: usize, done: &Completion) -> Check {
        let has_faults = self.has_faults();
        let owner = &mut self.pairs[pair];
        let (dead, may_break) = (owner.dead, owner.may_break);
        let peer_is_gone = owner.is_gone(1 - from);
        let lane = owner.lanes[from].as_mut().ok_or("this end sends nothing")?;
        if index < lane.resolved || index >= lane.posted() {
            return Err(format!("completed again, or before it was posted: {}", lane.resolved));
        }
        if lane.broken_before.is_some_and(|broken| index >= broken) {
            return Err("the request before it is not complete".into());
        }
        for earlier in lane.resolved..index {
            if lane.plan.messages[earlier].signaled || lane.failed {
                return Err(format!("request {earlier} has no completion"));
            }
            succeed(lane, earlier)?;
        }
        lane.resolved = index + 1;
        if done.status == Status::Success {
            if lane.failed || !lane.plan.messages[index].signaled {
                return Err("nothing may succeed after an error, or unsignaled".into());
            }
            let event = format!("{}: completed", lane.plan.messages[index].op.name());
            self.tally.count(lane.kind.name(), &event);
            return succeed(lane, index);
        }
        let to = 1 - from;
        let peer_fails = dead[to] || peer_is_gone || may_break[to];
        let is_allowed = match done.status {
            Status::WorkRequestFlushed => lane.failed || dead[from] || may_break[from],
            _ if lane.failed || !lane.kind.is_reliable() => false,
            Status::RetryExceeded => peer_fails || has_faults,
            Status::RemoteOperational => peer_fails,
            Status::RemoteAccess => lane.may_be_refused(),
            _ => false,
        };
        if !is_allowed {
            return Err(format!("nothing explains this error: {dead:?} {may_break:?}"));
        }
        (lane.outcomes[index], lane.failed) = (Outcome::Failed, true);
        // A READ that is repeated after a loss may be refused without an end of the connection.
        let ends_peer =
            done.status == Status::RemoteAccess && lane.plan.messages[index].op != Op::Read;
        self.tally.count(lane.kind.name(), done.status.text());
        if lane.is_stopped {
            return Ok(()); // Only the send queue has stopped.
        }
        owner.dead[from] = true;
        owner.dead[to] |= ends_peer;
        Ok(())
    }

    fn on_receive(&mut self, pair: usize, end: usize, done: &Completion) -> Check {
        let (number, slot) = unpack(done.wr_id);
        if !self.pairs[pair].inboxes[end].contains(&number) {
            return Err("another queue pair has this receive".into());
        }
        let inbox = &mut self.inboxes[number];
        let at = inbox.posted.iter().position(|&posted| posted == slot);
        let Some(at) = at.filter(|&at| at == 0 || inbox.is_shared()) else {
            return Err(format!("not the oldest receive: {:?}", inbox.posted));
        };
        inbox.posted.remove(at);
        inbox.free.push(slot);
        let is_bad = inbox.bad.take_if(|bad| *bad == slot).is_some();
        let owner = &mut self.pairs[pair];
        let kind = owner.kind;
        let is_refused = owner.lanes[1 - end].as_ref().is_some_and(Lane::may_be_refused);
        match done.status {
            Status::Success => {}
            Status::LocalProtection if is_bad => {
                owner.dead[end] = true;
                self.tally.count(kind.name(), "receive with a wrong key");
                return match self.clear_slot(number, slot, 0) {
                    true => Ok(()),
                    false => Err("the memory of a receive with a wrong key was changed".into()),
                };
            }
            // The receive of a WRITE with immediate whose key is not valid any more.
            Status::LocalAccess if kind.is_reliable() && is_refused => {
                owner.dead[end] = true;
                self.tally.count(kind.name(), "receive of a refused WRITE");
                return Ok(());
            }
            Status::WorkRequestFlushed if owner.dead[end] || owner.may_break[end] => {
                self.tally.count(kind.name(), "receive flushed");
                self.clear_slot(number, slot, 0);
                return Ok(());
            }
            _ => return Err("nothing explains this error".into()),
        }
        let used = self.on_message(pair, end, (number, slot), done)?;
        if is_bad && used > 0 {
            return Err("the key of the receive is wrong".into());
        }
        self.tally.count(kind.name(), "received");
        if self.inboxes[number].is_shared() {
            self.tally.count(kind.name(), "received from a shared queue");
        }
        let rest = self.clear_slot(number, slot, used);
        if !rest && kind != Kind::Uc {
            return Err("bytes behind the message were changed".into());
        }
        let repost = if self.is_final { Duration::ZERO } else { self.plan.repost };
        self.reposts.push_back((self.rig.now + repost, number));
        Ok(())
    }

    /// Fills a slot again. Returns false if bytes from `used` on were changed.
    fn clear_slot(&self, number: usize, slot: usize, used: usize) -> bool {
        let mut bytes = [0; SLOT];
        let buffer = &self.inboxes[number].buffer;
        buffer.read(slot * SLOT, &mut bytes);
        buffer.write(slot * SLOT, &[FILL; SLOT]);
        bytes[used..].iter().all(|&byte| byte == FILL)
    }

    /// Checks the message in a slot. Returns the bytes of the slot that it uses.
    fn on_message(
        &mut self,
        pair: usize,
        end: usize,
        (number, slot): (usize, usize),
        done: &Completion,
    ) -> Result<usize, String> {
        let grh = if self.pairs[pair].kind == Kind::Ud { GRH_LEN } else { 0 };
        let mut bytes = [0; SLOT];
        self.inboxes[number].buffer.read(slot * SLOT, &mut bytes);
        let (len, owner) = (done.byte_len as usize, &mut self.pairs[pair]);
        let source = owner.qpns[1 - end];
        if done.datagram.is_some_and(|datagram| datagram.src_qp != source) {
            return Err(format!("the source is not {source}"));
        }
        let queues = owner.inboxes[end].clone();
        let lane = owner.lanes[1 - end].as_mut().ok_or("nobody sends to it")?;
        let index = match done.extra {
            Extra::Immediate(index) => index as usize,
            _ => lane.index_of(&bytes[grh..]).ok_or("no message begins like this")?,
        };
        let message = *lane.plan.messages.get(index).ok_or("no such message")?;
        let (opcode, carried) = match message.op {
            Op::Send | Op::SendImm => (CompletionOpcode::Receive, message.len),
            _ => (CompletionOpcode::ReceiveRdmaWithImmediate, 0),
        };
        let has_immediate = matches!(done.extra, Extra::Immediate(_));
        if done.opcode != opcode || has_immediate == (message.op == Op::Send) {
            return Err(format!("message {index} is a {message:?}"));
        }
        if len != message.len + grh || bytes[grh..grh + carried] != lane.bytes(index)[..carried] {
            return Err(format!("message {index} has other bytes: {message:?}"));
        }
        if message.op == Op::WriteImm {
            lane.check_moved(index)?;
        }
        if lane.kind == Kind::Xrc && number != queues[message.queue] {
            return Err("it names the other shared receive queue".into());
        }
        let event = arrive(lane, index)?;
        if let Some(event) = event {
            self.tally.count(lane.kind.name(), event);
        }
        Ok(if carried > 0 || grh > 0 { len } else { 0 })
    }
}

/// The message `index` arrives: is it its turn? Returns an event for the tally.
fn arrive(lane: &mut Lane, index: usize) -> Result<Option<&'static str>, String> {
    if index >= lane.posted() {
        return Err(format!("message {index} was not sent"));
    }
    if lane.must_fail[index] {
        return Err("its key was not valid any more".into());
    }
    lane.arrivals[index] += 1;
    if lane.kind == Kind::Ud {
        if lane.plan.messages[index].wrong_qkey {
            return Err("it has another Q_Key".into());
        }
        return Ok((lane.arrivals[index] == 2).then_some("received twice"));
    }
    if index < lane.next_arrival {
        if lane.kind == Kind::Uc && lane.may_repeat {
            return Ok(Some("received again or late"));
        }
        return Err(format!("message {index} arrives late: {} is next", lane.next_arrival));
    }
    let mut skipped = lane.plan.messages[lane.next_arrival..index].iter();
    let has_lost = skipped.any(|message| message.op.consumes_receive());
    lane.next_arrival = index + 1;
    match has_lost {
        true if lane.kind.is_reliable() => Err(format!("a message before {index} is missing")),
        true => Ok(Some("received after a lost one")),
        false => Ok(None),
    }
}

/// The request `index` has succeeded.
fn succeed(lane: &mut Lane, index: usize) -> Check {
    lane.outcomes[index] = Outcome::Succeeded;
    if !lane.kind.is_reliable() {
        return Ok(());
    }
    if lane.must_fail[index] {
        return Err(format!("request {index} succeeded with a key that was not valid any more"));
    }
    if lane.plan.messages[index].op.consumes_receive() && lane.arrivals[index] == 0 {
        return Err(format!("request {index} is complete, but its message has not arrived"));
    }
    lane.check_moved(index)
}
