//! The RoCE side of a test: QPs, buffers, posting and polling.

use std::cell::{Cell, OnceCell};

use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, MAX_CQE, MAX_WR, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::verbs::{
    Completion, Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, SendWqe, Sge,
};
use feroce_wire::{PathMtu, Psn};

use super::data::{self, Expected, Layout, at};
use super::error::{CheckError, CompletionError, PerfError};
use super::message::{QpLine, RegionLine, Side};
use super::plan::{Goal, MAX_QPS, Op, Plan};
use super::results::Done;
use super::setup::{self, Setup};
use crate::open::OpenDevice;

/// Flag in `wr_id` that marks receives.
const RECEIVE: u64 = 1 << 63;
/// Bits of `wr_id` that hold the index of the QP.
const QP_BITS: u32 = 20;
const _: () = assert!(MAX_QPS < 1 << QP_BITS);
/// Completions polled at once.
const BATCH: usize = 64;

/// Counts of one QP. Sends count from the start of the round, receives from the start of the
/// session.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    posted: u64,
    signaled: u64,
    completed: u64,
    receives_posted: u64,
    received: u64,
    received_before_round: u64,
}

/// Requests of the round on all QPs.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    posted: u64,
    completed: u64,
    received: u64,
}

/// QPs and buffers of one side of a test.
#[derive(Debug)]
pub struct Session {
    plan: Plan,
    is_client: bool,
    sgid_index: u32,
    path_mtu: PathMtu,
    /// Connect options of this side's settings; the plan overrides some.
    connect: ConnectOptions,
    // Declared before the buffers: QPs must be dropped first.
    qps: Vec<QueuePair>,
    psns: Vec<Psn>,
    cq: CompletionQueue,
    source: Buffer,
    target: Buffer,
    peer: Option<[RegionLine; 2]>,
    layout: Layout,
    flows: Vec<Flow>,
    /// The sum of the flows.
    total: Total,
    /// QPs whose requests the last poll has found complete; a QP may be there more than once.
    advanced: Vec<usize>,
    completions: Vec<Completion>,
    scratch: Vec<u8>,
    size: u32,
    salt: u64,
    /// The messages that the peer has sent in the round, once the peer has reported them.
    awaited: Cell<Option<u64>>,
    /// The error in the message counts of the peer, if there was one.
    invalid_counts: OnceCell<String>,
}

impl Session {
    /// Creates the QPs and the buffers.
    pub fn new(
        device: &OpenDevice,
        plan: &Plan,
        is_client: bool,
        sgid_index: u32,
        path_mtu: PathMtu,
        setup: &mut Setup<'_>,
    ) -> Result<Self, PerfError> {
        let layout = Layout::new(plan);
        let completions = completions(plan)?;
        setup::check_memory(needed_bytes(plan, &layout))?;
        let pd = device.device.alloc_pd();
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let source = pd.alloc_buffer(layout.bytes(), rights)?;
        let target = pd.alloc_buffer(layout.bytes(), rights)?;
        let cq = device.device.create_cq(completions)?;
        let init = QpInit {
            max_send_wr: plan.tx_depth,
            max_recv_wr: receive_depth(plan).max(1),
            max_inline: plan.inline,
            ..QpInit::new(&cq)
        };
        setup.begin("QPs created");
        let mut qps = Vec::with_capacity(plan.qps as usize);
        for _ in 0..plan.qps {
            qps.push(pd.create_qp(&init)?);
            setup.step()?;
        }
        let psns = qps.iter().map(|_| device.device.random_psn()).collect::<Result<Vec<_>, _>>();
        let psns = psns.map_err(feroce_engine::device::DeviceError::System)?;
        Ok(Self {
            plan: plan.clone(),
            is_client,
            sgid_index,
            path_mtu,
            connect: device.settings.connect_options(),
            flows: vec![Flow::default(); qps.len()],
            qps,
            psns,
            cq,
            source,
            target,
            peer: None,
            layout,
            total: Total::default(),
            advanced: Vec::with_capacity(BATCH),
            completions: Vec::with_capacity(BATCH),
            scratch: vec![0; plan.inline as usize],
            size: 0,
            salt: 0,
            awaited: Cell::new(None),
            invalid_counts: OnceCell::new(),
        })
    }

    /// What the peer needs to connect.
    pub fn side(&self) -> Result<Side, PerfError> {
        let ends = self.qps.iter().zip(&self.psns);
        let ends = ends.map(|(qp, &psn)| qp.endpoint(psn, self.sgid_index));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        let line = |buffer: &Buffer| RegionLine {
            addr: buffer.region().addr(),
            rkey: buffer.region().rkey().value(),
        };
        Ok(Side {
            gid: ends.first().map(|end| end.gid.to_string()).unwrap_or_default(),
            super_frames: ends.first().and_then(|end| end.super_frames).map(|host| host.0),
            selective_repeat: ends.first().is_some_and(|end| end.selective_repeat),
            qps: ends
                .iter()
                .map(|end| QpLine { qpn: end.qpn.value(), psn: end.psn.value() })
                .collect(),
            source: line(&self.source),
            target: line(&self.target),
        })
    }

    /// Connects to the QPs of the peer and posts the first receives. `None`: the values of the peer
    /// are invalid.
    pub fn connect(&mut self, peer: &Side, setup: &mut Setup<'_>) -> Result<Option<()>, PerfError> {
        let Some(ends) = peer.endpoints().filter(|ends| ends.len() == self.qps.len()) else {
            return Ok(None);
        };
        let options = ConnectOptions {
            sgid_index: self.sgid_index,
            traffic_class: self.plan.tclass,
            path_mtu: Some(self.path_mtu),
            timeout: self.plan.timeout,
            retry_cnt: self.plan.retry,
            split: self.plan.split.into(),
            ..self.connect
        };
        setup.begin("QPs connected");
        for ((qp, &psn), end) in self.qps.iter_mut().zip(&self.psns).zip(&ends) {
            qp.connect(psn, end, &options)?;
            setup.step()?;
        }
        self.peer = Some([peer.source, peer.target]);
        if self.receives() {
            setup.begin("QPs with receives");
            for qp in 0..self.qps.len() {
                for _ in 0..receive_depth(&self.plan) {
                    self.post_receive(qp)?;
                }
                setup.step()?;
            }
        }
        Ok(Some(()))
    }

    /// Returns true if this side sends requests.
    pub fn is_active(&self) -> bool {
        self.is_client || self.plan.bidirectional
    }

    /// Returns true if messages of the peer consume receives of this side.
    pub fn receives(&self) -> bool {
        let answers = self.plan.latency || self.plan.bidirectional;
        self.plan.op.consumes_receive() && (!self.is_client || answers)
    }

    /// Number of QPs.
    pub fn qps(&self) -> usize {
        self.qps.len()
    }

    /// Starts a round of messages of `size` bytes: resets the counts and fills the source.
    pub fn prepare(&mut self, size: u32, salt: u64) {
        (self.size, self.salt) = (size, salt);
        self.total = Total::default();
        self.awaited.set(None);
        for flow in &mut self.flows {
            (flow.posted, flow.signaled, flow.completed) = (0, 0, 0);
            flow.received_before_round = flow.received;
        }
        if self.plan.op.is_atomic() {
            for qp in 0..self.qps.len() {
                self.source.store_word(at(self.layout.offset(qp, 0)), 0);
            }
            return;
        }
        data::fill(&self.source, &self.layout, self.salt_of(self.is_client), size);
        if self.plan.latency {
            // The counter of the first message is 1.
            self.target.write(at(self.layout.offset(0, 0)) + size as usize - 1, &[0]);
        }
    }

    /// Messages of this round completed on all QPs.
    pub fn completed(&self) -> u64 {
        self.total.completed
    }

    /// Messages of this round received on QP `qp`.
    pub fn received(&self, qp: usize) -> u64 {
        self.flows[qp].received - self.flows[qp].received_before_round
    }

    /// Messages of this round posted on QP `qp`.
    pub fn posted(&self, qp: usize) -> u64 {
        self.flows[qp].posted
    }

    /// Returns true if QP `qp` has room for another request.
    pub fn has_room(&self, qp: usize) -> bool {
        self.flows[qp].posted - self.flows[qp].completed < u64::from(self.plan.tx_depth)
    }

    /// QPs whose requests the last [`Session::poll`] has found complete; a QP may be there more
    /// than once.
    pub fn advanced(&self) -> &[usize] {
        &self.advanced
    }

    /// Posts on QP `qp` until it has no room, or has posted `most` messages of this round.
    pub fn fill(&mut self, qp: usize, most: u64) -> Result<(), PerfError> {
        while self.posted(qp) < most && self.has_room(qp) {
            self.post(qp, self.posted(qp) + 1 == most)?;
        }
        Ok(())
    }

    /// Ends the round on QP `qp`: if its last message is unsignaled, posts one more that is
    /// signaled, once there is room.
    pub fn finish(&mut self, qp: usize) -> Result<(), PerfError> {
        match self.flows[qp].signaled < self.flows[qp].posted && self.has_room(qp) {
            true => self.post(qp, true),
            false => Ok(()),
        }
    }

    /// Returns true if each QP has posted `most` messages of this round.
    pub fn is_filled(&self, most: u64) -> bool {
        u64::try_from(self.qps.len()).ok().and_then(|qps| qps.checked_mul(most))
            == Some(self.total.posted)
    }

    /// Returns true if all posted requests are complete.
    pub fn is_drained(&self) -> bool {
        self.total.completed == self.total.posted
    }

    /// Returns true if no completion is outstanding.
    pub fn all_completed(&self) -> bool {
        self.flows.iter().all(|flow| flow.completed >= flow.signaled)
    }

    /// What this side sent in the round.
    pub fn done(&self, nanos: u64) -> Done {
        Done { messages: self.flows.iter().map(|flow| flow.posted).collect(), nanos }
    }

    /// Returns true if all messages of the peer in this round have arrived. If the peer's counts
    /// are invalid, returns false, and the next [`Session::poll`] fails.
    pub fn has_received(&self, peer: &Done) -> bool {
        if !self.receives() {
            return true;
        }
        if self.awaited.get().is_none() {
            if let Some(detail) = self.invalid_counts_of(peer) {
                self.invalid_counts.get_or_init(|| detail);
                return false;
            }
            self.awaited.set(Some(peer.messages.iter().sum()));
        }
        // The sum first: a look at 100,000 QPs after each poll would take most of the time.
        self.awaited.get().is_some_and(|awaited| self.total.received >= awaited)
            && peer.messages.iter().enumerate().all(|(qp, &count)| self.received(qp) >= count)
    }

    fn invalid_counts_of(&self, peer: &Done) -> Option<String> {
        invalid_counts(&peer.messages, self.qps.len(), self.plan.goal(self.size))
    }

    /// Posts the next message on QP `qp`; signaled if it is the last of its group or if `signaled`
    /// is true.
    pub fn post(&mut self, qp: usize, signaled: bool) -> Result<(), PerfError> {
        let message = self.flows[qp].posted;
        let group = u64::from(signal_interval(&self.plan));
        let signaled = signaled || (message + 1).is_multiple_of(group);
        let slot = self.source_slot(message);
        let op = self.operation(qp, message);
        let local = if op.needs_responder_resource() { &self.target } else { &self.source };
        let offset = match self.plan.op.is_atomic() {
            true => self.layout.offset(qp, message),
            false => self.layout.offset(qp, slot),
        };
        if let Some(counter) = self.counter(message) {
            self.source.write(at(offset) + self.size as usize - 1, &[counter]);
        }
        let size = self.size as usize;
        let inline =
            size <= self.scratch.len() && !op.needs_responder_resource() && self.plan.inline > 0;
        if inline {
            self.source.read(at(offset), &mut self.scratch[..size]);
        }
        let sge = [local.region().sge(offset, self.size)];
        let part = [&self.scratch[..if inline { size } else { 0 }]];
        let data = if inline { Data::Inline(&part) } else { Data::Sges(&sge) };
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::NONE };
        let wr_id = (message + 1) << QP_BITS | qp as u64;
        self.qps[qp].post_send(&SendRequest { wr_id, op, data, flags })?;
        let flow = &mut self.flows[qp];
        flow.posted += 1;
        self.total.posted += 1;
        if signaled {
            flow.signaled = flow.posted;
        }
        Ok(())
    }

    fn operation(&self, qp: usize, message: u64) -> SendOp {
        let [source, target] = self.peer.expect("connected");
        let offset = self.layout.offset(qp, self.source_slot(message));
        let remote = |region: RegionLine, offset| RemoteAddr {
            addr: region.addr.wrapping_add(offset),
            rkey: region.key(),
        };
        let word = || remote(source, self.layout.offset(qp, 0));
        #[allow(clippy::cast_possible_truncation)] // The immediate counts messages, modulo 2^32.
        let immediate = message as u32;
        match self.plan.op {
            Op::Write => SendOp::Write(remote(target, offset)),
            Op::WriteImm => SendOp::WriteImm(remote(target, offset), immediate),
            Op::Read => SendOp::Read(remote(source, offset)),
            Op::Send => SendOp::Send,
            Op::SendImm => SendOp::SendImm(immediate),
            Op::AtomicFadd => SendOp::FetchAdd { remote: word(), add: 1 },
            // Each CompareSwap stores the value that the next one compares with: all succeed if
            // they are executed in order, once each.
            Op::AtomicCas => {
                SendOp::CompareSwap { remote: word(), compare: message, swap: message + 1 }
            }
        }
    }

    fn post_receive(&mut self, qp: usize) -> Result<(), PerfError> {
        let flow = &mut self.flows[qp];
        let offset = self.layout.offset(qp, flow.receives_posted);
        let stride = u32::try_from(self.layout.stride).expect("at most 1 GiB and a line");
        let sge = self.target.region().sge(offset, stride);
        self.qps[qp].post_recv(&RecvRequest { wr_id: RECEIVE | qp as u64, sges: &[sge] })?;
        flow.receives_posted += 1;
        Ok(())
    }

    /// Polls and processes completions once. Polling drives the device if there are none.
    ///
    /// # Errors
    /// If a work request failed, or the peer reported invalid counts.
    pub fn poll(&mut self) -> Result<usize, PerfError> {
        if let Some(detail) = self.invalid_counts.get() {
            return Err(PerfError::Plan(detail.clone()));
        }
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        self.advanced.clear();
        let count = self.cq.poll(&mut completions, BATCH);
        for completion in &completions {
            self.account(completion)?;
        }
        self.completions = completions;
        Ok(count)
    }

    fn account(&mut self, completion: &Completion) -> Result<(), PerfError> {
        let is_receive = completion.wr_id & RECEIVE != 0;
        if !completion.is_success() {
            let what = if is_receive { "receive" } else { self.plan.op.name() };
            let (size, qp, status) = (self.size, completion.qp.value(), completion.status);
            return Err(CompletionError { what, size, qp, status }.into());
        }
        let qp = at(completion.wr_id & ((1 << QP_BITS) - 1));
        if is_receive {
            self.flows[qp].received += 1;
            self.total.received += 1;
            return self.post_receive(qp);
        }
        let up_to = completion.wr_id >> QP_BITS;
        if self.plan.check && self.plan.op.is_atomic() {
            self.check_returned(qp, up_to)?;
        }
        self.total.completed += up_to - self.flows[qp].completed;
        self.flows[qp].completed = up_to;
        self.advanced.push(qp);
        Ok(())
    }

    /// Checks that each atomic returned its own number, which the previous one left.
    fn check_returned(&self, qp: usize, up_to: u64) -> Result<(), CheckError> {
        for message in self.flows[qp].completed..up_to {
            let got = self.target.load_word(at(self.layout.offset(qp, message)));
            if got != message {
                return Err(CheckError::Returned { qp, message, got });
            }
        }
        Ok(())
    }

    /// Returns true if the message with counter `count` is in the target buffer: for programs that
    /// spin on memory.
    pub fn arrived_in_memory(&self, count: u64) -> bool {
        let last = at(self.layout.offset(0, 0)) + self.size as usize - 1;
        self.target.load_byte(last) == low_byte(count)
    }

    /// Compares the received data of the round with the sent data. Returns the number of bytes
    /// compared.
    pub fn check(&self, own: &Done, peer: &Done) -> Result<u64, PerfError> {
        if let Some(detail) = self.invalid_counts_of(peer) {
            return Err(PerfError::Plan(detail));
        }
        let atomic = self.plan.op.is_atomic();
        let sent = if self.plan.op == Op::Read { own } else { peer };
        let mut checked = 0;
        for (qp, &count) in sent.messages.iter().enumerate() {
            if atomic {
                let got = self.source.load_word(at(self.layout.offset(qp, 0)));
                if got != count {
                    return Err(CheckError::Left { qp, got, expected: count }.into());
                }
                checked += if count > 0 { 8 } else { 0 };
                continue;
            }
            for message in count.saturating_sub(self.kept())..count {
                data::compare(&self.target, &self.layout, self.size, &self.expected(qp, message))?;
                checked += u64::from(self.size);
            }
        }
        Ok(checked)
    }

    fn in_receives(&self) -> bool {
        matches!(self.plan.op, Op::Send | Op::SendImm)
    }

    /// Messages of a round that are still in the target buffer. A ping-pong reuses one slot.
    fn kept(&self) -> u64 {
        if self.plan.latency && !self.in_receives() { 1 } else { self.layout.slots }
    }

    fn expected(&self, qp: usize, message: u64) -> Expected {
        let source_slot = self.source_slot(message);
        let target_slot = match self.in_receives() {
            true => self.flows[qp].received_before_round + message,
            false => source_slot,
        };
        let salt = self.salt_of(!self.is_client);
        Expected { qp, message, salt, source_slot, target_slot, counter: self.counter(message) }
    }

    /// The slot of a message. A ping-pong uses one slot.
    fn source_slot(&self, message: u64) -> u64 {
        if self.plan.latency { 0 } else { message % self.layout.slots }
    }

    /// The last byte of a ping-pong message is a counter, so that messages can be distinguished.
    fn counter(&self, message: u64) -> Option<u8> {
        let counts = self.plan.latency && !self.plan.op.is_read_or_atomic();
        counts.then(|| low_byte(message + 1))
    }

    /// Each direction has its own data.
    fn salt_of(&self, client: bool) -> u64 {
        if client { self.salt } else { !self.salt }
    }
}

/// Number of receives kept posted: enough that a late poll does not leave the sender without one.
fn receive_depth(plan: &Plan) -> u32 {
    /// Receives of all QPs at which no QP gets more than four times the depth.
    const ALL: u32 = 1 << 21;
    let least = (ALL / plan.qps.max(1)).clamp(1, 64);
    if plan.op.consumes_receive() { (plan.tx_depth * 4).clamp(least, MAX_WR) } else { 0 }
}

/// Distance of signaled requests in a send queue.
fn signal_interval(plan: &Plan) -> u32 {
    (plan.tx_depth / 4).max(1)
}

/// The most completions that can wait in the CQ: one of each receive, of each signaled request in a
/// full send queue, and of the last request of a round.
fn completions(plan: &Plan) -> Result<u32, PerfError> {
    let sends = (plan.tx_depth.div_ceil(signal_interval(plan)) + 1).min(plan.tx_depth);
    let per_qp = sends + receive_depth(plan);
    let completions = u64::from(per_qp) * u64::from(plan.qps);
    u32::try_from(completions).ok().filter(|&count| count <= MAX_CQE).ok_or_else(|| {
        PerfError::Plan(format!(
            "{} QPs of depth {} need a CQ of {completions} entries, the limit is {MAX_CQE}: use \
             a smaller --tx-depth or fewer --qps",
            plan.qps, plan.tx_depth
        ))
    })
}

/// The memory that the objects of this side take, in bytes.
fn needed_bytes(plan: &Plan, layout: &Layout) -> u64 {
    /// Memory of a QP without its rings, with some reserve.
    const QP: u64 = 2048;
    let ring = |depth: u32, slot: usize| u64::from(depth.max(1).next_power_of_two()) * slot as u64;
    let entries = size_of::<Sge>().max(plan.inline as usize);
    let sends = ring(plan.tx_depth, size_of::<SendWqe>() + entries);
    let receives = ring(receive_depth(plan), size_of::<SendWqe>() + size_of::<Sge>());
    2 * layout.bytes() as u64 + u64::from(plan.qps) * (QP + sends + receives)
}

/// Why `counts`, messages per QP, cannot be right for a peer with `qps` QPs and a round that ends
/// at `goal`. The counts come over the network and are used as indices and summed.
fn invalid_counts(counts: &[u64], qps: usize, goal: Goal) -> Option<String> {
    const PEER: &str = "the peer does not speak the protocol of feroce perf";
    let most = match goal {
        Goal::Messages(messages) => messages,
        // The largest number that `wr_id` can hold.
        Goal::Time(_) => u64::MAX >> QP_BITS,
    };
    if counts.len() != qps {
        return Some(format!("{PEER}: its report covers {} QPs of {qps}", counts.len()));
    }
    let beyond = counts.iter().find(|&&count| count > most)?;
    Some(format!("{PEER}: its report has {beyond} messages on a QP; the maximum is {most}"))
}

/// A count modulo 256.
fn low_byte(count: u64) -> u8 {
    count.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use feroce_engine::device::settings::Settings;

    use super::super::options::TestOptions;
    use super::*;

    #[test]
    fn a_plan_that_needs_a_larger_cq_than_there_is_is_refused() {
        let plan = |qps, tx_depth, op| {
            let options = TestOptions {
                qps: Some(qps),
                tx_depth: Some(tx_depth),
                op: Some(op),
                ..TestOptions::default()
            };
            options.plan(&Settings::default()).unwrap()
        };
        assert_eq!(completions(&plan(1, 128, Op::Write)).unwrap(), 5);
        assert_eq!(completions(&plan(1, 1, Op::Write)).unwrap(), 1);
        assert_eq!(completions(&plan(100_000, 4, Op::Write)).unwrap(), 400_000);
        assert_eq!(completions(&plan(100_000, 4, Op::Send)).unwrap(), 2_400_000);
        let detail = completions(&plan(100_000, 128, Op::Send)).unwrap_err().to_string();
        assert!(detail.contains("CQ of 51700000 entries, the limit is 4194304"), "{detail}");
    }

    #[test]
    fn impossible_counts_are_refused() {
        let goal = Goal::Messages(5);
        for possible in [[0, 0], [5, 5], [0, 5]] {
            assert_eq!(invalid_counts(&possible, 2, goal), None);
        }
        for (impossible, detail) in
            [(&[][..], "0 QPs of 2"), (&[1], "1 QPs of 2"), (&[1, 1, 0], "3 QPs of 2")]
        {
            let invalid_counts = invalid_counts(impossible, 2, goal).expect("refused");
            assert!(invalid_counts.contains(detail), "{invalid_counts}");
        }
        let beyond = invalid_counts(&[5, 6], 2, goal).expect("refused");
        assert!(beyond.contains("6 messages"), "{beyond}");
        let timed = Goal::Time(Duration::from_secs(1));
        assert_eq!(invalid_counts(&[1 << 40], 1, timed), None);
        assert!(invalid_counts(&[u64::MAX], 1, timed).is_some());
    }
}
