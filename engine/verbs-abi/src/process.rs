//! State that belongs to one process. A forked child has a copy of its parent's memory but not its
//! threads, and must create its own state.

use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Number of forks between the program's first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns the generation of this process. Forks are counted from the first call on.
pub fn generation() -> u32 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler only increments an atomic, which is permitted in a child of a
        // threaded process.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

/// Returns true if this process created something that was created in the generation `born`.
#[inline]
pub fn is_own(born: u32) -> bool {
    GENERATION.load(Ordering::Relaxed) == born
}

/// A static value that each process creates on first use. The child does not use the parent's copy,
/// which another thread may have locked during the fork.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    newest: AtomicPtr<(u32, T)>,
    make: fn() -> T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Creates the static; `make` creates the value of each process.
    pub const fn new(make: fn() -> T) -> Self {
        Self { newest: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// Returns the value of this process.
    pub fn get(&'static self) -> &'static T {
        let generation = generation();
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: values are never freed: a child must not drop its copy of the parent's value.
        if let Some((born, value)) = unsafe { newest.as_ref() }
            && *born == generation
        {
            return value;
        }
        let made = Box::into_raw(Box::new((generation, (self.make)())));
        match self.newest.compare_exchange(newest, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the value was created above and is never freed.
            Ok(_) => unsafe { &(*made).1 },
            Err(theirs) => {
                // SAFETY: the value was created above and not published.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: another thread of this process published its value, which is never freed.
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
    fn a_forked_child_creates_its_own_value() {
        static NUMBERS: PerProcess<Mutex<Vec<u32>>> = PerProcess::new(Mutex::default);
        NUMBERS.get().lock().unwrap().push(7);
        assert_eq!(*NUMBERS.get().lock().unwrap(), [7]);
        let held = NUMBERS.get().lock().unwrap();
        // SAFETY: the child only tries the lock of its own value, which no thread holds, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_empty = NUMBERS.get().try_lock().is_ok_and(|numbers| numbers.is_empty());
            // SAFETY: the function takes no pointers.
            unsafe { libc::_exit(is_empty.into()) };
        }
        drop(held);
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 1);
        assert_eq!(*NUMBERS.get().lock().unwrap(), [7]);
    }
}
