//! The rules of communication management, and what its messages show about flows.

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_wire::cm::{RejectReason, Req, Transport};
use feroce_wire::{CmMad, CmMessage, MadError, PathMtu, Qpn};

use super::findings::{Findings, Place};
use super::mad;
use crate::flow::{Agreed, Flows, Key, Service};
use crate::packet::Seen;
use crate::rules::RuleId;

/// Connections in any stage, by capture point, address of the active side and its communication ID.
#[derive(Debug, Default)]
pub(super) struct Connections {
    known: BTreeMap<(u16, IpAddr, u32), Connection>,
}

/// Maximum number of connections kept.
const MAX_CONNECTIONS: usize = 1 << 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    ReqSent,
    RepSent,
    Ready,
    Ending,
    Ended,
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    stage: Stage,
    active: IpAddr,
    passive: IpAddr,
    local: u32,
    remote: Option<u32>,
    transaction: u64,
    /// Transaction ID of the DREQ.
    disconnect_transaction: u64,
    service: Service,
    active_qpn: Qpn,
    passive_qpn: Option<Qpn>,
    request: Place,
    sent: u16,
    retries: u8,
    /// Initiator depth and responder resources of the REQ.
    resources: (u8, u8),
    to_active: Agreed,
    to_passive: Agreed,
}

/// A communication management message with its sender, receiver and place.
struct CmPacket<'a> {
    tap: u16,
    src: IpAddr,
    dst: IpAddr,
    mad: &'a CmMad,
    place: Place,
}

impl Connections {
    /// Checks a datagram to QP 1.
    pub fn take(&mut self, seen: &Seen<'_>, place: Place, flows: &mut Flows, out: &mut Findings) {
        mad::header(seen, place, out);
        let mad = match CmMad::parse(seen.packet.payload.first) {
            Ok(mad) => mad,
            // Subnet administration and performance management are not checked.
            Err(MadError::Class(_) | MadError::Attribute(_) | MadError::Method(_)) => return,
            Err(_) if seen.is_cut => return,
            Err(error) => return out.add(RuleId::Mad, place, || error.to_string()),
        };
        let packet = CmPacket { tap: seen.tap, src: seen.src(), dst: seen.dst(), mad: &mad, place };
        match &mad.message {
            CmMessage::Req(req) => {
                mad::gids(req, seen, place, out);
                self.request(&packet, out);
            }
            CmMessage::Rep(_) => self.reply(&packet, flows, out),
            CmMessage::Rtu(rtu) => {
                self.later_message(&packet, (rtu.local_comm_id, rtu.remote_comm_id), flows, out);
            }
            CmMessage::Rej(_) => self.reject(&packet, out),
            CmMessage::Dreq(dreq) => {
                self.later_message(&packet, (dreq.local_comm_id, dreq.remote_comm_id), flows, out);
            }
            CmMessage::Drep(drep) => {
                self.later_message(&packet, (drep.local_comm_id, drep.remote_comm_id), flows, out);
            }
            CmMessage::Mra(_) | CmMessage::SidrReq(_) | CmMessage::SidrRep(_) => {}
        }
    }

    fn request(&mut self, packet: &CmPacket<'_>, out: &mut Findings) {
        let CmMessage::Req(req) = &packet.mad.message else { return };
        let key = (packet.tap, packet.src, req.local_comm_id);
        if let Some(known) = self.known.get_mut(&key)
            && known.transaction == packet.mad.transaction
        {
            known.sent = known.sent.saturating_add(1);
            let (qpn, first) = (known.active_qpn, known.request.packet.number);
            if (qpn, known.to_active.first_psn) != (req.local_qpn, Some(req.starting_psn)) {
                out.add(RuleId::CmRepeat, packet.place, || {
                    format!(
                        "a REQ for QP {} with the communication ID and transaction of packet \
                         {first}, which is for QP {qpn}, or with another starting PSN",
                        req.local_qpn
                    )
                });
            }
            let (sent, retries) = (known.sent, known.retries);
            if sent == u16::from(retries) + 2 {
                out.add(RuleId::CmRetries, packet.place, || {
                    format!(
                        "the REQ is sent for the {sent}th time, but it allows only {retries} \
                         retransmissions"
                    )
                });
            }
            return;
        }
        if self.known.len() == MAX_CONNECTIONS {
            self.known.pop_first();
        }
        let agreed = Agreed {
            path_mtu: PathMtu::from_code(req.path_mtu).map(PathMtu::bytes),
            retry_count: Some(req.retry_count),
            rnr_retry_count: Some(req.rnr_retry_count),
            pkey: Some(req.pkey.0),
            ..Agreed::default()
        };
        let connection = Connection {
            stage: Stage::ReqSent,
            active: packet.src,
            passive: packet.dst,
            local: req.local_comm_id,
            remote: None,
            transaction: packet.mad.transaction,
            disconnect_transaction: 0,
            service: service_of(req),
            active_qpn: req.local_qpn,
            passive_qpn: None,
            request: packet.place,
            sent: 1,
            retries: req.max_cm_retries,
            resources: (req.initiator_depth, req.responder_resources),
            to_active: Agreed {
                first_psn: Some(req.starting_psn),
                depth: Some(req.responder_resources),
                flow_control: req.flow_control,
                ..agreed
            },
            to_passive: agreed,
        };
        self.known.insert(key, connection);
    }

    fn reply(&mut self, packet: &CmPacket<'_>, flows: &mut Flows, out: &mut Findings) {
        let CmMessage::Rep(rep) = &packet.mad.message else { return };
        let Some(known) = self.known.get_mut(&(packet.tap, packet.dst, rep.remote_comm_id)) else {
            return self.unknown_connection(packet, out);
        };
        if known.transaction != packet.mad.transaction {
            out.add(RuleId::CmTransaction, packet.place, || {
                format!(
                    "a REP with transaction ID {:#x}, but its REQ (packet {}) has {:#x}",
                    packet.mad.transaction, known.request.packet.number, known.transaction
                )
            });
        }
        if known.stage != Stage::ReqSent {
            return;
        }
        known.stage = Stage::RepSent;
        mad::resources(rep, known.resources, packet.place, out);
        known.remote = Some(rep.local_comm_id);
        known.passive_qpn = Some(rep.local_qpn);
        let flow_control = known.to_active.flow_control && rep.flow_control;
        known.to_active.flow_control = flow_control;
        let to_passive = Agreed {
            first_psn: Some(rep.starting_psn),
            depth: Some(rep.responder_resources),
            flow_control,
            rnr_retry_count: Some(rep.rnr_retry_count),
            ..known.to_passive
        };
        let (active, passive, request) = (known.active, known.passive, known.request);
        let (active_qpn, to_active) = (known.active_qpn, known.to_active);
        let (tap, service) = (packet.tap, known.service);
        let key = |src, dst, qpn| Key { tap, src, dst, service, qpn };
        let to = key(active, passive, rep.local_qpn);
        if let Some(flow) = flows.of_request(to) {
            let figures = flows.get(flow).figures;
            if figures.requests > 0 && figures.last_at >= request.at {
                out.add(RuleId::CmEarly, packet.place, || {
                    format!(
                        "{active} sent requests to QP {} before this REP announced that QP",
                        rep.local_qpn
                    )
                });
            }
        }
        let back = key(passive, active, active_qpn);
        let starts = [(to, active_qpn, to_passive), (back, rep.local_qpn, to_active)];
        for (key, response_qpn, agreed) in starts {
            if let Some((flow, old)) = flows.start_connection(key, response_qpn, agreed) {
                super::connection_failure::end(&old, flow, out);
            }
        }
    }

    /// Checks a message that no known connection fits.
    fn unknown_connection(&self, packet: &CmPacket<'_>, out: &mut Findings) {
        let transaction = packet.mad.transaction;
        let request = self.known.values().find(|known| {
            known.transaction == transaction
                && known.active == packet.dst
                && known.passive == packet.src
        });
        if let Some(known) = request {
            out.add(RuleId::CmId, packet.place, || {
                format!(
                    "a REP with an unknown communication ID: the REQ in packet {} has {:#x}",
                    known.request.packet.number, known.local
                )
            });
        }
    }

    fn reject(&mut self, packet: &CmPacket<'_>, out: &mut Findings) {
        let CmMessage::Rej(rej) = &packet.mad.message else { return };
        let request =
            self.known.get_mut(&(packet.tap, packet.dst, rej.remote_comm_id)).map(|known| {
                known.stage = Stage::Ended;
                format!(" (REQ: packet {})", known.request.packet.number)
            });
        let why = match rej.reason {
            RejectReason::INVALID_SERVICE_ID => {
                "no listener for this service ID (that is, for this port)".to_owned()
            }
            reason => reason.to_string(),
        };
        out.add(RuleId::CmRejected, packet.place, || {
            format!(
                "{} rejects the connection request of {}{}: {why}",
                packet.src,
                packet.dst,
                request.unwrap_or_default()
            )
        });
    }

    /// Checks an RTU, DREQ or DREP.
    fn later_message(
        &mut self,
        packet: &CmPacket<'_>,
        ids: (u32, u32),
        flows: &mut Flows,
        out: &mut Findings,
    ) {
        let (local, remote) = ids;
        let name = packet.mad.message.name();
        let is_of = |known: &Connection| {
            let from_active = known.active == packet.src && known.passive == packet.dst;
            let from_passive = known.passive == packet.src && known.active == packet.dst;
            (from_active && (known.local == local || known.remote == Some(remote)))
                || (from_passive && (known.local == remote || known.remote == Some(local)))
        };
        let is_exact = |known: &Connection| match known.active == packet.src {
            true => (known.local, known.remote) == (local, Some(remote)),
            false => (known.remote, known.local) == (Some(local), remote),
        };
        let here =
            self.known.iter().filter(|((tap, ..), known)| *tap == packet.tap && is_of(known));
        let place = here.max_by_key(|(_, known)| (is_exact(known), known.request.at));
        let place = place.map(|(&key, _)| key);
        let Some(known) = place.and_then(|key| self.known.get_mut(&key)) else { return };
        if known.remote.is_some() && !is_exact(known) {
            out.add(RuleId::CmId, packet.place, || {
                format!(
                    "{name} with the communication IDs {local:#x} and {remote:#x}, but the \
                     connection of the REQ in packet {} has others",
                    known.request.packet.number
                )
            });
            return;
        }
        // A capture of one direction has only half of the messages.
        let back = Key {
            tap: packet.tap,
            src: packet.dst,
            dst: packet.src,
            service: Service::Ud,
            qpn: Qpn::GSI,
        };
        if flows.known_request(&back).is_none() {
            known.stage = Stage::Ended;
            return;
        }
        known.advance(packet, out);
        if let (CmMessage::Drep(_), Stage::Ended) = (&packet.mad.message, known.stage) {
            known.end(packet, flows);
        }
    }

    /// Reports REQs without a reply. `last` is the time of the last packet of the capture.
    pub fn end(&self, last: u64, out: &mut Findings) {
        const REPLY_TIMEOUT: u64 = 1_000_000_000;
        for known in self.known.values().filter(|known| known.stage == Stage::ReqSent) {
            if known.sent > 1 || last.saturating_sub(known.request.at) > REPLY_TIMEOUT {
                out.add(RuleId::CmSilent, known.request, || {
                    format!(
                        "{} sent {} a REQ {} times and got no reply",
                        known.active, known.passive, known.sent
                    )
                });
            }
        }
    }
}

/// Returns the service that a REQ asks for; RC if the field is undefined.
fn service_of(req: &Req) -> Service {
    match req.connection() {
        Some(Transport::Uc) => Service::Uc,
        Some(Transport::Xrc) => Service::Xrc,
        Some(Transport::Rc) | None => Service::Rc,
    }
}

impl Connection {
    fn advance(&mut self, packet: &CmPacket<'_>, out: &mut Findings) {
        let name = packet.mad.message.name();
        let (stage, fits) = match packet.mad.message {
            CmMessage::Rtu(_) => {
                (Stage::Ready, self.stage >= Stage::RepSent && packet.src == self.active)
            }
            CmMessage::Dreq(_) => (Stage::Ending, self.stage >= Stage::RepSent),
            _ => (Stage::Ended, self.stage >= Stage::Ending),
        };
        if !fits {
            out.add(RuleId::CmOrder, packet.place, || {
                format!(
                    "{name} from {} out of order: an earlier message of the connection is missing \
                     (the REQ is packet {})",
                    packet.src, self.request.packet.number
                )
            });
            return;
        }
        self.transactions(packet, out);
        if let CmMessage::Dreq(dreq) = &packet.mad.message {
            self.disconnect_transaction = packet.mad.transaction;
            let expected =
                if packet.src == self.active { self.passive_qpn } else { Some(self.active_qpn) };
            if let Some(expected) = expected.filter(|&expected| expected != dreq.remote_qpn) {
                out.add(RuleId::CmQpn, packet.place, || {
                    format!(
                        "a DREQ for QP {}, but the QP of its receiver in the connection is \
                         {expected}",
                        dreq.remote_qpn
                    )
                });
            }
        }
        self.stage = self.stage.max(stage);
    }

    /// Marks the flows of the connection as ended by a DREP.
    fn end(&self, packet: &CmPacket<'_>, flows: &mut Flows) {
        let Some(passive_qpn) = self.passive_qpn else { return };
        let (tap, service) = (packet.tap, self.service);
        let key = |src, dst, qpn| Key { tap, src, dst, service, qpn };
        let keys = [
            key(self.active, self.passive, passive_qpn),
            key(self.passive, self.active, self.active_qpn),
        ];
        for flow in keys.iter().filter_map(|key| flows.known_request(key)).collect::<Vec<_>>() {
            flows.get(flow).ended = Some((packet.place.packet, packet.place.at));
        }
    }

    fn transactions(&self, packet: &CmPacket<'_>, out: &mut Findings) {
        let expected = match packet.mad.message {
            CmMessage::Rtu(_) => self.transaction,
            CmMessage::Drep(_) => self.disconnect_transaction,
            _ => return,
        };
        if expected != packet.mad.transaction {
            out.add(RuleId::CmTransaction, packet.place, || {
                format!(
                    "{} with transaction ID {:#x}, but it answers transaction {expected:#x}",
                    packet.mad.message.name(),
                    packet.mad.transaction
                )
            });
        }
    }
}
