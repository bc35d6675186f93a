//! The next hops of paths in use: the kernel must know their Ethernet addresses.
//!
//! The kernel resolves a neighbour again when it sends a packet to it. It does not see the frames
//! of a port. Therefore it is asked to resolve a next hop in use as soon as it has forgotten it or
//! given up on it, and to confirm all of them now and then, so that a new Ethernet address is
//! found. A change is published as [`NetEvent::NeighbourChanged`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::event::NetEvent;
use super::resolve::ResolveError;
use crate::time::{Duration, Instant};

/// A next hop: index of the interface, and IP address.
pub(crate) type Hop = (u32, IpAddr);

/// Makes the kernel resolve or confirm a next hop: `Resolver::renew`.
type Renew<'a> = &'a mut dyn FnMut(Hop) -> Result<bool, ResolveError>;

/// Time between two confirmations of the next hops in use. Linux trusts a neighbour that has
/// answered for about the same time.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(30);

/// Time between the first two requests to a next hop that does not answer; doubled for each further
/// one, up to the maximum. The kernel repeats each request twice, a second apart.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Keeps the next hops in use resolved.
#[derive(Debug)]
pub(crate) struct NextHops {
    /// Next hops in use that the kernel does not know.
    lost: BTreeMap<Hop, Retry>,
    /// Time of the next confirmation.
    confirm_at: Instant,
    /// A missing permission has been reported.
    is_denied: bool,
}

/// The next request to a next hop that has not answered yet.
#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Instant,
    pause: Duration,
}

impl NextHops {
    pub(crate) fn new(now: Instant) -> Self {
        Self { lost: BTreeMap::new(), confirm_at: now + CONFIRM_INTERVAL, is_denied: false }
    }

    /// Makes the kernel resolve a next hop again that it has forgotten or given up on, if
    /// `is_used`. When an interface comes up, does so for all lost next hops of the interface.
    pub(crate) fn take(
        &mut self,
        event: &NetEvent,
        now: Instant,
        is_used: impl Fn(Hop) -> bool,
        renew: Renew<'_>,
    ) {
        match *event {
            NetEvent::NeighbourChanged { interface, ip, .. } => {
                self.lost.remove(&(interface, ip));
            }
            NetEvent::NeighbourFailed { interface, ip }
            | NetEvent::NeighbourRemoved { interface, ip }
                if is_used((interface, ip)) =>
            {
                self.request((interface, ip), now, renew);
            }
            NetEvent::LinkUp { interface } => {
                let waiting = self.lost.keys().filter(|hop| hop.0 == interface);
                for hop in waiting.copied().collect::<Vec<_>>() {
                    self.lost.remove(&hop);
                    self.request(hop, now, renew);
                }
            }
            NetEvent::LinkRemoved { interface } => self.lost.retain(|hop, _| hop.0 != interface),
            _ => {}
        }
    }

    /// Repeats the requests that are due. `in_use` is called if there are any.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        in_use: impl FnOnce() -> BTreeSet<Hop>,
        renew: Renew<'_>,
    ) {
        let confirms = now >= self.confirm_at;
        if !confirms && self.lost.values().all(|retry| retry.at > now) {
            return;
        }
        let in_use = in_use();
        self.lost.retain(|hop, _| in_use.contains(hop));
        for hop in in_use {
            match self.lost.get_mut(&hop) {
                Some(retry) if retry.at <= now => retry.pause = (retry.pause * 2).min(MAX_PAUSE),
                None if confirms => {}
                _ => continue,
            }
            self.request(hop, now, renew);
        }
        if confirms {
            self.confirm_at = now + CONFIRM_INTERVAL;
        }
    }

    fn request(&mut self, hop: Hop, now: Instant, renew: Renew<'_>) {
        match renew(hop) {
            Ok(true) => {
                self.lost.remove(&hop);
                return;
            }
            Ok(false) => {}
            Err(error @ ResolveError::Permission { .. }) if !self.is_denied => {
                self.is_denied = true;
                tracing::warn!(%error, "a new Ethernet address of a peer may not be noticed");
            }
            Err(error) => tracing::debug!(next_hop = %hop.1, %error, "not resolved again"),
        }
        let pause = self.lost.get(&hop).map_or(FIRST_PAUSE, |retry| retry.pause);
        self.lost.insert(hop, Retry { at: now + pause, pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_wire::MacAddr;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn hop(interface: u32, last: u8) -> Hop {
        (interface, IpAddr::from([10, 0, 0, last]))
    }

    fn removed((interface, ip): Hop) -> NetEvent {
        NetEvent::NeighbourRemoved { interface, ip }
    }

    /// The seconds, up to `end`, at which `hops` makes requests for the next hops `in_use`.
    fn requests(hops: &mut NextHops, in_use: &[Hop], end: u64, is_known: bool) -> Vec<u64> {
        let mut times = Vec::new();
        for second in 0..=end {
            let mut renew = |_| {
                times.push(second);
                Ok(is_known)
            };
            hops.tick(at(second), || in_use.iter().copied().collect(), &mut renew);
        }
        times
    }

    #[test]
    fn a_next_hop_in_use_is_requested_as_soon_as_it_is_lost() {
        let (used, unused) = (hop(1, 2), hop(1, 3));
        let mut hops = NextHops::new(at(0));
        let mut asked = Vec::new();
        let mut renew = |hop| {
            asked.push(hop);
            Ok(false)
        };
        let mut take = |event| hops.take(&event, at(0), |hop| hop == used, &mut renew);
        take(removed(used));
        take(removed(unused));
        take(NetEvent::NeighbourFailed { interface: used.0, ip: used.1 });
        take(NetEvent::LinkUp { interface: 2 });
        take(NetEvent::LinkUp { interface: 1 });
        let mac = MacAddr([2; 6]);
        take(NetEvent::NeighbourChanged { interface: used.0, ip: used.1, mac });
        take(NetEvent::LinkUp { interface: 1 });
        assert_eq!(asked, [used; 3]);
    }

    #[test]
    fn requests_without_an_answer_become_rare() {
        let used = hop(1, 2);
        let mut hops = NextHops::new(at(0));
        hops.take(&removed(used), at(0), |_| true, &mut |_| Ok(false));
        let times = requests(&mut hops, &[used], 260, false);
        assert_eq!(times, [1, 3, 7, 15, 31, 63, 123, 183, 243]);
        assert!(requests(&mut hops, &[], 400, false).is_empty(), "no longer in use");
    }

    #[test]
    fn next_hops_in_use_are_confirmed_now_and_then() {
        let mut hops = NextHops::new(at(0));
        assert_eq!(requests(&mut hops, &[hop(1, 2), hop(2, 2)], 70, true), [30, 30, 60, 60]);
    }
}
