//! Flow-control frames: a written frame parses without faults, and any bytes parse to a value.

use feroce_wire::pause::{FRAME_LEN, Finding, inspect};
use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};
use proptest::{collection::vec, prelude::*, sample::Index};

fn frames() -> impl Strategy<Value = FlowControlFrame> {
    let pfc = (1_u8.., any::<[u16; 8]>()).prop_map(|(enabled, mut quanta)| {
        (0..8).filter(|n| enabled >> n & 1 == 0).for_each(|n| quanta[n] = 0);
        FlowControl::Pfc { enabled, quanta }
    });
    let pause = any::<u16>().prop_map(|quanta| FlowControl::Pause { quanta });
    (any::<[u8; 6]>(), prop_oneof![pfc, pause]).prop_map(|(mut src, control)| {
        src[0] &= !1;
        FlowControlFrame { src: MacAddr(src), control }
    })
}

proptest! {
    #[test]
    fn a_written_frame_is_read_back(frame in frames()) {
        let seen = inspect(&frame.to_bytes(), FRAME_LEN).unwrap();
        prop_assert!(seen.findings.is_empty(), "{:?}", seen);
        prop_assert_eq!((seen.src, seen.control), (frame.src, Some(frame.control)));
        prop_assert_eq!(seen.obeyed(), Some(frame.control));
    }

    /// A changed byte gives another valid frame, a fault, or a frame that is not flow control.
    #[test]
    fn every_changed_byte_is_detected(frame in frames(), at in any::<Index>(), by in 1_u8..) {
        let mut bytes = frame.to_bytes();
        *at.get_mut(&mut bytes) ^= by;
        let Some(seen) = inspect(&bytes, FRAME_LEN) else { return Ok(()) };
        let same = seen.src == frame.src && seen.control == Some(frame.control);
        // PAUSE may go to a single station.
        let unicast = matches!(frame.control, FlowControl::Pause { .. }) && bytes[0] & 1 == 0;
        prop_assert!(!same || !seen.findings.is_empty() || unicast, "{:?}", seen);
    }

    #[test]
    fn lengths_are_named(frame in frames(), len in 16_usize..200) {
        let mut bytes = frame.to_bytes().to_vec();
        bytes.resize(len, 0);
        let seen = inspect(&bytes, len).unwrap();
        let short = seen.findings.iter().any(|finding| matches!(finding, Finding::Short(_)));
        let long = seen.findings.iter().any(|finding| matches!(finding, Finding::Long(_)));
        prop_assert_eq!((short, long), (len < FRAME_LEN, len > FRAME_LEN));
    }

    #[test]
    fn padding_is_named_with_its_place(frame in frames(), at in 34_usize..FRAME_LEN - 4) {
        let mut bytes = frame.to_bytes();
        bytes[at] = 7;
        let seen = inspect(&bytes, FRAME_LEN).unwrap();
        let finding = Finding::Padding { at: u16::try_from(at).unwrap(), value: 7 };
        prop_assert_eq!(seen.findings.iter().collect::<Vec<_>>(), [finding]);
    }

    #[test]
    fn any_bytes_are_inspected(bytes in vec(any::<u8>(), 0..100), more in 0_usize..100) {
        if let Some(seen) = inspect(&bytes, bytes.len() + more) {
            seen.findings.iter().for_each(|finding| assert!(!finding.to_string().is_empty()));
        }
    }
}
