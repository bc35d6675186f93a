//! Sending datagrams: each request is one packet, and completes when the packet is handed to the
//! port.

use feroce_wire::{
    Bth, Deth, ExtHeaders, FlowHeader, ImmDt, Opcode, PathMtu, Qkey, icrc, write_transport,
};

use super::UdQp;
use crate::congestion::{Sent, SentRequest};
use crate::memory::work_ring::Posted;
use crate::qp::env::{Env, Transmit};
use crate::qp::sg;
use crate::qp::state::QpState;
use crate::verbs::operation::RequestPackets;
use crate::verbs::{DatagramWqe, SendFlags, SendOp, Service, Status};

/// Longest payload in bytes on any path.
const MAX_DATAGRAM: u64 = PathMtu::Mtu4096.bytes() as u64;

impl UdQp {
    /// Headers of the packet that [`UdQp::poll_transmit`] writes next; `None` if there is no
    /// packet.
    #[inline]
    pub fn next_flow(&mut self) -> Option<&FlowHeader> {
        if self.state != QpState::Rts {
            return None;
        }
        let wqe = self.sq.get(self.sq.head())?;
        self.flow = Some(wqe.flow);
        self.flow.as_ref()
    }

    /// Writes the next packet, from the BTH on, to the front of `out`, which must hold a path MTU
    /// and 64 bytes of headers. The packet belongs to the headers that [`UdQp::next_flow`]
    /// returned.
    pub fn poll_transmit(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        if self.state != QpState::Rts || env.waits.requests {
            return None;
        }
        let wqe = self.sq.posted(self.sq.head())?;
        let psn = self.psn;
        let written = self.write_packet(wqe, env, out);
        match written {
            Ok(_) => self.psn = self.psn.next(),
            Err(_) if self.is_stopping => return None,
            Err(_) => self.state = QpState::Sqe,
        }
        self.complete_send(written.err().unwrap_or(Status::Success), env);
        if self.state == QpState::Sqe {
            self.flush_sends(env);
        }
        self.finish_call(env);
        let sent = Sent::Request(SentRequest::datagram(psn));
        written.ok().map(|len| Transmit { len, sent })
    }

    /// Writes BTH, extended headers, payload and pad. Returns their length.
    fn write_packet(
        &self,
        wqe: Posted<'_, DatagramWqe>,
        env: &Env<'_>,
        out: &mut [u8],
    ) -> Result<usize, Status> {
        let send = &wqe.send;
        let operation = send.op.info();
        let RequestPackets::Message(opcodes) = &operation.packets else {
            return Err(Status::LocalQpOperation);
        };
        if !Service::Ud.supports(&send.op) {
            return Err(Status::LocalQpOperation);
        }
        if let Some(error) = wqe.error {
            return Err(error);
        }
        let len = usize::try_from(send.length.min(MAX_DATAGRAM + 1)).expect("a few thousand");
        let pad = len.wrapping_neg() % 4;
        let (bth, ext) = self.headers(&wqe, Service::Ud.opcode(opcodes.only), pad);
        let longest = Bth::LEN + ExtHeaders::len(ext.present()) + len + pad + icrc::LEN;
        if send.length > MAX_DATAGRAM || longest > out.len() {
            return Err(Status::LocalLength);
        }
        let headers = write_transport(out, &bth, &ext);
        let (payload, pad_bytes) = out[headers..headers + len + pad].split_at_mut(len);
        pad_bytes.fill(0);
        if send.inline {
            payload.copy_from_slice(wqe.inline_data(len));
        } else {
            let sges = wqe.sges(usize::from(send.num_sge));
            sg::check(env.memory, self.pd, sges, operation.local_access)
                .and_then(|()| sg::gather(env.memory, self.pd, sges, 0, payload))
                .map_err(|_| Status::LocalProtection)?;
        }
        Ok(headers + len + pad)
    }

    fn headers(&self, wqe: &DatagramWqe, opcode: Opcode, pad: usize) -> (Bth, ExtHeaders) {
        let imm = match wqe.send.op {
            SendOp::SendImm(imm) => Some(ImmDt(imm)),
            _ => None,
        };
        let bth = Bth {
            opcode,
            solicited: wqe.send.flags.contains(SendFlags::SOLICITED),
            mig_req: true, // As on a connected QP.
            pad: u8::try_from(pad).expect("less than four"),
            pkey: self.pkey,
            dest_qp: wqe.remote_qpn,
            psn: self.psn,
            ..Bth::default()
        };
        let deth = Some(Deth { qkey: self.sent_qkey(wqe.qkey), reserved: 0, src_qp: self.qpn });
        (bth, ExtHeaders { deth, imm, ..ExtHeaders::default() })
    }

    /// The Q_Key to send. Applications may not choose a controlled Q_Key: the Q_Key of the QP is
    /// sent in its place.
    fn sent_qkey(&self, requested: Qkey) -> Qkey {
        if requested.is_controlled() { self.qkey } else { requested }
    }

    /// Completes the oldest send request and frees its slot.
    fn complete_send(&mut self, status: Status, env: &mut Env<'_>) {
        let Some(wqe) = self.sq.get(self.sq.head()) else { return };
        let (wr_id, op, flags) = (wqe.send.wr_id, wqe.send.op, wqe.send.flags);
        let (opcode, length) = (op.completion_opcode(), wqe.send.length);
        // The slot is freed before the completion appears: a poller may post again at once.
        self.sq.retire();
        self.counters.count(opcode, status == Status::Success, length);
        if status == Status::Success && !self.all_signaled && !flags.contains(SendFlags::SIGNALED) {
            return;
        }
        env.complete_send(&self.send_cq, self.qpn, wr_id, (status, opcode), 0);
    }

    /// Completes every send request as flushed.
    pub(super) fn flush_sends(&mut self, env: &mut Env<'_>) {
        while !self.sq.is_empty() {
            self.complete_send(Status::WorkRequestFlushed, env);
        }
    }
}
