//! The memory layout of a scenario: regions with different access rights, and the allocation of
//! ranges in the pool.

use feroce_engine::memory::Access;

use super::random::Random;

/// One of an end's memory regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// With all rights; most requests use this region.
    Pool,
    /// Remote read access only.
    ReadOnly,
    /// Belongs to another protection domain.
    Foreign,
    /// Registered at addresses close to the end of the address space, so that address plus length
    /// may wrap.
    Top,
    /// Deregistered or invalidated during the scenario.
    Revoked(usize),
}

/// Maximum number of [`Area::Revoked`] regions per end.
pub const MAX_REVOKED: usize = 2;

/// Length of each [`Area::Revoked`] in bytes.
pub const REVOKED_LEN: usize = 6000;

/// Bytes from the start of [`Area::Top`] to the end of the address space.
pub const TOP_BYTES: usize = 256;

/// First address of [`Area::Top`].
pub const TOP_ADDRESS: u64 = u64::MAX - 255;

/// Length of [`Area::Top`] in bytes.
pub const TOP_LEN: usize = 200;

impl Area {
    /// All regions.
    pub const ALL: [Self; 4 + MAX_REVOKED] =
        [Self::Pool, Self::ReadOnly, Self::Foreign, Self::Top, Self::Revoked(0), Self::Revoked(1)];

    /// Returns the index in [`Area::ALL`].
    pub fn index(self) -> usize {
        match self {
            Self::Pool => 0,
            Self::ReadOnly => 1,
            Self::Foreign => 2,
            Self::Top => 3,
            Self::Revoked(n) => 4 + n,
        }
    }

    /// Returns the length in bytes.
    pub fn len(self) -> usize {
        match self {
            Self::Pool => 48 << 10,
            Self::ReadOnly | Self::Foreign => 512,
            Self::Top => TOP_LEN,
            Self::Revoked(_) => REVOKED_LEN,
        }
    }

    /// Returns the access rights.
    pub fn access(self) -> Access {
        match self {
            Self::ReadOnly => Access::REMOTE_READ,
            _ => Access::ALL,
        }
    }
}

/// A range of bytes in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// End that the region belongs to.
    pub end: usize,
    /// The region.
    pub area: Area,
    /// Offset of the first byte in the region.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// Allocates disjoint ranges of an end's pool, with gaps between them that no request may touch.
#[derive(Debug)]
pub struct PoolAllocator {
    end: usize,
    next: usize,
}

impl PoolAllocator {
    /// Creates the allocator of the pool of `end`.
    pub fn new(end: usize) -> Self {
        Self { end, next: 0 }
    }

    /// Allocates `len` bytes at a multiple of `align`. Returns `None` if the pool is used up.
    pub fn take(&mut self, random: &mut Random, len: usize, align: usize) -> Option<Range> {
        let offset = (self.next + random.between(1, 9)).next_multiple_of(align);
        let end = offset + len;
        if end + 16 > Area::Pool.len() {
            return None;
        }
        self.next = end;
        Some(Range { end: self.end, area: Area::Pool, offset, len })
    }

    /// Allocates `len` bytes in up to four pieces, some of them empty.
    pub fn pieces(&mut self, random: &mut Random, len: usize) -> Option<Vec<Range>> {
        let count = random.weighted(&[(60, 1), (20, 2), (10, 3), (10, 4)]);
        let mut left = len;
        let mut pieces = Vec::with_capacity(count);
        for piece in 0..count {
            let part = if piece + 1 == count { left } else { random.between(0, left) };
            pieces.push(self.take(random, part, 1)?);
            left -= part;
        }
        Some(pieces)
    }
}
