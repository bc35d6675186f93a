//! The sockets behind the descriptors that programs hold.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::names::{Calls, RSOCKETS, kernel};

/// Size of the table. Sockets behind higher descriptors stay kernel sockets.
const DESCRIPTORS: usize = 1 << 16;

/// Which implementation a socket belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A kernel socket.
    Kernel,
    /// An rsocket.
    Rsocket,
}

/// Next step for a kernel socket that is to become an rsocket in the process that first uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pending {
    /// None: the kind of socket is final.
    None,
    /// Neither listening nor connecting yet.
    Undecided,
    /// Listening.
    Listening,
    /// Connecting or connected.
    Active,
    /// Accepted.
    Passive,
}

/// The socket behind a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// Implementation.
    pub kind: Kind,
    /// Next step.
    pub pending: Pending,
    /// Descriptor in that implementation.
    pub fd: c_int,
}

impl Backing {
    /// Returns an entry for an rsocket.
    pub fn rsocket(fd: c_int) -> Self {
        Self { kind: Kind::Rsocket, pending: Pending::None, fd }
    }

    /// Returns an entry for a kernel socket.
    pub fn kernel(fd: c_int, pending: Pending) -> Self {
        Self { kind: Kind::Kernel, pending, fd }
    }

    /// Returns the functions of its implementation.
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
        #[allow(clippy::cast_possible_truncation)] // the lower half is the descriptor
        Some(Self { kind, pending, fd: (word as u32).cast_signed() })
    }
}

static TABLE: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];

fn entry(fd: c_int) -> Option<&'static AtomicU64> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Returns the socket behind a descriptor, if the program created it through this library.
pub fn find(fd: c_int) -> Option<Backing> {
    Backing::unpack(entry(fd)?.load(Ordering::Acquire))
}

/// Returns the socket behind any descriptor: the descriptor itself if there is no entry.
pub fn resolve(fd: c_int) -> Backing {
    find(fd).unwrap_or(Backing::kernel(fd, Pending::None))
}

/// Puts a socket behind a descriptor.
pub fn set(fd: c_int, backing: Backing) {
    if let Some(entry) = entry(fd) {
        entry.store(backing.pack(), Ordering::Release);
    }
}

/// Number of descriptors of each socket that has more than one.
fn shared() -> MutexGuard<'static, BTreeMap<c_int, usize>> {
    static SHARED: Mutex<BTreeMap<c_int, usize>> = Mutex::new(BTreeMap::new());
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a socket behind a further descriptor.
pub fn share(fd: c_int, backing: Backing) {
    *shared().entry(backing.fd).or_insert(1) += 1;
    set(fd, backing);
}

/// Removes the entry of a descriptor. Returns the socket, and true if this was its last descriptor.
pub fn take(fd: c_int) -> Option<(Backing, bool)> {
    let backing = Backing::unpack(entry(fd)?.swap(0, Ordering::AcqRel))?;
    let mut shared = shared();
    let Some(count) = shared.get_mut(&backing.fd) else { return Some((backing, true)) };
    *count -= 1;
    if *count == 1 {
        shared.remove(&backing.fd);
    }
    Some((backing, false))
}
