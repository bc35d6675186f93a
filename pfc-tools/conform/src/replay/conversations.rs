//! The conversations of communication management in a capture: the messages of one connection, or
//! of one resolution of a service ID.

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_wire::cm::{CmMad, CmMessage};
use feroce_wire::{MAD_LEN, Opcode, Qpn};

use super::lanes::Captured;

/// A message of a conversation.
#[derive(Debug, Clone)]
pub struct CmPacket {
    /// Index of its frame.
    pub index: usize,
    /// True if the active end sent it.
    pub is_active: bool,
    /// The message.
    pub mad: CmMad,
    /// Its bytes.
    pub bytes: [u8; MAD_LEN],
}

/// The messages of a connection, from its REQ on, or of the resolution of a service ID.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// The end that requests.
    pub active: IpAddr,
    /// The other end.
    pub passive: IpAddr,
    /// Communication ID of the active end; its request ID for a resolution.
    pub id: u32,
    /// The messages in captured order; the first one is a REQ or a SIDR_REQ.
    pub messages: Vec<CmPacket>,
}

/// Names an end of a conversation: its address, that of the other end, its ID, and whether it
/// resolves a service ID.
type Name = (IpAddr, IpAddr, u32, bool);

/// Returns the conversations of a capture, in the order of their first messages. Messages of a
/// connection whose REQ was not captured are in none.
pub fn conversations(frames: &[Captured]) -> Vec<Conversation> {
    let mut all: Vec<Conversation> = Vec::new();
    let mut names: BTreeMap<Name, usize> = BTreeMap::new();
    let mut transactions: BTreeMap<(IpAddr, IpAddr, u64), usize> = BTreeMap::new();
    for (index, frame) in frames.iter().enumerate() {
        let Some((bytes, mad)) = mad(frame) else { continue };
        let packet = frame.packet();
        let (from, to) = (packet.ip.src(), packet.ip.dst());
        let (own, other, is_sidr) = ids(&mad.message);
        let sender = own.map(|id| (from, to, id, is_sidr));
        let receiver = other.map(|id| (to, from, id, is_sidr));
        let known = |name: Option<Name>| names.get(&name?).copied();
        let is_request = matches!(mad.message, CmMessage::Req(_) | CmMessage::SidrReq(_));
        let at = match (is_request, sender) {
            (true, Some(name)) => {
                let is_copy = |&at: &usize| all[at].messages[0].mad.transaction == mad.transaction;
                known(sender).filter(is_copy).unwrap_or_else(|| {
                    all.push(Conversation {
                        active: from,
                        passive: to,
                        id: name.2,
                        messages: Vec::new(),
                    });
                    all.len() - 1
                })
            }
            _ => {
                // A message with a wrong ID has the transaction of its request.
                let exchange = transactions.get(&(to, from, mad.transaction)).copied();
                match known(receiver).or(known(sender)).or(exchange) {
                    Some(at) => at,
                    None => continue,
                }
            }
        };
        if is_request {
            transactions.insert((from, to, mad.transaction), at);
        }
        names.extend(sender.filter(|name| name.2 != 0).map(|name| (name, at)));
        let is_active = all[at].active == from && all[at].passive == to;
        all[at].messages.push(CmPacket { index, is_active, mad, bytes });
    }
    all
}

/// Returns the management datagram in `frame`, if it is of communication management.
fn mad(frame: &Captured) -> Option<([u8; MAD_LEN], CmMad)> {
    let packet = frame.packet();
    let is_to_gsi = packet.bth.opcode == Opcode::UD_SEND_ONLY && packet.bth.dest_qp == Qpn::GSI;
    if !is_to_gsi || packet.payload.len() != MAD_LEN {
        return None;
    }
    let mut bytes = [0; MAD_LEN];
    packet.payload.copy_to(&mut bytes);
    CmMad::parse(&bytes).ok().map(|mad| (bytes, mad))
}

/// Returns the IDs that a message has for its sender and for its receiver, and whether it is of the
/// resolution of a service ID.
fn ids(message: &CmMessage) -> (Option<u32>, Option<u32>, bool) {
    let both = |local: u32, remote: u32| (Some(local), Some(remote), false);
    match message {
        CmMessage::Req(req) => (Some(req.local_comm_id), None, false),
        CmMessage::Rep(rep) => both(rep.local_comm_id, rep.remote_comm_id),
        CmMessage::Rtu(rtu) => both(rtu.local_comm_id, rtu.remote_comm_id),
        CmMessage::Mra(mra) => both(mra.local_comm_id, mra.remote_comm_id),
        CmMessage::Rej(rej) => both(rej.local_comm_id, rej.remote_comm_id),
        CmMessage::Dreq(dreq) => both(dreq.local_comm_id, dreq.remote_comm_id),
        CmMessage::Drep(drep) => both(drep.local_comm_id, drep.remote_comm_id),
        CmMessage::SidrReq(req) => (Some(req.request_id), None, true),
        CmMessage::SidrRep(rep) => (None, Some(rep.request_id), true),
    }
}
