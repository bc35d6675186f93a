//! Following the host: addresses, neighbours, routes and the link change while the device is open.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, PoisonError, Weak};

use feroce_wire::{FlowHeader, FlowSpec, IpAddresses, MacAddr, PathMtu, Qpn};

use super::address_handle::EthernetAddresses;
use super::addressing::{Addressing, Path};
use super::multicast::{self, Groups};
use super::{DeviceError, DeviceInner, OpenError};
use crate::net::{Gid, GidEntry, GidTable, NetEvent, PathHeaders, Resolver, Watcher};
use crate::time::Duration;
use crate::verbs::AsyncEvent;

/// The paths in use, by user.
pub(super) type Paths = BTreeMap<PathUser, PathInUse>;

/// Who uses a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathUser {
    /// A connected QP.
    Qp(Qpn),
    /// An address handle, by its number.
    Handle(u64),
}

/// What a QP's frame headers were made of.
#[derive(Debug, Clone)]
pub(super) struct PathInUse {
    pub(super) dgid: Gid,
    pub(super) source: GidEntry,
    pub(super) headers: PathHeaders,
    /// A route changed, and the next hop that it leads to has not answered yet.
    pub(super) unsettled: bool,
    /// Where the Ethernet addresses of an address handle are.
    pub(super) handle: Option<Arc<EthernetAddresses>>,
}

impl PathInUse {
    /// True if `flow` is between the addresses of this path.
    pub(super) fn leads_to(&self, flow: &FlowHeader) -> bool {
        let (src, dst): (IpAddr, IpAddr) = match flow.spec().addresses {
            IpAddresses::V4 { src, dst } => (src.into(), dst.into()),
            IpAddresses::V6 { src, dst } => (src.into(), dst.into()),
        };
        (src, dst) == (self.headers.src_ip, self.headers.dst_ip)
    }

    /// `flow` with the Ethernet header that leads along this path now.
    pub(super) fn refresh(&self, flow: &FlowHeader) -> FlowHeader {
        let PathHeaders { dst_mac, src_mac, .. } = self.headers;
        FlowHeader::new(&FlowSpec { dst_mac, src_mac, ..*flow.spec() })
    }
}

/// Finds `path` and follows it from then on, for `user`. Waits up to `timeout` for the
/// next hop to answer if it is not known.
pub(super) fn begin(
    device: &DeviceInner,
    user: PathUser,
    path: &Path,
    timeout: Duration,
    handle: impl FnOnce(&PathHeaders) -> Option<Arc<EthernetAddresses>>,
) -> Result<PathHeaders, DeviceError> {
    let index = path.sgid_index;
    let source = device.addressing.gid(index).ok_or(DeviceError::GidIndex(index))?;
    let resolve = |timeout| {
        let headers = device.addressing.resolve(path.dgid, &source, timeout);
        headers.map_err(|source| DeviceError::Path { gid: path.dgid, source })
    };
    let headers = resolve(timeout)?;
    let (dgid, source, handle) = (path.dgid, source.clone(), handle(&headers));
    let in_use = PathInUse { dgid, source, headers, unsettled: false, handle };
    lock(device).insert(user, in_use);
    // What changed before the path was known to those who follow the host is seen now.
    let headers = resolve(Duration::ZERO).unwrap_or(headers);
    if let Some(in_use) = lock(device).get_mut(&user) {
        in_use.headers = headers;
        if let Some(handle) = &in_use.handle {
            handle.set(&headers);
        }
    }
    Ok(headers)
}

/// Lets the port take frames to the device's addresses and to `groups`, and no others. Whoever calls this holds
/// the groups, so that nobody sets the filter to what was.
pub(super) fn set_filter(device: &DeviceInner, groups: &Groups) -> Result<(), OpenError> {
    let Some(filter) = device.filter.get() else { return Ok(()) };
    let gids = device.addressing.gids();
    let own = gids.iter().map(|(_, entry)| Ipv6Addr::from(entry.gid.0));
    let groups = groups.keys().map(|&group| Ipv6Addr::from(Gid::from(group).0));
    let addresses: Vec<_> = own.chain(groups).collect();
    filter.set(&addresses)
}

/// Starts to follow.
pub(super) fn start(device: &super::Opened, interface: &str) -> Result<(), OpenError> {
    let mut follower = Follower {
        device: Arc::downgrade(&device.0),
        resolver: Resolver::open()?,
        name: interface.to_owned(),
        index: None,
    };
    let watcher = Watcher::start(Box::new(move |event| follower.take(&event)))?;
    *device.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    Ok(())
}

struct Follower {
    device: Weak<DeviceInner>,
    /// Its own, so that it never waits for a thread that waits for a neighbour.
    resolver: Resolver,
    /// The device's own interface, and its index, once its link was seen.
    name: String,
    index: Option<u32>,
}

impl Follower {
    fn take(&mut self, event: &NetEvent) {
        let Some(device) = self.device.upgrade() else { return };
        self.follow_gids(&device, event);
        if let NetEvent::LinkAdded(link) = event
            && link.name == self.name
        {
            self.index = Some(link.index);
            follow_mtu(&device, link.mtu);
        }
        match event {
            NetEvent::NeighbourChanged { interface, ip, mac } => {
                self.follow_neighbour(&device, *interface, *ip, *mac);
            }
            NetEvent::RouteChanged => self.follow_routes(&device, |_| true),
            NetEvent::Synchronised => {
                self.follow_missed(&device);
                self.follow_routes(&device, |_| true);
            }
            NetEvent::MacChanged { interface, mac } => follow_own_mac(&device, *interface, *mac),
            _ => {}
        }
        match event {
            NetEvent::LinkUp { interface } if self.is_own(*interface) => {
                device.events.push(AsyncEvent::PortActive);
            }
            NetEvent::LinkDown { interface } if self.is_own(*interface) => {
                device.events.push(AsyncEvent::PortError);
            }
            NetEvent::MtuChanged { interface, mtu } if self.is_own(*interface) => {
                follow_mtu(&device, *mtu);
            }
            _ => {}
        }
    }

    fn is_own(&self, interface: u32) -> bool {
        self.index == Some(interface)
    }

    fn follow_gids(&self, device: &DeviceInner, event: &NetEvent) {
        let Addressing::Kernel(kernel) = &device.addressing else { return };
        let changed = kernel.table.write().unwrap_or_else(PoisonError::into_inner).apply(event);
        if changed {
            self.announce_gids(device);
        }
    }

    fn announce_gids(&self, device: &DeviceInner) {
        if let Err(error) = set_filter(device, &multicast::lock(device)) {
            tracing::warn!(%error, "cannot follow the interface's addresses");
        }
        device.events.push(AsyncEvent::GidChange);
    }

    /// What changed between the opening of the device and the first event: the table is read anew.
    fn follow_missed(&self, device: &DeviceInner) {
        let Addressing::Kernel(kernel) = &device.addressing else { return };
        let Ok(fresh) = GidTable::read(&self.name) else { return };
        let gids = |table: &GidTable| {
            let mut gids: Vec<_> = table.iter().map(|(_, entry)| (entry.gid, entry.vlan)).collect();
            gids.sort_unstable_by_key(|(gid, vlan)| (gid.0, *vlan));
            gids
        };
        let mut table = kernel.table.write().unwrap_or_else(PoisonError::into_inner);
        if gids(&table) != gids(&fresh) {
            *table = fresh;
            drop(table);
            self.announce_gids(device);
        }
    }

    /// A neighbour has another Ethernet address: so do the frames that go through it. It may also be the
    /// next hop that a changed route waits for.
    fn follow_neighbour(&mut self, device: &DeviceInner, interface: u32, ip: IpAddr, mac: MacAddr) {
        for (user, path) in lock(device).iter_mut() {
            let hop = (path.headers.interface, path.headers.next_hop);
            if hop == (interface, Some(ip)) && path.headers.dst_mac != mac {
                path.headers.dst_mac = mac;
                refresh(device, *user, path);
            }
        }
        self.follow_routes(device, |path| path.unsettled);
    }

    /// Resolves the paths that `concerns` picks again: they may lead through another next hop now. One that
    /// has not answered yet is not waited for; its event settles the path.
    fn follow_routes(&mut self, device: &DeviceInner, concerns: impl Fn(&PathInUse) -> bool) {
        for (user, path) in lock(device).iter_mut().filter(|(_, path)| concerns(path)) {
            let resolved = match device.addressing.is_own(path.dgid) {
                true => self.resolver.resolve_own(path.dgid, &path.source),
                false => self.resolver.resolve(path.dgid, &path.source, Duration::ZERO),
            };
            match resolved {
                Ok(headers) => {
                    let moved = headers != path.headers;
                    (path.headers, path.unsettled) = (headers, false);
                    if moved {
                        refresh(device, *user, path);
                    }
                }
                Err(_) => path.unsettled = true,
            }
        }
    }
}

pub(super) fn lock(device: &DeviceInner) -> std::sync::MutexGuard<'_, Paths> {
    device.paths.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The port's buffers were made for the MTU it was opened with: it can shrink, and grow back.
fn follow_mtu(device: &DeviceInner, mtu: u32) {
    let mut attributes = device.attributes.write().unwrap_or_else(PoisonError::into_inner);
    attributes.mtu = mtu.min(device.port_mtu);
    attributes.active_mtu = PathMtu::largest_for(attributes.mtu);
}

/// The interface itself has another Ethernet address.
fn follow_own_mac(device: &DeviceInner, interface: u32, mac: MacAddr) {
    for (user, path) in lock(device).iter_mut() {
        if path.headers.interface == interface {
            path.headers.move_own(mac);
            refresh(device, *user, path);
        }
    }
}

/// Gives the user the headers of its path: an address handle, or a QP if it is connected; else
/// `QueuePair::modify` does.
pub(super) fn refresh(device: &DeviceInner, user: PathUser, path: &PathInUse) {
    if let Some(handle) = &path.handle {
        handle.set(&path.headers);
    }
    let PathUser::Qp(qpn) = user else { return };
    let Some((core, slot)) = device.qpns.locate(qpn) else { return };
    let mut token = device.cores[core].lock();
    token.with_qp(slot, device.now(), |qp, _| {
        if let Some(flow) = qp.flow() {
            let flow = path.refresh(flow);
            qp.set_flow(flow);
        }
    });
}
