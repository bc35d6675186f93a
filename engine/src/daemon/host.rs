//! Follows the host: its addresses, and the neighbours that clients use.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use feroce_wire::MacAddr;

use super::shared::Shared;
use crate::device::ports::Filter;
use crate::device::{Addressing, OpenError, TICK};
use crate::net::{GidTable, Hop, Interface, NetEvent, NextHops, Watched, Watcher};
use crate::port::daemon::protocol::{Local, Notice};

/// Starts the thread that follows the kernel's tables; `None` for a port with addresses of its
/// own.
pub(super) fn follow(shared: &Arc<Shared>) -> Result<Option<Watcher>, OpenError> {
    let Addressing::Kernel(kernel) = &shared.addressing else { return Ok(None) };
    let mut resolver = kernel.open_resolver()?;
    let mut hops = NextHops::new(shared.now());
    let is_detachable = shared.filter.as_ref().is_some_and(Filter::is_detachable);
    let interval = (is_detachable || !resolver.is_routed()).then_some(TICK);
    let shared = Arc::downgrade(shared);
    let on_event = move |watched| {
        let Some(shared) = shared.upgrade() else { return };
        let mut renew = |hop: Hop| resolver.renew(hop.0, hop.1);
        match watched {
            Watched::Event(event) => {
                take(&shared, &event);
                hops.take(&event, shared.now(), |hop| is_used(&shared, hop), &mut renew);
            }
            Watched::Tick => {
                restore_filter(&shared);
                hops.tick(shared.now(), || hops_in_use(&shared), &mut renew);
            }
        }
    };
    Ok(Some(Watcher::start_with_ticks(interval, Box::new(on_event))?))
}

/// Attaches the program that selects the frames of the port again if another program has detached
/// it. The port is lost if that fails.
fn restore_filter(shared: &Shared) {
    let Some(filter) = shared.filter.as_ref().filter(|_| !shared.is_lost()) else { return };
    let is_removed = || shared.index().is_some_and(|index| Interface::by_index(index).is_err());
    if filter.restore(&shared.interface, is_removed) {
        shared.lose();
    }
}

fn take(shared: &Shared, event: &NetEvent) {
    let Addressing::Kernel(kernel) = &shared.addressing else { return };
    let changed = match event {
        NetEvent::Synchronised => match shared.index().map(GidTable::read_index) {
            Some(Ok(fresh)) => {
                *kernel.table.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                true
            }
            _ => false,
        },
        event => kernel.table.write().unwrap_or_else(PoisonError::into_inner).apply(event),
    };
    if changed {
        follow_gids(shared);
    }
    match event {
        NetEvent::NeighbourChanged { interface, ip, mac } => {
            follow_neighbour(shared, (*interface, *ip), *mac);
        }
        NetEvent::MacChanged { interface, mac } => {
            if Some(*interface) == shared.index() {
                shared.with(|switch| switch.tables.host.add_mac(*mac));
            }
            // A VLAN sub-interface may have an Ethernet address of its own.
            warn_unset_filter(shared);
        }
        NetEvent::LinkRemoved { interface } if Some(*interface) == shared.index() => {
            tracing::error!("interface {} was removed", shared.interface);
            shared.lose();
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

/// Returns true if a client uses `hop`.
fn is_used(shared: &Shared, hop: Hop) -> bool {
    let hops = shared.hops.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mac) = hops.get(&hop).map(|hop| hop.mac) else { return false };
    drop(hops);
    shared.with(|switch| switch.tables.uses_next_hop(mac))
}

/// The next hops that clients use.
fn hops_in_use(shared: &Shared) -> BTreeSet<Hop> {
    let hops = shared.hops.lock().unwrap_or_else(PoisonError::into_inner).clone();
    shared.with(|switch| {
        let used = hops.into_iter().filter(|(_, hop)| switch.tables.uses_next_hop(hop.mac));
        used.map(|(hop, _)| hop).collect()
    })
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
    let own = shared.addressing.filter_addresses();
    let groups = shared.with(|switch| switch.tables.groups().collect::<Vec<_>>());
    filter.set(own.into_iter(), groups.into_iter())
}
