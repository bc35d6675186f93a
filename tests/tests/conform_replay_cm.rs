//! Communication management in captures is played by the engine, as either end. Altered messages
//! disagree.

use std::path::Path;
use std::time::Duration;

use feroce_conform::replay::compare::sealed_again;
use feroce_conform::replay::lanes::Captured;
use feroce_conform::replay::tolerance::Tolerance::{self, CmWait, RetransmissionTimer};
use feroce_conform::replay::{Replay, Role, options, replay};
use feroce_wire::cm::{CmMad, CmMessage, Mra, Rej, RejectReason};
use feroce_wire::{Payload, Qpn};

/// Captures with communication management, the number of its conversations, and the messages
/// compared as the passive and as the active end.
///
/// * `connectx_vlan_cmreq_rtu_send_ack` shows one direction: the REQ is compared, and the RTU
///   cannot be played without the REP.
/// * `cmtime` rejects 20 connections, `rping_reject` one.
const CAPTURES: [(&str, usize, u64, u64); 11] = [
    ("hardware/connectx_vlan_cmreq_rtu_send_ack.pcap", 1, 0, 1),
    ("rxe/cmtime_v4.pcap.zst", 20, 20, 20),
    ("rxe/mckey_v4.pcap.zst", 0, 0, 0),
    ("rxe/rping_reject.pcap.zst", 1, 1, 1),
    ("rxe/rping_v4.pcap.zst", 1, 2, 3),
    ("rxe/rping_v6.pcap.zst", 1, 2, 3),
    ("rxe/rstream_v4.pcap.zst", 1, 2, 3),
    ("rxe/send_bw_cm_v4.pcap.zst", 2, 4, 6),
    ("rxe/udaddy_v4.pcap.zst", 2, 2, 2),
    ("softroce-public/montybeatnik_rdma-roce-lab__roce_capture_read-write-ecn.pcap", 1, 2, 3),
    ("rxe/send_bw_v4_1024.pcap.zst", 0, 0, 0),
];

fn read(file: &str) -> Vec<Captured> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    options::read(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn uses(replay: &Replay, tolerance: Tolerance) -> bool {
    replay.outcomes().any(|outcome| outcome.tolerances.count(tolerance) > 0)
}

fn is_cm(frame: &Captured) -> bool {
    frame.packet().bth.dest_qp == Qpn::GSI
}

/// The messages of one capture.
fn conversation(file: &str) -> Vec<Captured> {
    read(file).into_iter().filter(is_cm).collect()
}

fn mad(frame: &Captured) -> CmMad {
    CmMad::parse(frame.packet().payload.first).expect("a message")
}

/// Replaces the message in `frame`.
fn put(frame: &mut Captured, mad: &CmMad) {
    let bytes = mad.to_bytes();
    let mut packet = frame.packet();
    packet.payload = Payload { first: &bytes, second: &[] };
    frame.bytes = sealed_again(&packet);
}

/// Renumbers the frames, one per millisecond.
fn in_order(frames: Vec<Captured>) -> Vec<Captured> {
    let numbered = (1..).zip(frames);
    numbered
        .map(|(number, frame)| Captured { number, at: Duration::from_millis(number), ..frame })
        .collect()
}

#[test]
fn the_engine_agrees_with_every_captured_conversation() {
    for (file, count, as_passive, as_active) in CAPTURES {
        for (role, compared) in [(Role::Responder, as_passive), (Role::Requester, as_active)] {
            let replay = replay(read(file), &[role]);
            assert_eq!(replay.conversations.len(), count, "{file}\n{replay}");
            assert_eq!(replay.messages_compared(), compared, "{file} {role:?}\n{replay}");
            let differs = replay.outcomes().any(|outcome| !outcome.differences.is_empty());
            assert!(!differs, "{file} {role:?}\n{replay}");
        }
    }
}

/// Alters a message; returns false if it is not of the kind.
type Alter = fn(&mut CmMad) -> bool;

/// The altered field, the capture, the end whose replay must show the difference, and the change.
const ALTERATIONS: [(&str, &str, Role, Alter); 11] = [
    ("GID of a REQ", "rping_v4", Role::Requester, |mad| match &mut mad.message {
        CmMessage::Req(req) => {
            req.primary_remote_gid[15] ^= 1;
            true
        }
        _ => false,
    }),
    ("P_Key of a REQ", "rping_v4", Role::Requester, |mad| match &mut mad.message {
        CmMessage::Req(req) => {
            req.pkey.0 ^= 1;
            true
        }
        _ => false,
    }),
    ("communication ID in a REP", "rping_v4", Role::Responder, |mad| match &mut mad.message {
        CmMessage::Rep(rep) => {
            rep.remote_comm_id ^= 0x100;
            true
        }
        _ => false,
    }),
    ("transaction of a REP", "rping_v6", Role::Responder, |mad| {
        mad.transaction ^= 1;
        matches!(mad.message, CmMessage::Rep(_))
    }),
    ("communication ID in an RTU", "rping_v4", Role::Requester, |mad| match &mut mad.message {
        CmMessage::Rtu(rtu) => {
            rtu.remote_comm_id ^= 0x100;
            true
        }
        _ => false,
    }),
    ("QP in a DREQ", "rping_v4", Role::Requester, |mad| match &mut mad.message {
        CmMessage::Dreq(dreq) => {
            dreq.remote_qpn = Qpn::masked(dreq.remote_qpn.value() ^ 1);
            true
        }
        _ => false,
    }),
    ("communication ID in a DREP", "rstream_v4", Role::Responder, |mad| match &mut mad.message {
        CmMessage::Drep(drep) => {
            drep.local_comm_id ^= 0x100;
            true
        }
        _ => false,
    }),
    ("transaction of a DREP", "rstream_v4", Role::Responder, |mad| {
        mad.transaction ^= 1;
        matches!(mad.message, CmMessage::Drep(_))
    }),
    ("message that a REJ names", "rping_reject", Role::Responder, |mad| match &mut mad.message {
        CmMessage::Rej(rej) => {
            rej.message = 1;
            true
        }
        _ => false,
    }),
    ("communication ID in a REJ", "rping_reject", Role::Responder, |mad| match &mut mad.message {
        CmMessage::Rej(rej) => {
            rej.local_comm_id = 0x99;
            true
        }
        _ => false,
    }),
    ("service in a SIDR_REP", "udaddy_v4", Role::Responder, |mad| match &mut mad.message {
        CmMessage::SidrRep(rep) => {
            rep.service_id.0 ^= 1;
            true
        }
        _ => false,
    }),
];

#[test]
fn altered_messages_disagree() {
    for (what, file, role, alter) in ALTERATIONS {
        let mut frames = conversation(&format!("rxe/{file}.pcap.zst"));
        assert!(replay(frames.clone(), &[role]).agrees(), "{file}");
        let altered = frames.iter_mut().find_map(|frame| {
            let mut mad = mad(frame);
            alter(&mut mad).then(|| put(frame, &mad))
        });
        altered.unwrap_or_else(|| panic!("{file}: no message for {what}"));
        let replay = replay(frames, &[role]);
        assert!(!replay.agrees(), "{file}: the change of {what} is not found\n{replay}");
    }
}

/// Copies of messages after a loss: each end agrees, and sends its copies when the capture does.
#[test]
fn copies_of_messages_are_played() {
    let [req, rep, rtu, dreq, drep]: [Captured; 5] =
        conversation("rxe/rping_v4.pcap.zst").try_into().expect("5");
    let all = [&req, &req, &rep, &rtu, &rep, &rtu, &dreq, &drep, &dreq, &drep];
    let frames = in_order(all.into_iter().cloned().collect());
    for role in [Role::Responder, Role::Requester] {
        let replay = replay(frames.clone(), &[role]);
        assert!(replay.agrees(), "{role:?}\n{replay}");
        assert!(uses(&replay, RetransmissionTimer), "{role:?}\n{replay}");
    }
}

/// An MRA may be sent or not.
#[test]
fn an_mra_is_no_difference() {
    let [req, rep, rtu, ..]: [Captured; 5] =
        conversation("rxe/rping_v4.pcap.zst").try_into().expect("five");
    let (CmMessage::Req(request), CmMessage::Rep(reply)) = (mad(&req).message, mad(&rep).message)
    else {
        panic!("a REQ and its REP")
    };
    let mra = Mra {
        local_comm_id: reply.local_comm_id,
        remote_comm_id: request.local_comm_id,
        service_timeout: 24,
        ..Mra::default()
    };
    let mut wait = rep.clone();
    put(&mut wait, &CmMad { message: mra.into(), ..mad(&rep) });
    let frames = in_order(vec![req.clone(), req, wait, rep, rtu]);
    for role in [Role::Responder, Role::Requester] {
        let replay = replay(frames.clone(), &[role]);
        assert!(replay.agrees(), "{role:?}\n{replay}");
        assert_eq!(uses(&replay, CmWait), role == Role::Responder, "{replay}");
    }
}

/// The program rejects: a REJ with the reason of the program. A requester without a response gives
/// up with a REJ for the timeout.
#[test]
fn rejections_are_played() {
    let [req, rep, ..]: [Captured; 5] =
        conversation("rxe/rping_v4.pcap.zst").try_into().expect("five");
    let CmMessage::Req(request) = mad(&req).message else { panic!("a REQ") };
    let CmMessage::Rep(reply) = mad(&rep).message else { panic!("a REP") };
    let mut refuses = rep.clone();
    let rej = Rej {
        local_comm_id: reply.local_comm_id,
        remote_comm_id: request.local_comm_id,
        reason: RejectReason::CONSUMER,
        ..Rej::default()
    };
    put(&mut refuses, &CmMad { message: rej.into(), ..mad(&rep) });
    let mut gives_up = req.clone();
    let mut info = [0; 72];
    info[..8].copy_from_slice(&request.local_ca_guid.to_be_bytes());
    let rej = Rej {
        local_comm_id: request.local_comm_id,
        message: 2,
        info_length: 8,
        info,
        reason: RejectReason::TIMEOUT,
        ..Rej::default()
    };
    put(&mut gives_up, &CmMad { message: rej.into(), ..mad(&req) });
    for (frames, role) in [
        (vec![req.clone(), refuses.clone()], Role::Responder),
        (vec![req.clone(), refuses], Role::Requester),
        (vec![req.clone(), req.clone(), req, gives_up], Role::Requester),
    ] {
        let replay = replay(in_order(frames), &[role]);
        assert!(replay.agrees(), "{role:?}\n{replay}");
    }
}

/// Messages that the capture lacks accuse nobody.
#[test]
fn missing_messages_accuse_nobody() {
    let all = conversation("rxe/rping_v4.pcap.zst");
    for missing in 1..all.len() {
        let mut frames = all.clone();
        frames.remove(missing);
        for role in [Role::Responder, Role::Requester] {
            let replay = replay(frames.clone(), &[role]);
            let differs = replay.outcomes().any(|outcome| !outcome.differences.is_empty());
            assert!(!differs, "without {missing}, {role:?}\n{replay}");
        }
    }
}
