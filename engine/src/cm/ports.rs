//! Port allocation: which identifiers may share a port.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use feroce_wire::cm::PortSpace;

use super::types::{CmError, CmId};

/// Returns true if `ip`, as an address to bind to, means any address: the unspecified address, or
/// the host's loopback. The kernel's CM treats loopback the same way (`cma_any_addr` of
/// `drivers/infiniband/core/cma.c`): no device has that address, and Linux 6.1 binds and listens on
/// all devices. libfabric binds to loopback to find out whether a device exists.
pub fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback()
}

/// An identifier bound to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub id: CmId,
    pub ip: IpAddr,
    /// The identifier shares the port with others that also allow sharing, until one of them
    /// listens.
    pub reuse: bool,
    /// The address does not include those of the other family (the kernel's `afonly`).
    pub v6_only: bool,
}

impl Owner {
    /// Returns an error if both need the same address.
    fn conflict(&self, other: &Self) -> Result<(), CmError> {
        if self.v6_only && other.v6_only && self.ip.is_ipv4() != other.ip.is_ipv4() {
            return Ok(());
        }
        if is_any(self.ip) || is_any(other.ip) {
            return Err(CmError::AddressNotAvailable);
        }
        if self.ip == other.ip { Err(CmError::AddressInUse) } else { Ok(()) }
    }

    /// Returns how well a listener matches `destination`: `Some(true)` for its exact address,
    /// `Some(false)` as any address, `None` if not at all.
    fn matches(&self, destination: IpAddr) -> Option<bool> {
        let family =
            self.ip.is_ipv4() == destination.is_ipv4() || (self.ip.is_ipv6() && !self.v6_only);
        match self.ip {
            ip if ip == destination => Some(true),
            ip if is_any(ip) && family => Some(false),
            _ => None,
        }
    }
}

/// A port that other programs of the host must not listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Port space.
    pub space: PortSpace,
    /// The port.
    pub port: u16,
    /// The address that it is bound to; see [`is_any`].
    pub ip: IpAddr,
    /// It may be shared with others that also allow sharing.
    pub reuse: bool,
    /// The address does not include those of the other family (the kernel's `afonly`).
    pub v6_only: bool,
}

/// Gives out the ports of a host to the programs that share a device.
pub trait ServiceRegistry: Send + fmt::Debug {
    /// Reserves a port.
    ///
    /// # Errors
    /// [`CmError::AddressInUse`] or [`CmError::AddressNotAvailable`] if another program has it.
    fn claim(&mut self, port: ServicePort) -> Result<(), CmError>;

    /// Ends a reservation.
    fn release(&mut self, port: ServicePort);
}

/// The ports in use, of all port spaces.
#[derive(Debug, Default)]
pub(super) struct Ports {
    bound: BTreeMap<(PortSpace, u16), Vec<Owner>>,
    /// For devices that this program shares with others.
    registries: Vec<Box<dyn ServiceRegistry>>,
    /// Ports that are reserved there.
    claimed: BTreeMap<CmId, ServicePort>,
}

impl Ports {
    /// From now on, ports are reserved at `registry`, too.
    pub fn add_registry(&mut self, registry: Box<dyn ServiceRegistry>) {
        self.registries.push(registry);
    }

    /// Reserves the port of `owner`, in place of what it had reserved before.
    pub fn claim(&mut self, space: PortSpace, port: u16, owner: Owner) -> Result<(), CmError> {
        let Owner { id, ip, reuse, v6_only } = owner;
        let service = ServicePort { space, port, ip, reuse, v6_only };
        if self.registries.is_empty() || self.claimed.get(&id) == Some(&service) {
            return Ok(());
        }
        for at in 0..self.registries.len() {
            if let Err(error) = self.registries[at].claim(service) {
                self.registries[..at].iter_mut().for_each(|earlier| earlier.release(service));
                return Err(error);
            }
        }
        if let Some(former) = self.claimed.insert(id, service) {
            self.registries.iter_mut().for_each(|registry| registry.release(former));
        }
        Ok(())
    }

    /// Reserves the port for `id`, which is about to listen: it is not shared any more.
    pub fn claim_alone(&mut self, space: PortSpace, port: u16, id: CmId) -> Result<(), CmError> {
        let owner = self.owners(space, port).iter().find(|owner| owner.id == id).copied();
        owner.map_or(Ok(()), |owner| self.claim(space, port, Owner { reuse: false, ..owner }))
    }

    /// Gives the port to `owner`.
    pub fn bind(&mut self, space: PortSpace, port: u16, owner: Owner) -> Result<(), CmError> {
        let owners = self.bound.entry((space, port)).or_default();
        let others = owners.iter().filter(|other| !(owner.reuse && other.reuse));
        for other in others {
            owner.conflict(other)?;
        }
        owners.push(owner);
        Ok(())
    }

    /// Gives `owner` a free port of `range`. The search starts at a random one.
    pub fn bind_any(
        &mut self,
        space: PortSpace,
        range: (u16, u16),
        random: u32,
        owner: Owner,
    ) -> Result<u16, CmError> {
        let count = u32::from(range.1.saturating_sub(range.0)) + 1;
        let ports = (0..count).map(|step| u32::from(range.0) + (random % count + step) % count);
        let mut ports = ports.filter_map(|port| u16::try_from(port).ok());
        let free = ports.find(|&port| self.owners(space, port).is_empty());
        let port = free.ok_or(CmError::AddressNotAvailable)?;
        self.bound.insert((space, port), vec![owner]);
        Ok(port)
    }

    /// Changes the options of `id` at its port: sharing, and IPv6 only.
    pub fn set_options(&mut self, space: PortSpace, port: u16, id: CmId, chosen: (bool, bool)) {
        let mut owners = self.bound.get_mut(&(space, port)).into_iter().flatten();
        let Some(owner) = owners.find(|owner| owner.id == id) else { return };
        (owner.reuse, owner.v6_only) = chosen;
        let owner = *owner;
        if self.claimed.contains_key(&id) {
            // A refusal leaves the reservation as it was; listening asks again.
            let _ = self.claim(space, port, owner);
        }
    }

    /// Returns an error if `id` may not listen: listening ends sharing.
    pub fn check_listen(&self, space: PortSpace, port: u16, id: CmId) -> Result<(), CmError> {
        let owners = self.owners(space, port);
        let own = owners.iter().find(|owner| owner.id == id).ok_or(CmError::State)?;
        owners.iter().filter(|other| other.id != id).try_for_each(|other| own.conflict(other))
    }

    /// Returns the owners of the port that match `destination`, exact addresses first.
    pub fn matching(&self, space: PortSpace, port: u16, destination: IpAddr) -> Vec<CmId> {
        let owners = self.owners(space, port).iter();
        let mut matching: Vec<_> =
            owners.filter_map(|owner| Some((!owner.matches(destination)?, owner.id))).collect();
        matching.sort();
        matching.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns all owners of the port.
    pub fn owners(&self, space: PortSpace, port: u16) -> &[Owner] {
        self.bound.get(&(space, port)).map_or(&[], Vec::as_slice)
    }

    /// Takes the port from `id`.
    pub fn release(&mut self, space: PortSpace, port: u16, id: CmId) {
        if let Some(service) = self.claimed.remove(&id) {
            self.registries.iter_mut().for_each(|registry| registry.release(service));
        }
        if let Some(owners) = self.bound.get_mut(&(space, port)) {
            owners.retain(|owner| owner.id != id);
            if owners.is_empty() {
                self.bound.remove(&(space, port));
            }
        }
    }

    /// Number of ports in use.
    pub fn len(&self) -> usize {
        self.bound.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: PortSpace = PortSpace::Tcp;

    fn owner(id: u32, ip: &str, reuse: bool, v6_only: bool) -> Owner {
        Owner { id: CmId(id), ip: ip.parse().unwrap(), reuse, v6_only }
    }

    /// First owner, second owner, and the result for the second: the kernel's errors.
    #[test]
    fn which_addresses_can_share_a_port() {
        use CmError::{AddressInUse, AddressNotAvailable};
        for (first, second, expected) in [
            (("10.0.0.1", false, false), ("10.0.0.1", false, false), Err(AddressInUse)),
            (("10.0.0.1", false, false), ("10.0.0.2", false, false), Ok(())),
            (("10.0.0.1", false, false), ("0.0.0.0", false, false), Err(AddressNotAvailable)),
            (("0.0.0.0", false, false), ("10.0.0.1", false, false), Err(AddressNotAvailable)),
            (("::", false, false), ("10.0.0.1", false, false), Err(AddressNotAvailable)),
            (("127.0.0.1", false, false), ("10.0.0.1", false, false), Err(AddressNotAvailable)),
            (("::", false, true), ("0.0.0.0", false, true), Ok(())),
            (("::", false, true), ("0.0.0.0", false, false), Err(AddressNotAvailable)),
            (("10.0.0.1", true, false), ("10.0.0.1", true, false), Ok(())),
            (("10.0.0.1", true, false), ("10.0.0.1", false, false), Err(AddressInUse)),
        ] {
            let mut ports = Ports::default();
            ports.bind(TCP, 7, owner(1, first.0, first.1, first.2)).unwrap();
            let second = owner(2, second.0, second.1, second.2);
            assert_eq!(ports.bind(TCP, 7, second), expected, "{first:?} {second:?}");
            assert_eq!(ports.bind(PortSpace::Udp, 7, second), Ok(()), "another space");
        }
    }

    #[test]
    fn sharing_ends_when_one_listens() {
        let mut ports = Ports::default();
        ports.bind(TCP, 7, owner(1, "10.0.0.1", true, false)).unwrap();
        ports.bind(TCP, 7, owner(2, "10.0.0.1", true, false)).unwrap();
        assert_eq!(ports.check_listen(TCP, 7, CmId(1)), Err(CmError::AddressInUse));
        ports.release(TCP, 7, CmId(2));
        assert_eq!(ports.check_listen(TCP, 7, CmId(1)), Ok(()));
    }

    #[test]
    fn listeners_at_the_destination_address_come_first() {
        let mut ports = Ports::default();
        ports.bind(TCP, 7, owner(1, "0.0.0.0", true, false)).unwrap();
        ports.bind(TCP, 7, owner(2, "10.0.0.1", true, false)).unwrap();
        ports.bind(TCP, 7, owner(3, "::", true, false)).unwrap();
        let matching = |ip: &str| -> Vec<u32> {
            let matching = ports.matching(TCP, 7, ip.parse().unwrap());
            matching.into_iter().map(CmId::number).collect()
        };
        assert_eq!(matching("10.0.0.1"), [2, 1, 3]);
        assert_eq!(matching("10.0.0.9"), [1, 3]);
        assert_eq!(matching("fd77::1"), [3]);
    }

    /// Linux 6.1 delivers connections to 10.77.0.2 to a listener bound to 127.0.0.1.
    #[test]
    fn a_listener_at_the_loopback_is_at_every_address() {
        let mut ports = Ports::default();
        ports.bind(TCP, 7, owner(1, "127.0.0.1", false, false)).unwrap();
        assert_eq!(ports.matching(TCP, 7, "10.77.0.2".parse().unwrap()), [CmId(1)]);
        assert_eq!(ports.matching(TCP, 7, "fd77::1".parse().unwrap()), []);
    }

    #[test]
    fn any_port_is_a_free_port() {
        let mut ports = Ports::default();
        for random in [1, 1, 5] {
            let port = ports.bind_any(TCP, (100, 102), random, owner(random, "::", false, false));
            assert!((100..=102).contains(&port.unwrap()));
        }
        assert_eq!(ports.len(), 3);
        let more = ports.bind_any(TCP, (100, 102), 0, owner(9, "::", false, false));
        assert_eq!(more, Err(CmError::AddressNotAvailable));
        ports.release(TCP, 101, CmId(9));
        assert_eq!(ports.len(), 3, "the identifier does not own the port");
    }
}
