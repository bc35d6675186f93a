//! What belongs to a process: a forked child has a copy of its parent's memory, but neither its threads nor, in the end, its
//! descriptors, and begins anew.

use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// How many forks lie between the program's first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The generation of this process. From the first call on, forks are noticed.
pub fn generation() -> u32 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a child of a threaded process.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

/// Whether something that was made in the generation `born` is this process' own.
#[inline]
pub fn is_own(born: u32) -> bool {
    GENERATION.load(Ordering::Relaxed) == born
}

/// A static value that each process makes for itself when it first asks for it. What a thread of the parent was doing to
/// the parent's while it forked - holding a lock, say - is nothing to the child.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    newest: AtomicPtr<(u32, T)>,
    make: fn() -> T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Made by `make`.
    pub const fn new(make: fn() -> T) -> Self {
        Self { newest: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// This process' value.
    pub fn get(&'static self) -> &'static T {
        let generation = generation();
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: what the pointer once held is never freed: a child's copy of its parent's value is not the child's to drop.
        if let Some((born, value)) = unsafe { newest.as_ref() }
            && *born == generation
        {
            return value;
        }
        let made = Box::into_raw(Box::new((generation, (self.make)())));
        match self.newest.compare_exchange(newest, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as above.
            Ok(_) => unsafe { &(*made).1 },
            Err(theirs) => {
                // SAFETY: nobody else has it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: as above; another thread of this process has been faster.
                unsafe { &(*theirs).1 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_child_begins_anew() {
        static NUMBERS: PerProcess<Mutex<Vec<u32>>> = PerProcess::new(Mutex::default);
        NUMBERS.get().lock().unwrap().push(7);
        assert_eq!(*NUMBERS.get().lock().unwrap(), [7]);
        let held = NUMBERS.get().lock().unwrap();
        // SAFETY: the child looks at its own value, whose lock nobody holds, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_empty = NUMBERS.get().try_lock().is_ok_and(|numbers| numbers.is_empty());
            // SAFETY: nothing is left to do.
            unsafe { libc::_exit(is_empty.into()) };
        }
        drop(held);
        let mut status = 0;
        // SAFETY: the status is written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 1);
        assert_eq!(*NUMBERS.get().lock().unwrap(), [7]);
    }
}
