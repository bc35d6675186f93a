//! The idle policy: what a thread that runs a core, or the switch of a daemon, does between turns.
//! A value without clocks and system calls: it takes what was observed, and returns the next step.
//!
//! After turns without work the thread spins ([`SPINS`] turns), then yields the CPU between turns
//! ([`YIELDS`]), then sleeps. When another thread runs the core, the helper leaves the core to that
//! thread for a while ([`Backoff`]), because two threads that share the work only compete for the
//! token. If frames arrive while no thread polls, the helper sleeps on the port instead of backing
//! off ([`PortSleep`]).
//!
//! What differs between machines is in [`Host`]. Where a system call takes several times longer, as
//! in an emulated machine, backoffs are longer. Where all threads share one CPU, nobody spins, and
//! the frames of bulk data gather: they do not make the helper run in the place of their sender.

use crate::pfc::PfcConfig;
use crate::time::Duration;

/// Idle turns before the thread yields the CPU between turns.
const SPINS: u32 = 64;
/// Idle turns before the thread sleeps.
const YIELDS: u32 = 512;
/// As `YIELDS`, where all threads share one CPU. There the thread does not spin.
const ONE_CPU_YIELDS: u32 = 4;
/// As `ONE_CPU_YIELDS`, where a system call also takes long: a yield costs as much as a sleep.
const SLOW_CPU_YIELDS: u32 = 1;
/// Turns by other threads after which the helper backs off.
const DRIVEN_TURNS: u64 = 8;
/// Turns by other threads during a backoff after which the helper backs off again without a turn of
/// its own.
const BUSY_TURNS: u64 = 4;
/// Failed attempts in a row to take the token after which the helper backs off, or yields if it
/// sleeps on the port: another thread is in a long turn, of about 100 us for bulk data. Taking the
/// next turn would make the program spin, or the peer wait for a CPU.
const LOCKED_OUT: u32 = 64;
/// Where all threads share one CPU: sleeps after a long turn during which frames gather.
const BULK_SLEEPS: u32 = 8;
/// First backoff. Each backoff after which another thread still polls doubles the next one: waking
/// up costs a busy CPU microseconds, and twice that for two ends of a link on one machine.
const MIN_BACKOFF: Duration = Duration::from_micros(100);
/// Maximum backoff. A program that polled and now only spins on its memory waits at most this time
/// and that of `STILL_POLLING` for the helper, on a slow host up to 7.2 ms in all: longer than ACK
/// timeouts of the exponents up to 10.
const MAX_BACKOFF: Duration = Duration::from_micros(800);
/// Maximum backoff while other threads move bulk data; small against the default ACK timeout of 67
/// ms. Not used if the device sends PFC pauses: a pause may be shorter than this backoff, and only
/// a turn can request the next one.
const MAX_BULK_BACKOFF: Duration = Duration::from_millis(5);

/// On a slow host a `ppoll` that does not sleep takes longer than this. About 0.2 us is usual; an
/// emulated CPU (QEMU without KVM) takes 1.3 us.
pub(crate) const ORDINARY_POLL: Duration = Duration::from_nanos(800);

/// What the policy depends on, besides what it observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Host {
    /// A system call takes longer than [`ORDINARY_POLL`]. A helper that woke up as often as on an
    /// ordinary machine would take a large part of the CPU.
    pub(crate) is_slow: bool,
    /// All threads share one CPU: what a thread waits for happens only while it does not run.
    pub(crate) has_one_cpu: bool,
}

impl Host {
    /// Returns a backoff on this host: `time` on an ordinary one.
    pub(crate) fn backoff(self, time: Duration) -> Duration {
        if self.is_slow { time * 8 } else { time }
    }
}

/// What the thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Run the next turn at once.
    Turn,
    /// Spin for an instant, then run the next turn.
    Spin,
    /// Yield the CPU, then run the next turn.
    Yield,
    /// Leave the core to the thread that polls, for this time or until a doorbell rings for the
    /// helper. Observe [`Event::BackedOff`] before the next turn.
    BackOff(Duration),
    /// Sleep for this time or until a frame arrives or a doorbell rings, then run the next turn.
    SleepOnPort(Duration),
    /// Sleep until a frame, a doorbell or a deadline, then run the next turn.
    Sleep,
    /// As `Sleep`, but wait for the thread that runs, such as the sender of the frame, before the
    /// next turn: more frames gather until it sleeps.
    Gather,
}

/// What happened since the last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The token was taken, so that there was no turn.
    LockedOut,
    /// The thread ran a turn.
    Turned {
        /// The turn had work.
        worked: bool,
        /// The turn had much work: bulk data moves, in either direction.
        is_long: bool,
        /// Another thread was in a turn just before, so that no work waited for long.
        attended: bool,
        /// Another thread still polls: it was in a turn recently.
        polled: bool,
    },
    /// The backoff is over.
    BackedOff {
        /// A doorbell rang for the helper.
        rang: bool,
        /// Another thread is in a turn, or was recently.
        polled: bool,
    },
}

/// An event, and the turns by other threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observation {
    /// What happened.
    pub(crate) event: Event,
    /// Turns by other threads so far.
    pub(crate) driven: u64,
    /// Long turns among `driven`.
    pub(crate) long_turns: u64,
}

/// Turns without work in a row, and the step that they lead to.
#[derive(Debug)]
pub(crate) struct IdleTurns {
    count: u32,
    /// Always spin.
    spins: bool,
    host: Host,
}

impl IdleTurns {
    /// `spins`: the thread has a CPU of its own and only spins.
    pub(crate) const fn new(spins: bool, host: Host) -> Self {
        Self { count: 0, spins, host }
    }

    /// Returns the step after a turn: [`Step::Spin`], [`Step::Yield`] or [`Step::Sleep`].
    /// `worked`: the turn had work.
    pub(crate) fn next(&mut self, worked: bool) -> Step {
        self.record(worked);
        self.step()
    }

    fn record(&mut self, worked: bool) {
        self.count = if worked { 0 } else { self.count.saturating_add(1) };
    }

    fn step(&mut self) -> Step {
        let (spins, yields) = match self.host {
            Host { has_one_cpu: false, .. } => (SPINS, YIELDS),
            Host { is_slow: false, .. } => (0, ONE_CPU_YIELDS),
            Host { is_slow: true, .. } => (0, SLOW_CPU_YIELDS),
        };
        if self.spins || self.count < spins {
            Step::Spin
        } else if self.count < yields {
            Step::Yield
        } else {
            self.count = 0;
            Step::Sleep
        }
    }
}

/// What the helper did before a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleAction {
    None,
    BackedOff,
    SleptOnPort,
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

    /// Records the first turn after `action`: whether it had work, and whether another thread was
    /// in a turn just before (`attended`).
    fn record(&mut self, action: IdleAction, worked: bool, attended: bool) {
        self.score = match (action, worked) {
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
    /// First backoff, maximum, and maximum while other threads move bulk data.
    first: Duration,
    most: Duration,
    most_bulk: Duration,
}

impl Backoff {
    fn new(requests_pauses: bool, host: Host) -> Self {
        let most = host.backoff(MAX_BACKOFF);
        Self {
            last: host.backoff(MIN_BACKOFF),
            long_turns: 0,
            first: host.backoff(MIN_BACKOFF),
            most,
            most_bulk: if requests_pauses { most } else { most.max(MAX_BULK_BACKOFF) },
        }
    }

    /// Returns to the shortest backoff: no other thread polls. `long_turns`: long turns by other
    /// threads so far.
    fn reset(&mut self, long_turns: u64) {
        (self.last, self.long_turns) = (self.first, long_turns);
    }

    /// Returns the next backoff. `polls`: another thread still polls. `long_turns`: its long turns
    /// so far.
    fn next(&mut self, polls: bool, long_turns: u64) -> Duration {
        let moved = long_turns.wrapping_sub(std::mem::replace(&mut self.long_turns, long_turns));
        let most = if moved >= BUSY_TURNS { self.most_bulk } else { self.most };
        self.last = if polls { (self.last * 2).min(most) } else { self.first };
        self.last
    }
}

/// The idle policy of a core's helper.
#[derive(Debug)]
pub(crate) struct IdlePolicy {
    idle: IdleTurns,
    /// Failed attempts in a row to take the token.
    locked_out: u32,
    /// Turns by other threads when the helper last left the core to them.
    driven: u64,
    backoff: Backoff,
    port_sleep: PortSleep,
    /// Bulk data gathers: not beside PFC, since a pause takes effect, and is requested, in a turn.
    gathers: bool,
    /// Sleeps left during which bulk data gathers.
    bulk_sleeps: u32,
    /// What the helper did before the turn that is observed next.
    action: IdleAction,
}

impl IdlePolicy {
    /// `spins`: the helper only spins. `pfc`: the flow control of the device.
    pub(crate) fn new(spins: bool, pfc: &PfcConfig, host: Host) -> Self {
        Self {
            idle: IdleTurns::new(spins, host),
            locked_out: 0,
            driven: 0,
            backoff: Backoff::new(pfc.thresholds.is_some(), host),
            port_sleep: PortSleep::default(),
            gathers: host.has_one_cpu && !pfc.is_on(),
            bulk_sleeps: 0,
            action: IdleAction::None,
        }
    }

    /// Returns the step after what was observed.
    pub(crate) fn next(&mut self, seen: &Observation) -> Step {
        let long_turns = seen.long_turns;
        match seen.event {
            Event::BackedOff { rang, polled } => self.after_backoff(seen, rang, polled),
            Event::LockedOut => {
                self.locked_out = self.locked_out.saturating_add(1);
                self.after_turn(seen, false, true)
            }
            Event::Turned { worked, is_long, attended, polled } => {
                self.locked_out = 0;
                if self.gathers && is_long {
                    self.bulk_sleeps = BULK_SLEEPS;
                }
                self.port_sleep.record(self.action, worked, attended);
                if worked && !attended {
                    self.backoff.reset(long_turns);
                }
                self.after_turn(seen, worked, polled)
            }
        }
    }

    fn after_backoff(&mut self, seen: &Observation, rang: bool, polled: bool) -> Step {
        if rang {
            // The program needs the helper; earlier turns of the program do not count.
            self.driven = seen.driven;
            self.backoff.reset(seen.long_turns);
            return Step::Turn;
        }
        if !polled || self.turns_since(seen) < BUSY_TURNS {
            return Step::Turn;
        }
        self.locked_out = self.locked_out.saturating_add(1);
        self.idle.record(false);
        self.back_off(seen, true)
    }

    fn after_turn(&mut self, seen: &Observation, worked: bool, polled: bool) -> Step {
        self.action = IdleAction::None;
        self.idle.record(worked);
        if self.idle.spins {
            return Step::Spin;
        }
        if let Some(step) = self.in_bulk(seen, worked, polled) {
            return step;
        }
        if self.port_sleep.is_preferred() {
            return self.sleep_on_port(seen, worked);
        }
        if self.locked_out >= LOCKED_OUT || self.is_driven(seen) {
            // Back off even if this turn had work: two threads that share the work compete for the
            // token.
            return self.back_off(seen, polled);
        }
        match self.idle.step() {
            // To sleep, the helper needs the token.
            Step::Sleep if self.locked_out > 0 => Step::Yield,
            Step::Sleep => {
                self.backoff.reset(seen.long_turns);
                Step::Sleep
            }
            step => step,
        }
    }

    /// The step while bulk data gathers.
    fn in_bulk(&mut self, seen: &Observation, worked: bool, polled: bool) -> Option<Step> {
        if self.bulk_sleeps == 0 || self.locked_out > 0 {
            return None;
        }
        if worked {
            return Some(Step::Turn);
        }
        self.bulk_sleeps -= 1;
        if polled && self.is_driven(seen) {
            return Some(self.back_off(seen, polled));
        }
        self.driven = seen.driven;
        Some(Step::Gather)
    }

    /// Another thread runs the core.
    fn is_driven(&self, seen: &Observation) -> bool {
        self.turns_since(seen) >= DRIVEN_TURNS
    }

    /// Turns by other threads since the helper last left the core to them.
    fn turns_since(&self, seen: &Observation) -> u64 {
        seen.driven.wrapping_sub(self.driven)
    }

    fn back_off(&mut self, seen: &Observation, polled: bool) -> Step {
        self.driven = seen.driven;
        self.action = IdleAction::BackedOff;
        Step::BackOff(self.backoff.next(polled, seen.long_turns))
    }

    fn sleep_on_port(&mut self, seen: &Observation, worked: bool) -> Step {
        if worked {
            return Step::Turn; // There may be more.
        }
        if self.locked_out > 0 {
            // Most turns end soon, unless their thread needs this CPU.
            let yields = self.idle.host.has_one_cpu || self.locked_out >= LOCKED_OUT;
            return if yields { Step::Yield } else { Step::Spin };
        }
        self.action = IdleAction::SleptOnPort;
        match std::mem::replace(&mut self.driven, seen.driven) == seen.driven {
            true => Step::Sleep,
            false => Step::SleepOnPort(self.backoff.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pfc::Thresholds;

    /// A turn that had work, while no other thread polls.
    const WORK: Event = turned(true, false);
    /// A turn without work, while no other thread polls.
    const IDLE: Event = turned(false, false);
    /// A turn beside a thread that polls, with and without work.
    const POLLED: Event = turned(false, true);
    const SHARED: Event = turned(true, true);
    /// A turn with much work, while no other thread polls.
    const BULK: Event =
        Event::Turned { worked: true, is_long: true, attended: false, polled: false };
    const LOCKED_OUT: Event = Event::LockedOut;
    /// Backoffs during which a thread polled, during which none did, and one ended by a doorbell.
    const BUSY: Event = Event::BackedOff { rang: false, polled: true };
    const QUIET: Event = Event::BackedOff { rang: false, polled: false };
    const RANG: Event = Event::BackedOff { rang: true, polled: true };

    const ORDINARY: Host = Host { is_slow: false, has_one_cpu: false };

    const fn turned(worked: bool, polled: bool) -> Event {
        Event::Turned { worked, is_long: false, attended: polled, polled }
    }

    const fn back_off(micros: u64) -> Step {
        Step::BackOff(Duration::from_micros(micros))
    }

    fn policy(host: Host) -> IdlePolicy {
        IdlePolicy::new(false, &PfcConfig::default(), host)
    }

    fn sends_pauses() -> PfcConfig {
        let thresholds = Some(Thresholds { xoff: 50, xon: 25 });
        PfcConfig { priorities: "3".parse().unwrap(), thresholds, ..PfcConfig::default() }
    }

    const ON_PORT: Step = Step::SleepOnPort(MIN_BACKOFF);

    /// How often, event, turns by other threads, long ones among them, step after each of the
    /// events.
    type Row = (u32, Event, u64, u64, Step);

    fn plays(name: &str, mut policy: IdlePolicy, rows: &[Row]) {
        for (index, &(times, event, driven, long_turns, step)) in rows.iter().enumerate() {
            for time in 0..times {
                let next = policy.next(&Observation { event, driven, long_turns });
                assert_eq!(next, step, "{name}: row {index}, event {time}, {policy:?}");
            }
        }
    }

    /// What is played, by name, from a new policy.
    const TABLE: &[(&str, &[Row])] = &[
        (
            "without work: spin, yield, sleep",
            &[
                (63, IDLE, 0, 0, Step::Spin),
                (448, IDLE, 0, 0, Step::Yield),
                (1, IDLE, 0, 0, Step::Sleep),
                (63, IDLE, 0, 0, Step::Spin),
                (9, IDLE, 0, 0, Step::Yield),
                (1, WORK, 0, 0, Step::Spin),
                (63, IDLE, 0, 0, Step::Spin),
                (1, IDLE, 0, 0, Step::Yield),
            ],
        ),
        (
            "beside a thread that polls: longer and longer backoffs",
            &[
                (2, POLLED, 7, 0, Step::Spin),
                (1, SHARED, 8, 0, back_off(200)),
                (1, BUSY, 11, 0, Step::Turn),
                (1, POLLED, 15, 0, Step::Spin),
                (1, POLLED, 16, 0, back_off(400)),
                (1, BUSY, 20, 0, back_off(800)),
                (1, BUSY, 24, 0, back_off(800)),
                (1, QUIET, 40, 0, Step::Turn),
                (1, IDLE, 40, 0, back_off(100)),
                (1, QUIET, 40, 0, Step::Turn),
                (1, IDLE, 47, 0, Step::Spin),
                (1, POLLED, 48, 0, back_off(200)),
                (1, BUSY, 52, 0, back_off(400)),
                (1, BUSY, 55, 0, Step::Turn),
                (1, SHARED, 55, 0, Step::Spin),
                (1, POLLED, 60, 0, back_off(800)),
                (1, BUSY, 63, 0, Step::Turn),
                (60, LOCKED_OUT, 63, 0, Step::Spin),
                // Nobody polled when this work arrived: the next backoff is short.
                (1, WORK, 63, 0, Step::Spin),
                (1, POLLED, 68, 0, back_off(200)),
            ],
        ),
        (
            "beside bulk transfers: up to 5 ms",
            &[
                (1, POLLED, 8, 0, back_off(200)),
                (1, BUSY, 12, 3, back_off(400)),
                (1, BUSY, 16, 7, back_off(800)),
                (1, BUSY, 20, 11, back_off(1600)),
                (1, BUSY, 24, 15, back_off(3200)),
                (1, BUSY, 28, 19, back_off(5000)),
                (1, BUSY, 32, 23, back_off(5000)),
                // Small messages again.
                (1, BUSY, 36, 23, back_off(800)),
            ],
        ),
        (
            "a thread in a long turn",
            &[
                (63, LOCKED_OUT, 0, 0, Step::Spin),
                (1, IDLE, 0, 0, Step::Yield),
                (63, LOCKED_OUT, 0, 0, Step::Yield),
                (1, LOCKED_OUT, 0, 0, back_off(200)),
                (1, BUSY, 3, 0, Step::Turn),
                (1, LOCKED_OUT, 3, 0, back_off(400)),
                (1, QUIET, 3, 0, Step::Turn),
                (1, IDLE, 3, 0, Step::Yield),
            ],
        ),
        (
            "a doorbell ends the backoff",
            &[
                (1, POLLED, 8, 0, back_off(200)),
                (1, BUSY, 12, 0, back_off(400)),
                (1, RANG, 100, 0, Step::Turn),
                (1, POLLED, 107, 0, Step::Spin),
                (1, POLLED, 108, 0, back_off(200)),
            ],
        ),
        (
            "work waited during a backoff: sleep on the port while that finds work",
            &[
                (1, POLLED, 8, 0, back_off(200)),
                (1, QUIET, 10, 0, Step::Turn),
                (2, WORK, 10, 0, Step::Turn),
                (1, IDLE, 10, 0, ON_PORT),
                (1, WORK, 11, 0, Step::Turn),
                (1, IDLE, 11, 0, ON_PORT),
                // No other thread ran the core since then.
                (1, IDLE, 11, 0, Step::Sleep),
                (63, LOCKED_OUT, 12, 0, Step::Spin),
                (1, IDLE, 12, 0, ON_PORT),
                (1, IDLE, 12, 0, Step::Sleep),
                (1, WORK, 12, 0, Step::Turn),
                (1, POLLED, 40, 0, ON_PORT),
                (7, POLLED, 40, 0, Step::Sleep),
                // 8 times without work.
                (1, POLLED, 47, 0, Step::Spin),
                (1, POLLED, 48, 0, back_off(200)),
            ],
        ),
        (
            "work waited during a backoff, but a thread polls: back off again",
            &[
                (1, POLLED, 8, 0, back_off(200)),
                (1, QUIET, 10, 0, Step::Turn),
                (1, SHARED, 10, 0, Step::Spin),
                (1, POLLED, 16, 0, back_off(400)),
            ],
        ),
    ];

    #[test]
    fn every_observation_has_its_step() {
        for (name, rows) in TABLE {
            plays(name, policy(ORDINARY), rows);
        }
    }

    #[test]
    fn the_backoff_of_a_device_that_sends_pauses_stays_short() {
        let rows = [
            (1, POLLED, 8, 0, back_off(200)),
            (1, BUSY, 12, 4, back_off(400)),
            (1, BUSY, 16, 8, back_off(800)),
            (1, BUSY, 20, 12, back_off(800)),
        ];
        plays("pauses", IdlePolicy::new(false, &sends_pauses(), ORDINARY), &rows);
    }

    #[test]
    fn a_helper_that_sleeps_on_the_port_does_not_spin_for_long_beside_a_thread_in_a_turn() {
        let rows = [
            (1, POLLED, 8, 0, back_off(200)),
            (1, QUIET, 10, 0, Step::Turn),
            (1, WORK, 10, 0, Step::Turn),
            (63, LOCKED_OUT, 10, 0, Step::Spin),
            // Perhaps it needs this CPU.
            (100, LOCKED_OUT, 10, 0, Step::Yield),
            (1, IDLE, 12, 0, ON_PORT),
        ];
        plays("long turn", policy(ORDINARY), &rows);
    }

    #[test]
    fn a_helper_on_a_slow_machine_wakes_up_less_often() {
        let slow = Host { is_slow: true, ..ORDINARY };
        let rows = [
            (1, POLLED, 8, 0, back_off(1600)),
            (1, BUSY, 12, 0, back_off(3200)),
            (1, BUSY, 16, 8, back_off(6400)),
            (1, BUSY, 20, 8, back_off(6400)),
            (1, QUIET, 24, 8, Step::Turn),
            (1, IDLE, 28, 8, back_off(800)),
        ];
        plays("slow", policy(slow), &rows);
    }

    #[test]
    fn where_all_threads_share_a_cpu_the_helper_yields_and_soon_sleeps() {
        let shared = Host { has_one_cpu: true, ..ORDINARY };
        let rows = [
            (3, IDLE, 0, 0, Step::Yield),
            (1, IDLE, 0, 0, Step::Sleep),
            (1, WORK, 0, 0, Step::Yield),
            (1, POLLED, 8, 0, back_off(200)),
            (1, QUIET, 10, 0, Step::Turn),
            (1, WORK, 10, 0, Step::Turn),
            (1, LOCKED_OUT, 10, 0, Step::Yield),
            (1, IDLE, 10, 0, ON_PORT),
        ];
        plays("one CPU", policy(shared), &rows);
        let slow = Host { is_slow: true, ..shared };
        let rows = [
            (1, WORK, 0, 0, Step::Yield),
            (2, IDLE, 0, 0, Step::Sleep),
            // The thread in a turn needs the CPU.
            (63, LOCKED_OUT, 0, 0, Step::Yield),
            (1, LOCKED_OUT, 0, 0, back_off(1600)),
        ];
        plays("one slow CPU", policy(slow), &rows);
    }

    #[test]
    fn where_all_threads_share_a_cpu_the_helper_lets_bulk_data_gather() {
        let shared = Host { has_one_cpu: true, ..ORDINARY };
        let rows = [
            (2, BULK, 0, 0, Step::Turn),
            (1, WORK, 0, 0, Step::Turn),
            (7, IDLE, 0, 0, Step::Gather),
            (1, BULK, 0, 0, Step::Turn),
            (1, IDLE, 0, 0, Step::Gather),
            (1, LOCKED_OUT, 0, 0, Step::Yield),
            (6, WORK, 0, 0, Step::Turn),
            (7, IDLE, 0, 0, Step::Gather),
            // No more bulk data came.
            (1, WORK, 0, 0, Step::Yield),
            (3, IDLE, 0, 0, Step::Yield),
            (1, IDLE, 0, 0, Step::Sleep),
            // The program polls.
            (1, BULK, 3, 3, Step::Turn),
            (1, POLLED, 7, 7, Step::Gather),
            (1, POLLED, 15, 15, back_off(200)),
        ];
        plays("bulk data, one CPU", policy(shared), &rows);
        let rows = [(1, BULK, 0, 0, Step::Spin), (1, IDLE, 0, 0, Step::Spin)];
        plays("bulk data, several CPUs", policy(ORDINARY), &rows);
        // A pause waits for a turn.
        let rows = [
            (1, BULK, 0, 0, Step::Yield),
            (3, IDLE, 0, 0, Step::Yield),
            (1, IDLE, 0, 0, Step::Sleep),
        ];
        plays("bulk data, one CPU, PFC", IdlePolicy::new(false, &sends_pauses(), shared), &rows);
    }

    #[test]
    fn a_helper_with_a_cpu_of_its_own_spins() {
        let rows = [
            (1000, IDLE, 0, 0, Step::Spin),
            (100, POLLED, 100, 0, Step::Spin),
            (100, LOCKED_OUT, 200, 0, Step::Spin),
            (2, WORK, 200, 0, Step::Spin),
        ];
        plays("spinning", IdlePolicy::new(true, &PfcConfig::default(), ORDINARY), &rows);
        let mut idle = IdleTurns::new(true, ORDINARY);
        assert!((0..1000).all(|_| idle.next(false) == Step::Spin));
    }

    #[test]
    fn a_switch_without_frames_spins_yields_and_sleeps() {
        let mut idle = IdleTurns::new(false, ORDINARY);
        for _ in 0..2 {
            let steps: Vec<_> = (0..512).map(|_| idle.next(false)).collect();
            assert!(steps[..63].iter().all(|&step| step == Step::Spin));
            assert!(steps[63..511].iter().all(|&step| step == Step::Yield));
            assert_eq!(steps[511], Step::Sleep);
        }
        assert_eq!((0..100).map(|_| idle.next(false)).last(), Some(Step::Yield));
        assert_eq!(idle.next(true), Step::Spin);
    }
}
