//! Pacing: exact over an hour, and no burst above the bucket however the rate changes.

mod common;

use common::{ns, us};
use feroce_congestion::{Duration, Instant, Pacer, Rate};
use proptest::prelude::*;

/// Sends packets of `packet` bytes as soon as each is ready, until `end`. Returns the bytes sent.
fn send_when_ready(pacer: &mut Pacer, packet: u64, rate: Rate, end: Instant) -> u64 {
    let mut sent = 0;
    loop {
        let ready = pacer.ready_at(packet, rate);
        if ready > end {
            return sent;
        }
        pacer.spend(packet, rate, ready);
        sent += packet;
    }
}

#[test]
fn packets_are_ready_when_the_bucket_holds_them() {
    let rate = Rate::from_gbps(40);
    let mut pacer = Pacer::new(3000, us(1));
    assert_eq!((pacer.burst(), pacer.available(rate, us(1))), (3000, 3000));
    for _ in 0..3 {
        assert_eq!(pacer.ready_at(1000, rate), us(1));
        pacer.spend(1000, rate, us(1));
    }
    // 1000 bytes at 40 Gb/s are 200 ns.
    assert_eq!(pacer.ready_at(1000, rate), ns(1200));
    assert_eq!(pacer.available(rate, ns(1199)), 995);
    assert_eq!(pacer.available(rate, ns(1200)), 1000);
    assert_eq!(pacer.ready_at(1000, rate), ns(1200));
    // The bucket does not overfill.
    assert_eq!(pacer.available(rate, us(100)), 3000);
}

#[test]
fn a_packet_larger_than_the_bucket_waits_for_a_full_bucket_and_leaves_a_debt() {
    let rate = Rate::from_gbps(8);
    let mut pacer = Pacer::new(1000, us(0));
    pacer.spend(5000, rate, us(0));
    assert_eq!(pacer.available(rate, us(0)), 0);
    assert_eq!(pacer.ready_at(1, rate), ns(4001));
    assert_eq!(pacer.ready_at(5000, rate), ns(5000));
}

#[test]
fn at_rate_0_nothing_becomes_ready() {
    let mut pacer = Pacer::new(1000, us(0));
    assert_eq!(pacer.ready_at(1000, Rate::ZERO), us(0));
    pacer.spend(1, Rate::ZERO, us(0));
    assert_eq!(pacer.ready_at(1000, Rate::ZERO), Instant::FAR);
    assert_eq!(pacer.available(Rate::ZERO, us(5_000_000)), 999);
}

#[test]
fn a_new_rate_applies_from_its_change() {
    let mut pacer = Pacer::new(1000, us(0));
    pacer.spend(1000, Rate::from_gbps(8), us(0));
    pacer.advance(Rate::from_gbps(8), ns(500));
    // Half is in the bucket; the rest arrives at a tenth of the rate.
    assert_eq!(pacer.ready_at(1000, Rate::from_mbps(800)), ns(500 + 5000));
}

/// Rates whose packet times are not whole nanoseconds, and one whose packet times are.
const RATES: [u64; 6] =
    [40_000_000_000, 39_999_999_937, 1_000_003, 333_333_333, 399_999_999_999, 8];

#[test]
fn an_hour_is_exact_to_the_bit() {
    let hour = Instant::ZERO + Duration::from_secs(3600);
    for bps in RATES {
        let rate = Rate::from_bps(bps);
        // The bucket is one packet, so each packet waits for the whole of it. Not more packets than
        // a test can wait for.
        let packet = (bps / 8 / 500).clamp(1, 200_000_000);
        let burst = u32::try_from(packet).expect("a burst");
        let mut pacer = Pacer::new(burst, Instant::ZERO);
        let sent = send_when_ready(&mut pacer, packet, rate, hour);
        let due = u128::from(bps) * 3600 / 8 + u128::from(packet);
        let short = due - u128::from(sent);
        assert!(short < u128::from(packet), "{bps}: {short} bytes behind");
        // Nothing was lost: the bucket holds the remainder of the hour.
        assert_eq!(u128::from(pacer.available(rate, hour)), short, "{bps}");
    }
}

#[test]
fn small_packets_are_exact() {
    // 1.8 million packets, each of 533.3 ns, at 30 Gb/s.
    let rate = Rate::from_gbps(30);
    let mut pacer = Pacer::new(2000, Instant::ZERO);
    let second = Instant::ZERO + Duration::from_secs(1);
    let sent = send_when_ready(&mut pacer, 2000, rate, second);
    assert_eq!(sent, 3_750_000_000 + 2000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Between any two times a sender sends at most the bucket plus the tokens of the rates.
    #[test]
    fn a_sender_never_exceeds_the_bucket_and_the_rates(
        burst in 1000..100_000u32,
        steps in prop::collection::vec((0..3000u64, 1..60_000_000_000u64, 1..5000u64), 1..200),
    ) {
        let burst = burst.max(5000);
        let mut pacer = Pacer::new(burst, Instant::ZERO);
        let (mut now, mut rate) = (Instant::ZERO, Rate::from_gbps(1));
        // Each entry: 10^-9 bits that arrived before it, and 10^-9 bits sent with it.
        let mut log: Vec<(u128, u128)> = Vec::new();
        let mut arrived = 0u128;
        for (wait, bps, packet) in steps {
            now += Duration::from_nanos(wait);
            arrived += u128::from(wait) * u128::from(rate.as_bps());
            pacer.advance(rate, now);
            rate = Rate::from_bps(bps);
            for ahead in [0, 1, wait, packet] {
                let then = now + Duration::from_nanos(ahead);
                let is_ready = pacer.is_ready(packet, rate, then);
                prop_assert_eq!(is_ready, pacer.ready_at(packet, rate) <= then);
            }
            while pacer.ready_at(packet, rate) <= now {
                pacer.spend(packet, rate, now);
                log.push((arrived, u128::from(packet) * 8_000_000_000));
            }
            prop_assert!(pacer.available(rate, now) <= u64::from(burst));
        }
        let bucket = u128::from(burst) * 8_000_000_000;
        // At one instant: the bucket. Over an interval: also less than one nanosecond's bits from
        // before.
        for from in 0..log.len() {
            let mut sum = 0;
            for (at, sent) in &log[from..] {
                sum += sent;
                let since = at - log[from].0;
                let carried = if since == 0 { 0 } else { 60_000_000_000 };
                prop_assert!(sum <= bucket + since + carried, "{sum} in {since}");
            }
        }
    }

    /// The result does not depend on how often tokens are counted.
    #[test]
    fn counting_often_equals_counting_once(
        bps in 1..400_000_000_000u64,
        times in prop::collection::vec(0..5000u64, 1..50), packet in 1..9000u64,
    ) {
        let rate = Rate::from_bps(bps);
        let mut often = Pacer::new(9000, Instant::ZERO);
        often.spend(9000, rate, Instant::ZERO);
        let once = often;
        let ready = once.ready_at(packet, rate);
        let mut now = Instant::ZERO;
        for wait in times {
            now += Duration::from_nanos(wait);
            if now > ready {
                break;
            }
            often.advance(rate, now);
            prop_assert_eq!(often.ready_at(packet, rate).max(now), ready.max(now));
        }
    }
}
