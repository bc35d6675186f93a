//! The global routing header: 40 bytes in front of a received datagram.
//!
//! ```text
//!           0                   20                  40
//!   IPv6    |              IPv6 header              |
//!   IPv4    |      zeros        |   IPv4 header     |
//! ```
//! RoCEv2 (annex A17) defines the place of the IPv4 header and leaves the bytes in front undefined.

use feroce_wire::{IpHeader, Ipv4Header};

use crate::verbs::GRH_LEN;

/// The GRH of a packet with the IP header `ip`.
pub fn grh_of(ip: &IpHeader) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    match ip {
        IpHeader::V4(ip) => ip.write(&mut grh[GRH_LEN - Ipv4Header::LEN..]),
        IpHeader::V6(ip) => ip.write(&mut grh),
    }
    grh
}
