//! A core: one thread's share of the engine, with a port, queue pairs and timers of its own.
//!
//! A core is driven by [`Core::turn`], which the holder of its token may call. A turn reads the
//! clock once, then handles: doorbells, frames out, the port's doorbell, frames in, frames handed
//! over by other cores, frames that were sent to the device itself, timers. Sending is before
//! receiving: if a program replies to a message at once, its reply is on the link before the
//! acknowledgement of that message. Timers are last: an acknowledgement that has arrived stops its
//! timer, even if the core did not run for a while. Nothing in a turn blocks, locks or allocates.

mod congestion;
mod doorbell;
mod loopback;
mod loss_window;
mod multicast;
mod pause;
mod peers;
mod read_window;
mod receive;
mod shared;
mod slot;
mod super_frame;
mod transmit;

use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

pub use doorbell::Doorbell;
use feroce_wire::Qpn;
pub use loopback::Loopback;
pub use multicast::Member;
pub use shared::{CoreShared, Handover, QpnMap, SLICE, Windows};
use slot::{Expired, Schedule, Slot};
use zerocopy::FromZeros;

use crate::congestion::CoreCongestion;
use crate::pfc::CorePfc;
use crate::port::{Port, RX_BURST};
use crate::qp::{AnyQp, Env, QpSnapshot, SrqTable};
use crate::time::Instant;
use crate::verbs::CqRing;

/// See the [module](self).
#[derive(Debug)]
pub struct Core {
    id: usize,
    port: Box<dyn Port>,
    shared: CoreShared,
    slots: Vec<Option<Box<Slot>>>,
    /// Number of QPs of connected services.
    connected: usize,
    schedule: Schedule,
    doorbell: Arc<Doorbell>,
    handover: Handover,
    /// CQs with notification moderation, which delays notifications.
    moderated: Vec<Weak<CqRing>>,
    loopback: Loopback,
    groups: multicast::Groups,
    /// `None` without congestion control.
    congestion: Option<Box<CoreCongestion>>,
    /// `None` without flow control.
    pfc: Option<Box<CorePfc>>,
    /// Next IPv4 identification. It counts up and skips 0, as that of a ConnectX does.
    ip_id: u16,
    /// Since when the port has had no room for waiting packets; `None` if it has room.
    full_since: Option<Instant>,
    port_failed: bool,
    /// True if the port chooses the IPv4 identifications: [`Port::tx_identification`].
    link_sets_id: bool,
}

impl Core {
    /// Core number `id`, on `port`.
    pub fn new(
        id: usize,
        port: Box<dyn Port>,
        shared: CoreShared,
        doorbell: Arc<Doorbell>,
        handover: Handover,
        loopback: Loopback,
        now: Instant,
    ) -> Self {
        let count = shared.qpns.slots();
        // Memory of zeros, which is not resident until it is used.
        let slots = FromZeros::new_vec_zeroed(count).expect("memory");
        let link_rate = port.attributes().link_rate;
        let link_sets_id = port.tx_identification(0, false).is_some();
        let pfc = CorePfc::new(id, shared.pfc, &shared.xoff_requesters, link_rate, count);
        Self {
            id,
            congestion: CoreCongestion::new(&shared.congestion, link_rate).map(Box::new),
            pfc: pfc.map(Box::new),
            port,
            slots,
            connected: 0,
            schedule: Schedule::new(count, shared.windows, now),
            shared,
            doorbell,
            handover,
            moderated: Vec::new(),
            loopback,
            groups: multicast::Groups::default(),
            ip_id: 1,
            link_sets_id,
            full_since: None,
            port_failed: false,
        }
    }

    /// One turn at the time `now`. Returns the amount of work done: 0 means that the core was idle.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.shared.recent.start_turn(now);
        let mut done = self.handle_doorbells(now);
        done += self.transmit(now);
        let received = self.receive(now);
        self.request_pause_by_fill(received, now);
        done += received;
        done += self.receive_handed_over(now);
        done += self.receive_loopback(now);
        done += self.expire_timers(received == RX_BURST, now);
        self.notify_moderated(now);
        done
    }

    /// Time of the next turn that has work although no frame arrives; `None` if there is none.
    /// `now` if there is something to send, except for CNPs that the port has no room for.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if self.schedule.can_send() {
            return Some(now);
        }
        let notifications = self.moderated.iter().filter_map(|cq| cq.upgrade()?.notification_due());
        let cnps = self.cnps_due().map(|due| due.max(now));
        notifications.chain(self.schedule.wheel.next_deadline_hint()).chain(cnps).min()
    }

    /// When a sleeping helper must run a turn at the latest: the next deadline, or at once if there
    /// are frames to this host, or the port holds something that does not wake the helper.
    pub fn next_turn(&self, now: Instant) -> Option<Instant> {
        let is_unfinished = self.loopback.has_frames() || self.port.is_unfinished();
        if is_unfinished { Some(now) } else { self.next_deadline(now) }
    }

    /// Returns true if something is to be sent and does not only wait for room in the port.
    fn can_send(&self) -> bool {
        self.cnps_due() == Some(Instant::ZERO) || self.schedule.can_send()
    }

    /// The shared receive queues of the XRC service.
    pub fn srqs(&mut self) -> &mut SrqTable {
        &mut self.shared.srqs
    }

    /// From now on, delivers the notifications that `cq` delays for moderation.
    pub fn watch_moderated(&mut self, cq: &Arc<CqRing>) {
        let other = |known: &Weak<CqRing>| {
            known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(cq))
        };
        self.moderated.retain(other);
        self.moderated.push(Arc::downgrade(cq));
    }

    fn notify_moderated(&mut self, now: Instant) {
        for cq in self.moderated.iter().filter_map(Weak::upgrade) {
            cq.notify_if_due(now);
        }
    }

    /// The port of this core.
    pub fn port(&self) -> &dyn Port {
        &*self.port
    }

    /// Puts a QP into slot `slot`. `posted` is set when the program posts to the QP.
    ///
    /// # Panics
    /// If the slot is taken.
    pub fn insert(&mut self, slot: u32, qp: AnyQp, posted: Arc<AtomicBool>) {
        let place = &mut self.slots[slot as usize];
        assert!(place.is_none(), "slot taken");
        self.connected += usize::from(matches!(qp, AnyQp::Connected(_)));
        self.schedule.reads.reserve(self.connected);
        *place = Some(Box::new(Slot::new(qp, posted, self.congestion.as_deref())));
    }

    /// Takes the QP out of slot `slot`. From now on the core does not use it, and no completion of
    /// it can be polled, as with the providers of RNICs: rdma-core's `mlx5_destroy_qp`.
    pub fn remove(&mut self, slot: u32, now: Instant) -> Option<AnyQp> {
        self.drain(slot, now); // Leaves no entry of this QP in the doorbell's queue.
        let place = self.slots[slot as usize].take();
        self.schedule.remove(slot);
        if let Some(pfc) = &mut self.pfc {
            pfc.remove(slot);
        }
        place.map(|mut place| {
            self.schedule.peers.leave(slot, &mut place.share);
            self.schedule.reads.leave(slot, &mut place.read_share);
            place.qp.remove_completions();
            self.connected -= usize::from(matches!(place.qp, AnyQp::Connected(_)));
            if self.connected == 0 {
                self.schedule.reads.reset();
            }
            place.qp
        })
    }

    /// Calls `act` on the QP in slot `slot`, and lets the QP send afterwards.
    pub fn with_qp<R>(
        &mut self,
        slot: u32,
        now: Instant,
        act: impl FnOnce(&mut AnyQp, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let place = self.slots[slot as usize].as_deref_mut()?;
        self.shared.recent.forget();
        let mut env = self.shared.env(now);
        let result = act(&mut place.qp, &mut env);
        self.schedule.peers.join(slot, &mut place.share, place.qp.window_peer());
        place.reschedule(slot, &mut self.schedule);
        Some(result)
    }

    /// Appends snapshots of the QPs from slot `from` on, as many as `out` has room for without
    /// allocation. Returns the slot to continue with; `None` after the last.
    pub fn snapshots(&self, from: u32, out: &mut Vec<QpSnapshot>, now: Instant) -> Option<u32> {
        for (slot, place) in (from..).zip(self.slots.get(from as usize..)?) {
            let Some(place) = place else { continue };
            if out.len() == out.capacity() {
                return Some(slot);
            }
            out.push(place.snapshot(now));
        }
        None
    }

    /// A snapshot of the QP in slot `slot`.
    pub fn snapshot(&self, slot: u32, now: Instant) -> Option<QpSnapshot> {
        self.slots.get(slot as usize)?.as_deref().map(|place| place.snapshot(now))
    }

    /// Lets `member` receive the datagrams to `group`; no effect if it is a member already.
    pub fn attach(&mut self, group: IpAddr, member: Member) {
        self.groups.attach(group, member);
    }

    /// The QP `qpn` no longer receives the datagrams to `group`.
    pub fn detach(&mut self, group: IpAddr, qpn: Qpn) {
        self.groups.detach(group, qpn);
    }

    /// Arms every source of wake-ups and appends their descriptors. Returns false if there is work
    /// already.
    pub fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        fds.push(self.doorbell.fd().as_raw_fd());
        let mut is_quiet = self.doorbell.arm() && !self.can_send();
        for inbox in &mut self.handover.inbox {
            is_quiet &= inbox.arm();
            fds.push(inbox.fd());
        }
        is_quiet && self.port.arm_wakeup(fds)
    }

    /// Arms only the port: see [`Core::arm_wakeup`].
    pub fn arm_port(&mut self, fds: &mut Vec<RawFd>) -> bool {
        !self.can_send() && self.port.arm_wakeup(fds)
    }

    /// Undoes [`Core::arm_port`].
    pub fn disarm_port(&mut self) {
        self.port.disarm_wakeup();
    }

    /// Undoes [`Core::arm_wakeup`].
    pub fn disarm_wakeup(&mut self) {
        self.doorbell.disarm();
        for inbox in &mut self.handover.inbox {
            inbox.disarm();
        }
        self.port.disarm_wakeup();
    }

    fn handle_doorbells(&mut self, now: Instant) -> usize {
        let mut done = 0;
        while let Some(slot) = self.doorbell.next() {
            done += 1;
            let Some(place) = self.slots[slot as usize].as_deref_mut() else { continue };
            // Cleared before the work queue is read: a later post rings again.
            place.posted.swap(false, Ordering::AcqRel);
            let mut env = self.shared.env(now);
            place.qp.handle_doorbell(&mut env);
            place.reschedule(slot, &mut self.schedule);
        }
        done
    }

    /// `frames_wait`: the port may have more frames than this turn has received.
    fn expire_timers(&mut self, frames_wait: bool, now: Instant) -> usize {
        let mut done = 0;
        while let Some(expired) = self.schedule.pop_expired(now) {
            done += 1;
            match expired {
                Expired::Slot(slot) => self.expire_slot(slot, frames_wait, now),
                Expired::NotificationPoints => self.expire_points(now),
                Expired::Pauses => self.expire_pauses(now),
                Expired::Windows => self.schedule.expire_windows(now),
            }
        }
        done
    }

    fn expire_slot(&mut self, slot: u32, frames_wait: bool, now: Instant) {
        let Some(place) = self.slots[slot as usize].as_deref_mut() else { return };
        place.armed = Instant::FAR;
        place.expire_sender(&mut self.congestion, now);
        let mut env = self.shared.env(now);
        place.qp.handle_timeout(frames_wait, &mut env);
        self.schedule.on_lost_responses(&env);
        place.reschedule(slot, &mut self.schedule);
    }
}
