//! Marking a frame as a congested switch does.

use crate::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN};
use crate::ipv4::fold_checksum;
use crate::{Ecn, EthernetHeader, Ipv4Header, VlanTag};

/// Marks an Ethernet frame as a congested switch does: sets CE in an ECN-capable IP packet and
/// updates the IPv4 header checksum. The ICRC does not cover these bits. Returns true if the frame
/// is now marked, even if it was marked before; returns false and changes nothing if it is not an
/// ECN-capable packet.
pub fn mark_ce(frame: &mut [u8]) -> bool {
    let ethertype = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let (ethertype, ip_at) = match ethertype(12) {
        Some(ETHERTYPE_VLAN) => (ethertype(16), EthernetHeader::LEN + VlanTag::LEN),
        untagged => (untagged, EthernetHeader::LEN),
    };
    let Some(ip) = frame.get_mut(ip_at..).filter(|ip| ip.len() >= Ipv4Header::LEN) else {
        return false;
    };
    match ethertype {
        Some(ETHERTYPE_IPV4) => mark_v4(ip),
        Some(ETHERTYPE_IPV6) => {
            // The traffic class spans the first two bytes; its ECN bits are in the second.
            let is_capable = Ecn::from_traffic_class(ip[1] >> 4) != Ecn::NotEct;
            if is_capable {
                ip[1] |= Ecn::Ce.bits() << 4;
            }
            is_capable
        }
        _ => false,
    }
}

fn mark_v4(ip: &mut [u8]) -> bool {
    let tos = ip[1];
    if Ecn::from_traffic_class(tos) == Ecn::NotEct {
        return false;
    }
    ip[1] = Ecn::Ce.set_in(tos);
    // RFC 1624: the complement of the sum changes by the added value, with end-around carry.
    let sum = u32::from(!u16::from_be_bytes([ip[10], ip[11]])) + u32::from(ip[1] - tos);
    ip[10..12].copy_from_slice(&fold_checksum(sum).to_be_bytes());
    true
}
