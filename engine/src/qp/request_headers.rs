//! The extended headers of request packets.

use feroce_wire::{AtomicEth, ExtHeaders, Feth, Ieth, ImmDt, Reth};

use super::segment::Segment;
use crate::verbs::{RemoteAddr, SendOp, SendWqe};

/// The RETH of `segment`, of a request for the memory at `remote`.
pub(super) fn reth(remote: RemoteAddr, segment: Segment) -> Reth {
    Reth {
        va: remote.addr.wrapping_add(segment.offset),
        rkey: remote.rkey,
        dma_len: u32::try_from(segment.span).expect("at most 2^31"),
    }
}

/// The extended headers of one packet of `wqe`, from the operands of the operation. They must be
/// those that the wire's opcode table names for the packet's opcode.
#[inline]
pub(super) fn request_headers(wqe: &SendWqe, segment: Segment) -> ExtHeaders {
    let mut ext = ExtHeaders::default();
    match wqe.op {
        SendOp::Send => {}
        SendOp::SendImm(imm) => ext.imm = segment.last.then_some(ImmDt(imm)),
        SendOp::SendInvalidate(rkey) => ext.ieth = segment.last.then_some(Ieth { rkey }),
        SendOp::Write(remote) | SendOp::WriteImm(remote, _) => {
            ext.reth = segment.starts_message.then(|| reth(remote, segment));
            if let SendOp::WriteImm(_, imm) = wqe.op {
                ext.imm = segment.last.then_some(ImmDt(imm));
            }
        }
        SendOp::Read(remote) => {
            ext.reth = Some(reth(remote, segment));
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            let (va, rkey) = (remote.addr, remote.rkey);
            ext.atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: swap, compare });
        }
        SendOp::FetchAdd { remote, add } => {
            let (va, rkey) = (remote.addr, remote.rkey);
            ext.atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
        }
        SendOp::AtomicWrite(RemoteAddr { addr: va, rkey }) => {
            ext.reth = Some(Reth { va, rkey, dma_len: 8 });
        }
        SendOp::Flush { remote: RemoteAddr { addr: va, rkey }, length, placement, selectivity } => {
            ext.feth = Some(Feth { reserved: 0, selectivity, placement });
            ext.reth = Some(Reth { va, rkey, dma_len: length });
        }
        SendOp::Local(_) => {}
    }
    ext
}
