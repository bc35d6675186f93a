//! States of an identifier, and which of them a message is for.

/// How far the program has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Made.
    Idle,
    /// It has an address and a port.
    Bound,
    /// The way to a peer is looked for.
    AddrQuery,
    /// Found.
    AddrResolved,
    /// The path is looked for.
    RouteQuery,
    /// Found.
    RouteResolved,
    /// It listens.
    Listen,
    /// It connects, is connected, or was refused.
    Connect,
    /// It was connected.
    Disconnect,
}

/// How far the conversation has come. *Late* states: the peer takes, or may take, longer, and a message that is sent again is
/// told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nothing was said, or all is over.
    Idle,
    /// Active: asked.
    ReqSent,
    /// Active: the peer says that its answer takes longer.
    ReqSentLate,
    /// Passive: asked, and the program may take its time.
    ReqReceived,
    /// Passive: accepted.
    RepSent,
    /// Passive: accepted, and the peer says that its answer takes longer.
    RepSentLate,
    /// Active: the peer has accepted, and the program may take its time.
    RepReceived,
    /// The connection stands.
    Established,
    /// Wants to end it.
    DreqSent,
    /// The peer wants to end it.
    DreqReceived,
    /// Ended; packets may be under way.
    Timewait,
    /// Asked who answers datagrams.
    SidrReqSent,
    /// Was asked.
    SidrReqReceived,
}

impl State {
    /// Waits for a REP.
    pub(super) const fn awaits_rep(self) -> bool {
        matches!(self, Self::ReqSent | Self::ReqSentLate)
    }

    /// Waits for an RTU.
    pub(super) const fn awaits_rtu(self) -> bool {
        matches!(self, Self::RepSent | Self::RepSentLate)
    }

    /// A DREQ ends it.
    pub(super) const fn takes_dreq(self) -> bool {
        self.awaits_rtu() || matches!(self, Self::Established | Self::DreqSent)
    }

    /// A DREP ends it.
    pub(super) const fn takes_drep(self) -> bool {
        matches!(self, Self::DreqSent | Self::DreqReceived)
    }

    /// Parameters for a QP are known.
    pub(super) const fn has_peer(self) -> bool {
        self.awaits_rtu()
            || matches!(self, Self::ReqReceived | Self::RepReceived | Self::Established)
    }

    /// What a REJ makes of it.
    pub(super) const fn after_rej(self) -> Option<AfterRej> {
        match self {
            Self::ReqSent
            | Self::ReqSentLate
            | Self::ReqReceived
            | Self::RepSent
            | Self::RepSentLate => Some(AfterRej::IdleUnlessStale),
            Self::RepReceived | Self::Established | Self::DreqSent => Some(AfterRej::Timewait),
            _ => None,
        }
    }
}

/// What a REJ makes of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRej {
    /// It is over; if the reason is a stale connection, packets of that may be under way.
    IdleUnlessStale,
    /// It is over, and packets may be under way.
    Timewait,
}
