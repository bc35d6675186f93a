//! The choices of the reaction point in which the sources differ: for each choice, a trace that
//! distinguishes its values.

mod common;

use common::us;
use feroce_congestion::params::{
    AlphaTimer, ByteRestart, CutOrder, HyperIncrease, HyperPeriod, ReactionParams, StepCount,
    TargetClamp, TargetLimit,
};
use feroce_congestion::{Duration, Fraction, Instant, Params, Rate, ReactionPoint};

/// The paper's parameters with a change, on a link of 40 Gb/s.
fn with(change: impl FnOnce(&mut ReactionParams)) -> ReactionPoint {
    let mut params = Params::default();
    change(&mut params.reaction);
    ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO)
}

fn mbps(megabits: u64) -> Rate {
    Rate::from_mbps(megabits)
}

#[test]
fn cut_order() {
    let half = |order| {
        with(|params| {
            params.initial_alpha = Fraction::ratio(1, 2);
            params.cut_order = order;
            params.cut_interval = Duration::from_micros(4);
        })
    };
    let mut first = half(CutOrder::CutFirst);
    first.on_cnp(us(0));
    assert_eq!(first.rate(), mbps(30_000));
    let mut alpha_first = half(CutOrder::AlphaFirst);
    alpha_first.on_cnp(us(0));
    assert_eq!(alpha_first.rate(), Rate::from_bps(29_960_937_500));
    let mut apart = half(CutOrder::Apart);
    apart.on_cnp(us(0));
    apart.advance(us(3));
    assert_eq!(apart.rate(), mbps(40_000));
    apart.advance(us(4));
    assert_eq!(apart.rate(), mbps(30_000));
    // Two CNPs in one period cause one cut; a period without a CNP causes none.
    apart.on_cnp(us(5));
    apart.on_cnp(us(6));
    apart.advance(us(8));
    assert_eq!(apart.rate(), mbps(22_500));
    apart.advance(us(54));
    assert_eq!(apart.rate(), mbps(22_500));
}

#[test]
fn alpha_timer() {
    let alpha_at = |timer, micros| {
        let mut point = with(|params| params.alpha_timer = timer);
        point.on_cnp(us(100));
        point.on_cnp(us(150));
        point.advance(us(micros));
        point.alpha().units()
    };
    // An alpha of 1 cannot rise. It decays 55 us after the second CNP, or at the end of the second
    // period of the free-running clock.
    let decayed = 2_139_095_040;
    assert_eq!(alpha_at(AlphaTimer::Restarts, 204), Fraction::ONE.units());
    assert_eq!(alpha_at(AlphaTimer::Restarts, 205), decayed);
    assert_eq!(alpha_at(AlphaTimer::FreeRunning, 209), Fraction::ONE.units());
    assert_eq!(alpha_at(AlphaTimer::FreeRunning, 210), decayed);
}

#[test]
fn target_clamp() {
    let clamp = |clamp| with(|params| params.target_clamp = clamp);
    let [mut always, mut increase, mut bytes] =
        [TargetClamp::Always, TargetClamp::AfterIncrease, TargetClamp::AfterByteIncrease]
            .map(clamp);
    for point in [&mut always, &mut increase, &mut bytes] {
        point.on_cnp(us(0));
        point.on_cnp(us(10));
        assert_eq!(point.rate(), mbps(10_000));
    }
    let targets = [always.target(), increase.target(), bytes.target()];
    assert_eq!(targets, [mbps(20_000), mbps(40_000), mbps(40_000)], "no step between the cuts");
    for point in [&mut increase, &mut bytes] {
        point.advance(us(65));
        assert_eq!(point.rate(), mbps(25_000));
        point.on_cnp(us(66));
    }
    assert_eq!(
        [increase.target(), bytes.target()],
        [mbps(25_000), mbps(40_000)],
        "the timer's step"
    );
    for point in [&mut increase, &mut bytes] {
        point.on_sent(10_000_000, us(67));
        let rate = point.rate();
        point.on_cnp(us(68));
        assert_eq!(point.target(), rate, "the counter's step");
    }
}

#[test]
fn target_limit() {
    let recover = |limit, micros| {
        let mut point = with(|params| params.target_limit = limit);
        point.on_cnp(us(0));
        point.advance(us(micros));
        (point.rate(), point.target())
    };
    let link_rate = mbps(40_000);
    assert_eq!(recover(TargetLimit::MaxRate, 55 * 40), (link_rate, link_rate));
    // Steps are additive from the fifth on.
    assert_eq!(recover(TargetLimit::Unlimited, 55 * 40), (link_rate, mbps(40_000 + 36 * 40)));
    // The same when silent periods are skipped at once.
    assert_eq!(recover(TargetLimit::Unlimited, 55 * 5000), (link_rate, mbps(40_000 + 4996 * 40)));
}

#[test]
fn an_unlimited_target_far_above_the_rate_comes_down_with_the_first_step() {
    let mut point = with(|params| {
        params.target_limit = TargetLimit::Unlimited;
        params.target_clamp = TargetClamp::AfterIncrease;
    });
    for micros in 0..4 {
        point.on_cnp(us(micros));
    }
    assert_eq!((point.rate(), point.target()), (mbps(2_500), mbps(40_000)));
    let mut by_bytes = point;
    point.advance(us(58));
    assert_eq!((point.rate(), point.target()), (mbps(3_750), mbps(5_000)));
    by_bytes.on_sent(10_000_000, us(10));
    assert_eq!((by_bytes.rate(), by_bytes.target()), (mbps(3_750), mbps(5_000)));
}

#[test]
fn byte_restart() {
    let play = |restart| {
        let mut point = with(|params| {
            params.byte_restart = restart;
            params.target_clamp = TargetClamp::AfterIncrease;
        });
        point.on_cnp(us(0));
        point.on_sent(6_000_000, us(1));
        point.on_cnp(us(2));
        point.on_sent(6_000_000, us(3));
        point.byte_steps()
    };
    assert_eq!(play(ByteRestart::OnCut), 0);
    assert_eq!(play(ByteRestart::OnClamp), 1);
    // A CNP that clamps the target restarts the byte counter.
    let mut point = with(|params| params.byte_restart = ByteRestart::OnClamp);
    point.on_cnp(us(0));
    point.on_sent(6_000_000, us(1));
    point.on_cnp(us(2));
    point.on_sent(6_000_000, us(3));
    assert_eq!(point.byte_steps(), 0);
}

#[test]
fn at_one_time_the_increase_comes_before_the_cut() {
    let mut point = with(|params| {
        params.cut_order = CutOrder::Apart;
        params.cut_interval = Duration::from_micros(55);
    });
    // At 55 us alpha decays to 255/256 and the rate is cut by that alpha.
    point.on_cnp(us(0));
    point.on_cnp(us(100));
    assert_eq!((point.rate(), point.target()), (Rate::from_bps(20_078_125_000), mbps(40_000)));
    // At 110 us the rate moves half way to the target; the cut then makes this rate the target.
    point.advance(us(110));
    assert_eq!(point.target(), Rate::from_bps(30_039_062_500));
}

#[test]
fn skipping_idle_steps_stops_at_a_cut() {
    let mut point = with(|params| {
        params.cut_order = CutOrder::Apart;
        params.cut_interval = Duration::from_micros(1000);
        params.target_limit = TargetLimit::Unlimited;
        params.target_clamp = TargetClamp::AfterByteIncrease;
    });
    // Cut at 1000 us. The 40 steps up to 3200 us bring the rate back to the link rate and the
    // target 36 additive steps above it.
    point.on_cnp(us(0));
    point.on_cnp(us(3210));
    assert_eq!((point.rate(), point.target()), (mbps(40_000), mbps(40_000 + 36 * 40)));
    // 14 more steps up to 3970 us, the cut at 4000 us, then from 4055 us on four steps of fast
    // recovery and five additive steps, the last at 4495 us.
    point.advance(us(4500));
    assert_eq!((point.target(), point.time_steps()), (mbps(40_000 + (36 + 14 + 5) * 40), 9));
}

#[test]
fn byte_counter() {
    let play = |bytes| {
        let mut point = with(|params| params.byte_counter = bytes);
        point.on_cnp(us(0));
        point.on_sent(300_000_000, us(1));
        point.byte_steps()
    };
    assert_eq!([play(10_000_000), play(300_000_000), play(0)], [30, 1, 0]);
}

#[test]
fn step_count() {
    let target_at = |count, micros| {
        let mut point = with(|params| params.step_count = count);
        point.on_cnp(us(0));
        point.on_cnp(us(0));
        point.advance(us(micros));
        point.target()
    };
    assert_eq!(target_at(StepCount::Before, 55 * 4), mbps(20_000));
    assert_eq!(target_at(StepCount::Before, 55 * 5), mbps(20_040), "the fifth step");
    assert_eq!(target_at(StepCount::After, 55 * 5), mbps(20_000));
    assert_eq!(target_at(StepCount::After, 55 * 6), mbps(20_040), "the sixth");
}

/// Targets in Mb/s after each step: `t` is a step of the timer, `b` of the byte counter.
fn targets(rule: HyperIncrease, steps: &str) -> Vec<u64> {
    let mut point = with(|params| {
        params.hyper_increase = rule;
        params.threshold = 2;
    });
    point.on_cnp(us(0));
    point.on_cnp(us(0));
    let mut now = us(0);
    let step = |step| {
        match step {
            't' => {
                now += Duration::from_micros(55);
                point.advance(now);
            }
            _ => point.on_sent(10_000_000, now),
        }
        point.target().as_bps() / 1_000_000
    };
    steps.chars().map(step).collect()
}

#[test]
fn hyper_increase() {
    // Fast recovery ends with step 2. ai_rate is 40 Mb/s, hai_rate 400 Mb/s.
    assert_eq!(
        targets(HyperIncrease::MinAbove, "ttttbbbt"),
        [20_000, 20_040, 20_080, 20_120, 20_160, 20_200, 20_600, 21_000],
        "when the third step of the counter makes both more than two"
    );
    assert_eq!(
        targets(HyperIncrease::MinReachedTimes, "ttttbbtbbt"),
        [20_000, 20_040, 20_080, 20_120, 20_160, 20_200, 20_600, 21_400, 22_600, 23_800],
        "the timer's fifth step, both counts at two or more, starts it: hai_rate times 1, 2, 3, 3"
    );
    assert_eq!(
        targets(HyperIncrease::MaxAbove, "tttt"),
        [20_000, 20_040, 20_440, 20_840],
        "when the timer alone is past two"
    );
}

#[test]
fn hyper_period() {
    let steps_at = |period, micros| {
        let mut point = with(|params| {
            params.threshold = 1;
            params.hyper_increase = HyperIncrease::MaxAbove;
            params.hyper_period = period;
        });
        point.on_cnp(us(0));
        point.advance(us(micros));
        (point.time_steps(), point)
    };
    // The second step is the first of hyper increase; the period after it still has full length.
    assert_eq!(steps_at(HyperPeriod::Same, 220).0, 4);
    assert_eq!(steps_at(HyperPeriod::Half, 165).0, 3);
    assert_eq!(steps_at(HyperPeriod::Half, 192).0, 3);
    let (steps, mut point) = steps_at(HyperPeriod::Half, 193);
    assert_eq!(steps, 4);
    // The same holds for bytes.
    point.on_sent(10_000_000, us(193));
    assert_eq!(point.byte_steps(), 1);
    point.on_sent(5_000_000, us(193));
    assert_eq!(point.byte_steps(), 2);
}

#[test]
fn first_rate() {
    for order in CutOrder::ALL {
        let mut point = with(|params| {
            params.first_rate = mbps(5_000);
            params.cut_order = *order;
        });
        point.on_cnp(us(0));
        point.advance(us(54));
        assert_eq!((point.rate(), point.target()), (mbps(5_000), mbps(5_000)), "{order:?}");
        // The next CNP cuts the rate as usual.
        point.on_cnp(us(54));
        point.advance(us(100));
        assert!(point.rate() < mbps(5_000), "{order:?}");
    }
}

#[test]
fn below_10_gd_multiplies_alpha() {
    let cut = |gd| {
        let mut point = with(|params| {
            (params.gd, params.initial_alpha) = (gd, Fraction::ratio(1, 8));
            params.min_dec_fac = Fraction::ZERO;
        });
        point.on_cnp(us(0));
        point.rate()
    };
    assert_eq!([10, 9, 8, 7].map(cut), [35_000, 30_000, 20_000, 1].map(mbps));
}

#[test]
fn gd_and_min_dec_fac() {
    let cut = |gd, min| {
        let mut point = with(|params| {
            params.gd = gd;
            params.min_dec_fac = min;
        });
        point.on_cnp(us(0));
        point.rate()
    };
    assert_eq!(cut(11, Fraction::ratio(1, 2)), mbps(20_000));
    assert_eq!(cut(12, Fraction::ratio(1, 2)), mbps(30_000));
    assert_eq!(cut(10, Fraction::ratio(1, 2)), mbps(20_000));
    assert_eq!(cut(10, Fraction::ZERO), mbps(1), "the lowest rate");
    assert_eq!(cut(0, Fraction::ratio(1, 4)), mbps(10_000), "more than alpha");
    assert_eq!(cut(11, Fraction::ratio(3, 4)), mbps(30_000));
}
