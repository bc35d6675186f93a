//! Properties of every fixed-size header: all bits survive, short input gives a typed error, bytes
//! outside the header are not touched.

use feroce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, EthernetHeader, Feth, Ieth, ImmDt, Ipv4Header,
    Ipv6Header, ParseError, Reth, UdpHeader, VlanTag, XrcEth,
};
use proptest::prelude::*;

/// For one header: bytes -> value -> bytes. `front`: bits that must be set in the first byte.
macro_rules! round_trips {
    ($($name:ident: $header:ty, $front:expr;)*) => {$(
        mod $name {
            use super::*;

            const LEN: usize = <$header>::LEN;

            fn parse_and_write(mut bytes: [u8; LEN]) {
                let front: Option<u8> = $front;
                bytes[0] = front.unwrap_or(bytes[0]);
                let value = <$header>::parse(&bytes).unwrap();
                assert_eq!(value.to_bytes(), bytes, "{value:?}");

                let mut out = [0xa5; LEN + 3];
                value.write(&mut out);
                assert_eq!(out[..LEN], bytes);
                assert_eq!(out[LEN..], [0xa5; 3]);
            }

            #[test]
            fn all_bits_are_written_back() {
                parse_and_write(std::array::from_fn(|at| u8::try_from(at).unwrap()));
                parse_and_write([0xff; LEN]);
                parse_and_write([0; LEN]);
                for bit in 0..LEN * 8 {
                    let mut bytes = [0; LEN];
                    bytes[bit / 8] = 1 << (bit % 8);
                    parse_and_write(bytes);
                }
            }

            #[test]
            fn short_input_is_an_error_that_names_the_header() {
                for have in 0..LEN {
                    let error = <$header>::parse(&[0; LEN][..have]).unwrap_err();
                    assert!(
                        matches!(error, ParseError::Truncated { need: LEN, have: h, .. }
                            if h == have),
                        "{error:?}",
                    );
                }
            }

            proptest! {
                #[test]
                fn any_bytes_are_written_back(bytes: [u8; LEN]) {
                    parse_and_write(bytes);
                }
            }
        }
    )*};
}

round_trips! {
    ethernet: EthernetHeader, None;
    ipv4: Ipv4Header, Some(0x45);
    ipv6: Ipv6Header, Some(0x6b);
    udp: UdpHeader, None;
    bth: Bth, None;
    reth: Reth, None;
    aeth: Aeth, None;
    atomic_eth: AtomicEth, None;
    atomic_ack_eth: AtomicAckEth, None;
    deth: Deth, None;
    immdt: ImmDt, None;
    ieth: Ieth, None;
    xrceth: XrcEth, None;
    feth: Feth, None;
}

#[test]
fn all_vlan_tags_are_written_back() {
    for tci in 0..=u16::MAX {
        assert_eq!(VlanTag::from_tci(tci).tci(), tci);
    }
}
