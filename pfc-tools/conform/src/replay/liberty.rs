//! What may differ between an engine and a capture, each with a name: what the specification leaves to an endpoint, what a capture
//! does not show, and what a known peer does against the specification.

use std::collections::BTreeMap;

use serde::Serialize;

/// A reason for which two packets, or two sequences of them, may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Liberty {
    /// IPv4 identification.
    Ipv4Id,
    /// IPv6 flow label.
    FlowLabel,
    /// ECN bits of the IP header.
    Ecn,
    /// MigReq of the BTH.
    MigReq,
    /// UDP source port of an answer.
    SourcePort,
    /// Which packets ask for an acknowledgement.
    AckRequest,
    /// Several acknowledgements in one.
    AckCoalescing,
    /// The MSN counts what completed behind what is answered.
    MsnAhead,
    /// Credits in the AETH.
    Credits,
    /// When the retransmission timer runs out.
    RetransmissionTimer,
    /// When a requester goes on after an RNR NAK.
    RnrTimer,
    /// The responder's program changed its own memory.
    LocalMemory,
    /// Lost on the way to the capture.
    NotCaptured,
    /// The capture starts or ends in the middle.
    CaptureEnds,
    /// NAK behind an RNR NAK.
    NakBehindRnrNak,
    /// NAK code of a message that is too long.
    LengthErrorCode,
    /// PSN of an acknowledgement before anything was received.
    AckBeforeFirst,
    /// Retries without end.
    RetryForEver,
    /// Compare operand of a fetch and add.
    UnusedOperand,
    /// Opcode of the first response to a READ that is asked for again.
    ReadResumed,
    /// Lost behind the place of the capture.
    NotDelivered,
    /// Reserved bits of the BTH.
    ReservedBits,
    /// Hop limit and DSCP of a live peer's answers.
    PathSettings,
}

impl Liberty {
    /// What differs, and why that is right or known.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ipv4Id => "the IPv4 identification may have any value",
            Self::FlowLabel => "the IPv6 flow label may have any value",
            Self::Ecn => "switches change the ECN bits",
            Self::MigReq => "peer's deviation: MigReq is 0 although no path migration is going on",
            Self::SourcePort => "the UDP source port of an answer may have any value",
            Self::AckRequest => "the requester chooses which packets ask for an acknowledgement",
            Self::AckCoalescing => "one acknowledgement may stand for several",
            Self::MsnAhead => "the MSN may count what completed between the request and its answer",
            Self::Credits => "credits depend on the receives that are posted",
            Self::RetransmissionTimer => {
                "the retransmission timer's value is not in the capture: it runs out where the capture sends again"
            }
            Self::RnrTimer => "the wait after an RNR NAK may be longer than asked for",
            Self::LocalMemory => "the responder's program changed its own memory",
            Self::NotCaptured => {
                "lost on the way to the place of the capture: what follows shows it"
            }
            Self::CaptureEnds => "the capture starts or ends in the middle",
            Self::NakBehindRnrNak => {
                "peer's deviation: a NAK (PSN sequence error) for the packet that an RNR NAK has refused before"
            }
            Self::LengthErrorCode => {
                "peer's deviation: NAK (remote operational error) for a message longer than its receive"
            }
            Self::AckBeforeFirst => {
                "peer's deviation: before anything was received a duplicate is acknowledged with the PSN -1"
            }
            Self::RetryForEver => {
                "peer's deviation: it goes on after seven retries without an answer"
            }
            Self::UnusedOperand => "the compare operand of a fetch and add has no meaning",
            Self::ReadResumed => {
                "peer's deviation: the answer to the rest of a READ goes on with Middle or Last, not with First or Only"
            }
            Self::NotDelivered => {
                "lost on the way from the place of the capture: the responder reports it missing"
            }
            Self::ReservedBits => "peer's deviation: reserved bits of the BTH are set",
            Self::PathSettings => {
                "the hop limit and the DSCP of answers are settings of the peer's path"
            }
        }
    }

    /// True for what a peer does against the specification.
    pub const fn is_deviation(self) -> bool {
        matches!(
            self,
            Self::MigReq
                | Self::NakBehindRnrNak
                | Self::LengthErrorCode
                | Self::AckBeforeFirst
                | Self::RetryForEver
                | Self::ReadResumed
                | Self::ReservedBits
        )
    }
}

/// The liberties taken, each with how often, and the first packet for which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken(BTreeMap<Liberty, (u64, u64)>);

impl Taken {
    /// Notes that `liberty` was taken for the packet `number`.
    pub fn take(&mut self, liberty: Liberty, number: u64) {
        self.0.entry(liberty).or_insert((0, number)).0 += 1;
    }

    /// How often `liberty` was taken.
    pub fn count(&self, liberty: Liberty) -> u64 {
        self.0.get(&liberty).map_or(0, |taken| taken.0)
    }

    /// Every liberty taken, how often, and the number of the first packet.
    pub fn iter(&self) -> impl Iterator<Item = (Liberty, u64, u64)> + '_ {
        self.0.iter().map(|(&liberty, &(count, first))| (liberty, count, first))
    }
}
