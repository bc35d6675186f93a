//! The state of an interface, as the checks read it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use feroce_engine::device::owner_of;
use feroce_engine::device::stat::{self, Request, Snapshot};
use feroce_engine::net::{GidEntry, GidTable, Interface, InterfaceAddress, NetError};
use feroce_engine::port::af_xdp::XdpFeatures;
use feroce_engine::port::ethtool::Ethtool;

use super::check::Verdict;
use super::host::Host;
use crate::socket_holder;

/// RoCEv2's UDP port as `/proc/net/udp` writes it.
const ROCE_PORT: u16 = 4791;

/// State of an interface on its host.
#[derive(Debug)]
pub struct InterfaceState {
    pub host: Rc<Host>,
    pub name: String,
    pub interface: Result<Interface, NetError>,
    pub gids: Vec<GidEntry>,
    /// Addresses of the interface and its VLANs.
    pub addresses: Vec<IpAddr>,
    /// Addresses disabled by duplicate address detection, in the form `ip address` takes.
    pub duplicates: Vec<String>,
    /// XDP features of the driver.
    pub xdp: Option<XdpFeatures>,
    /// Numbers of receive and transmit queues.
    pub queues: (u32, u32),
    pub features: BTreeMap<String, bool>,
    pub strips_vlan: bool,
    pub veth: bool,
    pub vlans: Vec<String>,
    /// The process with a socket on RoCE's UDP port, if any. The packet port cannot be opened while
    /// the socket exists.
    pub roce_socket: Option<String>,
    /// Figures of the program that has the interface open.
    pub running: Option<Snapshot>,
}

impl InterfaceState {
    /// Reads the state.
    pub fn read(name: &str, host: &Rc<Host>) -> Self {
        let interface = Interface::read(name);
        let ethtool = Ethtool::open(name).ok();
        let nic = ethtool.as_ref();
        let gids =
            GidTable::read(name).map(|table| table.iter().map(|(_, gid)| gid.clone()).collect());
        let all = Interface::list().unwrap_or_default();
        let vlans = interface
            .as_ref()
            .map(|interface| interface.vlan_children(&all).map(|v| v.name.clone()).collect());
        let members: Vec<_> = match &interface {
            Ok(it) => it.vlan_children(&all).map(|v| v.index).chain([it.index]).collect(),
            Err(_) => Vec::new(),
        };
        let of_interface = |all: Result<Vec<InterfaceAddress>, NetError>| {
            let all = all.unwrap_or_default().into_iter();
            all.filter(|address| members.contains(&address.interface))
        };
        let as_text = |InterfaceAddress { interface, ip, prefix_len }| {
            let device = all.iter().find(|one| one.index == interface).map(|one| &one.name);
            device.map(|device| format!("{ip}/{prefix_len} dev {device}"))
        };
        Self {
            host: Rc::clone(host),
            name: name.to_owned(),
            addresses: of_interface(InterfaceAddress::list()).map(|address| address.ip).collect(),
            duplicates: of_interface(InterfaceAddress::duplicates()).filter_map(as_text).collect(),
            xdp: interface.as_ref().ok().and_then(|interface| XdpFeatures::of(interface.index)),
            gids: gids.unwrap_or_default(),
            queues: nic.map_or((1, 1), Ethtool::queues),
            features: nic.and_then(|nic| nic.features().ok()).unwrap_or_default(),
            strips_vlan: nic.is_some_and(Ethtool::strips_vlan),
            veth: nic.and_then(Ethtool::driver).as_deref() == Some("veth"),
            vlans: vlans.unwrap_or_default(),
            roce_socket: roce_socket(&all),
            running: stat::query(name, &Request::default()).ok(),
            interface,
        }
    }

    /// Returns true if the offload `feature` is on.
    pub fn is_on(&self, feature: &str) -> bool {
        self.features.get(feature) == Some(&true)
    }

    /// The result of a problem that prevents AF_XDP: a warning if the packet port can be used
    /// instead, otherwise an error.
    pub fn no_af_xdp(&self, found: String, remedy: impl Into<String>) -> Option<Verdict> {
        let free = self.roce_socket.is_none();
        match (self.host.could_open("packet"), self.host.could_open("udp")) {
            (true, _) if free => {
                Verdict::warning(format!("{found}: the packet port will be used"), remedy)
            }
            (false, true) if free => {
                Verdict::warning(format!("{found}: UDP sockets will be used"), remedy)
            }
            _ => Verdict::error(found, remedy),
        }
    }

    /// The interface, if it exists.
    pub fn found(&self) -> Option<&Interface> {
        self.interface.as_ref().ok()
    }
}

/// Returns true unless the address is link-local.
pub fn is_routable(ip: IpAddr) -> bool {
    !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The process with a socket on RoCE's UDP port in this network namespace. Feroce programs on
/// `interfaces` share the port and are left out.
pub fn roce_socket(interfaces: &[Interface]) -> Option<String> {
    let holders = socket_holder::of_udp(ROCE_PORT);
    if holders.is_empty() {
        return None;
    }
    let owners = interfaces.iter().filter_map(|one| owner_of(&one.name)).map(|owner| owner.pid);
    let owners: Vec<_> = owners.collect();
    let is_other = |holder: &Option<i32>| holder.is_none_or(|pid| !owners.contains(&pid));
    let holder = holders.into_iter().find(is_other)?;
    Some(holder.map_or_else(
        || "the kernel (rxe?) or a process that this user may not inspect".to_owned(),
        socket_holder::name,
    ))
}
