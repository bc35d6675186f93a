//! The helper thread of a core: turns it when nobody else does, so that a program that never polls still
//! answers READs and sees WRITEs arrive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use super::{DeviceInner, Driver};
use crate::sys;
use crate::time::{Clock, Duration, Instant};

/// Idle turns before the helper yields the CPU between turns.
const SPINS: u32 = 64;
/// Idle turns before it sleeps on the port.
const YIELDS: u32 = 512;
/// Turns by other threads after which it leaves the core to them for a moment.
const DRIVEN: u64 = 8;
/// How long it keeps out of the way of a thread that polls, at first. Each nap that ends with the thread
/// still polling doubles the next: waking up costs a busy CPU microseconds, twice for two ends of a link.
const SHORTEST_NAP: Duration = Duration::from_micros(100);
/// How long at most: a program that polled and now only spins on its memory waits so long once.
const LONGEST_NAP: Duration = Duration::from_micros(800);
/// A thread that turned the core so short a time ago still polls.
const STILL_POLLS: Duration = Duration::from_micros(100);
/// Longest sleep: a bound on what a lost wake-up could cost.
const SLEEP: Duration = Duration::from_millis(100);

/// Starts the helper of core `core`.
pub(super) fn start(
    device: Arc<DeviceInner>,
    core: usize,
    driver: &Driver,
    clock: Clock,
) -> std::io::Result<JoinHandle<()>> {
    let pin = match driver {
        Driver::SpinningHelper(cpus) => Some(cpus.get(core).copied()),
        _ => None,
    };
    let name = format!("feroce-{core}");
    std::thread::Builder::new().name(name).spawn(move || {
        if let Some(Some(id)) = pin {
            let pinned = core_affinity::set_for_current(core_affinity::CoreId { id });
            if !pinned {
                tracing::warn!(core, cpu = id, "cannot pin the helper");
            }
        }
        run(&device, core, clock, pin.is_some());
    })
}

fn run(device: &DeviceInner, core: usize, clock: Clock, spins: bool) {
    let mut idle = 0;
    let mut driven = 0;
    let mut nap = SHORTEST_NAP;
    let mut sleeper = Sleeper::default();
    let cell = &device.cores[core];
    while !device.stop.load(Ordering::Relaxed) {
        if cell.waiters.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now(); // Control calls go first.
        }
        let done = match cell.try_lock() {
            Some(mut token) => token.turn(clock.now()),
            None => 0,
        };
        idle = if done > 0 { 0 } else { u32::saturating_add(idle, 1) };
        let now_driven = cell.driven.load(Ordering::Relaxed);
        if !spins && now_driven.wrapping_sub(driven) >= DRIVEN {
            // Also when there was something to do: two threads that share the work only fight for it.
            driven = now_driven;
            nap = match cell.driven_within(STILL_POLLS, clock.now()) {
                true => (nap * 2).min(LONGEST_NAP),
                false => SHORTEST_NAP,
            };
            sleeper.nap(cell, nap);
        } else if spins || idle < SPINS {
            std::hint::spin_loop();
        } else if idle < YIELDS {
            std::thread::yield_now();
        } else {
            sleeper.sleep(cell, clock);
            idle = 0;
        }
    }
}

/// Buffers for sleeping.
#[derive(Debug, Default)]
struct Sleeper {
    fds: Vec<std::os::fd::RawFd>,
    scratch: Vec<libc::pollfd>,
}

impl Sleeper {
    /// Leaves the core to whoever polls, for a moment.
    fn nap(&mut self, cell: &super::CoreCell, nap: Duration) {
        self.fds.clear();
        self.fds.push(cell.wake_fd());
        sys::poll_readable(&self.fds, &mut self.scratch, Some(nap));
        cell.doorbell.disarm();
    }

    /// Sleeps until a frame, a doorbell or a deadline.
    fn sleep(&mut self, cell: &super::CoreCell, clock: Clock) {
        self.fds.clear();
        let Some(mut token) = cell.try_lock() else { return };
        let quiet = token.arm_wakeup(&mut self.fds);
        let now = clock.now();
        let until = token.next_deadline(now).unwrap_or(Instant::FAR).min(now + SLEEP);
        // Under the token: whoever has it next and leaves something earlier to do wakes us.
        cell.sleeps_until.store(until.as_nanos(), Ordering::Relaxed);
        drop(token);
        if quiet {
            let most = until.saturating_since(now);
            sys::poll_readable(&self.fds, &mut self.scratch, Some(most));
        }
        cell.sleeps_until.store(0, Ordering::Relaxed);
        cell.lock().disarm_wakeup();
    }
}
