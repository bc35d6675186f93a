//! FLUSH and ATOMIC WRITE (memory placement extensions). The response to both is an empty READ
//! response. It is sent again for a duplicate request, which is not executed again (oA19-14,
//! oA19-15).

use feroce_wire::{PacketView, Psn, Selectivity};

use super::Responder;
use super::checks::flush_rights;
use super::nak_reason::NakReason;
use crate::counters::Counter;
use crate::qp::connection::Connection;
use crate::qp::env::Env;
use crate::qp::responder_resources::Response;

impl Responder {
    pub(super) fn execute_flush(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        let need = flush_rights(packet.ext().feth())?;
        let (Some(feth), Some(reth)) = (packet.ext().feth(), packet.ext().reth()) else {
            return Err(NakReason::INVALID);
        };
        // A FLUSH of a whole region ignores the given address and length.
        let range = match feth.selectivity {
            Selectivity::Range => Some((reth.va, u64::from(reth.dma_len))),
            _ => None,
        };
        env.memory.flush(reth.rkey, conn.peer_scope(), need, range)?;
        self.respond_empty(packet.bth().psn)
    }

    pub(super) fn execute_atomic_write(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        let Some(reth) = packet.ext().reth() else { return Err(NakReason::INVALID) };
        let mut bytes = [0; 8];
        packet.payload.copy_to(&mut bytes);
        env.memory.atomic_write(reth.rkey, conn.peer_scope(), reth.va, bytes)?;
        env.counters.count(Counter::RxWriteRequests);
        self.respond_empty(packet.bth().psn)
    }

    fn respond_empty(&mut self, psn: Psn) -> Result<(), NakReason> {
        self.resources.insert(Response::empty(psn)).map_err(|_| NakReason::INVALID)?;
        self.advance_epsn(1);
        self.end_message();
        Ok(())
    }
}
