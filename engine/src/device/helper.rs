//! The helper thread of a core. It runs the core when no other thread does, so that a program that
//! never polls still responds to READs and receives WRITEs.
//!
//! [`IdlePolicy`] decides what the helper does between turns: spin, yield, sleep, or leave the core
//! to a thread that polls. This file observes and acts.
//!
//! A sleep ends at the next deadline, and for a look at the CPUs of the program's threads; it has
//! no other limit. `engine/loom` shows that no wake-up by a doorbell, by a ring between cores or
//! for an earlier deadline is lost. The descriptors of ports are level-triggered; for what a port
//! holds without a readable descriptor (`Port::is_unfinished`), the thread that leaves it there
//! wakes the helper.
//!
//! The helper does not run on CPUs that threads of the program are bound to, even if the program
//! binds them later ([`PLACEMENT_INTERVAL`]). A helper with a CPU of its own stays there.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::{CoreCell, DeviceInner, Driver, LONG_TURN};
use crate::idle_policy::{Event, Host, IdlePolicy, ORDINARY_POLL, Observation, Step};
use crate::sys;
use crate::time::{Clock, Duration, Instant};

/// A thread that ran the core within this time still polls. Longer on a slow host, as backoffs are.
const STILL_POLLING: Duration = Duration::from_micros(100);
/// If work has waited for this time, the thread that polled does something else now. Where all
/// threads share one CPU it may be waiting for the CPU, and [`STILL_POLLING`] is the limit.
const UNATTENDED: Duration = Duration::from_micros(20);
/// Interval at which a helper looks for threads of the program that were bound to its CPU.
const PLACEMENT_INTERVAL: Duration = Duration::from_secs(1);
/// Turns after which a helper that never sleeps reads the clock for [`PLACEMENT_INTERVAL`].
const PLACEMENT_TURNS: u32 = 1024;

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

fn run(device: &DeviceInner, core: usize, clock: Clock, spins: bool, mut sleeper: Sleeper) {
    let cell = &device.cores[core];
    let pfc = &device.config.pfc;
    // A pause may end before a longer backoff does.
    let is_slow = pfc.thresholds.is_none() && poll_time(clock) > ORDINARY_POLL;
    let host = Host { is_slow, has_one_cpu: device.has_one_cpu };
    sleeper.still_polling = host.backoff(STILL_POLLING);
    let unattended = if device.has_one_cpu { sleeper.still_polling } else { UNATTENDED };
    let mut policy = IdlePolicy::new(spins, pfc, host);
    let mut backed_off = None;
    while !device.stop.load(Ordering::Relaxed) {
        let event = match backed_off.take() {
            Some(event) => event,
            None => {
                sleeper.place_by_turns(clock);
                try_turn(cell, clock, sleeper.still_polling, unattended)
            }
        };
        let driven = cell.driven.load(Ordering::Relaxed);
        let long_turns = cell.long_turns.load(Ordering::Relaxed);
        match policy.next(&Observation { event, driven, long_turns }) {
            Step::Turn => {}
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => std::thread::yield_now(),
            Step::BackOff(time) => backed_off = Some(sleeper.back_off(cell, time, clock)),
            Step::SleepOnPort(time) => sleeper.sleep_on_port(cell, time),
            Step::Sleep => sleeper.sleep(cell, clock),
            Step::Gather => sleeper.gather(cell, clock),
        }
    }
}

/// Runs a turn if the token is free. `recently`: the time within which a thread still polls.
/// `unattended`: the time after which waiting work is nobody else's.
fn try_turn(cell: &CoreCell, clock: Clock, recently: Duration, unattended: Duration) -> Event {
    if cell.waiters.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now(); // Control calls go first.
    }
    let Some(mut token) = cell.try_lock() else { return Event::LockedOut };
    let now = clock.now();
    let done = token.turn(now);
    let attended = cell.driven_within(unattended, now);
    drop(token);
    // The second look counts the time of the turn; the first one saves reading the clock.
    let polled = cell.driven_within(recently, now) && cell.driven_within(recently, clock.now());
    Event::Turned { worked: done > 0, is_long: done >= LONG_TURN, attended, polled }
}

/// What a `ppoll` that does not sleep takes on this host. Measured once per process.
static POLL_TIME: OnceLock<Duration> = OnceLock::new();

/// Returns the time that a helper has measured for a `ppoll` that does not sleep; zero if none has.
pub(super) fn measured_poll_time() -> Duration {
    POLL_TIME.get().copied().unwrap_or(Duration::ZERO)
}

/// Measures [`POLL_TIME`], for at most a millisecond: other programs may take the CPU meanwhile.
fn poll_time(clock: Clock) -> Duration {
    const POLLS: u32 = 8; // Reading the clock takes time, too.
    *POLL_TIME.get_or_init(|| {
        let (mut scratch, end) = (Vec::new(), clock.now() + Duration::from_millis(1));
        let mut poll_takes = || {
            let start = clock.now();
            (0..POLLS).for_each(|_| sys::poll_readable(&[], &mut scratch, Some(Duration::ZERO)));
            (clock.now() - start) / POLLS
        };
        let mut least = poll_takes();
        while least > ORDINARY_POLL && clock.now() < end {
            least = least.min(poll_takes());
        }
        tracing::debug!(?least, "time of a ppoll that does not sleep");
        least
    })
}

/// State of the sleeping functions, and their buffers, reused.
#[derive(Debug)]
struct Sleeper {
    fds: Vec<std::os::fd::RawFd>,
    scratch: Vec<libc::pollfd>,
    placement: feroce_threads::Placement,
    /// A thread that ran the core within this time still polls.
    still_polling: Duration,
    /// Time of the next search for threads that were bound to the helper's CPU.
    place_at: Instant,
    /// Turns since the clock was read last.
    turns: u32,
}

impl Sleeper {
    /// The thread has just been placed by `placement`.
    fn new(placement: feroce_threads::Placement, clock: Clock) -> Self {
        let place_at = clock.now() + PLACEMENT_INTERVAL;
        Self {
            fds: Vec::new(),
            scratch: Vec::new(),
            placement,
            still_polling: STILL_POLLING,
            place_at,
            turns: 0,
        }
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

    /// Leaves the core to the polling thread for `time`, or until a doorbell rings for the helper.
    fn back_off(&mut self, cell: &CoreCell, time: Duration, clock: Clock) -> Event {
        self.place(clock);
        self.fds.clear();
        self.fds.push(cell.wake_fd());
        sys::poll_readable(&self.fds, &mut self.scratch, Some(time));
        let rang = cell.doorbell.disarm();
        let polled = cell.driven_within(self.still_polling, clock.now()) || cell.is_taken();
        Event::BackedOff { rang, polled }
    }

    /// As `back_off`, but an incoming frame ends the wait.
    fn sleep_on_port(&mut self, cell: &CoreCell, time: Duration) {
        self.placement.defer(false);
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
    fn sleep(&mut self, cell: &CoreCell, clock: Clock) {
        self.placement.defer(false);
        self.sleep_until_work(cell, clock);
    }

    /// As `sleep`, but the threads that run meanwhile go first.
    fn gather(&mut self, cell: &CoreCell, clock: Clock) {
        self.placement.defer(true);
        self.sleep_until_work(cell, clock);
        // A thread of the program that polls takes the frames.
        std::thread::yield_now();
    }

    fn sleep_until_work(&mut self, cell: &CoreCell, clock: Clock) {
        self.place(clock);
        self.fds.clear();
        let Some(mut token) = cell.try_lock() else { return };
        let quiet = token.arm_wakeup(&mut self.fds);
        let now = clock.now();
        let until = token.next_deadline(now).unwrap_or(Instant::FAR).min(self.place_at);
        // Under the token: the next holder wakes the helper if it leaves work for before then.
        cell.helper_sleep.begin(until);
        drop(token);
        if quiet {
            let most = (until < Instant::FAR).then(|| until.saturating_since(now));
            sys::poll_readable(&self.fds, &mut self.scratch, most);
        }
        cell.helper_sleep.end();
        cell.lock().disarm_wakeup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Addressing, Device, DeviceConfig, StaticAddresses};
    use crate::memory::arena::Arena;
    use crate::port::pcap::PcapPort;
    use crate::port::shm::{ShmConfig, shm_pair};
    use crate::port::{Port, Priority};

    /// What the port holds here is a frame in the buffer of a capture file.
    #[test]
    fn whoever_leaves_something_in_the_port_wakes_the_helper() {
        let (shm, arena) = (ShmConfig::default(), Arena::new(64 << 20).unwrap());
        let (mac, mtu) = (shm.macs[1], shm.mtu);
        let (mut peer, port) = shm_pair(&arena, shm).unwrap();
        let port = PcapPort::new(Box::new(port), std::io::sink(), u32::MAX).unwrap();
        let addresses = StaticAddresses { mac, gids: Vec::new(), peers: [].into(), mtu };
        let config = DeviceConfig { driver: Driver::Manual, ..DeviceConfig::default() };
        let ports: Vec<Box<dyn Port>> = vec![Box::new(port)];
        let device = Device::with_ports(ports, Addressing::Static(addresses), config).unwrap();
        let cell = &device.inner.cores[0];
        let turn_wakes = || {
            cell.helper_sleep.begin(Instant::FAR);
            let mut token = cell.lock();
            token.turn(Instant::ZERO);
            cell.wake_helper(&token, Instant::ZERO);
            !cell.helper_sleeps() && cell.doorbell.disarm()
        };
        assert!(!turn_wakes(), "nothing arrived");
        peer.tx_slot().unwrap()[..60].fill(0);
        peer.tx_commit(60, Priority::default());
        peer.flush().unwrap();
        assert!(turn_wakes(), "the frame is in the buffer");
        assert!(cell.lock().arm_port(&mut Vec::new()), "the helper writes it and sleeps");
        cell.lock().disarm_port();
        assert!(!turn_wakes(), "nothing is left");
    }
}
