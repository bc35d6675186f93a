//! Live replay in virtual time: the requests of captures are sent to a device of Feroce over a
//! port, with addresses, QP numbers, PSNs and keys other than the captured ones.
//!
//! `scripts/replay-live.sh` does the same between interfaces, and with rxe.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use feroce_conform::endpoint::Failure;
use feroce_conform::endpoint::end::{End, Pace, Posting};
use feroce_conform::endpoint::feroce::FeroceEnd;
use feroce_conform::endpoint::plan::{Family, Place, Plan, RESPONDER, Region, Settings};
use feroce_conform::party::Party;
use feroce_conform::replay::compare::sealed_again;
use feroce_conform::replay::lanes::{Captured, lanes, roce_frames};
use feroce_conform::replay::live::causes::causes;
use feroce_conform::replay::live::controlled_peer::ControlledPeer;
use feroce_conform::replay::live::needs;
use feroce_conform::replay::live::translation::{Ends, Names, Translation};
use feroce_conform::replay::live::{LiveError, PeerPath, Responder, dry_run, play};
use feroce_conform::replay::{Difference, Outcome, options};
use feroce_engine::device::{Addressing, Device, DeviceConfig, Endpoint, StaticAddresses};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::Gid;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::port::{Port, PortAttributes, PortStats, Priority, RxFrame};
use feroce_engine::qp::QpState;
use feroce_engine::time::Instant;
use feroce_engine::verbs::{Completion, RemoteAddr, Status};
use feroce_tests::manual_config;
use feroce_wire::{Aeth, MacAddr, Msn, Operation, Packet, PathMtu, Psn, Qpn};
use serde_json::Value;

/// Changes a response on its way to the replay; the first response is number 0. Returns false if
/// the response is lost.
type Change = fn(u64, &mut Packet<'_>) -> bool;

/// Makes an additional frame from a response, if any. The additional frame arrives after the
/// response.
type Extra = fn(u64, &[u8]) -> Option<Vec<u8>>;

/// A port that changes, drops and adds received responses.
#[derive(Debug)]
struct ChangingPort {
    inner: ShmPort,
    change: Change,
    extra: Extra,
    count: u64,
    received: Vec<Vec<u8>>,
}

impl Port for ChangingPort {
    fn attributes(&self) -> &PortAttributes {
        self.inner.attributes()
    }

    fn stats(&self) -> PortStats {
        self.inner.stats()
    }

    fn rx_burst(&mut self) -> usize {
        self.received.clear();
        for index in 0..self.inner.rx_burst() {
            let bytes = self.inner.rx_frame(index).first.to_vec();
            let mut packet = Packet::parse(&bytes, &[]).expect("RoCEv2");
            let changed = (self.change)(self.count, &mut packet).then(|| sealed_again(&packet));
            self.received.extend(changed);
            self.received.extend((self.extra)(self.count, &bytes));
            self.count += 1;
        }
        self.received.len()
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        RxFrame { first: &self.received[index], second: &[] }
    }

    fn tx_room(&mut self) -> usize {
        self.inner.tx_room()
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        self.inner.tx_slot()
    }

    fn tx_commit(&mut self, len: usize, priority: Priority) {
        self.inner.tx_commit(len, priority);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn is_unfinished(&self) -> bool {
        self.inner.is_unfinished()
    }

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        self.inner.arm_wakeup(fds)
    }

    fn disarm_wakeup(&mut self) {
        self.inner.disarm_wakeup();
    }
}

/// The device's clock: it advances while the replay waits and the device has nothing to do.
#[derive(Debug, Clone)]
struct DevicePace {
    device: Device,
    now: Rc<RefCell<Instant>>,
}

impl Pace for DevicePace {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.borrow().as_nanos())
    }

    fn pass(&mut self, most: Duration) {
        let mut now = self.now.borrow_mut();
        if self.device.turn(*now) == 0 {
            *now += most.min(Duration::from_micros(50));
        }
    }
}

/// The addresses of the replay: MAC, IPv4, IPv6.
const LOCAL: (MacAddr, [&str; 2]) = (MacAddr([2, 0xfe, 0, 0, 9, 1]), ["192.0.2.1", "2001:db8::1"]);
/// The addresses of the device.
const PEER: (MacAddr, [&str; 2]) = (MacAddr([2, 0xfe, 0, 0, 9, 2]), ["192.0.2.2", "2001:db8::2"]);
/// The QP number that requests come from.
const LOCAL_QPN: u32 = 0x77_0001;
/// Added to every PSN.
const SHIFT: i64 = 0x45_6789;

fn party((mac, ips): (MacAddr, [&str; 2]), is_v6: bool, qpn: u32) -> Party {
    let ip: IpAddr = ips[usize::from(is_v6)].parse().expect("an address");
    Party { mac, ip, qpn }
}

fn device(port: ShmPort) -> Device {
    let gid = |text: &&str| text.parse::<Gid>().expect("an address");
    let addresses = Addressing::Static(StaticAddresses {
        mac: PEER.0,
        gids: PEER.1.iter().map(|text| (gid(text), None)).collect(),
        peers: LOCAL.1.iter().map(|text| (gid(text), LOCAL.0)).collect::<BTreeMap<_, _>>(),
        mtu: ShmConfig::default().mtu,
    });
    Device::with_ports(vec![Box::new(port)], addresses, DeviceConfig { ..manual_config(7) })
        .expect("a device")
}

fn read(file: &str) -> Vec<Captured> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    roce_frames(options::read(root.join(file)).expect("a capture")).0
}

/// Replays the first connection of a capture to a device.
fn play_to_device(frames: &[Captured], change: Change) -> Result<Outcome, LiveError> {
    play_with(frames, |port| ChangingPort { change, ..port }, |end| Box::new(end))
}

/// The same, with a port changed by `ports` and a device end wrapped by `ends`.
fn play_with(
    frames: &[Captured],
    ports: impl Fn(ChangingPort) -> ChangingPort,
    ends: impl Fn(FeroceEnd) -> Box<dyn End>,
) -> Result<Outcome, LiveError> {
    let lane = &lanes(frames).0[0];
    let arena = Arena::new(16 << 20).expect("memory");
    let shape = ShmConfig { name: "live".to_owned(), slots: 1024, ..ShmConfig::default() };
    let (near, far) = shm_pair(&arena, shape).expect("ports");
    let pace = DevicePace { device: device(near), now: Rc::new(RefCell::new(Instant::ZERO)) };
    let end = FeroceEnd::paced(&pace.device, Box::new(pace.clone())).expect("an end");
    let is_v6 = lane.responder.ip.is_ipv6();
    let (extra, received): (Extra, _) = (|_, _| None, Vec::new());
    let port = ChangingPort { inner: far, change: unchanged, extra, count: 0, received };
    let path = PeerPath {
        port: &mut ports(port),
        pace: &mut pace.clone(),
        ends: Ends { own: party(LOCAL, is_v6, LOCAL_QPN), peer: party(PEER, is_v6, 0) },
        psn: SHIFT,
        response_timeout: Duration::from_millis(100),
    };
    play(lane, frames, path, Responder::Controlled(ends(end)))
}

/// Changes nothing.
fn unchanged(_: u64, _: &mut Packet<'_>) -> bool {
    true
}

/// Captures with every kind of request, the requests sent, and the responses compared. There are
/// fewer responses than captured, because requests sent in a burst are acknowledged together.
const CAPTURES: [(&str, u64, u64); 15] = [
    ("rxe/write_bw_v4_1024.pcap.zst", 1280, 5),
    ("rxe/send_bw_v6_4096.pcap.zst", 320, 3),
    ("rxe/read_bw_v4_1024.pcap.zst", 20, 1280),
    ("rxe/atomic_fa_v4.pcap.zst", 200, 200),
    ("rxe/ops_send_imm.pcap.zst", 11, 1),
    ("rxe/ops_write_imm.pcap.zst", 9, 1),
    ("rxe/ops_send_inv.pcap.zst", 5, 1),
    ("rxe/ops_zero_len.pcap.zst", 5, 2),
    ("rxe/ops_psn_wrap.pcap.zst", 11, 7),
    ("rxe/ops_rnr_late.pcap.zst", 186, 26),
    ("rxe/ops_bad_rkey_write.pcap.zst", 7, 1),
    ("rxe/ops_rx_short.pcap.zst", 5, 1),
    ("rxe/ops_psn_mismatch.pcap.zst", 268, 199),
    ("rxe/rping_v4.pcap.zst", 40, 40),
    ("rxe/loss_nft_atomic.tapA.pcap.zst", 237, 216),
];

#[test]
fn responses_equal_the_captured_ones_after_translation() {
    for (file, played, compared) in CAPTURES {
        let outcome =
            play_to_device(&read(file), unchanged).unwrap_or_else(|why| panic!("{file}: {why}"));
        assert!(outcome.differences.is_empty(), "{file}: {:#?}", outcome.differences);
        assert_eq!((outcome.fed, outcome.compared), (played, compared), "{file}");
    }
}

fn aeth(packet: &mut Packet<'_>, change: impl Fn(&mut Aeth)) -> bool {
    packet.ext.aeth.iter_mut().for_each(change);
    true
}

fn msn(packet: &mut Packet<'_>, more: u32) -> bool {
    aeth(packet, |aeth| aeth.msn = Msn::new(aeth.msn.value().wrapping_add(more)))
}

fn psn(packet: &mut Packet<'_>, more: u32) -> bool {
    packet.bth.psn = packet.bth.psn.add(more);
    true
}

/// The error in a response, the capture, the change that makes the error, and the reported
/// sentence.
const WRONG: [(&str, &str, Change, &str); 13] = [
    (
        "a wrong MSN",
        "rxe/write_lat_v4.pcap.zst",
        |_, packet| msn(packet, 1),
        "1 to 1 messages can be complete",
    ),
    (
        "an MSN above the number of requests",
        "rxe/read_bw_v4_1024.pcap.zst",
        |_, packet| msn(packet, 20),
        "messages can be complete",
    ),
    (
        "an MSN below the number of completed messages",
        "rxe/read_bw_v4_1024.pcap.zst",
        |_, packet| msn(packet, 0xff_fff8),
        "messages can be complete",
    ),
    (
        "an MSN that decreases",
        "rxe/read_bw_v4_1024.pcap.zst",
        |number, packet| {
            if number == 64 {
                aeth(packet, |aeth| aeth.msn = Msn::new(2));
            }
            true
        },
        "its MSN goes back from ",
    ),
    (
        "a wrong MSN in a NAK",
        "rxe/ops_bad_rkey_write.pcap.zst",
        |_, packet| msn(packet, 1),
        "1 to 1 messages can be complete",
    ),
    (
        "an acknowledgement of an unsent PSN",
        "rxe/write_lat_v4.pcap.zst",
        |number, packet| psn(packet, u32::from(number == 3)),
        "no request has its PSN",
    ),
    (
        "an acknowledgement with a lower PSN than the last",
        "rxe/write_lat_v4.pcap.zst",
        |number, packet| psn(packet, if number == 5 { 0xff_fffe } else { 0 }),
        "is already acknowledged",
    ),
    (
        "an atomic without a response",
        "rxe/atomic_fa_v4.pcap.zst",
        |_, packet| packet.bth.psn.value() % 128 != 0,
        "which the peer does not send",
    ),
    (
        "a wrong PSN in a READ response",
        "rxe/read_lat_v4.pcap.zst",
        |_, packet| psn(packet, 1),
        "no request has its PSN",
    ),
    (
        "a wrong value of an atomic",
        "rxe/atomic_lat_v4.pcap.zst",
        |_, packet| {
            packet.ext.atomic_ack.iter_mut().for_each(|ack| ack.original ^= 1);
            true
        },
        "atomic value: ",
    ),
    (
        "a wrong P_Key",
        "rxe/ops_write_imm.pcap.zst",
        |_, packet| {
            packet.bth.pkey.0 ^= 1;
            true
        },
        "P_Key: ",
    ),
    (
        "a missing NAK",
        "rxe/loss_nft_atomic.tapA.pcap.zst",
        |_, packet| {
            packet
                .ext
                .aeth
                .is_none_or(|aeth| matches!(aeth.syndrome, feroce_wire::Syndrome::Ack(_)))
        },
        "which the peer does not send",
    ),
    (
        "a wrong payload in a READ response",
        "rxe/read_lat_v4.pcap.zst",
        |number, packet| {
            if number == 7 {
                packet.payload = feroce_wire::Payload { first: &[0x5a; 64], second: &[] };
            }
            true
        },
        "payload: ",
    ),
];

#[test]
fn wrong_responses_are_found() {
    for (what, file, change, sentence) in WRONG {
        let frames = read(file);
        let right =
            play_to_device(&frames, unchanged).unwrap_or_else(|why| panic!("{file}: {why}"));
        assert_eq!(right.differences, [], "{file}, unchanged");
        let outcome = play_to_device(&frames, change).unwrap_or_else(|why| panic!("{file}: {why}"));
        let found = outcome.differences.iter().any(|one| one.sentence.contains(sentence));
        assert!(found, "{file}: the error is not found: {what}: {:#?}", outcome.differences);
    }
}

/// Frames of the peer that do not parse are not responses, and are reported: here one is truncated,
/// and one has a wrong checksum.
#[test]
fn a_malformed_response_is_a_difference() {
    for file in ["rxe/write_lat_v4.pcap.zst", "rxe/rc_pingpong_v6_1024.pcap.zst"] {
        let extra = |number: u64, bytes: &[u8]| match number {
            3 => Some(bytes[..bytes.len() - 6].to_vec()),
            4 => {
                let mut bytes = bytes.to_vec();
                bytes[24] ^= 1; // IPv4: the checksum. IPv6: the source address.
                Some(bytes)
            }
            5 => {
                let mut bytes = bytes.to_vec();
                bytes[33] ^= 1; // IPv4: the destination address. IPv6: the source address.
                Some(bytes)
            }
            _ => None,
        };
        let frames = read(file);
        let outcome =
            play_with(&frames, |port| ChangingPort { extra, ..port }, |end| Box::new(end));
        let found = outcome.unwrap_or_else(|why| panic!("{file}: {why}")).differences;
        let is_reported = |one: &Difference| {
            one.sentence.starts_with("the peer sends a malformed RoCEv2 packet: ")
        };
        assert!(found.iter().all(is_reported), "{file}: {found:#?}");
        let expected = if file.contains("_v6_") { 1 } else { 2 };
        assert_eq!(found.len(), expected, "{file}: {found:#?}");
    }
}

/// A peer that sends only malformed frames is reported with these frames and as silent.
#[test]
fn a_peer_that_sends_only_malformed_frames_is_reported() {
    let frames = read("rxe/write_lat_v4.pcap.zst");
    let cut = |_, bytes: &[u8]| Some(bytes[..bytes.len() - 6].to_vec());
    let none: Change = |_, _| false;
    let damaged = |port| ChangingPort { change: none, extra: cut, ..port };
    let outcome = play_with(&frames, damaged, |end| Box::new(end)).expect("an outcome");
    let says = |words: &str| outcome.differences.iter().any(|one| one.sentence.contains(words));
    assert!(
        says("malformed RoCEv2 packet") && says("requests are not sent"),
        "{:#?}",
        outcome.differences
    );
}

/// An end that reports other completions than its stack.
#[derive(Debug)]
struct WrongCompletions {
    inner: FeroceEnd,
    /// Changes the completions.
    change: fn(&mut Vec<Completion>),
}

impl End for WrongCompletions {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn prepare(
        &mut self,
        family: Family,
        regions: &[Region],
        seed: u64,
        settings: &Settings,
    ) -> Result<Endpoint, Failure> {
        self.inner.prepare(family, regions, seed, settings)
    }

    fn connect(
        &mut self,
        peer: &Endpoint,
        rq_psn: Psn,
        mtu: PathMtu,
        settings: &Settings,
    ) -> Result<(), Failure> {
        self.inner.connect(peer, rq_psn, mtu, settings)
    }

    fn keys(&mut self) -> Result<Vec<RemoteAddr>, Failure> {
        self.inner.keys()
    }

    fn post_receives(&mut self, receives: &[(u64, Place, u32)]) -> Result<(), Failure> {
        self.inner.post_receives(receives)
    }

    fn post_sends(&mut self, requests: &[Posting]) -> Result<(), Failure> {
        self.inner.post_sends(requests)
    }

    fn completions(&mut self, count: usize, timeout: Duration) -> Result<Vec<Completion>, Failure> {
        let mut done = self.inner.completions(count, timeout)?;
        (self.change)(&mut done);
        Ok(done)
    }

    fn memory(&mut self, region: usize) -> Result<Vec<u8>, Failure> {
        self.inner.memory(region)
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), Failure> {
        self.inner.write(place, bytes)
    }

    fn state(&mut self) -> Result<QpState, Failure> {
        self.inner.state()
    }

    fn destroy_qp(&mut self) -> Result<(), Failure> {
        self.inner.destroy_qp()
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.inner.kill()
    }
}

/// Receive completions that do not match the capture: one too many, one of another receive, and one
/// for a message that was NAKed.
#[test]
fn wrong_receive_completions_are_found() {
    type Change = fn(&mut Vec<Completion>);
    let rows: [(&str, Change, &str); 3] = [
        ("rxe/ops_send_imm.pcap.zst", |done| done.extend(done.clone()), "more receives complete"),
        (
            "rxe/ops_send_imm.pcap.zst",
            |done| done.iter_mut().for_each(|one| one.wr_id += 1),
            "the receive for the message",
        ),
        (
            "rxe/ops_rx_short.pcap.zst",
            |done| done.iter_mut().for_each(|one| one.status = Status::Success),
            "the receive for the message with PSN 0x",
        ),
    ];
    for (file, change, says) in rows {
        let frames = read(file);
        let changed = |change: Change| {
            move |inner| Box::new(WrongCompletions { inner, change }) as Box<dyn End>
        };
        let right = play_with(&frames, |port| port, changed(|_| ())).expect("an outcome");
        assert_eq!(right.differences, [], "{file}");
        let found = play_with(&frames, |port| port, changed(change)).expect("an outcome");
        let is_reported = found.differences.iter().any(|one| one.sentence.starts_with(says));
        assert!(is_reported, "{file}: {:#?}", found.differences);
    }
}

#[test]
fn a_replay_without_responses_fails_with_a_reason() {
    let silent = play_to_device(&read("rxe/write_lat_v4.pcap.zst"), |_, _| false);
    let why = silent.expect_err("no response arrived").to_string();
    assert!(why.starts_with("no response from 192.0.2.2 within 100ms"), "{why}");
    let unreliable = play_to_device(&read("rxe/uc_pingpong_v4_1024.pcap.zst"), unchanged);
    assert!(matches!(unreliable, Err(LiveError::Unplayable(_))), "{unreliable:?}");
}

/// A request waits for the responses captured before it: with one READ or atomic at a time, for the
/// response to the previous one; after an RNR NAK, for the RNR NAK, but not for the NAK that
/// follows it, which only some stacks send.
#[test]
fn requests_wait_for_the_responses_captured_before_them() {
    let frames = read("rxe/atomic_lat_v4.pcap.zst");
    let lane = &lanes(&frames).0[0];
    let waits = causes(lane, &frames, |_| true);
    assert_eq!(waits.len(), lane.requests.len() + 1);
    assert!(waits[0].is_empty());
    for (at, waits) in waits.iter().enumerate().skip(1) {
        let psn = frames[lane.requests[at - 1]].packet().bth.psn;
        assert_eq!(
            waits.iter().map(|wait| (wait.cause, wait.response.psn)).collect::<Vec<_>>(),
            [(at - 1, psn)]
        );
    }
    let frames = read("rxe/ops_rnr_late.pcap.zst");
    let lane = &lanes(&frames).0[0];
    let waits = causes(lane, &frames, |_| true);
    let answers = waits.iter().flatten().count();
    let naks = |index: &&usize| {
        let packet = frames[**index].packet();
        let is = |aeth: Aeth| {
            aeth.syndrome == feroce_wire::Syndrome::Nak(feroce_wire::NakCode::PsnSequence)
        };
        packet.info.operation == Operation::Acknowledge && packet.ext.aeth.is_some_and(is)
    };
    let behind = lane.responses.iter().filter(naks).count();
    assert_eq!((answers, behind), (lane.responses.len() - behind, 26));
    // The NAK for a lost request is caused by the first request after it.
    let lost = read("rxe/loss_nft_atomic.tapA.pcap.zst");
    let lost_lane = &lanes(&lost).0[0];
    let waits = causes(lost_lane, &lost, |_| true);
    let nak = waits.iter().flatten().find(|wait| wait.number == 111).expect("a NAK");
    let cause = lost[lost_lane.requests[nak.cause]].number;
    assert_eq!((cause, nak.response.psn.value()), (106, 16_191_069));
    // An atomic waits for the READ of its memory: packets 8 and 18 of the capture.
    let reads = read("rxe/ops_psn_wrap.pcap.zst");
    let waits = causes(&lanes(&reads).0[0], &reads, |_| true);
    let ahead = |at: usize| waits[at].iter().map(|wait| wait.number).collect::<Vec<_>>();
    assert_eq!([ahead(6), ahead(7), ahead(8)], [vec![], vec![18], vec![]]);
    // Requests that are not sent get no responses.
    assert!(causes(lane, &frames, |_| false).iter().all(Vec::is_empty));
}

/// An endpoint that its user has prepared: its QP number, keys and addresses are given, and the
/// replay does not control it.
#[test]
fn a_prepared_peer_only_receives_requests() {
    let frames = read("rxe/write_lat_v4.pcap.zst");
    let lane = &lanes(&frames).0[0];
    let arena = Arena::new(16 << 20).expect("memory");
    let shape = ShmConfig { name: "ready".to_owned(), ..ShmConfig::default() };
    let (near, mut far) = shm_pair(&arena, shape).expect("ports");
    let pace = DevicePace { device: device(near), now: Rc::new(RefCell::new(Instant::ZERO)) };
    let mut replay = |qpn, names| {
        let ends = Ends { own: party(LOCAL, false, LOCAL_QPN), peer: party(PEER, false, qpn) };
        let (port, pace, response_timeout) =
            (&mut far, &mut pace.clone(), Duration::from_millis(1));
        play(
            lane,
            &frames,
            PeerPath { port, pace, ends, psn: 0, response_timeout },
            Responder::Ready(names),
        )
    };
    // The peer has no such QP and does not respond.
    let why = replay(0x99, Names::default()).expect_err("no such QP").to_string();
    assert!(why.contains("it has no QP 0x99"), "{why}");

    let end = FeroceEnd::paced(&pace.device, Box::new(pace.clone())).expect("an end");
    let dry_run = dry_run(lane, &frames).expect("enough is captured");
    let mut controlled =
        ControlledPeer::prepare(Box::new(end), lane, &dry_run).expect("memory and a QP");
    let first = dry_run.begin.rq_psn;
    let gid = LOCAL.1[0].parse().expect("an address");
    let own = Endpoint::new(Qpn::masked(LOCAL_QPN), first, gid);
    controlled.connect(lane, &dry_run, &own, first).expect("a connection");
    let qpn = controlled.endpoint.qpn.value();
    let outcome = replay(qpn, controlled.names(lane, &frames, 0)).expect("an outcome");
    assert_eq!((outcome.fed, outcome.compared, outcome.differences), (200, 200, Vec::new()));
    let (bytes, differences) = controlled.check(&dry_run).expect("memory");
    assert!(bytes > 0 && differences.is_empty(), "{differences:?}");
}

/// Every request is sent with the addresses of the replay, also one that was captured with the MAC
/// addresses of another router.
#[test]
fn requests_leave_with_the_addresses_of_the_replay() {
    let mut frames = read("rxe/write_lat_v4.pcap.zst");
    let third = lanes(&frames).0[0].requests[2];
    let mut packet = frames[third].packet();
    (packet.ethernet.src, packet.ethernet.dst) = (MacAddr([6; 6]), MacAddr([8; 6]));
    frames[third].bytes = sealed_again(&packet);
    let lane = &lanes(&frames).0[0];
    let ends = Ends { own: party(LOCAL, false, LOCAL_QPN), peer: party(PEER, false, 0x99) };
    let translation = Translation::new(lane, &frames, &ends, &Names::default());
    for &index in &lane.requests {
        let bytes = translation.request(&frames[index].bytes).expect("a request");
        let packet = Packet::parse(&bytes, &[]).expect("RoCEv2");
        assert_eq!((packet.ethernet.src, packet.ethernet.dst), (LOCAL.0, PEER.0));
        assert!(packet.icrc_valid());
    }
}

/// An endpoint prepared only from the output of `--needs --json` responds as captured.
#[test]
fn the_listed_needs_are_sufficient() {
    for file in [
        "rxe/ops_psn_wrap.pcap.zst",
        "rxe/read_lat_v4.pcap.zst",
        "rxe/atomic_lat_v4.pcap.zst",
        "rxe/ops_send_imm.pcap.zst",
    ] {
        let frames = read(file);
        let lane = &lanes(&frames).0[0];
        let needs = serde_json::to_value(needs::Endpoint::of(lane, &frames)).expect("JSON");
        assert_eq!(
            needs["changes"],
            Value::Array(Vec::new()),
            "{file}: nothing changes during the exchange"
        );
        let arena = Arena::new(16 << 20).expect("memory");
        let shape = ShmConfig { name: "needs".to_owned(), ..ShmConfig::default() };
        let (near, mut far) = shm_pair(&arena, shape).expect("ports");
        let pace = DevicePace { device: device(near), now: Rc::new(RefCell::new(Instant::ZERO)) };
        let end = FeroceEnd::paced(&pace.device, Box::new(pace.clone())).expect("an end");
        let (qpn, names) = prepare(end, &needs);
        let ends = Ends { own: party(LOCAL, false, LOCAL_QPN), peer: party(PEER, false, qpn) };
        let (port, pace, response_timeout) =
            (&mut far, &mut pace.clone(), Duration::from_millis(1));
        let path = PeerPath { port, pace, ends, psn: 0, response_timeout };
        let outcome = play(lane, &frames, path, Responder::Ready(names));
        let outcome = outcome.unwrap_or_else(|why| panic!("{file}: {why}"));
        assert_eq!(outcome.differences, [], "{file}: {needs:#}");
        assert!(outcome.compared > 0, "{file}");
    }
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} of {value}"))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field} of {value}"))
}

/// Prepares `end` with what `needs` lists; receives use an additional region 0. Returns its QP
/// number and its keys and addresses. The end is leaked, so that it lives until the process exits.
fn prepare(mut end: FeroceEnd, needs: &Value) -> (u32, Names) {
    const RECEIVES: u32 = 1 << 16;
    let word = |value: &Value, field: &str| u32::try_from(number(value, field)).expect("32 bits");
    let regions: Vec<Region> = std::iter::once((RECEIVES, Access::LOCAL_WRITE))
        .chain(list(needs, "regions").iter().map(|region| {
            let access = list(region, "rights").iter().map(|right| match right.as_str() {
                Some("remote write") => Access::REMOTE_WRITE,
                Some("remote read") => Access::REMOTE_READ,
                Some("remote atomic") => Access::REMOTE_ATOMIC,
                _ => panic!("{right}"),
            });
            (word(region, "length"), access.fold(Access::LOCAL_WRITE, |all, one| all | one))
        }))
        .map(|(len, access)| Region { len, access, window: false })
        .collect();
    let min_rnr_timer = u8::try_from(number(needs, "rnr_timer")).expect("a code");
    let settings = Settings { min_rnr_timer, ..Plan::new().settings[RESPONDER] };
    let endpoint = end.prepare(Family::V4, &regions, 1, &settings).expect("memory and a QP");
    let first = Psn::new(word(needs, "first_psn"));
    let gid = LOCAL.1[0].parse().expect("an address");
    let own = Endpoint::new(Qpn::masked(LOCAL_QPN), first, gid);
    let mtu = PathMtu::from_bytes(word(needs, "path_mtu")).expect("a path MTU");
    end.connect(&own, first, mtu, &settings).expect("a connection");
    let mut names = Names::default();
    let keys = end.keys().expect("keys");
    for (at, (region, name)) in list(needs, "regions").iter().zip(&keys[1..]).enumerate() {
        let (key, start) = (word(region, "rkey"), number(region, "address"));
        names.keys.insert(key, name.rkey.value());
        names.addresses.insert(key, name.addr.wrapping_sub(start).cast_signed());
        for held in list(region, "holds") {
            let offset = u32::try_from(number(held, "address") - start).expect("inside");
            let digits = held["bytes"].as_str().expect("digits").as_bytes().chunks(2);
            let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16);
            let bytes: Vec<u8> = digits.map(|pair| byte(pair).expect("two digits")).collect();
            end.write(Place { region: 1 + at, offset }, &bytes).expect("inside the region");
        }
    }
    let mut offset = 0;
    for (receive, wr_id) in list(needs, "receives").iter().zip(0..) {
        assert!(receive["after_packet"].is_null(), "{receive}");
        let length = word(receive, "length");
        end.post_receives(&[(wr_id, Place { region: 0, offset }, length)]).expect("room");
        offset += length;
    }
    Box::leak(Box::new(end));
    (endpoint.qpn.value(), names)
}
