//! TIMELY and Swift: each rule as a trace with literal numbers.

mod common;

use common::us;
use feroce_congestion::{
    ALGORITHMS, Ack, Algorithm, CongestionControl, Control, Controller, Duration, Instant, Params,
    Path, Rate, Setup, Swift, Timely,
};

const SEGMENT: u64 = 16_384;

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn ack(micros: u64, bytes: u64) -> Ack<'static> {
    Ack::new(Duration::from_micros(micros), bytes)
}

fn setup(params: &Params, link_rate: Rate) -> Setup<'_> {
    Setup { params, link_rate, now: Instant::ZERO, path: Path::UNKNOWN }
}

/// The defaults with these parameters.
fn params(changed: &[(&str, &str)]) -> Params {
    let mut params = Params::default();
    for (name, text) in changed {
        params.set(name, text).unwrap_or_else(|error| panic!("{name} = {text}: {error}"));
    }
    params
}

/// A sender at 10 Gb/s on a 40 Gb/s link, after one RTT far above the threshold.
fn timely() -> Timely {
    // 1 - 0.8 (1 - 500 / 8000) = 0.25.
    let mut timely = Timely::new(&Params::default(), Rate::from_gbps(40));
    timely.on_ack(&ack(8000, SEGMENT), us(0));
    assert_eq!(timely.rate().as_bps() / 1000, 10_000_000);
    timely
}

fn mbps(timely: &Timely) -> u64 {
    (timely.rate().as_bps() + 500_000) / 1_000_000
}

fn controller(control: Control, params: &Params, link_rate: Rate) -> Controller {
    control.controller(&setup(params, link_rate))
}

#[test]
fn max_rate_may_be_below_the_link_rate() {
    let mut params = Params::default();
    params.reaction.max_rate = Rate::from_gbps(7);
    let controls = [Control::TIMELY, Control::SWIFT];
    for (gbps, highest) in [(40, 7), (5, 5)] {
        let link_rate = Rate::from_gbps(gbps);
        assert_eq!(
            controls.map(|control| controller(control, &params, link_rate).rate()),
            [Rate::from_gbps(highest); 2]
        );
    }
}

#[test]
fn timely_rises_below_the_low_threshold_at_any_gradient() {
    let mut timely = timely();
    timely.on_ack(&ack(20, SEGMENT), us(1));
    timely.on_ack(&ack(49, SEGMENT), us(2));
    assert_eq!(mbps(&timely), 10_020);
}

#[test]
fn timely_falls_above_the_high_threshold_at_any_gradient() {
    let mut timely = timely();
    timely.on_ack(&ack(1000, SEGMENT), us(2000));
    // 1 - 0.8 (1 - 500 / 1000) = 0.6.
    assert_eq!(mbps(&timely), 6_000);
    timely.on_ack(&ack(1000, SEGMENT), us(3000));
    assert_eq!(mbps(&timely), 3_600);
}

/// All packets in flight saw one queue. Without this rule, eight flows on one link fall to the
/// lowest rate together.
#[test]
fn timely_falls_once_per_rtt() {
    let mut timely = timely();
    timely.on_ack(&ack(1000, SEGMENT), us(2000));
    for step in 1..1000 {
        timely.on_ack(&ack(1000, SEGMENT), us(2000 + step));
    }
    assert_eq!(mbps(&timely), 6_000, "packets that were sent before the decrease");
    timely.on_ack(&ack(1000, SEGMENT), us(3000));
    assert_eq!(mbps(&timely), 3_600);
    // An increase does not wait.
    timely.on_ack(&ack(20, SEGMENT), us(3001));
    assert_eq!(mbps(&timely), 3_610);
}

#[test]
fn timely_follows_the_gradient_between_the_thresholds() {
    let params = params(&[("timely_alpha", "1"), ("timely_min_rtt", "100us")]);
    let mut timely = Timely::new(&params, Rate::from_gbps(10));
    timely.on_ack(&ack(100, SEGMENT), us(0));
    // The RTT grows by 10 us, a tenth of min_rtt: 1 - 0.8 * 0.1.
    timely.on_ack(&ack(110, SEGMENT), us(1000));
    assert_eq!(mbps(&timely), 9_200);
    // The RTT grows by more than min_rtt: the factor is limited to 0.2.
    timely.on_ack(&ack(400, SEGMENT), us(2000));
    assert_eq!(mbps(&timely), 1_840);
    // The RTT falls: additive steps, five times as large from the fifth on.
    for (step, rate) in [(1, 1_850), (2, 1_860), (3, 1_870), (4, 1_880), (5, 1_930), (6, 1_980)] {
        timely.on_ack(&ack(400 - 10 * step, SEGMENT), us(3000 + step));
        assert_eq!(mbps(&timely), rate, "step {step}");
    }
    // After one rise, steps are small again.
    timely.on_ack(&ack(345, SEGMENT), us(4000));
    let after = mbps(&timely);
    assert_eq!(after, 1_901);
    timely.on_ack(&ack(345, SEGMENT), us(4001));
    assert_eq!(mbps(&timely), after + 10);
}

#[test]
fn timely_averages_rtt_differences() {
    let mut timely = Timely::new(&Params::default(), Rate::from_gbps(10));
    timely.on_ack(&ack(100, SEGMENT), us(0));
    // 0.875 * 2 us / 20 us = 0.0875; 1 - 0.8 * 0.0875 = 0.93.
    timely.on_ack(&ack(102, SEGMENT), us(1000));
    assert_eq!(mbps(&timely), 9_300);
    // 0.125 * 1.75 us + 0 = 0.21875 us; 1 - 0.8 * 0.0109375 = 0.99125.
    timely.on_ack(&ack(102, SEGMENT), us(2000));
    assert_eq!(mbps(&timely), 9_219);
}

#[test]
fn timely_updates_once_per_segment() {
    let mut timely = timely();
    for _ in 0..15 {
        timely.on_ack(&ack(20, 1024), us(1));
    }
    assert_eq!(mbps(&timely), 10_000);
    timely.on_ack(&ack(20, 1024), us(1));
    assert_eq!(mbps(&timely), 10_010);
}

#[test]
fn timely_stays_between_min_rate_and_link_rate() {
    let mut timely = Timely::new(&Params::default(), Rate::from_gbps(10));
    for step in 1..100 {
        timely.on_ack(&ack(1_000_000, SEGMENT), us(step * 1_000_000));
    }
    assert_eq!(timely.rate(), Rate::from_mbps(100));
    for step in 0..2000 {
        timely.on_ack(&ack(10, SEGMENT), us(100_000_000 + step));
    }
    assert_eq!(timely.rate(), Rate::from_gbps(10));
}

/// Up to 10 packets of 1000 bytes; a target of 30 us without flow scaling.
fn swift() -> Params {
    params(&[
        ("swift_base_target", "25us"),
        ("swift_hop_scale", "1us"),
        ("swift_hops", "5"),
        ("swift_fs_range", "0"),
        ("swift_max_cwnd", "10"),
        ("swift_packet", "1000"),
    ])
}

/// The window in hundreds of bytes.
fn hundreds(swift: &Swift) -> u64 {
    (swift.window() + 50) / 100
}

#[test]
fn swift_decreases_by_the_distance_from_the_target_once_per_rtt() {
    let mut swift = Swift::new(&setup(&swift(), Rate::from_gbps(40)));
    assert_eq!((swift.window(), swift.target()), (10_000, micros(30)));
    // 1 - 0.8 (40 - 30) / 40 = 0.8.
    swift.on_ack(&ack(40, 1000), us(100));
    assert_eq!(hundreds(&swift), 80);
    // Not again within the RTT.
    swift.on_ack(&ack(40, 1000), us(139));
    assert_eq!(hundreds(&swift), 80);
    swift.on_ack(&ack(40, 1000), us(140));
    assert_eq!(hundreds(&swift), 64);
    // At most half.
    swift.on_ack(&ack(1000, 1000), us(2000));
    assert_eq!(hundreds(&swift), 32);
    // A loss also halves the window and counts as the decrease of this RTT.
    swift.on_loss(us(4000));
    assert_eq!(hundreds(&swift), 16);
    swift.on_loss(us(4500));
    assert_eq!(hundreds(&swift), 16);
}

#[test]
fn swift_increases_by_a_packet_per_window() {
    let mut swift = Swift::new(&setup(&swift(), Rate::from_gbps(40)));
    swift.on_ack(&ack(1000, 1000), us(1));
    assert_eq!(swift.window(), 5_000);
    // An acknowledged packet adds 1/5 packet; a whole window adds one packet.
    swift.on_ack(&ack(10, 1000), us(2));
    assert_eq!(swift.window(), 5_199);
    for _ in 0..200 {
        swift.on_ack(&ack(10, 1000), us(3));
    }
    assert_eq!(swift.window(), 10_000);
}

#[test]
fn swift_paces_a_window_below_a_packet() {
    let mut swift = Swift::new(&setup(&swift(), Rate::from_gbps(40)));
    assert_eq!(swift.rate(), Rate::from_gbps(40));
    for step in 1..=4 {
        swift.on_ack(&ack(1000, 1000), us(step * 10_000));
    }
    // 10 / 2^4 of a packet per RTT of 1 ms.
    assert_eq!(swift.window(), 1000, "a packet may be out");
    assert_eq!(swift.rate(), Rate::from_bps(5_000_000));
    // Below one packet, an acknowledged packet adds a whole packet.
    swift.on_ack(&ack(10, 1000), us(50_000));
    assert_eq!(swift.window(), 1_625);
    assert_eq!(swift.rate(), Rate::from_gbps(40));
    // The smallest window is a thousandth of a packet.
    for step in 6..60 {
        swift.on_ack(&ack(1000, 1000), us(step * 10_000));
    }
    assert_eq!(swift.rate().as_bps() / 1000, 7);
}

#[test]
fn swift_gives_small_windows_a_longer_target() {
    let mut params = swift();
    params.set("swift_fs_range", "50us").unwrap();
    params.set("swift_max_cwnd", "200").unwrap();
    let mut swift = Swift::new(&setup(&params, Rate::from_gbps(40)));
    assert_eq!(swift.target(), micros(30), "no addition for windows of 100 packets or more");
    let mut targets = Vec::new();
    for step in 1..=12 {
        targets.push(swift.target().as_nanos());
        swift.on_ack(&ack(100_000, 1000), us(step * 1_000_000));
    }
    assert!(targets.is_sorted(), "{targets:?}");
    // Windows 200, 100, 50, 25, ...: 50 us (1 / sqrt(25) - 1 / 10) / (1 / sqrt(0.1) - 1 / 10) =
    // 1.633 us.
    assert_eq!(&targets[1..2], [30_000]);
    assert!(targets[3].abs_diff(31_633) < 2, "{}", targets[3]);
    assert_eq!(swift.target(), micros(80), "the whole addition for a tenth of a packet or less");
}

#[test]
fn swift_knows_the_hops_of_its_path() {
    let params = params(&[("swift_fs_range", "0")]);
    let target = |params: &Params, hops| {
        let path = Path { hops, base_rtt: None };
        Swift::new(&Setup { path, ..setup(params, Rate::from_gbps(40)) }).target()
    };
    // 25 us and 1 us per hop.
    assert_eq!(target(&params, Some(5)), micros(30));
    assert_eq!(target(&params, None), micros(26));
    let mut fixed = params;
    fixed.set("swift_hops", "3").unwrap();
    assert_eq!(target(&fixed, Some(5)), micros(28));
}

#[test]
fn controllers_take_the_same_events() {
    let params = Params::default();
    let link_rate = Rate::from_gbps(40);
    let all = [Control::Fixed(Rate::from_gbps(7)), Control::DCQCN, Control::TIMELY, Control::SWIFT];
    let rates = all.map(|control| {
        let mut controller = controller(control, &params, link_rate);
        controller.on_sent(1000, us(1));
        controller.on_ack(&ack(5000, SEGMENT), us(2));
        controller.on_cnp(us(3));
        controller.on_loss(us(4));
        controller.advance(us(5));
        let has_timer = controller.next_event() != Instant::FAR;
        (controller.rate().as_bps() / 1_000_000, controller.window() != u64::MAX, has_timer)
    });
    // 1 - 0.8 (1 - 500 / 5000) = 0.28 of 40 Gb/s; Swift keeps its rate until its window is below a
    // packet.
    let expected = [
        (7_000, false, false),
        (20_000, false, true),
        (11_200, false, false),
        (40_000, true, false),
    ];
    assert_eq!(rates, expected);
}

#[test]
fn the_registry_is_consistent() {
    for (index, algorithm) in ALGORITHMS.iter().enumerate() {
        let Algorithm { name, .. } = algorithm;
        assert!(ALGORITHMS[..index].iter().all(|other| other.name != *name), "{name}: twice");
        assert_eq!(name.parse(), Ok(Control::Algorithm(algorithm)));
        assert_eq!(Control::Algorithm(algorithm).to_string(), *name);
        assert!(Control::EXPECTS.contains(&format!("`{name}`")), "{name}");
        // At the start, every algorithm sends at the highest rate.
        let mut params = Params::default();
        params.reaction.max_rate = Rate::from_gbps(2);
        let control = Control::Algorithm(algorithm);
        let highest = controller(control, &params, Rate::from_gbps(25)).rate();
        assert_eq!(highest, Rate::from_gbps(2), "{name}: ignores max_rate");
    }
}

#[test]
fn controllers_are_small() {
    assert!(size_of::<Controller>() <= 64, "{}", size_of::<Controller>());
}
