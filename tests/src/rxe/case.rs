//! A case of the rxe suite: a plan for a requester and a responder, the role of Feroce in it, and
//! the network fault.

use feroce_conform::endpoint::plan::{Family, Plan};
use feroce_wire::PathMtu;

/// Role of Feroce; rxe has the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Feroce posts the requests.
    Requester,
    /// Feroce responds to the requests.
    Responder,
}

impl Role {
    /// Both roles.
    pub const ALL: [Self; 2] = [Self::Requester, Self::Responder];

    /// Selects a value by the stack that is the requester. Used where the two stacks may respond
    /// differently, or where rxe deviates from the specification.
    pub fn pick<T>(self, feroce_requests: T, rxe_requests: T) -> T {
        match self {
            Self::Requester => feroce_requests,
            Self::Responder => rxe_requests,
        }
    }
}

/// A network fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The bridge drops every 50th frame, in either direction.
    EveryFiftiethLost,
    /// Frames from rxe are duplicated.
    Duplicated,
    /// Frames from rxe are reordered.
    Reordered,
    /// Bits in frames from rxe are flipped.
    Corrupted,
    /// The bridge marks every frame (CE), as a congested switch would. DCQCN is on in Feroce's
    /// device.
    Marked,
}

/// One case: a plan that Feroce and rxe carry out.
#[derive(Debug, Clone)]
pub struct Case {
    /// Unique name.
    pub name: String,
    /// Role of Feroce.
    pub role: Role,
    /// IP version.
    pub family: Family,
    /// Path MTU of both QPs.
    pub mtu: PathMtu,
    /// Network fault, if any.
    pub fault: Option<Fault>,
    /// Requests, receives and expected results.
    pub plan: Plan,
}

impl Case {
    /// Returns true if rxe posts fenced requests: it may then stop forever.
    pub fn may_stall_at_fence(&self) -> bool {
        self.role == Role::Responder && self.plan.requests.iter().any(|request| request.fence)
    }
}
