//! What the programs post.

use feroce_engine::device::{Destination, PostError};
use feroce_engine::memory::{Access, WindowBind, WindowType};
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Data, LocalOp, RecvRequest, SendFlags, SendOp, SendRequest, Sge};
use feroce_wire::{Key, Qkey};

use super::super::check::Check;
use super::lane::{FINAL_MESSAGES, Lane, Outcome, WindowState};
use super::objects::{QKEY, Receiver, SLOT};
use super::plan::{Kind, Message, Op};
use super::world::World;

/// Mark of the identifiers of receives; the rest is the inbox and the slot.
pub const RECEIVE: u64 = 1 << 63;
/// Mark of the identifiers of binds and invalidates; the rest is the lane.
pub const LOCAL: u64 = 1 << 62;
/// Mark of the identifiers of requests with a wrong key; the rest is the lane.
pub const BROKEN: u64 = 1 << 61;

/// The identifier of two small numbers.
fn pack(high: usize, low: usize) -> u64 {
    (high as u64) << 32 | low as u64
}

/// The two numbers of an identifier without its mark.
pub fn unpack(wr_id: u64) -> (usize, usize) {
    let wr_id = wr_id & !(RECEIVE | LOCAL | BROKEN);
    let number = |n: u64| usize::try_from(n & 0xffff_ffff).expect("32 bits");
    (number(wr_id >> 32), number(wr_id))
}

impl World<'_> {
    /// Posts receives until the inbox has as many as it should have.
    pub fn post_receives(&mut self, number: usize) {
        let inbox = &mut self.inboxes[number];
        while inbox.posted.len() < inbox.depth {
            let Some(slot) = inbox.free.pop() else { return };
            let len = u32::try_from(SLOT).expect("small");
            let sges = [inbox.buffer.region().sge((slot * SLOT) as u64, len)];
            let request = RecvRequest { wr_id: RECEIVE | pack(number, slot), sges: &sges };
            let posted = match &inbox.receiver {
                Receiver::Shared(queue) => queue.post_recv(&request),
                Receiver::Own(pair, end) => {
                    let owner = &mut self.pairs[*pair];
                    let qp = owner.qps[*end].as_mut().filter(|_| !owner.dead[*end]);
                    let Some(qp) = qp else { return };
                    qp.post_recv(&request)
                }
            };
            posted.expect("room");
            inbox.posted.push_back(slot);
        }
    }

    /// Posts a receive with a wrong key, if the queue pair has a receive queue of its own.
    pub fn post_bad_receive(&mut self, pair: usize, end: usize) {
        let owner = &mut self.pairs[pair];
        let [number] = owner.inboxes[end][..] else { return };
        let inbox = &mut self.inboxes[number];
        let qp = owner.qps[end].as_mut().filter(|_| !owner.dead[end]);
        let (Some(qp), None, false) = (qp, inbox.bad, inbox.is_shared()) else { return };
        let Some(slot) = inbox.free.pop() else { return };
        let len = u32::try_from(SLOT).expect("small");
        let sge = wrong_key(inbox.buffer.region().sge((slot * SLOT) as u64, len));
        qp.post_recv(&RecvRequest { wr_id: RECEIVE | pack(number, slot), sges: &[sge] })
            .expect("room");
        inbox.posted.push_back(slot);
        inbox.bad = Some(slot);
        owner.may_break[end] = true;
    }

    /// Posts the next message of a lane. Returns false if its time has not come.
    pub fn post_next(
        &mut self,
        pair: usize,
        from: usize,
        elapsed: Duration,
    ) -> Result<bool, String> {
        let owner = &mut self.pairs[pair];
        let (Some(lane), Some(qp)) = (&mut owner.lanes[from], &mut owner.qps[from]) else {
            return Ok(false);
        };
        let index = lane.posted();
        let Some(&message) = lane.plan.messages.get(index) else { return Ok(false) };
        let waits = lane.window.as_ref().is_some_and(|w| w.state == WindowState::Opening);
        if message.at > elapsed || waits && !self.is_final {
            return Ok(false);
        }
        lane.prepare(index);
        let bytes = lane.bytes(index);
        let part: [&[u8]; 1] = [&bytes];
        let len = u32::try_from(message.len).expect("short");
        let sges = [lane.source.region().sge(message.cell as u64, len)];
        let data = if message.inline { Data::Inline(&part) } else { Data::Sges(&sges) };
        let flags = if message.signaled { SendFlags::SIGNALED } else { SendFlags::NONE };
        let wr_id = pack(2 * pair + from, index);
        let request = SendRequest { wr_id, op: operation(lane, &message, index), data, flags };
        let posted = match owner.kind {
            Kind::Rc | Kind::Uc => qp.post_send(&request),
            Kind::Xrc => {
                let inbox = owner.inboxes[1 - from][message.queue];
                let Receiver::Shared(queue) = &self.inboxes[inbox].receiver else {
                    unreachable!("XRC receives are shared")
                };
                qp.post_send_xrc(&request, queue.id().0)
            }
            Kind::Ud => {
                let ah = owner.handles[from].as_ref().expect("made with the queue pair");
                let qkey = if message.wrong_qkey { Qkey(7) } else { QKEY };
                let remote_qpn = owner.qpns[1 - from];
                qp.post_send_to(&request, &Destination { ah, remote_qpn, qkey })
            }
        };
        match posted {
            Ok(()) => {}
            Err(PostError::Full) => return Ok(false),
            Err(error) => return Err(format!("pair {pair}, end {from}, {message:?}: {error}")),
        }
        self.trace.note(self.rig.now, || format!("pair {pair}, end {from}: {index}: {message:?}"));
        lane.note_posted(index);
        Ok(true)
    }

    /// Posts the binds of all windows.
    pub fn open_windows(&mut self) -> Check {
        for pair in 0..self.pairs.len() {
            for from in 0..2 {
                let owner = &mut self.pairs[pair];
                let Some(lane) = owner.lanes[from].as_mut().filter(|lane| lane.plan.windowed)
                else {
                    continue;
                };
                let window = self.pds[1 - from].alloc_mw(WindowType::Two).expect("a window");
                let rkey = lane.add_window(window);
                let region = lane.target.as_ref().expect("registered").region();
                let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
                let (lkey, addr, length) = (region.lkey(), region.addr(), region.len());
                let bind = WindowBind { rkey, lkey, addr, length, access };
                self.post_local(pair, from, LocalOp::Bind(bind))?;
            }
        }
        Ok(())
    }

    /// Posts a request about the window of the lane from `from`, at the end that owns the window.
    pub fn post_local(&mut self, pair: usize, from: usize, op: LocalOp) -> Check {
        let Some(qp) = &mut self.pairs[pair].qps[1 - from] else { return Ok(()) };
        let (wr_id, flags) = (LOCAL | pack(2 * pair + from, 0), SendFlags::SIGNALED);
        let data = Data::Sges(&[]);
        let posted = qp.post_send(&SendRequest { wr_id, op: SendOp::Local(op), data, flags });
        posted.map_err(|error| format!("pair {pair}: {op:?}: {error}"))
    }

    /// Posts a SEND with a wrong key. Returns false if there is no room.
    pub fn post_broken(&mut self, pair: usize, from: usize) -> Result<bool, String> {
        let owner = &mut self.pairs[pair];
        let (Some(lane), Some(qp)) = (&mut owner.lanes[from], &mut owner.qps[from]) else {
            return Ok(false);
        };
        let sges = [wrong_key(lane.source.region().sge(0, 8))];
        let wr_id = BROKEN | pack(2 * pair + from, 0);
        let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
        let request = SendRequest { wr_id, op, data: Data::Sges(&sges), flags };
        let posted = match &owner.handles[from] {
            Some(ah) => {
                let remote_qpn = owner.qpns[1 - from];
                qp.post_send_to(&request, &Destination { ah, remote_qpn, qkey: QKEY })
            }
            None => qp.post_send(&request),
        };
        match posted {
            Ok(()) => lane.broken_before = Some(lane.posted()),
            Err(PostError::Full) => return Ok(false),
            Err(error) => return Err(format!("pair {pair}, end {from}: {error}")),
        }
        Ok(true)
    }

    /// Sends two more messages in every lane whose queue pairs are as they were made, one at a
    /// time. The wire has no faults, so that they must arrive.
    pub fn run_final_messages(&mut self) -> Check {
        (0..self.inboxes.len()).for_each(|inbox| self.post_receives(inbox));
        for pair in 0..self.pairs.len() {
            for from in 0..2 {
                for _ in 0..FINAL_MESSAGES {
                    let owner = &mut self.pairs[pair];
                    let (is_healthy, kind) = (owner.is_healthy(), owner.kind);
                    let Some(lane) = owner.lanes[from].as_mut().filter(|_| is_healthy) else {
                        continue;
                    };
                    let (random, mtu) = (&mut self.random, self.plan.mtu);
                    let message = lane.plan.random_message(random, kind, mtu, Duration::ZERO);
                    let message = Message { signaled: true, wrong_qkey: false, ..message };
                    lane.plan.messages.push(message);
                    self.run_until_quiet()?;
                    self.check_arrived(pair, from)?;
                }
            }
        }
        Ok(())
    }

    /// Checks that the last message of a lane has arrived.
    fn check_arrived(&self, pair: usize, from: usize) -> Check {
        let lane = self.pairs[pair].lanes[from].as_ref().expect("it has sent");
        let last = lane.posted() - 1;
        let message = &lane.plan.messages[last];
        let is_there = lane.outcomes[last] == Outcome::Succeeded
            && (!message.op.consumes_receive() || lane.arrivals[last] == 1);
        if !is_there {
            return Err(format!("pair {pair}, end {from}: the final {message:?} did not arrive"));
        }
        lane.check_moved(last)
    }
}

/// With a key of the same index that no region has.
fn wrong_key(sge: Sge) -> Sge {
    Sge { lkey: Key::from_parts(sge.lkey.index(), sge.lkey.variant() ^ 1), ..sge }
}

fn operation(lane: &Lane, message: &Message, index: usize) -> SendOp {
    let immediate = u32::try_from(index).expect("few");
    match message.op {
        Op::Send => SendOp::Send,
        Op::SendImm => SendOp::SendImm(immediate),
        Op::Write => SendOp::Write(lane.remote(message)),
        Op::WriteImm => SendOp::WriteImm(lane.remote(message), immediate),
        Op::Read => SendOp::Read(lane.remote(message)),
    }
}
