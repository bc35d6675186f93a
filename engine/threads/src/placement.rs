//! The CPUs of Feroce's threads.
//!
//! A new thread inherits the CPUs of the thread that starts it. If a program binds its polling
//! thread to a CPU and opens a device there, Feroce's threads would run on that CPU only, and take
//! it from the program between two of its calls.
//!
//! * The CPUs of the process are those at its start, which `taskset`, a container or a service
//!   manager has chosen, and those of its threads now. A process that was confined as a whole stays
//!   inside.
//! * A thread of the program that has exactly one of several CPUs of the process is taken for one
//!   that polls: Feroce's threads keep off its CPU.
//! * If such threads have every CPU of the process, Feroce's threads share the CPUs, with the
//!   policy `SCHED_BATCH`: when they wake up, they wait for the running thread to sleep or to use
//!   up its time slice.
//!
//! CPUs that an administrator has given to a thread of Feroce stay (`taskset -p`).

use std::fs;
use std::io;
use std::sync::OnceLock;

use crate::cpus::CpuSet;

/// First bytes of the names of Feroce's threads, and of those that poll on a CPU of their own.
const OWN: &str = "feroce-";
const POLLING: &str = "feroce-poll-";

/// CPUs of the process at its start.
static AT_START: OnceLock<CpuSet> = OnceLock::new();

/// Runs when the program or the library is loaded, before the program can bind a thread.
#[used]
// SAFETY: the section holds pointers to functions that the loader calls once with arguments that
// this function ignores.
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = {
    extern "C" fn remember() {
        if let Ok(cpus) = CpuSet::of(0) {
            let _ = AT_START.set(cpus); // Set only here.
        }
    }
    remember
};

/// Chooses the CPUs of the calling thread, again and again as the program's threads change.
#[derive(Debug, Default)]
pub struct Placement {
    /// CPUs given last.
    given: Option<CpuSet>,
    /// The policy is `SCHED_BATCH`.
    is_batch: bool,
}

/// Where Feroce's threads belong.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    cpus: CpuSet,
    /// Threads that poll have all of these CPUs.
    shares: bool,
}

impl Placement {
    /// Moves the calling thread to the CPUs that it should have now. Does nothing if somebody else
    /// has moved the thread since the last call, or if the kernel refuses.
    pub fn update(&mut self) {
        let Ok(now) = CpuSet::of(0) else { return };
        if self.given.is_some_and(|given| given != now) {
            return;
        }
        // Keeps the object file with the static when the library is linked from an archive.
        std::hint::black_box(&REMEMBER);
        let Choice { cpus, shares } =
            choose(AT_START.get().copied().unwrap_or(now), &threads(false));
        if cpus != now && cpus.apply().is_err() {
            return;
        }
        // The kernel leaves out CPUs that the cgroup forbids.
        self.given = CpuSet::of(0).ok();
        if shares != self.is_batch && set_batch(shares) {
            self.is_batch = shares;
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
    /// A thread of Feroce that keeps off the CPUs of others.
    is_own: bool,
}

/// Chooses from the CPUs `at_start` and the threads of the process.
fn choose(at_start: CpuSet, threads: &[Thread]) -> Choice {
    let all = threads.iter().fold(at_start, |all, thread| all.with(&thread.cpus));
    let is_bound = |thread: &&Thread| !thread.is_own && thread.cpus.count() == 1;
    let bound = threads.iter().filter(is_bound);
    let bound = bound.fold(CpuSet::default(), |bound, thread| bound.with(&thread.cpus));
    let free = all.without(&bound);
    match free.is_empty() {
        false => Choice { cpus: free, shares: false },
        // One CPU for the whole process: a thread that has it may as well sleep.
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
    let found = others.filter_map(|id| {
        let cpus = CpuSet::of(id).ok()?; // Otherwise the thread has just ended.
        let name = || fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap_or_default();
        let is_own = cpus.count() == 1 && is_own(&name());
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
    use super::*;

    fn thread(cpus: impl IntoIterator<Item = usize>) -> Thread {
        Thread { cpus: cpus.into_iter().collect(), is_own: false }
    }

    fn cpus(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
        cpus.into_iter().collect()
    }

    #[test]
    fn threads_keep_off_the_cpus_of_bound_threads() {
        let choice = choose(cpus(0..4), &[thread([2]), thread(0..4)]);
        assert_eq!(choice, Choice { cpus: cpus([0, 1, 3]), shares: false });
        // A single-threaded program that has bound itself.
        let choice = choose(cpus(0..4), &[thread([3])]);
        assert_eq!(choice, Choice { cpus: cpus(0..3), shares: false });
        // Groups of CPUs, as of a NUMA node, are nobody's own.
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
    fn a_thread_that_an_administrator_moved_stays() {
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
