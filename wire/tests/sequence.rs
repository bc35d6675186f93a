//! Arithmetic of packet sequence numbers against the same arithmetic in 64-bit integers.

use feroce_wire::Psn;
use proptest::prelude::*;

const MODULUS: i64 = 1 << 24;
const HALF: i64 = 1 << 23;

/// Values close to a wrap, and arbitrary values.
fn psn() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..4, (1u32 << 23) - 3..(1 << 23) + 3, (1u32 << 24) - 4..1 << 24, 0u32..1 << 24,]
}

/// Signed distance from `b` to `a`, in -2^23..2^23.
fn offset(a: u32, b: u32) -> i64 {
    (i64::from(a) - i64::from(b) + HALF).rem_euclid(MODULUS) - HALF
}

fn agrees(a: u32, b: u32) {
    let (x, y) = (Psn::new(a), Psn::new(b));
    let distance = (i64::from(b) - i64::from(a)).rem_euclid(MODULUS);
    assert_eq!(i64::from(x.distance_to(y)), distance);
    assert_eq!(i64::from(x.offset_from(y)), offset(a, b));
    assert_eq!(x.is_before(y), offset(a, b) < 0, "{a} before {b}");
    assert_eq!(x.is_after(y), offset(a, b) > 0, "{a} after {b}");
    assert_eq!(x.at_or_before(y), offset(a, b) <= 0, "{a} at or before {b}");
    assert_eq!(x.add(x.distance_to(y)), y);
}

proptest! {
    #[test]
    fn psns_agree_with_integers(a in psn(), b in psn(), count: u32) {
        agrees(a, b);
        let sum = (i64::from(a) + i64::from(count)).rem_euclid(MODULUS);
        prop_assert_eq!(i64::from(Psn::new(a).add(count).value()), sum);
        prop_assert_eq!(Psn::new(a).next().prev(), Psn::new(a));
        prop_assert_eq!(Psn::new(a).next(), Psn::new(a).add(1));
    }
}

#[test]
fn psns_near_a_wrap_agree_with_integers() {
    let edges = [0, 1, 2, 0x7f_fffe, 0x7f_ffff, 0x80_0000, 0x80_0001, 0xff_fffe, 0xff_ffff];
    for a in edges {
        for b in edges {
            agrees(a, b);
        }
    }
    assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
    assert_eq!(Psn::new(0).prev(), Psn::new(0xff_ffff));
    assert_eq!(Psn::new(0x1ff_ffff), Psn::new(0xff_ffff), "24 bits are kept");
    assert_eq!(Psn::new(5).add(u32::MAX), Psn::new(4));
}

/// Opposite numbers are each before the other, and neither after.
#[test]
fn opposite_psns_are_before_each_other() {
    let (a, b) = (Psn::new(3), Psn::new(3 + (1 << 23)));
    assert!(a.is_before(b) && b.is_before(a));
    assert!(!a.is_after(b) && !b.is_after(a));
    assert_eq!(a.offset_from(b), -(1 << 23));
}

/// Every distance, from starts at which the subtraction wraps and does not wrap.
#[test]
fn psns_of_every_distance_agree_with_integers() {
    for base in [0, 1, (1 << 23) - 1, 1 << 23, (1 << 24) - 1] {
        (0..1 << 24).for_each(|other| agrees(base, other));
    }
}
