//! Communication management messages in a rewritten capture.

use std::net::{IpAddr, Ipv6Addr};

use feroce_wire::cm::{CmMad, CmMessage, IpCmHeader, RejectReason};
use feroce_wire::{MAD_LEN, Opcode, Packet, Psn, Qpn};

use super::{Rewrite, shifted};

/// The management datagram in `packet`, if it is of communication management and nothing of it is
/// lost when it is written again.
pub fn mad(packet: &Packet<'_>) -> Option<CmMad> {
    let is_to_gsi = packet.bth.opcode == Opcode::UD_SEND_ONLY && packet.bth.dest_qp == Qpn::GSI;
    if !is_to_gsi || packet.payload.len() != MAD_LEN {
        return None;
    }
    let mut bytes = [0; MAD_LEN];
    packet.payload.copy_to(&mut bytes);
    let mad = CmMad::parse(&bytes).ok()?;
    (mad.to_bytes() == bytes).then_some(mad)
}

/// The QP numbers that `message` names.
pub fn qpns(message: &CmMessage) -> Vec<Qpn> {
    match message {
        CmMessage::Req(req) => vec![req.local_qpn],
        CmMessage::Rep(rep) => vec![rep.local_qpn, rep.local_eecn],
        CmMessage::Dreq(dreq) => vec![dreq.remote_qpn],
        CmMessage::SidrRep(rep) => vec![rep.qpn],
        _ => Vec::new(),
    }
}

/// The node GUIDs that `message` names.
pub fn guids(message: &CmMessage) -> Vec<u64> {
    match message {
        CmMessage::Req(req) => vec![req.local_ca_guid],
        CmMessage::Rep(rep) => vec![rep.local_ca_guid],
        CmMessage::Rej(rej) if rej.reason == RejectReason::TIMEOUT => {
            rej.info.first_chunk().map(|guid| u64::from_be_bytes(*guid)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The IP addresses that `message` names.
pub fn ips(message: &CmMessage) -> Vec<IpAddr> {
    let (gids, data): (Vec<[u8; 16]>, &[u8]) = match message {
        CmMessage::Req(req) => (
            vec![
                req.primary_local_gid,
                req.primary_remote_gid,
                req.alternate_local_gid,
                req.alternate_remote_gid,
            ],
            &req.private_data,
        ),
        CmMessage::SidrReq(req) => (Vec::new(), &req.private_data),
        _ => return Vec::new(),
    };
    let header = IpCmHeader::parse(data).ok();
    let named = header.into_iter().flat_map(|header| [header.source.ip(), header.destination]);
    gids.into_iter().map(ip_of).chain(named).collect()
}

fn ip_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

impl Rewrite {
    /// Rewrites `mad`: addresses, QP numbers, node GUIDs, and the PSNs of packets to the QPs.
    pub(super) fn apply_to_mad(&self, mad: &CmMad) -> [u8; MAD_LEN] {
        let mut mad = *mad;
        match &mut mad.message {
            CmMessage::Req(req) => {
                req.starting_psn = self.first_psn(req.local_qpn, req.starting_psn);
                req.local_qpn = self.qpn(req.local_qpn);
                req.local_ca_guid = self.guid(req.local_ca_guid);
                for gid in [
                    &mut req.primary_local_gid,
                    &mut req.primary_remote_gid,
                    &mut req.alternate_local_gid,
                    &mut req.alternate_remote_gid,
                ] {
                    *gid = self.gid(*gid);
                }
                self.map_request_data(&mut req.private_data);
            }
            CmMessage::Rep(rep) => {
                rep.starting_psn = self.first_psn(rep.local_qpn, rep.starting_psn);
                (rep.local_qpn, rep.local_eecn) =
                    (self.qpn(rep.local_qpn), self.qpn(rep.local_eecn));
                rep.local_ca_guid = self.guid(rep.local_ca_guid);
                self.map_data(&mut rep.private_data);
            }
            CmMessage::Rej(rej) => {
                if rej.reason == RejectReason::TIMEOUT
                    && let Some(field) = rej.info.first_chunk_mut()
                {
                    *field = self.guid(u64::from_be_bytes(*field)).to_be_bytes();
                } else {
                    self.map_data(&mut rej.info);
                }
                self.map_data(&mut rej.private_data);
            }
            CmMessage::Dreq(dreq) => {
                dreq.remote_qpn = self.qpn(dreq.remote_qpn);
                self.map_data(&mut dreq.private_data);
            }
            CmMessage::SidrReq(req) => self.map_request_data(&mut req.private_data),
            CmMessage::SidrRep(rep) => {
                rep.qpn = self.qpn(rep.qpn);
                self.map_data(&mut rep.private_data);
            }
            CmMessage::Mra(mra) => self.map_data(&mut mra.private_data),
            CmMessage::Rtu(rtu) => self.map_data(&mut rtu.private_data),
            CmMessage::Drep(drep) => self.map_data(&mut drep.private_data),
        }
        mad.to_bytes()
    }

    /// The PSN of the first packet to `qpn`.
    fn first_psn(&self, qpn: Qpn, psn: Psn) -> Psn {
        shifted(psn, self.psns.get(&qpn.value()).copied().unwrap_or(0))
    }

    fn guid(&self, guid: u64) -> u64 {
        self.guids.get(&guid).copied().unwrap_or(guid)
    }

    fn gid(&self, gid: [u8; 16]) -> [u8; 16] {
        match self.ips.get(&ip_of(gid)) {
            Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped().octets(),
            Some(IpAddr::V6(ip)) => ip.octets(),
            None => gid,
        }
    }

    /// The private data of a request begin with the addresses of both ends.
    fn map_request_data(&self, data: &mut [u8]) {
        let Ok(mut header) = IpCmHeader::parse(data) else { return self.map_data(data) };
        let other = |ip: IpAddr| self.ips.get(&ip).copied().unwrap_or(ip);
        header.source.set_ip(other(header.source.ip()));
        header.destination = other(header.destination);
        let (front, rest) = data.split_at_mut(IpCmHeader::LEN);
        front.copy_from_slice(&header.to_bytes());
        self.map_data(rest);
    }

    fn map_data(&self, data: &mut [u8]) {
        if self.hides_data {
            data.fill(0);
        }
    }
}
