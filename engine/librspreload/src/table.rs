//! What is behind the descriptors that programs hold for sockets.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::names::{Calls, RSOCKETS, kernel};

/// Descriptors above are the program's own.
const DESCRIPTORS: usize = 1 << 16;

/// Whose a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kernel's.
    Kernel,
    /// An rsocket.
    Rsocket,
}

/// What is left to do for a socket of the kernel that is to become an rsocket in whichever process uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pending {
    /// Nothing.
    None,
    /// It is not known yet what it will be.
    Undecided,
    /// It listens.
    Listening,
    /// It connects, or has.
    Active,
    /// It was accepted.
    Passive,
}

/// What is behind a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind {
    /// Whose it is.
    pub kind: Kind,
    /// What is left to do.
    pub pending: Pending,
    /// Its descriptor there.
    pub fd: c_int,
}

impl Behind {
    /// An rsocket.
    pub fn rsocket(fd: c_int) -> Self {
        Self { kind: Kind::Rsocket, pending: Pending::None, fd }
    }

    /// A socket of the kernel.
    pub fn kernel(fd: c_int, pending: Pending) -> Self {
        Self { kind: Kind::Kernel, pending, fd }
    }

    /// Who serves it.
    pub fn calls(&self) -> &'static Calls {
        match self.kind {
            Kind::Kernel => kernel(),
            Kind::Rsocket => &RSOCKETS,
        }
    }

    fn pack(self) -> u64 {
        let kind = match self.kind {
            Kind::Kernel => 1,
            Kind::Rsocket => 2,
        };
        u64::from(self.fd.cast_unsigned()) | kind << 32 | (self.pending as u64) << 40
    }

    fn unpack(word: u64) -> Option<Self> {
        let kind = match word >> 32 & 0xff {
            1 => Kind::Kernel,
            2 => Kind::Rsocket,
            _ => return None,
        };
        let pending = match word >> 40 {
            1 => Pending::Undecided,
            2 => Pending::Listening,
            3 => Pending::Active,
            4 => Pending::Passive,
            _ => Pending::None,
        };
        #[allow(clippy::cast_possible_truncation)] // The lower half.
        Some(Self { kind, pending, fd: (word as u32).cast_signed() })
    }
}

static TABLE: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];

fn entry(fd: c_int) -> Option<&'static AtomicU64> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// What is behind a descriptor, if it is one of a socket that the program made.
pub fn find(fd: c_int) -> Option<Behind> {
    Behind::unpack(entry(fd)?.load(Ordering::Acquire))
}

/// What is behind any descriptor: itself, if nothing else is.
pub fn resolve(fd: c_int) -> Behind {
    find(fd).unwrap_or(Behind::kernel(fd, Pending::None))
}

/// Puts something behind a descriptor.
pub fn set(fd: c_int, behind: Behind) {
    if let Some(entry) = entry(fd) {
        entry.store(behind.pack(), Ordering::Release);
    }
}

/// How many descriptors a socket has, if more than one.
fn shared() -> MutexGuard<'static, BTreeMap<c_int, usize>> {
    static SHARED: Mutex<BTreeMap<c_int, usize>> = Mutex::new(BTreeMap::new());
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Another descriptor has the same behind it.
pub fn share(fd: c_int, behind: Behind) {
    *shared().entry(behind.fd).or_insert(1) += 1;
    set(fd, behind);
}

/// Takes what is behind a descriptor away from it, and says whether this was the last one.
pub fn take(fd: c_int) -> Option<(Behind, bool)> {
    let behind = Behind::unpack(entry(fd)?.swap(0, Ordering::AcqRel))?;
    let mut shared = shared();
    let Some(count) = shared.get_mut(&behind.fd) else { return Some((behind, true)) };
    *count -= 1;
    if *count == 1 {
        shared.remove(&behind.fd);
    }
    Some((behind, false))
}
