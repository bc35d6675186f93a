//! Congestion control in virtual time: marks become CNPs, CNPs become rates, and packets keep to them.

use feroce_congestion::params::{CnpScope, CnpTiming};
use feroce_congestion::{Pacer, Params, Rate, ReactionPoint};
use feroce_engine::congestion::{CongestionConfig, Control};
use feroce_engine::counters::Counter;
use feroce_engine::qp::Service;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{RemoteAddr, SendOp, Status};
use feroce_tests::pair::{Crafted, Pair, PairSetup};
use feroce_tests::wire::{Seen, WireFaults};
use feroce_wire::{Opcode, Packet, PathMtu, Qpn, cnp};

/// A line of 10 Gb/s, the paper's parameters, bursts of `burst` bytes.
fn congestion(control: Control, burst: u32) -> CongestionConfig {
    let mut params = Params::named("paper").expect("a set");
    params.reaction.max_rate = Rate::from_gbps(10);
    CongestionConfig { control, params, burst }
}

fn setup(congestion: CongestionConfig) -> PairSetup {
    let mut setup = PairSetup::with(|options| {
        options.path_mtu = PathMtu::from_bytes(1024);
        options.timeout = 14;
    });
    setup.config.congestion = congestion;
    setup.buffer = 4 << 20;
    setup
}

fn mark_everything(pair: &mut Pair) {
    pair.rig.wire.set_faults(WireFaults { mark: 1_000_000, ..WireFaults::default() }, 1);
}

fn is_cnp(seen: &Seen) -> bool {
    Packet::parse(&seen.bytes, &[]).expect("a frame").bth.opcode == Opcode::CNP
}

/// Frames with payload from end `from`: when, and how long.
fn data(frames: &[Seen], from: usize) -> Vec<(Instant, u64)> {
    let is_data = |seen: &&Seen| {
        let packet = Packet::parse(&seen.bytes, &[]).expect("a frame");
        seen.from == from && !packet.payload.is_empty() && packet.bth.opcode != Opcode::CNP
    };
    frames.iter().filter(is_data).map(|seen| (seen.at, seen.bytes.len() as u64)).collect()
}

fn count(pair: &Pair, end: usize, counter: Counter) -> u64 {
    pair.rig.devices[end].counter(counter)
}

/// Keeps end 0's queue full of WRITEs of 64 KiB for `time`.
fn stream(pair: &mut Pair, time: Duration) {
    let until = pair.rig.now + time;
    while pair.rig.now < until {
        while pair.qps[0].sends_posted() < 32 {
            let remote = pair.remote(0);
            pair.post(1, SendOp::Write(remote), 64 << 10);
        }
        pair.run(100);
        assert!(pair.done(0).iter().all(|(_, status)| *status == Status::Success));
    }
}

#[test]
fn marks_become_cnps_as_a_connectx_sends_them() {
    let mut pair = Pair::new(&setup(congestion(Control::Dcqcn, 64 << 10)));
    mark_everything(&mut pair);
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    pair.run(20);
    let frames = pair.frames();
    let cnps: Vec<_> = frames.iter().filter(|seen| is_cnp(seen)).collect();
    assert_eq!((cnps.len(), cnps[0].from), (1, 1));
    let packet = Packet::parse(&cnps[0].bytes, &[]).unwrap();
    assert!(packet.icrc_valid() && cnp::is_sound(&packet));
    assert_eq!(packet.bth.dest_qp, pair.qps[0].qpn());
    assert_eq!((packet.ip.traffic_class(), packet.ip.hop_limit()), (0xc2, 64));
    assert_eq!((packet.udp.src_port, packet.bth.psn.value(), packet.bth.mig_req), (0, 0, false));
    assert_eq!(packet.payload.first, [0; 16]);
    // Ahead of the acknowledgement.
    let back: Vec<_> = frames.iter().filter(|seen| seen.from == 1).map(is_cnp).collect();
    assert_eq!(back, [true, false]);
    let expected = [Counter::RxWriteRequests, Counter::NpEcnMarkedRocePackets, Counter::NpCnpSent];
    assert_eq!(pair.counters(1), expected.map(|counter| (counter, 1)));
    // The acknowledgement was marked, too: nobody is told of that.
    assert_eq!(
        pair.counters(0),
        [(Counter::NpEcnMarkedRocePackets, 1), (Counter::RpCnpHandled, 1)]
    );
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

#[test]
fn without_congestion_control_nothing_is_marked_sent_or_heeded() {
    let mut pair = Pair::new(&setup(congestion(Control::Off, 64 << 10)));
    mark_everything(&mut pair);
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    pair.run(20);
    assert!(pair.frames().iter().all(|seen| !is_cnp(seen) && seen.bytes[15] == 0));
    inject_cnp(&mut pair, |_| {});
    pair.run(20);
    assert_eq!(pair.counters(0), [(Counter::RpCnpIgnored, 1)]);
    assert_eq!(pair.counters(1), [(Counter::RxWriteRequests, 1)]);
}

/// Puts a CNP for end 0 on the wire, as `change` makes it.
fn inject_cnp(pair: &mut Pair, change: impl FnOnce(&mut Crafted<'_>)) {
    let mut crafted = Crafted::new(Opcode::CNP, 0, &[0; 16]);
    (crafted.bth.becn, crafted.bth.ack_req, crafted.bth.mig_req) = (true, false, false);
    change(&mut crafted);
    pair.inject_answer(&crafted);
}

#[test]
fn cnps_that_are_none_are_counted_and_no_more() {
    let mut pair = Pair::new(&setup(congestion(Control::Dcqcn, 64 << 10)));
    let mut expected = (0, 0, 0);
    let mut check =
        |pair: &mut Pair, change: &dyn Fn(&mut Crafted<'_>), handled, ignored, other| {
            inject_cnp(pair, change);
            pair.run(10);
            expected = (expected.0 + handled, expected.1 + ignored, expected.2 + other);
            let counters = [Counter::RpCnpHandled, Counter::RpCnpIgnored, Counter::RxDiscards];
            assert_eq!(counters.map(|c| count(pair, 0, c)), [expected.0, expected.1, expected.2]);
        };
    check(&mut pair, &|_| {}, 1, 0, 0);
    check(&mut pair, &|cnp| cnp.payload = &[0xff; 16], 1, 0, 0);
    check(&mut pair, &|cnp| cnp.bth.becn = false, 0, 1, 0);
    check(&mut pair, &|cnp| cnp.payload = &[0; 12], 0, 1, 0);
    check(&mut pair, &|cnp| cnp.payload = &[], 0, 1, 0);
    check(&mut pair, &|cnp| cnp.source = [10, 0, 0, 9].into(), 0, 1, 0); // To another address.
    check(&mut pair, &|cnp| cnp.dest_qp = Some(Qpn::masked(0x15)), 0, 0, 1);
    // From a stranger.
    let mut stranger = Crafted::new(Opcode::CNP, 0, &[0; 16]);
    (stranger.bth.becn, stranger.source) = (true, [10, 0, 0, 9].into());
    pair.inject(&stranger);
    pair.run(10);
    assert_eq!(count(&pair, 1, Counter::RpCnpIgnored), 1);
    assert_eq!(count(&pair, 1, Counter::RpCnpHandled), 0);
    // Other peers' fixed rates heed none.
    let mut pair = Pair::new(&setup(congestion(Control::Fixed(Rate::from_gbps(1)), 64 << 10)));
    inject_cnp(&mut pair, |_| {});
    pair.run(10);
    assert_eq!(pair.counters(0), [(Counter::RpCnpIgnored, 1)]);
}

/// The rate that a reaction point gives which hears the same CNPs, and is told of the same bytes, is the rate at which
/// packets went: over any time, by no more than what may go at once.
#[test]
fn a_marked_stream_slows_down_and_recovers_as_the_reaction_point_says() {
    let config = congestion(Control::Dcqcn, 4096);
    let mut pair = Pair::new(&setup(config));
    stream(&mut pair, Duration::from_millis(1));
    mark_everything(&mut pair);
    stream(&mut pair, Duration::from_millis(2));
    pair.rig.wire.set_faults(WireFaults::default(), 1);
    stream(&mut pair, Duration::from_millis(10));

    let frames = pair.frames();
    let delay = Duration::from_micros(1);
    let mut events: Vec<(Instant, Option<u64>)> =
        data(&frames, 0).into_iter().map(|(at, bytes)| (at, Some(bytes))).collect();
    events.extend(frames.iter().filter(|seen| is_cnp(seen)).map(|seen| (seen.at + delay, None)));
    events.sort_by_key(|(at, bytes)| (*at, bytes.is_some()));
    let cnps = events.iter().filter(|(_, bytes)| bytes.is_none()).count();
    // One in 50 us at most; at the lowest rates, packets are fewer.
    assert!((10..=41).contains(&cnps), "{cnps} CNPs in 2 ms");

    let mut point = ReactionPoint::new(&config.params, Rate::from_gbps(10), Instant::ZERO);
    let (mut now, mut owed, mut slowest) = (Instant::ZERO, 0i128, u64::MAX);
    let mut worst = 0;
    for (at, event) in events {
        // Bits * 10^9 that the model lets go up to `at`, its rate changing on the way.
        while now < at {
            let next = point.next_event().min(at);
            let nanos = next.saturating_since(now).as_nanos();
            owed += i128::try_from(nanos).unwrap() * i128::from(point.rate().as_bps());
            point.advance(next);
            now = next;
        }
        match event {
            None => point.on_cnp(at),
            Some(bytes) => {
                owed -= i128::from(bytes) * 8_000_000_000;
                point.on_sent(bytes, at);
            }
        }
        slowest = slowest.min(point.rate().as_bps());
        worst = worst.max(owed.abs() / 8_000_000_000);
    }
    assert!(worst <= 4096 + 1200, "{worst} bytes off at most");
    assert!(slowest < 200_000_000, "{slowest}");
    assert!(point.rate() > Rate::from_gbps(5), "recovered to {}", point.rate());
    assert!(point.alpha().of_u64(1000) < 600, "{:?}", point.alpha());
}

/// Nothing is quicker than the bucket and its refill allow, at a rate that does not change; nor slower.
#[test]
fn a_fixed_rate_is_kept_to_the_byte_by_every_service() {
    let rate = Rate::from_mbps(800); // 100 bytes in a microsecond.
    for service in [Service::Rc, Service::Uc] {
        let burst = 8192;
        let setup = PairSetup { service, ..setup(congestion(Control::Fixed(rate), burst)) };
        let mut pair = Pair::new(&setup);
        stream(&mut pair, Duration::from_millis(20));
        check_pace(&data(&pair.frames(), 0), rate, u64::from(burst), Duration::from_millis(20));
    }
}

fn check_pace(sent: &[(Instant, u64)], rate: Rate, burst: u64, time: Duration) {
    let mut pacer = Pacer::new(u32::try_from(burst).unwrap(), sent[0].0);
    for &(at, bytes) in sent {
        assert!(pacer.available(rate, at) >= bytes, "{at:?}: {bytes} bytes are too early");
        pacer.spend(bytes, rate, at);
    }
    let total: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
    let due = rate.bytes_in(time);
    assert!(total >= due - 2 * 1200 && total <= due + burst, "{total} bytes of {due}");
}

#[test]
fn answers_to_reads_keep_to_the_rate_of_who_answers() {
    let rate = Rate::from_mbps(800);
    let mut pair = Pair::new(&setup(congestion(Control::Fixed(rate), 4096)));
    for wr_id in 0..4 {
        pair.post(wr_id, SendOp::Read(pair.remote(0)), 256 << 10);
    }
    pair.run(10_000);
    let frames = pair.frames();
    check_pace(&data(&frames, 1), rate, 4096, Duration::from_millis(10));
    pair.run(3_000);
    assert_eq!(pair.done(0).len(), 4);
}

#[test]
fn what_is_sent_again_keeps_to_the_rate_too() {
    let rate = Rate::from_mbps(800);
    let mut pair = Pair::new(&setup(congestion(Control::Fixed(rate), 4096)));
    pair.rig.wire.set_faults(WireFaults { loss: 50_000, ..WireFaults::default() }, 7);
    stream(&mut pair, Duration::from_millis(20));
    assert!(count(&pair, 0, Counter::RetransmittedPackets) > 5);
    let sent = data(&pair.frames(), 0);
    let mut pacer = Pacer::new(4096, sent[0].0);
    for (at, bytes) in sent {
        assert!(pacer.available(rate, at) >= bytes);
        pacer.spend(bytes, rate, at);
    }
}

/// Ten thousand packets a second need an acknowledgement each: sixteen of them take longer than the timeout.
#[test]
fn at_the_lowest_rates_no_timeout_runs_out() {
    let mut setup = setup(congestion(Control::Fixed(Rate::from_mbps(2)), 1500));
    setup.options.iter_mut().for_each(|options| options.timeout = 11); // 8.4 ms; a packet takes 4.3 ms.
    let mut pair = Pair::new(&setup);
    pair.post(1, SendOp::Write(pair.remote(0)), 100 << 10);
    pair.run(600_000);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(count(&pair, 0, Counter::LocalAckTimeoutErr), 0);
}

/// A QP that waits keeps neither others nor acknowledgements back, nor the core busy.
#[test]
fn a_qp_that_waits_is_in_nobodys_way() {
    let mut pair = Pair::new(&setup(congestion(Control::Fixed(Rate::from_mbps(1)), 2000)));
    pair.post(1, SendOp::Write(pair.remote(0)), 10 << 10);
    pair.run(100);
    let waits_until = pair.rig.next_event().expect("a timer");
    assert!(waits_until > pair.rig.now + Duration::from_millis(1), "not the next turn");
    assert_eq!(pair.rig.devices[0].turn(pair.rig.now), 0, "nothing to do");
    // The peer's READ is answered when the rate allows, its WRITE acknowledged at once.
    let end_0 =
        RemoteAddr { addr: pair.buffers[0].region().addr(), rkey: pair.buffers[0].region().rkey() };
    let sges = [pair.buffers[1].region().sge(0, 64)];
    let request = feroce_engine::verbs::SendRequest {
        wr_id: 9,
        op: SendOp::Write(end_0),
        data: feroce_engine::verbs::Data::Sges(&sges),
        flags: feroce_engine::verbs::SendFlags::SIGNALED,
    };
    pair.qps[1].post_send(&request).unwrap();
    pair.run(10);
    assert_eq!(pair.done(1), [(9, Status::Success)]);
}

#[test]
fn cnp_intervals_by_scope_and_timing() {
    let marks = 4; // In 40 us.
    let rows = [
        (CnpTiming::EveryMark, CnpScope::Qp, 4),
        (CnpTiming::EveryMark, CnpScope::Port, 4),
        (CnpTiming::Gap, CnpScope::Qp, 1),
        (CnpTiming::Gap, CnpScope::IpPair, 1),
        (CnpTiming::Window, CnpScope::Qp, 2),
        (CnpTiming::Window, CnpScope::IpPair, 2),
        (CnpTiming::Window, CnpScope::Port, 2),
    ];
    for (timing, scope, expected) in rows {
        let mut config = congestion(Control::Dcqcn, 64 << 10);
        (config.params.notification.cnp_timing, config.params.notification.cnp_scope) =
            (timing, scope);
        let mut pair = Pair::new(&setup(config));
        mark_everything(&mut pair);
        for wr_id in 0..marks {
            pair.post(wr_id, SendOp::Write(pair.remote(0)), 100);
            pair.run(10);
        }
        pair.run(200);
        assert_eq!(count(&pair, 1, Counter::NpCnpSent), expected, "{timing:?} {scope:?}");
        assert_eq!(count(&pair, 0, Counter::RpCnpHandled), expected, "{timing:?} {scope:?}");
    }
}

/// Delay-based control: a queue that grows with what is outstanding, a link of 1 Gb/s, slows TIMELY and Swift down.
#[test]
fn a_delay_slows_down_who_goes_by_delays() {
    for control in [Control::Timely, Control::Swift] {
        let mut config = congestion(control, 4096);
        config.params.swift.packet = 1024;
        let mut pair = Pair::new(&setup(config));
        stream(&mut pair, Duration::from_millis(1));
        let before = data(&pair.frames(), 0).len();
        pair.rig.wire.set_delay(Duration::from_millis(1));
        stream(&mut pair, Duration::from_millis(30));
        let _ = pair.frames();
        stream(&mut pair, Duration::from_millis(10));
        let after = data(&pair.frames(), 0).len() / 10;
        assert!(after * 4 < before, "{control}: {before} packets in a millisecond, then {after}");
    }
}
