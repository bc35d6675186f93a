//! Permitted differences between the engine and a capture: what the specification leaves open, what
//! a capture does not show, and known deviations of peers.

use std::collections::BTreeMap;

use serde::Serialize;

/// A reason for which packets, or sequences of packets, may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tolerance {
    /// IPv4 identification.
    Ipv4Id,
    /// IPv6 flow label.
    FlowLabel,
    /// ECN bits of the IP header.
    Ecn,
    /// MigReq of the BTH.
    MigReq,
    /// UDP source port of a response.
    SourcePort,
    /// Which packets request an acknowledgement.
    AckRequest,
    /// Several acknowledgements combined into one.
    AckCoalescing,
    /// The MSN includes messages that completed later.
    MsnAhead,
    /// Credits in the AETH.
    Credits,
    /// When the retransmission timer runs out.
    RetransmissionTimer,
    /// When a requester continues after an RNR NAK.
    RnrTimer,
    /// The responder's application changed its own memory.
    LocalMemory,
    /// The packet was lost before the capture point.
    NotCaptured,
    /// The capture starts or ends in the middle.
    CaptureEnds,
    /// NAK after an RNR NAK.
    NakBehindRnrNak,
    /// NAK code for a message that is too long.
    LengthErrorCode,
    /// PSN of an acknowledgement before anything was received.
    AckBeforeFirst,
    /// Unlimited retries.
    UnlimitedRetries,
    /// Compare operand of a fetch and add.
    UnusedOperand,
    /// Opcode of the first response to a retransmitted READ.
    ReadResumed,
    /// The packet was lost after the capture point.
    NotDelivered,
    /// Reserved bits of the BTH.
    ReservedBits,
    /// Hop limit and DSCP of a live peer's responses.
    PathSettings,
    /// The capture has a hole: requests and responses that both ends had are missing.
    CaptureHole,
    /// A responder's failure of its own.
    OwnFailure,
    /// Transaction ID of an exchange of communication management.
    CmTransaction,
    /// Timeouts and retries of communication management.
    CmTimeouts,
    /// Fields of the path in a REQ that RoCE does not use.
    CmPath,
    /// Additional information in a REJ.
    CmInformation,
    /// An MRA: the response takes longer.
    CmWait,
}

impl Tolerance {
    /// Returns what differs and why it is permitted.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ipv4Id => "the IPv4 identification may have any value",
            Self::FlowLabel => "the IPv6 flow label may have any value",
            Self::Ecn => "switches change the ECN bits",
            Self::MigReq => {
                "peer's deviation: MigReq is 0 although no path migration is in progress"
            }
            Self::SourcePort => "the UDP source port of a response may have any value",
            Self::AckRequest => "the requester chooses which packets request an acknowledgement",
            Self::AckCoalescing => "one acknowledgement may stand for several",
            Self::MsnAhead => "the MSN may include messages that completed after the request",
            Self::Credits => "credits depend on the posted receives",
            Self::RetransmissionTimer => {
                "the retransmission timeout is not in the capture: it expires where the capture \
                 retransmits"
            }
            Self::RnrTimer => "the wait after an RNR NAK may be longer than its timer",
            Self::LocalMemory => "the responder's application changed its own memory",
            Self::NotCaptured => "lost before the capture point, as later packets show",
            Self::CaptureEnds => "the capture starts or ends in the middle",
            Self::NakBehindRnrNak => {
                "peer's deviation: a NAK (PSN sequence error) for a packet that already got an \
                 RNR NAK"
            }
            Self::LengthErrorCode => {
                "peer's deviation: NAK (remote operational error) for a message longer than its \
                 receive"
            }
            Self::AckBeforeFirst => {
                "peer's deviation: before anything is received, a duplicate is acknowledged with \
                 PSN -1"
            }
            Self::UnlimitedRetries => {
                "peer's deviation: it retries more than seven times without a response"
            }
            Self::UnusedOperand => "the compare operand of a fetch-and-add has no meaning",
            Self::ReadResumed => {
                "peer's deviation: the response to the rest of a READ begins with Middle or Last \
                 instead of First or Only"
            }
            Self::NotDelivered => "lost after the capture point: the responder reports it missing",
            Self::ReservedBits => "peer's deviation: reserved bits of the BTH are set",
            Self::PathSettings => {
                "the hop limit and the DSCP of responses are settings of the peer's path"
            }
            Self::CaptureHole => {
                "the capture has a hole: both ends had packets that it does not have"
            }
            Self::OwnFailure => {
                "the responder failed by itself (NAK remote operational error): ours refuses the \
                 same request"
            }
            Self::CmTransaction => "the end that starts an exchange chooses its transaction ID",
            Self::CmTimeouts => "each end chooses its timeouts and retries",
            Self::CmPath => "RoCE does not use LIDs, flow label, rate and service level of a REQ",
            Self::CmInformation => "the additional information of a REJ is optional",
            Self::CmWait => "an MRA is optional: its sender takes longer to respond",
        }
    }

    /// Returns true for a deviation of a peer from the specification.
    pub const fn is_deviation(self) -> bool {
        matches!(
            self,
            Self::MigReq
                | Self::NakBehindRnrNak
                | Self::LengthErrorCode
                | Self::AckBeforeFirst
                | Self::UnlimitedRetries
                | Self::ReadResumed
                | Self::ReservedBits
        )
    }
}

/// The permitted differences that occurred, each with its count and its first packet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsedTolerances(BTreeMap<Tolerance, (u64, u64)>);

impl UsedTolerances {
    /// Counts `tolerance` for the packet `number`.
    pub fn count_use(&mut self, tolerance: Tolerance, number: u64) {
        self.0.entry(tolerance).or_insert((0, number)).0 += 1;
    }

    /// Returns how often `tolerance` occurred.
    pub fn count(&self, tolerance: Tolerance) -> u64 {
        self.0.get(&tolerance).map_or(0, |used| used.0)
    }

    /// Returns every permitted difference that occurred, its count, and the number of the first
    /// packet.
    pub fn iter(&self) -> impl Iterator<Item = (Tolerance, u64, u64)> + '_ {
        self.0.iter().map(|(&tolerance, &(count, first))| (tolerance, count, first))
    }
}
