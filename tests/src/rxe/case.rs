//! What a case is: a plan for a requester and a responder, the role that Feroce plays in it, and the
//! network between them.

use feroce_conform::endpoint::plan::{Family, Plan};
use feroce_wire::PathMtu;

/// What Feroce is; rxe is the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It posts the requests.
    Requester,
    /// It answers them.
    Responder,
}

impl Role {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Requester, Self::Responder];

    /// One of two values, by who requests: where a stack is free in what it answers, or is wrong.
    pub fn pick<T>(self, feroce_requests: T, rxe_requests: T) -> T {
        match self {
            Self::Requester => feroce_requests,
            Self::Responder => rxe_requests,
        }
    }
}

/// What the network does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Every 50th frame is lost on the bridge, whichever way it goes.
    EveryFiftiethLost,
    /// Frames of rxe come twice.
    Duplicated,
    /// Frames of rxe overtake others.
    Reordered,
    /// Bits of frames of rxe are flipped.
    Corrupted,
    /// Every frame is marked (CE) on the bridge, as by a congested switch. Feroce's device has DCQCN.
    Marked,
}

/// A plan between Feroce and rxe.
#[derive(Debug, Clone)]
pub struct Case {
    /// Unique.
    pub name: String,
    /// Feroce's part.
    pub role: Role,
    /// How packets travel.
    pub family: Family,
    /// Path MTU of both QPs.
    pub mtu: PathMtu,
    /// What the network does to them.
    pub fault: Option<Fault>,
    /// What is to happen.
    pub plan: Plan,
}
