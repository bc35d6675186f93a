//! Any bytes parse to a packet or a typed error, never a panic, and the place where a frame is
//! split into two slices does not change the result.

mod common;

use feroce_wire::icrc::{icrc, icrc_reference};
use feroce_wire::{FlowHeader, Opcode, Packet, ParseError, Payload, VlanTag};
use proptest::{collection::vec, prelude::*, sample::Index};

/// Parses a frame; on success, calls everything that reads its bytes.
fn exercise(first: &[u8], second: &[u8]) -> Result<(), ParseError> {
    let packet = Packet::parse(first, second)?;
    let _ = packet.icrc_valid();
    let _ = packet.to_string();
    let whole = [first, second].concat();
    let mut out = vec![0; whole.len()];
    assert_eq!(packet.emit(&mut out), Ok(whole.len()));
    assert_eq!(out, whole, "{packet}");
    Ok(())
}

prop_compose! {
    /// A correct frame of any opcode, IP version, VLAN tag and size.
    fn valid_frame()(
        opcode in any::<Index>(),
        v6: bool,
        vlan in proptest::option::of(any::<u16>().prop_map(VlanTag::from_tci)),
        payload_len in 0usize..200,
        ip_id: u16,
    ) -> Vec<u8> {
        let opcodes: Vec<_> = Opcode::all().copied().collect();
        let flow = FlowHeader::new(&common::flow_spec(v6, vlan));
        common::sealed(opcode.get(&opcodes), &flow, payload_len, ip_id)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_do_not_panic(
        first in vec(any::<u8>(), 0..160), second in vec(any::<u8>(), 0..40),
    ) {
        let _ = exercise(&first, &second);
    }

    /// Short packets have a sum of their own: of any bytes, it is that of the reference.
    #[test]
    fn the_icrc_of_any_bytes_is_the_reference(
        mut bytes in vec(any::<u8>(), 60..330), version in 0u8..16,
    ) {
        bytes[0] = version << 4 | 5;
        let covered = Payload { first: &bytes, second: &[] };
        prop_assert_eq!(icrc(covered), icrc_reference(covered));
    }

    #[test]
    fn mutated_frames_do_not_panic(
        mut frame in valid_frame(),
        changes in vec((any::<Index>(), any::<u8>()), 0..6),
        cut in any::<Index>(),
        split in any::<Index>(),
    ) {
        for (at, value) in changes {
            *at.get_mut(&mut frame) = value;
        }
        frame.truncate(cut.index(frame.len() + 1));
        let split = split.index(frame.len() + 1);
        let _ = exercise(&frame[..split], &frame[split..]);
    }

    /// A split after the headers changes nothing; a split within them is `HeadersSplit` with the
    /// position.
    #[test]
    fn a_split_changes_nothing_or_is_an_error(frame in valid_frame()) {
        let whole = Packet::parse(&frame, &[]).unwrap();
        prop_assert!(whole.icrc_valid());
        let headers = frame.len() - 4 - usize::from(whole.bth.pad) - whole.payload.len();
        for split in 0..=frame.len() {
            let (first, second) = frame.split_at(split);
            match Packet::parse(first, second) {
                Ok(packet) => {
                    prop_assert!(split >= headers);
                    prop_assert!(packet.icrc_valid());
                    prop_assert_eq!(packet.bth, whole.bth);
                    prop_assert_eq!(packet.ext, whole.ext);
                    prop_assert_eq!(packet.payload.slices().concat(), whole.payload.first);
                    exercise(first, second).unwrap();
                }
                Err(error) => {
                    prop_assert!(split < headers, "{}", error);
                    let is_split =
                        matches!(error, ParseError::HeadersSplit { have, .. } if have == split);
                    prop_assert!(is_split, "{}", error);
                }
            }
        }
    }

    /// A frame truncated to any length is an error.
    #[test]
    fn every_truncation_is_an_error(frame in valid_frame()) {
        for len in 0..frame.len() {
            prop_assert!(Packet::parse(&frame[..len], &[]).is_err());
        }
    }

    /// Ethernet padding becomes the trailer, wherever the frame is split.
    #[test]
    fn padding_becomes_the_trailer(
        frame in valid_frame(), trailer in vec(any::<u8>(), 1..20), split in any::<Index>(),
    ) {
        let padded = [frame.clone(), trailer.clone()].concat();
        let whole = Packet::parse(&frame, &[]).unwrap();
        let headers = frame.len() - 4 - usize::from(whole.bth.pad) - whole.payload.len();
        let split = headers + split.index(padded.len() - headers + 1);
        let (first, second) = padded.split_at(split);
        let packet = Packet::parse(first, second).unwrap();
        prop_assert_eq!(packet.trailer.slices().concat(), trailer);
        prop_assert!(packet.icrc_valid());
        exercise(first, second).unwrap();
    }
}
