//! Following the host: addresses, neighbours, routes and the link change while the device is open.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, PoisonError, Weak};

use feroce_wire::{FlowHeader, FlowSpec, MacAddr, PathMtu, Qpn};

use super::addressing::Addressing;
use super::{DeviceInner, OpenError};
use crate::net::{Gid, GidEntry, NetEvent, PathHeaders, Watcher};
use crate::port::af_xdp::AddressFilter;
use crate::time::Duration;
use crate::verbs::AsyncEvent;

/// The paths that QPs use, by QP number.
pub(super) type Paths = BTreeMap<Qpn, PathInUse>;

/// What a QP's frame headers were made of.
#[derive(Debug, Clone)]
pub(super) struct PathInUse {
    pub(super) dgid: Gid,
    pub(super) source: GidEntry,
    pub(super) headers: PathHeaders,
}

/// Lets the port take frames to the device's addresses, and no others.
pub(super) fn set_filter(device: &DeviceInner, filter: &AddressFilter) -> Result<(), OpenError> {
    let gids = device.addressing.gids();
    let addresses: Vec<Ipv6Addr> = gids.iter().map(|(_, entry)| entry.gid.0.into()).collect();
    Ok(filter.set(&addresses)?)
}

/// Starts to follow.
pub(super) fn start(device: &super::Opened, filter: AddressFilter) -> Result<(), OpenError> {
    let follower = Follower { device: Arc::downgrade(&device.0), filter, interface: None };
    let mut follower = follower;
    let watcher = Watcher::start(Box::new(move |event| follower.take(&event)))?;
    *device.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    Ok(())
}

struct Follower {
    device: Weak<DeviceInner>,
    filter: AddressFilter,
    /// Index of the device's own interface, once its link was seen.
    interface: Option<u32>,
}

impl Follower {
    fn take(&mut self, event: &NetEvent) {
        let Some(device) = self.device.upgrade() else { return };
        self.follow_gids(&device, event);
        let own = self.interface;
        match event {
            NetEvent::LinkAdded(link) if link.name == device.config.af_xdp.interface => {
                self.interface = Some(link.index);
            }
            NetEvent::LinkUp { interface } if own == Some(*interface) => {
                device.events.push(AsyncEvent::PortActive);
            }
            NetEvent::LinkDown { interface } if own == Some(*interface) => {
                device.events.push(AsyncEvent::PortError);
            }
            NetEvent::MtuChanged { interface, mtu } if own == Some(*interface) => {
                let mut attributes =
                    device.attributes.write().unwrap_or_else(PoisonError::into_inner);
                // The port's buffers were made for the MTU it was opened with.
                attributes.active_mtu = PathMtu::largest_for((*mtu).min(attributes.mtu));
            }
            NetEvent::NeighbourChanged { interface, ip, mac } => {
                follow_neighbour(&device, *interface, *ip, *mac);
            }
            NetEvent::RouteChanged => follow_routes(&device),
            _ => {}
        }
    }

    fn follow_gids(&self, device: &DeviceInner, event: &NetEvent) {
        let Addressing::Kernel(kernel) = &device.addressing else { return };
        let changed = kernel.table.write().unwrap_or_else(PoisonError::into_inner).apply(event);
        if changed {
            if let Err(error) = set_filter(device, &self.filter) {
                tracing::warn!(%error, "cannot follow the interface's addresses");
            }
            device.events.push(AsyncEvent::GidChange);
        }
    }
}

/// A neighbour has another Ethernet address: so do the frames that go through it.
fn follow_neighbour(device: &DeviceInner, interface: u32, ip: IpAddr, mac: MacAddr) {
    let mut paths = device.paths.lock().unwrap_or_else(PoisonError::into_inner);
    for (qpn, path) in paths.iter_mut() {
        let hop = (path.headers.interface, path.headers.next_hop);
        if hop == (interface, Some(ip)) && path.headers.dst_mac != mac {
            path.headers.dst_mac = mac;
            change_mac(device, *qpn, mac);
        }
    }
}

/// Routes changed: paths may lead through another next hop now. Unknown neighbours are not waited for;
/// their event comes when they answer.
fn follow_routes(device: &DeviceInner) {
    let mut paths = device.paths.lock().unwrap_or_else(PoisonError::into_inner);
    for (qpn, path) in paths.iter_mut() {
        let resolved = device.addressing.resolve(path.dgid, &path.source, Duration::ZERO);
        if let Ok(headers) = resolved
            && headers.dst_mac != path.headers.dst_mac
        {
            path.headers = headers;
            change_mac(device, *qpn, headers.dst_mac);
        }
    }
}

fn change_mac(device: &DeviceInner, qpn: Qpn, mac: MacAddr) {
    let Some((core, slot)) = device.qpns.locate(qpn) else { return };
    let mut token = device.cores[core].lock();
    token.with_qp(slot, device.now(), |qp, _| {
        if let Some(flow) = qp.flow() {
            qp.set_flow(FlowHeader::new(&FlowSpec { dst_mac: mac, ..*flow.spec() }));
        }
    });
}
