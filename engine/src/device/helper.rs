//! The helper thread of a core. It runs the core when no other thread does, so that a program that
//! never polls still responds to READs and receives WRITEs.
//!
//! # Idle policy
//!
//! After turns without work the helper spins ([`SPINS`] turns), then yields the CPU between turns
//! ([`YIELDS`]), then sleeps on the port's descriptors. When another thread runs the core, the
//! helper leaves the core to that thread for a while ([`Backoff`]), because two threads that share
//! the work only compete for the token. If frames arrive while no thread polls, the helper sleeps
//! on the port instead of backing off ([`PortSleep`]).
//!
//! The helper does not run on CPUs that threads of the program are bound to, even if the program
//! binds them later ([`PLACEMENT_INTERVAL`]). A helper with a CPU of its own stays there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use super::{DeviceInner, Driver};
use crate::pfc::PfcConfig;
use crate::sys;
use crate::time::{Clock, Duration, Instant};

/// Idle turns before the helper yields the CPU between turns.
const SPINS: u32 = 64;
/// Idle turns before the helper sleeps on the port.
const YIELDS: u32 = 512;
/// Turns by other threads after which the helper backs off.
const DRIVEN_TURNS: u64 = 8;
/// Turns by other threads during a backoff after which the helper backs off again without a turn of
/// its own.
const BUSY_TURNS: u64 = 4;
/// First backoff. Each backoff after which another thread still polls doubles the next one: waking
/// up costs a busy CPU microseconds, and twice that for two ends of a link on one machine.
const MIN_BACKOFF: Duration = Duration::from_micros(100);
/// Maximum backoff. A program that polled and now only spins on its memory waits at most twice this
/// time for the helper.
const MAX_BACKOFF: Duration = Duration::from_micros(800);
/// Maximum backoff while other threads move bulk data; small against the default ACK timeout of 67
/// ms. Not used if the device sends PFC pauses: a pause may be shorter than this backoff, and only
/// a turn can request the next one.
const MAX_BULK_BACKOFF: Duration = Duration::from_millis(5);
/// A thread that ran the core within this time still polls.
const STILL_POLLING: Duration = Duration::from_micros(100);
/// If work has waited for this time, the thread that polled does something else now.
const UNATTENDED: Duration = Duration::from_micros(20);
/// Interval at which a helper looks for threads of the program that were bound to its CPU.
const PLACEMENT_INTERVAL: Duration = Duration::from_secs(1);
/// Turns after which a helper that never sleeps reads the clock for [`PLACEMENT_INTERVAL`].
const PLACEMENT_TURNS: u32 = 1024;
/// Maximum sleep; bounds the cost of a lost wake-up.
const MAX_SLEEP: Duration = Duration::from_millis(100);

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
    // Other helpers do not run on the CPU of a helper that polls.
    let name = if pin.is_some() { "feroce-poll" } else { "feroce" };
    feroce_threads::spawn_placed(&format!("{name}-{core}"), move |placement| {
        let mut sleeper = Sleeper::new(placement, clock);
        if let Some(Some(cpu)) = pin {
            match feroce_threads::pin(cpu) {
                Ok(()) => sleeper.place_at = Instant::FAR,
                Err(error) => tracing::warn!(core, cpu, %error, "cannot pin the helper"),
            }
        }
        run(&device, core, clock, pin.is_some(), sleeper);
    })
}

/// Decides whether the helper sleeps on the port's descriptors instead of backing off.
///
/// A program that polls for its completion and then spins on its memory, as latency tests of WRITEs
/// do, polls often enough to make the helper back off. Its incoming frames then wait for the end of
/// the backoff. In that case the helper sleeps on the port, as long as the sleep ends with work for
/// the helper. If the program takes most frames itself, each wake-up only costs the program CPU
/// time.
#[derive(Debug, Default)]
struct PortSleep {
    /// The helper sleeps on the port while this is above 0.
    score: u8,
}

impl PortSleep {
    const MAX_SCORE: u8 = 8;

    fn is_preferred(&self) -> bool {
        self.score > 0
    }

    /// Records the first turn after `action`: `done` units of work, and whether another thread was
    /// in a turn recently (`attended`).
    fn record(&mut self, action: IdleAction, done: usize, attended: bool) {
        self.score = match (action, done > 0) {
            (IdleAction::BackedOff, true) if !attended => Self::MAX_SCORE,
            (IdleAction::SleptOnPort, true) => (self.score + 2).min(Self::MAX_SCORE),
            (IdleAction::SleptOnPort, false) => self.score.saturating_sub(1),
            _ => self.score,
        };
    }
}

/// How long the helper leaves the core to a thread that polls.
#[derive(Debug)]
struct Backoff {
    last: Duration,
    /// Long turns by other threads at the last update.
    long_turns: u64,
    /// Maximum while other threads move bulk data.
    longest: Duration,
}

impl Backoff {
    fn new(pfc: &PfcConfig) -> Self {
        let requests_pauses = pfc.thresholds.is_some();
        let longest = if requests_pauses { MAX_BACKOFF } else { MAX_BULK_BACKOFF };
        Self { last: MIN_BACKOFF, long_turns: 0, longest }
    }

    /// Returns to the shortest backoff: no other thread polls. `long_turns`: long turns by other
    /// threads so far.
    fn reset(&mut self, long_turns: u64) {
        (self.last, self.long_turns) = (MIN_BACKOFF, long_turns);
    }

    /// Returns the next backoff. `polls`: another thread still polls. `long_turns`: its long turns
    /// so far.
    fn next(&mut self, polls: bool, long_turns: u64) -> Duration {
        let moved = long_turns.wrapping_sub(std::mem::replace(&mut self.long_turns, long_turns));
        let longest = if moved >= BUSY_TURNS { self.longest } else { MAX_BACKOFF };
        self.last = if polls { (self.last * 2).min(longest) } else { MIN_BACKOFF };
        self.last
    }
}

/// What the helper did before a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleAction {
    None,
    BackedOff,
    SleptOnPort,
}

fn run(device: &DeviceInner, core: usize, clock: Clock, spins: bool, mut sleeper: Sleeper) {
    let (mut idle, mut driven) = (0, 0);
    let mut backoff = Backoff::new(&device.config.pfc);
    let (mut port_sleep, mut action) = (PortSleep::default(), IdleAction::None);
    // Failed attempts in a row to take the token: another thread is in a long turn, of about 100 us
    // for bulk data. Taking the next turn would make the program spin, or the peer wait for a CPU.
    let mut locked_out = 0;
    let mut woken = false;
    let cell = &device.cores[core];
    while !device.stop.load(Ordering::Relaxed) {
        sleeper.place_by_turns(clock);
        if cell.waiters.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now(); // Control calls go first.
        }
        let now_driven = cell.driven.load(Ordering::Relaxed);
        let long_turns = cell.long_turns.load(Ordering::Relaxed);
        if std::mem::take(&mut woken) {
            // A doorbell rang for the helper; earlier turns of the program do not count.
            driven = now_driven;
            backoff.reset(long_turns);
        }
        let still_busy = action == IdleAction::BackedOff
            && now_driven.wrapping_sub(driven) >= BUSY_TURNS
            && (cell.is_taken() || cell.driven_within(STILL_POLLING, clock.now()));
        let token = if still_busy { None } else { cell.try_lock() };
        locked_out = if token.is_some() { 0 } else { u32::saturating_add(locked_out, 1) };
        let done = token.map_or(0, |mut token| {
            let now = clock.now();
            let done = token.turn(now);
            let attended = cell.driven_within(UNATTENDED, now);
            port_sleep.record(action, done, attended);
            if done > 0 && !attended {
                backoff.reset(long_turns);
            }
            done
        });
        action = IdleAction::None;
        idle = if done > 0 { 0 } else { u32::saturating_add(idle, 1) };
        let now_driven = cell.driven.load(Ordering::Relaxed);
        let others_turn =
            still_busy || locked_out >= SPINS || now_driven.wrapping_sub(driven) >= DRIVEN_TURNS;
        if port_sleep.is_preferred() && !spins {
            if done > 0 {
                continue; // There may be more.
            }
            action = IdleAction::SleptOnPort;
            match std::mem::replace(&mut driven, now_driven) == now_driven {
                true => sleeper.sleep(cell, clock),
                false => sleeper.sleep_on_port(cell, MIN_BACKOFF),
            }
        } else if !spins && others_turn {
            // Back off even if this turn had work: two threads that share the work compete for the
            // token.
            driven = now_driven;
            let polls = locked_out > 0 || cell.driven_within(STILL_POLLING, clock.now());
            let time = backoff.next(polls, long_turns);
            woken = sleeper.back_off(cell, time, clock);
            action = IdleAction::BackedOff;
        } else if spins || idle < SPINS {
            std::hint::spin_loop();
        } else if idle < YIELDS {
            std::thread::yield_now();
        } else {
            backoff.reset(long_turns);
            sleeper.sleep(cell, clock);
            idle = 0;
        }
    }
}

/// State of the sleeping functions, and their buffers, reused.
#[derive(Debug)]
struct Sleeper {
    fds: Vec<std::os::fd::RawFd>,
    scratch: Vec<libc::pollfd>,
    placement: feroce_threads::Placement,
    /// Time of the next search for threads that were bound to the helper's CPU.
    place_at: Instant,
    /// Turns since the clock was read last.
    turns: u32,
}

impl Sleeper {
    /// The thread has just been placed by `placement`.
    fn new(placement: feroce_threads::Placement, clock: Clock) -> Self {
        let place_at = clock.now() + PLACEMENT_INTERVAL;
        Self { fds: Vec::new(), scratch: Vec::new(), placement, place_at, turns: 0 }
    }

    /// As `place`, but reads the clock only once in [`PLACEMENT_TURNS`] calls. For a helper that
    /// never sleeps.
    fn place_by_turns(&mut self, clock: Clock) {
        self.turns += 1;
        if self.turns >= PLACEMENT_TURNS {
            self.turns = 0;
            self.place(clock);
        }
    }

    /// Moves the helper off CPUs that threads of the program were bound to.
    fn place(&mut self, clock: Clock) {
        let now = clock.now();
        if now >= self.place_at {
            self.placement.update();
            self.place_at = now + PLACEMENT_INTERVAL;
        }
    }

    /// Leaves the core to the polling thread for `time`. Returns true if a doorbell rang for the
    /// helper meanwhile.
    fn back_off(&mut self, cell: &super::CoreCell, time: Duration, clock: Clock) -> bool {
        self.place(clock);
        self.fds.clear();
        self.fds.push(cell.wake_fd());
        sys::poll_readable(&self.fds, &mut self.scratch, Some(time));
        cell.doorbell.disarm()
    }

    /// As `back_off`, but an incoming frame ends the wait.
    fn sleep_on_port(&mut self, cell: &super::CoreCell, time: Duration) {
        self.fds.clear();
        self.fds.push(cell.wake_fd());
        let Some(mut token) = cell.try_lock() else { return };
        let quiet = token.arm_port(&mut self.fds);
        drop(token);
        if quiet {
            sys::poll_readable(&self.fds, &mut self.scratch, Some(time));
        }
        cell.doorbell.disarm();
        cell.lock().disarm_port();
    }

    /// Sleeps until a frame, a doorbell or a deadline.
    fn sleep(&mut self, cell: &super::CoreCell, clock: Clock) {
        self.place(clock);
        self.fds.clear();
        let Some(mut token) = cell.try_lock() else { return };
        let quiet = token.arm_wakeup(&mut self.fds);
        let now = clock.now();
        let until = token.next_deadline(now).unwrap_or(Instant::FAR).min(now + MAX_SLEEP);
        // Set under the token: the next holder wakes the helper if it leaves an earlier deadline.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_is_longest_beside_bulk_transfers() {
        let mut backoff = Backoff::new(&PfcConfig::default());
        let mut long_turns = 0;
        let mut after = |polls, more| {
            long_turns += more;
            backoff.next(polls, long_turns)
        };
        let many = |after: &mut dyn FnMut(bool, u64) -> Duration, more| {
            (0..10).map(|_| after(true, more)).last()
        };
        assert_eq!(many(&mut after, BUSY_TURNS - 1), Some(MAX_BACKOFF));
        assert_eq!(many(&mut after, BUSY_TURNS), Some(MAX_BULK_BACKOFF));
        assert_eq!(after(true, 0), MAX_BACKOFF, "small messages again");
        assert_eq!(after(false, BUSY_TURNS), MIN_BACKOFF, "no thread polls");
        assert_eq!(many(&mut after, BUSY_TURNS), Some(MAX_BULK_BACKOFF));
        backoff.reset(long_turns);
        assert_eq!(backoff.next(true, long_turns + BUSY_TURNS), MIN_BACKOFF * 2);
    }

    #[test]
    fn the_helper_sleeps_on_the_port_while_that_finds_work() {
        let mut port_sleep = PortSleep::default();
        port_sleep.record(IdleAction::BackedOff, 1, true);
        port_sleep.record(IdleAction::BackedOff, 0, false);
        assert!(!port_sleep.is_preferred(), "a program that polls has waiting frames, too");
        port_sleep.record(IdleAction::BackedOff, 1, false);
        assert!(port_sleep.is_preferred());
        // The program gets the WRITE's acknowledgement, the helper gets the peer's WRITE.
        for _ in 0..100 {
            port_sleep.record(IdleAction::SleptOnPort, 0, true);
            port_sleep.record(IdleAction::SleptOnPort, 2, false);
        }
        assert!(port_sleep.is_preferred());
        (0..PortSleep::MAX_SCORE).for_each(|_| port_sleep.record(IdleAction::SleptOnPort, 0, true));
        assert!(!port_sleep.is_preferred(), "the program polls again");
    }
}
