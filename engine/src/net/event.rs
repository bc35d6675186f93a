//! Changes of a host's addressing, and the state that separates changes from repetitions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::NetError;
use super::interface::{Interface, InterfaceAddress, is_duplicate};
use super::neighbour::{Neighbour, Status};
use super::netlink::Connection;
use feroce_wire::MacAddr;

/// The kernel's table of local addresses; its routes only repeat address events.
const TABLE_LOCAL: u8 = 255;

/// A change of the host's addressing. Interfaces are identified by their index.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetEvent {
    /// An interface exists. Precedes all other events of the interface.
    LinkAdded(Interface),
    /// An interface was removed, after its addresses.
    LinkRemoved {
        /// Interface.
        interface: u32,
    },
    /// Frames can be sent again.
    LinkUp {
        /// Interface.
        interface: u32,
    },
    /// Frames cannot be sent: the interface is down, or the link beneath it is.
    LinkDown {
        /// Interface.
        interface: u32,
    },
    /// The interface was renamed.
    LinkRenamed {
        /// Interface.
        interface: u32,
        /// Its new name.
        name: String,
    },
    /// The largest IP packet changed.
    MtuChanged {
        /// Interface.
        interface: u32,
        /// New MTU in bytes.
        mtu: u32,
    },
    /// The interface's own MAC address changed.
    MacChanged {
        /// Interface.
        interface: u32,
        /// New address.
        mac: MacAddr,
    },
    /// The host has a new address.
    AddressAdded(InterfaceAddress),
    /// An address of the host was removed.
    AddressRemoved(InterfaceAddress),
    /// The MAC address of a neighbour is new or has changed.
    NeighbourChanged {
        /// Interface.
        interface: u32,
        /// IP address of the neighbour.
        ip: IpAddr,
        /// MAC address of the neighbour.
        mac: MacAddr,
    },
    /// A neighbour stopped answering.
    NeighbourFailed {
        /// Interface.
        interface: u32,
        /// IP address of the neighbour.
        ip: IpAddr,
    },
    /// The kernel has removed a neighbour from its table, as `ip neighbour flush` does. It resolves
    /// the neighbour again only for a packet of its own or on request.
    NeighbourRemoved {
        /// Interface.
        interface: u32,
        /// IP address of the neighbour.
        ip: IpAddr,
    },
    /// A route was added or removed: a path may have another next hop now.
    RouteChanged,
    /// The events so far describe the whole state of the host. Published after the first snapshot,
    /// and after each further snapshot that was taken because events were lost.
    Synchronised,
}

/// The host's tables, read one after the other.
#[derive(Debug)]
pub(super) struct Snapshot {
    interfaces: Vec<Interface>,
    addresses: Vec<InterfaceAddress>,
    neighbours: Vec<Neighbour>,
}

impl Snapshot {
    pub(super) fn read(connection: &mut Connection) -> Result<Self, NetError> {
        Ok(Self {
            interfaces: Interface::dump(connection)?,
            addresses: InterfaceAddress::dump(connection)?,
            neighbours: Neighbour::dump(connection)?,
        })
    }
}

/// The published state: takes kernel messages and snapshots, and returns events for the
/// differences.
#[derive(Debug, Default)]
pub(super) struct PublishedState {
    interfaces: BTreeMap<u32, Interface>,
    addresses: BTreeSet<InterfaceAddress>,
    /// `None`: resolution failed.
    neighbours: BTreeMap<(u32, IpAddr), Option<MacAddr>>,
}

impl PublishedState {
    /// Appends the changes of one kernel message to `events`.
    pub(super) fn apply(&mut self, message: &RouteNetlinkMessage, events: &mut Vec<NetEvent>) {
        use RouteNetlinkMessage as Message;
        match message {
            // Bridges report their ports in link messages of another family.
            Message::NewLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                if let Some(interface) = Interface::from_message(link) {
                    self.update_link(interface, events);
                }
            }
            Message::DelLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                self.remove_link(link.header.index, events);
            }
            Message::NewAddress(address) => {
                // The address was valid until another host was found to have it too.
                let change =
                    if is_duplicate(address) { Self::remove_address } else { Self::add_address };
                if let Some(address) = InterfaceAddress::from_message(address) {
                    change(self, address, events);
                }
            }
            Message::DelAddress(address) => {
                if let Some(address) = InterfaceAddress::from_message(address) {
                    self.remove_address(address, events);
                }
            }
            Message::NewNeighbour(neighbour) => {
                if let Some(neighbour) = Neighbour::from_message(neighbour) {
                    self.update_neighbour(neighbour, events);
                }
            }
            Message::DelNeighbour(neighbour) => {
                // Its state may be none at all.
                if let Some(key) = Neighbour::key(neighbour) {
                    self.remove_neighbour(key, events);
                }
            }
            Message::NewRoute(route) | Message::DelRoute(route)
                if route.header.table != TABLE_LOCAL =>
            {
                events.push(NetEvent::RouteChanged);
            }
            _ => {}
        }
    }

    /// Replaces the state by `snapshot`. Appends the differences to `events`.
    pub(super) fn replace(&mut self, snapshot: Snapshot, events: &mut Vec<NetEvent>) {
        let addresses: BTreeSet<_> = snapshot.addresses.iter().copied().collect();
        for gone in self.addresses.difference(&addresses).copied().collect::<Vec<_>>() {
            self.remove_address(gone, events);
        }
        let present: BTreeSet<_> = snapshot.interfaces.iter().map(|link| link.index).collect();
        let known: Vec<_> = self.interfaces.keys().copied().collect();
        for gone in known.into_iter().filter(|index| !present.contains(index)) {
            self.remove_link(gone, events);
        }
        let listed: BTreeSet<_> = snapshot
            .neighbours
            .iter()
            .map(|neighbour| (neighbour.interface, neighbour.ip))
            .collect();
        let known: Vec<_> = self.neighbours.keys().copied().collect();
        for gone in known.into_iter().filter(|key| !listed.contains(key)) {
            self.remove_neighbour(gone, events);
        }

        for interface in snapshot.interfaces {
            self.update_link(interface, events);
        }
        for address in snapshot.addresses {
            self.add_address(address, events);
        }
        for neighbour in snapshot.neighbours {
            self.update_neighbour(neighbour, events);
        }
    }

    fn update_link(&mut self, new: Interface, events: &mut Vec<NetEvent>) {
        let interface = new.index;
        let Some(old) = self.interfaces.insert(interface, new.clone()) else {
            return events.push(NetEvent::LinkAdded(new));
        };
        if old.name != new.name {
            events.push(NetEvent::LinkRenamed { interface, name: new.name.clone() });
        }
        if old.mac != new.mac {
            events.push(NetEvent::MacChanged { interface, mac: new.mac });
        }
        if old.mtu != new.mtu {
            events.push(NetEvent::MtuChanged { interface, mtu: new.mtu });
        }
        match (old.is_usable(), new.is_usable()) {
            (false, true) => events.push(NetEvent::LinkUp { interface }),
            (true, false) => events.push(NetEvent::LinkDown { interface }),
            _ => {}
        }
    }

    fn remove_link(&mut self, interface: u32, events: &mut Vec<NetEvent>) {
        let of_link = |address: &InterfaceAddress| address.interface == interface;
        for address in self.addresses.iter().copied().filter(of_link).collect::<Vec<_>>() {
            self.remove_address(address, events);
        }
        self.neighbours.retain(|(index, _), _| *index != interface);
        if self.interfaces.remove(&interface).is_some() {
            events.push(NetEvent::LinkRemoved { interface });
        }
    }

    fn add_address(&mut self, address: InterfaceAddress, events: &mut Vec<NetEvent>) {
        if self.addresses.insert(address) {
            events.push(NetEvent::AddressAdded(address));
        }
    }

    fn remove_address(&mut self, address: InterfaceAddress, events: &mut Vec<NetEvent>) {
        if self.addresses.remove(&address) {
            events.push(NetEvent::AddressRemoved(address));
        }
    }

    fn remove_neighbour(&mut self, key: (u32, IpAddr), events: &mut Vec<NetEvent>) {
        if self.neighbours.remove(&key).is_some() {
            events.push(NetEvent::NeighbourRemoved { interface: key.0, ip: key.1 });
        }
    }

    fn update_neighbour(&mut self, neighbour: Neighbour, events: &mut Vec<NetEvent>) {
        let Neighbour { interface, ip, status } = neighbour;
        let mac = match status {
            Status::Known(mac)
            | Status::Confirming(mac)
            | Status::Permanent(mac)
            | Status::Stale(mac) => Some(mac),
            Status::Failed => None,
            Status::Pending | Status::NoArp(_) => return,
        };
        if self.neighbours.insert((interface, ip), mac) == Some(mac) {
            return;
        }
        events.push(match mac {
            Some(mac) => NetEvent::NeighbourChanged { interface, ip, mac },
            None => NetEvent::NeighbourFailed { interface, ip },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
    use netlink_packet_route::link::LinkMessage;
    use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};

    fn interface(index: u32) -> Interface {
        Interface {
            index,
            name: format!("eth{index}"),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            up: true,
            carrier: true,
            carrier_changes: None,
            loopback: false,
            vlan: None,
        }
    }

    fn address(interface: u32, ip: &str) -> InterfaceAddress {
        InterfaceAddress { interface, ip: ip.parse().unwrap(), prefix_len: 24 }
    }

    fn replace(
        published: &mut PublishedState,
        interfaces: &[Interface],
        addresses: &[InterfaceAddress],
    ) -> Vec<NetEvent> {
        let mut events = Vec::new();
        let snapshot = Snapshot {
            interfaces: interfaces.to_vec(),
            addresses: addresses.to_vec(),
            neighbours: Vec::new(),
        };
        published.replace(snapshot, &mut events);
        events
    }

    #[test]
    fn a_second_reading_publishes_only_differences() {
        let mut published = PublishedState::default();
        let (one, two) = (address(1, "10.0.0.1"), address(2, "10.0.0.2"));
        let first = replace(&mut published, &[interface(1), interface(2)], &[one, two]);
        assert_eq!(
            first,
            [
                NetEvent::LinkAdded(interface(1)),
                NetEvent::LinkAdded(interface(2)),
                NetEvent::AddressAdded(one),
                NetEvent::AddressAdded(two),
            ]
        );
        assert_eq!(replace(&mut published, &[interface(1), interface(2)], &[one, two]), []);
        let down = Interface { carrier: false, mtu: 4400, ..interface(1) };
        let three = address(1, "10.0.0.3");
        assert_eq!(
            replace(&mut published, &[down], &[one, three]),
            [
                NetEvent::AddressRemoved(two),
                NetEvent::LinkRemoved { interface: 2 },
                NetEvent::MtuChanged { interface: 1, mtu: 4400 },
                NetEvent::LinkDown { interface: 1 },
                NetEvent::AddressAdded(three),
            ]
        );
    }

    #[test]
    fn a_removed_link_takes_its_addresses_along() {
        let mut published = PublishedState::default();
        let one = address(1, "10.0.0.1");
        replace(&mut published, &[interface(1)], &[one]);
        let mut link = LinkMessage::default();
        link.header.index = 1;
        let mut events = Vec::new();
        // A bridge that releases its port does not remove the link.
        link.header.interface_family = AddressFamily::Bridge;
        published.apply(&RouteNetlinkMessage::DelLink(link.clone()), &mut events);
        assert_eq!(events, []);
        link.header.interface_family = AddressFamily::Unspec;
        published.apply(&RouteNetlinkMessage::DelLink(link), &mut events);
        assert_eq!(events, [NetEvent::AddressRemoved(one), NetEvent::LinkRemoved { interface: 1 }]);
    }

    #[test]
    fn an_address_that_another_host_has_is_removed() {
        let mut published = PublishedState::default();
        let own = InterfaceAddress { prefix_len: 64, ..address(1, "fd00::1") };
        replace(&mut published, &[interface(1)], &[own]);
        let mut message = AddressMessage::default();
        (message.header.index, message.header.prefix_len) = (1, 64);
        message.header.flags = AddressHeaderFlags::Dadfailed;
        message.attributes = vec![AddressAttribute::Address(own.ip)];
        let mut events = Vec::new();
        published.apply(&RouteNetlinkMessage::NewAddress(message), &mut events);
        assert_eq!(events, [NetEvent::AddressRemoved(own)]);
    }

    #[test]
    fn an_event_is_published_when_a_neighbour_is_removed() {
        let mut published = PublishedState::default();
        let ip: IpAddr = "10.0.0.2".parse().unwrap();
        let known = Neighbour { interface: 1, ip, status: Status::Known(MacAddr([2; 6])) };
        // As an interface that goes down removes it: in no state.
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = 1;
        message.attributes.push(NeighbourAttribute::Destination(ip.into()));
        let message = RouteNetlinkMessage::DelNeighbour(message);
        let mut events = Vec::new();
        published.update_neighbour(known, &mut events);
        events.clear();
        published.apply(&message, &mut events);
        let removed = NetEvent::NeighbourRemoved { interface: 1, ip };
        assert_eq!(events, std::slice::from_ref(&removed));
        published.apply(&message, &mut events);
        assert_eq!(events.len(), 1, "it was unknown");
        published.update_neighbour(known, &mut events);
        assert_eq!(replace(&mut published, &[], &[]), [removed], "events were lost");
    }

    #[test]
    fn an_event_is_published_when_a_neighbours_mac_changes() {
        let mut published = PublishedState::default();
        let ip: IpAddr = "10.0.0.2".parse().unwrap();
        let (a, b) = (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 3]));
        let mut events = Vec::new();
        let statuses = [
            Status::Pending,
            Status::Known(a),
            Status::Stale(a),
            Status::Known(b),
            Status::Failed,
            Status::Failed,
            Status::NoArp(a),
            Status::Known(b),
        ];
        for status in statuses {
            published.update_neighbour(Neighbour { interface: 1, ip, status }, &mut events);
        }
        assert_eq!(
            events,
            [
                NetEvent::NeighbourChanged { interface: 1, ip, mac: a },
                NetEvent::NeighbourChanged { interface: 1, ip, mac: b },
                NetEvent::NeighbourFailed { interface: 1, ip },
                NetEvent::NeighbourChanged { interface: 1, ip, mac: b },
            ]
        );
    }
}
