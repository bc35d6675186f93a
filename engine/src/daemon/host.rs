//! Follows the host: its addresses, and the neighbours that clients use.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, PoisonError, Weak};

use feroce_wire::MacAddr;

use super::shared::Shared;
use crate::device::{Addressing, OpenError};
use crate::net::{Gid, GidEntry, GidTable, NetEvent, Watcher};
use crate::port::daemon::protocol::{Local, Notice};

/// Starts the thread that follows the kernel's tables; `None` for a port with addresses of its
/// own.
pub(super) fn follow(shared: &Arc<Shared>) -> Result<Option<Watcher>, OpenError> {
    if !matches!(shared.addressing, Addressing::Kernel(_)) {
        return Ok(None);
    }
    let shared = Arc::downgrade(shared);
    Ok(Some(Watcher::start(Box::new(move |event| take(&shared, &event)))?))
}

fn take(shared: &Weak<Shared>, event: &NetEvent) {
    let Some(shared) = shared.upgrade() else { return };
    let Addressing::Kernel(kernel) = &shared.addressing else { return };
    let changed = match event {
        NetEvent::Synchronised => match GidTable::read(&shared.interface) {
            Ok(fresh) => {
                *kernel.table.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                true
            }
            Err(_) => false,
        },
        event => kernel.table.write().unwrap_or_else(PoisonError::into_inner).apply(event),
    };
    if changed {
        follow_gids(&shared);
    }
    match event {
        NetEvent::NeighbourChanged { interface, ip, mac } => {
            follow_neighbour(&shared, (*interface, *ip), *mac);
        }
        NetEvent::MacChanged { interface, mac } if Some(*interface) == shared.index() => {
            shared.with(|switch| switch.tables.host.add_mac(*mac));
        }
        _ => {}
    }
}

/// Applies the GID table to the switch, the port's filter and the clients.
fn follow_gids(shared: &Shared) {
    let gids = shared.gids();
    let changed = shared.with(|switch| {
        let changed = switch.tables.host.gids() != gids;
        switch.tables.host.set_gids(gids.clone());
        changed
    });
    if changed {
        warn_unset_filter(shared);
        shared.notify(&Notice::Gids(gids.iter().map(Local::from).collect()));
    }
}

fn follow_neighbour(shared: &Shared, key: (u32, IpAddr), mac: MacAddr) {
    let mut hops = shared.hops.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(hop) = hops.get_mut(&key).filter(|hop| hop.mac != mac) else { return };
    let former = std::mem::replace(&mut hop.mac, mac);
    let vlan = hop.vlan;
    drop(hops);
    shared.with(|switch| switch.tables.move_next_hop(former, mac));
    shared.notify(&Notice::Neighbour { vlan, ip: key.1, mac: mac.0 });
}

/// As [`set_filter`], with a warning if the port refuses.
pub(super) fn warn_unset_filter(shared: &Shared) {
    if let Err(error) = set_filter(shared) {
        tracing::warn!(%error, "the port does not receive for all addresses");
    }
}

/// Makes the port receive frames to the addresses of the host and to the groups of the clients.
///
/// # Errors
/// The filter has no room for so many addresses.
pub(super) fn set_filter(shared: &Shared) -> Result<(), OpenError> {
    let Some(filter) = &shared.filter else { return Ok(()) };
    // One thread at a time, so that no thread sets an outdated filter.
    let _one = shared.filtering.lock().unwrap_or_else(PoisonError::into_inner);
    let gids = shared.gids();
    let own = gids.iter().map(|entry: &GidEntry| Ipv6Addr::from(entry.gid.0));
    let groups = shared.with(|switch| switch.tables.groups().collect::<Vec<_>>());
    let groups = groups.into_iter().map(|group| Ipv6Addr::from(Gid::from(group).0));
    let addresses: Vec<_> = own.chain(groups).collect();
    filter.set(&addresses)
}
