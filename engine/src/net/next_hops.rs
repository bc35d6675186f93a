//! The next hops of paths in use: the kernel must know their Ethernet addresses.
//!
//! The kernel resolves a neighbour again when it sends a packet to it. It does not see the frames
//! of a port. Therefore it is asked to resolve a next hop in use as soon as it has forgotten it or
//! given up on it, and to confirm all of them now and then, so that a new Ethernet address is
//! found. A change is published as [`NetEvent::NeighbourChanged`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::event::NetEvent;
use super::resolve::{ResolveError, Resolver};
use crate::time::{Clock, Duration, Instant};

/// A next hop: index of the interface, and IP address.
pub(crate) type Hop = (u32, IpAddr);

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
    clock: Clock,
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
    pub(crate) fn new() -> Self {
        let clock = Clock::start();
        let confirm_at = clock.now() + CONFIRM_INTERVAL;
        Self { clock, lost: BTreeMap::new(), confirm_at, is_denied: false }
    }

    /// Makes the kernel resolve a next hop again that it has forgotten or given up on, if
    /// `is_used`. When an interface comes up, does so for all lost next hops of the interface.
    pub(crate) fn take(
        &mut self,
        event: &NetEvent,
        resolver: &mut Resolver,
        is_used: impl Fn(Hop) -> bool,
    ) {
        match *event {
            NetEvent::NeighbourChanged { interface, ip, .. } => {
                self.lost.remove(&(interface, ip));
            }
            NetEvent::NeighbourFailed { interface, ip }
            | NetEvent::NeighbourRemoved { interface, ip }
                if is_used((interface, ip)) =>
            {
                self.request((interface, ip), resolver);
            }
            NetEvent::LinkUp { interface } => {
                let waiting = self.lost.keys().filter(|hop| hop.0 == interface);
                for hop in waiting.copied().collect::<Vec<_>>() {
                    self.lost.remove(&hop);
                    self.request(hop, resolver);
                }
            }
            NetEvent::LinkRemoved { interface } => self.lost.retain(|hop, _| hop.0 != interface),
            _ => {}
        }
    }

    /// Repeats the requests that are due. `in_use` is called if there are any.
    pub(crate) fn tick(&mut self, resolver: &mut Resolver, in_use: impl FnOnce() -> BTreeSet<Hop>) {
        let now = self.clock.now();
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
            self.request(hop, resolver);
        }
        if confirms {
            self.confirm_at = now + CONFIRM_INTERVAL;
        }
    }

    fn request(&mut self, hop: Hop, resolver: &mut Resolver) {
        match resolver.renew(hop.0, hop.1) {
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
        self.lost.insert(hop, Retry { at: self.clock.now() + pause, pause });
    }
}
