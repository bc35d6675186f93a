//! RED marking: the marking probability by queue length.

use feroce_congestion::params::{BeyondKmax, MarkingParams};
use feroce_congestion::{Fraction, Params, Red};
use proptest::prelude::*;

fn red(change: impl FnOnce(&mut MarkingParams)) -> Red {
    let mut params = Params::default().marking;
    change(&mut params);
    Red::new(&params)
}

#[test]
fn the_papers_thresholds() {
    let red = red(|_| {});
    let probabilities = [
        (0, Fraction::ZERO),
        (5_000, Fraction::ZERO),
        // (102500 - 5000) / 195000 of 1 %.
        (102_500, Fraction::ratio(1, 200)),
        (200_000, Fraction::ratio(1, 100)),
        (200_001, Fraction::ONE),
        (u64::MAX, Fraction::ONE),
    ];
    for (queue, probability) in probabilities {
        let got = red.probability(queue);
        assert!(got.units().abs_diff(probability.units()) <= 1, "{queue}: {got}");
    }
    // At Kmax a random number below 1 % marks and the next one does not; above Kmax all mark.
    let edge = Fraction::ratio(1, 100).units() * 2;
    assert!(red.mark(200_000, edge - 2));
    assert!(!red.mark(200_000, edge));
    assert!(red.mark(200_001, u32::MAX));
    assert!(!red.mark(5_000, 0));
}

#[test]
fn equal_thresholds_are_a_cut_off() {
    for kmax in [40_000, 30_000] {
        let red = red(|params| (params.kmin, params.kmax) = (40_000, kmax));
        let kmax = u64::from(kmax);
        assert!(!red.mark(kmax, 0));
        assert!(red.mark(kmax + 1, u32::MAX));
    }
    let red = red(|params| {
        (params.kmin, params.kmax) = (40_000, 40_000);
        params.beyond_kmax = BeyondKmax::Slope;
    });
    assert_eq!([40_000, 40_001].map(|queue| red.mark(queue, u32::MAX)), [false, true]);
}

#[test]
fn the_slope_may_continue_above_kmax() {
    let red = red(|params| params.beyond_kmax = BeyondKmax::Slope);
    for (queue, percent) in [(200_000, 1), (395_000, 2), (5_000 + 50 * 195_000, 50)] {
        let expected = Fraction::ratio(percent, 100).units();
        assert!(red.probability(queue).units().abs_diff(expected) <= 50, "{queue}");
    }
    assert_eq!(red.probability(5_000 + 100 * 195_000 + 1_000_000), Fraction::ONE);
    assert!(red.mark(u64::MAX, u32::MAX));
}

#[test]
fn pmax_one_marks_every_packet_at_kmax() {
    let red =
        red(|params| (params.kmin, params.kmax, params.pmax) = (40_000, 1_000_000, Fraction::ONE));
    assert!(red.mark(1_000_000, u32::MAX));
    assert!(red.mark(520_000, u32::MAX / 2 - 1));
    assert!(!red.mark(520_000, u32::MAX / 2 + 2));
}

proptest! {
    #[test]
    fn a_mark_happens_with_its_probability(
        kmin in any::<u32>(), kmax in any::<u32>(), pmax in 0..=1u32 << 31, queue in any::<u32>(),
        random in any::<u32>(), slope in any::<bool>(),
    ) {
        let red = red(|params| {
            (params.kmin, params.kmax, params.pmax) = (kmin, kmax, Fraction::from_units(pmax));
            if slope {
                params.beyond_kmax = BeyondKmax::Slope;
            }
        });
        let queue = u64::from(queue);
        prop_assert_eq!(red.mark(queue, random), red.probability(queue).happens(random));
        prop_assert!(red.probability(queue) <= red.probability(queue + 1));
    }
}
