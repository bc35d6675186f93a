//! The queue pairs of a scenario and the queues that they receive from.

use std::collections::VecDeque;

use feroce_engine::device::{
    AddressHandle, Buffer, CompletionQueue, ConnectOptions, Endpoint, Path, ProtectionDomain,
    QpInit, QueuePair, SharedReceiveQueue, SrqInit, XrcDomain,
};
use feroce_engine::memory::Access;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::verbs::GRH_LEN;
use feroce_wire::{Psn, Qkey, Qpn};

use super::super::options::random_psn;
use super::super::random::Random;
use super::super::wire_rules::Connection;
use super::lane::{FILL, Lane};
use super::plan::{Kind, LONGEST, MAX_INLINE, PairPlan, Plan, WINDOW};
use crate::{Rig, gid, gid_v6};

/// Q_Key of all datagram queue pairs.
pub const QKEY: Qkey = Qkey(0x0102_0304);

/// Bytes of a receive.
pub const SLOT: usize = LONGEST + GRH_LEN;

/// Depth of each send and receive queue.
const DEPTH: u32 = 64;

/// Where an inbox posts its receives.
#[derive(Debug)]
pub enum Receiver {
    /// The receive queue of the queue pair of this pair and end.
    Own(usize, usize),
    Shared(SharedReceiveQueue),
}

/// Receives for one or several queue pairs.
#[derive(Debug)]
pub struct Inbox {
    pub receiver: Receiver,
    pub buffer: Buffer,
    /// Slots of the buffer that are not posted.
    pub free: Vec<usize>,
    /// Slots in the order of posting.
    pub posted: VecDeque<usize>,
    /// Receives that are posted at a time.
    pub depth: usize,
    /// The slot of a posted receive with a wrong key.
    pub bad: Option<usize>,
}

impl Inbox {
    fn new(receiver: Receiver, pd: &ProtectionDomain, depth: usize) -> Self {
        // More slots than receives: a queue pair that ends takes a shared receive along.
        let slots = depth + 8;
        let buffer = pd.alloc_buffer(slots * SLOT, Access::ALL).expect("room for receives");
        buffer.write(0, &vec![FILL; slots * SLOT]);
        let free = (0..slots).rev().collect();
        Self { receiver, buffer, free, posted: VecDeque::new(), depth, bad: None }
    }

    pub fn is_shared(&self) -> bool {
        matches!(self.receiver, Receiver::Shared(_))
    }
}

/// Two connected queue pairs, or two that exchange datagrams.
#[derive(Debug)]
pub struct Pair {
    pub kind: Kind,
    /// Of a reliable service: what its packets must obey.
    pub connection: Option<Connection>,
    /// `None`: destroyed.
    pub qps: [Option<QueuePair>; 2],
    pub qpns: [Qpn; 2],
    /// States, when they were last looked at.
    pub states: [QpState; 2],
    /// In ERR, as far as the model knows.
    pub dead: [bool; 2],
    /// A request to this end may be refused, which moves it to ERR.
    pub may_break: [bool; 2],
    /// By sending end.
    pub lanes: [Option<Lane>; 2],
    /// Numbers of the inboxes of each end; XRC has two at the receiving end.
    pub inboxes: [Vec<usize>; 2],
    pub handles: [Option<AddressHandle>; 2],
}

impl Pair {
    pub fn is_gone(&self, end: usize) -> bool {
        self.qps[end].is_none()
    }

    /// Both queue pairs exist and nothing has happened to them.
    pub fn is_healthy(&self) -> bool {
        let is_stopped = self.lanes.iter().flatten().any(|lane| lane.is_stopped);
        let is_usable = |end: usize| !self.is_gone(end) && !self.dead[end] && !self.may_break[end];
        !is_stopped && [0, 1].into_iter().all(is_usable)
    }
}

/// Makes the objects of a scenario.
pub struct Maker<'a> {
    pub rig: &'a Rig,
    pub plan: &'a Plan,
    pub pds: &'a [ProtectionDomain; 2],
    pub cqs: &'a [CompletionQueue; 2],
    pub random: &'a mut Random,
    pub inboxes: Vec<Inbox>,
    /// By end: the shared receive queue of RC, UC and UD.
    shared: [Option<usize>; 2],
}

impl<'a> Maker<'a> {
    pub fn new(
        rig: &'a Rig,
        plan: &'a Plan,
        pds: &'a [ProtectionDomain; 2],
        cqs: &'a [CompletionQueue; 2],
        random: &'a mut Random,
    ) -> Self {
        Self { rig, plan, pds, cqs, random, inboxes: Vec::new(), shared: [None, None] }
    }

    /// Makes pair number `number`.
    pub fn pair(&mut self, number: usize, plan: &PairPlan) -> Pair {
        let mut inboxes = [Vec::new(), Vec::new()];
        let domain = self.rig.devices[1 - plan.first].open_xrcd();
        for (end, of_end) in inboxes.iter_mut().enumerate() {
            *of_end = match plan.kind {
                Kind::Xrc if end == plan.first => Vec::new(),
                Kind::Xrc => (0..2).map(|_| self.xrc_inbox(end, &domain)).collect(),
                _ if plan.shared[end] => vec![self.shared_inbox(end)],
                _ => vec![self.inbox(end, Receiver::Own(number, end), self.plan.receives)],
            };
        }
        let shared = inboxes.each_ref().map(|of_end| match of_end[..] {
            [inbox] => match &self.inboxes[inbox].receiver {
                Receiver::Shared(queue) => Some(queue.clone()),
                Receiver::Own(..) => None,
            },
            _ => None,
        });
        let mut qps = [0, 1].map(|end| self.qp(end, plan, &domain, shared[end].as_ref()));
        let qpns = qps.each_ref().map(QueuePair::qpn);
        let (mut handles, mut connection) = ([None, None], None);
        if plan.kind == Kind::Ud {
            for (end, qp) in qps.iter_mut().enumerate() {
                qp.activate(QKEY, random_psn(self.random)).expect("in RESET");
                let peer = if self.plan.v6 { gid_v6(1 - end) } else { gid(1 - end) };
                let path = Path::new(peer, u32::from(self.plan.v6));
                handles[end] = Some(self.pds[end].create_ah(&path).expect("a path"));
            }
        } else {
            let psns = [random_psn(self.random), random_psn(self.random)];
            connection = connect(&mut qps, psns, self.plan, plan);
        }
        let lanes = [0, 1].map(|from: usize| {
            let lane = &plan.lanes[from];
            let has_lane = plan.kind != Kind::Xrc || from == plan.first;
            let pds = [&self.pds[from], &self.pds[1 - from]];
            let (kind, faults) = (plan.kind, &self.plan.faults);
            let may_repeat = faults.duplicate > 0 || faults.reorder > 0;
            let wire = (self.plan.mtu, may_repeat);
            has_lane.then(|| Lane::new(kind, 2 * number + from, lane.clone(), wire, pds))
        });
        let (dead, may_break) = ([false; 2], [false; 2]);
        let (kind, qps, states) = (plan.kind, qps.map(Some), [QpState::Reset; 2]);
        Pair { kind, connection, qps, qpns, states, dead, may_break, lanes, inboxes, handles }
    }

    fn inbox(&mut self, end: usize, receiver: Receiver, depth: usize) -> usize {
        self.inboxes.push(Inbox::new(receiver, &self.pds[end], depth));
        self.inboxes.len() - 1
    }

    /// A UC queue pair keeps the receive of an incomplete message, so there is one more for each.
    fn shared_inbox(&mut self, end: usize) -> usize {
        if let Some(inbox) = self.shared[end] {
            return inbox;
        }
        let queue = self.pds[end].create_srq(&SrqInit::default()).expect("a queue");
        let depth = self.plan.receives + self.plan.pairs.len();
        let inbox = self.inbox(end, Receiver::Shared(queue), depth);
        *self.shared[end].insert(inbox)
    }

    fn xrc_inbox(&mut self, end: usize, domain: &XrcDomain) -> usize {
        let init = SrqInit::default();
        let queue = self.pds[end].create_xrc_srq(&init, domain, &self.cqs[end]).expect("a queue");
        self.inbox(end, Receiver::Shared(queue), self.plan.receives)
    }

    fn qp(
        &self,
        end: usize,
        plan: &PairPlan,
        domain: &XrcDomain,
        srq: Option<&SharedReceiveQueue>,
    ) -> QueuePair {
        let is_target = plan.kind == Kind::Xrc && end != plan.first;
        let service = match plan.kind {
            Kind::Rc => Service::Rc,
            Kind::Uc => Service::Uc,
            Kind::Ud => Service::Ud,
            Kind::Xrc if is_target => Service::XrcTgt,
            Kind::Xrc => Service::XrcIni,
        };
        let init = QpInit {
            service,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_inline: u32::try_from(MAX_INLINE).expect("small"),
            srq,
            xrc_domain: is_target.then_some(domain),
            ..QpInit::new(&self.cqs[end])
        };
        self.pds[end].create_qp(&init).expect("a queue pair")
    }
}

/// Connects two queue pairs in RESET. Returns what the packets of a reliable service must obey.
pub fn connect(
    qps: &mut [QueuePair; 2],
    psns: [Psn; 2],
    plan: &Plan,
    pair: &PairPlan,
) -> Option<Connection> {
    let gid = u32::from(plan.v6);
    let ends = [0, 1].map(|end: usize| {
        let endpoint = qps[end].endpoint(psns[end], gid).expect("a GID");
        Endpoint { selective_repeat: pair.selective_repeat, ..endpoint }
    });
    let options = ConnectOptions {
        sgid_index: gid,
        path_mtu: Some(plan.mtu),
        timeout: 8, // 1 ms: longer than a round trip with every delay.
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 5,
        ..ConnectOptions::default()
    };
    for end in 0..2 {
        qps[end].connect(psns[end], &ends[1 - end], &options).expect("connected");
    }
    pair.kind.is_reliable().then(|| Connection {
        qpns: qps.each_ref().map(QueuePair::qpn),
        psns,
        mtu: plan.mtu.bytes(),
        window: WINDOW,
        selective_repeat: pair.selective_repeat,
        v6: plan.v6,
    })
}
