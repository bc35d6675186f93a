//! The state of a flow.

use std::net::IpAddr;

use feroce_wire::{MacAddr, Operation, Psn, Qpn};

use super::figures::Figures;
use super::recorder::Recorder;
use super::window::{Sent, Window};
use super::{Key, Service};
use crate::rules::PacketRef;

/// Parameters of the requests of a flow, as agreed by communication management.
#[derive(Debug, Clone, Copy, Default)]
pub struct Agreed {
    /// Path MTU, in bytes.
    pub path_mtu: Option<u32>,
    /// Starting PSN of the requests.
    pub first_psn: Option<Psn>,
    /// Retry count.
    pub retry_count: Option<u8>,
    /// RNR retry count; 7 means without limit.
    pub rnr_retry_count: Option<u8>,
    /// READs and atomics that the responder accepts at a time.
    pub depth: Option<u8>,
    /// True if end-to-end credits are in use.
    pub flow_control: bool,
    /// P_Key.
    pub pkey: Option<u16>,
}

/// The position of the newest request within its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// At the end of a message: the next packet begins a new one.
    Between,
    /// Unknown, because a packet was not captured.
    Unknown,
    /// Inside a message.
    Within {
        /// SEND or WRITE.
        operation: Operation,
        /// Bytes sent so far.
        bytes: u64,
        /// DMA length in the RETH of a WRITE.
        total: Option<u32>,
    },
}

/// A NAK (PSN sequence) to which the requester has not reacted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nak {
    /// The PSN that the NAK names.
    pub psn: Psn,
    /// The packet of the NAK.
    pub packet: PacketRef,
    /// Time of capture.
    pub at: u64,
}

/// A retransmission without a NAK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// PSN of the request.
    pub psn: Psn,
    /// The retransmitted packet.
    pub packet: PacketRef,
    /// Time of capture.
    pub at: u64,
    /// Time since the previous copy, in nanoseconds.
    pub since: u64,
    /// The previous copy.
    pub before: PacketRef,
}

/// An RNR NAK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rnr {
    /// The PSN that the NAK names.
    pub psn: Psn,
    /// The packet of the NAK.
    pub packet: PacketRef,
    /// Time of capture.
    pub at: u64,
    /// How long the requester must wait, in nanoseconds.
    pub wait: u64,
    /// Number of consecutive RNR NAKs for the PSN.
    pub times: u16,
    /// True if the request has not been retransmitted since.
    pub is_open: bool,
}

/// CE-marked packets of one sender, and the CNPs for the sender.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    /// Number of packets marked CE.
    pub marked: u64,
    /// The first marked packet and its time of capture.
    pub first: Option<(PacketRef, u64)>,
    /// Number of CNPs.
    pub cnps: u64,
    /// Time of the last CNP.
    pub last_cnp: Option<u64>,
}

/// The fields of a packet that decide its path and its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Ethernet source and destination.
    pub macs: (MacAddr, MacAddr),
    /// VLAN identifier and priority.
    pub vlan: Option<(u16, u8)>,
    /// IPv6 flow label; 0 for IPv4.
    pub flow_label: u32,
    /// UDP source port.
    pub source_port: u16,
    /// DSCP.
    pub dscp: u8,
}

/// How long a response may wait in the requester's receive queue, in nanoseconds.
const QUEUED: u64 = 200_000_000;

/// A flow: requests from one QP to another, and their responses.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // Independent facts.
pub struct Channel {
    /// Key of the requests. The QP number is 0 if no request was captured.
    pub key: Key,
    /// The QP that the responses go to.
    pub response_qpn: Option<Qpn>,
    /// True if communication management told `response_qpn`; otherwise the PSN of a response did.
    pub is_agreed: bool,
    /// Number of responses to `response_qpn`.
    pub bound_responses: u32,
    /// Another QP to which responses with fitting PSNs went, and their number.
    pub other_qpn: Option<(Qpn, u32)>,
    /// The first packet.
    pub first: Option<PacketRef>,
    /// The state before a distant PSN, until a second packet shows that a new connection has begun;
    /// true if the distant PSN was reported.
    pub before_jump: Option<(Box<Channel>, bool)>,
    /// Path MTU, agreed on or learned from packets.
    pub path_mtu: Option<u32>,
    /// Result of the connection setup.
    pub agreed: Agreed,
    /// All outstanding requests and the newest completed ones.
    pub window: Window,
    /// The PSN after the newest request.
    pub next: Option<Psn>,
    /// The PSN after the newest acknowledged one.
    pub acked: Option<Psn>,
    /// The last acknowledgement.
    pub last_ack: Option<PacketRef>,
    /// Position of the newest request within its message.
    pub message: Message,
    /// Number of messages completed by the newest request and those before.
    pub messages: u32,
    /// Number of the counting epoch: the count of messages starts again after a gap.
    pub epoch: u32,
    /// The epoch, and in it the responder's MSN minus the number of messages.
    pub msn_base: Option<(u32, u32)>,
    /// The next PSN of a retransmission that has begun.
    pub repeats: Option<Psn>,
    /// The NAK without a reaction.
    pub nak: Option<Nak>,
    /// A NAK after which the requester restarted, as far as captured, at a later PSN: the NAK, the
    /// restarting packet, its time and its PSN.
    pub restarted: Option<(Nak, PacketRef, u64, Psn)>,
    /// PSN of the last NAK, unless something was retransmitted since.
    pub nak_for: Option<Psn>,
    /// The last RNR NAK.
    pub rnr: Option<Rnr>,
    /// Retransmissions of one PSN without a NAK. Later responses show whether they were needed or
    /// too early.
    pub pending: Vec<Pending>,
    /// Number of further acknowledgements of the newest acknowledged PSN.
    pub again: u32,
    /// RNR NAKs that the requester may not have read yet, although their PSN is acknowledged: PSN
    /// and time.
    refused: Vec<(Psn, u64)>,
    /// The PSN after the last response to a READ or atomic.
    pub next_response: Option<Psn>,
    /// Time of the last acknowledgement.
    pub acked_at: u64,
    /// The NAK that failed the connection: PSN, packet and time.
    pub failed: Option<(Psn, PacketRef, u64)>,
    /// The newest IPv4 identification.
    pub newest_id: Option<u16>,
    /// The newest IPv4 identification before the last request.
    pub id_before: Option<u16>,
    /// When a packet last arrived after packets that were sent later.
    pub late_at: Option<u64>,
    /// The path of the last request, and of the last response.
    pub path: [Option<Path>; 2],
    /// True if the sender is a full member of its partition, for requests and for responses.
    pub is_full_member: [Option<bool>; 2],
    /// The DREP that ended the connection, and its time.
    pub ended: Option<(PacketRef, u64)>,
    /// UDP source port of the requests.
    pub source_port: Option<u16>,
    /// DSCP of the requests.
    pub dscp: Option<u8>,
    /// True if ECN-capable, for requests and for responses.
    pub ect: [Option<bool>; 2],
    /// P_Key of requests and responses.
    pub pkey: Option<u16>,
    /// Q_Key of datagrams.
    pub qkey: Option<u32>,
    /// Number of messages that the credits of the last acknowledgement allow.
    pub credit_limit: Option<u32>,
    /// True if MigReq 0 was seen, as Linux rxe sends it; other quirks of rxe are expected then.
    pub mig_req_0: bool,
    /// Marks and CNPs, for requests and for responses.
    pub marks: [Mark; 2],
    /// Bit set of reported quirks.
    pub quirks: u32,
    /// Measured figures.
    pub figures: Figures,
    /// Packets for the graph and the ladder diagram.
    pub recorder: Recorder,
    /// True for responses without known requests.
    responses_only: bool,
    /// True if the responses turned out to belong to another flow.
    pub is_merged: bool,
    /// The first response that shows that the responder expects another PSN than the first one, and
    /// that PSN if a NAK names it.
    pub mismatch: Option<(PacketRef, Option<Psn>)>,
    /// The starting PSN of the connection and the first request, if that has a later PSN: until an
    /// MSN shows whether requests before it were completed.
    pub late_start: Option<(Psn, PacketRef, u64)>,
    /// The first PSN of a gap in the requests, until the next response.
    pub gap: Option<Psn>,
    /// The PSNs of the last gap whose requests arrived at the responder: the capture misses them.
    pub hole: Option<(Psn, Psn)>,
    /// Reported acknowledgements of PSNs that were not captured: PSN, packet and time.
    pub unsent: Vec<(Psn, PacketRef, u64)>,
    /// Where the last retransmission began, until a response shows where its responses begin.
    pub restarted_at: Option<Psn>,
    /// Time of the last response.
    pub response_at: u64,
    /// A request that is retransmitted although its response was captured, the number of these
    /// retransmissions, and the packet and time of the last one. Ends with the next new request.
    pub unheard: Option<(Psn, u16, PacketRef, u64)>,
}

impl Channel {
    /// Creates a flow of requests with `key`.
    pub fn new(key: Key) -> Self {
        Self {
            key,
            response_qpn: None,
            is_agreed: false,
            bound_responses: 0,
            other_qpn: None,
            first: None,
            before_jump: None,
            path_mtu: None,
            agreed: Agreed::default(),
            window: Window::default(),
            next: None,
            acked: None,
            last_ack: None,
            message: Message::Unknown,
            messages: 0,
            epoch: 1,
            msn_base: None,
            repeats: None,
            nak: None,
            restarted: None,
            nak_for: None,
            rnr: None,
            pending: Vec::new(),
            again: 0,
            refused: Vec::new(),
            next_response: None,
            acked_at: 0,
            failed: None,
            newest_id: None,
            id_before: None,
            late_at: None,
            path: [None; 2],
            is_full_member: [None; 2],
            ended: None,
            source_port: None,
            dscp: None,
            ect: [None; 2],
            pkey: None,
            qkey: None,
            credit_limit: None,
            mig_req_0: false,
            marks: [Mark::default(); 2],
            quirks: 0,
            figures: Figures::default(),
            recorder: Recorder::default(),
            responses_only: false,
            is_merged: false,
            mismatch: None,
            late_start: None,
            gap: None,
            hole: None,
            unsent: Vec::new(),
            restarted_at: None,
            response_at: 0,
            unheard: None,
        }
    }

    /// Creates a flow of responses with `key` whose requests were not captured.
    pub fn responses_only(key: Key) -> Self {
        let requests = Key { src: key.dst, dst: key.src, qpn: Qpn::masked(0), ..key };
        Self { response_qpn: Some(key.qpn), responses_only: true, ..Self::new(requests) }
    }

    /// Returns true if no request was captured.
    pub const fn has_only_responses(&self) -> bool {
        self.responses_only
    }

    /// Returns true if the service acknowledges requests.
    pub const fn is_reliable(&self) -> bool {
        matches!(self.key.service, Service::Rc | Service::Xrc)
    }

    /// Returns true if `psn` belongs to a known request.
    pub fn expects(&self, psn: Psn) -> bool {
        let is_in = |channel: &Self| channel.window.find(psn).is_some();
        is_in(self) || self.before_jump.as_ref().is_some_and(|(before, _)| is_in(before))
    }

    /// Returns true if `psn` could be that of a request sent shortly before the captured ones.
    pub fn may_have_sent(&self, psn: Psn) -> bool {
        const NEAR: u32 = 1 << 15;
        self.next.is_some_and(|next| psn.is_before(next) && psn.distance_to(next) < NEAR)
    }

    /// Returns true if packets have overtaken each other recently: a missing packet may then still
    /// arrive.
    pub fn is_disordered(&self, now: u64) -> bool {
        const RECENT: u64 = 100_000_000;
        self.late_at.is_some_and(|at| now.saturating_sub(at) < RECENT)
    }

    /// Handles the acknowledgement of the PSN that the last RNR NAK names. rxe reads its responses
    /// one by one and may process the NAK later.
    pub fn end_rnr(&mut self) {
        const MAX_PENDING: usize = 64;
        let Some(rnr) = self.rnr.take() else { return };
        self.refused.retain(|&(_, at)| rnr.at.saturating_sub(at) < QUEUED);
        if self.refused.len() < MAX_PENDING {
            self.refused.push((rnr.psn, rnr.at));
        }
    }

    /// Returns true if the requester may process an RNR NAK for `psn` only at `now`.
    pub fn may_still_process_rnr_nak(&self, psn: Psn, now: u64) -> bool {
        self.refused.iter().any(|&(named, at)| named == psn && now.saturating_sub(at) < QUEUED)
    }

    /// Sets the number of PSNs of the newest request, which is a READ.
    pub fn widen_newest(&mut self, span: u32) {
        if let Some(newest) = self.window.newest_mut() {
            newest.span = span;
            self.next = Some(newest.end());
        }
    }

    /// Resets the state for a new connection; figures and recorded packets stay. Returns the state
    /// of the old connection.
    pub fn start_connection(&mut self, agreed: Agreed) -> Self {
        let mut old = std::mem::replace(self, Self::new(self.key));
        self.agreed = agreed;
        self.path_mtu = agreed.path_mtu;
        self.keep_of(&mut old);
        old
    }

    /// Takes what does not belong to a single connection from `other`.
    fn keep_of(&mut self, other: &mut Self) {
        self.first = other.first;
        self.figures = other.figures;
        self.recorder = std::mem::take(&mut other.recorder);
        self.quirks = other.quirks;
        self.mig_req_0 = other.mig_req_0;
        self.marks = other.marks;
    }

    /// Returns to the state before a distant PSN. Returns the request with this PSN, and whether it
    /// was reported.
    pub fn undo_jump(&mut self) -> Option<(Sent, bool)> {
        let (before, is_reported) = self.before_jump.take()?;
        let mut other = std::mem::replace(self, *before);
        self.keep_of(&mut other);
        self.response_qpn = other.response_qpn;
        other.window.newest().map(|stray| (*stray, is_reported))
    }

    /// Returns the addresses of the requester and of the responder.
    pub const fn ends(&self) -> (IpAddr, IpAddr) {
        (self.key.src, self.key.dst)
    }
}
