//! The responder of the UC service: nothing is answered, and a message that misses a packet is dropped whole.
//!
//! A gap ends the message that was being received; its receive stays posted for the next one. What follows is
//! dropped until a packet begins a message. What a connected peer could be told with a NAK is counted and
//! dropped likewise; only a receive that names bad memory is the program's fault and breaks the QP.

use feroce_wire::{NakCode, Packet};

use super::{Inbound, Refusal, Responder, Verdict};
use crate::counters::Counter;
use crate::qp::{Connection, Env};
use crate::verbs::Status;

impl Responder {
    /// Takes a request packet of the UC service.
    pub(in crate::qp) fn handle_unreliable(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        if packet.bth.psn != self.epsn {
            env.counters.count(Counter::OutOfSequence);
            self.abandon();
        } else if packet.info.position.starts_message() {
            self.abandon(); // The end of the message before never came.
        }
        self.epsn = packet.bth.psn;
        let refused = self.accept(packet, conn, env).err();
        self.epsn = packet.bth.psn.next();
        match refused {
            None => Verdict::Fine,
            Some(refusal) => self.drop_message(refusal, packet, conn, env),
        }
    }

    /// Gives up the message that is being received, silently.
    fn abandon(&mut self) {
        self.inbound = Inbound::None;
    }

    fn drop_message(
        &mut self,
        refusal: Refusal,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        let in_message = self.inbound != Inbound::None || packet.info.position.starts_message();
        self.abandon();
        match refusal {
            Refusal::NoReceive => env.counters.count(Counter::OutOfBuffer),
            Refusal::Fatal { receive: Some(Status::LocalLength), .. } => {} // Counted where it was found.
            Refusal::Fatal { receive: Some(status @ Status::LocalProtection), code } => {
                self.fail_receive(status, packet, conn, env);
                return Verdict::Broken { code, tied: true };
            }
            // The rest of a message that was dropped.
            Refusal::Fatal { .. } if !in_message => env.counters.count(Counter::RxDiscards),
            Refusal::Fatal { code: NakCode::RemoteAccess, .. } => {
                env.counters.count(Counter::RespRemoteAccessErrors);
            }
            Refusal::Fatal { .. } => env.counters.count(Counter::RespRemoteInvalidRequest),
        }
        Verdict::Fine
    }
}
