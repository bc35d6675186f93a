//! The helper thread of a core: turns it when nobody else does, so that a program that never polls still
//! answers READs and sees WRITEs arrive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use super::{DeviceInner, Driver};
use crate::pfc::PfcConfig;
use crate::sys;
use crate::time::{Clock, Duration, Instant};

/// Idle turns before the helper yields the CPU between turns.
const SPINS: u32 = 64;
/// Idle turns before it sleeps on the port.
const YIELDS: u32 = 512;
/// Turns by other threads after which it leaves the core to them for a moment.
const DRIVEN: u64 = 8;
/// Turns by other threads during a nap after which it does not even look.
const STEADY: u64 = 4;
/// How long it keeps out of the way of a thread that polls, at first. Each nap that ends with the thread
/// still polling doubles the next: waking up costs a busy CPU microseconds, twice for two ends of a link.
const SHORTEST_NAP: Duration = Duration::from_micros(100);
/// How long at most: a program that polled and now only spins on its memory waits so long, and once more.
const LONGEST_NAP: Duration = Duration::from_micros(800);
/// The same beside a program that moves much: little beside the default ACK timeout of 67 ms. Not where this end asks for pauses, which
/// are shorter, and asked for in turns.
const LONGEST_BULK_NAP: Duration = Duration::from_millis(5);
/// A thread that turned the core so short a time ago still polls.
const STILL_POLLS: Duration = Duration::from_micros(100);
/// With work waiting for so long, the thread that polled does something else now.
const UNATTENDED: Duration = Duration::from_micros(20);
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

/// Whether naps come at a wrong time: a program that polls for its completion and then spins on its memory, as latency tests of
/// WRITEs do, polls enough to be left alone, and its frames wait for the end of a nap. The helper then sleeps on the port in place
/// of napping, as long as that wakes it for something: if the program takes most frames itself, each wake-up costs it the CPU.
#[derive(Debug, Default)]
struct Vigil {
    /// Watches while it is above 0.
    worth: u8,
}

impl Vigil {
    const MOST: u8 = 8;

    fn is_kept(&self) -> bool {
        self.worth > 0
    }

    /// The first turn after a rest of this kind did so much; `attended` by another thread lately.
    fn judge(&mut self, rest: Rest, done: usize, attended: bool) {
        self.worth = match (rest, done > 0) {
            (Rest::Napped, true) if !attended => Self::MOST,
            (Rest::Watched, true) => (self.worth + 2).min(Self::MOST),
            (Rest::Watched, false) => self.worth.saturating_sub(1),
            _ => self.worth,
        };
    }
}

/// How long the helper keeps out of the way.
#[derive(Debug)]
struct Naps {
    last: Duration,
    /// Long turns by others, until then.
    long_turns: u64,
    /// The longest beside bulk.
    longest: Duration,
}

impl Naps {
    fn new(pfc: &PfcConfig) -> Self {
        let asks = pfc.thresholds.is_some();
        let longest = if asks { LONGEST_NAP } else { LONGEST_BULK_NAP };
        Self { last: SHORTEST_NAP, long_turns: 0, longest }
    }

    /// Nobody polls, after so many `long_turns`.
    fn start_over(&mut self, long_turns: u64) {
        (self.last, self.long_turns) = (SHORTEST_NAP, long_turns);
    }

    /// The next nap, with so many `long_turns` by others until now; a thread still `polls`.
    fn next(&mut self, polls: bool, long_turns: u64) -> Duration {
        let moved = long_turns.wrapping_sub(std::mem::replace(&mut self.long_turns, long_turns));
        let longest = if moved >= STEADY { self.longest } else { LONGEST_NAP };
        self.last = if polls { (self.last * 2).min(longest) } else { SHORTEST_NAP };
        self.last
    }
}

/// What the helper did before a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    None,
    Napped,
    Watched,
}

fn run(device: &DeviceInner, core: usize, clock: Clock, spins: bool) {
    let mut idle = 0;
    let mut driven = 0;
    let mut naps = Naps::new(&device.config.pfc);
    let mut sleeper = Sleeper::default();
    let (mut vigil, mut rest) = (Vigil::default(), Rest::None);
    // Vain tries in a row: another thread is in a long turn. One of bulk takes 100 us, and while the helper takes its place, the program
    // spins, or the other end of the link waits for a CPU.
    let mut locked_out = 0;
    let mut woken = false;
    let cell = &device.cores[core];
    while !device.stop.load(Ordering::Relaxed) {
        if cell.waiters.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now(); // Control calls go first.
        }
        let now_driven = cell.driven.load(Ordering::Relaxed);
        let long_turns = cell.long_turns.load(Ordering::Relaxed);
        if std::mem::take(&mut woken) {
            // Somebody asks for the helper: what the program did so far does not count.
            driven = now_driven;
            naps.start_over(long_turns);
        }
        let steady = rest == Rest::Napped
            && now_driven.wrapping_sub(driven) >= STEADY
            && (cell.is_taken() || cell.driven_within(STILL_POLLS, clock.now()));
        let token = if steady { None } else { cell.try_lock() };
        locked_out = if token.is_some() { 0 } else { u32::saturating_add(locked_out, 1) };
        let done = token.map_or(0, |mut token| {
            let now = clock.now();
            let done = token.turn(now);
            let attended = cell.driven_within(UNATTENDED, now);
            vigil.judge(rest, done, attended);
            if done > 0 && !attended {
                naps.start_over(long_turns);
            }
            done
        });
        rest = Rest::None;
        idle = if done > 0 { 0 } else { u32::saturating_add(idle, 1) };
        let now_driven = cell.driven.load(Ordering::Relaxed);
        let others_turn =
            steady || locked_out >= SPINS || now_driven.wrapping_sub(driven) >= DRIVEN;
        if vigil.is_kept() && !spins {
            if done > 0 {
                continue; // There may be more.
            }
            rest = Rest::Watched;
            match std::mem::replace(&mut driven, now_driven) == now_driven {
                true => sleeper.sleep(cell, clock),
                false => sleeper.watch(cell, SHORTEST_NAP),
            }
        } else if !spins && others_turn {
            // Also when there was something to do: two threads that share the work only fight for it.
            driven = now_driven;
            let polls = locked_out > 0 || cell.driven_within(STILL_POLLS, clock.now());
            let nap = naps.next(polls, long_turns);
            woken = sleeper.nap(cell, nap);
            rest = Rest::Napped;
        } else if spins || idle < SPINS {
            std::hint::spin_loop();
        } else if idle < YIELDS {
            std::thread::yield_now();
        } else {
            naps.start_over(long_turns);
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
    /// Leaves the core to whoever polls, for a moment; true if somebody asked for the helper meanwhile.
    fn nap(&mut self, cell: &super::CoreCell, nap: Duration) -> bool {
        self.fds.clear();
        self.fds.push(cell.wake_fd());
        sys::poll_readable(&self.fds, &mut self.scratch, Some(nap));
        cell.doorbell.disarm()
    }

    /// The same, until a frame comes.
    fn watch(&mut self, cell: &super::CoreCell, nap: Duration) {
        self.fds.clear();
        self.fds.push(cell.wake_fd());
        let Some(mut token) = cell.try_lock() else { return };
        let quiet = token.arm_port(&mut self.fds);
        drop(token);
        if quiet {
            sys::poll_readable(&self.fds, &mut self.scratch, Some(nap));
        }
        cell.doorbell.disarm();
        cell.lock().disarm_port();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_are_longest_while_bulk_is_moved() {
        let mut naps = Naps::new(&PfcConfig::default());
        let mut long_turns = 0;
        let mut after = |polls, more| {
            long_turns += more;
            naps.next(polls, long_turns)
        };
        let many = |after: &mut dyn FnMut(bool, u64) -> Duration, more| {
            (0..10).map(|_| after(true, more)).last()
        };
        assert_eq!(many(&mut after, STEADY - 1), Some(LONGEST_NAP));
        assert_eq!(many(&mut after, STEADY), Some(LONGEST_BULK_NAP));
        assert_eq!(after(true, 0), LONGEST_NAP, "small messages again");
        assert_eq!(after(false, STEADY), SHORTEST_NAP, "nobody polls");
        assert_eq!(many(&mut after, STEADY), Some(LONGEST_BULK_NAP));
        naps.start_over(long_turns);
        assert_eq!(naps.next(true, long_turns + STEADY), SHORTEST_NAP * 2);
    }

    #[test]
    fn vigils_are_kept_as_long_as_they_are_worth_it() {
        let mut vigil = Vigil::default();
        vigil.judge(Rest::Napped, 1, true);
        vigil.judge(Rest::Napped, 0, false);
        assert!(!vigil.is_kept(), "who polls has frames waiting, too");
        vigil.judge(Rest::Napped, 1, false);
        assert!(vigil.is_kept());
        // A WRITE's acknowledgement is the program's, the peer's WRITE the helper's.
        for _ in 0..100 {
            vigil.judge(Rest::Watched, 0, true);
            vigil.judge(Rest::Watched, 2, false);
        }
        assert!(vigil.is_kept());
        (0..Vigil::MOST).for_each(|_| vigil.judge(Rest::Watched, 0, true));
        assert!(!vigil.is_kept(), "it polls again");
    }
}
