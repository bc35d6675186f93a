//! Numbers of objects, each unique in its device.

/// Number of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// Number of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// Number of an XRC domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct XrcDomainId(pub u32);
