//! A QP at one moment, for statistics.

use std::net::IpAddr;

use feroce_wire::{IpAddresses, Psn, Qpn};

use super::connected::Qp;
use super::state::QpState;
use super::timer::Timer;
use crate::congestion::RateSnapshot;

/// A QP at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpSnapshot {
    /// Number of the QP.
    pub qpn: Qpn,
    /// State of the QP.
    pub state: QpState,
    /// Number and address of the peer; `None` before RTR.
    pub peer: Option<(Qpn, IpAddr)>,
    /// Path MTU in bytes.
    pub path_mtu: usize,
    /// Oldest unacknowledged PSN.
    pub unacknowledged: Psn,
    /// PSN of the next packet to send.
    pub next: Psn,
    /// PSN expected from the peer.
    pub expected: Psn,
    /// Packets sent and not acknowledged.
    pub packets_outstanding: u32,
    /// Send requests posted and not completed.
    pub sends_posted: u32,
    /// Receives posted and not consumed.
    pub receives_posted: u32,
    /// READ and atomic requests sent that have no complete response yet. A split READ counts as
    /// several.
    pub reads_in_flight: u8,
    /// Retries since the last progress, after timeouts and sequence errors.
    pub retries: u8,
    /// Retries since the last progress, after RNR NAKs; 0 if they are unlimited and not counted.
    pub rnr_retries: u8,
    /// True while the QP waits because the peer had no receive posted (RNR).
    pub waits_for_receive: bool,
    /// Requests sent, modulo 2^24.
    pub ssn: u32,
    /// Requests of the peer executed, modulo 2^24.
    pub msn: u32,
    /// State of congestion control, which the core fills in; `None` without congestion control.
    pub rate: Option<RateSnapshot>,
}

impl Qp {
    /// A snapshot of the QP.
    pub fn snapshot(&self) -> QpSnapshot {
        let Self { conn, requester, responder, .. } = self;
        let peer = self.flow().map(|flow| match flow.spec().addresses {
            IpAddresses::V4 { dst, .. } => (conn.dest_qp, IpAddr::from(dst)),
            IpAddresses::V6 { dst, .. } => (conn.dest_qp, IpAddr::from(dst)),
        });
        let (retries, rnr_retries) = self.completer.retries();
        let outstanding = requester.sent_end.offset_from(requester.una);
        QpSnapshot {
            qpn: conn.qpn,
            state: conn.state,
            peer,
            path_mtu: conn.mtu,
            unacknowledged: requester.una,
            next: requester.cursor_psn,
            expected: responder.epsn,
            packets_outstanding: u32::try_from(outstanding).unwrap_or(0),
            sends_posted: requester.sq.len(),
            receives_posted: responder.rq.posted(),
            reads_in_flight: requester.reads_in_flight,
            retries,
            rnr_retries,
            waits_for_receive: self.timers.is_running(Timer::Rnr),
            ssn: requester.ssn,
            msn: responder.msn.value(),
            rate: None,
        }
    }
}
