//! Which port a device opens, and what comes with it.

use std::error::Error;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use super::owner::Ownership;
use super::{Addressing, DeviceConfig, KernelAddresses, OpenError};
use crate::port::Port;
use crate::port::af_xdp::{self, AfXdp, AfXdpError, XdpMode};
use crate::port::packet::{self, PacketPort};

/// A kind of port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PortKind {
    /// The best that the interface and the process's privileges allow. A warning says why that is not AF_XDP; who
    /// asks for a mode of XDP gets AF_XDP or the reason why not.
    #[default]
    Auto,
    /// AF_XDP sockets.
    AfXdp,
    /// Packet sockets.
    Packet,
    /// A device of DPDK's; only where Feroce was built with the cargo feature `dpdk`, and never chosen by `Auto`.
    Dpdk,
}

impl PortKind {
    /// Every kind, by its name.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("af_xdp", Self::AfXdp),
        ("packet", Self::Packet),
        ("dpdk", Self::Dpdk),
    ];

    /// Whether the port stands on an interface of the kernel's, whose addresses, routes and neighbours it uses.
    pub fn is_on_kernel(self) -> bool {
        self != Self::Dpdk
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// No kind of port has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no kind of port is called `{name}`: {}", Self::known())]
pub struct UnknownPortKind {
    /// As given.
    pub name: String,
}

impl UnknownPortKind {
    fn known() -> String {
        let names: Vec<_> = PortKind::NAMES.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}

impl FromStr for PortKind {
    type Err = UnknownPortKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| UnknownPortKind { name: name.to_owned() })
    }
}

/// Open ports, and what a device needs to know about them.
pub(super) struct OpenPorts {
    /// What `feroce stat` calls the device.
    pub(super) name: String,
    /// One per core.
    pub(super) ports: Vec<Box<dyn Port>>,
    pub(super) addressing: Addressing,
    /// On an interface of the kernel's, of which one program owns the RoCE traffic.
    pub(super) owner: Option<Ownership>,
    /// What tells the ports which frames are theirs, where they do not know themselves.
    pub(super) filter: Option<Filter>,
    /// Why they are of their kind.
    pub(super) reason: String,
}

/// The reason for a kind of port that was asked for by name.
const ASKED_FOR: &str = "asked for";

/// Ports on an interface of the kernel's.
type KernelPorts = (Vec<Box<dyn Port>>, Filter);

/// The addresses whose frames come to the ports.
#[derive(Debug, Clone)]
pub(super) enum Filter {
    AfXdp(af_xdp::AddressFilter),
    Packet(packet::AddressFilter),
}

impl Filter {
    /// Makes `addresses` (IPv4 ones mapped) the ones whose frames are taken.
    pub(super) fn set(&self, addresses: &[Ipv6Addr]) -> Result<(), OpenError> {
        match self {
            Self::AfXdp(filter) => Ok(filter.set(addresses)?),
            Self::Packet(filter) => Ok(filter.set(addresses)?),
        }
    }
}

/// Opens the ports of a device on `interface`.
pub(super) fn open(interface: &str, config: &DeviceConfig) -> Result<OpenPorts, OpenError> {
    if config.port == PortKind::Dpdk {
        return open_dpdk(interface, config);
    }
    let addresses = KernelAddresses::open(interface)?;
    let owner = Ownership::take(interface)?;
    let asked_for = |opened| (opened, ASKED_FOR.to_owned());
    let ((ports, filter), reason) = match config.port {
        PortKind::Auto if config.af_xdp.mode == XdpMode::Auto => open_best(interface, config)?,
        PortKind::Packet => asked_for(open_packet(interface, config)?),
        _ => asked_for(open_af_xdp(interface, config)?),
    };
    Ok(OpenPorts {
        name: interface.to_owned(),
        ports,
        addressing: Addressing::Kernel(addresses),
        owner: Some(owner),
        filter: Some(filter),
        reason,
    })
}

/// Nobody owns the device here: a NIC has one process because vfio sees to it, and the names of virtual devices
/// are each process's own.
#[cfg(feature = "dpdk")]
fn open_dpdk(device: &str, config: &DeviceConfig) -> Result<OpenPorts, OpenError> {
    let mut port_config = config.dpdk.clone();
    port_config.port = device.to_owned();
    port_config.flow_control |= config.pfc.is_on();
    let ports = crate::port::dpdk::DpdkPort::open(&port_config, config.cores)?;
    Ok(OpenPorts {
        name: ports[0].attributes().name.clone(),
        addressing: Addressing::Port(ports[0].addresses()),
        ports: ports.into_iter().map(|port| Box::new(port) as _).collect(),
        owner: None,
        filter: None,
        reason: ASKED_FOR.to_owned(),
    })
}

#[cfg(not(feature = "dpdk"))]
fn open_dpdk(_device: &str, _config: &DeviceConfig) -> Result<OpenPorts, OpenError> {
    Err(OpenError::NotBuilt(PortKind::Dpdk))
}

/// AF_XDP where it can be had, else packet sockets; and why.
fn open_best(interface: &str, config: &DeviceConfig) -> Result<(KernelPorts, String), OpenError> {
    let error = match open_af_xdp(interface, config) {
        Ok(opened) => {
            return Ok((opened, "auto: interface and privileges allow AF_XDP".to_owned()));
        }
        Err(OpenError::AfXdp(error)) if may_do_without(&error) => error,
        Err(error) => return Err(error),
    };
    let opened = match open_packet(interface, config) {
        Err(packet) => return Err(OpenError::NoPort { af_xdp: error, packet: Box::new(packet) }),
        Ok(opened) => opened,
    };
    let port = &opened.0[0].attributes().kind;
    let mut why = error.to_string();
    if let Some(cause) = error.source() {
        why = format!("{why}: {cause}");
    }
    tracing::warn!("{interface} is opened as {port}, since AF_XDP cannot be had: {why}");
    Ok((opened, format!("auto: AF_XDP cannot be had: {why}")))
}

/// Whether the cause is one that packet sockets do not have.
fn may_do_without(error: &AfXdpError) -> bool {
    !matches!(
        error,
        AfXdpError::Config(_)
            | AfXdpError::NoSuchInterface(_)
            | AfXdpError::NotEthernet(_)
            | AfXdpError::Down(_)
            | AfXdpError::Owned { .. }
    )
}

fn open_packet(interface: &str, config: &DeviceConfig) -> Result<KernelPorts, OpenError> {
    let mut port_config = config.packet.clone();
    port_config.interface = interface.to_owned();
    port_config.flow_control |= config.pfc.is_on();
    let ports = PacketPort::open(&port_config, config.cores)?;
    // The kernel counts its own overhead, too: about as much again.
    let (granted, mtu) = (u64::from(ports[0].rx_bytes()), ports[0].attributes().mtu);
    let window = 2 * u64::from(config.window) * u64::from(mtu);
    if granted < window {
        tracing::warn!(
            interface,
            granted,
            window,
            "the receive buffer holds less than a window, bursts may be lost: `sysctl net.core.rmem_max={}`",
            port_config.rx_bytes
        );
    }
    let filter = Filter::Packet(ports[0].address_filter());
    Ok((ports.into_iter().map(|port| Box::new(port) as _).collect(), filter))
}

fn open_af_xdp(interface: &str, config: &DeviceConfig) -> Result<KernelPorts, OpenError> {
    let mut port_config = config.af_xdp.clone();
    port_config.interface = interface.to_owned();
    port_config.flow_control |= config.pfc.is_on();
    let ports = AfXdp::open(&port_config, config.cores)?;
    if !ports[0].hugepages() && port_config.hugepages {
        tracing::warn!(
            interface,
            "packet buffers are in ordinary pages: reserve some with `sysctl vm.nr_hugepages=64`"
        );
    }
    if ports[0].strips_vlan() {
        tracing::warn!(
            interface,
            "the interface strips VLAN tags, so that tagged frames look untagged: `ethtool -K {interface} rxvlan off`"
        );
    }
    let filter = Filter::AfXdp(ports[0].address_filter());
    Ok((ports.into_iter().map(|port| Box::new(port) as _).collect(), filter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names() {
        for (name, kind) in PortKind::NAMES {
            assert_eq!(name.parse(), Ok(*kind));
            assert_eq!(kind.to_string(), *name);
        }
        let told = "infiniband".parse::<PortKind>().unwrap_err().to_string();
        assert!(told.contains("infiniband") && told.contains("af_xdp"), "{told}");
    }

    #[cfg(not(feature = "dpdk"))]
    #[test]
    fn a_kind_that_was_not_built_says_how_to_build_it() {
        let config = DeviceConfig { port: PortKind::Dpdk, ..DeviceConfig::default() };
        let told = super::super::Device::open("net_null0", config).unwrap_err().to_string();
        assert!(told.contains("no dpdk port") && told.contains("`--features dpdk`"), "{told}");
    }
}
