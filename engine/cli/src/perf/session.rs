//! The RoCE side of a test: QPs, buffers, posting and polling.

use std::cell::{Cell, OnceCell};

use feroce_engine::device::{Buffer, CompletionQueue, ConnectOptions, QpInit, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::verbs::{
    Completion, Data, Extra, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest,
};
use feroce_wire::{PathMtu, Psn};

use super::data::{self, Expected, Layout, at};
use super::depth::{
    completions, consumes_receive, needed_bytes, receive_depth, send_depth, signal_interval,
};
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
    /// Messages of the round that were compared, with `--check`.
    checked: u64,
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
        let completions = completions(plan, &layout)?;
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
            max_recv_wr: receive_depth(plan, &layout).max(1),
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
                for _ in 0..receive_depth(&self.plan, &self.layout) {
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
        consumes_receive(&self.plan) && (!self.is_client || answers)
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
            (flow.posted, flow.signaled, flow.completed, flow.checked) = (0, 0, 0, 0);
            flow.received_before_round = flow.received;
        }
        if self.plan.op.is_atomic() {
            for qp in 0..self.qps.len() {
                self.source.store_word(at(self.layout.offset(qp, 0)), 0);
            }
            return;
        }
        data::fill(&self.source, &self.layout, self.salt_of(self.is_client), size);
        if self.plan.check {
            self.scrub_all();
        }
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
        let depth = u64::from(send_depth(&self.plan, &self.layout));
        self.flows[qp].posted - self.flows[qp].completed < depth
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
        let group = u64::from(signal_interval(&self.plan, &self.layout));
        let signaled = signaled || (message + 1).is_multiple_of(group);
        let slot = self.source_slot(message);
        let op = self.operation(qp, message, signaled);
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

    /// The request of a message. `ends_group`: the last of a group of WRITEs.
    fn operation(&self, qp: usize, message: u64, ends_group: bool) -> SendOp {
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
            // The immediate data show the peer that the group has arrived.
            Op::Write if ends_group && consumes_receive(&self.plan) => {
                SendOp::WriteImm(remote(target, offset), immediate)
            }
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
            let count = self.arrived(qp, completion)?;
            if self.plan.check {
                self.check_next(qp, count)?;
            }
            self.flows[qp].received += count;
            self.total.received += count;
            return self.post_receive(qp);
        }
        let up_to = completion.wr_id >> QP_BITS;
        if self.plan.check && self.plan.op.is_atomic() {
            self.check_returned(qp, up_to)?;
        } else if self.plan.check && self.plan.op == Op::Read {
            self.check_next(qp, up_to - self.flows[qp].completed)?;
        }
        self.total.completed += up_to - self.flows[qp].completed;
        self.flows[qp].completed = up_to;
        self.advanced.push(qp);
        Ok(())
    }

    /// Messages that have arrived with `completion`: one, or all of a group of WRITEs.
    fn arrived(&self, qp: usize, completion: &Completion) -> Result<u64, CheckError> {
        let message = self.received(qp);
        let (Extra::Immediate(got), true) = (completion.extra, self.plan.check) else {
            return Ok(1);
        };
        #[allow(clippy::cast_possible_truncation)] // The immediate counts messages, modulo 2^32.
        let further = u64::from(got.wrapping_sub(message as u32));
        let group = u64::from(signal_interval(&self.plan, &self.layout));
        let most = if self.plan.op == Op::Write { group } else { 1 };
        match further < most {
            true => Ok(further + 1),
            false => Err(CheckError::Immediate { qp, message, got }),
        }
    }

    /// Compares the next `count` messages on QP `qp` with what the peer sent, and makes their slots
    /// wrong for the next messages.
    fn check_next(&mut self, qp: usize, count: u64) -> Result<(), CheckError> {
        for _ in 0..count {
            let expected = self.expected(qp, self.flows[qp].checked);
            data::compare(&self.target, &self.layout, self.size, &expected)?;
            data::scrub(&self.target, &self.layout, self.size, &expected);
            self.flows[qp].checked += 1;
        }
        Ok(())
    }

    /// Compares the message that [`Session::arrived_in_memory`] has seen, with `--check`.
    pub fn check_arrived(&mut self) -> Result<(), CheckError> {
        if self.plan.check { self.check_next(0, 1) } else { Ok(()) }
    }

    /// Makes every slot of the target wrong.
    fn scrub_all(&self) {
        for qp in 0..self.qps.len() {
            for message in 0..self.layout.slots {
                let expected = self.expected(qp, message);
                data::scrub(&self.target, &self.layout, self.size, &expected);
            }
        }
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

    /// Checks that all messages of the round were compared, and what atomics left. Returns the
    /// number of bytes compared.
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
            let got = self.flows[qp].checked;
            if got != count {
                return Err(CheckError::Count { qp, got, expected: count }.into());
            }
            checked += count * u64::from(self.size);
        }
        Ok(checked)
    }

    fn in_receives(&self) -> bool {
        matches!(self.plan.op, Op::Send | Op::SendImm)
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
    use feroce_engine::device::{Device, DeviceConfig};

    use super::super::exchange::Control;
    use super::super::options::TestOptions;
    use super::*;

    /// The client's and the server's end of a test in one process.
    fn pair(options: &TestOptions) -> [Session; 2] {
        let plan = options.plan(&Settings::default()).unwrap();
        let devices = Device::open_pair(&DeviceConfig::default()).unwrap().map(OpenDevice::of);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let near = std::thread::spawn(move || Control::connect("127.0.0.1", port).unwrap());
        let (stream, peer) = listener.accept().unwrap();
        let mut controls = [Control::handshake(stream, peer).unwrap(), near.join().unwrap()];
        let [near, far] = &mut controls;
        let mut setups = [Setup::new(near, plan.qps), Setup::new(far, plan.qps)];
        let mut sessions = [0, 1].map(|end: usize| {
            let (device, mtu) = (&devices[end], PathMtu::Mtu1024);
            let session = Session::new(device, &plan, end == 0, 0, mtu, &mut setups[end]);
            session.unwrap()
        });
        let sides = sessions.each_ref().map(|session| session.side().unwrap());
        for end in 0..2 {
            sessions[end].connect(&sides[1 - end], &mut setups[end]).unwrap().unwrap();
        }
        sessions.iter_mut().for_each(|session| session.prepare(options.size.unwrap_or(8), 7));
        sessions
    }

    /// Runs a round of `count` messages per QP. `tamper` is called before each turn.
    fn run(
        sessions: &mut [Session; 2],
        count: u64,
        mut tamper: impl FnMut(&[Session; 2]),
    ) -> Result<u64, PerfError> {
        while !(sessions[0].is_filled(count) && sessions[0].is_drained()) {
            tamper(sessions);
            for session in &mut *sessions {
                session.poll()?;
            }
            (0..sessions[0].qps()).try_for_each(|qp| sessions[0].fill(qp, count))?;
        }
        let [own, peer] = sessions.each_ref().map(|session| session.done(0));
        while !sessions[1].has_received(&own) {
            sessions[1].poll()?;
        }
        Ok(sessions[0].check(&own, &peer)? + sessions[1].check(&peer, &own)?)
    }

    #[test]
    fn every_message_is_compared_when_it_arrives() {
        for op in [Op::Write, Op::WriteImm, Op::Read, Op::Send, Op::SendImm] {
            for (size, qps, tx_depth) in [(3000, 2, 16), (1, 1, 1), (200_000, 1, 128), (0, 1, 4)] {
                let options = TestOptions {
                    op: Some(op),
                    size: Some(size),
                    qps: Some(qps),
                    tx_depth: Some(tx_depth),
                    check: true,
                    ..TestOptions::default()
                };
                let mut sessions = pair(&options);
                let checked = run(&mut sessions, 300, |_| ()).unwrap();
                assert_eq!(checked, u64::from(size * qps) * 300, "{op:?}: {options:?}");
            }
        }
    }

    /// A wrong byte in the middle of a run: that of a message whose slot later messages use again.
    #[test]
    fn a_byte_that_is_wrong_for_a_moment_is_found() {
        for op in [Op::Write, Op::WriteImm, Op::Read, Op::Send, Op::SendImm] {
            let options = TestOptions {
                op: Some(op),
                size: Some(5000),
                qps: Some(2),
                tx_depth: Some(8),
                check: true,
                ..TestOptions::default()
            };
            let mut sessions = pair(&options);
            let from = usize::from(op == Op::Read);
            let place = at(sessions[from].layout.offset(1, 3)) + 4321;
            let right = sessions[from].source.load_byte(place);
            let error = run(&mut sessions, 2000, |sessions| {
                let is_wrong = (300..900).contains(&sessions[0].posted(1));
                let byte = if is_wrong { !right } else { right };
                sessions[from].source.write(place, &[byte]);
            });
            let error = error.expect_err("a wrong byte");
            let PerfError::Check(CheckError::Byte { qp, message, offset, got, expected, .. }) =
                error
            else {
                panic!("{op:?}: {error}");
            };
            assert_eq!((qp, offset, got, expected), (1, 4321, !right, right), "{op:?}");
            assert!((290..900).contains(&message), "{op:?}: message {message}");
        }
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
