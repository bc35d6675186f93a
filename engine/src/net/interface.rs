//! Network interfaces and their addresses.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, VlanProtocol,
};

use super::NetError;
use super::netlink::Connection;
use feroce_wire::MacAddr;

/// Maximum length of an interface's name in bytes.
const NAME_MAX: usize = 15;

/// An interface with a 48-bit MAC address, at the time it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Index.
    pub index: u32,
    /// Name, such as `eth0`.
    pub name: String,
    /// Ethernet address.
    pub mac: MacAddr,
    /// MTU: the largest IP packet in bytes.
    pub mtu: u32,
    /// The interface is set up (`ip link set up`).
    pub up: bool,
    /// The link beneath works.
    pub carrier: bool,
    /// Number of changes of the link beneath, if the kernel reports it.
    pub carrier_changes: Option<u32>,
    /// This is the loopback interface.
    pub loopback: bool,
    /// VLAN, if this is an 802.1Q sub-interface of another interface of this namespace.
    pub vlan: Option<VlanLink>,
}

/// VLAN of an 802.1Q sub-interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanLink {
    /// Index of the interface that carries the tagged frames.
    pub parent: u32,
    /// VLAN identifier, 12 bits.
    pub id: u16,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceAddress {
    /// Index of the interface.
    pub interface: u32,
    /// The address.
    pub ip: IpAddr,
    /// Prefix length of its network in bits.
    pub prefix_len: u8,
}

impl Interface {
    /// Reads the interface `name` of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`NetError::NoSuchInterface`], [`NetError::NotEthernet`], or the kernel's error.
    pub fn read(name: &str) -> Result<Self, NetError> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(NetError::NoSuchInterface { name: name.to_owned() });
        }
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        Self::get(&mut Connection::open()?, request, name)
    }

    /// Reads the interface with index `index` of the calling thread's network namespace, whatever
    /// its name is now.
    ///
    /// # Errors
    /// As [`Self::read`]; the error names the index.
    pub fn by_index(index: u32) -> Result<Self, NetError> {
        Self::read_index(&mut Connection::open()?, index, &format!("number {index}"))
    }

    /// Returns every interface of the calling thread's network namespace with a 48-bit MAC address,
    /// ordered by index.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn list() -> Result<Vec<Self>, NetError> {
        Self::dump(&mut Connection::open()?)
    }

    /// Returns the 802.1Q sub-interfaces of this interface among `all`.
    pub fn vlan_children<'a>(&self, all: &'a [Interface]) -> impl Iterator<Item = &'a Interface> {
        let parent = self.index;
        all.iter().filter(move |other| other.vlan.is_some_and(|vlan| vlan.parent == parent))
    }

    /// Returns true if frames can be sent: the interface is up, and the link beneath works.
    pub fn is_usable(&self) -> bool {
        self.up && self.carrier
    }

    /// Reads the interface `index`; `name` is for the error.
    pub(super) fn read_index(
        connection: &mut Connection,
        index: u32,
        name: &str,
    ) -> Result<Self, NetError> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        Self::get(connection, request, name)
    }

    pub(super) fn dump(connection: &mut Connection) -> Result<Vec<Self>, NetError> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let replies = connection.dump("list interfaces", &request)?;
        let mut interfaces: Vec<_> = replies
            .iter()
            .filter_map(|reply| match reply {
                RouteNetlinkMessage::NewLink(message) => Self::from_message(message),
                _ => None,
            })
            .collect();
        interfaces.sort_by_key(|interface| interface.index);
        Ok(interfaces)
    }

    fn get(
        connection: &mut Connection,
        request: LinkMessage,
        name: &str,
    ) -> Result<Self, NetError> {
        let request = RouteNetlinkMessage::GetLink(request);
        let replies = match connection.request("read an interface", request, 0) {
            Ok(replies) => replies,
            Err(NetError::System { errno: libc::ENODEV, .. }) => {
                return Err(NetError::NoSuchInterface { name: name.to_owned() });
            }
            Err(error) => return Err(error),
        };
        let interface = replies.iter().find_map(|reply| match reply {
            RouteNetlinkMessage::NewLink(message) => Self::from_message(message),
            _ => None,
        });
        interface.ok_or_else(|| NetError::NotEthernet { name: name.to_owned() })
    }

    /// Returns `None` for an interface without a 48-bit MAC address.
    pub(super) fn from_message(message: &LinkMessage) -> Option<Self> {
        let flags = message.header.flags;
        let mut interface = Self {
            index: message.header.index,
            name: String::new(),
            mac: MacAddr::default(),
            mtu: 0,
            up: flags.contains(LinkFlags::Up),
            carrier: flags.contains(LinkFlags::LowerUp),
            carrier_changes: None,
            loopback: flags.contains(LinkFlags::Loopback),
            vlan: None,
        };
        let mut mac = None;
        let mut parent = None;
        let mut parent_elsewhere = false;
        let mut vlan_id = None;
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name.clone_from(name),
                LinkAttribute::Address(bytes) => mac = mac_from(bytes),
                LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
                LinkAttribute::CarrierChanges(count) => interface.carrier_changes = Some(*count),
                LinkAttribute::Link(index) => parent = Some(*index),
                LinkAttribute::LinkNetNsId(_) => parent_elsewhere = true,
                LinkAttribute::LinkInfo(infos) => vlan_id = vlan_id_of(infos),
                _ => {}
            }
        }
        // The index of a parent in another namespace has no meaning here.
        if let (Some(parent), Some(id), false) = (parent, vlan_id, parent_elsewhere) {
            interface.vlan = Some(VlanLink { parent, id });
        }
        interface.mac = mac?;
        Some(interface)
    }
}

impl InterfaceAddress {
    /// Returns every address of the calling thread's network namespace except
    /// [duplicates](Self::duplicates): by interface, IPv4 first, then in the kernel's order.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn list() -> Result<Vec<Self>, NetError> {
        Self::dump(&mut Connection::open()?)
    }

    /// Returns the addresses that are not in use because another host has them, too (RFC 4862,
    /// 5.4).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn duplicates() -> Result<Vec<Self>, NetError> {
        Self::dump_where(&mut Connection::open()?, is_duplicate)
    }

    pub(super) fn dump(connection: &mut Connection) -> Result<Vec<Self>, NetError> {
        Self::dump_where(connection, |message| !is_duplicate(message))
    }

    fn dump_where(
        connection: &mut Connection,
        wanted: fn(&AddressMessage) -> bool,
    ) -> Result<Vec<Self>, NetError> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let replies = connection.dump("list addresses", &request)?;
        let mut addresses: Vec<_> = replies
            .iter()
            .filter_map(|reply| match reply {
                RouteNetlinkMessage::NewAddress(message) if wanted(message) => {
                    Self::from_message(message)
                }
                _ => None,
            })
            .collect();
        addresses.sort_by_key(|address| (address.interface, address.ip.is_ipv6()));
        Ok(addresses)
    }

    pub(super) fn from_message(message: &AddressMessage) -> Option<Self> {
        let mut local = None;
        let mut address = None;
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Address(ip) => address = Some(*ip),
                _ => {}
            }
        }
        // On a point-to-point link, `address` is the peer's and `local` is the host's own.
        let ip = local.or(address)?;
        let header = &message.header;
        Some(Self { interface: header.index, ip, prefix_len: header.prefix_len })
    }
}

/// Returns true if the address is not in use because another host has it, too.
pub(super) fn is_duplicate(message: &AddressMessage) -> bool {
    message.header.flags.contains(AddressHeaderFlags::Dadfailed)
}

pub(super) fn mac_from(bytes: &[u8]) -> Option<MacAddr> {
    Some(MacAddr(bytes.try_into().ok()?))
}

/// Returns the VLAN ID of an 802.1Q interface. RoCE does not use service tags (802.1ad).
fn vlan_id_of(infos: &[LinkInfo]) -> Option<u16> {
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vlan(data)) => Some(data),
        _ => None,
    })?;
    let customer = data.iter().all(|info| match info {
        InfoVlan::Protocol(protocol) => *protocol == VlanProtocol::Ieee8021Q,
        _ => true,
    });
    let id = data.iter().find_map(|info| match info {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })?;
    customer.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{Emitable, Parseable};
    use netlink_packet_route::link::{InfoKind, LinkMessageBuffer};

    fn vlan_message(protocol: VlanProtocol, parent_elsewhere: bool) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = 9;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.attributes = vec![
            LinkAttribute::IfName("eth0.5".into()),
            LinkAttribute::Mtu(1500),
            LinkAttribute::CarrierChanges(7),
            LinkAttribute::Link(2),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(5), InfoVlan::Protocol(protocol)])),
            ]),
        ];
        if parent_elsewhere {
            message.attributes.push(LinkAttribute::LinkNetNsId(1));
        }
        // Converted to bytes and back, as when the kernel sends it.
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        LinkMessage::parse(&LinkMessageBuffer::new(&bytes)).unwrap()
    }

    #[test]
    fn vlan_child_names_its_parent_and_id() {
        let child = Interface::from_message(&vlan_message(VlanProtocol::Ieee8021Q, false)).unwrap();
        assert_eq!(child.vlan, Some(VlanLink { parent: 2, id: 5 }));
        assert_eq!((child.index, child.name.as_str(), child.mtu), (9, "eth0.5", 1500));
        assert!(child.is_usable() && child.carrier_changes == Some(7));
        let parent = Interface { index: 2, vlan: None, ..child.clone() };
        let all = [parent.clone(), child];
        let names: Vec<_> = parent.vlan_children(&all).map(|child| child.index).collect();
        assert_eq!(names, [9]);
    }

    #[test]
    fn service_tags_and_parents_elsewhere_are_not_vlan_children() {
        let service = vlan_message(VlanProtocol::Ieee8021Ad, false);
        assert_eq!(Interface::from_message(&service).unwrap().vlan, None);
        let elsewhere = vlan_message(VlanProtocol::Ieee8021Q, true);
        assert_eq!(Interface::from_message(&elsewhere).unwrap().vlan, None);
    }

    #[test]
    fn a_link_without_a_48_bit_address_is_no_interface() {
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::Address(vec![10, 0, 0, 1])];
        assert_eq!(Interface::from_message(&message), None);
    }

    #[test]
    fn own_address_of_a_point_to_point_link() {
        let mut message = AddressMessage::default();
        message.header.index = 3;
        message.header.prefix_len = 32;
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        message.attributes = vec![
            AddressAttribute::Address("10.0.0.2".parse().unwrap()),
            AddressAttribute::Local(own),
        ];
        let expected = InterfaceAddress { interface: 3, ip: own, prefix_len: 32 };
        assert_eq!(InterfaceAddress::from_message(&message), Some(expected));
    }
}
