//! Who may access a region: protection domains, rights, and why an access is refused.

use std::ops::{BitOr, BitOrAssign};

use feroce_wire::Qpn;

/// Number of a protection domain. A QP can access regions of its own domain only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// The originator of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Protection domain that the memory must be in.
    pub pd: PdId,
    /// The QP whose peer makes the access; `None` for the program's own requests. Only peers can
    /// use windows.
    pub peer_of: Option<Qpn>,
}

impl From<PdId> for Scope {
    fn from(pd: PdId) -> Self {
        Self { pd, peer_of: None }
    }
}

/// Rights of a memory region, a window or a QP, with the bit values of `ibv_access_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(pub(super) u32);

impl Access {
    /// Local reads, which are always allowed.
    pub const NONE: Self = Self(0);
    /// The engine may write the region for its own program: receives, READ data, results of
    /// atomics.
    pub const LOCAL_WRITE: Self = Self(1);
    /// A peer may RDMA WRITE. Needs [`Access::LOCAL_WRITE`].
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// A peer may RDMA READ.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// A peer may use atomics. Needs [`Access::LOCAL_WRITE`].
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Windows may be bound to the region.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses start at zero instead of the first byte's address. Not a right.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Pages may be unmapped and mapped again while the memory is registered. Not a right.
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// The memory consists of huge pages: a hint, not used here. Not a right.
    pub const HUGETLB: Self = Self(1 << 7);
    /// A peer may FLUSH to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// A peer may FLUSH to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);
    /// Accesses may be reordered: a permission, not used here. Not a right.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);
    /// A peer may invalidate the key with SEND WITH INVALIDATE.
    ///
    /// Verbs has this right only for fast-registered regions and type 2 windows; the bit is
    /// Feroce's own.
    pub const REMOTE_INVALIDATE: Self = Self(1 << 30);
    /// All rights to volatile memory.
    pub const ALL: Self = Self(0x11f | 1 << 30);
    /// Rights that a QP gives to its peer, or a window to the holders of its key.
    pub const REMOTE: Self = Self(0x30e);
    /// All defined bits.
    const KNOWN: Self = Self(0x3ff | 1 << 20 | 1 << 30);

    /// Returns the rights whose bits are set in `bits`; `None` if a bit is unknown.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !Self::KNOWN.0 == 0 { Some(Self(bits)) } else { None }
    }

    /// Returns the bits, as in `ibv_access_flags`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the rights of `self` that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if a right of `other` is in `self`.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns true if every right of `other` is in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}

/// Why an access to registered memory is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No valid region has this key.
    #[error("no memory region has this key")]
    Key,
    /// The region is in another protection domain.
    #[error("the memory region belongs to another protection domain")]
    ProtectionDomain,
    /// The region lacks a right that the access needs.
    #[error("the memory region does not grant this access")]
    Rights,
    /// The range leaves the region.
    #[error("the access leaves the memory region")]
    Bounds,
    /// The key belongs to a window that was bound on another QP.
    #[error("the memory window belongs to another QP")]
    OtherQp,
    /// Windows are bound to the region.
    #[error("memory windows are bound to the region")]
    Bound,
    /// No memory is mapped at an address of an on-demand region.
    #[error("no memory is mapped at the address")]
    Unmapped,
    /// An atomic's address is not a multiple of eight.
    #[error("the address of an atomic is not a multiple of 8")]
    Misaligned,
}

/// A registered range: `len` bytes at `host`, which requests address as `iova..iova + len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Address of the first byte in work requests and peers' requests.
    pub iova: u64,
    /// Address of the first byte in this process.
    pub host: u64,
    /// Length in bytes.
    pub len: u64,
    /// Protection domain.
    pub pd: PdId,
    /// Access rights.
    pub access: Access,
}

impl Region {
    /// The null region: all addresses, for reads and writes of every QP in the domain.
    pub(crate) fn null(pd: PdId) -> Self {
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        Self { iova: 0, host: 0, len: u64::MAX, pd, access }
    }
}
