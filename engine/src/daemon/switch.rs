//! The switch: moves frames between the port and the rings of the clients.
//!
//! # A turn
//! 1. A burst of the port is delivered: each frame is copied into the ring of the client that has
//!    its QP.
//! 2. The clients' frames are sent, by deficit round robin: in each round a client may send
//!    [`QUANTUM`] bytes more. Frames without data (ACKs, CNPs, READ requests) do not wait for the
//!    next round. A frame is copied into a slot of the port first and checked there, where the
//!    client cannot change it any more.
//! 3. The daemon's own frames are sent: messages of communication management, and NAKs.
//! 4. The clients' rings are published and the port is flushed, once each.
//!
//! Step 2 ends after [`BURST`] frames, or when the port has no room. The next turn then goes on
//! with the same client.

use std::os::fd::RawFd;

use feroce_wire::Packet;

use super::admission::{Destination, Dscps, HostAddresses};
use super::client::{Client, ClientId, Origin};
use super::cm_router::CmRouter;
use super::frames::{MAD_FRAME_MAX, ipv4_payload_len, set_identification};
use super::super_frame::SuperFrameCheck;
use super::tables::Tables;
use crate::port::daemon::limits::Limits;
use crate::port::{Port, PortAttributes, PortStats, Priority};
use crate::time::Instant;

/// Bytes that a client may send in a round: a super-frame.
const QUANTUM: isize = 64 << 10;

/// Maximum of a client's deficit counter: one quantum, and what the client has saved.
const DEFICIT_MAX: isize = 2 * QUANTUM;

/// Length in bytes up to which a frame counts as one without data.
const WITHOUT_DATA: usize = 128;

/// Maximum number of clients' frames in a turn.
const BURST: usize = 120;

/// Maximum number of bursts in a drain: together more than a ring holds.
const DRAIN_ROUNDS: usize = 16;

/// The port and the clients.
#[derive(Debug)]
pub(super) struct Switch {
    port: Box<dyn Port>,
    /// The link sets the IPv4 identification of packets: see [`Port::tx_identification`].
    link_sets_id: bool,
    /// Number of frames queued since the last flush.
    queued: usize,
    pub(super) tables: Tables,
    /// Place of the client that sends next; the round continues from there.
    next: usize,
    /// The previous turn ended while that client was sending: the client goes on without another
    /// quantum.
    is_interrupted: bool,
}

impl Switch {
    /// A switch without clients. `random` chooses the QP numbers that clients get: see
    /// [`SliceTable::new`](super::slices::SliceTable::new).
    pub(super) fn new(
        port: Box<dyn Port>,
        router: CmRouter,
        (limits, dscps): (Limits, Dscps),
        random: u32,
    ) -> Self {
        let link_sets_id = port.tx_identification(MAD_FRAME_MAX, false).is_some();
        let mut host = HostAddresses::default();
        host.add_mac(port.attributes().mac);
        let tables = Tables::new(router, host, (limits, dscps), random);
        Self { port, link_sets_id, queued: 0, tables, next: 0, is_interrupted: false }
    }

    pub(super) fn attributes(&self) -> &PortAttributes {
        self.port.attributes()
    }

    pub(super) fn port_stats(&self) -> PortStats {
        self.port.stats()
    }

    /// Runs a turn. Returns the number of frames moved.
    pub(super) fn turn(&mut self, now: Instant) -> usize {
        let moved = self.receive(now) + self.forward(now) + self.send_own_frames(now);
        self.tables.places.iter_mut().flatten().for_each(Client::publish);
        self.flush();
        moved
    }

    fn receive(&mut self, now: Instant) -> usize {
        let burst = self.port.rx_burst();
        for index in 0..burst {
            let frame = self.port.rx_frame(index);
            self.tables.deliver(frame.first, frame.second, Origin::Link, now);
        }
        burst
    }

    /// Sends frames of the clients. Returns their number.
    fn forward(&mut self, now: Instant) -> usize {
        let places = self.tables.places.len();
        let (mut sent, mut idle) = (0, 0);
        let mut super_frame = SuperFrameCheck::default();
        while idle < places && sent < BURST {
            let place = self.next % places;
            let Some(client) = &mut self.tables.places[place] else {
                (idle, self.next, self.is_interrupted) = (idle + 1, self.next + 1, false);
                continue;
            };
            if client.next_len().is_none() {
                client.deficit = client.deficit.min(0);
                (idle, self.next, self.is_interrupted) = (idle + 1, self.next + 1, false);
                continue;
            }
            if !std::mem::take(&mut self.is_interrupted) {
                client.deficit = (client.deficit + QUANTUM).min(DEFICIT_MAX);
            }
            let most = BURST - sent;
            let (done, is_blocked) = self.forward_from(place, most, true, &mut super_frame, now);
            sent += done;
            idle = if done > 0 { 0 } else { idle + 1 };
            self.is_interrupted = is_blocked || done == most;
            if self.is_interrupted {
                break;
            }
            self.next += 1;
        }
        sent
    }

    /// Sends up to `most` frames of the client at `place`. `is_limited`: no more bytes than the
    /// client's deficit counter allows. Returns how many, and whether sending is blocked: the port
    /// has no room, or in a drain the user's rate is used up.
    fn forward_from(
        &mut self,
        place: usize,
        most: usize,
        is_limited: bool,
        super_frame: &mut SuperFrameCheck,
        now: Instant,
    ) -> (usize, bool) {
        for done in 0..most {
            let Some(client) = &mut self.tables.places[place] else { return (done, false) };
            let Some(len) = client.next_len() else {
                client.deficit = client.deficit.min(0);
                return (done, false);
            };
            let cost = len.cast_signed();
            if is_limited && cost > client.deficit && len > WITHOUT_DATA {
                return (done, false);
            }
            let was_throttled = client.throttled_until.take().is_some();
            if let Some(rate) = self.tables.rates.get_mut(&client.credentials.user)
                && let Err(until) = rate.take(len, now)
            {
                client.throttled_until = Some(until);
                client.stats.tx_throttled += u64::from(!was_throttled);
                return (done, !is_limited);
            }
            let Some(slot) = self.port.tx_slot() else { return (done, true) };
            if !is_limited || cost <= client.deficit {
                client.deficit = client.deficit.saturating_sub(cost);
            }
            let Some((len, priority, joins)) = client.take(slot) else {
                client.stats.tx_refused += 1;
                continue;
            };
            let id = client.id;
            match self.tables.admit(place, &slot[..len], now) {
                Ok(Destination::Host) => {
                    self.tables.deliver(&slot[..len], &[], Origin::Host(None), now);
                }
                Ok(Destination::Group(_)) => {
                    super_frame.end();
                    self.tables.deliver(&slot[..len], &[], Origin::Host(Some(id)), now);
                    self.commit(len, priority, false);
                }
                Ok(Destination::Link) => {
                    let joins = super_frame.follows(id, &slot[..len], joins);
                    self.commit(len, priority, joins);
                }
                Err(_) => {}
            }
        }
        (most, false)
    }

    /// Sends the frames in a client's ring before the client is removed or its permits change: the
    /// client has sent these frames while it had the permits. Their bytes count towards the next
    /// rounds of the client. Returns true if no frame is left.
    pub(super) fn drain(&mut self, id: ClientId, now: Instant) -> bool {
        let Some(place) = self.tables.by_id.get(&id).copied() else { return true };
        let mut super_frame = SuperFrameCheck::default();
        for _ in 0..DRAIN_ROUNDS {
            let (sent, is_blocked) = self.forward_from(place, BURST, false, &mut super_frame, now);
            super_frame.end();
            self.flush();
            if sent == 0 || is_blocked {
                return !is_blocked;
            }
        }
        false
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.queued) > 0
            && let Err(error) = self.port.flush()
        {
            tracing::debug!(%error, "the port cannot send");
        }
    }

    /// Queues the frame of `len` bytes in the slot.
    fn commit(&mut self, len: usize, priority: Priority, joins: bool) {
        if self.link_sets_id {
            let slot = self.port.tx_slot().expect("the slot that was not committed");
            if let Some(payload) = ipv4_payload_len(&slot[..len]) {
                let id = self.port.tx_identification(payload, joins).unwrap_or(0);
                let slot = self.port.tx_slot().expect("the slot that was not committed");
                set_identification(&mut slot[..len], id);
            }
        }
        match joins {
            true => self.port.tx_commit_next(len, priority),
            false => self.port.tx_commit(len, priority),
        }
        self.queued += 1;
    }

    /// Sends the daemon's own frames. Returns their number.
    fn send_own_frames(&mut self, now: Instant) -> usize {
        self.tables.collect_own_frames(now);
        let own_frames = std::mem::take(&mut self.tables.own_frames);
        for frame in &own_frames {
            let Ok(packet) = Packet::parse(frame, &[]) else { continue };
            if self.tables.host.is_own(packet.ip.dst()) {
                self.tables.deliver(frame, &[], Origin::Host(None), now);
            } else if let Some(slot) = self.port.tx_slot() {
                slot[..frame.len()].copy_from_slice(frame);
                self.commit(frame.len(), Priority::default(), false);
            } // Without room the frame is lost, as on a link: the router repeats its messages.
        }
        own_frames.len()
    }

    /// When the next turn is due, even if no frame arrives.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let throttled = self.tables.clients().filter_map(|client| client.throttled_until);
        throttled.chain(self.tables.next_deadline()).min()
    }

    /// Prepares to sleep until there are frames, and appends the descriptors to wait for. Returns
    /// false if there are frames already: do not sleep. Undone by [`Self::disarm`].
    pub(super) fn arm(&mut self, fds: &mut Vec<RawFd>) -> bool {
        let mut is_quiet = self.port.arm_wakeup(fds);
        for client in self.tables.places.iter_mut().flatten() {
            is_quiet &= client.arm(fds);
        }
        is_quiet
    }

    /// Undoes [`Self::arm`].
    pub(super) fn disarm(&mut self) {
        self.port.disarm_wakeup();
        self.tables.places.iter_mut().flatten().for_each(Client::disarm);
    }
}
