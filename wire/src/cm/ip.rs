//! IP addresses in communication management: the header in front of the private data, and ports in
//! service IDs.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+-------+-------+-------------------------------+
//! | major | minor |  IPV  |  rsv  |          source port          |
//! +-------+-------+-------+-------+-------------------------------+
//! |           source address (16 bytes, IPv4 in the last 4)        |
//! +---------------------------------------------------------------+
//! |         destination address (16 bytes, IPv4 in the last 4)     |
//! +---------------------------------------------------------------+
//! ```

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// Port space of a service ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// Datagrams, in the partition of an IPoIB interface.
    Ipoib = 0x0002,
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// The InfiniBand port space, used with IP addresses.
    Ib = 0x013f,
}

impl PortSpace {
    /// All port spaces.
    pub const ALL: [Self; 4] = [Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib];

    /// The port space with this number, as in `rdma_create_id`.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|space| space.number() == number)
    }

    /// The number of the port space.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }
}

/// Service ID: the service that a connection request addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service ID of a port.
    #[must_use]
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// Port space and port; `None` if the service ID does not consist of them.
    #[must_use]
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = u16::try_from(self.0 >> 16).ok().and_then(PortSpace::from_number)?;
        let [.., high, low] = self.0.to_be_bytes();
        Some((space, u16::from_be_bytes([high, low])))
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{space:?} port {port}"),
            None => write!(f, "service {:#018x}", self.0),
        }
    }
}

/// Addresses of a connection, 36 bytes in front of the private data of REQ and SIDR REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpCmHeader {
    /// Address and port of the active side.
    pub source: SocketAddr,
    /// Address of the passive side, of the same family; its port is in the service ID.
    pub destination: IpAddr,
}

/// Why private data does not begin with a valid address header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IpCmError {
    /// Fewer than 36 bytes.
    #[error("addresses take 36 bytes, {0} are there")]
    Truncated(usize),
    /// A version other than 0.0.
    #[error("version {0:#04x} of the address header")]
    Version(u8),
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0}")]
    IpVersion(u8),
}

impl IpCmHeader {
    /// Length, in bytes.
    pub const LEN: usize = 36;

    /// Reads the header at the front of `private_data`.
    ///
    /// # Errors
    /// See [`IpCmError`].
    pub fn parse(private_data: &[u8]) -> Result<Self, IpCmError> {
        let Some(bytes) = private_data.first_chunk::<{ Self::LEN }>() else {
            return Err(IpCmError::Truncated(private_data.len()));
        };
        let [version, ip_version, port_high, port_low, ..] = *bytes;
        if version != 0 {
            return Err(IpCmError::Version(version));
        }
        let address = |at: usize| -> Result<IpAddr, IpCmError> {
            let address: [u8; 16] = core::array::from_fn(|index| bytes[at + index]);
            match ip_version >> 4 {
                4 => {
                    Ok(Ipv4Addr::from([address[12], address[13], address[14], address[15]]).into())
                }
                6 => Ok(Ipv6Addr::from(address).into()),
                other => Err(IpCmError::IpVersion(other)),
            }
        };
        let port = u16::from_be_bytes([port_high, port_low]);
        Ok(Self { source: SocketAddr::new(address(4)?, port), destination: address(20)? })
    }

    /// The header as it goes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        for (at, address) in [(4, self.source.ip()), (20, self.destination)] {
            match address {
                IpAddr::V4(ip) => bytes[at + 12..at + 16].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_service_id_contains_port_space_and_port() {
        let rping = ServiceId::new(PortSpace::Tcp, 7174);
        assert_eq!(rping.0, 0x0106_1c06);
        assert_eq!(rping.port(), Some((PortSpace::Tcp, 7174)));
        assert_eq!(rping.to_string(), "Tcp port 7174");
        assert_eq!(ServiceId(0x1_0106_1c06).port(), None);
        assert_eq!(ServiceId(0x0107_0001).to_string(), "service 0x0000000001070001");
    }

    #[test]
    fn errors_name_the_wrong_field() {
        let v4 = IpCmHeader {
            source: "10.77.0.3:53915".parse().unwrap(),
            destination: "10.77.0.2".parse().unwrap(),
        };
        let mut bytes = v4.to_bytes();
        assert_eq!(IpCmHeader::parse(&bytes), Ok(v4));
        assert_eq!(IpCmHeader::parse(&bytes[..35]), Err(IpCmError::Truncated(35)));
        bytes[1] = 0x50;
        assert_eq!(IpCmHeader::parse(&bytes), Err(IpCmError::IpVersion(5)));
        bytes[0] = 0x10;
        assert_eq!(IpCmHeader::parse(&bytes), Err(IpCmError::Version(0x10)));
    }
}
