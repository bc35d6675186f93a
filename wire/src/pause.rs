//! Flow control of a link: PFC (IEEE 802.1Qbb, 802.3 annex 31D), which pauses single
//! priorities, and PAUSE (802.3 annex 31B), which pauses all of them.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |             destination address 01:80:c2:00:00:01             |
//! +-------------------------------+-------------------------------+
//! |   ... destination address     |        source address         |
//! +-------------------------------+-------------------------------+
//! |                    ... source address                         |
//! +-------------------------------+-------------------------------+
//! |       EtherType 0x8808        |  opcode 0x0101 (PAUSE: 0x0001)|
//! +---------------+---------------+-------------------------------+
//! |       0       | class enable  | quanta of priority 0 (PAUSE:  |
//! |               |    vector     | quanta instead of the vector) |
//! +---------------+---------------+-------------------------------+
//! |     quanta of priority 1      |     quanta of priority 2      |
//! +-------------------------------+-------------------------------+
//! |              ... to priority 7, then zeros up to 60 bytes     |
//! +---------------------------------------------------------------+
//! ```
//!
//! A quantum is the time of 512 bits on the link; 0 quanta end a pause. The frames are untagged and
//! are never forwarded beyond the neighbour.

use thiserror::Error;

use crate::ethernet::ETHERTYPE_VLAN;
use crate::{EthernetHeader, MacAddr, VlanTag};

/// Destination address of flow-control frames; no bridge forwards it.
pub const DESTINATION: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);
/// EtherType of MAC control.
pub const ETHERTYPE_MAC_CONTROL: u16 = 0x8808;
/// MAC control opcode of PAUSE.
pub const OPCODE_PAUSE: u16 = 0x0001;
/// MAC control opcode of PFC.
pub const OPCODE_PFC: u16 = 0x0101;
/// Length of both frames without FCS: the minimum of Ethernet.
pub const FRAME_LEN: usize = 60;
/// Bits per quantum.
pub const QUANTUM_BITS: u32 = 512;

/// Length of the frame check sequence (FCS), which some captures contain.
const FCS_LEN: usize = 4;
/// EtherTypes of an 802.1ad tag, and of its predecessor before the standard.
const OTHER_TAGS: [u16; 2] = [0x88a8, 0x9100];

/// The request of a flow-control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowControl {
    /// PFC.
    Pfc {
        /// Class enable vector: one bit per priority, priority 0 the lowest.
        enabled: u8,
        /// Pause time of each enabled priority in quanta; 0 for the others.
        quanta: [u16; 8],
    },
    /// PAUSE: every priority.
    Pause {
        /// Pause time in quanta.
        quanta: u16,
    },
}

impl FlowControl {
    /// MAC control opcode.
    #[must_use]
    pub const fn opcode(self) -> u16 {
        match self {
            Self::Pfc { .. } => OPCODE_PFC,
            Self::Pause { .. } => OPCODE_PAUSE,
        }
    }
}

/// A flow-control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowControlFrame {
    /// Source address: the station that requests the pause.
    pub src: MacAddr,
    /// The request.
    pub control: FlowControl,
}

/// A field of the frame that violates the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Finding {
    /// The frame has an 802.1Q tag.
    #[error("tagged with VLAN {} and priority {}: flow control is untagged", .0.id, .0.pcp)]
    Tagged(VlanTag),
    /// PFC to another address, or PAUSE to another group address. Unicast PAUSE is allowed.
    #[error("destination {0}, expected {DESTINATION}")]
    Destination(MacAddr),
    /// The source is a group address.
    #[error("source {0} is a group address")]
    Source(MacAddr),
    /// Sent to the flow-control address with an EtherType other than MAC control.
    #[error("EtherType {0:#06x}, expected {ETHERTYPE_MAC_CONTROL:#06x}")]
    EtherType(u16),
    /// MAC control, but neither PFC nor PAUSE.
    #[error("opcode {0:#06x} is neither PFC ({OPCODE_PFC:#06x}) nor PAUSE ({OPCODE_PAUSE:#06x})")]
    Opcode(u16),
    /// The upper byte of the class enable vector, which is reserved.
    #[error("class enable vector {0:#06x}: its upper byte is not 0")]
    Vector(u16),
    /// No priority is enabled.
    #[error("no priority is enabled")]
    NoPriority,
    /// Quanta for priorities that are not enabled; one bit per such priority.
    #[error("quanta of priorities that are not enabled (mask {0:#04x})")]
    UnusedQuanta(u8),
    /// Padding that is not zero.
    #[error("padding byte {value:#04x} at offset {at}, expected 0")]
    Padding {
        /// Offset of the first such byte in the frame.
        at: u16,
        /// Its value.
        value: u8,
    },
    /// Shorter than Ethernet allows: a receiver drops it.
    #[error("{0} bytes long: shorter than {FRAME_LEN}")]
    Short(u32),
    /// Longer than a flow-control frame.
    #[error("{0} bytes long, expected {FRAME_LEN}")]
    Long(u32),
    /// The capture contains too little of the frame for the other checks.
    #[error("only {0} bytes were captured")]
    Cut(u32),
}

impl Finding {
    /// A stable name of the fault, for machines.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Tagged(_) => "tagged",
            Self::Destination(_) => "destination",
            Self::Source(_) => "source",
            Self::EtherType(_) => "ethertype",
            Self::Opcode(_) => "opcode",
            Self::Vector(_) => "vector",
            Self::NoPriority => "no-priority",
            Self::UnusedQuanta(_) => "unused-quanta",
            Self::Padding { .. } => "padding",
            Self::Short(_) => "short",
            Self::Long(_) => "long",
            Self::Cut(_) => "cut",
        }
    }

    /// Returns true if a receiver still accepts the frame as flow control, because receivers do not
    /// check this field.
    #[must_use]
    pub const fn is_harmless(self) -> bool {
        match self {
            Self::Source(_)
            | Self::Vector(_)
            | Self::NoPriority
            | Self::UnusedQuanta(_)
            | Self::Padding { .. }
            | Self::Long(_)
            | Self::Cut(_) => true,
            Self::Tagged(_)
            | Self::Destination(_)
            | Self::EtherType(_)
            | Self::Opcode(_)
            | Self::Short(_) => false,
        }
    }
}

/// Maximum number of faults in one frame.
const FINDINGS_MAX: usize = 8;

/// The faults of a frame, in the order of its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    list: [Option<Finding>; FINDINGS_MAX],
}

impl Findings {
    fn push(&mut self, finding: Finding) {
        if let Some(place) = self.list.iter_mut().find(|place| place.is_none()) {
            *place = Some(finding);
        }
    }

    /// Iterates over the faults.
    pub fn iter(&self) -> impl Iterator<Item = Finding> + '_ {
        self.list.iter().flatten().copied()
    }

    /// Returns true if there is no fault.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.list[0].is_none()
    }
}

/// A frame that is flow control or resembles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Source address.
    pub src: MacAddr,
    /// The request, if it is readable.
    pub control: Option<FlowControl>,
    /// Faults of the frame.
    pub findings: Findings,
}

impl Inspection {
    /// The request that a receiver obeys; `None` if it does not accept the frame as flow control.
    #[must_use]
    pub fn obeyed(&self) -> Option<FlowControl> {
        self.control.filter(|_| !self.is_refused())
    }

    /// Returns true if no receiver accepts the frame as flow control. Returns false for a frame
    /// that the capture has truncated: that is unknown.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        !self.findings.iter().all(Finding::is_harmless)
    }
}

impl FlowControlFrame {
    /// The frame as sent, without FCS.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FRAME_LEN] {
        let mut bytes = [0; FRAME_LEN];
        let ethernet =
            EthernetHeader { dst: DESTINATION, src: self.src, ethertype: ETHERTYPE_MAC_CONTROL };
        ethernet.write(&mut bytes);
        let mut put = |at: usize, value: u16| {
            bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        put(EthernetHeader::LEN, self.control.opcode());
        match self.control {
            FlowControl::Pfc { enabled, quanta } => {
                put(EthernetHeader::LEN + 2, u16::from(enabled));
                (0..).zip(quanta).for_each(|(n, time)| put(EthernetHeader::LEN + 4 + 2 * n, time));
            }
            FlowControl::Pause { quanta } => put(EthernetHeader::LEN + 2, quanta),
        }
        bytes
    }
}

/// Checks every field of a frame. `bytes` is the captured part; `wire_len` is the length of the
/// frame on the link without FCS. An FCS at the end is recognised by its value. Returns `None` for
/// a frame that is neither MAC control nor sent to the flow-control address.
#[must_use]
pub fn inspect(bytes: &[u8], wire_len: usize) -> Option<Inspection> {
    let ethernet = EthernetHeader::parse(bytes).ok()?;
    let (tag, ethertype, body) = behind_tags(ethernet.ethertype, &bytes[EthernetHeader::LEN..]);
    let is_control = ethertype == ETHERTYPE_MAC_CONTROL;
    if !is_control && ethernet.dst != DESTINATION {
        return None;
    }
    let mut findings = Findings::default();
    let mut control = None;
    let opcode = word(body, 0).filter(|_| is_control);
    let allowed = ethernet.dst == DESTINATION
        || (opcode == Some(OPCODE_PAUSE) && !ethernet.dst.is_multicast());
    let head = [
        (!allowed).then_some(Finding::Destination(ethernet.dst)),
        ethernet.src.is_multicast().then_some(Finding::Source(ethernet.src)),
        tag.map(Finding::Tagged),
        (!is_control).then_some(Finding::EtherType(ethertype)),
    ];
    head.into_iter().flatten().for_each(|finding| findings.push(finding));
    let used = match opcode {
        Some(OPCODE_PFC) => {
            control = pfc(body, &mut findings);
            20
        }
        Some(OPCODE_PAUSE) => {
            control = word(body, 2).map(|quanta| FlowControl::Pause { quanta });
            4
        }
        Some(other) => {
            findings.push(Finding::Opcode(other));
            body.len()
        }
        None => body.len(),
    };
    let wire_len = wire_len.max(bytes.len());
    let wire_len = if ends_in_fcs(bytes, wire_len) { FRAME_LEN } else { wire_len };
    if is_control {
        let used = bytes.len() - body.len() + used;
        check_padding_and_length(
            &bytes[..bytes.len().min(wire_len)],
            used,
            wire_len,
            &mut findings,
        );
    }
    Some(Inspection { src: ethernet.src, control, findings })
}

/// The first tag, if any, the EtherType after all tags, and the rest of the frame.
fn behind_tags(mut ethertype: u16, mut rest: &[u8]) -> (Option<VlanTag>, u16, &[u8]) {
    let mut first = None;
    while ethertype == ETHERTYPE_VLAN || OTHER_TAGS.contains(&ethertype) {
        let (Some(tci), Some(next)) = (word(rest, 0), word(rest, 2)) else { break };
        first = first.or(Some(VlanTag::from_tci(tci)));
        ethertype = next;
        rest = &rest[VlanTag::LEN..];
    }
    (first, ethertype, rest)
}

fn pfc(body: &[u8], findings: &mut Findings) -> Option<FlowControl> {
    let vector = word(body, 2)?;
    let [high, enabled] = vector.to_be_bytes();
    if high != 0 {
        findings.push(Finding::Vector(vector));
    }
    if enabled == 0 {
        findings.push(Finding::NoPriority);
    }
    let mut quanta = [0; 8];
    let mut unused = 0;
    for (n, time) in quanta.iter_mut().enumerate() {
        let is_enabled = enabled >> n & 1 == 1;
        match word(body, 4 + 2 * n) {
            Some(value) => *time = value,
            // Bytes that the capture lacks do not matter here.
            None if !is_enabled => {}
            None => return None,
        }
        if !is_enabled && *time != 0 {
            unused |= 1 << n;
        }
    }
    if unused != 0 {
        findings.push(Finding::UnusedQuanta(unused));
    }
    Some(FlowControl::Pfc { enabled, quanta })
}

/// Checks the padding from offset `used` on, and the length.
fn check_padding_and_length(bytes: &[u8], used: usize, wire_len: usize, findings: &mut Findings) {
    let padding = bytes.get(used..bytes.len().min(FRAME_LEN)).unwrap_or_default();
    if let Some(at) = padding.iter().position(|&byte| byte != 0) {
        let value = padding[at];
        findings.push(Finding::Padding { at: u16::try_from(used + at).unwrap_or(u16::MAX), value });
    }
    let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    // A tag makes a frame of the right length longer; the tag itself has been reported.
    let due =
        FRAME_LEN + if findings.iter().any(|f| matches!(f, Finding::Tagged(_))) { 4 } else { 0 };
    if wire_len < FRAME_LEN {
        findings.push(Finding::Short(count(wire_len)));
    } else if wire_len > due {
        findings.push(Finding::Long(count(wire_len)));
    }
    if bytes.len() < wire_len.min(FRAME_LEN) {
        findings.push(Finding::Cut(count(bytes.len())));
    }
}

/// Returns true if the frame has the right length plus an FCS.
fn ends_in_fcs(bytes: &[u8], wire_len: usize) -> bool {
    let Some((frame, fcs)) = bytes.split_at_checked(FRAME_LEN) else { return false };
    wire_len == FRAME_LEN + FCS_LEN
        && fcs.len() == FCS_LEN
        && crc32fast::hash(frame).to_le_bytes() == fcs
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::vec::Vec;

    const SRC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x2a]);

    fn frame() -> [u8; FRAME_LEN] {
        let control =
            FlowControl::Pfc { enabled: 1 << 3 | 1, quanta: [7, 0, 0, 0xffff, 0, 0, 0, 0] };
        FlowControlFrame { src: SRC, control }.to_bytes()
    }

    fn kinds(bytes: &[u8]) -> Vec<&'static str> {
        inspect(bytes, bytes.len()).unwrap().findings.iter().map(Finding::kind).collect()
    }

    /// 802.1Qbb, annex 31B, annex 31D.
    #[test]
    fn literal_bytes() {
        let mut expected = [0; FRAME_LEN];
        let head =
            [0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 0x2a, 0x88, 0x08, 0x01, 0x01, 0, 9, 0, 7];
        expected[..20].copy_from_slice(&head);
        expected[24..26].fill(0xff);
        assert_eq!(frame(), expected);
        let pause = FlowControlFrame { src: SRC, control: FlowControl::Pause { quanta: 0x1234 } };
        assert_eq!(pause.to_bytes()[12..20], [0x88, 0x08, 0, 1, 0x12, 0x34, 0, 0]);
    }

    #[test]
    fn each_wrong_field_is_named() {
        let changed = |at: usize, value: u8| {
            let mut bytes = frame();
            bytes[at] = value;
            kinds(&bytes)
        };
        assert_eq!(kinds(&frame()), [""; 0]);
        assert_eq!(changed(5, 2), ["destination"]);
        assert_eq!(changed(6, 3), ["source"]);
        assert_eq!(changed(13, 0x09), ["ethertype"]);
        assert_eq!(changed(15, 0x02), ["opcode"]);
        assert_eq!(changed(16, 0x80), ["vector"]);
        assert_eq!(changed(17, 0), ["no-priority", "unused-quanta"]);
        assert_eq!(changed(21, 1), ["unused-quanta"]);
        assert_eq!(changed(34, 1), ["padding"]);
        assert_eq!(changed(59, 1), ["padding"]);
        assert_eq!(kinds(&frame()[..59]), ["short"]);
        assert_eq!(kinds(&frame()[..16]), ["short"]);
        assert_eq!(kinds(&[&frame()[..], &[0]].concat()), ["long"]);
    }

    #[test]
    fn a_tag_is_wrong_and_what_is_behind_it_is_shown() {
        let plain = frame();
        let tagged = [&plain[..12], &[0x81, 0x00, 0x60, 0x05], &plain[12..]].concat();
        assert_eq!(kinds(&tagged), ["tagged"]);
        let seen = inspect(&tagged, tagged.len()).unwrap();
        assert_eq!(seen.control, inspect(&plain, 60).unwrap().control);
        assert_eq!((seen.obeyed(), inspect(&plain, 60).unwrap().obeyed()), (None, seen.control));
        // As long as Ethernet allows, the tag included.
        assert_eq!(kinds(&tagged[..60]), ["tagged"]);
    }

    #[test]
    fn pause_may_go_to_one_station_and_pfc_may_not() {
        let mut bytes =
            FlowControlFrame { src: SRC, control: FlowControl::Pause { quanta: 1 } }.to_bytes();
        bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        assert_eq!(kinds(&bytes), [""; 0]);
        bytes[0] = 3;
        assert_eq!(kinds(&bytes), ["destination"]);
    }

    #[test]
    fn a_check_sequence_does_not_make_a_frame_too_long() {
        let frame = frame();
        let with = [&frame[..], &crc32fast::hash(&frame).to_le_bytes()].concat();
        assert_eq!(kinds(&with), [""; 0]);
        assert_eq!(kinds(&[&frame[..], &[1, 2, 3, 4]].concat()), ["long"]);
    }

    #[test]
    fn a_truncated_frame_is_reported_as_truncated() {
        let seen = inspect(&frame()[..32], 60).unwrap();
        assert_eq!(seen.findings.iter().collect::<Vec<_>>(), [Finding::Cut(32)]);
        assert!(seen.obeyed().is_some(), "the last priority is not there, and not enabled");
        let seen = inspect(&frame()[..25], 60).unwrap();
        assert_eq!((seen.control, seen.is_refused()), (None, false), "priority 3 is not there");
    }

    #[test]
    fn other_frames_are_not_inspected() {
        let mut bytes = frame();
        bytes[5] = 0x0e; // the address of LLDP
        bytes[12..14].copy_from_slice(&[0x88, 0xcc]);
        assert_eq!(inspect(&bytes, 60), None);
        assert_eq!(inspect(&bytes[..13], 13), None);
    }
}
