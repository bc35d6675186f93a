//! Follows the host: addresses, neighbours, routes and the link change while the device is open.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use feroce_wire::{FlowHeader, FlowSpec, MacAddr, PathMtu, Qpn};

use super::addressing::{Addressing, Path};
use super::ports::Filter;
use super::{DeviceError, DeviceInner, OpenError, multicast};
use crate::net::{
    Gid, GidEntry, GidTable, Hop, Interface, NetError, NetEvent, NextHops, PathHeaders, Resolver,
    Watched, Watcher,
};
use crate::time::{Duration, Instant};
use crate::verbs::AsyncEvent;

/// Paths, by user.
pub(super) type Paths = BTreeMap<PathUser, PathInUse>;

/// User of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathUser {
    /// A connected QP.
    Qp(Qpn),
    /// All address handles between two addresses. After the last handle is dropped, the path stays
    /// known for later handles. Boxed, because most entries of the table are those of QPs.
    Handles(Box<Ends>),
}

/// The two ends of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ends {
    dgid: Gid,
    source: Gid,
    vlan: Option<u16>,
    interface: u32,
}

/// How long new address handles use a resolved path without another lookup in the host's tables.
/// Linux trusts a neighbour that has answered for the same time.
pub(super) const TRUST: Duration = Duration::from_secs(30);

/// How often a device looks whether another program has detached the program that selects its
/// frames, and whether a next hop must be asked for again: noticed within a second.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// Approximate maximum number of paths of address handles that are kept without a handle.
const UNUSED_PATHS: usize = 256;

/// The part of a handle's headers that changes. Each address is one atomic word, so posting takes
/// no lock.
#[derive(Debug)]
pub(super) struct EthernetAddresses {
    dst: AtomicU64,
    src: AtomicU64,
    /// Until this time, in nanoseconds of the device's clock, new address handles use the path as
    /// it is. Read and written under the lock of the paths.
    trusted_until: AtomicU64,
}

impl EthernetAddresses {
    pub(super) fn new(headers: &PathHeaders) -> Self {
        let [dst, src] = [headers.dst_mac, headers.src_mac].map(|mac| AtomicU64::new(word(mac)));
        Self { dst, src, trusted_until: AtomicU64::new(0) }
    }

    fn trust_until(&self, end: Instant) {
        self.trusted_until.store(end.as_nanos(), Ordering::Relaxed);
    }

    fn is_trusted(&self, now: Instant) -> bool {
        now.as_nanos() < self.trusted_until.load(Ordering::Relaxed)
    }

    /// Sets the addresses of datagrams posted from now on.
    pub(super) fn set(&self, headers: &PathHeaders) {
        self.dst.store(word(headers.dst_mac), Ordering::Relaxed);
        self.src.store(word(headers.src_mac), Ordering::Relaxed);
    }

    /// Returns the current destination and source address.
    #[inline]
    pub(super) fn get(&self) -> (MacAddr, MacAddr) {
        (mac(self.dst.load(Ordering::Relaxed)), mac(self.src.load(Ordering::Relaxed)))
    }
}

fn word(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn mac(word: u64) -> MacAddr {
    let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

/// A path, and the headers made from it.
#[derive(Debug, Clone)]
pub(super) struct PathInUse {
    pub(super) source: Arc<GidEntry>,
    pub(super) headers: PathHeaders,
    /// The route changed, and the Ethernet address of its new next hop is not known yet.
    pub(super) is_unresolved: bool,
    /// Ethernet addresses that the address handles share; `None` for a QP.
    pub(super) handle: Option<Arc<EthernetAddresses>>,
}

impl PathInUse {
    /// GID of the destination.
    fn dgid(&self) -> Gid {
        Gid::from(self.headers.dst_ip)
    }

    /// Returns true for a path of address handles if none is left.
    fn is_unused(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| Arc::strong_count(handle) == 1)
    }

    /// The next hop; `None` without a next hop or if the path is unused.
    fn hop(&self) -> Option<Hop> {
        let next_hop = self.headers.next_hop.filter(|_| !self.is_unused())?;
        Some((self.headers.interface, next_hop))
    }

    /// Returns true if `flow` is between the addresses of this path.
    pub(super) fn leads_to(&self, flow: &FlowHeader) -> bool {
        let addresses = flow.spec().addresses;
        (addresses.src(), addresses.dst()) == (self.headers.src_ip, self.headers.dst_ip)
    }

    /// Returns `flow` with the path's current Ethernet addresses.
    pub(super) fn refresh(&self, flow: &FlowHeader) -> FlowHeader {
        let PathHeaders { dst_mac, src_mac, .. } = self.headers;
        FlowHeader::new(&FlowSpec { dst_mac, src_mac, ..*flow.spec() })
    }
}

/// Resolves `path` and follows it from then on, for the QP `qpn`. Waits up to `timeout` for the
/// next hop's Ethernet address if it is not known. Makes no system call if a path between the same
/// addresses is known, as for an address handle: many QPs connect to one peer.
pub(super) fn begin(
    device: &DeviceInner,
    qpn: Qpn,
    path: &Path,
    timeout: Duration,
) -> Result<PathHeaders, DeviceError> {
    let source = source_of(device, path)?;
    let user = handles_of(path, &source);
    let (_, handle) = begin_handles(device, &user, path.dgid, &source, timeout)?;
    let mut paths = lock(device);
    let known = paths.get(&user).expect("in the table as long as `handle` lives");
    let known = PathInUse { handle: None, ..known.clone() };
    let headers = known.headers;
    paths.insert(PathUser::Qp(qpn), known);
    drop(handle);
    Ok(headers)
}

/// Returns the headers of `path` for an address handle, and the Ethernet addresses that the handle
/// shares and that are followed. Makes no system call if the path is known; otherwise waits as
/// [`begin`] does.
pub(super) fn begin_handle(
    device: &DeviceInner,
    path: &Path,
    timeout: Duration,
) -> Result<(PathHeaders, Arc<EthernetAddresses>), DeviceError> {
    let source = source_of(device, path)?;
    begin_handles(device, &handles_of(path, &source), path.dgid, &source, timeout)
}

/// Returns the headers and the shared Ethernet addresses of the address handles `user` to `dgid`:
/// those that are known, or else those of the host's tables.
fn begin_handles(
    device: &DeviceInner,
    user: &PathUser,
    dgid: Gid,
    source: &GidEntry,
    timeout: Duration,
) -> Result<(PathHeaders, Arc<EthernetAddresses>), DeviceError> {
    let now = device.now();
    if let Some(known) = lock(device).get(user)
        && !known.is_unresolved
        && let Some(handle) = &known.handle
        && handle.is_trusted(now)
    {
        return Ok((known.headers, Arc::clone(handle)));
    }
    let (headers, handle) = resolve(device, user.clone(), dgid, source, timeout)?;
    Ok((headers, handle.expect("the user is an address handle")))
}

/// The user of all address handles with the ends of `path`, whose source is `source`.
fn handles_of(path: &Path, source: &GidEntry) -> PathUser {
    PathUser::Handles(Box::new(Ends {
        dgid: path.dgid,
        source: source.gid,
        vlan: source.vlan,
        interface: source.interface,
    }))
}

fn source_of(device: &DeviceInner, path: &Path) -> Result<GidEntry, DeviceError> {
    let index = path.sgid_index;
    device.addressing.gid(index).ok_or(DeviceError::GidIndex(index))
}

/// Looks the path up in the host's tables and stores it for `user`. Returns its headers and the
/// Ethernet addresses of its handles.
fn resolve(
    device: &DeviceInner,
    user: PathUser,
    dgid: Gid,
    source: &GidEntry,
    timeout: Duration,
) -> Result<(PathHeaders, Option<Arc<EthernetAddresses>>), DeviceError> {
    let look = |timeout| device.addressing.resolve(dgid, source, timeout);
    let failed = |source| DeviceError::Path { gid: dgid, source };
    let headers = look(timeout).map_err(failed)?;
    let handle = put(device, user.clone(), source, headers);
    // The path may have changed after it was resolved and before it was in the table of paths.
    match look(Duration::ZERO) {
        Ok(headers) => Ok((headers, put(device, user, source, headers))),
        Err(_) => {
            // The next event about a neighbour resolves the path again, and so does the next
            // address handle.
            if let Some(path) = lock(device).get_mut(&user) {
                path.is_unresolved = true;
            }
            Ok((headers, handle))
        }
    }
}

/// Stores the headers of a path. Returns the Ethernet addresses of its handles, which stay in the
/// table at least as long as the caller keeps them.
fn put(
    device: &DeviceInner,
    user: PathUser,
    source: &GidEntry,
    headers: PathHeaders,
) -> Option<Arc<EthernetAddresses>> {
    let mut paths = lock(device);
    let handle = match paths.get(&user) {
        Some(known) => known.handle.clone(),
        None => {
            if (paths.len() + 1).is_multiple_of(UNUSED_PATHS) {
                remove_unused(&mut paths);
            }
            let shares = matches!(user, PathUser::Handles(_));
            shares.then(|| Arc::new(EthernetAddresses::new(&headers)))
        }
    };
    if let Some(handle) = &handle {
        handle.set(&headers);
        handle.trust_until(device.now() + TRUST);
    }
    let (source, is_unresolved) = (Arc::new(source.clone()), false);
    paths.insert(user, PathInUse { source, headers, is_unresolved, handle: handle.clone() });
    handle
}

/// Forgets paths of address handles that no longer exist.
fn remove_unused(paths: &mut Paths) {
    // Not all paths: those of 100,000 QPs are before the first path of address handles.
    let last_qp = PathUser::Qp(Qpn::masked(u32::MAX));
    let handles = paths.range((Bound::Excluded(last_qp), Bound::Unbounded));
    let unused = handles.filter(|(_, path)| path.is_unused()).map(|(user, _)| user.clone());
    for user in unused.collect::<Vec<_>>() {
        paths.remove(&user);
    }
}

/// Starts the thread that follows the host.
pub(super) fn start(device: &super::Opened, interface: &str) -> Result<(), OpenError> {
    let Addressing::Kernel(kernel) = &device.addressing else { return Ok(()) };
    let mut follower = Follower {
        device: Arc::downgrade(&device.0),
        resolver: kernel.open_resolver()?,
        name: interface.to_owned(),
        index: kernel.table.read().unwrap_or_else(PoisonError::into_inner).device(),
        hops: NextHops::new(device.now()),
        is_lost: false,
    };
    let is_detachable = device.filter.get().is_some_and(Filter::is_detachable);
    let interval = (is_detachable || !follower.resolver.is_routed()).then_some(TICK);
    let on_event = move |watched| match watched {
        Watched::Event(event) => follower.take(&event),
        Watched::Tick => follower.tick(),
    };
    let watcher = Watcher::start_with_ticks(interval, Box::new(on_event))?;
    *device.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    Ok(())
}

struct Follower {
    device: Weak<DeviceInner>,
    /// A netlink socket of the thread's own, so that it never waits for a thread that waits for a
    /// neighbour.
    resolver: Resolver,
    /// Name of the device's interface when the device was opened, for messages.
    name: String,
    /// Its index, which a new name does not change.
    index: u32,
    /// The next hops that the kernel must know.
    hops: NextHops,
    /// The device is lost: its interface or the program that selects its frames is gone.
    is_lost: bool,
}

impl Follower {
    fn take(&mut self, event: &NetEvent) {
        let Some(device) = self.device.upgrade() else { return };
        self.follow_gids(&device, event);
        if let NetEvent::LinkAdded(link) = event
            && self.is_own(link.index)
        {
            follow_mtu(&device, link.mtu);
        }
        expire(&device, event);
        match event {
            NetEvent::NeighbourChanged { interface, ip, mac } => {
                self.follow_neighbour(&device, *interface, *ip, *mac);
            }
            NetEvent::RouteChanged => self.follow_routes(&device, |_| true),
            NetEvent::Synchronised => {
                self.follow_missed(&device);
                self.follow_routes(&device, |_| true);
            }
            NetEvent::MacChanged { interface, mac } => {
                follow_own_mac(&device, *interface, *mac);
                set_filter(&device);
            }
            _ => {}
        }
        let is_used = |hop| lock(&device).values().any(|path| path.hop() == Some(hop));
        let mut renew = |hop: Hop| self.resolver.renew(hop.0, hop.1);
        self.hops.take(event, device.now(), is_used, &mut renew);
        match event {
            NetEvent::LinkRemoved { interface } if self.is_own(*interface) => {
                self.interface_removed(&device);
            }
            // Removed before the first event.
            NetEvent::Synchronised if self.is_removed() => self.interface_removed(&device),
            NetEvent::LinkRenamed { interface, name } if self.is_own(*interface) => {
                name.clone_into(&mut self.name);
            }
            NetEvent::LinkUp { interface } if self.is_own(*interface) => {
                device.events.push(AsyncEvent::PortActive);
                // Frames that the link did not take are sent now.
                device.cores.iter().for_each(|cell| cell.doorbell.wake());
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
        self.index == interface
    }

    fn is_removed(&self) -> bool {
        matches!(Interface::by_index(self.index), Err(NetError::NoSuchInterface { .. }))
    }

    fn interface_removed(&mut self, device: &DeviceInner) {
        if !std::mem::replace(&mut self.is_lost, true) {
            tracing::error!("interface {} was removed: the device is lost", self.name);
            device.lose();
        }
    }

    fn tick(&mut self) {
        let Some(device) = self.device.upgrade().filter(|_| !self.is_lost) else { return };
        self.restore_filter(&device);
        let in_use = || lock(&device).values().filter_map(PathInUse::hop).collect();
        let mut renew = |hop: Hop| self.resolver.renew(hop.0, hop.1);
        self.hops.tick(device.now(), in_use, &mut renew);
    }

    /// Attaches the program that selects the device's frames again if another program has detached
    /// it. The device is lost if that fails.
    fn restore_filter(&mut self, device: &DeviceInner) {
        let Some(filter) = device.filter.get() else { return };
        if filter.restore(&self.name, || self.is_removed()) {
            self.is_lost = true;
            device.lose();
        }
    }

    fn follow_gids(&self, device: &DeviceInner, event: &NetEvent) {
        let Addressing::Kernel(kernel) = &device.addressing else { return };
        let changed = kernel.table.write().unwrap_or_else(PoisonError::into_inner).apply(event);
        if changed {
            self.announce_gids(device);
        }
    }

    fn announce_gids(&self, device: &DeviceInner) {
        set_filter(device);
        device.events.push(AsyncEvent::GidChange);
    }

    /// Reads the GID table again, for changes between the opening of the device and the first
    /// event.
    fn follow_missed(&self, device: &DeviceInner) {
        let Addressing::Kernel(kernel) = &device.addressing else { return };
        let Ok(fresh) = GidTable::read_index(self.index) else { return };
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

    /// Updates the paths through a neighbour whose Ethernet address has changed. The neighbour may
    /// also be the next hop that a changed route waits for.
    fn follow_neighbour(&mut self, device: &DeviceInner, interface: u32, ip: IpAddr, mac: MacAddr) {
        for (user, path) in lock(device).iter_mut() {
            let hop = (path.headers.interface, path.headers.next_hop);
            if hop == (interface, Some(ip)) && path.headers.dst_mac != mac {
                path.headers.dst_mac = mac;
                refresh(device, user, path);
            }
        }
        self.follow_routes(device, |path| path.is_unresolved);
    }

    /// Resolves again the paths that `concerns` selects: their next hop may have changed. Does not
    /// wait for a next hop whose Ethernet address is unknown; the event with that address resolves
    /// the path. Forgets paths of address handles that no longer exist.
    fn follow_routes(&mut self, device: &DeviceInner, concerns: impl Fn(&PathInUse) -> bool) {
        let mut paths = lock(device);
        paths.retain(|_, path| !concerns(path) || !path.is_unused());
        // Many QPs have the same two ends.
        let mut known = BTreeMap::new();
        for (user, path) in paths.iter_mut().filter(|(_, path)| concerns(path)) {
            let dgid = path.dgid();
            let source = (path.source.gid, path.source.vlan, path.source.interface);
            let resolved = known.entry((dgid, source)).or_insert_with(|| {
                match device.addressing.is_own(dgid) {
                    true => self.resolver.resolve_own(dgid, &path.source),
                    false => self.resolver.resolve(dgid, &path.source, Duration::ZERO),
                }
            });
            match resolved {
                Ok(headers) => {
                    let headers = *headers;
                    let moved = headers != path.headers;
                    (path.headers, path.is_unresolved) = (headers, false);
                    if moved {
                        refresh(device, user, path);
                    }
                }
                Err(_) => path.is_unresolved = true,
            }
        }
    }
}

fn set_filter(device: &DeviceInner) {
    if let Err(error) = multicast::set_filter(device, &multicast::lock(device)) {
        tracing::warn!(%error, "cannot follow the interface's addresses");
    }
}

pub(super) fn lock(device: &DeviceInner) -> std::sync::MutexGuard<'_, Paths> {
    device.paths.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes new address handles look up again the paths that `event` may concern. Existing handles and
/// QPs keep their paths.
fn expire(device: &DeviceInner, event: &NetEvent) {
    let concerns = |headers: &PathHeaders| match event {
        NetEvent::NeighbourChanged { .. } => false, // The follower updates its paths.
        NetEvent::NeighbourFailed { interface, ip }
        | NetEvent::NeighbourRemoved { interface, ip } => {
            (headers.interface, headers.next_hop) == (*interface, Some(*ip))
        }
        _ => true,
    };
    let mut is_change = !matches!(
        event,
        NetEvent::NeighbourChanged { .. }
            | NetEvent::NeighbourFailed { .. }
            | NetEvent::NeighbourRemoved { .. }
    );
    for path in lock(device).values_mut().filter(|path| concerns(&path.headers)) {
        is_change = true;
        if let Some(handle) = &path.handle {
            handle.trust_until(Instant::ZERO);
        }
    }
    if is_change {
        device.host_changes.fetch_add(1, Ordering::Release);
    }
}

/// Updates the MTU. The port's buffers are made for the MTU at opening, so the device's MTU can
/// shrink and grow back, but not exceed that MTU.
fn follow_mtu(device: &DeviceInner, mtu: u32) {
    let mut attributes = device.attributes.write().unwrap_or_else(PoisonError::into_inner);
    attributes.mtu = mtu.min(device.port_mtu);
    attributes.active_mtu = PathMtu::largest_for(attributes.mtu);
}

/// Updates the paths of an interface whose own Ethernet address has changed.
fn follow_own_mac(device: &DeviceInner, interface: u32, mac: MacAddr) {
    for (user, path) in lock(device).iter_mut() {
        if path.headers.interface == interface {
            path.headers.move_own(mac);
            refresh(device, user, path);
        }
    }
}

/// Updates the headers of the path's user: address handles, or a connected QP. A QP that is not
/// connected yet gets the headers in `QueuePair::modify`.
pub(super) fn refresh(device: &DeviceInner, user: &PathUser, path: &PathInUse) {
    if let Some(handle) = &path.handle {
        handle.set(&path.headers);
    }
    let PathUser::Qp(qpn) = user else { return };
    let Some((core, slot)) = device.qpns.locate(*qpn) else { return };
    let mut token = device.cores[core].lock();
    token.with_qp(slot, device.now(), |qp, _| {
        if let Some(flow) = qp.flow() {
            let flow = path.refresh(flow);
            qp.set_flow(flow);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_is_a_word() {
        let address = MacAddr([1, 2, 3, 0xfd, 0xfe, 0xff]);
        assert_eq!(word(address), 0x0102_03fd_feff);
        assert_eq!(mac(word(address)), address);
    }
}
