//! One end of a captured connection.

use std::net::IpAddr;

use feroce_engine::net::Gid;
use feroce_wire::MacAddr;

/// The addresses of one end of a captured connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// Ethernet address.
    pub mac: MacAddr,
    /// IP address.
    pub ip: IpAddr,
    /// QP number.
    pub qpn: u32,
}

impl Party {
    /// Returns the GID of the IP address.
    pub fn gid(&self) -> Gid {
        match self.ip {
            IpAddr::V4(ip) => Gid::from(ip),
            IpAddr::V6(ip) => Gid::from(ip),
        }
    }
}
