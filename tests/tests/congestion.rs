//! Congestion control in virtual time: marked packets cause CNPs, CNPs lower rates, and packets
//! keep to the rates.

use feroce_congestion::params::{CnpScope, CnpTiming};
use feroce_congestion::{Pacer, Params, Rate, ReactionPoint};
use feroce_engine::congestion::{CongestionConfig, Control};
use feroce_engine::counters::Counter;
use feroce_engine::device::{ConnectOptions, Path, QpInit, QueuePair};
use feroce_engine::memory::{Access, WindowBind, WindowType};
use feroce_engine::qp::Service;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::datagram::Datagrams;
use feroce_tests::pair::{Crafted, Pair, PairSetup};
use feroce_tests::ports::RigPorts;
use feroce_tests::wire::{Seen, WireFaults};
use feroce_tests::{gid, manual_config};
use feroce_wire::{Opcode, Packet, PathMtu, Psn, Qkey, Qpn, cnp};

/// A link rate of 10 Gb/s, the parameters of the DCQCN paper, and bursts of `burst` bytes.
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

/// Times and lengths of the frames with payload from end `from`, without CNPs.
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

/// Keeps the send queue of end 0 full of WRITEs of 64 KiB for `time`.
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
fn a_marked_packet_causes_a_cnp_in_the_form_of_a_connectx() {
    let mut pair = Pair::new(&setup(congestion(Control::DCQCN, 64 << 10)));
    mark_everything(&mut pair);
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    pair.run(20);
    let frames = pair.frames();
    let cnps: Vec<_> = frames.iter().filter(|seen| is_cnp(seen)).collect();
    assert_eq!((cnps.len(), cnps[0].from), (1, 1));
    let packet = Packet::parse(&cnps[0].bytes, &[]).unwrap();
    assert!(packet.icrc_valid() && cnp::is_valid(&packet.bth, packet.payload));
    assert_eq!(packet.bth.dest_qp, pair.qps[0].qpn());
    assert_eq!((packet.ip.traffic_class(), packet.ip.hop_limit()), (0xc2, 64));
    assert_eq!((packet.udp.src_port, packet.bth.psn.value(), packet.bth.mig_req), (0, 0, false));
    assert_eq!(packet.payload.first, [0; 16]);
    // The CNP is sent before the acknowledgement.
    let back: Vec<_> = frames.iter().filter(|seen| seen.from == 1).map(is_cnp).collect();
    assert_eq!(back, [true, false]);
    let expected = [Counter::RxWriteRequests, Counter::NpEcnMarkedRocePackets, Counter::NpCnpSent];
    assert_eq!(pair.counters(1), expected.map(|counter| (counter, 1)));
    // The acknowledgement was marked too, which causes no CNP.
    assert_eq!(
        pair.counters(0),
        [(Counter::NpEcnMarkedRocePackets, 1), (Counter::RpCnpHandled, 1)]
    );
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

#[test]
fn without_congestion_control_packets_are_not_ect_and_cnps_are_ignored() {
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

/// Puts a CNP for end 0, altered by `change`, on the wire.
fn inject_cnp(pair: &mut Pair, change: impl FnOnce(&mut Crafted<'_>)) {
    let mut crafted = Crafted::new(Opcode::CNP, 0, &[0; 16]);
    (crafted.bth.becn, crafted.bth.ack_req, crafted.bth.mig_req) = (true, false, false);
    change(&mut crafted);
    pair.inject_response(&crafted);
}

#[test]
fn invalid_cnps_are_only_counted() {
    let mut pair = Pair::new(&setup(congestion(Control::DCQCN, 64 << 10)));
    let mut expected = (0, 0, 0);
    let mut check =
        |pair: &mut Pair, change: &dyn Fn(&mut Crafted<'_>), handled, ignored, other| {
            inject_cnp(pair, change);
            pair.run(10);
            expected = (expected.0 + handled, expected.1 + ignored, expected.2 + other);
            let counters = [Counter::RpCnpHandled, Counter::RpCnpIgnored, Counter::RxDiscards];
            assert_eq!(counters.map(|c| count(pair, 0, c)), [expected.0, expected.1, expected.2]);
        };
    // A QP that has sent nothing cannot have caused it.
    check(&mut pair, &|_| {}, 0, 1, 0);
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    pair.run(10);
    check(&mut pair, &|_| {}, 1, 0, 0);
    check(&mut pair, &|cnp| cnp.payload = &[0xff; 16], 1, 0, 0);
    check(&mut pair, &|cnp| cnp.bth.becn = false, 0, 1, 0);
    check(&mut pair, &|cnp| cnp.payload = &[0; 12], 0, 1, 0);
    check(&mut pair, &|cnp| cnp.payload = &[], 0, 1, 0);
    check(&mut pair, &|cnp| cnp.source = [10, 0, 0, 9].into(), 0, 1, 0); // Sent to another address.
    check(&mut pair, &|cnp| cnp.dest_qp = Some(Qpn::masked(0x15)), 0, 0, 1);
    pair.run(100_000);
    check(&mut pair, &|_| {}, 0, 1, 0); // It has sent nothing for 100 ms.
    // From an address that is not the peer.
    let mut foreign = Crafted::new(Opcode::CNP, 0, &[0; 16]);
    (foreign.bth.becn, foreign.source) = (true, [10, 0, 0, 9].into());
    pair.inject(&foreign);
    pair.run(10);
    assert_eq!(count(&pair, 1, Counter::RpCnpIgnored), 1);
    assert_eq!(count(&pair, 1, Counter::RpCnpHandled), 0);
    // A fixed rate ignores CNPs.
    let mut pair = Pair::new(&setup(congestion(Control::Fixed(Rate::from_gbps(1)), 64 << 10)));
    inject_cnp(&mut pair, |_| {});
    pair.run(10);
    assert_eq!(pair.counters(0), [(Counter::RpCnpIgnored, 1)]);
}

/// A reaction point that gets the same CNPs and the same sent bytes computes the rate at which
/// packets were sent. Over any interval the difference is at most the burst size and one packet.
#[test]
fn a_marked_stream_follows_the_rate_of_a_reaction_point() {
    let config = congestion(Control::DCQCN, 4096);
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
    // At most one CNP in 50 us; at the lowest rates, packets are less frequent than that.
    assert!((10..=41).contains(&cnps), "{cnps} CNPs in 2 ms");

    let mut point = ReactionPoint::new(&config.params, Rate::from_gbps(10), Instant::ZERO);
    let (mut now, mut owed, mut slowest) = (Instant::ZERO, 0i128, u64::MAX);
    let mut worst = 0;
    for (at, event) in events {
        // `owed`: bits * 10^9 that the model allows up to `at`, while its rate changes.
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
    assert!(worst <= 4096 + 1200, "{worst} bytes of difference");
    assert!(slowest < 200_000_000, "{slowest}");
    assert!(point.rate() > Rate::from_gbps(5), "recovered to {}", point.rate());
    assert!(point.alpha().of_u64(1000) < 600, "{:?}", point.alpha());
}

/// At a fixed rate, packets are neither earlier nor later than the token bucket allows.
#[test]
fn every_service_keeps_to_a_fixed_rate() {
    let rate = Rate::from_mbps(800); // 100 bytes per microsecond.
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
        assert!(pacer.available(rate, at) >= bytes, "{at:?}: {bytes} bytes were sent too early");
        pacer.spend(bytes, rate, at);
    }
    let total: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
    let due = rate.bytes_in(time);
    assert!(total >= due - 2 * 1200 && total <= due + burst, "{total} bytes of {due}");
}

#[test]
fn read_responses_keep_to_the_rate_of_the_responder() {
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
fn retransmissions_keep_to_the_rate() {
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

/// At 200 packets per second, each packet must request an acknowledgement, because sixteen packets
/// take longer than the timeout. The same holds for higher rates with short timeouts.
#[test]
fn low_rates_cause_no_timeout() {
    // A packet takes 4.4 ms, 4.4 us and 87 us; the timeouts are 8.4 ms and 8 us to 262 us.
    for (mbps, timeout) in [(2, 11), (2000, 1), (2000, 3), (100, 1), (100, 4), (100, 6)] {
        let control = Control::Fixed(Rate::from_mbps(mbps));
        let mut setup = setup(congestion(control, 1500));
        setup.options.iter_mut().for_each(|options| options.timeout = timeout);
        let mut pair = Pair::new(&setup);
        pair.post(1, SendOp::Write(pair.remote(0)), 100 << 10);
        pair.run(1_200_000 / mbps);
        assert_eq!(pair.done(0), [(1, Status::Success)], "{mbps} Mb/s, timeout {timeout}");
        assert_eq!(count(&pair, 0, Counter::LocalAckTimeoutErr), 0, "{mbps} Mb/s, {timeout}");
    }
}

/// Only DCQCN reacts to CNPs, so only DCQCN sends ECT packets. A congested switch drops packets
/// without ECT instead of marking them.
#[test]
fn only_senders_that_react_to_cnps_are_ecn_capable() {
    let slow = Control::Fixed(Rate::from_gbps(1));
    for (control, expected) in
        [(Control::DCQCN, 2), (slow, 0), (Control::TIMELY, 0), (Control::SWIFT, 0)]
    {
        let mut pair = Pair::new(&setup(congestion(control, 64 << 10)));
        pair.post(1, SendOp::Write(pair.remote(0)), 1000);
        pair.run(20);
        let sent = pair.frames();
        assert!(!sent.is_empty() && sent.iter().all(|seen| seen.bytes[15] & 3 == expected));
        // Marked packets of the peer cause CNPs with every control.
        inject_marked_write(&mut pair);
        pair.run(20);
        assert_eq!(count(&pair, 1, Counter::NpCnpSent), 1, "{control}");
    }
}

/// With the setting `ecn`, unicast datagrams are ECT(0) with every control. ECN bits that the
/// program has set stay. Datagrams to a group stay unmarked, because marks of a group cause no
/// CNPs.
#[test]
fn the_setting_ecn_makes_datagrams_ecn_capable() {
    let group: feroce_engine::net::Gid = "239.77.0.1".parse().expect("a group");
    let rows = [
        (Control::Off, gid(1), 0x68, 0x6a),
        (Control::Fixed(Rate::from_gbps(1)), gid(1), 0, 2),
        (Control::Off, gid(1), 0x69, 0x69), // ECT(1)
        (Control::Off, group, 0x68, 0x68),
    ];
    for (ecn, (control, to, given, marked)) in
        [false, true].into_iter().flat_map(|ecn| rows.map(|row| (ecn, row)))
    {
        let mut config = manual_config(1);
        (config.ecn, config.congestion) = (ecn, congestion(control, 64 << 10));
        let mut net = Datagrams::with(&config);
        let (mut from, dest) = (net.qp(0), net.qp(1).qp.qpn());
        let path = Path { traffic_class: given, ..Path::new(to, 0) };
        let handle = net.pds[0].create_ah(&path).expect("a path");
        from.send(SendOp::Send, b"x", &handle, dest).unwrap();
        net.run();
        let classes: Vec<u8> = net.frames().iter().map(|seen| seen.bytes[15]).collect();
        let expected = if ecn { marked } else { given };
        assert_eq!(classes, [expected], "{control}, ecn {ecn}, {given:#x} to {to}");
    }
}

/// A CNP that finds the transmit ring full is sent when there is room.
#[test]
fn a_cnp_waits_for_room_in_the_port() {
    if RigPorts::are_the_kernels() {
        return; // A port of the kernel is never full.
    }
    let mut setup =
        PairSetup { service: Service::Uc, ..setup(congestion(Control::DCQCN, 4 << 20)) };
    setup.config.window = 4096;
    let mut pair = Pair::new(&setup);
    // Advance step by step: a device that cannot send has no deadline.
    let advance = |pair: &mut Pair| {
        for _ in 0..100 {
            pair.rig.settle();
            pair.rig.now += Duration::from_micros(1);
        }
    };
    pair.rig.wire.set_stalled([false, true]);
    let packets = 1100; // More than the ring holds. UC needs no acknowledgements.
    post_back(&mut pair, 9, packets * 1024);
    advance(&mut pair);
    assert_eq!(pair.done(1), [], "the ring cannot hold the whole message");

    mark_everything(&mut pair);
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    advance(&mut pair);
    let counters = [Counter::NpEcnMarkedRocePackets, Counter::NpCnpSent];
    assert_eq!(counters.map(|counter| count(&pair, 1, counter)), [1, 0]);

    pair.rig.wire.set_stalled([false; 2]);
    pair.run(60);
    let frames = pair.frames();
    let back: Vec<_> = frames.iter().filter(|seen| seen.from == 1).collect();
    assert_eq!(back.len(), packets as usize + 1);
    assert_eq!(back.iter().filter(|seen| is_cnp(seen)).count(), 1);
    assert_eq!(counters.map(|counter| count(&pair, 1, counter)), [1, 1]);
    assert_eq!(count(&pair, 0, Counter::RpCnpHandled), 1);
}

/// Puts a WRITE marked CE for end 1 on the wire.
fn inject_marked_write(pair: &mut Pair) {
    let psn = feroce_tests::pair::FIRST_PSN[0] + 1;
    let remote = pair.remote(0);
    let crafted = Crafted::new(Opcode::RC_WRITE_ONLY, psn, &[7; 8]).reth(remote, 8);
    let mut bytes = crafted.frame(pair.qps[1].qpn());
    bytes[15] |= 2; // ECT(0), which changes the header checksum.
    let checksum = u16::from_be_bytes([bytes[24], bytes[25]]).checked_sub(2).expect("no borrow");
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    feroce_wire::mark_ce(&mut bytes);
    pair.inject_bytes(&bytes);
}

/// A QP that waits for its rate delays neither other QPs nor acknowledgements, and does not keep
/// the core busy.
#[test]
fn a_qp_that_waits_for_its_rate_delays_nothing_else() {
    let mut pair = Pair::new(&setup(congestion(Control::Fixed(Rate::from_mbps(1)), 2000)));
    pair.post(1, SendOp::Write(pair.remote(0)), 10 << 10);
    pair.run(100);
    let waits_until = pair.rig.next_event().expect("a timer");
    assert!(waits_until > pair.rig.now + Duration::from_millis(1), "not the next turn");
    assert_eq!(pair.rig.devices[0].turn(pair.rig.now), 0, "nothing to do");
    // The peer's WRITE is acknowledged at once.
    post_back(&mut pair, 9, 64);
    pair.run(10);
    assert_eq!(pair.done(1), [(9, Status::Success)]);
}

/// Posts a WRITE of `len` bytes at end 1.
fn post_back(pair: &mut Pair, wr_id: u64, len: u32) {
    let region = pair.buffers[0].region();
    let end_0 = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
    let sges = [pair.buffers[1].region().sge(0, len)];
    let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
    let request = SendRequest { wr_id, op: SendOp::Write(end_0), data, flags };
    pair.qps[1].post_send(&request).expect("room");
}

/// A window bind sends no packet.
#[test]
fn a_request_without_packets_does_not_wait_for_the_rate() {
    let mut pair = Pair::new(&setup(congestion(Control::Fixed(Rate::from_mbps(1)), 1500)));
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    pair.run(20);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let mut window = pair.pds[0].alloc_mw(WindowType::One).unwrap();
    let region = pair.buffers[0].region();
    let (addr, lkey, access) = (region.addr(), region.lkey(), Access::REMOTE_READ);
    let bind = WindowBind { rkey: window.rkey(), lkey, addr, length: 64, access };
    pair.qps[0].bind_mw(2, &mut window, &bind, SendFlags::SIGNALED).unwrap();
    pair.post(3, SendOp::Write(pair.remote(0)), 1000);
    pair.run(20);
    assert_eq!(pair.done(0), [(2, Status::Success)], "and the WRITE behind it waits");
    pair.run(20_000);
    assert_eq!(pair.done(0), [(3, Status::Success)]);
}

/// TIMELY slows down the requests of end 1, because their acknowledgements are late, but not the
/// READ responses of end 1.
#[test]
fn read_responses_do_not_wait_for_requests_slowed_by_timely() {
    let mut pair = Pair::new(&setup(congestion(Control::TIMELY, 4096)));
    pair.rig.wire.set_delay(Duration::from_millis(1));
    for wr_id in 0..60 {
        post_back(&mut pair, wr_id, 64 << 10);
        pair.run(2_500);
    }
    let _ = pair.frames();
    post_back(&mut pair, 60, 1 << 20);
    pair.run(2_000);
    let requests = data(&pair.frames(), 1).len();
    pair.post(1, SendOp::Read(pair.remote(0)), 1 << 20);
    pair.run(3_000); // 1 ms for the request, 0.9 ms for the data at 10 Gb/s, 1 ms for the way back.
    let both = data(&pair.frames(), 1);
    assert!(requests < 300, "{requests} packets of requests in 2 ms");
    assert!(both.len() >= 1024, "{} packets", both.len());
    assert_eq!(pair.done(0), [(1, Status::Success)]);
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
        let mut config = congestion(Control::DCQCN, 64 << 10);
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

/// Three connections, two of them between the same addresses, get a marked packet each. The rows
/// say which of them send a CNP.
#[test]
fn connections_share_the_cnp_interval_of_their_scope() {
    let rows = [
        (CnpTiming::Gap, CnpScope::Qp, [1, 1, 1]),
        (CnpTiming::Gap, CnpScope::IpPair, [1, 0, 1]),
        (CnpTiming::Gap, CnpScope::Port, [1, 0, 0]),
        // At the end of the window, a CNP is sent for the last marked packet.
        (CnpTiming::Window, CnpScope::Qp, [1, 1, 1]),
        (CnpTiming::Window, CnpScope::IpPair, [1, 1, 1]),
        (CnpTiming::Window, CnpScope::Port, [1, 0, 1]),
    ];
    for (timing, scope, expected) in rows {
        let mut config = congestion(Control::DCQCN, 64 << 10);
        let params = &mut config.params.notification;
        (params.cnp_timing, params.cnp_scope) = (timing, scope);
        let mut pair = Pair::new(&setup(config));
        let mut more = [0, 1].map(|index| connect_more(&pair, index));
        mark_everything(&mut pair);
        let remote = pair.remote(0);
        let [one, other] = &mut more;
        for qp in [&mut pair.qps[0], &mut one[0], &mut other[0]] {
            let sges = [pair.buffers[0].region().sge(0, 100)];
            let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
            let request = SendRequest { wr_id: 1, op: SendOp::Write(remote), data, flags };
            qp.post_send(&request).expect("room");
            pair.rig.run_for(Duration::from_micros(10));
        }
        pair.run(200);
        assert_eq!(pair.done(0).len(), 3);
        let frames = pair.frames();
        let cnps = [&pair.qps[0], &more[0][0], &more[1][0]].map(|qp| {
            let to = |seen: &&Seen| {
                let packet = Packet::parse(&seen.bytes, &[]).expect("a frame");
                packet.bth.opcode == Opcode::CNP && packet.bth.dest_qp == qp.qpn()
            };
            frames.iter().filter(to).count()
        });
        assert_eq!(cnps, expected, "{timing:?} {scope:?}");
        let handled = count(&pair, 0, Counter::RpCnpHandled);
        assert_eq!(handled, cnps.iter().sum::<usize>() as u64);
    }
}

/// Another connection between the ends of `pair`, by the addresses at `index`.
fn connect_more(pair: &Pair, index: u32) -> [QueuePair; 2] {
    let mut qps = [0, 1]
        .map(|end: usize| pair.pds[end].create_qp(&QpInit::new(&pair.cqs[end])).expect("a QP"));
    let ends = [0, 1].map(|end: usize| qps[end].endpoint(Psn::new(1), index).expect("a GID"));
    let options = ConnectOptions { sgid_index: index, ..ConnectOptions::default() };
    for end in 0..2 {
        qps[end].connect(Psn::new(1), &ends[1 - end], &options).expect("in RESET");
    }
    qps
}

/// A UD QP has one rate for all destinations. A marked datagram causes a CNP to its sender only if
/// it is accepted and was not sent to a group.
#[test]
fn marked_datagrams_cause_cnps_except_to_groups() {
    let mut config = manual_config(1);
    config.congestion = congestion(Control::DCQCN, 4096);
    let mut net = Datagrams::with(&config);
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    net.rig.wire.set_faults(WireFaults { mark: 1_000_000, ..WireFaults::default() }, 1);
    let ah = net.ah(0, gid(1), 0);
    let group: feroce_engine::net::Gid = "239.77.0.1".parse().expect("a group");
    // The program sets ECT itself.
    let path = Path { traffic_class: 2, ..Path::new(group, 0) };
    let to_group = net.pds[0].create_ah(&path).expect("a path");
    b.qp.attach_multicast(group).expect("a group");
    b.receive(4);
    let cnps = |net: &Datagrams| {
        [0, 1].map(|end| match end {
            0 => net.count(0, Counter::RpCnpHandled),
            _ => net.count(1, Counter::NpCnpSent),
        })
    };
    let wrong_key = Qkey(1);
    a.send_with_key(SendOp::Send, b"wrong", &ah, b.qp.qpn(), wrong_key).unwrap();
    a.send(SendOp::Send, b"all", &to_group, Qpn::MULTICAST).unwrap();
    a.send(SendOp::Send, b"one", &to_group, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!(net.count(1, Counter::QkeyViolations), 1);
    assert_eq!((b.done().len(), cnps(&net)), (2, [0, 0]));
    assert!(net.count(1, Counter::NpEcnMarkedRocePackets) >= 2);

    a.send(SendOp::Send, b"one", &ah, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!((b.done().len(), cnps(&net)), (1, [1, 1]));
    // Half of 10 Gb/s: 4096 bytes at once, then one datagram every 6.7 us.
    let frames_before = net.frames().len();
    assert!(frames_before > 0);
    net.rig.wire.set_faults(WireFaults::default(), 1);
    for _ in 0..8 {
        a.send(SendOp::Send, &[7; 4096], &ah, b.qp.qpn()).unwrap();
    }
    net.rig.run_for(Duration::from_micros(60));
    let sent: Vec<_> = net.frames().into_iter().filter(|seen| seen.from == 0).collect();
    let gaps: Vec<_> = sent.windows(2).map(|two| two[1].at.saturating_since(two[0].at)).collect();
    assert_eq!(sent.len(), 8);
    for gap in &gaps[1..] {
        let nanos = gap.as_nanos();
        assert!((5_500..7_000).contains(&nanos), "{gaps:?}");
    }
}

/// A device driven by its caller uses the time of the last turn in control calls, so that every run
/// of a program is the same.
#[test]
fn the_clock_of_a_manually_driven_device_is_that_of_its_last_turn() {
    let pair = Pair::new(&setup(congestion(Control::DCQCN, 4096)));
    let device = &pair.rig.devices[0];
    for nanos in [1 << 50, (1 << 50) + 7] {
        let now = Instant::from_nanos(nanos);
        device.turn(now);
        assert_eq!(device.clock(), now);
    }
}

/// A longer round trip slows down TIMELY and Swift, which control the rate by delay.
#[test]
fn a_longer_delay_slows_down_timely_and_swift() {
    for control in [Control::TIMELY, Control::SWIFT] {
        let mut config = congestion(control, 4096);
        config.params.set("swift_packet", "1024").unwrap();
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

/// DCTCP's marks come as CNPs, here one for each marked packet: the window falls to two packets in
/// an RTT of 100 us.
#[test]
fn marks_slow_down_dctcp() {
    let mut config = congestion(Control::DCTCP, 4096);
    config.params.set("cnp_interval", "0").unwrap();
    let mut pair = Pair::new(&setup(config));
    pair.rig.wire.set_delay(Duration::from_micros(50));
    let sent = |pair: &mut Pair| {
        stream(pair, Duration::from_millis(4));
        let _ = pair.frames();
        stream(pair, Duration::from_millis(1));
        data(&pair.frames(), 0).len()
    };
    let before = sent(&mut pair);
    mark_everything(&mut pair);
    let after = sent(&mut pair);
    assert!(after * 4 < before, "{before} packets in a millisecond, then {after}");
    assert!(count(&pair, 0, Counter::RpCnpHandled) > 0);
    pair.rig.wire.set_faults(WireFaults::default(), 1);
    stream(&mut pair, Duration::from_millis(10));
    let again = sent(&mut pair);
    assert!(again > after * 4, "{again} packets in a millisecond after {after}");
}
