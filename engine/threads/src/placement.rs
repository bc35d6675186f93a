//! The CPUs of Feroce's threads.
//!
//! A new thread inherits the CPUs of the thread that starts it. If a program binds its polling
//! thread to a CPU and opens a device there, Feroce's threads would run on that CPU only, and take
//! it from the program between two of its calls.
//!
//! * The CPUs of the process are those of the program's threads that have several. If all of its
//!   threads have exactly one CPU, they are those at the start of the process, which `taskset`, a
//!   container or a service manager has chosen. A process that is confined as a whole, at its start
//!   or later to several CPUs, stays inside.
//! * A thread of the program that has exactly one of several CPUs of the process is assumed to
//!   poll: Feroce's threads do not run on its CPU.
//! * If such threads have every CPU of the process, Feroce's threads share the CPUs, with the
//!   policy `SCHED_BATCH`: when they wake up, they wait for the running thread to sleep or to use
//!   up its time slice. A thread may also choose so for a while ([`Placement::defer`]).
//!
//! CPUs that an administrator has given to a thread of Feroce stay (`taskset -p`), unless they are
//! all that the cgroup of the process allows. When the cgroup changes, Feroce chooses again.
//!
//! Limit: the CPUs at the start are read when the library is loaded, as those of the loading thread
//! and of the main thread. A program whose threads all have one and the same CPU at that time, and
//! which loads the library by `dlopen`, looks like one that `taskset` has confined to this CPU:
//! Feroce's threads run there, with the policy `SCHED_OTHER`.

use std::fs;
use std::io;
use std::sync::OnceLock;

use crate::cpus::CpuSet;

/// First bytes of the names of Feroce's threads, and of those that poll on a CPU of their own.
const OWN: &str = "feroce-";
const POLLING: &str = "feroce-poll-";

/// CPUs of the process at its start, or when the program loaded the library by `dlopen`.
static AT_START: OnceLock<CpuSet> = OnceLock::new();

/// Runs when the program or the library is loaded, before the program can bind a thread.
#[used]
// SAFETY: the section holds pointers to functions that the loader calls once with arguments that
// this function ignores.
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = {
    extern "C" fn remember() {
        if cfg!(miri) {
            return; // Miri does not know the system call.
        }
        if let Ok(cpus) = CpuSet::of(0) {
            // SAFETY: the function takes no argument. The process's id is the main thread's.
            let main = CpuSet::of(unsafe { libc::getpid() }).unwrap_or(cpus);
            let _ = AT_START.set(cpus.with(&main)); // Set only here.
        }
    }
    remember
};

/// Chooses the CPUs of the calling thread, again and again as the program's threads change.
#[derive(Debug, Default)]
pub struct Placement {
    /// The last choice.
    placed: Option<Placed>,
    /// CPUs that an administrator has given.
    left: Option<CpuSet>,
    /// Threads that poll have all CPUs of the process.
    shares: bool,
    /// See [`Placement::defer`].
    defers: bool,
    /// The policy is `SCHED_BATCH`.
    is_batch: bool,
}

/// CPUs that a thread was moved to.
#[derive(Debug, Clone, Copy)]
struct Placed {
    wanted: CpuSet,
    /// The CPUs of `wanted` that the kernel gave: the cgroup may forbid some.
    given: CpuSet,
}

impl Placed {
    /// Returns true if the kernel, not an administrator, has moved the thread to `now`, because the
    /// cgroup allows `allowed` now. Linux before 6.2 gives all of them.
    fn is_narrowed(&self, now: CpuSet, allowed: CpuSet) -> bool {
        now == allowed || now == self.wanted.within(&allowed)
    }
}

/// Where Feroce's threads belong.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    cpus: CpuSet,
    /// Threads that poll have all of these CPUs.
    shares: bool,
}

impl Placement {
    /// Moves the calling thread to the CPUs that it should have now. Does nothing if an
    /// administrator has moved the thread since the last call, or if the kernel refuses.
    pub fn update(&mut self) {
        let Ok(now) = CpuSet::of(0) else { return };
        if self.left == Some(now) {
            return;
        }
        let moved = self.placed.filter(|placed| placed.given != now);
        if moved.is_some_and(|placed| !placed.is_narrowed(now, CpuSet::allowed(&now))) {
            self.left = Some(now);
            return;
        }
        self.left = None;
        // Keeps the object file with the static when the library is linked from an archive.
        std::hint::black_box(&REMEMBER);
        let (at_start, threads) = (AT_START.get().copied().unwrap_or(now), threads(false));
        let Choice { mut cpus, mut shares } = choose(at_start, &threads);
        if cpus != now && cpus.apply().is_err() {
            // The cgroup forbids all of them, since the start of the process.
            let allowed = at_start.within(&CpuSet::allowed(&now));
            Choice { cpus, shares } = choose(allowed, &threads);
            if cpus.apply().is_err() {
                return;
            }
        }
        self.placed = CpuSet::of(0).ok().map(|given| Placed { wanted: cpus, given });
        self.shares = shares;
        self.update_policy();
    }

    /// From now on or no longer, the calling thread waits when it wakes up: for the running thread
    /// to sleep or to use up its time slice (`SCHED_BATCH`).
    pub fn defer(&mut self, defers: bool) {
        self.defers = defers;
        self.update_policy();
    }

    fn update_policy(&mut self) {
        let batch = self.shares || self.defers;
        if batch != self.is_batch && set_batch(batch) {
            self.is_batch = batch;
        }
    }
}

/// Returns the CPUs that a thread of Feroce gets now.
pub fn cpus() -> CpuSet {
    std::hint::black_box(&REMEMBER);
    let now = CpuSet::of(0).unwrap_or_default();
    choose(AT_START.get().copied().unwrap_or(now), &threads(true)).cpus
}

/// Binds the calling thread to `cpu`.
///
/// # Errors
/// EINVAL if the process may not use this CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    CpuSet::from_iter([cpu]).apply()
}

/// A thread of the process.
#[derive(Debug, Clone, Copy)]
struct Thread {
    cpus: CpuSet,
    /// A thread of Feroce, except one that polls on a CPU of its own. Its CPUs say nothing about
    /// those of the program.
    is_own: bool,
}

/// Chooses from the CPUs `at_start` and the threads of the process.
fn choose(at_start: CpuSet, threads: &[Thread]) -> Choice {
    let (mut bound, mut several) = (CpuSet::default(), CpuSet::default());
    for Thread { cpus, .. } in threads.iter().filter(|thread| !thread.is_own) {
        let set = if cpus.count() == 1 { &mut bound } else { &mut several };
        *set = set.with(cpus);
    }
    let all = if several.is_empty() { at_start } else { several }.with(&bound);
    let free = all.without(&bound);
    match free.is_empty() {
        false => Choice { cpus: free, shares: false },
        // The process has one CPU: its threads need not be polling threads.
        true => Choice { cpus: all, shares: all.count() > 1 },
    }
}

/// Returns the threads of this process, with or without the calling one. A new thread has inherited
/// its CPUs.
fn threads(with_caller: bool) -> Vec<Thread> {
    // SAFETY: the function takes no argument.
    let own = unsafe { libc::gettid() };
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let ids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let others = ids.filter(|id| with_caller || *id != own);
    let mut several = CpuSet::default();
    let found = others.filter_map(|id| {
        let cpus = CpuSet::of(id).ok()?; // Otherwise the thread has just ended.
        let name = || fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap_or_default();
        let is_own = match cpus.count() {
            1 => is_own(&name()),
            // These CPUs are known already, so the name need not be read.
            _ if cpus.without(&several).is_empty() => false,
            _ => name().starts_with(OWN),
        };
        if !is_own && cpus.count() > 1 {
            several = several.with(&cpus);
        }
        Some(Thread { cpus, is_own })
    });
    found.collect()
}

/// Returns true for the name of a thread of Feroce that does not poll on a CPU of its own.
fn is_own(name: &str) -> bool {
    name.starts_with(OWN) && !name.starts_with(POLLING)
}

/// Sets the policy of the calling thread to `SCHED_BATCH`, or back to `SCHED_OTHER`. Returns true
/// if it was changed; a real-time policy stays.
fn set_batch(is_batch: bool) -> bool {
    let (from, to) = match is_batch {
        true => (libc::SCHED_OTHER, libc::SCHED_BATCH),
        false => (libc::SCHED_BATCH, libc::SCHED_OTHER),
    };
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and `none` outlives the call.
    unsafe {
        libc::sched_getscheduler(0) == from && libc::sched_setscheduler(0, to, &raw const none) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Held by tests that bind a thread of this process: the choice for another thread depends on
    /// it.
    fn binding_threads() -> MutexGuard<'static, ()> {
        static BINDING: Mutex<()> = Mutex::new(());
        BINDING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(cpus: impl IntoIterator<Item = usize>) -> Thread {
        Thread { cpus: cpus.into_iter().collect(), is_own: false }
    }

    fn cpus(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
        cpus.into_iter().collect()
    }

    #[test]
    fn threads_do_not_run_on_cpus_of_bound_threads() {
        let choice = choose(cpus(0..4), &[thread([2]), thread(0..4)]);
        assert_eq!(choice, Choice { cpus: cpus([0, 1, 3]), shares: false });
        // A single-threaded program that has bound itself.
        let choice = choose(cpus(0..4), &[thread([3])]);
        assert_eq!(choice, Choice { cpus: cpus(0..3), shares: false });
        // A thread that is bound to a group of CPUs, such as a NUMA node, is not assumed to poll.
        let choice = choose(cpus(0..4), &[thread(0..2), thread(2..4)]);
        assert_eq!(choice, Choice { cpus: cpus(0..4), shares: false });
    }

    #[test]
    fn a_confined_process_stays_inside() {
        assert_eq!(choose(cpus([5]), &[thread([5])]), Choice { cpus: cpus([5]), shares: false });
        let choice = choose(cpus([5, 6]), &[thread([5, 6]), thread([6])]);
        assert_eq!(choice, Choice { cpus: cpus([5]), shares: false });
    }

    #[test]
    fn a_process_that_confines_itself_later_stays_inside() {
        let choice = choose(cpus(0..8), &[thread(0..2)]);
        assert_eq!(choice, Choice { cpus: cpus(0..2), shares: false });
        let own = Thread { is_own: true, ..thread(0..8) };
        let choice = choose(cpus(0..8), &[thread(0..3), own, thread([2])]);
        assert_eq!(choice, Choice { cpus: cpus(0..2), shares: false });
        let choice = choose(cpus(0..8), &[thread(0..2), thread([0]), thread([1])]);
        assert_eq!(choice, Choice { cpus: cpus(0..2), shares: true });
    }

    #[test]
    fn a_change_of_the_cgroup_is_the_kernels() {
        let placed = Placed { wanted: cpus(1..4), given: cpus(1..4) };
        assert!(placed.is_narrowed(cpus(1..3), cpus(0..3)));
        assert!(placed.is_narrowed(cpus([0]), cpus([0])), "it allows none of the wanted ones");
        assert!(!placed.is_narrowed(cpus([1]), cpus(0..4)), "`taskset -p`");
        let placed = Placed { given: cpus(1..3), ..placed };
        assert!(placed.is_narrowed(cpus(1..4), cpus(0..8)), "it is wide again");
    }

    #[test]
    fn reading_the_allowed_cpus_moves_no_thread() {
        let _alone = binding_threads();
        let run = || {
            let before = CpuSet::of(0).unwrap();
            let cpu = before.iter().next().unwrap();
            pin(cpu).unwrap();
            let allowed = CpuSet::allowed(&cpus([cpu]));
            assert_eq!(CpuSet::of(0).unwrap(), cpus([cpu]));
            assert!(before.without(&allowed).is_empty());
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn without_a_free_cpu_threads_share() {
        let choice = choose(cpus(0..2), &[thread([0]), thread([1])]);
        assert_eq!(choice, Choice { cpus: cpus(0..2), shares: true });
    }

    #[test]
    fn own_threads_are_bound_to_nothing() {
        let own = Thread { is_own: true, ..thread([1]) };
        let choice = choose(cpus(0..2), &[thread([0]), own]);
        assert_eq!(choice, Choice { cpus: cpus([1]), shares: false });
        assert!(is_own("feroce-0\n") && is_own("feroce-cm-paths\n"));
        assert!(!is_own("feroce-poll-0\n") && !is_own("reactor_0\n"));
    }

    #[test]
    fn a_thread_defers_until_told_otherwise_or_while_cpus_are_shared() {
        let policy = || {
            // SAFETY: 0 is the calling thread.
            unsafe { libc::sched_getscheduler(0) }
        };
        let mut placement = Placement::default();
        let mut then = |shares, defers| {
            placement.shares = shares;
            placement.defer(defers);
            policy()
        };
        assert_eq!(then(false, false), libc::SCHED_OTHER);
        assert_eq!(then(false, true), libc::SCHED_BATCH);
        assert_eq!(then(true, false), libc::SCHED_BATCH);
        assert_eq!(then(false, false), libc::SCHED_OTHER);
    }

    #[test]
    fn a_thread_that_an_administrator_moved_stays() {
        let _alone = binding_threads();
        let run = || {
            let mut placement = Placement::default();
            placement.update();
            let Some(cpu) = CpuSet::of(0).unwrap().iter().next() else { return };
            pin(cpu).unwrap();
            placement.update();
            assert_eq!(CpuSet::of(0).unwrap(), cpus([cpu]));
        };
        std::thread::Builder::new()
            .name("feroce-test".to_owned())
            .spawn(run)
            .unwrap()
            .join()
            .unwrap();
    }

    #[test]
    fn the_cpus_at_the_start_are_known() {
        assert!(!AT_START.get().expect("the loader called the function").is_empty());
    }
}
