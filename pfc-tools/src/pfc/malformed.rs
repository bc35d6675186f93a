//! Flow control frames with one invalid field, named as in
//! [`Finding`](feroce_wire::pause::Finding).

use feroce_wire::pause::{FRAME_LEN, OPCODE_PFC};
use feroce_wire::{FlowControl, FlowControlFrame};

/// The invalid field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Malformed {
    /// Wrong destination: the nearest-bridge group address
    Destination,
    /// Multicast source address
    Source,
    /// An 802.1Q tag
    Tagged,
    /// Wrong EtherType
    Ethertype,
    /// Opcode that is neither PFC nor PAUSE
    Opcode,
    /// Bits set in the upper byte of the class enable vector (PFC only)
    Vector,
    /// No priority enabled (PFC only)
    NoPriority,
    /// Quanta for a priority that is not enabled (PFC only)
    UnusedQuanta,
    /// Non-zero padding
    Padding,
    /// Shorter than the minimum Ethernet frame
    Short,
    /// Longer than a flow control frame
    Long,
}

impl Malformed {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Destination,
        Self::Source,
        Self::Tagged,
        Self::Ethertype,
        Self::Opcode,
        Self::Vector,
        Self::NoPriority,
        Self::UnusedQuanta,
        Self::Padding,
        Self::Short,
        Self::Long,
    ];

    /// Returns true if PAUSE frames have the field too.
    pub const fn fits_pause(self) -> bool {
        !matches!(self, Self::Vector | Self::NoPriority | Self::UnusedQuanta)
    }

    /// `frame` with this field made invalid; `salt` selects among invalid values.
    pub fn bytes(self, frame: &FlowControlFrame, salt: u8) -> Vec<u8> {
        let mut frame = *frame;
        if let FlowControl::Pfc { enabled, quanta } = &mut frame.control {
            match self {
                Self::NoPriority => (*enabled, *quanta) = (0, [0; 8]),
                Self::UnusedQuanta => {
                    let priority = usize::from(salt % 8);
                    *enabled &= !(1 << priority);
                    *enabled |= 1 << ((priority + 1) % 8);
                    quanta[priority] = u16::from(salt).max(1);
                }
                _ => {}
            }
        }
        let mut bytes = frame.to_bytes().to_vec();
        match self {
            Self::Destination => bytes[5] = 0x0e,
            Self::Source => bytes[6] |= 1,
            Self::Tagged => {
                bytes.splice(12..12, [0x81, 0x00, salt & 0xe0, salt]);
            }
            Self::Ethertype => bytes[12..14].copy_from_slice(&[0x88, 0xb5]), // For experiments.
            Self::Opcode => {
                let opcode = OPCODE_PFC + 1 + u16::from(salt);
                bytes[14..16].copy_from_slice(&opcode.to_be_bytes());
            }
            Self::Vector => bytes[16] = salt.max(1),
            Self::Padding => {
                let at = FRAME_LEN - 1 - usize::from(salt) % 26;
                bytes[at] = salt.max(1);
            }
            Self::Short => bytes.truncate(36 + usize::from(salt) % (FRAME_LEN - 36)),
            Self::Long => bytes.resize(FRAME_LEN + 1 + usize::from(salt), 0),
            Self::NoPriority | Self::UnusedQuanta => {}
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::ValueEnum;
    use feroce_wire::MacAddr;
    use feroce_wire::pause::{Finding, inspect};

    #[test]
    fn each_kind_gives_exactly_its_finding() {
        let src = MacAddr([2, 0, 0, 0, 0, 1]);
        let pfc = FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, 7, 0, 0, 0, 0] };
        for control in [pfc, FlowControl::Pause { quanta: 7 }] {
            let frame = FlowControlFrame { src, control };
            for kind in Malformed::ALL {
                if control != pfc && !kind.fits_pause() {
                    continue;
                }
                for salt in 0..=u8::MAX {
                    let bytes = kind.bytes(&frame, salt);
                    let seen = inspect(&bytes, bytes.len()).unwrap();
                    let found: Vec<_> = seen.findings.iter().map(Finding::kind).collect();
                    let name = kind.to_possible_value().unwrap().get_name().to_owned();
                    assert_eq!(found, [name], "{kind:?} {salt}");
                }
            }
        }
    }
}
