//! A plan for a requester and a responder: what both post, and how each request completes.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::Status;
use feroce_wire::Psn;

/// Index of the requester in arrays of both ends.
pub const REQUESTER: usize = 0;
/// Index of the responder.
pub const RESPONDER: usize = 1;

/// The IP version of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both versions.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns true if `address` is of this version and not link-local.
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
    /// COMPARE AND SWAP whose compare operand matches.
    CmpSwap,
    /// COMPARE AND SWAP whose compare operand does not match: nothing is stored.
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

    /// Returns the value of `ibv_wr_opcode`.
    pub fn verbs_opcode(self) -> u32 {
        self.row().2
    }

    /// Returns true if it consumes a receive of the responder.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv | Self::WriteImm)
    }

    /// Returns true if its data goes to a receive and not to a remote address.
    pub fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }

    /// Returns true for atomics.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap | Self::CmpSwapMiss)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().1)
    }
}

/// Memory that an end registers, filled with a pattern.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    /// Length, in bytes.
    pub len: u32,
    /// Access rights.
    pub access: Access,
    /// True if the peer can invalidate its key: a type 2 window of rxe, an access right of Feroce.
    pub window: bool,
}

/// A position in the memory of an end.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Index of the region.
    pub region: usize,
    /// Offset in the region, in bytes.
    pub offset: u32,
}

/// The effect of a request on the memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The full effect of its operation.
    Whole,
    /// No effect.
    Nothing,
    /// Any part of its data may have arrived.
    Unknown,
}

/// A send request.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Operation.
    pub op: Op,
    /// Length, in bytes.
    pub len: u32,
    /// Local memory.
    pub local: Place,
    /// Remote memory; for a SEND, that of the receive. SEND with invalidate invalidates the
    /// responder's window.
    pub remote: Place,
    /// True if the remote key is one that was never issued.
    pub wrong_key: bool,
    /// True if it waits for the preceding READs and atomics.
    pub fence: bool,
    /// True if the data is inlined into the work queue.
    pub inline: bool,
    /// Expected completion status.
    pub status: Status,
    /// Expected effect.
    pub effect: Effect,
}

/// A receive of the responder.
#[derive(Debug, Clone, Copy)]
pub struct Receive {
    /// Memory.
    pub place: Place,
    /// Length, in bytes.
    pub len: u32,
    /// Expected completion status; `None` if the receive stays posted.
    pub status: Option<Status>,
}

/// A special event during the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialEvent {
    /// No special event.
    None,
    /// The receives are posted this long after the requests.
    LateReceives(Duration),
    /// The responder destroys its QP before the requests are posted.
    ResponderGone,
    /// rxe's process is killed after Feroce's first completion; if rxe is the requester, the
    /// network is cut first. The number of earlier completions is random.
    PeerKilled,
}

/// The parameters of an end's QP.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Starting PSN.
    pub psn: Psn,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Retry count.
    pub retry_cnt: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// Timer code in its RNR NAKs.
    pub min_rnr_timer: u8,
    /// Maximum number of READs and atomics outstanding, in either direction.
    pub depth: u8,
    /// The access rights of the peer.
    pub access: Access,
}

/// What a requester and a responder do, and the expected result.
#[derive(Debug, Clone)]
pub struct Plan {
    /// QP parameters, by end.
    pub settings: [Settings; 2],
    /// Memory regions, by end.
    pub regions: [Vec<Region>; 2],
    /// Requests, posted at once, in order.
    pub requests: Vec<Request>,
    /// Receives, posted before the requests, in order.
    pub receives: Vec<Receive>,
    /// Special event.
    pub special_event: SpecialEvent,
    /// Difference between the responder's expected PSN and the requester's starting PSN.
    pub psn_ahead: u32,
    /// Expected final states of the QPs, by end.
    pub states: [QpState; 2],
}

/// The default rights of QPs and regions: all but invalidation.
pub const RIGHTS: Access = Access::from_bits(0xf).expect("known bits");

const SETTINGS: Settings = Settings {
    psn: Psn::new(0x100),
    // 2.1 s: only deliberate losses cause timeouts, even on a busy machine. rxe 6.1 may stop
    // forever if its timer expires while a fenced request waits.
    timeout: 19,
    retry_cnt: 7,
    rnr_retry: 7,
    min_rnr_timer: 12, // 0.64 ms
    depth: 16,
    access: RIGHTS,
};

/// Unused bytes between the allotted memory ranges, which reveal stray writes.
const GAP: u32 = 64;

impl Plan {
    /// Creates a plan without requests: one region with all rights at each end, no errors.
    pub fn new() -> Self {
        let region = Region { len: GAP, access: RIGHTS, window: false };
        Self {
            settings: [SETTINGS, Settings { psn: Psn::new(0x77_0000), ..SETTINGS }],
            regions: [vec![region], vec![region]],
            requests: Vec::new(),
            receives: Vec::new(),
            special_event: SpecialEvent::None,
            psn_ahead: 0,
            states: [QpState::Rts; 2],
        }
    }

    /// Adds a request of `len` bytes that succeeds, with memory of its own at both ends, and a
    /// receive if it consumes one. Returns the request for further changes.
    pub fn request(&mut self, op: Op, len: u32) -> &mut Request {
        self.request_to(op, len, 0)
    }

    /// Adds such a request to the responder's region `region`.
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

    /// Adds an empty region to the responder and returns its index.
    pub fn region(&mut self, access: Access, window: bool) -> usize {
        self.regions[RESPONDER].push(Region { len: GAP, access, window });
        self.regions[RESPONDER].len() - 1
    }

    /// Allots memory for `len` bytes. Eight bytes are aligned to a word; any other length is
    /// misaligned.
    fn allot(&mut self, end: usize, region: usize, len: u32) -> Place {
        let bytes = &mut self.regions[end][region].len;
        let offset = bytes.next_multiple_of(8) + if len == 8 { 0 } else { 3 };
        *bytes = offset + len + GAP;
        Place { region, offset }
    }

    /// Changes the QP parameters of both ends.
    pub fn set(&mut self, change: impl Fn(&mut Settings)) {
        self.settings.iter_mut().for_each(change);
    }

    /// Makes the last request fail with `status` and without effect; both QPs end in ERR.
    pub fn refused(&mut self, status: Status) {
        let last = self.requests.last_mut().expect("a request");
        (last.status, last.effect) = (status, Effect::Nothing);
        self.states = [QpState::Err; 2];
    }

    /// Adds a WRITE that is flushed after an earlier error.
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
