//! When a thread that polls in vain gives its CPU to others: a device at a daemon needs the daemon,
//! and on a machine with too few CPUs the daemon may be waiting for the CPU of the thread that
//! polls. The thread would spin for its whole time slice, and the scheduler takes it for busy.
//!
//! Too few CPUs show as involuntary context switches of the thread. It then yields after each poll
//! in vain. That is not enough: the daemon may be in another scheduling group, such as another
//! session or another container, and a yield gives the CPU to the thread's own group only. So after
//! many polls in vain it sleeps. A device without a daemon does neither: its frames arrive without
//! another thread, and each yield to a program that never gives the CPU up costs a time slice.
//!
//! Where all threads share one CPU, a thread that polls in vain always gives way ([`share_cpu`]).

use std::cell::Cell;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

/// Polls in succession without a frame, after which a thread looks whether others need its CPU:
/// about 25 us without yields, more than a spinning peer takes to answer.
const VAIN_POLLS: u32 = 256;

/// Number of such looks for which a thread counts as preempted after it was. Thousands of polls,
/// since a thread that sleeps is not preempted. A yield that lets another thread run counts as a
/// preemption.
const LOOKS: u32 = 64;

/// How long the thread sleeps; the kernel adds up to 50 us.
const SLEEP: Duration = Duration::from_micros(20);

/// What a thread does after a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Poll,
    /// Yield first.
    Yield,
    /// Look first whether others need the CPU.
    Look,
}

#[derive(Debug, Clone, Copy)]
struct Polls {
    /// Polls in succession without a frame.
    vain: u32,
    /// Involuntary context switches of the thread until the last look.
    preemptions: i64,
    /// Looks for which the thread still counts as preempted.
    looks_left: u32,
}

impl Polls {
    const NONE: Self = Self { vain: 0, preemptions: 0, looks_left: 0 };

    /// Counts a poll that moved `frames` frames.
    fn count(&mut self, frames: usize) -> Next {
        if frames > 0 {
            self.vain = 0;
            return Next::Poll;
        }
        self.vain = self.vain.wrapping_add(1);
        if self.vain.is_multiple_of(VAIN_POLLS) {
            Next::Look
        } else if self.looks_left > 0 {
            Next::Yield
        } else {
            Next::Poll
        }
    }

    /// Looks. `preemptions`: the thread's involuntary context switches. Returns true if others
    /// need the CPU.
    fn look(&mut self, preemptions: i64) -> bool {
        self.looks_left = match preemptions == self.preemptions {
            true => self.looks_left.saturating_sub(1),
            false => LOOKS,
        };
        self.preemptions = preemptions;
        self.looks_left > 0
    }
}

/// Where all threads share one CPU, a thread that polls in vain sleeps if a `ppoll` takes longer
/// than this. It takes 15 us in user-mode Linux, where a yield costs as much as a sleep and has no
/// effect before the next tick: the scheduler's clock counts ticks. An emulated CPU takes 1.3 us,
/// and there a yield works.
const DEAR_POLL: Duration = Duration::from_micros(5);

/// Polls in succession without a frame after which it sleeps.
const ONE_CPU_VAIN_POLLS: u32 = 3;

/// How long it sleeps: the time of a few system calls.
const ONE_CPU_SLEEP: Duration = Duration::from_micros(50);

/// How a thread gives the CPU to others, where all threads share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GiveWay {
    No,
    Yield,
    Sleep,
}

impl GiveWay {
    /// After a poll that moved `frames` frames. `vain`: polls in succession without a frame.
    /// `poll_time`: what a `ppoll` takes on this host.
    fn after(frames: usize, vain: &mut u32, poll_time: Duration) -> Self {
        if frames > 0 {
            *vain = 0;
            return Self::No;
        }
        *vain = vain.saturating_add(1);
        let sleeps = poll_time > DEAR_POLL && *vain > ONE_CPU_VAIN_POLLS;
        if sleeps { Self::Sleep } else { Self::Yield }
    }
}

thread_local! {
    static POLLS: Cell<Polls> = const { Cell::new(Polls::NONE) };
    /// Polls in succession without a frame, where all threads share one CPU.
    static ONE_CPU_POLLS: Cell<u32> = const { Cell::new(0) };
}

/// Counts a poll that moved `frames` frames, where all threads share one CPU: what the thread polls
/// for happens only while it does not run. It gives the CPU up after each poll in vain.
/// `poll_time`: what a `ppoll` takes on this host ([`DEAR_POLL`]).
pub(super) fn share_cpu(frames: usize, poll_time: Duration) {
    let mut vain = ONE_CPU_POLLS.get();
    let way = GiveWay::after(frames, &mut vain, poll_time);
    ONE_CPU_POLLS.set(vain);
    match way {
        GiveWay::No => {}
        GiveWay::Yield => std::thread::yield_now(),
        GiveWay::Sleep => std::thread::sleep(ONE_CPU_SLEEP),
    }
}

/// Counts a poll of the calling thread, at a daemon, that moved `frames` frames. If others need the
/// CPU, yields after a poll without a frame, and sleeps after too many in succession.
#[inline]
pub(super) fn count(frames: usize) {
    let mut polls = POLLS.get();
    let next = polls.count(frames);
    POLLS.set(polls);
    match next {
        Next::Poll => {}
        Next::Yield => std::thread::yield_now(),
        Next::Look => look(),
    }
}

#[cold]
fn look() {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return };
    let mut polls = POLLS.get();
    let sleeps = polls.look(usage.involuntary_context_switches());
    POLLS.set(polls);
    if sleeps {
        std::thread::sleep(SLEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_looks_after_many_polls_in_vain() {
        let mut polls = Polls::NONE;
        let mut looks = |frames: usize, times: u32| {
            (0..times).filter(|_| polls.count(frames) == Next::Look).count()
        };
        assert_eq!(looks(0, VAIN_POLLS - 1), 0);
        assert_eq!(looks(0, 1), 1);
        assert_eq!(looks(0, VAIN_POLLS - 1), 0);
        assert_eq!(looks(3, 1), 0, "a frame: from the beginning");
        assert_eq!(looks(0, 3 * VAIN_POLLS), 3);
    }

    #[test]
    fn a_thread_that_was_preempted_yields_after_each_poll_in_vain() {
        let mut polls = Polls::NONE;
        assert_eq!(polls.count(0), Next::Poll, "the CPU is its own");
        assert!(polls.look(1));
        assert_eq!([0, 0, 3, 0].map(|frames| polls.count(frames)), {
            [Next::Yield, Next::Yield, Next::Poll, Next::Yield]
        });
        let in_vain = |polls: &mut Polls| (0..VAIN_POLLS).map(|_| polls.count(0)).collect();
        let all: Vec<Next> = in_vain(&mut polls);
        assert_eq!(all.iter().filter(|&&next| next == Next::Look).count(), 1);
        assert!(!all.contains(&Next::Poll));
        while polls.look(1) {}
        assert!(!in_vain(&mut polls).contains(&Next::Yield), "no longer preempted");
    }

    #[test]
    fn a_thread_that_polls_in_vain_yields_the_only_cpu_and_where_that_is_dear_sleeps() {
        let mut vain = 0;
        let mut ways = |frames, nanos, times| {
            let way = |_| GiveWay::after(frames, &mut vain, Duration::from_nanos(nanos));
            (0..times).map(way).collect::<Vec<_>>()
        };
        assert_eq!(ways(0, 200, 100), [GiveWay::Yield; 100]);
        assert_eq!(ways(0, 1300, 100), [GiveWay::Yield; 100], "an emulated CPU");
        assert_eq!(ways(2, 15_000, 1), [GiveWay::No]);
        assert_eq!(ways(0, 15_000, 3), [GiveWay::Yield; 3]);
        assert_eq!(ways(0, 15_000, 2), [GiveWay::Sleep; 2]);
        assert_eq!(ways(1, 15_000, 1), [GiveWay::No]);
        assert_eq!(ways(0, 15_000, 1), [GiveWay::Yield]);
    }

    #[test]
    fn others_need_the_cpu_for_some_time_after_a_preemption() {
        let mut polls = Polls { preemptions: 5, ..Polls::NONE };
        assert!(!polls.look(5));
        assert!(polls.look(6));
        assert_eq!((0..2 * LOOKS).filter(|_| polls.look(6)).count(), LOOKS as usize - 1);
        assert!(polls.look(7));
    }
}
