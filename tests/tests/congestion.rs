//! Congestion control in virtual time: marks become CNPs, CNPs become rates, and packets keep to them.

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
    let mut pair = Pair::new(&setup(congestion(Control::DCQCN, 64 << 10)));
    mark_everything(&mut pair);
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    pair.run(20);
    let frames = pair.frames();
    let cnps: Vec<_> = frames.iter().filter(|seen| is_cnp(seen)).collect();
    assert_eq!((cnps.len(), cnps[0].from), (1, 1));
    let packet = Packet::parse(&cnps[0].bytes, &[]).unwrap();
    assert!(packet.icrc_valid() && cnp::is_valid(&packet));
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
    pair.inject_response(&crafted);
}

#[test]
fn cnps_that_are_none_are_counted_and_no_more() {
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

/// Two hundred packets a second need an acknowledgement each: sixteen of them take longer than the timeout. So do fewer
/// at higher rates, if the timeout is short.
#[test]
fn at_low_rates_no_timeout_runs_out() {
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

/// Nobody else would slow down when a switch marks: without ECT, it drops instead.
#[test]
fn only_senders_that_need_cnps_are_ecn_capable() {
    let slow = Control::Fixed(Rate::from_gbps(1));
    for (control, expected) in
        [(Control::DCQCN, 2), (slow, 0), (Control::TIMELY, 0), (Control::SWIFT, 0)]
    {
        let mut pair = Pair::new(&setup(congestion(control, 64 << 10)));
        pair.post(1, SendOp::Write(pair.remote(0)), 1000);
        pair.run(20);
        let sent = pair.frames();
        assert!(!sent.is_empty() && sent.iter().all(|seen| seen.bytes[15] & 3 == expected));
        // That of others is marked and answered whatever goes here.
        inject_marked_write(&mut pair);
        pair.run(20);
        assert_eq!(count(&pair, 1, Counter::NpCnpSent), 1, "{control}");
    }
}

/// With the setting `ecn`, datagrams say so as connections do, whatever decides over rates; what the program chose stays,
/// and nobody would hear of a group's marks.
#[test]
fn datagrams_say_so_where_configured() {
    let group: feroce_engine::net::Gid = "239.77.0.1".parse().expect("a group");
    let rows = [
        (Control::Off, gid(1), 0x68, 0x6a),
        (Control::Fixed(Rate::from_gbps(1)), gid(1), 0, 2),
        (Control::Off, gid(1), 0x69, 0x69), // ECT(1)
        (Control::Off, group, 0x68, 0x68),
    ];
    for (ecn, (control, to, asked, marked)) in
        [false, true].into_iter().flat_map(|ecn| rows.map(|row| (ecn, row)))
    {
        let mut config = manual_config(1);
        (config.ecn, config.congestion) = (ecn, congestion(control, 64 << 10));
        let mut net = Datagrams::with(&config);
        let (mut from, dest) = (net.qp(0), net.qp(1).qp.qpn());
        let path = Path { traffic_class: asked, ..Path::new(to, 0) };
        let handle = net.pds[0].create_ah(&path).expect("a path");
        from.send(SendOp::Send, b"x", &handle, dest).unwrap();
        net.run();
        let classes: Vec<u8> = net.frames().iter().map(|seen| seen.bytes[15]).collect();
        let expected = if ecn { marked } else { asked };
        assert_eq!(classes, [expected], "{control}, ecn {ecn}, {asked:#x} to {to}");
    }
}

/// A port whose ring is full takes no CNP: it goes when there is room.
#[test]
fn a_cnp_waits_for_room() {
    if RigPorts::are_the_kernels() {
        return; // The kernel always takes frames.
    }
    let mut setup =
        PairSetup { service: Service::Uc, ..setup(congestion(Control::DCQCN, 4 << 20)) };
    setup.config.window = 4096;
    let mut pair = Pair::new(&setup);
    // Step by step: who cannot send has no later time to wait for.
    let stand = |pair: &mut Pair| {
        for _ in 0..100 {
            pair.rig.settle();
            pair.rig.now += Duration::from_micros(1);
        }
    };
    pair.rig.wire.set_stalled([false, true]);
    let packets = 1100; // More than the ring holds; nobody acknowledges them.
    post_back(&mut pair, 9, packets * 1024);
    stand(&mut pair);
    assert_eq!(pair.done(1), [], "the ring has not all of it");

    mark_everything(&mut pair);
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    stand(&mut pair);
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

/// A marked WRITE for end 1.
fn inject_marked_write(pair: &mut Pair) {
    let psn = feroce_tests::pair::FIRST_PSN[0] + 1;
    let remote = pair.remote(0);
    let crafted = Crafted::new(Opcode::RC_WRITE_ONLY, psn, &[7; 8]).reth(remote, 8);
    let mut bytes = crafted.frame(pair.qps[1].qpn());
    bytes[15] |= 2; // ECT(0), and what that does to the header's checksum.
    let checksum = u16::from_be_bytes([bytes[24], bytes[25]]).checked_sub(2).expect("no borrow");
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    feroce_wire::mark_ce(&mut bytes);
    pair.inject_bytes(&bytes);
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

/// A bind sends nothing.
#[test]
fn a_request_without_packets_does_not_wait_for_the_rate() {
    let mut pair = Pair::new(&setup(congestion(Control::Fixed(Rate::from_mbps(1)), 1500)));
    pair.post(1, SendOp::Write(pair.remote(0)), 1000);
    pair.run(20);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let mut window = pair.pds[0].alloc_mw(WindowType::One).unwrap();
    let region = pair.buffers[0].region();
    let (addr, lkey, access) = (region.addr(), region.lkey(), Access::REMOTE_READ);
    let ask = WindowBind { rkey: window.rkey(), lkey, addr, length: 64, access };
    pair.qps[0].bind_mw(2, &mut window, &ask, SendFlags::SIGNALED).unwrap();
    pair.post(3, SendOp::Write(pair.remote(0)), 1000);
    pair.run(20);
    assert_eq!(pair.done(0), [(2, Status::Success)], "and the WRITE behind it waits");
    pair.run(20_000);
    assert_eq!(pair.done(0), [(3, Status::Success)]);
}

/// TIMELY slows down the requests of end 1, whose acknowledgements are late, and not what it answers.
#[test]
fn answers_to_reads_do_not_wait_for_requests_that_delays_slow_down() {
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
    pair.run(3_000); // 1 ms to ask, 0.9 ms at 10 Gb/s, 1 ms back.
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

/// Three connections, two of them between the same addresses: which of them tell their senders of a mark.
#[test]
fn connections_share_what_the_scope_says() {
    let rows = [
        (CnpTiming::Gap, CnpScope::Qp, [1, 1, 1]),
        (CnpTiming::Gap, CnpScope::IpPair, [1, 0, 1]),
        (CnpTiming::Gap, CnpScope::Port, [1, 0, 0]),
        // At the end of the window, the last that was marked is told.
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
        let told = [&pair.qps[0], &more[0][0], &more[1][0]].map(|qp| {
            let to = |seen: &&Seen| {
                let packet = Packet::parse(&seen.bytes, &[]).expect("a frame");
                packet.bth.opcode == Opcode::CNP && packet.bth.dest_qp == qp.qpn()
            };
            frames.iter().filter(to).count()
        });
        assert_eq!(told, expected, "{timing:?} {scope:?}");
        let handled = count(&pair, 0, Counter::RpCnpHandled);
        assert_eq!(handled, told.iter().sum::<usize>() as u64);
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

/// A UD QP has one rate for all; marks of datagrams that it takes are answered to their senders, and of no others.
#[test]
fn datagrams_slow_down_and_groups_hear_nothing() {
    let mut config = manual_config(1);
    config.congestion = congestion(Control::DCQCN, 4096);
    let mut net = Datagrams::with(&config);
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    net.rig.wire.set_faults(WireFaults { mark: 1_000_000, ..WireFaults::default() }, 1);
    let ah = net.ah(0, gid(1), 0);
    let group: feroce_engine::net::Gid = "239.77.0.1".parse().expect("a group");
    // ECT by the program's own choice.
    let path = Path { traffic_class: 2, ..Path::new(group, 0) };
    let to_group = net.pds[0].create_ah(&path).expect("a path");
    b.qp.attach_multicast(group).expect("a group");
    b.receive(4);
    let told = |net: &Datagrams| {
        [0, 1].map(|end| match end {
            0 => net.count(0, Counter::RpCnpHandled),
            _ => net.count(1, Counter::NpCnpSent),
        })
    };
    let stranger = Qkey(1);
    a.send_with_key(SendOp::Send, b"wrong", &ah, b.qp.qpn(), stranger).unwrap();
    a.send(SendOp::Send, b"all", &to_group, Qpn::MULTICAST).unwrap();
    a.send(SendOp::Send, b"one", &to_group, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!(net.count(1, Counter::QkeyViolations), 1);
    assert_eq!((b.done().len(), told(&net)), (2, [0, 0]));
    assert!(net.count(1, Counter::NpEcnMarkedRocePackets) >= 2);

    a.send(SendOp::Send, b"one", &ah, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!((b.done().len(), told(&net)), (1, [1, 1]));
    // Half of 10 Gb/s: 4096 bytes at once, then 6.7 us for each.
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

/// Control calls go by the time of the caller: the same is done whenever a program is run.
#[test]
fn a_device_that_is_turned_by_hand_has_the_time_of_the_last_turn() {
    let pair = Pair::new(&setup(congestion(Control::DCQCN, 4096)));
    let device = &pair.rig.devices[0];
    for nanos in [1 << 50, (1 << 50) + 7] {
        let now = Instant::from_nanos(nanos);
        device.turn(now);
        assert_eq!(device.clock(), now);
    }
}

/// Delay-based control: a queue that grows with what is outstanding, a link of 1 Gb/s, slows TIMELY and Swift down.
#[test]
fn a_delay_slows_down_who_goes_by_delays() {
    for control in [Control::TIMELY, Control::SWIFT] {
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
