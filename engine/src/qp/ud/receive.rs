//! Receiving datagrams: after the checks, GRH and payload are stored in the oldest receive. A
//! datagram that fails a check is counted and dropped.

use feroce_wire::{Deth, IpHeader, PacketView, PathMtu, Payload, Transport};

use super::UdQp;
use super::grh::grh_of;
use crate::counters::Counter;
use crate::qp::env::Env;
use crate::qp::sg;
use crate::verbs::{
    Completion, CompletionOpcode, DatagramSource, Extra, GRH_LEN, NetworkHeader, Status,
};

/// Longest payload in bytes on any path.
const MAX_DATAGRAM: usize = PathMtu::Mtu4096.bytes() as usize;

impl UdQp {
    /// Handles a packet to this QP. The caller has verified its ICRC.
    pub fn handle_packet(&mut self, packet: &PacketView<'_>, env: &mut Env<'_>) {
        match self.accept(packet, env) {
            Ok(source) => self.store(packet, source, env),
            Err(counter) => env.counters.count(counter),
        }
        self.finish_call(env);
    }

    /// Checks a datagram. Returns its source, or the counter of the error.
    fn accept(
        &mut self,
        packet: &PacketView<'_>,
        env: &Env<'_>,
    ) -> Result<DatagramSource, Counter> {
        let deth = self.sender_of(packet)?;
        let len = packet.payload.len();
        let is_padded = (len + usize::from(packet.bth().pad)).is_multiple_of(4);
        if !is_padded || !packet.info.payload.allows(len, MAX_DATAGRAM) {
            return Err(Counter::RxDiscards);
        }
        if !self.rq.ensure_receive(env.events) {
            return Err(Counter::OutOfBuffer);
        }
        let receive = self.rq.current(self.pd).ok_or(Counter::OutOfBuffer)?;
        if receive.length < (GRH_LEN + len) as u64 {
            return Err(Counter::RespLocalLengthError);
        }
        Ok(DatagramSource {
            src_qp: deth.src_qp,
            sl: packet.vlan().map_or(0, |tag| tag.pcp),
            vlan: packet.vlan().map(|tag| tag.id),
            network: match packet.ip() {
                IpHeader::V4(_) => NetworkHeader::Ipv4,
                IpHeader::V6(_) => NetworkHeader::Ipv6,
            },
        })
    }

    /// Returns true if the QP receives packets in its state, and accepts those of the sender of
    /// `packet`: service, partition and Q_Key.
    pub fn accepts_sender_of(&self, packet: &PacketView<'_>) -> bool {
        self.sender_of(packet).is_ok()
    }

    /// Checks the sender of `packet`, which must know the Q_Key. Returns the DETH, or the counter
    /// of the error.
    fn sender_of(&self, packet: &PacketView<'_>) -> Result<Deth, Counter> {
        let is_acceptable = self.state.receives()
            && packet.info.transport == Transport::Ud
            && packet.bth().pkey.matches(self.pkey);
        let deth = packet.ext().deth().filter(|_| is_acceptable).ok_or(Counter::RxDiscards)?;
        match deth.qkey == self.qkey {
            true => Ok(deth),
            false => Err(Counter::QkeyViolations),
        }
    }

    fn store(&mut self, packet: &PacketView<'_>, source: DatagramSource, env: &mut Env<'_>) {
        let Some(receive) = self.rq.current(self.pd) else { return };
        let (pd, sges) = (receive.pd, receive.sges);
        let grh = Payload { first: &grh_of(&packet.ip()), second: &[] };
        // The payload is stored after the GRH: the last bytes of the packet become visible last.
        let stored = sg::scatter(env.memory, pd, sges, 0, grh)
            .and_then(|()| sg::scatter(env.memory, pd, sges, GRH_LEN as u64, packet.payload));
        if stored.is_err() {
            self.complete_receive(Status::LocalProtection, None, env);
            self.enter_error(env);
            return;
        }
        self.complete_receive(Status::Success, Some((packet, source)), env);
    }

    /// Completes the current receive and frees its slot. Returns false if there is none.
    fn complete_receive(
        &mut self,
        status: Status,
        datagram: Option<(&PacketView<'_>, DatagramSource)>,
        env: &mut Env<'_>,
    ) -> bool {
        // The slot is freed before the completion appears: a poller may post again at once.
        let Some(wr_id) = self.rq.retire() else { return false };
        match status {
            Status::Success => {}
            Status::WorkRequestFlushed => env.counters.count(Counter::RespCqeFlushError),
            _ => env.counters.count(Counter::RespCqeError),
        }
        let packet = datagram.map(|(packet, _)| packet);
        let bytes = packet.map_or(0, |packet| packet.payload.len() as u64);
        self.counters.count(CompletionOpcode::Receive, status == Status::Success, bytes);
        let len = packet.map_or(0, |packet| GRH_LEN + packet.payload.len());
        let imm = packet.and_then(|packet| packet.ext().imm());
        let completion = Completion {
            wr_id,
            status,
            opcode: CompletionOpcode::Receive,
            byte_len: u32::try_from(len).expect("a few thousand"),
            extra: imm.map_or(Extra::None, |imm| Extra::Immediate(imm.0)),
            solicited: packet.is_some_and(|packet| packet.bth().solicited),
            qp: self.qpn,
            at: env.now,
            datagram: datagram.map(|(_, source)| source),
        };
        env.complete(&self.recv_cq, completion);
        true
    }

    /// Completes every receive as flushed.
    pub(super) fn flush_receives(&mut self, env: &mut Env<'_>) {
        while self.complete_receive(Status::WorkRequestFlushed, None, env) {}
    }
}
