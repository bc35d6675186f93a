//! What is known of a flow.

use std::net::IpAddr;

use feroce_wire::{Operation, Psn, Qpn, Transport};

use super::Key;
use super::window::Window;
use crate::check::{Figures, Recorder};
use crate::rules::PacketRef;

/// What connection management has agreed on for the requests of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Agreed {
    /// Largest payload of a packet.
    pub path_mtu: Option<u32>,
    /// PSN of the first request.
    pub first_psn: Option<Psn>,
    /// How often a request may be repeated.
    pub retry_count: Option<u8>,
    /// How often after RNR NAKs; 7 means for ever.
    pub rnr_retry_count: Option<u8>,
    /// READs and atomics that are answered at a time.
    pub depth: Option<u8>,
    /// Whether credits count.
    pub flow_control: bool,
}

/// The message in the middle of which a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// None: the next packet begins one.
    Between,
    /// Nobody knows: something was not seen.
    Unknown,
    /// So many bytes of this one were sent.
    Within {
        /// SEND or WRITE.
        operation: Operation,
        /// Until now.
        bytes: u64,
        /// As a WRITE's RETH says.
        total: Option<u32>,
    },
}

/// A NAK (PSN sequence) that the requester has not reacted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nak {
    /// What it names.
    pub psn: Psn,
    /// Which packet.
    pub packet: PacketRef,
    /// When.
    pub at: u64,
}

/// A request that was sent again without a NAK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Its PSN.
    pub psn: Psn,
    /// The packet that repeats it.
    pub packet: PacketRef,
    /// When.
    pub at: u64,
    /// How long after the last copy, in nanoseconds.
    pub since: u64,
    /// The last copy.
    pub before: PacketRef,
}

/// An RNR NAK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rnr {
    /// What it names.
    pub psn: Psn,
    /// Which packet.
    pub packet: PacketRef,
    /// When.
    pub at: u64,
    /// For how long the requester must wait, in nanoseconds.
    pub wait: u64,
    /// How many in a row there were for the PSN.
    pub times: u16,
    /// Whether the request has not been sent again since.
    pub is_open: bool,
}

/// Packets that were marked, and CNPs against their sender.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    /// Packets with CE.
    pub marked: u64,
    /// The first of them.
    pub first: Option<(PacketRef, u64)>,
    /// CNPs.
    pub cnps: u64,
    /// The last of them.
    pub last_cnp: Option<u64>,
}

/// How long an answer may lie in the requester's queue, in nanoseconds.
const QUEUED: u64 = 200_000_000;

/// Requests from one QP to another, and their answers.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
pub struct Channel {
    /// Of the requests. Of a flow without any, the QP is not known and 0.
    pub key: Key,
    /// Where the answers go.
    pub answers: Option<Qpn>,
    /// Service, once a packet was seen.
    pub transport: Option<Transport>,
    /// Path MTU, told or found out.
    pub path_mtu: Option<u32>,
    /// What connection management has said.
    pub agreed: Agreed,
    /// Requests.
    pub window: Window,
    /// The PSN behind the newest request.
    pub next: Option<Psn>,
    /// The PSN behind the newest that is acknowledged.
    pub acked: Option<Psn>,
    /// The last acknowledgement.
    pub last_ack: Option<PacketRef>,
    /// Where in a message the newest request is.
    pub message: Message,
    /// Messages that the newest request and those before complete.
    pub messages: u32,
    /// From which point they are counted.
    pub epoch: u32,
    /// The responder's MSN less that count.
    pub msn_base: Option<(u32, u32)>,
    /// The requester repeats, and this is next.
    pub repeats: Option<Psn>,
    /// NAK that has not been reacted to.
    pub nak: Option<Nak>,
    /// A NAK after which the requester has begun again with a later PSN, as far as was seen: where, and with which.
    pub restarted: Option<(Nak, PacketRef, u64, Psn)>,
    /// The last NAK's PSN, unless something was sent again since.
    pub nak_for: Option<Psn>,
    /// The last RNR NAK.
    pub rnr: Option<Rnr>,
    /// Repetitions of one PSN without a NAK, of which it is not known yet whether they came too early.
    pub pending: Vec<Pending>,
    /// How often the newest acknowledged PSN has been acknowledged again since.
    pub again: u32,
    /// RNR NAKs that the requester may still have to read, though what they name is acknowledged since: PSN, and when.
    refused: Vec<(Psn, u64)>,
    /// The PSN behind the last answer to a READ or atomic.
    pub answer_due: Option<Psn>,
    /// When the last acknowledgement was captured.
    pub acked_at: u64,
    /// What has ended the connection.
    pub failed: Option<(Psn, PacketRef, u64)>,
    /// Newest IPv4 identification.
    pub newest_id: Option<u16>,
    /// When the last packet arrived that was sent before others that had arrived.
    pub late_at: Option<u64>,
    /// UDP source port of requests.
    pub source_port: Option<u16>,
    /// DSCP of requests.
    pub dscp: Option<u8>,
    /// ECT of requests and of answers.
    pub ect: [Option<bool>; 2],
    /// P_Key of both.
    pub pkey: Option<u16>,
    /// Q_Key of datagrams.
    pub qkey: Option<u32>,
    /// SENDs that credits allow, by the last acknowledgement: the limit of messages.
    pub credit_limit: Option<u32>,
    /// MigReq 0 was seen: the habits of rxe are to be expected.
    pub mig_req_0: bool,
    /// Marks and CNPs of requests and of answers.
    pub marks: [Mark; 2],
    /// Which quirks were told.
    pub quirks: u32,
    /// Figures for people.
    pub figures: Figures,
    /// What a picture needs.
    pub recorder: Recorder,
    /// Answers of no known requests.
    alone: bool,
    /// Its answers have been found to belong to another flow.
    pub is_merged: bool,
    /// An answer has said that PSNs below the first request are taken.
    pub mismatch: Option<PacketRef>,
}

impl Channel {
    /// Of requests with `key`.
    pub fn new(key: Key) -> Self {
        Self {
            key,
            answers: None,
            transport: None,
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
            answer_due: None,
            acked_at: 0,
            failed: None,
            newest_id: None,
            late_at: None,
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
            alone: false,
            is_merged: false,
            mismatch: None,
        }
    }

    /// Of answers with `key` to requests that nobody saw.
    pub fn alone(key: Key) -> Self {
        let Key { tap, src, dst, qpn } = key;
        let requests = Key { tap, src: dst, dst: src, qpn: Qpn::masked(0) };
        Self { answers: Some(qpn), alone: true, ..Self::new(requests) }
    }

    /// Whether no request was seen.
    pub const fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether its requests are answered.
    pub const fn is_reliable(&self) -> bool {
        !matches!(self.transport, Some(Transport::Uc | Transport::Ud | Transport::Cnp))
    }

    /// Whether an answer with `psn` is waited for.
    pub fn waits_for(&self, psn: Psn) -> bool {
        self.window.find(psn).is_some()
    }

    /// Whether `psn` could have been sent shortly before what was seen of this flow.
    pub fn may_have_sent(&self, psn: Psn) -> bool {
        const NEAR: u32 = 1 << 15;
        self.next.is_some_and(|next| psn.is_before(next) && psn.distance_to(next) < NEAR)
    }

    /// Whether packets overtake each other: then one that is missing at `now` may still come.
    pub fn is_disordered(&self, now: u64) -> bool {
        const LATELY: u64 = 100_000_000;
        self.late_at.is_some_and(|at| now.saturating_sub(at) < LATELY)
    }

    /// What the last RNR NAK names is acknowledged at last. rxe reads its answers one by one, and comes to the NAK later.
    pub fn end_rnr(&mut self) {
        const MOST: usize = 64;
        let Some(rnr) = self.rnr.take() else { return };
        self.refused.retain(|&(_, at)| rnr.at.saturating_sub(at) < QUEUED);
        if self.refused.len() < MOST {
            self.refused.push((rnr.psn, rnr.at));
        }
    }

    /// Whether the requester may read an RNR NAK for `psn` only at `now`.
    pub fn was_refused(&self, psn: Psn, now: u64) -> bool {
        self.refused.iter().any(|&(named, at)| named == psn && now.saturating_sub(at) < QUEUED)
    }

    /// The newest request, a READ, takes `span` PSNs.
    pub fn widen_newest(&mut self, span: u32) {
        if let Some(newest) = self.window.newest_mut() {
            newest.span = span;
            self.next = Some(newest.end());
        }
    }

    /// For another connection: what was sent is forgotten, what was measured stays.
    pub fn begin_anew(&mut self, agreed: Agreed) {
        let old = std::mem::replace(self, Self::new(self.key));
        self.agreed = agreed;
        self.path_mtu = agreed.path_mtu;
        self.transport = old.transport;
        self.figures = old.figures;
        self.recorder = old.recorder;
        self.quirks = old.quirks;
        self.mig_req_0 = old.mig_req_0;
        self.marks = old.marks;
    }

    /// Who asks, and whom.
    pub const fn ends(&self) -> (IpAddr, IpAddr) {
        (self.key.src, self.key.dst)
    }
}
