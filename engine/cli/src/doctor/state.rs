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

/// RoCEv2's UDP port as `/proc/net/udp` writes it.
const ROCE_PORT: &str = "12B7";

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
    let read =
        |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let tables = read("udp") + &read("udp6");
    let mut holders = tables.lines().filter_map(inode_on_roce_port).map(holder_of).peekable();
    holders.peek()?;
    let owners = interfaces.iter().filter_map(|one| owner_of(&one.name)).map(|owner| owner.pid);
    let owners: Vec<_> = owners.collect();
    let is_other = |holder: &Option<i32>| holder.is_none_or(|pid| !owners.contains(&pid));
    let holder = holders.find(is_other)?;
    Some(holder.map_or_else(
        || "the kernel (rxe?) or a process that this user may not inspect".to_owned(),
        |pid| format!("process {pid} ({})", program(pid)),
    ))
}

/// The inode of the socket in a line of `/proc/net/udp`, if it is bound to RoCE's port.
fn inode_on_roce_port(line: &str) -> Option<u64> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let (_, port) = columns.get(1)?.rsplit_once(':')?;
    (port == ROCE_PORT).then(|| columns.get(9)?.parse().ok())?
}

/// The process that has the socket with this inode open, if /proc shows it.
fn holder_of(inode: u64) -> Option<i32> {
    let link = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid: &i32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        targets.into_iter().any(|target| target.as_os_str() == link.as_str())
    })
}

fn program(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_port() {
        let line = "  1: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    0  0 4321 2 0 0";
        assert_eq!(inode_on_roce_port(line), Some(4321));
        let other = line.replace("12B7", "12B8");
        assert_eq!(inode_on_roce_port(&other), None);
        assert_eq!(inode_on_roce_port("  sl  local_address rem_address   st tx_queue"), None);
    }
}
