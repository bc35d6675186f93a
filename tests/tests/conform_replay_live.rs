//! A live replay in virtual time: the requester's part of captures is played to a device of ours, behind a port, with other
//! addresses, QP numbers, PSNs and keys than the captured ones. `scripts/replay-live.sh` does it between interfaces, and to rxe.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use feroce_engine::device::{Addressing, Device, DeviceConfig, Endpoint, StaticAddresses};
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::Gid;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::port::{Port, PortAttributes, PortStats, Priority, RxFrame};
use feroce_engine::time::Instant;
use feroce_tests::capture::Party;
use feroce_tests::conform::replay::compare::sealed_again;
use feroce_tests::conform::replay::lanes::{Captured, lanes, roce_frames};
use feroce_tests::conform::replay::live::causes::causes;
use feroce_tests::conform::replay::live::stage::Stage;
use feroce_tests::conform::replay::live::translation::{Ends, Names};
use feroce_tests::conform::replay::live::{Responder, Trouble, Way, play, rehearse};
use feroce_tests::conform::replay::{Outcome, options};
use feroce_tests::manual_config;
use feroce_tests::rxe::end::Pace;
use feroce_tests::rxe::feroce::FeroceEnd;
use feroce_wire::{Aeth, MacAddr, Msn, Operation, Packet, Qpn};

/// What becomes of an answer on its way to us; false if it is lost.
type Tamper = fn(&mut Packet<'_>) -> bool;

/// A port whose answers something happens to.
#[derive(Debug)]
struct Tampered {
    inner: ShmPort,
    tamper: Tamper,
    heard: Vec<Vec<u8>>,
}

impl Port for Tampered {
    fn attributes(&self) -> &PortAttributes {
        self.inner.attributes()
    }

    fn stats(&self) -> PortStats {
        self.inner.stats()
    }

    fn rx_burst(&mut self) -> usize {
        let count = self.inner.rx_burst();
        let frames = (0..count).map(|index| self.inner.rx_frame(index).first.to_vec());
        let tampered = frames.filter_map(|bytes| {
            let mut packet = Packet::parse(&bytes, &[]).expect("RoCEv2");
            (self.tamper)(&mut packet).then(|| sealed_again(&packet))
        });
        self.heard = tampered.collect();
        self.heard.len()
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        RxFrame { first: &self.heard[index], second: &[] }
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

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        self.inner.arm_wakeup(fds)
    }

    fn disarm_wakeup(&mut self) {
        self.inner.disarm_wakeup();
    }
}

/// The device's time: it goes by when somebody waits and the device has nothing to do.
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

const OWN: (MacAddr, [&str; 2]) = (MacAddr([2, 0xfe, 0, 0, 9, 1]), ["192.0.2.1", "2001:db8::1"]);
const PEER: (MacAddr, [&str; 2]) = (MacAddr([2, 0xfe, 0, 0, 9, 2]), ["192.0.2.2", "2001:db8::2"]);
/// Our QP.
const OWN_QPN: u32 = 0x77_0001;
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
        peers: OWN.1.iter().map(|text| (gid(text), OWN.0)).collect::<BTreeMap<_, _>>(),
        mtu: ShmConfig::default().mtu,
    });
    Device::with_ports(vec![Box::new(port)], addresses, DeviceConfig { ..manual_config(7) })
        .expect("a device")
}

fn read(file: &str) -> Vec<Captured> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    roce_frames(options::read(root.join(file)).expect("a capture")).0
}

/// Plays the first lane of a capture to a device of ours.
fn play_to_us(frames: &[Captured], tamper: Tamper) -> Result<Outcome, Trouble> {
    let lane = &lanes(frames).0[0];
    let arena = Arena::new(16 << 20).expect("memory");
    let shape = ShmConfig { name: "live".to_owned(), slots: 1024, ..ShmConfig::default() };
    let (near, far) = shm_pair(&arena, shape).expect("ports");
    let pace = DevicePace { device: device(near), now: Rc::new(RefCell::new(Instant::ZERO)) };
    let end = FeroceEnd::paced(&pace.device, Box::new(pace.clone())).expect("an end");
    let is_v6 = lane.responder.ip.is_ipv6();
    let way = Way {
        port: &mut Tampered { inner: far, tamper, heard: Vec::new() },
        pace: &mut pace.clone(),
        ends: Ends { own: party(OWN, is_v6, OWN_QPN), peer: party(PEER, is_v6, 0) },
        psn: SHIFT,
        patience: Duration::from_millis(100),
    };
    play(lane, frames, way, Responder::Told(Box::new(end)))
}

fn honest(_: &mut Packet<'_>) -> bool {
    true
}

/// Captures with what a requester can ask for, requests that are played, and answers that are compared: what comes in a row is
/// acknowledged at once.
#[rustfmt::skip]
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
fn captures_are_answered_alike_under_other_names() {
    for (file, played, compared) in CAPTURES {
        let outcome = play_to_us(&read(file), honest).unwrap_or_else(|why| panic!("{file}: {why}"));
        assert!(outcome.differences.is_empty(), "{file}: {:#?}", outcome.differences);
        assert_eq!((outcome.fed, outcome.compared), (played, compared), "{file}");
    }
}

fn aeth(packet: &mut Packet<'_>, change: impl Fn(&mut Aeth)) -> bool {
    packet.ext.aeth.iter_mut().for_each(change);
    true
}

/// What a wrong answer has, and in which capture.
#[rustfmt::skip]
const WRONG: [(&str, &str, Tamper); 8] = [
    ("MSN", "rxe/write_lat_v4.pcap.zst", |packet| aeth(packet, |aeth| aeth.msn = Msn::new(aeth.msn.value() + 1))),
    ("MSN of more than was asked", "rxe/read_bw_v4_1024.pcap.zst", |packet| aeth(packet, |aeth| aeth.msn = Msn::new(aeth.msn.value() + 20))),
    ("MSN below", "rxe/read_bw_v4_1024.pcap.zst", |packet| aeth(packet, |aeth| aeth.msn = Msn::new(aeth.msn.value().wrapping_sub(8)))),
    ("an atomic without an answer", "rxe/atomic_fa_v4.pcap.zst", |packet| packet.bth.psn.value() % 128 != 0),
    ("PSN of a READ response", "rxe/read_lat_v4.pcap.zst", |packet| { packet.bth.psn = packet.bth.psn.next(); true }),
    ("value of an atomic", "rxe/atomic_lat_v4.pcap.zst", |packet| {
        packet.ext.atomic_ack.iter_mut().for_each(|ack| ack.original ^= 1);
        true
    }),
    ("P_Key", "rxe/ops_write_imm.pcap.zst", |packet| { packet.bth.pkey.0 ^= 1; true }),
    ("no NAK", "rxe/loss_nft_atomic.tapA.pcap.zst", |packet| packet.ext.aeth.is_none_or(|aeth| {
        matches!(aeth.syndrome, feroce_wire::Syndrome::Ack(_))
    })),
];

#[test]
fn wrong_answers_are_found() {
    for (what, file, tamper) in WRONG {
        let outcome = play_to_us(&read(file), tamper).unwrap_or_else(|why| panic!("{file}: {why}"));
        assert!(!outcome.differences.is_empty(), "{what} of {file} does not show");
    }
}

#[test]
fn who_does_not_answer_is_told() {
    let silent = play_to_us(&read("rxe/write_lat_v4.pcap.zst"), |_| false);
    let why = silent.expect_err("nothing was heard").to_string();
    assert!(why.starts_with("no answer from 192.0.2.2 within 100ms"), "{why}");
    let unreliable = play_to_us(&read("rxe/uc_pingpong_v4_1024.pcap.zst"), honest);
    assert!(matches!(unreliable, Err(Trouble::Unplayable(_))), "{unreliable:?}");
}

/// A request waits for what was captured ahead of it: with one READ or atomic at a time, for the answer to the last one;
/// behind an RNR NAK, for that, and not for the NAK behind it, which only some send.
#[test]
fn requests_wait_for_what_came_ahead_of_them() {
    let frames = read("rxe/atomic_lat_v4.pcap.zst");
    let lane = &lanes(&frames).0[0];
    let waits = causes(lane, &frames, |_| true);
    assert_eq!(waits.len(), lane.requests.len() + 1);
    assert!(waits[0].is_empty());
    for (at, waits) in waits.iter().enumerate().skip(1) {
        let psn = frames[lane.requests[at - 1]].packet().bth.psn;
        assert_eq!(
            waits.iter().map(|wait| (wait.cause, wait.answer.psn)).collect::<Vec<_>>(),
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
    // What is missing is told when the first request behind it comes.
    let lost = read("rxe/loss_nft_atomic.tapA.pcap.zst");
    let lost_lane = &lanes(&lost).0[0];
    let waits = causes(lost_lane, &lost, |_| true);
    let nak = waits.iter().flatten().find(|wait| wait.number == 111).expect("a NAK");
    let cause = lost[lost_lane.requests[nak.cause]].number;
    assert_eq!((cause, nak.answer.psn.value()), (106, 16_191_069));
    // An atomic waits for the READ of its memory: packets 8 and 18 of the capture.
    let reads = read("rxe/ops_psn_wrap.pcap.zst");
    let waits = causes(&lanes(&reads).0[0], &reads, |_| true);
    let ahead = |at: usize| waits[at].iter().map(|wait| wait.number).collect::<Vec<_>>();
    assert_eq!([ahead(6), ahead(7), ahead(8)], [vec![], vec![18], vec![]]);
    // What is not sent is not answered.
    assert!(causes(lane, &frames, |_| false).iter().all(Vec::is_empty));
}

/// An endpoint that its user has prepared: names are given, and nobody tells it anything.
#[test]
fn a_peer_that_is_ready_is_only_asked() {
    let frames = read("rxe/write_lat_v4.pcap.zst");
    let lane = &lanes(&frames).0[0];
    let arena = Arena::new(16 << 20).expect("memory");
    let shape = ShmConfig { name: "ready".to_owned(), ..ShmConfig::default() };
    let (near, mut far) = shm_pair(&arena, shape).expect("ports");
    let pace = DevicePace { device: device(near), now: Rc::new(RefCell::new(Instant::ZERO)) };
    let mut ask = |qpn, names| {
        let ends = Ends { own: party(OWN, false, OWN_QPN), peer: party(PEER, false, qpn) };
        let (port, pace, patience) = (&mut far, &mut pace.clone(), Duration::from_millis(1));
        play(lane, &frames, Way { port, pace, ends, psn: 0, patience }, Responder::Ready(names))
    };
    // It has no such QP: it keeps silent.
    let why = ask(0x99, Names::default()).expect_err("nobody is there").to_string();
    assert!(why.contains("it has no QP 0x99"), "{why}");

    let end = FeroceEnd::paced(&pace.device, Box::new(pace.clone())).expect("an end");
    let rehearsal = rehearse(lane, &frames).expect("enough is captured");
    let mut stage = Stage::prepare(Box::new(end), lane, &rehearsal).expect("memory and a QP");
    let first = rehearsal.begin.rq_psn;
    let gid = OWN.1[0].parse().expect("an address");
    let own = Endpoint { qpn: Qpn::masked(OWN_QPN), psn: first, gid, super_frames: None };
    stage.connect(lane, &rehearsal, &own, first).expect("a connection");
    let qpn = stage.endpoint.qpn.value();
    let outcome = ask(qpn, stage.names(lane, &frames, 0)).expect("answers");
    assert_eq!((outcome.fed, outcome.compared, outcome.differences), (200, 200, Vec::new()));
    let (bytes, differences) = stage.check(&rehearsal).expect("memory");
    assert!(bytes > 0 && differences.is_empty(), "{differences:?}");
}
