//! FLUSH and ATOMIC WRITE (memory placement extensions). Both are answered with an empty READ response, which says
//! that it is done; asked again, they are answered again and not done again (oA19-14, oA19-15).

use feroce_wire::{Feth, Packet, PlacementType, Psn, Selectivity};

use super::super::responder_resources::{Answer, Source};
use super::super::{Connection, Env};
use super::{Refusal, Responder};
use crate::counters::Counter;
use crate::memory::Access;

/// The rights that a FLUSH needs; refused if it says something that has no meaning.
pub(super) fn flush_rights(feth: Option<Feth>) -> Result<Access, Refusal> {
    let Some(Feth { selectivity, placement, .. }) = feth else { return Err(Refusal::INVALID) };
    let known = PlacementType(PlacementType::GLOBAL.0 | PlacementType::PERSISTENT.0);
    if !known.contains(placement) || matches!(selectivity, Selectivity::Reserved(_)) {
        return Err(Refusal::INVALID);
    }
    let mut need = Access::NONE;
    if placement.contains(PlacementType::GLOBAL) {
        need |= Access::FLUSH_GLOBAL;
    }
    if placement.contains(PlacementType::PERSISTENT) {
        need |= Access::FLUSH_PERSISTENT;
    }
    Ok(need)
}

impl Responder {
    pub(super) fn execute_flush(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        let need = flush_rights(packet.ext.feth)?;
        let (Some(feth), Some(reth)) = (packet.ext.feth, packet.ext.reth) else {
            return Err(Refusal::INVALID);
        };
        // Of a whole region, the address and length that are given mean nothing.
        let range = match feth.selectivity {
            Selectivity::Range => Some((reth.va, u64::from(reth.dma_len))),
            _ => None,
        };
        env.memory.flush(reth.rkey, conn.peer(), need, range).map_err(Refusal::of)?;
        self.answer_placed(packet.bth.psn)
    }

    pub(super) fn execute_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        let Some(reth) = packet.ext.reth else { return Err(Refusal::INVALID) };
        let mut bytes = [0; 8];
        packet.payload.copy_to(&mut bytes);
        env.memory.atomic_write(reth.rkey, conn.peer(), reth.va, bytes).map_err(Refusal::of)?;
        env.counters.count(Counter::RxWriteRequests);
        self.answer_placed(packet.bth.psn)
    }

    fn answer_placed(&mut self, psn: Psn) -> Result<(), Refusal> {
        self.answers.insert(placed_answer(psn)).map_err(|_| Refusal::INVALID)?;
        self.pass(1);
        self.end_message();
        Ok(())
    }
}

pub(super) fn placed_answer(psn: Psn) -> Answer {
    Answer { next: psn, last: psn, starts: true, source: Source::Placed, replay: false }
}
