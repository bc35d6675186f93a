//! The neighbour table of a device. The ports of the device, which send and receive ARP and
//! neighbour discovery, share it with the control path, which waits for responses.
//!
//! The table holds only neighbours that were requested, so frames from other hosts do not make it
//! grow. Its lock is taken for frames of ARP and neighbour discovery and by the control path, never
//! for RoCE frames.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use feroce_wire::MacAddr;

use super::config::{Address, DpdkConfig};
use super::frames::{Handled, Own, Sighting};
use crate::net::{Gid, GidEntry, PathHeaders, ResolveError, multicast_mac};
use crate::port::kind::LinkAddresses;
use crate::time::{Clock, Duration, Instant};

/// Time after which a request for a neighbour is repeated, as in Linux.
const REQUEST_AGAIN: Duration = Duration::from_secs(1);
/// Time for which a resolved address is used without another request, as in Linux.
const REACHABLE_TIME: Duration = Duration::from_secs(30);
const HOP_LIMIT: u8 = 64;
const HOP_LIMIT_MULTICAST: u8 = 1;

/// The addresses of a port that resolves its neighbours itself, for
/// [`Addressing::Port`](crate::device::Addressing::Port). Clones are handles to the same table.
#[derive(Debug, Clone)]
pub struct PortAddresses(Arc<Lan>);

#[derive(Debug)]
struct Lan {
    own: Own,
    gateways: Vec<IpAddr>,
    mtu: u32,
    /// Name of the device, for messages.
    name: String,
    /// Messages are queued to be sent. Read by the ports in every turn, hence not under the lock.
    has_queued: AtomicBool,
    clock: Clock,
    table: Mutex<Table>,
    changed: Condvar,
}

/// A neighbour: VLAN and address.
type Key = (Option<u16>, IpAddr);

#[derive(Debug, Default)]
struct Table {
    /// Requested neighbours; `None` until they answer.
    neighbours: BTreeMap<Key, Option<Neighbour>>,
    to_send: VecDeque<Message>,
    /// Number of times that a known neighbour changed its Ethernet address.
    moves: u64,
    closed: bool,
}

/// A neighbour that has answered.
#[derive(Debug, Clone, Copy)]
struct Neighbour {
    mac: MacAddr,
    /// Time until which the address is used without another request.
    reachable_until: Instant,
}

/// A message that a port must send.
#[derive(Debug, Clone, Copy)]
enum Message {
    /// A request for the Ethernet address of a neighbour, sent from this local address.
    Request(Address, IpAddr),
    /// An announcement of this local address.
    Announce(Address),
}

impl PortAddresses {
    pub(super) fn new(config: &DpdkConfig, name: String, mac: MacAddr) -> Self {
        let own = Own { mac, addresses: config.addresses.clone() };
        let gateways = config.gateways.clone();
        Self(Arc::new(Lan {
            own,
            gateways,
            mtu: config.mtu,
            name,
            has_queued: AtomicBool::new(false),
            clock: Clock::start(),
            table: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    pub(super) fn own(&self) -> &Own {
        &self.0.own
    }

    /// Queues an announcement of every local address.
    pub(super) fn announce(&self) {
        for own in &self.0.own.addresses {
            self.0.send(&mut self.0.lock(), Message::Announce(*own));
        }
    }

    /// Returns true if messages wait for [`PortAddresses::write_next`].
    #[inline]
    pub(super) fn has_to_send(&self) -> bool {
        self.0.has_queued.load(Ordering::Relaxed)
    }

    /// Writes the next queued message to `out`. Returns its length, or `None` if there is none.
    pub(super) fn write_next(&self, out: &mut [u8]) -> Option<usize> {
        let mut table = self.0.lock();
        let written = table.to_send.pop_front().and_then(|message| match message {
            Message::Request(own, target) => self.0.own.request(&own, target, out),
            Message::Announce(own) => self.0.own.announce(&own, out),
        });
        self.0.has_queued.store(!table.to_send.is_empty(), Ordering::Relaxed);
        written
    }

    /// Handles a frame that is not RoCE and writes the response, if any, to `out`. `None` if the
    /// frame is not for this port.
    pub(super) fn handle(&self, frame: &[u8], out: &mut [u8]) -> Option<Handled> {
        let handled = self.0.own.handle(frame, out)?;
        if let Some(sighting) = &handled.sighting {
            self.0.learn(sighting);
        }
        Some(handled)
    }
}

impl LinkAddresses for PortAddresses {
    fn gids(&self) -> Vec<GidEntry> {
        let entry = |own: &Address| GidEntry {
            gid: own.ip.into(),
            vlan: own.vlan,
            interface: 0,
            interface_name: self.0.name.clone(),
        };
        self.0.own.addresses.iter().map(entry).collect()
    }

    /// If nothing was received from the next hop for 30 s, requests its address once per second.
    fn resolve(
        &self,
        destination: Gid,
        source: &GidEntry,
        timeout: Duration,
    ) -> Result<PathHeaders, ResolveError> {
        let lan = &*self.0;
        let group = destination.multicast_group();
        let (dst_ip, src_ip) = (group.unwrap_or(destination.ip()), source.gid.ip());
        let own = lan.own_address(src_ip, source.vlan, dst_ip)?;
        let mut headers = PathHeaders {
            dst_mac: MacAddr::default(),
            src_mac: lan.own.mac,
            vlan: own.vlan,
            src_ip,
            dst_ip,
            hop_limit: HOP_LIMIT_MULTICAST,
            mtu: lan.mtu,
            interface: 0,
            next_hop: None,
        };
        if dst_ip.is_multicast() {
            headers.dst_mac = multicast_mac(dst_ip);
            return Ok(headers);
        }
        let next_hop = lan.next_hop(own, dst_ip)?;
        headers.dst_mac = lan.neighbour(own, next_hop, timeout)?;
        headers.next_hop = Some(next_hop);
        headers.hop_limit = HOP_LIMIT;
        Ok(headers)
    }

    fn resolve_own(
        &self,
        destination: Gid,
        source: &GidEntry,
    ) -> Result<PathHeaders, ResolveError> {
        PathHeaders::to_self(destination, source, self.0.own.mac, self.0.mtu)
    }

    fn neighbour(&self, vlan: Option<u16>, ip: IpAddr) -> Option<MacAddr> {
        self.0.lock().neighbours.get(&(vlan, ip)).copied().flatten().map(|known| known.mac)
    }

    fn request(&self, source: &GidEntry, next_hop: IpAddr) {
        let mut addresses = self.0.own.addresses.iter();
        let is_source = |own: &&Address| own.ip == source.gid.ip() && own.vlan == source.vlan;
        if let Some(own) = addresses.find(is_source) {
            self.0.send(&mut self.0.lock(), Message::Request(*own, next_hop));
        }
    }

    fn wait_for_move(&self, seen: u64, timeout: Duration) -> Option<u64> {
        let still = |table: &mut Table| table.moves == seen && !table.closed;
        let waited = self.0.changed.wait_timeout_while(self.0.lock(), timeout, still);
        let (table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!table.closed).then_some(table.moves)
    }

    fn close(&self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Lan {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, table: &mut Table, message: Message) {
        table.to_send.push_back(message);
        self.has_queued.store(true, Ordering::Relaxed);
    }

    /// The local address `src_ip`, if it can reach `dst_ip`.
    fn own_address(
        &self,
        src_ip: IpAddr,
        vlan: Option<u16>,
        dst_ip: IpAddr,
    ) -> Result<&Address, ResolveError> {
        if dst_ip.is_ipv4() != src_ip.is_ipv4() {
            return Err(ResolveError::FamilyMismatch { source_ip: src_ip, destination: dst_ip });
        }
        let ours = |ip: IpAddr| self.own.addresses.iter().any(|own| own.ip == ip);
        if ours(dst_ip) || dst_ip.is_loopback() {
            return Err(ResolveError::LocalDestination { destination: dst_ip });
        }
        if dst_ip.is_unspecified() || dst_ip == IpAddr::from([255; 4]) {
            return Err(ResolveError::NotAHost { destination: dst_ip });
        }
        let mut addresses = self.own.addresses.iter();
        let own = addresses.find(|own| own.ip == src_ip && own.vlan == vlan);
        own.ok_or(ResolveError::SourceGone { source_ip: src_ip })
    }

    fn next_hop(&self, own: &Address, dst_ip: IpAddr) -> Result<IpAddr, ResolveError> {
        if own.is_broadcast(dst_ip) {
            return Err(ResolveError::NotAHost { destination: dst_ip });
        }
        if own.reaches(dst_ip) {
            return Ok(dst_ip);
        }
        let gateway = self.gateways.iter().find(|gateway| own.reaches(**gateway));
        let no_route =
            || ResolveError::NoRoute { destination: dst_ip, interface: self.name.clone() };
        gateway.copied().ok_or_else(no_route)
    }

    fn neighbour(
        &self,
        own: &Address,
        next_hop: IpAddr,
        timeout: Duration,
    ) -> Result<MacAddr, ResolveError> {
        let key = (own.vlan, next_hop);
        let start = self.clock.now();
        let mut request_at = Duration::ZERO;
        let mut table = self.lock();
        loop {
            let now = self.clock.now();
            let known = *table.neighbours.entry(key).or_insert(None);
            if let Some(known) = known.filter(|known| now < known.reachable_until) {
                return Ok(known.mac);
            }
            let after = now - start;
            let is_over = after >= timeout;
            if after >= request_at && !is_over || request_at.is_zero() {
                self.send(&mut table, Message::Request(*own, next_hop));
                request_at = after + REQUEST_AGAIN;
            }
            if is_over {
                if known.is_none() {
                    table.neighbours.remove(&key); // No path uses it.
                }
                return Err(ResolveError::Unresolved { next_hop, after });
            }
            let unknown = |table: &mut Table| {
                let known = table.neighbours.get(&key).copied().flatten();
                known.is_none_or(|known| self.clock.now() >= known.reachable_until)
            };
            let wait = timeout.min(request_at).saturating_sub(after);
            let waited = self.changed.wait_timeout_while(table, wait, unknown);
            (table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records the Ethernet address of a neighbour, if the neighbour was requested.
    fn learn(&self, sighting: &Sighting) {
        let mut table = self.lock();
        let Some(known) = table.neighbours.get_mut(&(sighting.vlan, sighting.ip)) else { return };
        let was = known.map(|known| known.mac);
        let has_moved = was.is_some_and(|mac| mac != sighting.mac);
        if has_moved && !sighting.overrides {
            return;
        }
        let reachable_until = self.clock.now() + REACHABLE_TIME;
        *known = Some(Neighbour { mac: sighting.mac, reachable_until });
        table.moves += u64::from(has_moved);
        drop(table);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lan() -> PortAddresses {
        let address = |text: &str| text.parse().unwrap();
        let addresses = ["10.0.0.1/24", "fd00::1/64"].map(address).into();
        let mut config = DpdkConfig::new("net_null0", addresses);
        config.gateways = vec!["10.0.0.254".parse().unwrap()];
        PortAddresses::new(&config, "net_null0".to_owned(), MacAddr([2, 0, 0, 0, 0, 1]))
    }

    fn resolve(
        lan: &PortAddresses,
        to: &str,
        timeout: Duration,
    ) -> Result<PathHeaders, ResolveError> {
        let to: IpAddr = to.parse().unwrap();
        let gids = lan.gids();
        lan.resolve(to.into(), &gids[usize::from(to.is_ipv6())], timeout)
    }

    fn sighting(ip: &str, last: u8, overrides: bool) -> Sighting {
        Sighting { vlan: None, ip: ip.parse().unwrap(), mac: mac(last), overrides }
    }

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 9, last])
    }

    #[test]
    fn responses_are_learnt_and_moves_are_reported() {
        let lan = lan();
        let headers = std::thread::scope(|scope| {
            let waits = scope.spawn(|| resolve(&lan, "10.0.0.2", Duration::from_secs(10)));
            while !lan.has_to_send() {
                std::thread::yield_now();
            }
            lan.0.learn(&sighting("10.0.0.2", 2, true));
            waits.join().unwrap().unwrap()
        });
        assert_eq!(
            (headers.dst_mac, headers.next_hop),
            (mac(2), Some("10.0.0.2".parse().unwrap()))
        );
        assert!(lan.write_next(&mut [0; 128]).is_some() && !lan.has_to_send());
        assert_eq!(lan.wait_for_move(0, Duration::ZERO), Some(0));
        lan.0.learn(&sighting("10.0.0.2", 3, false));
        assert_eq!(resolve(&lan, "10.0.0.2", Duration::ZERO).unwrap().dst_mac, mac(2), "not firm");
        lan.0.learn(&sighting("10.0.0.2", 3, true));
        assert_eq!(lan.wait_for_move(0, Duration::from_secs(10)), Some(1));
        assert_eq!(resolve(&lan, "10.0.0.2", Duration::ZERO).unwrap().dst_mac, mac(3));
        lan.close();
        assert_eq!(lan.wait_for_move(1, Duration::from_secs(10)), None);
    }

    #[test]
    fn an_old_neighbour_is_requested_again() {
        let lan = lan();
        let key = (None, "10.0.0.2".parse().unwrap());
        lan.0.lock().neighbours.insert(key, None);
        lan.0.learn(&sighting("10.0.0.2", 2, true));
        let held = lan.0.lock().neighbours[&key].unwrap().reachable_until;
        assert!(held > lan.0.clock.now() + REACHABLE_TIME / 2);
        assert_eq!(resolve(&lan, "10.0.0.2", Duration::ZERO).unwrap().dst_mac, mac(2));
        assert!(!lan.has_to_send(), "a reachable neighbour is not requested");
        let grows_old = || {
            let long_ago = Some(Neighbour { mac: mac(2), reachable_until: lan.0.clock.now() });
            lan.0.lock().neighbours.insert(key, long_ago);
        };
        grows_old();
        let headers = std::thread::scope(|scope| {
            let waits = scope.spawn(|| resolve(&lan, "10.0.0.2", Duration::from_secs(10)));
            while !lan.has_to_send() {
                std::thread::yield_now();
            }
            lan.0.learn(&sighting("10.0.0.2", 2, false));
            waits.join().unwrap().unwrap()
        });
        assert_eq!(headers.dst_mac, mac(2));
        grows_old();
        let error = resolve(&lan, "10.0.0.2", Duration::ZERO).unwrap_err();
        assert!(matches!(error, ResolveError::Unresolved { .. }), "{error}");
        assert_eq!(lan.neighbour(None, key.1), Some(mac(2)), "paths in use keep the address");
        assert_eq!(lan.wait_for_move(0, Duration::ZERO), Some(0), "the address has not changed");
    }

    #[test]
    fn unrequested_neighbours_are_not_stored() {
        let lan = lan();
        lan.0.learn(&sighting("10.0.0.77", 7, true));
        assert!(lan.0.lock().neighbours.is_empty());
        let error = resolve(&lan, "10.0.0.77", Duration::ZERO).unwrap_err();
        assert!(matches!(error, ResolveError::Unresolved { .. }), "{error}");
        assert!(lan.0.lock().neighbours.is_empty(), "the waiting path is gone");
    }

    #[test]
    fn the_next_hop_is_the_peer_or_the_gateway() {
        let lan = lan();
        let error = |to: &str| resolve(&lan, to, Duration::ZERO).unwrap_err();
        let hop = |to: &str| match error(to) {
            ResolveError::Unresolved { next_hop, .. } => next_hop.to_string(),
            other => other.to_string(),
        };
        assert_eq!(hop("10.0.0.9"), "10.0.0.9");
        assert_eq!(hop("192.168.7.7"), "10.0.0.254");
        assert_eq!(hop("fe80::7"), "fe80::7");
        assert!(matches!(error("fd09::1"), ResolveError::NoRoute { .. }));
        assert!(matches!(error("10.0.0.1"), ResolveError::LocalDestination { .. }));
        assert!(matches!(error("10.0.0.255"), ResolveError::NotAHost { .. }));
        assert!(matches!(error("0.0.0.0"), ResolveError::NotAHost { .. }));
        assert_eq!(
            resolve(&lan, "ff02::5", Duration::ZERO).unwrap().dst_mac,
            MacAddr([0x33, 0x33, 0, 0, 0, 5])
        );
    }
}
