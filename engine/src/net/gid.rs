//! GIDs, and the table of a device's GIDs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::NetError;
use super::event::NetEvent;
use super::interface::{Interface, InterfaceAddress};
use super::netlink::Connection;
use feroce_wire::MacAddr;

/// Maximum number of entries of a [`GidTable`]. Further addresses are left out with a warning.
pub const GID_TABLE_LEN: usize = 1024;

/// A global identifier: in RoCEv2 an IP address, with IPv4 in its IPv6-mapped form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the IP address.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Returns the multicast group: an IPv4 group in its mapped form, or in the form
    /// `ff0e::ffff:224.1.2.3` of RoCE v1; otherwise an IPv6 group. `None` if this is not a
    /// multicast address.
    pub fn multicast_group(&self) -> Option<IpAddr> {
        let ip = match self.0 {
            [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a @ 224..=239, b, c, d] => {
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            _ => self.ip(),
        };
        ip.is_multicast().then_some(ip)
    }

    /// Returns the link-local GID (`fe80::/64`) of an interface with this MAC address. The
    /// interface identifier is the modified EUI-64 of RFC 4291.
    pub const fn link_local_from_mac(mac: MacAddr) -> Self {
        let [a, b, c, d, e, f, g, h] = mac.eui64();
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h])
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Self(ip.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => ip.into(),
        }
    }
}

/// Eight groups of four hexadecimal digits, as sysfs and the pingpong programs write it.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, group) in Ipv6Addr::from(self.0).segments().iter().enumerate() {
            let separator = if index == 0 { "" } else { ":" };
            write!(f, "{separator}{group:04x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Text that is neither a GID nor an IP address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither a GID nor an IP address")]
pub struct ParseGidError {
    text: String,
}

/// Parses any form of an IPv6 address; an IPv4 address means its mapped form.
impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ip: IpAddr = text.parse().map_err(|_| ParseGidError { text: text.to_owned() })?;
        Ok(ip.into())
    }
}

/// One GID of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// VLAN of its packets.
    pub vlan: Option<u16>,
    /// Index of the interface with the address: the device's or a VLAN sub-interface's.
    pub interface: u32,
    /// Name of that interface.
    pub interface_name: String,
}

/// The GIDs of a device by index, in the order of the kernel's RoCE devices.
///
/// Index 0 is the link-local GID derived from the MAC address, whether or not the interface has it
/// as an IPv6 address. The addresses of the interface and of its VLAN sub-interfaces follow in the
/// order of appearance. An index keeps its meaning while its address exists. A removed address
/// leaves a hole, which the next new address fills. Every entry is RoCEv2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidTable {
    device: u32,
    members: Vec<Member>,
    slots: Vec<Option<GidEntry>>,
}

/// An interface whose addresses belong to the device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    interface: u32,
    name: String,
    mac: MacAddr,
    vlan: Option<u16>,
}

impl GidTable {
    /// Makes a table with only the default GID of `device`. Pass it every [`NetEvent`] of a
    /// [`Watcher`](super::Watcher), from the first one on.
    pub fn new(device: &Interface) -> Self {
        let (interface, name) = (device.index, device.name.clone());
        let member = Member { interface, name, mac: device.mac, vlan: None };
        let default = member.entry(Gid::link_local_from_mac(device.mac));
        Self { device: device.index, members: vec![member], slots: vec![Some(default)] }
    }

    /// Reads the table of interface `name` of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`NetError::NoSuchInterface`], [`NetError::NotEthernet`], or the kernel's error.
    pub fn read(name: &str) -> Result<Self, NetError> {
        Self::read_of(&Interface::read(name)?)
    }

    /// Reads the table of the interface `index`, whatever its name is now.
    pub(crate) fn read_index(index: u32) -> Result<Self, NetError> {
        Self::read_of(&Interface::by_index(index)?)
    }

    fn read_of(device: &Interface) -> Result<Self, NetError> {
        let mut table = Self::new(device);
        let mut connection = Connection::open()?;
        for interface in Interface::dump(&mut connection)? {
            table.apply(&NetEvent::LinkAdded(interface));
        }
        for address in InterfaceAddress::dump(&mut connection)? {
            table.apply(&NetEvent::AddressAdded(address));
        }
        Ok(table)
    }

    /// Returns the entry at `index`; `None` for a hole and beyond the end.
    pub fn get(&self, index: usize) -> Option<&GidEntry> {
        self.slots.get(index)?.as_ref()
    }

    /// Returns the entries with their indices, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &GidEntry)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// Returns the index of the device's interface.
    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    /// Returns the Ethernet address of the interface that has the address of `entry`.
    pub(crate) fn mac_of(&self, entry: &GidEntry) -> Option<MacAddr> {
        let member = self.members.iter().find(|member| member.interface == entry.interface);
        member.map(|member| member.mac)
    }

    /// Returns the lowest index of `gid` with the VLAN `vlan`.
    pub fn find(&self, gid: Gid, vlan: Option<u16>) -> Option<usize> {
        let found = self.iter().find(|(_, entry)| entry.gid == gid && entry.vlan == vlan);
        found.map(|(index, _)| index)
    }

    /// Applies a change of the host. Returns true if an entry was added, removed or changed.
    pub fn apply(&mut self, event: &NetEvent) -> bool {
        match event {
            NetEvent::LinkAdded(interface) => self.link_added(interface),
            NetEvent::LinkRemoved { interface } => self.link_removed(*interface),
            NetEvent::LinkRenamed { interface, name } => self.rename(*interface, name),
            NetEvent::MacChanged { interface, mac } => self.mac_changed(*interface, *mac),
            NetEvent::AddressAdded(address) => self.address_added(address),
            NetEvent::AddressRemoved(address) => {
                let gid = Gid::from(address.ip);
                // The default GID is the device's own and stays.
                self.remove(1, |entry| entry.interface == address.interface && entry.gid == gid)
            }
            _ => false,
        }
    }

    fn link_added(&mut self, interface: &Interface) -> bool {
        if interface.index == self.device {
            let renamed = self.rename(interface.index, &interface.name);
            return self.mac_changed(interface.index, interface.mac) || renamed;
        }
        let known = self.members.iter_mut().find(|member| member.interface == interface.index);
        if let Some(known) = known {
            known.mac = interface.mac;
        } else if let Some(vlan) = interface.vlan
            && vlan.parent == self.device
        {
            let name = interface.name.clone();
            let (interface, mac) = (interface.index, interface.mac);
            self.members.push(Member { interface, name, mac, vlan: Some(vlan.id) });
        }
        false
    }

    fn link_removed(&mut self, interface: u32) -> bool {
        self.members.retain(|member| member.interface != interface);
        self.remove(0, |entry| entry.interface == interface)
    }

    fn rename(&mut self, interface: u32, name: &str) -> bool {
        for member in self.members.iter_mut().filter(|member| member.interface == interface) {
            name.clone_into(&mut member.name);
        }
        let mut changed = false;
        for entry in self.slots.iter_mut().flatten() {
            if entry.interface == interface && entry.interface_name != name {
                name.clone_into(&mut entry.interface_name);
                changed = true;
            }
        }
        changed
    }

    fn mac_changed(&mut self, interface: u32, mac: MacAddr) -> bool {
        for member in self.members.iter_mut().filter(|member| member.interface == interface) {
            member.mac = mac;
        }
        interface == self.device && self.set_default(mac)
    }

    fn set_default(&mut self, mac: MacAddr) -> bool {
        let Some(Some(default)) = self.slots.first_mut() else {
            return false;
        };
        let gid = Gid::link_local_from_mac(mac);
        std::mem::replace(&mut default.gid, gid) != gid
    }

    fn address_added(&mut self, address: &InterfaceAddress) -> bool {
        let of_interface = |member: &&Member| member.interface == address.interface;
        let Some(member) = self.members.iter().find(of_interface) else {
            return false;
        };
        let entry = member.entry(address.ip.into());
        if self.slots.iter().flatten().any(|old| *old == entry) {
            return false;
        }
        if let Some(hole) = self.slots.iter_mut().skip(1).find(|slot| slot.is_none()) {
            *hole = Some(entry);
        } else if self.slots.len() < GID_TABLE_LEN {
            self.slots.push(Some(entry));
        } else {
            tracing::warn!(gid = %entry.gid, "the GID table is full: address left out");
            return false;
        }
        true
    }

    fn remove(&mut self, from: usize, matches: impl Fn(&GidEntry) -> bool) -> bool {
        let mut removed = false;
        for slot in self.slots.iter_mut().skip(from) {
            removed |= slot.take_if(|entry| matches(entry)).is_some();
        }
        removed
    }
}

impl Member {
    fn entry(&self, gid: Gid) -> GidEntry {
        GidEntry {
            gid,
            vlan: self.vlan,
            interface: self.interface,
            interface_name: self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::interface::VlanLink;
    use super::*;

    const MAC: MacAddr = MacAddr([0x02, 0, 0, 0xaa, 0xbb, 0xcc]);

    fn eth(index: u32, name: &str, vlan: Option<VlanLink>) -> Interface {
        Interface {
            index,
            name: name.into(),
            mac: MAC,
            mtu: 1500,
            up: true,
            carrier: true,
            carrier_changes: None,
            loopback: false,
            vlan,
        }
    }

    fn address(interface: u32, ip: &str) -> InterfaceAddress {
        InterfaceAddress { interface, ip: ip.parse().unwrap(), prefix_len: 24 }
    }

    fn listing(table: &GidTable) -> Vec<(usize, String, Option<u16>)> {
        table.iter().map(|(index, entry)| (index, entry.gid.ip().to_string(), entry.vlan)).collect()
    }

    #[test]
    fn text_is_eight_groups_and_reads_back() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(gid.to_string().parse(), Ok(gid));
        assert_eq!("10.0.0.1".parse(), Ok(gid));
        assert_eq!("::ffff:10.0.0.1".parse(), Ok(gid));
        assert_eq!(gid.ip(), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
        let text = "10.0.0";
        assert_eq!(text.parse::<Gid>(), Err(ParseGidError { text: text.into() }));
    }

    #[test]
    fn groups_of_both_families_have_gids() {
        let groups = [
            ("::ffff:224.1.2.3", Some("224.1.2.3")),
            ("ff0e::ffff:239.1.2.3", Some("239.1.2.3")),
            ("ff0e::ffff:10.1.2.3", Some("ff0e::ffff:10.1.2.3")),
            ("ff0e::1", Some("ff0e::1")),
            ("::ffff:10.1.2.3", None),
            ("fd00::1", None),
        ];
        for (gid, group) in groups {
            let expected = group.map(|group| group.parse().unwrap());
            assert_eq!(gid.parse::<Gid>().unwrap().multicast_group(), expected, "{gid}");
        }
    }

    /// RFC 4291, appendix A.
    #[test]
    fn link_local_is_the_modified_eui_64() {
        let gid = Gid::link_local_from_mac(MacAddr([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]));
        assert_eq!(gid.to_string(), "fe80:0000:0000:0000:5054:00ff:fe12:3456");
        assert_eq!(gid.ip(), "fe80::5054:ff:fe12:3456".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn the_index_of_a_removed_address_is_free_for_the_next() {
        let mut table = GidTable::new(&eth(2, "eth0", None));
        let default = Gid::link_local_from_mac(MAC).ip().to_string();
        for ip in ["10.0.0.1", "10.0.0.2", "fd00::1"] {
            assert!(table.apply(&NetEvent::AddressAdded(address(2, ip))));
        }
        assert!(!table.apply(&NetEvent::AddressAdded(address(2, "10.0.0.2"))), "known already");
        assert!(!table.apply(&NetEvent::AddressAdded(address(2, &default))), "index 0 has it");
        assert!(!table.apply(&NetEvent::AddressAdded(address(3, "10.9.9.9"))), "not of the device");
        assert!(table.apply(&NetEvent::AddressRemoved(address(2, "10.0.0.1"))));
        assert!(!table.apply(&NetEvent::AddressRemoved(address(2, &default))), "index 0 stays");
        assert_eq!(table.get(1), None);
        assert_eq!(table.find("fd00::1".parse().unwrap(), None), Some(3));
        assert!(table.apply(&NetEvent::AddressAdded(address(2, "10.0.0.9"))));
        let expected = [
            (0, default, None),
            (1, "10.0.0.9".into(), None),
            (2, "10.0.0.2".into(), None),
            (3, "fd00::1".into(), None),
        ];
        assert_eq!(listing(&table), expected);
    }

    #[test]
    fn vlan_children_contribute_tagged_entries() {
        let mut table = GidTable::new(&eth(2, "eth0", None));
        let child = eth(7, "eth0.5", Some(VlanLink { parent: 2, id: 5 }));
        let other_child = eth(8, "eth1.6", Some(VlanLink { parent: 3, id: 6 }));
        table.apply(&NetEvent::LinkAdded(child));
        table.apply(&NetEvent::LinkAdded(other_child));
        let default = Gid::link_local_from_mac(MAC);
        assert!(table.apply(&NetEvent::AddressAdded(address(7, "10.5.0.1"))));
        assert!(!table.apply(&NetEvent::AddressAdded(address(8, "10.6.0.1"))));
        // The same link-local address, but tagged: an entry of its own.
        assert!(table.apply(&NetEvent::AddressAdded(address(7, &default.ip().to_string()))));
        assert_eq!(table.find(default, None), Some(0));
        assert_eq!(table.find(default, Some(5)), Some(2));
        let entry = table.get(1).unwrap();
        assert_eq!((entry.vlan, entry.interface_name.as_str()), (Some(5), "eth0.5"));
        assert!(table.apply(&NetEvent::LinkRemoved { interface: 7 }));
        assert_eq!(listing(&table), [(0, default.ip().to_string(), None)]);
    }

    #[test]
    fn a_new_mac_address_changes_the_default_gid() {
        let mut table = GidTable::new(&eth(2, "eth0", None));
        let mac = MacAddr([2, 1, 1, 1, 1, 1]);
        assert!(!table.apply(&NetEvent::MacChanged { interface: 3, mac }));
        assert!(table.apply(&NetEvent::MacChanged { interface: 2, mac }));
        assert_eq!(table.get(0).unwrap().gid, Gid::link_local_from_mac(mac));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = GidTable::new(&eth(2, "eth0", None));
        for number in 0..GID_TABLE_LEN {
            let ip = Ipv4Addr::from_bits(0x0a00_0001 + u32::try_from(number).unwrap());
            let event = NetEvent::AddressAdded(InterfaceAddress {
                interface: 2,
                ip: ip.into(),
                prefix_len: 8,
            });
            assert_eq!(table.apply(&event), number < GID_TABLE_LEN - 1);
        }
        assert_eq!(table.iter().count(), GID_TABLE_LEN);
    }
}
