//! How a request packet is written: its headers, and its payload.

use feroce_wire::{AtomicEth, Bth, ExtHeaders, Feth, Ieth, ImmDt, Reth, XrcEth, write_extended};

use super::connection::Connection;
use super::env::Env;
use super::requester::{Outgoing, Requester};
use super::segment::Segment;
use super::sg;
use crate::memory::work_ring::Posted;
use crate::verbs::{RemoteAddr, SendFlags, SendOp, SendWqe, Service, Status};

impl Requester {
    /// Writes BTH, extended headers, payload and pad. Returns their length.
    #[inline(always)] // Once per packet; the parts of a segment stay in registers.
    pub(super) fn write_packet(
        wqe: Posted<'_, SendWqe>,
        packet: Outgoing,
        conn: &Connection,
        env: &Env<'_>,
        out: &mut [u8],
    ) -> Result<usize, Status> {
        let (len, payload) = Self::write_headers(wqe, packet, conn, out);
        if wqe.inline {
            fill_inline(wqe, packet.segment, payload);
        } else {
            let sges = wqe.sges(usize::from(wqe.num_sge));
            sg::gather(env.memory, conn.pd, sges, packet.segment.offset, payload)
                .map_err(|_| Status::LocalProtection)?;
        }
        Ok(len)
    }

    /// Writes BTH, extended headers and pad. Returns the length of the packet with the payload, and
    /// the place of the payload.
    #[inline(always)] // As `write_packet`.
    pub(super) fn write_headers<'o>(
        wqe: Posted<'_, SendWqe>,
        packet: Outgoing,
        conn: &Connection,
        out: &'o mut [u8],
    ) -> (usize, &'o mut [u8]) {
        let Outgoing { psn, segment, ack_req } = packet;
        let pad = segment.len.wrapping_neg() % 4;
        let solicited = segment.last && wqe.flags.contains(SendFlags::SOLICITED);
        let bth = Bth {
            solicited: solicited && wqe.info().consumes_receive(),
            pad: u8::try_from(pad).expect("less than four"),
            ack_req,
            ..conn.bth(segment.opcode, psn)
        };
        let is_xrc = conn.service == Service::XrcIni;
        bth.write(out);
        let mut headers = Bth::LEN;
        match wqe.op {
            // The most frequent packets have no extended header, or one.
            SendOp::Send if !is_xrc => {}
            SendOp::Write(remote) if !is_xrc => {
                if segment.starts_message {
                    reth(remote, segment).write(&mut out[headers..]);
                    headers += Reth::LEN;
                }
            }
            _ => {
                let mut ext = request_headers(&wqe, segment);
                ext.xrceth = is_xrc.then_some(XrcEth { reserved: 0, srqn: wqe.srqn });
                headers += write_extended(&mut out[headers..], bth.opcode, &ext);
            }
        }
        let payload = &mut out[headers..headers + segment.len + pad];
        let (payload, pad_bytes) = payload.split_at_mut(segment.len);
        if !pad_bytes.is_empty() {
            pad_bytes.fill(0); // A call, of which most packets have no need.
        }
        (headers + segment.len + pad, payload)
    }
}

/// Copies the inline data of `segment` to `payload`.
pub(super) fn fill_inline(wqe: Posted<'_, SendWqe>, segment: Segment, payload: &mut [u8]) {
    let start = usize::try_from(segment.offset).expect("inline data are short");
    payload.copy_from_slice(&wqe.inline_data(start + segment.len)[start..]);
}

/// The RETH of `segment`, of a request for the memory at `remote`.
fn reth(remote: RemoteAddr, segment: Segment) -> Reth {
    Reth {
        va: remote.addr.wrapping_add(segment.offset),
        rkey: remote.rkey,
        dma_len: u32::try_from(segment.span).expect("at most 2^31"),
    }
}

/// The extended headers of one packet of `wqe`, from the operands of the operation. They must be
/// those that the wire's opcode table names for the packet's opcode.
#[inline]
fn request_headers(wqe: &SendWqe, segment: Segment) -> ExtHeaders {
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
