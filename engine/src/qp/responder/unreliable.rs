//! The responder of the UC service: nothing is acknowledged, and a message that misses a packet is
//! dropped as a whole.
//!
//! A gap ends the message that is being received; its receive stays posted for the next message.
//! Packets after the gap are dropped until one begins a message. Errors for which RC sends a NAK
//! are counted, and the message is dropped. Two errors move the QP to ERR: a receive that names
//! invalid memory, which is the application's error, and too many requests whose key, rights or
//! bounds were wrong ([`Responder::count_access_error`]).

use feroce_wire::{NakCode, PacketView};

use super::nak_reason::NakReason;
use super::{Inbound, Responder, Verdict};
use crate::counters::Counter;
use crate::qp::connection::Connection;
use crate::qp::env::Env;
use crate::verbs::Status;

impl Responder {
    /// Handles a request packet of the UC service.
    pub(in crate::qp) fn handle_unreliable(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        if packet.bth().psn != self.epsn {
            env.counters.count(Counter::OutOfSequence);
            self.abandon_message();
        } else if packet.info.position.starts_message() {
            self.abandon_message(); // The end of the message before never arrived.
        }
        self.epsn = packet.bth().psn;
        let rejected = self.accept(packet, conn, env).err();
        self.epsn = packet.bth().psn.next();
        match rejected {
            None => Verdict::Continue,
            Some(reason) => self.drop_message(reason, packet, conn, env),
        }
    }

    /// Abandons the message that is being received, without a completion.
    fn abandon_message(&mut self) {
        self.inbound = Inbound::None;
    }

    fn drop_message(
        &mut self,
        reason: NakReason,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        let in_message = self.inbound != Inbound::None || packet.info.position.starts_message();
        self.abandon_message();
        match reason {
            NakReason::NoReceive => env.counters.count(Counter::OutOfBuffer),
            // Counted where the error was found.
            NakReason::Fatal { receive: Some(Status::LocalLength), .. } => {}
            NakReason::Fatal { receive: Some(status @ Status::LocalProtection), code } => {
                self.fail_receive(status, packet, conn, env);
                return Verdict::EnterError { code, receive_failed: true };
            }
            NakReason::Unreported(_) => return self.count_access_error(env),
            // The rest of a message that was dropped.
            NakReason::Fatal { .. } if !in_message => env.counters.count(Counter::RxDiscards),
            NakReason::Fatal { code: NakCode::RemoteAccess, .. } => {
                return self.count_access_error(env);
            }
            NakReason::Fatal { .. } => env.counters.count(Counter::RespRemoteInvalidRequest),
        }
        Verdict::Continue
    }
}
