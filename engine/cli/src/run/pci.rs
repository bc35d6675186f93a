//! The PCI device behind an interface, or a stand-in for an interface without one.
//!
//! Programs learn the NUMA node and the PCI address of an RNIC from the folder that
//! `/sys/class/infiniband/NAME/device` leads to, and skip RNICs without one: UCX takes the second
//! last folder of the RNIC's real path for the PCI address and looks it up in
//! `/sys/bus/pci/devices` (`ucs/sys/topo`), NCCL looks up the last part of `device` in
//! `/sys/class/pci_bus` (`ncclIbGetPciPath`, `ncclTopoGetXmlFromSys`).

use std::fs;
use std::path::{Path, PathBuf};

use super::entry::Entry;

/// PCI domain of stand-ins. Firmware numbers domains from 0 up, and Linux those of VMD and Hyper-V
/// elsewhere.
const DOMAIN: u16 = 0xf0ce;
/// Vendor and device id: no vendor has this number.
const NO_ID: u16 = 0xffff;
/// Maximum number of interfaces below one another, such as VLANs on a bond.
const LEVELS: usize = 4;

/// The PCI device of an RNIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciDevice {
    /// Folder below `/sys/devices`.
    pub folder: PathBuf,
    /// The files of a stand-in; `None` if the device exists.
    pub stand_in: Option<Vec<(String, Entry)>>,
    /// The NUMA node of a device that exists, if firmware does not say it (-1) and the host has
    /// only one.
    pub numa_node: Option<usize>,
}

impl PciDevice {
    /// Returns the device of `interface`, or stand-in number `index`. `sys` is the root of sysfs.
    pub fn of(sys: &Path, interface: &str, index: usize) -> Self {
        match real(sys, interface, LEVELS) {
            Some(folder) => {
                let is_unknown = read(&folder.join("numa_node")) == "-1";
                let numa_node = only_node(sys).filter(|_| is_unknown);
                Self { folder, stand_in: None, numa_node }
            }
            None => stand_in(sys, index),
        }
    }

    /// Returns the address, such as `0000:3b:00.0`.
    pub fn address(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns domain and bus of the address, such as `0000:3b`.
    pub fn bus(&self) -> String {
        let address = self.address();
        address.rsplit_once(':').map_or(address.clone(), |(bus, _)| bus.to_owned())
    }
}

/// Returns the folder of the PCI device of `interface`, or of the interface below it.
fn real(sys: &Path, interface: &str, levels: usize) -> Option<PathBuf> {
    let folder = sys.join("class/net").join(interface);
    if let Ok(device) = fs::canonicalize(folder.join("device")) {
        // A virtio device is a folder of its PCI device.
        return device.ancestors().find(|place| is_pci(place)).map(Path::to_owned);
    }
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let lower: Vec<_> =
        names.filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned())).collect();
    match lower.as_slice() {
        [lower] if levels > 0 => real(sys, lower, levels - 1),
        _ => None,
    }
}

/// Returns true if the folder's name is a PCI address.
fn is_pci(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let parts: Vec<_> = name.split([':', '.']).collect();
    let is_hex = |part: &str| part.chars().all(|digit| digit.is_ascii_hexdigit());
    matches!(parts.as_slice(), [domain, bus, device, function]
        if domain.len() >= 4 && bus.len() == 2 && device.len() == 2 && function.len() == 1
            && parts.iter().all(|part| is_hex(part)))
}

/// A network controller without a link, on a bus of its own: programs take devices on one bus for
/// ports of one RNIC.
fn stand_in(sys: &Path, index: usize) -> PciDevice {
    let bus = index % 0x100;
    let address = format!("{DOMAIN:04x}:{bus:02x}:00.0");
    let folder = sys.join(format!("devices/pci{DOMAIN:04x}:{bus:02x}")).join(&address);
    let node = nodes(sys).into_iter().next().unwrap_or(0);
    let mut cpus = read(&sys.join(format!("devices/system/node/node{node}/cpulist")));
    if cpus.is_empty() {
        cpus = read(&sys.join("devices/system/cpu/online"));
    }
    let id = format!("{NO_ID:#06x}");
    let texts = [
        ("vendor", id.clone()),
        ("device", id.clone()),
        ("subsystem_vendor", id.clone()),
        ("subsystem_device", id),
        ("class", "0x020000".to_owned()), // Ethernet controller
        ("revision", "0x00".to_owned()),
        ("enable", "1".to_owned()),
        ("irq", "0".to_owned()),
        ("numa_node", node.to_string()),
        ("local_cpus", mask(&cpus)),
        ("local_cpulist", cpus),
        // The kernel's values for devices without a link.
        ("max_link_speed", "Unknown".to_owned()),
        ("max_link_width", "0".to_owned()),
        ("current_link_speed", "Unknown".to_owned()),
        ("current_link_width", "0".to_owned()),
        ("uevent", format!("PCI_CLASS=20000\nPCI_ID=FFFF:FFFF\nPCI_SLOT_NAME={address}")),
        (
            "resource",
            vec!["0x0000000000000000 0x0000000000000000 0x0000000000000000"; 13].join("\n"),
        ),
    ];
    let file = |(name, text): (&str, String)| (name.to_owned(), Entry::from_text(&text));
    let mut entries: Vec<_> = texts.into_iter().map(file).collect();
    entries.push(("config".to_owned(), Entry::File(config())));
    PciDevice { folder, stand_in: Some(entries), numa_node: None }
}

/// The NUMA nodes of the host.
fn nodes(sys: &Path) -> Vec<usize> {
    numbers(&read(&sys.join("devices/system/node/online")))
}

/// The NUMA node of a host that has one.
fn only_node(sys: &Path) -> Option<usize> {
    match nodes(sys).as_slice() {
        &[node] => Some(node),
        _ => None,
    }
}

/// The header of the configuration space: ids, class; no register does anything.
fn config() -> Vec<u8> {
    let mut header = vec![0; 64];
    header[..2].copy_from_slice(&NO_ID.to_le_bytes());
    header[2..4].copy_from_slice(&NO_ID.to_le_bytes());
    header[0xb] = 2; // network controller
    header
}

/// The text of a file without the newline; empty if it cannot be read.
fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

/// The numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> Vec<usize> {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    ranges.flatten().collect()
}

/// The mask of a list of CPUs: groups of 32 bits, the highest first.
fn mask(list: &str) -> String {
    let mut groups = vec![0u32];
    for cpu in numbers(list) {
        groups.resize(groups.len().max(cpu / 32 + 1), 0);
        groups[cpu / 32] |= 1 << (cpu % 32);
    }
    let groups: Vec<_> = groups.iter().rev().map(|group| format!("{group:08x}")).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs of the test, removed when it is dropped.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("fr-sys-{}-{name}", std::process::id()));
            for folder in ["class/net", "devices/virtual/net", "devices/system/node/node1"] {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            fs::write(root.join("devices/system/node/online"), "1\n").unwrap();
            fs::write(root.join("devices/system/node/node1/cpulist"), "0-1,34\n").unwrap();
            Self(fs::canonicalize(root).unwrap())
        }

        /// Adds an interface below `parent`, with a link to its device if it has one.
        fn interface(&self, name: &str, parent: &str, has_device: bool) {
            let folder = self.0.join("devices").join(parent).join("net").join(name);
            fs::create_dir_all(&folder).unwrap();
            if has_device {
                symlink(self.0.join("devices").join(parent), folder.join("device")).unwrap();
            }
            symlink(&folder, self.0.join("class/net").join(name)).unwrap();
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_interface_has_the_pci_device_above_it() {
        let sys = Sys::new("real");
        sys.interface("eth0", "pci0000:00/0000:00:01.0/0000:3b:00.1", true);
        sys.interface("eth1", "pci0000:00/0000:00:03.0/virtio2", true);
        sys.interface("vlan0", "virtual", false);
        symlink("../eth0", sys.0.join("devices/virtual/net/vlan0/lower_eth0")).unwrap();
        let of = |interface: &str| {
            let device = PciDevice::of(&sys.0, interface, 0);
            assert_eq!(device.stand_in, None, "{interface}");
            (device.address(), device.bus())
        };
        assert_eq!(of("eth0"), ("0000:3b:00.1".to_owned(), "0000:3b".to_owned()));
        assert_eq!(of("eth1").0, "0000:00:03.0");
        assert_eq!(of("vlan0").0, "0000:3b:00.1");

        let node = |text: &str| {
            let folder = sys.0.join("devices/pci0000:00/0000:00:03.0");
            fs::write(folder.join("numa_node"), text).unwrap();
            PciDevice::of(&sys.0, "eth1", 0).numa_node
        };
        assert_eq!((node("-1\n"), node("0\n")), (Some(1), None));
        fs::write(sys.0.join("devices/system/node/online"), "0-1\n").unwrap();
        assert_eq!(node("-1\n"), None, "either node");
    }

    #[test]
    fn an_interface_without_one_gets_a_stand_in() {
        let sys = Sys::new("stand-in");
        sys.interface("veth0", "virtual", false);
        let device = PciDevice::of(&sys.0, "veth0", 1);
        assert_eq!(device.folder, sys.0.join("devices/pcif0ce:01/f0ce:01:00.0"));
        assert!(is_pci(&device.folder) && !is_pci(device.folder.parent().unwrap()));
        let files = device.stand_in.expect("a stand-in");
        let file = |name: &str| files.iter().find(|(own, _)| own == name).map(|(_, file)| file);
        assert_eq!(file("numa_node"), Some(&Entry::from_text("1")));
        assert_eq!(file("local_cpus"), Some(&Entry::from_text("00000004,00000003")));
        assert_eq!(file("local_cpulist"), Some(&Entry::from_text("0-1,34")));
        assert_eq!(file("class"), Some(&Entry::from_text("0x020000")));
    }
}
