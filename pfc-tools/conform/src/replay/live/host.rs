//! The interface that sends the requests. The kernel receives the responses, too: the packet port
//! binds UDP port 4791, so that the kernel does not reply with "port unreachable".

use std::error::Error;
use std::net::{IpAddr, Ipv6Addr};

use feroce_engine::net::{Gid, GidEntry, Interface, InterfaceAddress, RESOLVE_TIMEOUT, Resolver};
use feroce_engine::port::packet::{PacketConfig, PacketPort, SuperFrames};

use crate::endpoint::Failure;
use crate::party::Party;

/// See the [module](self).
#[derive(Debug)]
pub struct Host {
    /// The port that sends and receives frames.
    pub port: PacketPort,
    /// Our addresses, without a QP.
    pub own: Party,
    /// The peer's addresses, without a QP.
    pub peer: Party,
}

/// Formats an error and its sources.
fn failure(error: impl Error) -> Failure {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    Failure(text)
}

impl Host {
    /// Opens the interface `name` of this thread's network namespace and resolves `peer`.
    ///
    /// # Errors
    /// If the interface, a permission, an address of the peer's family or the peer is missing.
    pub fn open(name: &str, peer: IpAddr) -> Result<Self, Failure> {
        let interface = Interface::read(name).map_err(failure)?;
        let config = PacketConfig { super_frames: SuperFrames::Off, ..PacketConfig::new(name) };
        let port = PacketPort::open(&config, 1).map_err(failure)?.remove(0);
        let addresses = InterfaceAddress::list().map_err(failure)?;
        let link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let fits = |address: &&InterfaceAddress| {
            let ip = address.ip;
            address.interface == interface.index
                && ip.is_ipv4() == peer.is_ipv4()
                && link_local(ip) == link_local(peer)
        };
        let own = addresses.iter().find(fits).map(|address| address.ip).ok_or_else(|| {
            Failure(format!("{name} has no address to reach {peer} (`ip address add`)"))
        })?;
        let gid = Gid::from(own);
        port.address_filter().set(&[Ipv6Addr::from(gid.0)]).map_err(failure)?;
        let source = GidEntry {
            gid,
            vlan: None,
            interface: interface.index,
            interface_name: interface.name.clone(),
        };
        let mut resolver = Resolver::open().map_err(failure)?;
        let headers =
            resolver.resolve(Gid::from(peer), &source, RESOLVE_TIMEOUT).map_err(failure)?;
        Ok(Self {
            port,
            own: Party { mac: headers.src_mac, ip: own, qpn: 0 },
            peer: Party { mac: headers.dst_mac, ip: peer, qpn: 0 },
        })
    }
}
