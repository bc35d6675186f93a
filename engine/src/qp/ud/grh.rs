//! The 40 bytes in front of a received datagram.
//!
//! ```text
//!           0                   20                  40
//!   IPv6    |              IPv6 header              |
//!   IPv4    |      zeros        |   IPv4 header     |
//! ```
//! The place of the IPv4 header is RoCEv2's (annex A17); what is in front of it is undefined there.

use feroce_wire::{IpHeader, Ipv4Header};

use crate::verbs::GRH_LEN;

/// The header for a packet that came with `ip`, as on the wire.
pub fn of(ip: &IpHeader) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    match ip {
        IpHeader::V4(ip) => ip.write(&mut grh[GRH_LEN - Ipv4Header::LEN..]),
        IpHeader::V6(ip) => ip.write(&mut grh),
    }
    grh
}
