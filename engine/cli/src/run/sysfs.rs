//! The entries of a device below `/sys/class/infiniband`: the files that a kernel driver would
//! show.

use std::path::{Path, PathBuf};

use feroce_engine::net::{GidTable, Interface};
use feroce_wire::PathMtu;

use super::counters;
use super::entry::Entry;
use super::pci::PciDevice;
use crate::devinfo;
use crate::failure::Failure;

/// The entries of a device.
#[derive(Debug)]
pub struct Device {
    /// Name, such as `feroce0`.
    pub name: String,
    /// Name of the device node, such as `uverbs0`.
    pub node: String,
    /// Name of the interface.
    pub interface: String,
    /// The PCI device.
    pub pci: PciDevice,
    /// Entries below `/sys/class/infiniband/NAME`.
    pub entries: Vec<(String, Entry)>,
    /// Entries below `/sys/class/infiniband_verbs/NODE`.
    pub verbs: Vec<(String, Entry)>,
}

impl Device {
    /// Returns the folder of the device's files.
    pub fn folder(&self) -> PathBuf {
        self.pci.folder.join("infiniband").join(&self.name)
    }
}

/// The devices of `interfaces`, in this order.
pub fn devices(interfaces: &[Interface]) -> Result<Vec<Device>, Failure> {
    let described = interfaces.iter().enumerate().map(|(index, interface)| {
        let gids = GidTable::read(&interface.name)?;
        let pci = PciDevice::of(Path::new("/sys"), &interface.name, index);
        Ok(device(index, interface, &gids, pci))
    });
    described.collect()
}

fn device(index: usize, interface: &Interface, gids: &GidTable, pci: PciDevice) -> Device {
    let (name, node) = (format!("feroce{index}"), format!("uverbs{index}"));
    let is_up = interface.is_usable();
    let rate = devinfo::rate_in_sysfs(interface).map_or(0, |bits| bits / 1_000_000_000);
    let guid = devinfo::guid(devinfo::node_guid(interface));
    let texts = [
        ("node_type", "1: CA".to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", format!("Feroce on {}", interface.name)),
        ("fw_ver", env!("CARGO_PKG_VERSION").to_owned()),
        ("hca_type", "Feroce".to_owned()),
        ("ports/1/state", if is_up { "4: ACTIVE" } else { "1: DOWN" }.to_owned()),
        ("ports/1/phys_state", if is_up { "5: LinkUp" } else { "3: Disabled" }.to_owned()),
        ("ports/1/link_layer", "Ethernet".to_owned()),
        ("ports/1/rate", format!("{rate} Gb/sec")),
        ("ports/1/active_mtu", mtu(interface).to_string()),
        ("ports/1/lid", "0x0".to_owned()),
        ("ports/1/sm_lid", "0x0".to_owned()),
        ("ports/1/sm_sl", "0".to_owned()),
        ("ports/1/lid_mask_count", "0".to_owned()),
        ("ports/1/pkeys/0", "0xffff".to_owned()),
    ];
    let file = |path: &str, text: String| (path.to_owned(), Entry::from_text(&text));
    let mut entries: Vec<_> = texts.into_iter().map(|(path, text)| file(path, text)).collect();
    for (at, entry) in gids.iter() {
        entries.push(file(&format!("ports/1/gids/{at}"), entry.gid.to_string()));
        entries.push(file(&format!("ports/1/gid_attrs/types/{at}"), "RoCE v2".to_owned()));
        let interface = entry.interface_name.clone();
        entries.push(file(&format!("ports/1/gid_attrs/ndevs/{at}"), interface));
    }
    entries.extend(counters::files().map(|(path, _)| file(&path, "0".to_owned())));
    let up = || ("device".to_owned(), Entry::Link(Path::new("../../..").join(pci.address())));
    entries.push(up());
    let verbs = vec![file("ibdev", name.clone()), file("abi_version", "1".to_owned()), up()];
    Device { name, node, interface: interface.name.clone(), pci, entries, verbs }
}

/// The path MTU in bytes; 0 if the interface's MTU is too small for any.
fn mtu(interface: &Interface) -> u32 {
    PathMtu::largest_for(interface.mtu).map_or(0, PathMtu::bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_wire::MacAddr;

    #[test]
    fn programs_find_gids_and_the_interface() {
        let interface = Interface {
            index: 7,
            name: "eth5".to_owned(),
            mac: MacAddr([0x02, 0, 0, 0, 0, 1]),
            mtu: 1500,
            up: true,
            carrier: true,
            carrier_changes: None,
            loopback: false,
            vlan: None,
        };
        let folder = "/sys/devices/pci0000:00/0000:00:03.0".into();
        let pci = PciDevice { folder, stand_in: None, numa_node: None };
        let device = super::device(1, &interface, &GidTable::new(&interface), pci);
        assert_eq!((device.name.as_str(), device.node.as_str()), ("feroce1", "uverbs1"));
        let entry = |path: &str| {
            let found = device.entries.iter().find(|(at, _)| at == path);
            found.map(|(_, entry)| entry).unwrap_or_else(|| panic!("{path}"))
        };
        let text = Entry::from_text;
        assert_eq!(*entry("ports/1/gids/0"), text("fe80:0000:0000:0000:0000:00ff:fe00:0001"));
        assert_eq!(*entry("ports/1/gid_attrs/types/0"), text("RoCE v2"));
        assert_eq!(*entry("ports/1/gid_attrs/ndevs/0"), text("eth5"));
        assert_eq!(*entry("ports/1/active_mtu"), text("1024"));
        assert_eq!(*entry("device"), Entry::Link("../../../0000:00:03.0".into()));
        assert_eq!(*entry("ports/1/counters/port_xmit_data"), text("0"));
    }
}
