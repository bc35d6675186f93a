//! The order of a connected QP's requests, responses and acknowledgements. This module holds all
//! rules; [`Qp::poll_transmit`](super::Qp::poll_transmit) and the core only apply them.
//!
//! A QP has two sources of packets. The requester has request packets, new or retransmitted. The
//! responder has response packets of READs and atomics, and at most one pending ACK or NAK. The
//! rules:
//!
//! 1. *The responder sends in PSN order.* Responses are sent in the order of their requests. A
//!    pending ACK or NAK is sent after every response that does not have a later PSN, because it
//!    would acknowledge the requests of those responses. See [`response_goes_first`].
//! 2. *Requests and responder packets take turns.* One request may be sent before an
//!    acknowledgement: it may be the message that the peer's application waits for. See
//!    [`TransmitOrder::next_source`].
//! 3. *After a message to an application that sleeps on its CQ, the acknowledgement is sent first*,
//!    even if the application is awake now: a completion event has woken it before. An RNIC
//!    acknowledges before any application can reply, and applications that sleep rely on that:
//!    perftest takes the first event after a SEND for the completion of this SEND, and libiscsi
//!    frees its connection in the receive completion of the last reply, and would handle the
//!    completion of the SEND after that. The acknowledgement costs latency, which such an
//!    application hardly notices. See [`TransmitOrder::request_received`].
//! 4. *The same holds between the QPs of a core*, because the application may reply from
//!    another QP, as it does with XRC: the QP moves to the front of its core's active QPs if it has
//!    only responder packets to send. See [`moves_to_front`]. QPs of other cores are not held back.
//! 5. *Data may have to wait* for a rate or a pause: `Env::waits`. A waiting request does not hold
//!    back responder packets, and a waiting response does not hold back requests. A waiting
//!    response does hold back the acknowledgement after it, because of rule 1. Other
//!    acknowledgements, and local requests, never wait.

use feroce_wire::Psn;

/// A source of packets of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Request packets.
    Requester,
    /// Response packets, ACKs and NAKs.
    Responder,
}

/// The source that may send first; the other one sends if the first has nothing.
#[derive(Debug, Default)]
pub struct TransmitOrder {
    responder_first: bool,
}

impl TransmitOrder {
    /// The source to try first for the next packet. The packet after that one belongs to the
    /// requester, unless a call of the functions below changes that.
    #[inline]
    pub fn next_source(&mut self) -> Source {
        match std::mem::take(&mut self.responder_first) {
            true => Source::Responder,
            false => Source::Requester,
        }
    }

    /// The requester was first and sent a packet: the responder is first for the next one (rule 2).
    #[inline]
    pub fn request_sent(&mut self) {
        self.responder_first = true;
    }

    /// A request of the peer was received; `to_sleeper`: it completed to an application that sleeps
    /// on its CQ (rule 3).
    #[inline]
    pub fn request_received(&mut self, to_sleeper: bool) {
        self.responder_first |= to_sleeper;
    }
}

/// Returns true if the responder's next packet belongs to the oldest response, whose next PSN is
/// `response`, and not to the pending ACK or NAK for the PSN `ack` (rule 1).
#[inline]
pub fn response_goes_first(response: Option<Psn>, ack: Option<Psn>) -> bool {
    match (response, ack) {
        (Some(response), Some(ack)) => response.at_or_before(ack),
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// Returns true if a QP moves to the front of its core's active QPs after a packet (rule 4).
/// `is_request`: the packet is a request of the peer; `to_sleeper`: it completed to an application
/// that sleeps on its CQ; `only_responses`: the QP has no requests to send.
#[inline]
pub fn moves_to_front(is_request: bool, to_sleeper: bool, only_responses: bool) -> bool {
    to_sleeper && is_request && only_responses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_take_turns_while_both_have_packets() {
        let mut order = TransmitOrder::default();
        for _ in 0..3 {
            assert_eq!(order.next_source(), Source::Requester);
            order.request_sent();
            assert_eq!(order.next_source(), Source::Responder);
        }
    }

    #[test]
    fn the_acknowledgement_of_a_message_to_a_sleeper_goes_first() {
        let mut order = TransmitOrder::default();
        order.request_received(false);
        assert_eq!(order.next_source(), Source::Requester);
        order.request_received(true);
        order.request_received(false);
        assert_eq!(order.next_source(), Source::Responder);
        assert_eq!(order.next_source(), Source::Requester, "once");
    }

    #[test]
    fn responses_go_ahead_of_acknowledgements_behind_them() {
        let psn = |psn| Some(Psn::new(psn));
        for (response, ack, expected) in [
            (psn(7), psn(7), true),
            (psn(7), psn(8), true),
            (psn(0xff_ffff), psn(0), true),
            (psn(8), psn(7), false),
            (psn(8), None, true),
            (None, psn(8), false),
            (None, None, false),
        ] {
            assert_eq!(response_goes_first(response, ack), expected, "{response:?} {ack:?}");
        }
    }
}
