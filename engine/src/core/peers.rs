//! The packets that the QPs of a core have outstanding at each peer, together.
//!
//! The send window bounds what one QP has outstanding. A peer receives for all of its QPs into the
//! ring of one port, which holds a few thousand packets: 200 QPs with windows of 256 packets fill
//! it twenty times, and most packets are lost and sent again. So each peer has a window of its own,
//! the *peer window*, which all QPs of the core to this peer share.
//!
//! A QP takes packets of the peer window in *grants*, so that it sends several packets in a row. If
//! no grant is left, the QP waits, and QPs that wait get the next grants in order. Only requests
//! need a grant: responses, ACKs and NAKs never wait.
//!
//! Losses make the peer window shorter, as another host may send to the same peer: see
//! [`loss_window`](super::loss_window). It is never shorter than the send window, so that it makes
//! no difference to a QP that is alone.
//!
//! A QP whose peer has died may never get an acknowledgement, and without a local ACK timeout it
//! never gives up. If QPs wait and none of them gets a grant for [`STALL`], all that is outstanding
//! at their peer is *written off*: it does not count until its QP makes progress or sends.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU32;

use super::loss_window::{LossWindow, WindowBounds};
use crate::qp::ACK_INTERVAL;
use crate::time::{Duration, Instant};

/// Packets of a grant after a wait, at most a quarter of the shortest window. The last packet of a
/// grant requests an acknowledgement, and a super-frame holds packets of one QP: shorter grants
/// cost more of both.
pub(super) const GRANT: u32 = 4 * ACK_INTERVAL;

/// Time without a grant after which what is outstanding at a peer is written off; it takes up to
/// twice as long, because one timer serves all peers. Longer than the few milliseconds for which a
/// helper that shares its CPU may be away.
pub(super) const STALL: Duration = Duration::from_millis(10);

/// The peers of a core.
#[derive(Debug)]
pub(super) struct Peers {
    bounds: WindowBounds,
    /// Packets of a grant after a wait.
    grant: u32,
    /// Also those that no QP sends to any more, until their place is used again.
    by_address: BTreeMap<IpAddr, u32>,
    list: Vec<Peer>,
    /// Peers with a grant for a QP that waits.
    ready: VecDeque<u32>,
}

#[derive(Debug)]
struct Peer {
    qps: u32,
    window: LossWindow,
    /// Packets that the QPs have outstanding, and those that they were granted and have not sent.
    used: u32,
    /// Slots of the QPs that wait, in order.
    waiting: VecDeque<u32>,
    is_ready: bool,
    /// A QP that waited got a grant since the last look for stalls.
    has_granted: bool,
    /// How often what was outstanding was written off.
    epoch: u32,
}

/// The part of a QP in the window of its peer.
#[derive(Debug, Default)]
pub(super) struct PeerShare {
    /// Index of the peer, plus one.
    place: Option<NonZeroU32>,
    /// Packets outstanding.
    outstanding: u32,
    /// Packets granted and not sent yet.
    granted: u32,
    is_waiting: bool,
    /// The epoch of the peer that `outstanding` and `granted` count in.
    epoch: u32,
}

impl PeerShare {
    #[inline]
    fn peer(&self) -> Option<u32> {
        self.place.map(|place| place.get() - 1)
    }
}

impl Peer {
    fn new(bounds: WindowBounds) -> Self {
        Self {
            qps: 0,
            window: LossWindow::new(bounds),
            used: 0,
            waiting: VecDeque::new(),
            is_ready: false,
            has_granted: false,
            epoch: 0,
        }
    }

    /// Returns true if what the QP has outstanding was written off.
    fn has_written_off(&self, share: &PeerShare) -> bool {
        share.epoch != self.epoch
    }

    /// Counts what the QP has outstanding again.
    #[cold]
    fn count_again(&mut self, share: &mut PeerShare) {
        share.epoch = self.epoch;
        self.used += share.outstanding + share.granted;
    }

    fn room(&self) -> u32 {
        self.window.packets().saturating_sub(self.used)
    }
}

impl Peers {
    /// No peers.
    pub(super) fn new(bounds: WindowBounds) -> Self {
        let (by_address, list, ready) = (BTreeMap::new(), Vec::new(), VecDeque::new());
        Self { bounds, grant: GRANT.min(bounds.shortest.div_ceil(4)), by_address, list, ready }
    }

    /// The QP in slot `slot` sends to `address` from now on; `None`: to no peer. Allocates, so only
    /// control calls may change the address.
    pub(super) fn join(&mut self, slot: u32, share: &mut PeerShare, address: Option<IpAddr>) {
        let known = address.and_then(|address| self.by_address.get(&address).copied());
        if share.place.is_some() == address.is_some() && share.peer() == known {
            return;
        }
        self.leave(slot, share);
        let Some(address) = address else { return };
        let peer = known.unwrap_or_else(|| self.add(address));
        let place = &mut self.list[peer as usize];
        place.qps += 1;
        place.waiting.reserve((place.qps as usize).saturating_sub(place.waiting.len()));
        (share.place, share.epoch) = (NonZeroU32::new(peer + 1), place.epoch);
    }

    fn add(&mut self, address: IpAddr) -> u32 {
        // The place of a peer without QPs is used again; its address is forgotten then.
        let free = self.list.iter().position(|peer| peer.qps == 0);
        let index = free.unwrap_or(self.list.len());
        if free.is_none() {
            self.list.push(Peer::new(self.bounds));
            self.ready.reserve(self.list.len());
        }
        let index = u32::try_from(index).expect("no more than QPs");
        self.by_address.retain(|_, peer| *peer != index);
        self.by_address.insert(address, index);
        index
    }

    /// The QP in slot `slot` sends no more.
    pub(super) fn leave(&mut self, slot: u32, share: &mut PeerShare) {
        let share = std::mem::take(share);
        let Some(peer) = share.peer() else { return };
        let place = &mut self.list[peer as usize];
        place.qps -= 1;
        if !place.has_written_off(&share) {
            place.used -= share.outstanding + share.granted;
        }
        if place.qps == 0 {
            place.window = LossWindow::new(self.bounds);
        }
        if share.is_waiting {
            place.waiting.retain(|&other| other != slot);
        }
        self.mark_ready(peer);
    }

    /// Counts what the QP has outstanding now, of which nothing was granted before.
    #[inline]
    pub(super) fn count(&mut self, share: &mut PeerShare, outstanding: u32) {
        let Some(peer) = share.peer().filter(|_| share.outstanding != outstanding) else { return };
        let place = &mut self.list[peer as usize];
        if place.has_written_off(share) {
            let is_progress = outstanding < share.outstanding;
            share.outstanding = outstanding;
            if is_progress {
                place.count_again(share);
            }
            return;
        }
        place.used = place.used + outstanding - share.outstanding;
        share.outstanding = outstanding;
        self.mark_ready(peer);
    }

    /// Returns the packets that the QP may have outstanding, at most `window`, and whether the peer
    /// window sets this limit. If the QP may send, it has a grant afterwards.
    #[inline]
    pub(super) fn limit(&mut self, share: &mut PeerShare, window: u32) -> (u32, bool) {
        let Some(peer) = share.peer() else { return (window, false) };
        let place = &mut self.list[peer as usize];
        if place.has_written_off(share) {
            place.count_again(share);
        }
        if share.granted == 0 && !share.is_waiting && place.waiting.is_empty() {
            share.granted = window.saturating_sub(share.outstanding).min(place.room());
            place.used += share.granted;
        }
        let limit = share.outstanding + share.granted;
        (limit.min(window), limit < window)
    }

    /// The QP has sent within [`Peers::limit`], and has `outstanding` packets outstanding now. If
    /// it `has_more`, it keeps the rest of its grant.
    #[inline]
    pub(super) fn on_sent(&mut self, share: &mut PeerShare, outstanding: u32, has_more: bool) {
        let Some(peer) = share.peer() else { return };
        let place = &mut self.list[peer as usize];
        let sent = outstanding.saturating_sub(share.outstanding);
        let left = if has_more { share.granted.saturating_sub(sent) } else { 0 };
        place.used = place.used - share.outstanding - share.granted + outstanding + left;
        (share.outstanding, share.granted) = (outstanding, left);
        place.window.on_sent(sent);
        self.mark_ready(peer);
    }

    /// Lets the QP in `slot`, which has no grant, wait for one. Returns false if it waits already.
    pub(super) fn wait(&mut self, slot: u32, share: &mut PeerShare) -> bool {
        let Some(peer) = share.peer().filter(|_| !share.is_waiting) else { return false };
        share.is_waiting = true;
        let place = &mut self.list[peer as usize];
        place.has_granted |= place.waiting.is_empty(); // The time of a stall starts now.
        place.waiting.push_back(slot);
        self.mark_ready(peer);
        true
    }

    /// A packet of the QP was lost.
    #[cold]
    pub(super) fn on_loss(&mut self, share: &PeerShare, now: Instant) {
        let Some(peer) = share.peer() else { return };
        self.list[peer as usize].window.on_loss(now);
    }

    /// Looks for stalls; call it every [`STALL`] while it returns true: QPs wait.
    pub(super) fn expire(&mut self) -> bool {
        let mut are_waiting = false;
        for peer in 0..u32::try_from(self.list.len()).expect("no more than QPs") {
            let place = &mut self.list[peer as usize];
            if place.waiting.is_empty() {
                continue;
            }
            are_waiting = true;
            if !std::mem::take(&mut place.has_granted) {
                place.window.reduce();
                (place.used, place.epoch) = (0, place.epoch.wrapping_add(1));
                self.mark_ready(peer);
            }
        }
        are_waiting
    }

    #[inline]
    fn mark_ready(&mut self, peer: u32) {
        let place = &mut self.list[peer as usize];
        if !place.is_ready && !place.waiting.is_empty() && place.room() >= self.grant {
            place.is_ready = true;
            self.ready.push_back(peer);
        }
    }

    /// Returns true if a QP that waits can have a grant.
    #[inline]
    pub(super) fn is_any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The slot of the QP that gets the next grant. The caller calls [`Peers::grant`].
    pub(super) fn next_waiting(&mut self) -> Option<u32> {
        while let Some(&peer) = self.ready.front() {
            let place = &mut self.list[peer as usize];
            if place.room() >= self.grant
                && let Some(slot) = place.waiting.pop_front()
            {
                return Some(slot);
            }
            place.is_ready = false;
            self.ready.pop_front();
        }
        None
    }

    /// Gives the QP, which [`Peers::next_waiting`] has returned, a grant.
    pub(super) fn grant(&mut self, share: &mut PeerShare) {
        let Some(peer) = share.peer() else { return };
        share.is_waiting = false;
        let place = &mut self.list[peer as usize];
        if place.has_written_off(share) {
            place.count_again(share);
        }
        (share.granted, place.has_granted) = (self.grant, true);
        place.used += self.grant;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: WindowBounds = WindowBounds { shortest: 64, longest: 256 };
    /// A quarter of the shortest window.
    const GRANT: u32 = 16;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    fn joined(peers: &mut Peers, slot: u32, host: u8) -> PeerShare {
        let mut share = PeerShare::default();
        peers.join(slot, &mut share, Some(IpAddr::from([10, 0, 0, host])));
        share
    }

    /// Sends all that the window allows, and receives the acknowledgement. Returns the packets.
    fn send_all(peers: &mut Peers, share: &mut PeerShare) -> u32 {
        let (limit, _) = peers.limit(share, 1000);
        peers.on_sent(share, limit, false);
        peers.count(share, 0);
        limit
    }

    #[test]
    fn a_loss_makes_the_window_of_its_peer_shorter_until_it_has_grown_again() {
        let mut peers = Peers::new(BOUNDS);
        let mut share = joined(&mut peers, 0, 1);
        assert_eq!(send_all(&mut peers, &mut share), 256);
        peers.on_loss(&share, at(5000));
        assert_eq!([(); 3].map(|()| send_all(&mut peers, &mut share)), [128, 144, 162]);
        let mut other = joined(&mut peers, 1, 2);
        assert_eq!(send_all(&mut peers, &mut other), 256, "another peer");
    }

    #[test]
    fn qps_that_wait_get_the_next_grants_in_order() {
        let mut peers = Peers::new(BOUNDS);
        let mut shares = [0, 1, 2].map(|slot| joined(&mut peers, slot, 1));
        let [first, second, third] = &mut shares;
        assert_eq!(peers.limit(first, 1000), (256, true));
        peers.on_sent(first, 256, true);
        for (slot, share) in [(1, &mut *second), (2, &mut *third)] {
            assert_eq!(peers.limit(share, 1000), (0, true));
            peers.on_sent(share, 0, false);
            peers.wait(slot, share);
        }
        assert_eq!(peers.next_waiting(), None);
        peers.count(first, 256 - GRANT);
        assert_eq!(peers.limit(first, 1000).0, 256 - GRANT, "others wait");
        assert_eq!(peers.next_waiting(), Some(1));
        peers.grant(second);
        assert_eq!(peers.next_waiting(), None);
        assert_eq!(peers.limit(second, 1000), (GRANT, true));
        // It has less to send, and the next one gets the rest with what is acknowledged.
        peers.on_sent(second, 1, false);
        peers.count(second, 0);
        assert_eq!(peers.next_waiting(), Some(2));
    }

    #[test]
    fn what_a_dead_peer_never_acknowledges_is_written_off() {
        let mut peers = Peers::new(BOUNDS);
        let mut shares = [0, 1].map(|slot| joined(&mut peers, slot, 1));
        let [dead, live] = &mut shares;
        peers.limit(dead, 1000);
        peers.on_sent(dead, 256, true);
        assert!(peers.wait(1, live));
        assert!(peers.expire(), "it looks again");
        assert_eq!(peers.next_waiting(), None, "it has not waited long enough");
        assert!(peers.expire());
        assert_eq!(peers.next_waiting(), Some(1));
        peers.grant(live);
        assert_eq!(peers.limit(live, 1000), (GRANT, true));
        peers.on_sent(live, GRANT, false);
        assert_eq!(peers.list[0].used, GRANT);
        assert!(!peers.expire(), "no QP waits");
        // Progress, or another packet, makes it count again.
        peers.count(dead, 255);
        assert_eq!(peers.list[0].used, GRANT + 255);
        peers.leave(0, dead);
        peers.leave(1, live);
        assert_eq!(peers.list[0].used, 0);
    }

    #[test]
    fn a_qp_that_leaves_frees_its_packets_and_its_place_in_the_queue() {
        let mut peers = Peers::new(BOUNDS);
        let mut shares = [0, 1, 2].map(|slot| joined(&mut peers, slot, 1));
        let [first, second, third] = &mut shares;
        peers.limit(first, 1000);
        peers.on_sent(first, 200, true);
        peers.wait(1, second);
        peers.wait(2, third);
        peers.leave(1, second);
        peers.leave(0, first);
        assert_eq!(peers.next_waiting(), Some(2));
        peers.grant(third);
        peers.leave(2, third);
        assert_eq!(peers.list[0].used, 0);
        let mut other = joined(&mut peers, 3, 9);
        assert_eq!((peers.list.len(), peers.limit(&mut other, 1000).0), (1, 256));
    }
}
