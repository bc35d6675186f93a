//! Who a port's neighbours are. Shared by the ports of a device, which hear and send ARP and neighbour
//! discovery, and its control path, which waits for answers.
//!
//! The table holds those who were asked for, and nobody else: what strangers send does not make it grow. Its
//! lock is taken for frames of ARP and neighbour discovery and by the control path, never for RoCE.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use feroce_wire::MacAddr;

use super::config::{Address, DpdkConfig};
use super::frames::{Heard, Own, Sighting};
use crate::net::{Gid, GidEntry, PathHeaders, ResolveError, multicast_mac};
use crate::port::kind::LinkAddresses;
use crate::time::{Clock, Duration, Instant};

/// A neighbour that does not answer is asked again after so long, as Linux does.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// So long an answer holds for those who ask for the way: as long as a neighbour is reachable for Linux.
const HOLDS: Duration = Duration::from_secs(30);
const HOP_LIMIT: u8 = 64;
const HOP_LIMIT_MULTICAST: u8 = 1;

/// The addresses of a port that finds its neighbours itself, for
/// [`Addressing::Port`](crate::device::Addressing::Port). Clones are handles to the same table.
#[derive(Debug, Clone)]
pub struct PortAddresses(Arc<Lan>);

#[derive(Debug)]
struct Lan {
    own: Own,
    gateways: Vec<IpAddr>,
    mtu: u32,
    /// Name of the device, for people.
    name: String,
    /// Something is to be sent. Read by the ports in every turn, hence not under the lock.
    asked: AtomicBool,
    clock: Clock,
    table: Mutex<Table>,
    changed: Condvar,
}

/// One neighbour: where and who.
type Key = (Option<u16>, IpAddr);

#[derive(Debug, Default)]
struct Table {
    /// Those asked for; `None` until they answer.
    neighbours: BTreeMap<Key, Option<Neighbour>>,
    to_send: VecDeque<Message>,
    /// How often a neighbour that was known moved to another Ethernet address.
    moves: u64,
    closed: bool,
}

/// One that has answered.
#[derive(Debug, Clone, Copy)]
struct Neighbour {
    mac: MacAddr,
    /// Until then, whoever asks for the way believes it.
    holds_until: Instant,
}

/// What a port is to send.
#[derive(Debug, Clone, Copy)]
enum Message {
    /// Who has this address? Asked from this own one.
    Ask(Address, IpAddr),
    /// This own address is here.
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
            asked: AtomicBool::new(false),
            clock: Clock::start(),
            table: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    pub(super) fn own(&self) -> &Own {
        &self.0.own
    }

    /// Lets the port tell its link who it is.
    pub(super) fn announce(&self) {
        for own in &self.0.own.addresses {
            self.0.send(&mut self.0.lock(), Message::Announce(*own));
        }
    }

    /// Whether [`PortAddresses::write_next`] has something to write.
    #[inline]
    pub(super) fn has_to_send(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Writes the next frame that is to be sent to `out`; `None` if there is none.
    pub(super) fn write_next(&self, out: &mut [u8]) -> Option<usize> {
        let mut table = self.0.lock();
        let written = table.to_send.pop_front().and_then(|message| match message {
            Message::Ask(own, target) => self.0.own.ask(&own, target, out),
            Message::Announce(own) => self.0.own.announce(&own, out),
        });
        self.0.asked.store(!table.to_send.is_empty(), Ordering::Relaxed);
        written
    }

    /// Takes a frame that is not RoCE; the answer, if it has one, is written to `out`. `None` if the frame is
    /// not for us.
    pub(super) fn hear(&self, frame: &[u8], out: &mut [u8]) -> Option<Heard> {
        let heard = self.0.own.hear(frame, out)?;
        if let Some(sighting) = &heard.sighting {
            self.0.take(sighting);
        }
        Some(heard)
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

    /// If nothing was received from the next hop for 30 s, asks for its address once per second.
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

    fn ask(&self, source: &GidEntry, next_hop: IpAddr) {
        let mut addresses = self.0.own.addresses.iter();
        let is_source = |own: &&Address| own.ip == source.gid.ip() && own.vlan == source.vlan;
        if let Some(own) = addresses.find(is_source) {
            self.0.send(&mut self.0.lock(), Message::Ask(*own, next_hop));
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
        self.asked.store(true, Ordering::Relaxed);
    }

    /// The own address `src_ip`, if it can talk to `dst_ip`.
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
        if own.broadcasts_at(dst_ip) {
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
        let mut ask_at = Duration::ZERO;
        let mut table = self.lock();
        loop {
            let now = self.clock.now();
            let known = *table.neighbours.entry(key).or_insert(None);
            if let Some(known) = known.filter(|known| now < known.holds_until) {
                return Ok(known.mac);
            }
            let after = now - start;
            let is_over = after >= timeout;
            if after >= ask_at && !is_over || ask_at.is_zero() {
                self.send(&mut table, Message::Ask(*own, next_hop));
                ask_at = after + ASK_AGAIN;
            }
            if is_over {
                if known.is_none() {
                    table.neighbours.remove(&key); // There is nothing to follow.
                }
                return Err(ResolveError::Unresolved { next_hop, after });
            }
            let unknown = |table: &mut Table| {
                let known = table.neighbours.get(&key).copied().flatten();
                known.is_none_or(|known| self.clock.now() >= known.holds_until)
            };
            let wait = timeout.min(ask_at).saturating_sub(after);
            let waited = self.changed.wait_timeout_while(table, wait, unknown);
            (table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes where a neighbour was seen, if somebody asked for it.
    fn take(&self, sighting: &Sighting) {
        let mut table = self.lock();
        let Some(known) = table.neighbours.get_mut(&(sighting.vlan, sighting.ip)) else { return };
        let was = known.map(|known| known.mac);
        let has_moved = was.is_some_and(|mac| mac != sighting.mac);
        if has_moved && !sighting.overrides {
            return;
        }
        let holds_until = self.clock.now() + HOLDS;
        *known = Some(Neighbour { mac: sighting.mac, holds_until });
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
    fn who_answers_is_known_and_who_moves_is_followed() {
        let lan = lan();
        let headers = std::thread::scope(|scope| {
            let waits = scope.spawn(|| resolve(&lan, "10.0.0.2", Duration::from_secs(10)));
            while !lan.has_to_send() {
                std::thread::yield_now();
            }
            lan.0.take(&sighting("10.0.0.2", 2, true));
            waits.join().unwrap().unwrap()
        });
        assert_eq!(
            (headers.dst_mac, headers.next_hop),
            (mac(2), Some("10.0.0.2".parse().unwrap()))
        );
        assert!(lan.write_next(&mut [0; 128]).is_some() && !lan.has_to_send());
        assert_eq!(lan.wait_for_move(0, Duration::ZERO), Some(0));
        lan.0.take(&sighting("10.0.0.2", 3, false));
        assert_eq!(resolve(&lan, "10.0.0.2", Duration::ZERO).unwrap().dst_mac, mac(2), "not firm");
        lan.0.take(&sighting("10.0.0.2", 3, true));
        assert_eq!(lan.wait_for_move(0, Duration::from_secs(10)), Some(1));
        assert_eq!(resolve(&lan, "10.0.0.2", Duration::ZERO).unwrap().dst_mac, mac(3));
        lan.close();
        assert_eq!(lan.wait_for_move(1, Duration::from_secs(10)), None);
    }

    #[test]
    fn a_neighbour_of_long_ago_is_asked_again() {
        let lan = lan();
        let key = (None, "10.0.0.2".parse().unwrap());
        lan.0.lock().neighbours.insert(key, None);
        lan.0.take(&sighting("10.0.0.2", 2, true));
        let held = lan.0.lock().neighbours[&key].unwrap().holds_until;
        assert!(held > lan.0.clock.now() + HOLDS / 2);
        assert_eq!(resolve(&lan, "10.0.0.2", Duration::ZERO).unwrap().dst_mac, mac(2));
        assert!(!lan.has_to_send(), "what is known is not asked for");
        let grows_old = || {
            let long_ago = Some(Neighbour { mac: mac(2), holds_until: lan.0.clock.now() });
            lan.0.lock().neighbours.insert(key, long_ago);
        };
        grows_old();
        let headers = std::thread::scope(|scope| {
            let waits = scope.spawn(|| resolve(&lan, "10.0.0.2", Duration::from_secs(10)));
            while !lan.has_to_send() {
                std::thread::yield_now();
            }
            lan.0.take(&sighting("10.0.0.2", 2, false));
            waits.join().unwrap().unwrap()
        });
        assert_eq!(headers.dst_mac, mac(2));
        grows_old();
        let error = resolve(&lan, "10.0.0.2", Duration::ZERO).unwrap_err();
        assert!(matches!(error, ResolveError::Unresolved { .. }), "{error}");
        assert_eq!(lan.neighbour(None, key.1), Some(mac(2)), "who talks to it goes on");
        assert_eq!(lan.wait_for_move(0, Duration::ZERO), Some(0), "it was there all the time");
    }

    #[test]
    fn strangers_do_not_make_the_table_grow() {
        let lan = lan();
        lan.0.take(&sighting("10.0.0.77", 7, true));
        assert!(lan.0.lock().neighbours.is_empty());
        let error = resolve(&lan, "10.0.0.77", Duration::ZERO).unwrap_err();
        assert!(matches!(error, ResolveError::Unresolved { .. }), "{error}");
        assert!(lan.0.lock().neighbours.is_empty(), "nobody waits any more");
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
