//! Every capture of the tree is replayed in both roles: the engine sends what the captured end
//! sent, except for named tolerances. Altered captures disagree.

use std::path::Path;

use feroce_conform::replay::compare::sealed_again;
use feroce_conform::replay::lanes::Captured;
use feroce_conform::replay::rewrite::{Map, Rewrite};
use feroce_conform::replay::tolerance::Tolerance::{self, *};
use feroce_conform::replay::{Replay, Role, options, replay};
use feroce_wire::{Ipv4Header, Key, Msn, NakCode, Operation, Packet, Syndrome};

/// A capture, the packets compared as responder and as requester (0: the role cannot be replayed),
/// and the tolerances needed besides [`COMMON`].
type Row = (&'static str, u64, u64, &'static [Tolerance]);

/// Tolerances that any capture may need: fields that the specification leaves open, and MigReq,
/// which rxe never sets.
const COMMON: [Tolerance; 7] =
    [Ipv4Id, FlowLabel, MigReq, AckRequest, AckCoalescing, Credits, SourcePort];

/// A capture at the requester's side (`tapB`) of a bridge that drops frames does not show what the
/// responder received. A capture behind a queue that reorders does not show the order in which the
/// requester sent.
const CAPTURES: &[Row] = &[
    ("rxe/atomic_fa_v4.pcap.zst", 200, 200, &[]),
    ("rxe/atomic_lat_v4.pcap.zst", 100, 100, &[]),
    ("hardware/connectx_vlan_cmreq_rtu_send_ack.pcap", 0, 1, &[]),
    ("hardware/huawei_hiroce_oferby_proxy.pcap", 36, 68, &[ReservedBits]),
    ("rxe/loss_netemA_ack.pcap.zst", 10, 320, &[]),
    (
        "rxe/loss_netemA_readresp.pcap.zst",
        1834,
        71,
        &[NotCaptured, ReadResumed, RetransmissionTimer],
    ),
    ("rxe/loss_netemB_write.pcap.zst", 29, 1774, &[NotCaptured, RetransmissionTimer]),
    ("rxe/loss_nft_atomic.tapA.pcap.zst", 217, 237, &[NotCaptured, RetransmissionTimer]),
    ("rxe/loss_nft_atomic.tapB.pcap.zst", 0, 243, &[RetransmissionTimer]),
    ("rxe/loss_nft_send_1024.tapA.pcap.zst", 45, 3666, &[NotCaptured]),
    ("rxe/loss_nft_send_1024.tapB.pcap.zst", 0, 3742, &[]),
    ("rxe/loss_nft_write_1024.tapA.pcap.zst", 41, 3171, &[NotCaptured, RetransmissionTimer]),
    ("rxe/loss_nft_write_1024.tapB.pcap.zst", 0, 3236, &[RetransmissionTimer]),
    ("rxe/mckey_v4.pcap.zst", 30, 30, &[]),
    ("softroce-public/montybeatnik_rdma-roce-lab__roce_capture_read-write-ecn.pcap", 5, 2, &[]),
    ("rxe/ops_bad_rkey_atomic.pcap.zst", 1, 1, &[]),
    ("rxe/ops_bad_rkey_read.pcap.zst", 1, 1, &[]),
    ("rxe/ops_bad_rkey_write.pcap.zst", 2, 7, &[]),
    ("rxe/ops_oob_read.pcap.zst", 1, 1, &[]),
    (
        "rxe/ops_psn_mismatch.pcap.zst",
        268,
        16,
        &[AckBeforeFirst, RetransmissionTimer, UnlimitedRetries],
    ),
    ("rxe/ops_psn_wrap.pcap.zst", 9, 11, &[]),
    ("rxe/ops_rd1.pcap.zst", 48, 54, &[]),
    ("rxe/ops_read_big.pcap.zst", 392, 2, &[]),
    ("rxe/ops_retry_exhaust.pcap.zst", 0, 12, &[RetransmissionTimer]),
    ("rxe/ops_rnr_exhaust.pcap.zst", 3, 3, &[RnrTimer]),
    ("rxe/ops_rnr_late.pcap.zst", 36, 186, &[NakBehindRnrNak, RetransmissionTimer, RnrTimer]),
    ("rxe/ops_ro_write.pcap.zst", 1, 3, &[]),
    ("rxe/ops_rx_short.pcap.zst", 2, 5, &[LengthErrorCode]),
    ("rxe/ops_send_imm.pcap.zst", 4, 11, &[]),
    ("rxe/ops_send_inv.pcap.zst", 3, 5, &[]),
    ("rxe/ops_tos.pcap.zst", 48, 54, &[]),
    ("rxe/ops_uc_send_imm.pcap.zst", 4, 11, &[]),
    ("rxe/ops_write_imm.pcap.zst", 4, 9, &[]),
    ("rxe/ops_zero_len.pcap.zst", 5, 5, &[]),
    ("rxe/rc_pingpong_events.pcap.zst", 102, 202, &[RetransmissionTimer]),
    ("rxe/rc_pingpong_v4_1024.pcap.zst", 208, 808, &[RetransmissionTimer]),
    ("rxe/rc_pingpong_v4_2048.pcap.zst", 137, 537, &[RetransmissionTimer]),
    ("rxe/rc_pingpong_v4_256.pcap.zst", 135, 1635, &[RetransmissionTimer]),
    ("rxe/rc_pingpong_v6_1024.pcap.zst", 205, 805, &[RetransmissionTimer]),
    ("rxe/rc_pingpong_v6ll_1024.pcap.zst", 100, 400, &[]),
    ("rxe/read_bw_v4_1024.pcap.zst", 1280, 20, &[]),
    ("rxe/read_bw_v4_4096.pcap.zst", 320, 20, &[]),
    ("rxe/read_lat_v4.pcap.zst", 200, 200, &[]),
    ("rxe/reorder_netemB_send.pcap.zst", 62, 0, &[]),
    ("rxe/rnr_send_bw.pcap.zst", 690, 3271, &[NakBehindRnrNak, RetransmissionTimer, RnrTimer]),
    ("rxe/rping_v4.pcap.zst", 120, 120, &[LocalMemory]),
    ("rxe/rping_v6.pcap.zst", 120, 120, &[LocalMemory]),
    ("rxe/rstream_v4.pcap.zst", 811, 1612, &[CaptureEnds]),
    ("rxe/send_bw_cm_v4.pcap.zst", 42, 182, &[]),
    ("rxe/send_bw_ud_v4.pcap.zst", 200, 200, &[]),
    ("rxe/send_bw_v4_1024.pcap.zst", 20, 1280, &[]),
    ("rxe/send_bw_v6_4096.pcap.zst", 20, 320, &[]),
    ("rxe/send_lat_v4.pcap.zst", 402, 402, &[RetransmissionTimer]),
    ("rxe/uc_pingpong_v4_1024.pcap.zst", 200, 800, &[]),
    ("rxe/ud_pingpong_v4_1024.pcap.zst", 200, 200, &[]),
    ("rxe/ud_pingpong_v6_1024.pcap.zst", 200, 200, &[]),
    ("rxe/udaddy_v4.pcap.zst", 200, 200, &[]),
    ("rxe/write_bw_qp4_bidir.pcap.zst", 80, 1280, &[]),
    ("rxe/write_bw_v4_1024.pcap.zst", 20, 1280, &[]),
    ("rxe/write_bw_v4_4096.pcap.zst", 20, 320, &[]),
    ("rxe/write_lat_v4.pcap.zst", 401, 401, &[RetransmissionTimer]),
];

/// Captures with nothing to replay: RoCE v1, a CNP, native InfiniBand.
const EMPTY: [&str; 3] = [
    "hardware/connectx4_rocev1_write_ack.pcap",
    "hardware/connectx4lx_cnp.pcap",
    "hardware/native_ib_wireshark_sample_infiniband.pcap",
];

/// Captures of communication management alone: see `conform_replay_cm.rs`.
const ONLY_CM: [&str; 2] = ["rxe/cmtime_v4.pcap.zst", "rxe/rping_reject.pcap.zst"];

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures")
}

fn read(file: &str) -> Vec<Captured> {
    options::read(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn used_tolerances(replay: &Replay) -> Vec<Tolerance> {
    let outcomes = replay.played.iter().filter_map(|played| played.result.as_ref().ok());
    outcomes.flat_map(|outcome| outcome.tolerances.iter().map(|used| used.0)).collect()
}

#[test]
fn every_capture_is_in_the_table() {
    for folder in ["hardware", "softroce-public", "rxe"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("the captures") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name");
            let file = format!("{folder}/{name}");
            let others = EMPTY.iter().chain(&ONLY_CM);
            let mut known = CAPTURES.iter().map(|row| &row.0).chain(others);
            assert!(known.any(|name| *name == file), "{file} is missing in all tables");
        }
    }
}

#[test]
fn the_engine_agrees_with_every_capture() {
    for &(file, as_responder, as_requester, expected) in CAPTURES {
        let frames = read(file);
        let mut used = Vec::new();
        for (role, compared) in [(Role::Responder, as_responder), (Role::Requester, as_requester)] {
            if compared == 0 && file.contains(".tapB.") {
                continue;
            }
            let replay = replay(frames.clone(), &[role]);
            assert_eq!(replay.agrees(), compared > 0, "{file} {role:?}\n{replay}");
            assert_eq!(replay.compared(), compared, "{file} {role:?}\n{replay}");
            used.extend(used_tolerances(&replay));
        }
        used.sort_unstable();
        used.dedup();
        used.retain(|tolerance| !COMMON.contains(tolerance));
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(used, expected, "{file}: tolerances");
    }
}

#[test]
fn captures_without_rocev2_connections_have_nothing_to_replay() {
    for file in EMPTY {
        let replay = replay(read(file), &[Role::Responder, Role::Requester]);
        assert!(replay.played.is_empty() && !replay.agrees(), "{file}\n{replay}");
        assert!(replay.conversations.is_empty(), "{file}\n{replay}");
    }
}

/// A row of `captures/replay-exceptions.txt`: capture, number of the lane or conversation, end,
/// verdict, packets that show it.
type Exception = (String, String, String, String, String);

/// The ends of `file` that cannot be played or that differ.
fn exceptions(file: &str) -> Vec<Exception> {
    let replay = replay(read(file), &[Role::Responder, Role::Requester]);
    let lanes = (1..).zip(replay.played.chunks(2)).flat_map(|(number, ends)| {
        ends.iter().map(move |end| (format!("lane {number}"), end.role, &end.result))
    });
    let conversations = (1..).zip(replay.conversations.chunks(2)).flat_map(|(number, ends)| {
        ends.iter().map(move |end| (format!("conversation {number}"), end.role, &end.result))
    });
    let judged = lanes.chain(conversations).filter_map(|(what, role, result)| {
        let (verdict, packets) = match result {
            Err(why) => ("not played".to_owned(), why.clone()),
            Ok(outcome) if outcome.compared == 0 => ("nothing compared".to_owned(), String::new()),
            Ok(outcome) if outcome.differences.is_empty() => return None,
            Ok(outcome) => {
                let numbers = outcome.differences.iter().filter_map(|one| one.packet);
                let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
                (format!("differs {} times", outcome.differences.len()), numbers.join(" "))
            }
        };
        Some((file.to_owned(), what, format!("{role:?}").to_lowercase(), verdict, packets))
    });
    judged.collect()
}

/// Every end of every capture agrees, or is in the table of exceptions with its reason, which is
/// also in docs/conform.md. An end that begins to agree, or differs otherwise, fails.
#[test]
fn the_table_of_exceptions_is_complete() {
    let table = std::fs::read_to_string(root().join("replay-exceptions.txt")).expect("the table");
    let page = std::fs::read_to_string(root().join("../../docs/conform.md")).expect("the page");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(&page);
    let mut listed = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let [file, what, end, verdict, packets, reason] = fields[..] else { panic!("{line}") };
        assert!(page.contains(&words(reason)), "docs/conform.md lacks: {reason}");
        let row = [file, what, end, verdict, packets].map(str::to_owned);
        let [file, what, end, verdict, packets] = row;
        listed.push((file, what, end, verdict, packets));
    }
    let files = CAPTURES.iter().map(|row| row.0).chain(ONLY_CM);
    let mut found: Vec<Exception> = files.flat_map(exceptions).collect();
    listed.sort();
    found.sort();
    assert_eq!(found, listed, "found, listed");
}

/// Alters one packet. Returns false if the alteration does not apply to this kind of packet.
type Alter = fn(&mut Packet<'_>) -> bool;

/// Changes the AETH. Returns false if the packet has none.
fn aeth(packet: &mut Packet<'_>, change: impl Fn(&mut feroce_wire::Aeth)) -> bool {
    packet.ext.aeth.as_mut().map(change).is_some()
}

/// The altered field, the capture, the role whose replay must show the difference, and the change.
const ALTERATIONS: [(&str, &str, Role, Alter); 16] = [
    ("MSN of an ACK", "rxe/write_bw_v4_1024.pcap.zst", Role::Responder, |packet| {
        aeth(packet, |aeth| aeth.msn = Msn::new(aeth.msn.value() + 7))
    }),
    ("PSN of an ACK", "rxe/write_bw_v4_1024.pcap.zst", Role::Responder, |packet| {
        shift_psn(packet, 3)
    }),
    ("an ACK that becomes a NAK", "rxe/send_lat_v4.pcap.zst", Role::Responder, |packet| {
        aeth(packet, |aeth| aeth.syndrome = Syndrome::Nak(NakCode::RemoteOperational))
    }),
    ("P_Key of a response", "rxe/send_lat_v4.pcap.zst", Role::Responder, |packet| {
        packet.bth.pkey.0 ^= 1;
        packet.info.is_response()
    }),
    ("code of a NAK", "rxe/ops_bad_rkey_write.pcap.zst", Role::Responder, |packet| {
        matches!(packet.ext.aeth, Some(feroce_wire::Aeth { syndrome: Syndrome::Nak(_), .. }))
            && aeth(packet, |aeth| aeth.syndrome = Syndrome::Nak(NakCode::RemoteOperational))
    }),
    ("PSN of a NAK", "rxe/loss_nft_atomic.tapA.pcap.zst", Role::Responder, |packet| {
        matches!(packet.ext.aeth, Some(feroce_wire::Aeth { syndrome: Syndrome::Nak(_), .. }))
            && shift_psn(packet, 1)
    }),
    ("MSN of a READ response", "rxe/read_bw_v4_1024.pcap.zst", Role::Responder, |packet| {
        aeth(packet, |aeth| aeth.msn = Msn::new(aeth.msn.value() + 1))
    }),
    ("opcode of a READ response", "rxe/read_bw_v4_1024.pcap.zst", Role::Responder, |packet| {
        packet.bth.opcode.0 = 16; // Last instead of First
        packet.ext.aeth.is_some() && packet.info.operation == Operation::ReadResponse
    }),
    ("solicited event of a response", "rxe/rping_v4.pcap.zst", Role::Responder, |packet| {
        packet.bth.solicited = true;
        packet.info.operation == Operation::Acknowledge
    }),
    ("PSN of a request", "rxe/send_bw_v4_1024.pcap.zst", Role::Requester, |packet| {
        packet.info.is_request() && shift_psn(packet, 5000)
    }),
    ("solicited event of a First", "rxe/send_bw_v4_1024.pcap.zst", Role::Requester, |packet| {
        packet.bth.solicited = true;
        packet.info.is_request()
    }),
    ("P_Key of a request", "rxe/write_lat_v4.pcap.zst", Role::Requester, |packet| {
        packet.bth.pkey.0 ^= 1;
        packet.info.is_request()
    }),
    ("hop limit of a request", "rxe/write_lat_v4.pcap.zst", Role::Requester, |packet| {
        hop_limit(packet);
        packet.info.is_request()
    }),
    (
        "length of a retransmitted READ",
        "rxe/loss_netemA_readresp.pcap.zst",
        Role::Requester,
        |packet| {
            packet
                .ext
                .reth
                .as_mut()
                .filter(|reth| reth.dma_len < 32768)
                .map(|reth| reth.dma_len += 4)
                .is_some()
        },
    ),
    (
        "key of a retransmitted READ",
        "rxe/loss_netemA_readresp.pcap.zst",
        Role::Requester,
        |packet| {
            packet
                .ext
                .reth
                .as_mut()
                .filter(|reth| reth.dma_len < 32768)
                .map(|reth| reth.rkey = Key(1))
                .is_some()
        },
    ),
    ("key of a datagram", "rxe/ud_pingpong_v4_1024.pcap.zst", Role::Responder, |packet| {
        packet.ext.deth.as_mut().map(|deth| deth.qkey.0 ^= 1).is_some()
    }),
];

fn shift_psn(packet: &mut Packet<'_>, by: u32) -> bool {
    packet.bth.psn = packet.bth.psn.add(by);
    true
}

fn hop_limit(packet: &mut Packet<'_>) {
    if let feroce_wire::IpHeader::V4(ip) = &mut packet.ip {
        ip.ttl = 3;
        ip.checksum = Ipv4Header { checksum: 0, ..*ip }.computed_checksum();
    }
}

/// Alters the middle one of the packets that `alter` applies to, and recomputes its ICRC.
fn alter(frames: &mut [Captured], alter: Alter) {
    let applies = |frame: &Captured| alter(&mut frame.packet());
    let candidates: Vec<usize> =
        (0..frames.len()).filter(|&index| applies(&frames[index])).collect();
    let index = candidates[candidates.len() / 2];
    let mut packet = frames[index].packet();
    alter(&mut packet);
    frames[index].bytes = sealed_again(&packet);
}

#[test]
fn altered_captures_disagree() {
    for (what, file, role, change) in ALTERATIONS {
        let mut frames = read(file);
        alter(&mut frames, change);
        let replay = replay(frames, &[role]);
        assert!(!replay.agrees(), "{file}: the change of {what} is not found\n{replay}");
    }
}

/// A missing or duplicated response is a difference in a capture without losses.
#[test]
fn a_missing_or_duplicated_response_disagrees() {
    let file = "rxe/read_lat_v4.pcap.zst";
    let frames = read(file);
    let index = frames.iter().rposition(|frame| frame.packet().info.is_response()).expect("one");
    let mut without = frames.clone();
    without.remove(index - 2);
    let mut doubled = frames;
    doubled.insert(index, doubled[index - 2].clone());
    for frames in [without, doubled] {
        let replay = replay(frames, &[Role::Responder]);
        assert!(!replay.agrees(), "{replay}");
    }
}

/// A capture rewritten to other addresses, QP numbers, PSNs and keys still agrees in both roles,
/// and contains none of the old values.
#[test]
fn rewritten_captures_agree() {
    let maps = [
        "ip:10.77.0.2=192.0.2.1",
        "ip:10.77.0.3=192.0.2.2",
        "mac:02:77:00:00:01:41=02:00:00:00:00:01",
        "qpn:0x4e=0x123456",
        "qpn:0x40=0x654321",
        "psn:0x4e=+0x400000",
        "psn:0x40=+0x400000",
        "rkey:0x3ad7=0x77",
        "va:0x3ad7=-0x1000",
    ];
    let maps = maps.map(|map| map.parse::<Map>().expect("a map"));
    let rewrite: Rewrite = maps.into_iter().collect();
    let mut frames = read("rxe/read_bw_v4_1024.pcap.zst");
    for frame in &mut frames {
        frame.bytes = rewrite.apply(&frame.bytes).expect("RoCEv2");
        let packet = frame.packet();
        assert!(packet.icrc_valid());
        assert!([0x12_3456, 0x65_4321].contains(&packet.bth.dest_qp.value()));
        assert!(packet.ip.src().to_string().starts_with("192.0.2."));
        assert!(packet.ext.reth.is_none_or(|reth| reth.rkey == Key(0x77)));
    }
    let replay = replay(frames, &[Role::Responder, Role::Requester]);
    assert!(replay.agrees() && replay.compared() == 1300, "{replay}");
}

/// Changes a capture such that `depth` requests are outstanding: of each group of `depth`
/// exchanges, the requests come first. Times and numbers stay.
fn outstanding(frames: &mut [Captured], depth: usize) {
    for group in frames.chunks_mut(2 * depth) {
        let mut bytes: Vec<Vec<u8>> = group.iter().map(|frame| frame.bytes.clone()).collect();
        bytes.sort_by_key(|bytes| Packet::parse(bytes, &[]).expect("RoCEv2").info.is_response());
        group.iter_mut().zip(bytes).for_each(|(frame, bytes)| frame.bytes = bytes);
    }
}

/// As many READs are outstanding as in the capture, up to the limit of the engine. A capture beyond
/// the limit accuses nobody.
#[test]
fn outstanding_reads_and_atomics_are_as_many_as_in_the_capture() {
    for file in ["rxe/read_lat_v4.pcap.zst", "rxe/atomic_lat_v4.pcap.zst"] {
        for depth in [16, 17, 40, 64] {
            let mut frames = read(file);
            outstanding(&mut frames, depth);
            let compared = frames.len() as u64;
            let replay = replay(frames, &[Role::Responder, Role::Requester]);
            assert!(replay.agrees() && replay.compared() == compared, "{file} {depth}\n{replay}");
            assert!(!used_tolerances(&replay).contains(&RetransmissionTimer), "{replay}");
        }
        let mut frames = read(file);
        outstanding(&mut frames, 65);
        let replay = replay(frames, &[Role::Requester]);
        let why = replay.played[0].result.as_ref().expect_err("beyond the limit of the engine");
        assert!(why.contains("65 READs and atomics outstanding"), "{file}: {why}");
    }
}

/// Writes each frame twice, as a capture on two interfaces does.
fn doubled(frames: Vec<Captured>) -> Vec<Captured> {
    let twice = frames.into_iter().flat_map(|frame| {
        let at = frame.at + std::time::Duration::from_nanos(500);
        [frame.clone(), Captured { at, ..frame }]
    });
    twice.zip(1..).map(|(frame, number)| Captured { number, ..frame }).collect()
}

#[test]
fn a_capture_with_each_frame_twice_is_played_once() {
    for &(file, as_responder, as_requester, _) in CAPTURES {
        if as_responder == 0 || as_requester == 0 {
            continue;
        }
        let replay = replay(doubled(read(file)), &[Role::Responder, Role::Requester]);
        assert!(replay.agrees(), "{file}\n{replay}");
        assert_eq!(replay.compared(), as_responder + as_requester, "{file}\n{replay}");
        assert!(replay.to_string().contains("are copies"), "{file}\n{replay}");
    }
}

/// A UC connection goes on after lost packets: the responder drops the rest of the message, and the
/// requester continues.
#[test]
fn uc_goes_on_after_a_gap() {
    // Each message has four packets: what is removed, and how many packets the requester can
    // compare afterwards.
    for (first, count, left) in
        [(21, 1, 797), (22, 1, 798), (23, 1, 799), (20, 4, 796), (22, 5, 794)]
    {
        let mut frames = read("rxe/uc_pingpong_v4_1024.pcap.zst");
        let to = frames[0].packet().bth.dest_qp;
        let lane: Vec<usize> =
            (0..frames.len()).filter(|&at| frames[at].packet().bth.dest_qp == to).collect();
        let lost: Vec<u64> =
            lane[first..first + count].iter().map(|&at| frames[at].number).collect();
        let messages = 200 - count.div_ceil(4) as u64;
        frames.retain(|frame| !lost.contains(&frame.number));
        for (role, compared) in [(Role::Responder, messages), (Role::Requester, left)] {
            let replay = replay(frames.clone(), &[role]);
            assert!(replay.agrees(), "{first} {count} {role:?}\n{replay}");
            assert_eq!(replay.compared(), compared, "{first} {count} {role:?}\n{replay}");
        }
    }
}

/// Responses that follow the end of the capture are no differences.
#[test]
fn responses_behind_the_end_of_a_capture_are_no_differences() {
    for file in ["rxe/read_lat_v4.pcap.zst", "rxe/atomic_lat_v4.pcap.zst"] {
        let mut frames = read(file);
        outstanding(&mut frames, 10);
        frames.truncate(frames.len() - 6);
        let replay = replay(frames, &[Role::Responder]);
        assert!(replay.agrees(), "{file}\n{replay}");
        assert!(used_tolerances(&replay).contains(&CaptureEnds), "{file}\n{replay}");
    }
}
