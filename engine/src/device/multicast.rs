//! Multicast: UD QPs that receive the datagrams to a group, and the host's membership in the group.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{Arc, MutexGuard, PoisonError};

use feroce_wire::Qpn;

use super::addressing::Addressing;
use super::{DeviceError, DeviceInner, MAX_GROUPS, OpenError};
use crate::core::Member;
use crate::net::{Gid, GidEntry};
use crate::port::kind::PortOwner;

/// The groups with attached QPs.
pub(super) type Groups = BTreeMap<IpAddr, Group>;

/// A multicast group.
#[derive(Debug)]
pub(super) struct Group {
    members: BTreeSet<Qpn>,
    _membership: Membership,
}

/// Keeps the host a member of a group.
#[derive(Debug)]
enum Membership {
    /// The port needs none.
    None,
    /// The kernel announces the membership (IGMP, MLD) and sets the interface's filter.
    Kernel { _socket: UdpSocket },
    /// The process that owns the port joined the group.
    Owner(Arc<dyn PortOwner>, IpAddr),
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Self::Owner(owner, group) = self {
            owner.leave(*group);
        }
    }
}

/// Attaches `member` to `group`. The first member of a device makes the host a member of the group.
pub(super) fn attach(device: &DeviceInner, group: Gid, member: Member) -> Result<(), DeviceError> {
    let ip = group.multicast_group().ok_or(DeviceError::NotMulticast(group))?;
    let mut groups = lock(device);
    let is_full = groups.len() >= MAX_GROUPS;
    if let Entry::Vacant(place) = groups.entry(ip) {
        if is_full {
            return Err(DeviceError::Exhausted("multicast groups"));
        }
        let failed = |source| DeviceError::Membership { group, source };
        let _membership = join(device, ip).map_err(failed)?;
        place.insert(Group { members: BTreeSet::new(), _membership });
        let filtered = set_filter(device, &groups);
        if let Err(error) = filtered {
            groups.remove(&ip);
            return Err(failed(io::Error::other(error)));
        }
    }
    for cell in &device.cores {
        cell.lock().attach(ip, member);
    }
    groups.entry(ip).and_modify(|group| _ = group.members.insert(member.qpn));
    Ok(())
}

/// Detaches the QP from `group`.
pub(super) fn detach(device: &DeviceInner, group: Gid, qpn: Qpn) -> Result<(), DeviceError> {
    let ip = group.multicast_group().ok_or(DeviceError::NotMulticast(group))?;
    match leave(device, &mut lock(device), ip, qpn) {
        true => Ok(()),
        false => Err(DeviceError::NotAttached(group)),
    }
}

/// Detaches the QP from every group.
pub(super) fn detach_all(device: &DeviceInner, qpn: Qpn) {
    let mut groups = lock(device);
    let its = |(ip, group): (&IpAddr, &Group)| group.members.contains(&qpn).then_some(*ip);
    let its: Vec<_> = groups.iter().filter_map(its).collect();
    for ip in its {
        leave(device, &mut groups, ip, qpn);
    }
}

/// Detaches the QP from a group. Returns false if it is not attached. Detaching the last QP ends
/// the host's membership.
fn leave(device: &DeviceInner, groups: &mut Groups, ip: IpAddr, qpn: Qpn) -> bool {
    let Some(group) = groups.get_mut(&ip) else { return false };
    if !group.members.remove(&qpn) {
        return false;
    }
    for cell in &device.cores {
        cell.lock().detach(ip, qpn);
    }
    if group.members.is_empty() {
        groups.remove(&ip);
        if let Err(error) = set_filter(device, groups) {
            tracing::warn!(%ip, %error, "the port still receives a group without attached QPs");
        }
    }
    true
}

pub(super) fn lock(device: &DeviceInner) -> MutexGuard<'_, Groups> {
    device.groups.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the host a member of `group` on the device's interface, for as long as the result lives.
fn join(device: &DeviceInner, group: IpAddr) -> io::Result<Membership> {
    match (&device.addressing, &device.port_owner) {
        (Addressing::Kernel(_), _) => {
            let gids = device.addressing.gids();
            join_kernel(gids.into_iter().map(|(_, entry)| entry), group)
                .map(|_socket| Membership::Kernel { _socket })
        }
        (Addressing::Static(_), _) => Ok(Membership::None), // The port has no kernel interface.
        (Addressing::Port(_), Some(owner)) => {
            owner.join(group)?;
            Ok(Membership::Owner(Arc::clone(owner), group))
        }
        (Addressing::Port(_), None) => {
            let what = "this kind of port does not join multicast groups";
            Err(io::Error::new(io::ErrorKind::Unsupported, what))
        }
    }
}

/// Makes the host a member of `group` on the interface with the addresses `gids`, for as long as
/// the socket lives.
pub(crate) fn join_kernel(
    gids: impl Iterator<Item = GidEntry>,
    group: IpAddr,
) -> io::Result<UdpSocket> {
    let mut entries = gids.filter(|entry| entry.vlan.is_none());
    match group {
        IpAddr::V4(group) => {
            let own = entries.filter_map(|entry| match entry.gid.ip() {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            });
            let missing = || io::Error::other("the interface has no IPv4 address");
            let own = own.min().ok_or_else(missing)?;
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v4(&group, &own)?;
            Ok(socket)
        }
        IpAddr::V6(group) => {
            let interface = entries.next().map(|entry| entry.interface);
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v6(&group, interface.unwrap_or(0))?;
            Ok(socket)
        }
    }
}

/// Sets the port's filter to the device's addresses and `groups`. The caller holds the lock of the
/// groups, so that no other thread sets an outdated filter.
pub(super) fn set_filter(device: &DeviceInner, groups: &Groups) -> Result<(), OpenError> {
    let Some(filter) = device.filter.get() else { return Ok(()) };
    let own = device.addressing.filter_addresses();
    filter.set(own.into_iter(), groups.keys().copied())
}
