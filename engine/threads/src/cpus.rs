//! Sets of CPUs, and the CPUs of threads.

use std::fmt;
use std::io;

/// Words of a set: room for 8192 CPUs, the kernel's maximum.
const WORDS: usize = 128;

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CpuSet([u64; WORDS]);

impl Default for CpuSet {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl CpuSet {
    /// Returns the CPUs that the kernel lets `thread` run on; 0 is the calling thread. Includes the
    /// limits of the process's cgroup.
    ///
    /// # Errors
    /// ESRCH if there is no such thread.
    pub fn of(thread: i32) -> io::Result<Self> {
        let mut set = Self::default();
        let room = size_of_val(&set.0);
        // SAFETY: the kernel writes at most `room` bytes to the set.
        let length =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, room, set.0.as_mut_ptr()) };
        if length < 0 { Err(io::Error::last_os_error()) } else { Ok(set) }
    }

    /// Moves the calling thread to these CPUs.
    ///
    /// # Errors
    /// EINVAL if the cgroup of the process allows none of them.
    pub(crate) fn apply(&self) -> io::Result<()> {
        let room = size_of_val(&self.0);
        // SAFETY: the kernel reads `room` bytes of the set.
        let code = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, room, self.0.as_ptr()) };
        if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the CPUs that the cgroup of the process allows, found by requesting all CPUs. The
    /// calling thread may run on any of them meanwhile, and is back on `now` afterwards.
    pub(crate) fn allowed(now: &Self) -> Self {
        let allowed = Self([u64::MAX; WORDS]).apply().and_then(|()| Self::of(0));
        let _ = now.apply(); // Fails if the cgroup changes meanwhile: the kernel has moved it.
        allowed.unwrap_or(*now)
    }

    /// Adds `cpu`. CPUs beyond the kernel's maximum are ignored.
    pub fn add(&mut self, cpu: usize) {
        if let Some(word) = self.0.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }

    /// Returns true if `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word & 1 << (cpu % 64) != 0)
    }

    /// Returns the number of CPUs.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns true if the set has no CPU.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the CPUs that are in one of the sets.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    /// Returns the CPUs that are in both sets.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    /// Returns the CPUs that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// Returns the numbers of the CPUs.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..WORDS * 64).filter(|cpu| self.contains(*cpu))
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::default();
        cpus.into_iter().for_each(|cpu| set.add(cpu));
        set
    }
}
