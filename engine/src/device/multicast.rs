//! Multicast: UD QPs that receive the datagrams to a group, and the host's membership in the group.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{MutexGuard, PoisonError};

use feroce_wire::Qpn;

use super::addressing::Addressing;
use super::queue_pair::QueuePair;
use super::{DeviceError, DeviceInner, follow};
use crate::core::Member;
use crate::net::{Gid, GidEntry};
use crate::qp::Service;

/// The groups with attached QPs.
pub(super) type Groups = BTreeMap<IpAddr, Group>;

/// A multicast group.
#[derive(Debug)]
pub(super) struct Group {
    members: BTreeSet<Qpn>,
    /// Keeps the host a member of the group: the kernel announces the membership (IGMP, MLD) and
    /// sets the interface's filter.
    _membership: Option<UdpSocket>,
}

impl QueuePair {
    /// Attaches this QP to `group`, as `ibv_attach_mcast`; does nothing if it is attached already.
    /// Attaching the first QP of a device makes the host a member of the group. An IPv4 group is
    /// given in its mapped form `::ffff:224.1.2.3`, or as `ff0e::ffff:224.1.2.3`.
    ///
    /// Call this from a thread in the interface's network namespace.
    ///
    /// # Errors
    /// [`DeviceError::NotMulticast`], [`DeviceError::NotDatagram`], [`DeviceError::Membership`].
    pub fn attach_multicast(&self, group: Gid) -> Result<(), DeviceError> {
        if self.service() != Service::Ud {
            return Err(DeviceError::NotDatagram);
        }
        let ip = group.multicast_group().ok_or(DeviceError::NotMulticast(group))?;
        let device = self.device();
        let mut groups = lock(device);
        if let Entry::Vacant(place) = groups.entry(ip) {
            let failed = |source| DeviceError::Membership { group, source };
            let _membership = join(&device.addressing, ip).map_err(failed)?;
            place.insert(Group { members: BTreeSet::new(), _membership });
            let filtered = follow::set_filter(device, &groups);
            if let Err(error) = filtered {
                groups.remove(&ip);
                return Err(failed(io::Error::other(error)));
            }
        }
        let (core, slot) = self.place();
        let qpn = self.qpn();
        let member = Member { qpn, core, slot, blocks_own: self.blocks_own_multicast() };
        for cell in &device.cores {
            cell.lock().attach(ip, member);
        }
        groups.entry(ip).and_modify(|group| _ = group.members.insert(qpn));
        Ok(())
    }

    /// Undoes [`QueuePair::attach_multicast`], as dropping the QP also does.
    ///
    /// # Errors
    /// [`DeviceError::NotMulticast`], [`DeviceError::NotAttached`].
    pub fn detach_multicast(&self, group: Gid) -> Result<(), DeviceError> {
        let ip = group.multicast_group().ok_or(DeviceError::NotMulticast(group))?;
        match detach(self.device(), &mut lock(self.device()), ip, self.qpn()) {
            true => Ok(()),
            false => Err(DeviceError::NotAttached(group)),
        }
    }
}

/// Detaches the QP from every group.
pub(super) fn detach_all(device: &DeviceInner, qpn: Qpn) {
    let mut groups = lock(device);
    let its = |(ip, group): (&IpAddr, &Group)| group.members.contains(&qpn).then_some(*ip);
    let its: Vec<_> = groups.iter().filter_map(its).collect();
    for ip in its {
        detach(device, &mut groups, ip, qpn);
    }
}

/// Detaches the QP from a group. Returns false if it is not attached. Detaching the last QP ends
/// the host's membership.
fn detach(device: &DeviceInner, groups: &mut Groups, ip: IpAddr, qpn: Qpn) -> bool {
    let Some(group) = groups.get_mut(&ip) else { return false };
    if !group.members.remove(&qpn) {
        return false;
    }
    for cell in &device.cores {
        cell.lock().detach(ip, qpn);
    }
    if group.members.is_empty() {
        groups.remove(&ip);
        if let Err(error) = follow::set_filter(device, groups) {
            tracing::warn!(%ip, %error, "the port still receives a group without attached QPs");
        }
    }
    true
}

pub(super) fn lock(device: &DeviceInner) -> MutexGuard<'_, Groups> {
    device.groups.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the host a member of `group` on the device's interface, for as long as the socket lives.
fn join(addressing: &Addressing, group: IpAddr) -> io::Result<Option<UdpSocket>> {
    match addressing {
        Addressing::Kernel(_) => {}
        Addressing::Static(_) => return Ok(None), // There is no host behind the port.
        #[cfg(feature = "dpdk")]
        Addressing::Port(_) => {
            let what = "a DPDK port does not join multicast groups";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
    }
    let untagged = |entry: &GidEntry| entry.vlan.is_none();
    let entries = addressing.gids().into_iter().map(|(_, entry)| entry).filter(untagged);
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
            Ok(Some(socket))
        }
        IpAddr::V6(group) => {
            let interface = entries.map(|entry| entry.interface).next();
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v6(&group, interface.unwrap_or(0))?;
            Ok(Some(socket))
        }
    }
}
