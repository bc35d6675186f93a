//! Fractions and rates: rounding, limits, text.

use feroce_congestion::{Duration, Fraction, Rate};
use proptest::prelude::*;

#[test]
fn fractions_round_down_and_stop_at_one() {
    assert_eq!(Fraction::ratio(1, 256).units(), 1 << 23);
    assert_eq!(Fraction::ratio(1, 3).units(), 715_827_882);
    assert_eq!(Fraction::ratio(4, 3), Fraction::ONE);
    assert_eq!(Fraction::from_units(u32::MAX), Fraction::ONE);
    assert_eq!(Fraction::ONE.saturating_add(Fraction::ratio(1, 2)), Fraction::ONE);
    assert_eq!(Fraction::ratio(1, 4).complement(), Fraction::ratio(3, 4));
    assert_eq!(Fraction::ratio(1, 2).of(Fraction::ratio(1, 2)), Fraction::ratio(1, 4));
    assert_eq!(Fraction::ratio(1, 2).of_u64(u64::MAX), u64::MAX / 2);
    assert_eq!(Fraction::ONE.of_u64(u64::MAX), u64::MAX);
    assert_eq!(
        (Fraction::ONE.shift_right(1), Fraction::ONE.shift_right(32)),
        (Fraction::ratio(1, 2), Fraction::ZERO)
    );
}

#[test]
fn happens_compares_with_the_probability() {
    assert!(!Fraction::ZERO.happens(0));
    assert!(Fraction::ONE.happens(u32::MAX));
    let half = Fraction::ratio(1, 2);
    assert_eq!([(1 << 31) - 1, 1 << 31].map(|random| half.happens(random)), [true, false]);
}

#[test]
fn fractions_and_rates_are_formatted() {
    let third = Fraction::ratio(1, 3);
    let texts = [
        format!("{third}"),
        format!("{third:.3}"),
        format!("{third:.0}"),
        format!("{:.2}", Fraction::ONE),
    ];
    assert_eq!(texts, ["0.333333333", "0.333", "0", "1.00"]);
    let rates = [0, 1, 1500, 40_000_000, 2_500_000_000, 100_000_000_000, 1_000_001];
    let texts = rates.map(|bits| Rate::from_bps(bits).to_string());
    assert_eq!(texts, ["0b/s", "1b/s", "1500b/s", "40Mb/s", "2500Mb/s", "100Gb/s", "1000001b/s"]);
}

#[test]
fn rates_convert_bytes_and_times() {
    let link_rate = Rate::from_gbps(40);
    assert_eq!(link_rate.time_of(1000), Some(Duration::from_nanos(200)));
    assert_eq!(link_rate.time_of(1), Some(Duration::from_nanos(1)), "0.2 ns, rounded up");
    assert_eq!(Rate::ZERO.time_of(1), None);
    assert_eq!(link_rate.bytes_in(Duration::from_micros(1)), 5000);
    assert_eq!(link_rate.bytes_in(Duration::from_nanos(1)), 5);
    assert_eq!(Rate::from_bps(9).bytes_in(Duration::from_secs(1)), 1, "whole bytes");
    assert_eq!(Rate::from_bps(u64::MAX).bytes_in(Duration::MAX), u64::MAX);
    assert_eq!(link_rate.scaled(Fraction::ratio(1, 4)), Rate::from_gbps(10));
    assert_eq!(Rate::from_bps(u64::MAX).saturating_add(link_rate), Rate::from_bps(u64::MAX));
}

proptest! {
    #[test]
    fn a_midpoint_is_rounded_up(a in any::<u64>(), b in any::<u64>()) {
        let middle = Rate::from_bps(a).midpoint(Rate::from_bps(b)).as_bps();
        prop_assert_eq!(u128::from(middle), (u128::from(a) + u128::from(b)).div_ceil(2));
    }

    #[test]
    fn bytes_in_is_the_inverse_of_time_of(
        bytes in 0..1u64 << 40,
        bits in 1..1_000_000_000u64,
    ) {
        let rate = Rate::from_bps(bits);
        let time = rate.time_of(bytes).expect("a rate");
        prop_assert!(rate.bytes_in(time) >= bytes);
        prop_assert!(rate.bytes_in(time.saturating_sub(Duration::from_nanos(1))) <= bytes);
    }
}
