//! The reaction point in each parameter set, as traces with literal times and rates. The numbers
//! were computed step by step from the rules of each source, with alpha in units of 2^-31.

mod common;

use common::us;
use feroce_congestion::params::ReactionParams;
use feroce_congestion::{Duration, Fraction, Instant, Params, Rate, ReactionPoint};

fn point(set: &str, link_gbps: u64) -> ReactionPoint {
    let params = Params::named(set).expect("a set");
    ReactionPoint::new(&params, Rate::from_gbps(link_gbps), Instant::ZERO)
}

/// Returns rate, target and alpha.
fn state(point: &ReactionPoint) -> (u64, u64, u32) {
    (point.rate().as_bps(), point.target().as_bps(), point.alpha().units())
}

/// Runs the timers up to each time and compares rate, target and alpha.
#[track_caller]
fn expect(point: &mut ReactionPoint, trace: &[(u64, u64, u64, u32)]) {
    for (micros, rate, target, alpha) in trace {
        point.advance(us(*micros));
        assert_eq!(state(point), (*rate, *target, *alpha), "at {micros} us");
    }
}

#[test]
fn before_the_first_cnp_nothing_runs() {
    for set in ["paper", "ns3-rdma", "hpcc", "nvidia"] {
        let mut point = point(set, 40);
        let initial = Params::named(set).expect("a set").reaction.initial_alpha;
        point.on_sent(1 << 40, us(10));
        point.advance(us(10_000_000));
        assert_eq!(state(&point), (40_000_000_000, 40_000_000_000, initial.units()), "{set}");
        assert_eq!(point.next_event(), Instant::FAR, "{set}");
        assert!(!point.is_limited());
    }
}

#[test]
fn paper_cuts_recovers_and_increases() {
    let mut point = point("paper", 40);
    point.on_cnp(us(100));
    // The first cut is by alpha = 1. Four steps of fast recovery follow; the fifth step is
    // additive, with the target at the link rate.
    let first = [
        (100, 20_000_000_000, 40_000_000_000, 2_147_483_648),
        (154, 20_000_000_000, 40_000_000_000, 2_147_483_648),
        (155, 30_000_000_000, 40_000_000_000, 2_139_095_040),
        (210, 35_000_000_000, 40_000_000_000, 2_130_739_200),
        (265, 37_500_000_000, 40_000_000_000, 2_122_416_000),
        (320, 38_750_000_000, 40_000_000_000, 2_114_125_312),
        (375, 39_375_000_000, 40_000_000_000, 2_105_867_010),
    ];
    expect(&mut point, &first);
    assert_eq!((point.time_steps(), point.byte_steps()), (5, 0));
    // The cut is by the alpha before the CNP. The target is the rate before the cut. All periods
    // start again.
    point.on_cnp(us(400));
    assert_eq!((point.time_steps(), point.byte_steps()), (0, 0));
    let second = [
        (400, 20_069_029_126, 39_375_000_000, 2_106_029_574),
        (454, 20_069_029_126, 39_375_000_000, 2_106_029_574),
        (455, 29_722_014_563, 39_375_000_000, 2_097_802_895),
        (510, 34_548_507_282, 39_375_000_000, 2_089_608_352),
        (565, 36_961_753_641, 39_375_000_000, 2_081_445_819),
        (620, 38_168_376_821, 39_375_000_000, 2_073_315_171),
        (675, 38_791_688_411, 39_415_000_000, 2_065_216_283),
        (730, 39_123_344_206, 39_455_000_000, 2_057_149_031),
        (785, 39_309_172_103, 39_495_000_000, 2_049_113_292),
    ];
    expect(&mut point, &second);
}

#[test]
fn paper_steps_by_bytes() {
    let mut point = point("paper", 40);
    point.on_cnp(us(100));
    point.on_sent(9_999_999, us(110));
    assert_eq!(point.rate(), Rate::from_gbps(20));
    point.on_sent(1, us(111));
    assert_eq!((point.rate(), point.byte_steps()), (Rate::from_gbps(30), 1));
    // Bytes beyond the period count towards the next step.
    point.on_sent(19_000_000, us(112));
    assert_eq!((point.rate(), point.byte_steps()), (Rate::from_gbps(35), 2));
    point.on_sent(1_000_000, us(113));
    assert_eq!((point.rate(), point.byte_steps()), (Rate::from_mbps(37_500), 3));
    // The timer is independent of the byte counter.
    point.advance(us(155));
    assert_eq!((point.rate(), point.time_steps()), (Rate::from_mbps(38_750), 1));
    // A CNP restarts timer and byte counter.
    point.on_sent(9_000_000, us(156));
    point.on_cnp(us(157));
    point.on_sent(9_000_000, us(158));
    assert_eq!((point.byte_steps(), point.time_steps()), (0, 0));
}

#[test]
fn paper_increases_hyper_when_timer_and_counter_are_past_the_threshold() {
    let mut params = Params::default();
    params.reaction.threshold = 1;
    let mut point = ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO);
    point.on_cnp(us(0));
    point.on_cnp(us(1));
    assert_eq!(point.target(), Rate::from_gbps(20));
    point.advance(us(56));
    assert_eq!(point.target(), Rate::from_mbps(20_040), "T = 1: additive");
    point.on_sent(20_000_000, us(57));
    assert_eq!(point.target(), Rate::from_mbps(20_120), "BC = 2, T = 1: additive");
    point.advance(us(111));
    assert_eq!(point.target(), Rate::from_mbps(20_520), "T = 2, BC = 2: hyper");
}

#[test]
fn ns3_rdma_raises_alpha_before_it_cuts() {
    let mut point = point("ns3-rdma", 40);
    point.on_cnp(us(100));
    assert_eq!(state(&point), (29_960_937_500, 40_000_000_000, 1_077_936_128));
    // The target exceeds the link rate; the rate does not.
    let rates = [
        (160, 34_980_468_750, 40_000_000_000),
        (220, 37_490_234_375, 40_000_000_000),
        (280, 38_745_117_188, 40_000_000_000),
        (340, 39_372_558_594, 40_000_000_000),
        (400, 39_706_279_297, 40_040_000_000),
        (460, 39_893_139_649, 40_080_000_000),
        (520, 40_000_000_000, 40_120_000_000),
    ];
    for (micros, rate, target) in rates {
        point.advance(us(micros));
        assert_eq!((point.rate().as_bps(), point.target().as_bps()), (rate, target), "{micros} us");
    }
}

#[test]
fn hpcc_updates_and_cuts_by_the_clock() {
    let mut point = point("hpcc", 100);
    // The first CNP sets alpha to 1 and starts both timers; the rate is cut at the end of the
    // period.
    point.on_cnp(us(10));
    assert_eq!(state(&point), (100_000_000_000, 100_000_000_000, 2_147_483_648));
    assert_eq!(point.next_event(), us(14));
    point.advance(us(13));
    assert_eq!(point.rate(), Rate::from_gbps(100));
    expect(&mut point, &[(14, 50_776_684_284, 100_000_000_000, 2_114_125_312)]);
    expect(&mut point, &[(15, 50_776_684_284, 100_000_000_000, 2_105_867_010)]);
    // The second CNP raises alpha at the end of the 1 us period and cuts the rate at the end of the
    // 4 us period. The target stays, since no step was made.
    point.on_cnp(Instant::from_nanos(15_500));
    let second = [
        (16, 50_776_684_284, 100_000_000_000, 2_106_029_574),
        (18, 26_072_565_194, 100_000_000_000, 2_089_608_352),
    ];
    expect(&mut point, &second);
    // A period without a CNP cuts nothing. One step of fast recovery, one additive step, then hyper
    // increase.
    let recovers =
        [(22, 26_072_565_194), (317, 26_072_565_194), (318, 63_036_282_597), (618, 81_518_141_299)];
    for (micros, rate) in recovers {
        point.advance(us(micros));
        assert_eq!(point.rate().as_bps(), rate, "{micros} us");
    }
    point.advance(us(918));
    assert_eq!(state(&point).0, 90_759_070_650);
    // After a step, a cut sets the target to the rate.
    point.on_cnp(Instant::from_nanos(1_000_500));
    expect(&mut point, &[(1001, 90_759_070_650, 100_000_000_000, 52_972_208)]);
    expect(&mut point, &[(1002, 89_644_061_429, 90_759_070_650, 52_765_285)]);
    let increases = [
        (1302, 90_201_566_040, 90_759_070_650),
        (1602, 90_490_318_345, 90_779_070_650),
        (1902, 90_734_694_498, 90_979_070_650),
        (2202, 90_956_882_574, 91_179_070_650),
    ];
    for (micros, rate, target) in increases {
        point.advance(us(micros));
        assert_eq!((point.rate().as_bps(), point.target().as_bps()), (rate, target), "{micros} us");
    }
}

/// 802.1Qau.
#[test]
fn nvidia_updates_and_cuts_by_the_clock() {
    let mut point = point("nvidia", 100);
    point.on_cnp(us(10));
    for (micros, alpha) in
        [(10, 2_145_386_496), (11, 2_134_910_976), (12, 2_124_486_606), (13, 2_114_113_136)]
    {
        point.advance(us(micros));
        assert_eq!(point.alpha().units(), alpha, "{micros} us");
    }
    expect(&mut point, &[(14, 51_017_314_661, 100_000_000_000, 2_103_790_317)]);
    // rpg_threshold 1: the first step is additive, here with the target at the link rate.
    point.advance(us(314));
    assert_eq!(point.rate().as_bps(), 75_508_657_331);
    // 32767 bytes are a step.
    point.on_sent(32_767, us(315));
    assert_eq!(point.rate().as_bps(), 87_754_328_666);
}

#[test]
fn rates_stay_between_min_rate_and_max_rate() {
    let mut params = Params::default();
    params.reaction.min_rate = Rate::from_mbps(100);
    params.reaction.max_rate = Rate::from_gbps(25);
    let mut point = ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO);
    assert_eq!(point.rate(), Rate::from_gbps(25));
    for micros in 0..20 {
        point.on_cnp(us(micros));
    }
    assert_eq!(point.rate(), Rate::from_mbps(100));
    point.advance(us(10_000_000));
    assert_eq!(point.rate(), Rate::from_gbps(25));
    // A max_rate above the link rate has no effect.
    params.reaction.max_rate = Rate::from_gbps(100);
    let point = ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO);
    assert_eq!(point.rate(), Rate::from_gbps(40));
}

#[test]
fn advancing_over_a_silent_day_is_fast() {
    const DAY: Duration = Duration::from_secs(86_400);
    for set in ["paper", "ns3-rdma", "hpcc", "nvidia"] {
        let mut point = point(set, 40);
        let mut stepwise = point;
        for micros in [100, 160, 230] {
            point.on_cnp(us(micros));
            stepwise.on_cnp(us(micros));
        }
        // One copy advances every millisecond, the other once.
        for millis in 1..3000 {
            stepwise.advance(us(millis * 1000));
        }
        point.advance(us(2_999_000));
        assert_eq!(format!("{point:?}"), format!("{stepwise:?}"), "{set}");
        point.advance(Instant::ZERO + DAY);
        assert_eq!(point.rate(), Rate::from_gbps(40), "{set}");
        assert_eq!(point.alpha(), Fraction::ZERO, "{set}");
        assert_eq!(point.next_event(), Instant::FAR, "{set}");
    }
}

/// The rate stays below the link rate because the increase is 0.
#[test]
fn advancing_over_a_silent_year_without_additive_increase_is_fast() {
    for hai in ["0", "50Mb/s"] {
        let mut params = Params::default();
        params.set("ai_rate", "0").unwrap();
        params.set("hai_rate", hai).unwrap();
        let mut point = ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO);
        for micros in [100, 150] {
            point.on_cnp(us(micros));
        }
        let mut stepwise = point;
        for millis in 1..3000 {
            stepwise.advance(us(millis * 1000));
        }
        point.advance(us(2_999_000));
        assert_eq!(format!("{point:?}"), format!("{stepwise:?}"), "{hai}");
        // A year is about 10^12 periods: the call returns only if periods are skipped.
        point.advance(us(365 * 86_400 * 1_000_000));
        assert_eq!(point.rate(), point.target());
        assert!(point.rate() < Rate::from_gbps(40));
    }
}

#[test]
fn a_shorter_byte_counter_ignores_bytes_sent_before() {
    let mut params = *Params::named("hpcc").as_ref().unwrap();
    let link_rate = Rate::from_gbps(40);
    let mut point = ReactionPoint::new(&params, link_rate, Instant::ZERO);
    point.on_cnp(us(100));
    point.on_sent(1 << 50, us(200));
    params.set("rpg_byte_reset", "1").unwrap();
    point.set_params(&params, link_rate, us(201));
    point.on_sent(1, us(202)); // Counting 2^50 single steps would not end.
    assert!(point.byte_steps() <= 2, "{}", point.byte_steps());
}

#[test]
fn parameters_may_change_at_run_time() {
    let mut point = point("paper", 40);
    point.on_cnp(us(100));
    let mut params = Params::default();
    params.reaction.max_rate = Rate::from_gbps(15);
    params.reaction.increase_interval = Duration::from_micros(10);
    point.set_params(&params, Rate::from_gbps(40), us(120));
    assert_eq!((point.rate(), point.target()), (Rate::from_gbps(15), Rate::from_gbps(15)));
    // The running period keeps its end; the next has the new length.
    assert_eq!(point.time_steps(), 0);
    point.advance(us(155));
    assert_eq!(point.time_steps(), 1);
    point.advance(us(165));
    assert_eq!(point.time_steps(), 2);
    // Change to separate periods for alpha and the cut.
    let apart = Params::named("hpcc").expect("a set");
    point.set_params(&apart, Rate::from_gbps(40), us(170));
    point.on_cnp(us(171));
    let before = point.rate();
    point.advance(us(174));
    assert!(point.rate() < before);
    // Before the first CNP, changing parameters equals creating the point with them.
    let mut fresh = ReactionPoint::new(&apart, Rate::from_gbps(40), Instant::ZERO);
    fresh.set_params(&params, Rate::from_gbps(40), us(5));
    assert_eq!((fresh.rate(), fresh.alpha()), (Rate::from_gbps(15), Fraction::ONE));
}

#[test]
fn the_state_is_small() {
    // Four cache lines. The parameters are included, so that a QP reads no other memory.
    assert!(size_of::<ReactionPoint>() <= 256, "{}", size_of::<ReactionPoint>());
    assert!(size_of::<ReactionParams>() <= 256);
}
