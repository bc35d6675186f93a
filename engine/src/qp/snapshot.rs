//! A QP at one moment, for people who look on.

use std::net::IpAddr;

use feroce_wire::{IpAddresses, Psn, Qpn};

use super::timer::Timer;
use super::{Qp, QpState};
use crate::congestion::RateSnapshot;

/// Where a QP stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpSnapshot {
    /// Its number.
    pub qpn: Qpn,
    /// Its state.
    pub state: QpState,
    /// Number and address of the peer; `None` before RTR.
    pub peer: Option<(Qpn, IpAddr)>,
    /// Path MTU in bytes.
    pub path_mtu: usize,
    /// Oldest PSN that is not acknowledged.
    pub unacknowledged: Psn,
    /// PSN of the packet to send next.
    pub next: Psn,
    /// PSN expected from the peer.
    pub expected: Psn,
    /// Packets sent and not acknowledged.
    pub packets_outstanding: u32,
    /// Send requests posted and not finished.
    pub sends_posted: u32,
    /// Receives posted and not consumed.
    pub receives_posted: u32,
    /// READs, or parts of them, and atomics sent and not answered.
    pub reads_in_flight: u8,
    /// Retries since there was progress last, after time-outs and sequence errors.
    pub retries: u8,
    /// The same after RNR NAKs; 0 where they are not counted, for they may go on for ever.
    pub rnr_retries: u8,
    /// It waits because the peer had no receive posted.
    pub waits_for_receive: bool,
    /// Requests sent, modulo 2^24.
    pub ssn: u32,
    /// Requests of the peer executed, modulo 2^24.
    pub msn: u32,
    /// How fast it may send; `None` without congestion control. Its core knows.
    pub rate: Option<RateSnapshot>,
}

impl Qp {
    /// Where it stands now.
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
