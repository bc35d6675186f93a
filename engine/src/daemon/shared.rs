//! The state that the threads of a daemon share, and the loop of the thread that runs the switch.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_wire::MacAddr;

use super::client::ClientId;
use super::switch::Switch;
use crate::device::Addressing;
use crate::device::ports::Filter;
use crate::idle_policy::{Host, IdleTurns, Step};
use crate::net::GidEntry;
use crate::port::daemon::channel;
use crate::port::daemon::limits::Limits;
use crate::port::daemon::protocol::{DaemonStat, Message, Notice};
use crate::sys;
use crate::time::{Clock, Instant};
use crate::wake::EventFd;

/// A next hop of clients' paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextHop {
    /// VLAN of the frames to it.
    pub(super) vlan: Option<u16>,
    /// The Ethernet address that was sent to the clients last.
    pub(super) mac: MacAddr,
}

/// The next hops of clients' paths, by interface and address. Only hosts that have answered since
/// the start of the daemon are entered.
pub(super) type NextHops = BTreeMap<(u32, IpAddr), NextHop>;

/// The state that the threads of a daemon share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) interface: String,
    pub(super) switch: Mutex<Switch>,
    /// Number of threads that wait for the switch.
    pub(super) waiters: AtomicU32,
    pub(super) addressing: Addressing,
    pub(super) filter: Option<Filter>,
    /// Held while the filter is set.
    pub(super) filtering: Mutex<()>,
    pub(super) hops: Mutex<NextHops>,
    pub(super) limits: Limits,
    pub(super) window_max: Option<u32>,
    pub(super) clock: Clock,
    /// Sockets of the clients, for notices.
    pub(super) sockets: Mutex<BTreeMap<ClientId, Arc<OwnedFd>>>,
    pub(super) stop: AtomicBool,
    /// The interface is gone, or the program that selects the frames of the port.
    pub(super) is_lost: AtomicBool,
    /// Wakes the switch.
    pub(super) wake_switch: EventFd,
    /// Wakes the control thread.
    pub(super) wake_control: EventFd,
    pub(super) polls: bool,
}

impl Shared {
    /// Calls `act` with the switch, between two turns.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Switch) -> R) -> R {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut switch = self.lock_switch();
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        let result = act(&mut switch);
        drop(switch);
        self.wake_switch.signal();
        result
    }

    pub(super) fn lock_switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The port is lost: the daemon must end.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The GID table.
    pub(super) fn gids(&self) -> Vec<GidEntry> {
        self.addressing.gids().into_iter().map(|(_, entry)| entry).collect()
    }

    /// Index of the interface; `None` if the kernel has none.
    pub(super) fn index(&self) -> Option<u32> {
        let Addressing::Kernel(kernel) = &self.addressing else { return None };
        Some(kernel.table.read().unwrap_or_else(PoisonError::into_inner).device())
    }

    /// Returns true if `ip` is an address of the host.
    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        self.addressing.is_own(ip.into())
    }

    /// Sends `notice` to all clients. A client that does not read its messages misses the notice.
    pub(super) fn notify(&self, notice: &Notice) {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, socket) in &*sockets {
            let sent = channel::send(socket.as_fd(), &Message::Notice(notice.clone()), &[]);
            if let Err(error) = sent {
                tracing::debug!(?id, %error, "a client misses a notice");
            }
        }
    }

    /// Statistics, with the programs of `user`; `None`: of all users.
    pub(super) fn stat(&self, user: Option<u32>) -> DaemonStat {
        let now = self.now();
        self.with(|switch| {
            let port = switch.port_stats();
            DaemonStat {
                port: switch.attributes().kind.clone(),
                rx_frames: port.rx_frames,
                rx_bytes: port.rx_bytes,
                rx_dropped: port.rx_dropped,
                rx_undelivered: switch.tables.undelivered,
                tx_frames: port.tx_frames,
                tx_bytes: port.tx_bytes,
                programs: switch.tables.programs(user),
                users: switch.tables.users(user, now),
                limits: Some(self.limits),
            }
        })
    }

    /// Runs the switch until the daemon ends.
    pub(super) fn run_switch(&self) {
        let (mut fds, mut scratch) = (Vec::new(), Vec::new());
        let mut idle =
            IdleTurns::new(self.polls, Host { is_slow: false, has_one_cpu: sys::has_one_cpu() });
        while !self.is_stopping() {
            if self.waiters.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let moved = self.lock_switch().turn(self.now());
            match idle.next(moved > 0) {
                Step::Sleep => self.sleep(&mut fds, &mut scratch),
                Step::Yield => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    fn sleep(&self, fds: &mut Vec<i32>, scratch: &mut Vec<libc::pollfd>) {
        fds.clear();
        fds.push(self.wake_switch.as_fd().as_raw_fd());
        let mut switch = self.lock_switch();
        let is_quiet = switch.arm(fds);
        let deadline = switch.next_deadline();
        drop(switch);
        if is_quiet {
            let timeout = deadline.map(|at| at.saturating_since(self.now()));
            sys::poll_readable(fds, scratch, timeout);
        }
        self.wake_switch.clear();
        self.lock_switch().disarm();
    }
}
