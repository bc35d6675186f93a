//! The checks of the expected request packet, in the order of the specification.

use feroce_wire::{Feth, Operation, PacketView, PlacementType, Position, Reth, Selectivity};

use super::nak_reason::NakReason;
use super::{Inbound, Responder};
use crate::memory::Access;
use crate::qp::connection::Connection;
use crate::qp::env::Env;
use crate::verbs::MAX_MESSAGE;
use crate::verbs::operation::OperationInfo;

impl Responder {
    /// Sequence of packets: First and Only begin a message, Middle and Last continue a message of
    /// the same kind.
    #[inline]
    pub(super) fn check_sequence(&self, packet: &PacketView<'_>) -> Result<(), NakReason> {
        let begins = packet.info.position.starts_message();
        let is_valid = match (self.inbound, packet.info.operation) {
            (Inbound::None, _) => begins,
            (Inbound::Send { .. }, Operation::Send) | (Inbound::Write { .. }, Operation::Write) => {
                !begins
            }
            _ => false,
        };
        if is_valid { Ok(()) } else { Err(NakReason::INVALID) }
    }

    /// Rights: the QP grants the operation to its peer.
    #[inline(always)] // As `check_length`.
    pub(super) fn check_operation(
        packet: &PacketView<'_>,
        operation: &OperationInfo,
        conn: &Connection,
    ) -> Result<(), NakReason> {
        let need = match packet.info.operation {
            Operation::Flush => flush_rights(packet.ext().feth())?,
            _ => operation.remote_access,
        };
        if conn.access.contains(need) { Ok(()) } else { Err(NakReason::INVALID) }
    }

    /// Resources: a receive for the packet that needs one, a free responder resource for a request
    /// that has a response of its own.
    #[inline(always)] // As `check_length`.
    pub(super) fn check_resources(
        &mut self,
        packet: &PacketView<'_>,
        operation: &OperationInfo,
        env: &Env<'_>,
    ) -> Result<(), NakReason> {
        if let Some(receive) = &operation.receive
            && receive.needed_at.is_at(packet.info.position)
            && !self.rq.ensure_receive(env.events)
        {
            return Err(NakReason::NoReceive);
        }
        if operation.needs_responder_resource()
            && self.resources.first_time() >= usize::from(self.max_dest_rd_atomic)
        {
            return Err(NakReason::INVALID);
        }
        Ok(())
    }

    /// Lengths: the payload against pad, position and path MTU, the message against its announced
    /// length.
    #[inline(always)] // Called once, for every packet.
    pub(super) fn check_length(
        &self,
        packet: &PacketView<'_>,
        reth: Option<Reth>,
        mtu: usize,
    ) -> Result<(), NakReason> {
        let len = packet.payload.len();
        let is_padded = (len + usize::from(packet.bth().pad)).is_multiple_of(4);
        if !is_padded || !packet.info.payload.allows(len, mtu) {
            return Err(NakReason::INVALID);
        }
        let len = len as u64;
        let announced = reth.map(|reth| u64::from(reth.dma_len));
        let is_valid = match packet.info.operation {
            Operation::Send => match self.inbound {
                Inbound::Send { offset } => offset + len <= MAX_MESSAGE,
                _ => true,
            },
            Operation::Write => match (packet.info.position, self.inbound) {
                (Position::Only, _) => announced == Some(len),
                (Position::First, _) => {
                    announced.is_some_and(|total| total > len && total <= MAX_MESSAGE)
                }
                (Position::Middle, Inbound::Write { left, .. }) => u64::from(left) > len,
                (Position::Last, Inbound::Write { left, .. }) => u64::from(left) == len,
                _ => true,
            },
            Operation::AtomicWrite => announced == Some(len),
            Operation::ReadRequest => announced.is_some_and(|total| total <= MAX_MESSAGE),
            _ => true,
        };
        if is_valid { Ok(()) } else { Err(NakReason::INVALID) }
    }
}

/// The rights that a FLUSH needs.
///
/// # Errors
/// The placement type or the selectivity level has no meaning.
pub(super) fn flush_rights(feth: Option<Feth>) -> Result<Access, NakReason> {
    let Some(Feth { selectivity, placement, .. }) = feth else { return Err(NakReason::INVALID) };
    let known = PlacementType(PlacementType::GLOBAL.0 | PlacementType::PERSISTENT.0);
    if !known.contains(placement) || matches!(selectivity, Selectivity::Reserved(_)) {
        return Err(NakReason::INVALID);
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
