//! The rules of single management datagrams: their header, and fields that must fit other fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use feroce_wire::cm::{Rep, Req};
use feroce_wire::{MAD_LEN, MadHeader};

use super::findings::{Findings, Place};
use crate::packet::{Carrier, Seen};
use crate::rules::RuleId;

/// The class of communication management.
const CM: u8 = 7;
/// Get, Set, Send, and the response to Get and Set.
const METHODS: [u8; 4] = [1, 2, 3, 0x81];
/// ClassPortInfo, and the messages from REQ to SPR.
const CLASS_PORT_INFO: u16 = 1;
const MESSAGES: std::ops::RangeInclusive<u16> = 0x10..=0x1c;

/// Checks method, status and attribute of a datagram of communication management.
pub(super) fn header(seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let payload = seen.packet.payload.first;
    let Ok(header) = MadHeader::parse(payload) else { return };
    if header.class != CM || payload.len() != MAD_LEN || seen.is_cut {
        return;
    }
    let MadHeader { method, status, attribute, .. } = header;
    let checks = [
        (METHODS.contains(&method), "method", u16::from(method)),
        (status == 0 || method & 0x80 != 0, "status", status),
        (attribute == CLASS_PORT_INFO || MESSAGES.contains(&attribute), "attribute", attribute),
    ];
    for (_, field, value) in checks.into_iter().filter(|(holds, ..)| !holds) {
        out.add(RuleId::Mad, place, || {
            format!("a message of communication management with {field} {value:#06x}")
        });
    }
}

/// Checks that the GIDs of a REQ are the addresses of its sender and its receiver.
pub(super) fn gids(req: &Req, seen: &Seen<'_>, place: Place, out: &mut Findings) {
    if seen.carrier != Carrier::RoceV2 {
        return;
    }
    let pairs = [
        ("local", req.primary_local_gid, seen.src()),
        ("remote", req.primary_remote_gid, seen.dst()),
    ];
    for (which, gid, address) in pairs {
        let gid = address_of(gid);
        if gid != address {
            out.add(RuleId::CmGid, place, || {
                format!(
                    "the {which} GID of the REQ is {gid}, but the packet has the address {address}"
                )
            });
        }
    }
}

fn address_of(gid: [u8; 16]) -> IpAddr {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Ipv4Addr::new(a, b, c, d).into(),
        gid => Ipv6Addr::from(gid).into(),
    }
}

/// Checks that a REP does not grant more READs and atomics than its REQ asked for: `asked` is the
/// initiator depth and the responder resources of the REQ.
pub(super) fn resources(rep: &Rep, asked: (u8, u8), place: Place, out: &mut Findings) {
    let rows = [
        ("responder resources", rep.responder_resources, "initiator depth", asked.0),
        ("initiator depth", rep.initiator_depth, "responder resources", asked.1),
    ];
    for (field, value, of_req, limit) in rows.into_iter().filter(|row| row.1 > row.3) {
        out.add(RuleId::CmResources, place, || {
            format!("the REP has {field} {value}, but the {of_req} of its REQ is {limit}")
        });
    }
}
