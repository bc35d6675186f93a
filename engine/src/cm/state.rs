//! States of an identifier, and which messages each state accepts.

/// Progress of the program's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Created.
    Idle,
    /// Has a local address and port.
    Bound,
    /// Address resolution is running.
    AddrQuery,
    /// The address is resolved.
    AddrResolved,
    /// Route resolution is running.
    RouteQuery,
    /// The route is resolved.
    RouteResolved,
    /// Listens.
    Listen,
    /// Connecting, connected or rejected.
    Connect,
    /// Was connected.
    Disconnect,
}

/// Progress of the connection. In the `Mra` states the peer has sent an MRA, because
/// its response takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Before the first message, or after the end.
    Idle,
    /// Active: REQ sent.
    ReqSent,
    /// Active: REQ sent, and the peer has sent an MRA.
    MraReqReceived,
    /// Passive: REQ received; the program decides.
    ReqReceived,
    /// Passive: REP sent.
    RepSent,
    /// Passive: REP sent, and the peer has sent an MRA.
    MraRepReceived,
    /// Active: REP received; the program confirms.
    RepReceived,
    /// Connected.
    Established,
    /// DREQ sent.
    DreqSent,
    /// DREQ received.
    DreqReceived,
    /// Ended; packets may still be in flight.
    Timewait,
    /// SIDR REQ sent.
    SidrReqSent,
    /// SIDR REQ received.
    SidrReqReceived,
}

impl State {
    /// Returns true while a REP is awaited.
    pub(super) const fn awaits_rep(self) -> bool {
        matches!(self, Self::ReqSent | Self::MraReqReceived)
    }

    /// Returns true while an RTU is awaited.
    pub(super) const fn awaits_rtu(self) -> bool {
        matches!(self, Self::RepSent | Self::MraRepReceived)
    }

    /// Returns true if a DREQ ends this connection.
    pub(super) const fn takes_dreq(self) -> bool {
        self.awaits_rtu() || matches!(self, Self::Established | Self::DreqSent)
    }

    /// Returns true if a DREP ends this connection.
    pub(super) const fn takes_drep(self) -> bool {
        matches!(self, Self::DreqSent | Self::DreqReceived)
    }

    /// Returns true if the parameters of the peer's QP are known.
    pub(super) const fn has_peer(self) -> bool {
        self.awaits_rtu()
            || matches!(self, Self::ReqReceived | Self::RepReceived | Self::Established)
    }

    /// Returns the change of state by a REJ; `None` if the REJ is ignored.
    pub(super) const fn after_rej(self) -> Option<AfterRej> {
        match self {
            Self::ReqSent
            | Self::MraReqReceived
            | Self::ReqReceived
            | Self::RepSent
            | Self::MraRepReceived => Some(AfterRej::IdleUnlessStale),
            Self::RepReceived | Self::Established | Self::DreqSent => Some(AfterRej::Timewait),
            _ => None,
        }
    }
}

/// The effect of a REJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRej {
    /// The connection ends. With the reason "stale connection" it enters timewait, because
    /// packets of the stale connection may be in flight.
    IdleUnlessStale,
    /// The connection ends and enters timewait.
    Timewait,
}
