//! Explicit congestion notification: the low two bits of the IPv4 TOS or IPv6 traffic class (RFC 3168).

use crate::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN};
use crate::{EthernetHeader, Ipv4Header, VlanTag};

/// The ECN codepoint of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The endpoints do not use ECN: a congested switch drops.
    NotEct,
    /// ECN-capable, codepoint 1.
    Ect1,
    /// ECN-capable, codepoint 0: what ConnectX sends.
    Ect0,
    /// A switch marked the packet: congestion experienced.
    Ce,
}

impl Ecn {
    /// The codepoint of a TOS or traffic class byte.
    #[inline]
    #[must_use]
    pub const fn from_traffic_class(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The two bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotEct => 0,
            Self::Ect1 => 1,
            Self::Ect0 => 2,
            Self::Ce => 3,
        }
    }

    /// `traffic_class` with this codepoint in place of its own.
    #[inline]
    #[must_use]
    pub const fn set_in(self, traffic_class: u8) -> u8 {
        (traffic_class & !3) | self.bits()
    }
}

/// Marks an Ethernet frame as a congested switch does: an IP packet that is ECN-capable gets CE, with the IPv4 header
/// checksum that goes with it. The ICRC does not cover these bits. False, and nothing changed, if the frame is no such
/// packet; true also if it was marked before.
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
            // The traffic class lies across the first two bytes, its ECN bits in the second.
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
    // RFC 1624: the complement of the sum changes by what was added, with the carry brought round.
    let sum = u32::from(!u16::from_be_bytes([ip[10], ip[11]])) + u32::from(ip[1] - tos);
    ip[10..12].copy_from_slice(&crate::ipv4::fold_checksum(sum).to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codepoints() {
        for (bits, ecn) in [(0, Ecn::NotEct), (1, Ecn::Ect1), (2, Ecn::Ect0), (3, Ecn::Ce)] {
            assert_eq!(ecn.bits(), bits);
            assert_eq!(Ecn::from_traffic_class(0xb8 | bits), ecn);
            assert_eq!(ecn.set_in(0xbb), 0xb8 | bits, "DSCP stays");
        }
    }
}
