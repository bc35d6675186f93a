//! Replay of captures that miss packets, or show a refusal without its cause: the engine agrees,
//! and a wrong packet is still found.

use std::path::Path;
use std::time::Duration;

use feroce_conform::replay::compare::sealed_again;
use feroce_conform::replay::lanes::Captured;
use feroce_conform::replay::tolerance::Tolerance::{self, CaptureEnds, CaptureHole, OwnFailure};
use feroce_conform::replay::{Replay, Role, options, replay};
use feroce_tests::conform_fuzz::seal;
use feroce_wire::{Key, Msn, Packet, Psn};

/// Offset of the BTH in an IPv4 frame.
const BTH: usize = 14 + 20 + 8;
const ACKNOWLEDGE: u8 = 0x11;
/// Syndromes of NAKs.
const SEQUENCE: u8 = 0x60;
const INVALID_REQUEST: u8 = 0x61;
const REMOTE_ACCESS: u8 = 0x62;
const REMOTE_OPERATIONAL: u8 = 0x63;

/// Captures without loss, in which both ends can be played.
const CLEAN: [&str; 15] = [
    "rxe/atomic_fa_v4.pcap.zst",
    "rxe/atomic_lat_v4.pcap.zst",
    "rxe/ops_rd1.pcap.zst",
    "rxe/ops_read_big.pcap.zst",
    "rxe/rc_pingpong_v6ll_1024.pcap.zst",
    "rxe/read_bw_v4_1024.pcap.zst",
    "rxe/read_bw_v4_4096.pcap.zst",
    "rxe/read_lat_v4.pcap.zst",
    "rxe/rping_v4.pcap.zst",
    "rxe/rping_v6.pcap.zst",
    "rxe/send_bw_cm_v4.pcap.zst",
    "rxe/send_bw_v4_1024.pcap.zst",
    "rxe/send_bw_v6_4096.pcap.zst",
    "rxe/write_bw_qp4_bidir.pcap.zst",
    "rxe/write_bw_v4_1024.pcap.zst",
];

const ROLES: [Role; 2] = [Role::Responder, Role::Requester];

fn read(file: &str) -> Vec<Captured> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    options::read(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn uses(replay: &Replay, tolerance: Tolerance) -> bool {
    let mut outcomes = replay.played.iter().filter_map(|played| played.result.as_ref().ok());
    outcomes.any(|outcome| outcome.tolerances.count(tolerance) > 0)
}

/// Plays `frames` in both roles and returns the replays that differ.
fn differing(frames: &[Captured], what: &str) -> Vec<String> {
    let replays = ROLES.map(|role| (role, replay(frames.to_vec(), &[role])));
    let differ = replays.iter().filter(|(_, replay)| replay.compared() > 0 && !replay.agrees());
    differ.map(|(role, replay)| format!("{what}, {role:?}\n{replay}")).collect()
}

#[test]
fn holes_of_a_capture_are_no_differences() {
    let (mut wrong, mut told) = (Vec::new(), 0);
    for file in CLEAN {
        let all = read(file);
        for (tenth, count) in [(3, 2), (4, 7), (5, 20), (6, 33), (2, 90)] {
            let start = all.len() * tenth / 10;
            let end = (start + count).min(all.len() - 10);
            let frames = [&all[..start], &all[end..]].concat();
            wrong.extend(differing(&frames, &format!("{file} without {start} to {end}")));
            let replay = replay(frames, &ROLES);
            told += u32::from(uses(&replay, CaptureHole));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    assert!(told > 60, "{told} holes of 75 are told");
}

#[test]
fn a_capture_may_begin_late_and_end_early() {
    let mut wrong = Vec::new();
    for file in CLEAN {
        let all = read(file);
        for cut in [1, 2, 3, 10, 31, all.len() / 2] {
            wrong.extend(differing(&all[cut..], &format!("{file} from {cut}")));
            wrong.extend(differing(&all[..all.len() - cut], &format!("{file} without {cut}")));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

/// A hole excuses neither a wrong packet behind it nor a NAK for its first PSN.
#[test]
fn a_hole_excuses_no_other_difference() {
    let all = read("rxe/send_bw_v4_1024.pcap.zst");
    let frames = [&all[..400], &all[450..]].concat();
    let after = |frames: &[Captured], nth: usize| {
        let is_response = |at: &usize| frames[*at].packet().info.is_response();
        (400..frames.len()).filter(is_response).nth(nth).expect("a response")
    };
    let mut wrong_msn = frames.clone();
    let at = after(&frames, 3);
    let mut packet = frames[at].packet();
    packet.ext.aeth.iter_mut().for_each(|aeth| aeth.msn = Msn::new(aeth.msn.value() + 1));
    wrong_msn[at].bytes = sealed_again(&packet);
    let mut refused = frames.clone();
    let first = after(&frames, 0);
    let psn = frames[..400].iter().rfind(|frame| frame.packet().info.is_request());
    let psn = psn.expect("a request").packet().bth.psn.next();
    refused[first].bytes = answer(&frames[first], SEQUENCE, psn, 6);
    for (frames, what) in [(wrong_msn, "MSN"), (refused, "NAK")] {
        let replay = replay(frames, &[Role::Responder]);
        assert!(!replay.agrees(), "{what}\n{replay}");
    }
}

/// Returns an acknowledgement with this syndrome, PSN and MSN, made of a captured response.
fn answer(response: &Captured, syndrome: u8, psn: Psn, msn: u32) -> Vec<u8> {
    let mut bytes = response.bytes.clone();
    bytes.truncate(BTH + 12 + 4 + 4);
    bytes[BTH] = ACKNOWLEDGE;
    bytes[BTH + 1] &= 0xcf; // No padding.
    bytes[BTH + 8..BTH + 12].copy_from_slice(&psn.value().to_be_bytes());
    bytes[BTH + 12..BTH + 16].copy_from_slice(&(u32::from(syndrome) << 24 | msn).to_be_bytes());
    seal(&mut bytes).expect("a frame over IPv4");
    bytes
}

/// Cuts the capture after the request packet number `nth`, and refuses this packet.
fn refused(file: &str, nth: usize, syndrome: u8) -> Vec<Captured> {
    let mut frames = read(file);
    let to = frames[0].packet().bth.dest_qp;
    let is_request =
        |frame: &Captured| frame.packet().bth.dest_qp == to && frame.packet().info.is_request();
    let requests: Vec<usize> = (0..frames.len()).filter(|&at| is_request(&frames[at])).collect();
    let last = requests[nth];
    let packet = frames[last].packet();
    let ends = |at: &&usize| frames[**at].packet().info.position.ends_message();
    let messages = requests[..nth].iter().filter(ends).count();
    let is_response = |frame: &&Captured| {
        frame.packet().info.is_response() && frame.packet().ip.src() == packet.ip.dst()
    };
    let response = frames[..last].iter().find(is_response).expect("a response");
    let msn = u32::try_from(messages).expect("few");
    let bytes = answer(response, syndrome, packet.bth.psn, msn);
    let number = frames[last].number + 1;
    let at = frames[last].at + Duration::from_millis(1);
    frames.truncate(last + 1);
    frames.push(Captured { number, at, bytes });
    frames
}

/// A capture, and a request packet that follows granted ones with the same key and right.
const REFUSED: [(&str, usize); 5] = [
    ("rxe/write_lat_v4.pcap.zst", 50),
    ("rxe/write_bw_v4_1024.pcap.zst", 3 * 64),
    ("rxe/write_bw_v4_1024.pcap.zst", 3 * 64 + 5),
    ("rxe/read_lat_v4.pcap.zst", 30),
    ("rxe/atomic_lat_v4.pcap.zst", 30),
];

/// The cause of a refusal is not in the capture: the memory is no longer registered, the QP has no
/// right, the responder failed. The engine has the same cause and refuses, too.
#[test]
fn a_refusal_has_its_cause() {
    for (file, nth) in REFUSED {
        for syndrome in [REMOTE_ACCESS, INVALID_REQUEST, REMOTE_OPERATIONAL] {
            let frames = refused(file, nth, syndrome);
            let wrong = differing(&frames, &format!("{file} {nth} {syndrome:#x}"));
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            let replay = replay(frames, &[Role::Responder]);
            assert_eq!(uses(&replay, OwnFailure), syndrome == REMOTE_OPERATIONAL, "{replay}");
        }
    }
}

/// A refusal is compared: its PSN, its MSN, and the silence after it.
#[test]
fn a_wrong_refusal_is_a_difference() {
    for (file, nth) in REFUSED {
        let frames = refused(file, nth, REMOTE_ACCESS);
        let nak = frames.last().expect("the NAK").clone();
        let (psn, msn) = (nak.packet().bth.psn, nak.packet().ext.aeth.expect("a NAK").msn.value());
        let with = |bytes: Vec<u8>| {
            let mut frames = frames.clone();
            frames.last_mut().expect("the NAK").bytes = bytes;
            frames
        };
        let twice = [&frames[..], std::slice::from_ref(&nak)].concat();
        let cases = [
            (with(answer(&nak, REMOTE_ACCESS, psn.next(), msn)), "PSN"),
            (with(answer(&nak, REMOTE_ACCESS, psn, msn + 1)), "MSN"),
            (twice, "second NAK"),
        ];
        for (frames, what) in cases {
            let replay = replay(frames, &[Role::Responder]);
            assert!(!replay.agrees(), "{file} {nth} {what}\n{replay}");
        }
    }
}

/// A requester that starts ahead of what the responder expects gets one NAK with the expected PSN.
#[test]
fn a_responder_that_expects_an_earlier_psn_is_played() {
    let all = read("rxe/send_lat_v4.pcap.zst");
    let to = all[0].packet().bth.dest_qp;
    let is_request =
        |frame: &&Captured| frame.packet().bth.dest_qp == to && frame.packet().info.is_request();
    let requests: Vec<&Captured> = all.iter().filter(is_request).take(4).collect();
    let response = all.iter().find(|frame| frame.packet().info.is_response()).expect("one");
    let is_back = response.packet().ip.dst() == requests[0].packet().ip.src();
    let response = match is_back {
        true => response,
        false => all.iter().rfind(|frame| frame.packet().info.is_response()).expect("one"),
    };
    let expected = requests[0].packet().bth.psn.add((1 << 24) - 100);
    let nak = Captured {
        number: requests[0].number + 1,
        at: requests[0].at + Duration::from_millis(1),
        bytes: answer(response, SEQUENCE, expected, 0),
    };
    let mut frames: Vec<Captured> = requests.into_iter().cloned().collect();
    frames.insert(1, nak);
    let first = replay(frames.clone(), &[Role::Responder]);
    assert!(first.agrees() && first.compared() == 1, "{first}");
    // A second NAK for the same gap is one too many.
    frames.insert(3, Captured { at: frames[2].at, number: 99, ..frames[1].clone() });
    let second = replay(frames, &[Role::Responder]);
    assert!(!second.agrees(), "{second}");
}

/// The MSN of the first response tells how many messages are ahead of the capture, unless
/// communication management shows that none are.
#[test]
fn the_first_msn_is_checked_where_the_connection_begins() {
    for (file, agrees) in [("rxe/rping_v4.pcap.zst", false), ("rxe/read_lat_v4.pcap.zst", true)] {
        let mut frames = read(file);
        for frame in &mut frames {
            let mut packet: Packet<'_> = frame.packet();
            let Some(aeth) = &mut packet.ext.aeth else { continue };
            aeth.msn = Msn::new(aeth.msn.value() + 5);
            frame.bytes = sealed_again(&packet);
        }
        let replay = replay(frames, &[Role::Responder]);
        assert_eq!(replay.agrees(), agrees, "{file}\n{replay}");
        assert_eq!(uses(&replay, CaptureEnds), agrees, "{file}\n{replay}");
    }
}

/// Memory is registered for what lies between two accesses, too: a few packets must not ask for
/// gigabytes, in one region or in several.
#[test]
fn regions_beyond_the_limit_are_not_played() {
    for keys in [1, 2] {
        let mut frames = read("rxe/read_lat_v4.pcap.zst");
        let mut reads = 0;
        for frame in &mut frames {
            let mut packet: Packet<'_> = frame.packet();
            let Some(reth) = &mut packet.ext.reth else { continue };
            reth.va += reads % 2 * (600 << 20) / keys;
            let key = u64::from(reth.rkey.value()) + reads / 2 % keys * (1 << 8);
            reth.rkey = Key(u32::try_from(key).expect("a key"));
            frame.bytes = sealed_again(&packet);
            reads += 1;
        }
        assert!(reads >= 4, "one access at each end of each region");
        let replay = replay(frames, &[Role::Responder]);
        let error = replay.played[0].result.as_ref().expect_err("too much memory").to_string();
        assert!(error.ends_with("at most 512 MiB are played"), "{error}");
    }
}
