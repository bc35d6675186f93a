//! A plan for a requester and a responder: what both post, and how each request completes.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::Status;
use feroce_wire::Psn;

/// Index of the requester's part in what exists for both.
pub const REQUESTER: usize = 0;
/// Index of the responder's part.
pub const RESPONDER: usize = 1;

/// The internet protocol that carries a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// True if `address` is of the family, and not link-local.
    pub fn covers(self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::V4, IpAddr::V4(_)) => true,
            (Self::V6, IpAddr::V6(address)) => !address.is_unicast_link_local(),
            _ => false,
        }
    }
}

/// An operation of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// SEND with invalidate.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// RDMA READ.
    Read,
    /// FETCH AND ADD.
    FetchAdd,
    /// COMPARE AND SWAP of a value that is there.
    CmpSwap,
    /// COMPARE AND SWAP of a value that is not there: nothing is stored.
    CmpSwapMiss,
}

/// Names, and the values of `ibv_wr_opcode`.
const OPS: [(Op, &str, u32); 9] = [
    (Op::Send, "send", 2),
    (Op::SendImm, "send_imm", 3),
    (Op::SendInv, "send_inv", 9),
    (Op::Write, "write", 0),
    (Op::WriteImm, "write_imm", 1),
    (Op::Read, "read", 4),
    (Op::FetchAdd, "fetch_add", 6),
    (Op::CmpSwap, "cmp_swap", 5),
    (Op::CmpSwapMiss, "cmp_swap_miss", 5),
];

impl Op {
    fn row(self) -> &'static (Op, &'static str, u32) {
        OPS.iter().find(|(op, ..)| *op == self).expect("every operation has a row")
    }

    /// Value of `ibv_wr_opcode`.
    pub fn verbs_opcode(self) -> u32 {
        self.row().2
    }

    /// True if it consumes a receive of the responder.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv | Self::WriteImm)
    }

    /// True if its bytes go to a receive, rather than to a remote address.
    pub fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }

    /// True for atomics.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap | Self::CmpSwapMiss)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().1)
    }
}

/// Memory that an end registers, filled with a pattern of its own.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    /// Bytes.
    pub len: u32,
    /// Rights.
    pub access: Access,
    /// Its key can be invalidated by the peer: a type 2 window of rxe, a right of Feroce's.
    pub window: bool,
}

/// Where bytes lie at an end.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Which region.
    pub region: usize,
    /// Where in it.
    pub offset: u32,
}

/// What a request leaves in the memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What its operation says.
    Whole,
    /// Nothing.
    Nothing,
    /// Any part of its bytes may have arrived.
    Unknown,
}

/// A send request.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// What it does.
    pub op: Op,
    /// Bytes.
    pub len: u32,
    /// Its local bytes.
    pub local: Place,
    /// The remote bytes: those of a receive, for a SEND. SEND with invalidate takes the responder's window.
    pub remote: Place,
    /// The remote key is one that was never given.
    pub wrong_key: bool,
    /// Waits for the READs and atomics before it.
    pub fence: bool,
    /// The bytes go into the work queue.
    pub inline: bool,
    /// How it must complete.
    pub status: Status,
    /// What it must do.
    pub effect: Effect,
}

/// A receive of the responder.
#[derive(Debug, Clone, Copy)]
pub struct Receive {
    /// Its bytes.
    pub place: Place,
    /// How many.
    pub len: u32,
    /// How it must complete; `None` if it stays where it is.
    pub status: Option<Status>,
}

/// What happens beside requests and receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twist {
    /// Nothing.
    None,
    /// The receives are posted this long after the requests.
    LateReceives(Duration),
    /// The responder destroys its QP before the requests are posted.
    ResponderGone,
    /// rxe's process is killed when Feroce sees its first completion, behind a cut network if it requests. What
    /// completes before is chance.
    PeerKilled,
}

/// How an end's QP is set up.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// First PSN that it sends.
    pub psn: Psn,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Code of the time that its RNR NAKs ask for.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding, either way.
    pub depth: u8,
    /// What its QP lets the peer do.
    pub access: Access,
}

/// What a requester and a responder do, and what comes of it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// QPs, by end.
    pub settings: [Settings; 2],
    /// Memory, by end.
    pub regions: [Vec<Region>; 2],
    /// Posted at once, in order.
    pub requests: Vec<Request>,
    /// Posted before the requests, in order.
    pub receives: Vec<Receive>,
    /// See [`Twist`].
    pub twist: Twist,
    /// How far the responder's expected PSN is ahead of the requester's first.
    pub psn_ahead: u32,
    /// States of the QPs at the end, by end.
    pub states: [QpState; 2],
}

/// What QPs and regions allow unless a plan says less: everything but invalidation.
pub const RIGHTS: Access = Access::from_bits(0xf).expect("known bits");

const SETTINGS: Settings = Settings {
    psn: Psn::new(0x100),
    // 2.1 s: nothing is lost unless a case loses it, and a busy machine takes its time. rxe 6.1 may go silent
    // for ever when its timer goes off while a fenced request waits.
    timeout: 19,
    retry_cnt: 7,
    rnr_retry: 7,
    min_rnr_timer: 12, // 0.64 ms
    depth: 16,
    access: RIGHTS,
};

/// Bytes between the places that a plan allots: what is written there by mistake is seen.
const GAP: u32 = 64;

impl Plan {
    /// A plan without requests: one region with all rights at each end, all well.
    pub fn new() -> Self {
        let region = Region { len: GAP, access: RIGHTS, window: false };
        Self {
            settings: [SETTINGS, Settings { psn: Psn::new(0x77_0000), ..SETTINGS }],
            regions: [vec![region], vec![region]],
            requests: Vec::new(),
            receives: Vec::new(),
            twist: Twist::None,
            psn_ahead: 0,
            states: [QpState::Rts; 2],
        }
    }

    /// Adds a request of `len` bytes that succeeds, with places of its own at both ends, and a receive if it
    /// consumes one. Returns it for what is to be different.
    pub fn request(&mut self, op: Op, len: u32) -> &mut Request {
        self.request_to(op, len, 0)
    }

    /// The same, to the responder's region `region`.
    pub fn request_to(&mut self, op: Op, len: u32, region: usize) -> &mut Request {
        let local = self.allot(REQUESTER, 0, len);
        let remote = self.allot(RESPONDER, region, len);
        if op.consumes_receive() {
            let len = if op.is_send() { len } else { 0 };
            self.receives.push(Receive { place: remote, len, status: Some(Status::Success) });
        }
        self.requests.push(Request {
            op,
            len,
            local,
            remote,
            wrong_key: false,
            fence: false,
            inline: false,
            status: Status::Success,
            effect: Effect::Whole,
        });
        self.requests.last_mut().expect("just added")
    }

    /// Adds an empty region to the responder; returns its index.
    pub fn region(&mut self, access: Access, window: bool) -> usize {
        self.regions[RESPONDER].push(Region { len: GAP, access, window });
        self.regions[RESPONDER].len() - 1
    }

    /// A place for `len` bytes; a word's alignment is kept where a word fits, any other is not.
    fn allot(&mut self, end: usize, region: usize, len: u32) -> Place {
        let bytes = &mut self.regions[end][region].len;
        let offset = bytes.next_multiple_of(8) + if len == 8 { 0 } else { 3 };
        *bytes = offset + len + GAP;
        Place { region, offset }
    }

    /// Changes the settings of both ends.
    pub fn set(&mut self, change: impl Fn(&mut Settings)) {
        self.settings.iter_mut().for_each(change);
    }

    /// The last request fails with `status` and does nothing; both QPs end in ERR.
    pub fn refused(&mut self, status: Status) {
        let last = self.requests.last_mut().expect("a request");
        (last.status, last.effect) = (status, Effect::Nothing);
        self.states = [QpState::Err; 2];
    }

    /// A WRITE behind what went wrong: flushed.
    pub fn flushed(&mut self) {
        let request = self.request(Op::Write, 10);
        (request.status, request.effect) = (Status::WorkRequestFlushed, Effect::Nothing);
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::new()
    }
}
