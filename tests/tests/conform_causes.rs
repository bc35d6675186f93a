//! The causes that the check names, in exchanges made for the purpose: losses on either side of the
//! capture point, sides with different PSNs, and holes of the capture.

use std::collections::BTreeMap;

use feroce_conform::rules::Severity;
use feroce_tests::capture_list::captures;
use feroce_tests::captured::{Captured, findings, read};
use feroce_tests::conform_fuzz::seal;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const BTH: usize = 14 + 20 + 8;
const US: u64 = 1000;
const MS: u64 = 1_000_000;

const SEND_ONLY: u8 = 0x04;
const READ_REQUEST: u8 = 0x0c;
const READ_FIRST: u8 = 0x0d;
const READ_MIDDLE: u8 = 0x0e;
const READ_LAST: u8 = 0x0f;
const ACKNOWLEDGE: u8 = 0x11;
const ACK: u8 = 0x1f;
const NAK_SEQUENCE: u8 = 0x60;

/// An exchange without IPv4 identifications between two QPs, packet by packet.
struct Exchange {
    request: Captured,
    response: Captured,
    frames: Vec<Captured>,
    at: u64,
}

impl Exchange {
    fn new() -> Self {
        let frames = read(&captures().join("rxe/ops_zero_len.pcap.zst"));
        let [request, response] = [frames[0].clone(), frames[5].clone()];
        Self { at: request.at, request, response, frames: Vec::new() }
    }

    fn add(&mut self, template: &Captured, opcode: u8, psn: u32, rest: &[&[u8]]) {
        let mut frame = template.clone();
        self.at += 10 * US;
        frame.at = self.at;
        frame.bytes[18..20].fill(0);
        frame.bytes[BTH] = opcode;
        frame.bytes[BTH + 1] = 0x40;
        frame.bytes[BTH + 9..BTH + 12].copy_from_slice(&psn.to_be_bytes()[1..]);
        frame.bytes.truncate(BTH + 12);
        rest.iter().for_each(|part| frame.bytes.extend_from_slice(part));
        frame.bytes.extend_from_slice(&[0; 4]);
        seal(&mut frame.bytes).expect("a RoCE packet");
        frame.original_len = u32::try_from(frame.bytes.len()).expect("a frame");
        self.frames.push(frame);
    }

    fn wait(&mut self, nanos: u64) {
        self.at += nanos;
    }

    fn send(&mut self, psn: u32) {
        self.add(&self.request.clone(), SEND_ONLY, psn, &[]);
    }

    fn read(&mut self, psn: u32, va: u64, len: u32) {
        let reth = [&va.to_be_bytes()[..], &[0, 0, 0x12, 0x34], &len.to_be_bytes()].concat();
        self.add(&self.request.clone(), READ_REQUEST, psn, &[&reth]);
    }

    fn acknowledge(&mut self, psn: u32, syndrome: u8, msn: u8) {
        self.add(&self.response.clone(), ACKNOWLEDGE, psn, &[&[syndrome, 0, 0, msn]]);
    }

    fn read_response(&mut self, opcode: u8, psn: u32, msn: u8) {
        let aeth = [ACK, 0, 0, msn];
        let aeth = if opcode == READ_MIDDLE { &[][..] } else { &aeth };
        self.add(&self.response.clone(), opcode, psn, &[aeth, &[0; 1024]]);
    }

    fn findings(&self) -> BTreeMap<&'static str, u64> {
        findings(&self.frames, Severity::Warning)
    }
}

/// The responder waits for an earlier PSN than the requester starts with.
#[test]
fn a_nak_for_a_psn_before_the_first_request_is_a_mismatch() {
    let mut exchange = Exchange::new();
    for times in 0..5 {
        exchange.send(100);
        exchange.send(101);
        if times == 0 {
            exchange.acknowledge(50, NAK_SEQUENCE, 0);
        }
        exchange.wait(100 * MS);
    }
    let found = findings(&exchange.frames, Severity::Error);
    assert_eq!(found, BTreeMap::from([("FAIL-PSN", 1)]));
}

/// Without identifications, the NAK is the evidence that a request was lost and not late, and both
/// capture points say so.
#[test]
fn a_loss_that_a_nak_names_is_no_reordering_however_fast_it_is_repaired() {
    for is_beyond in [false, true] {
        let mut exchange = Exchange::new();
        let first = if is_beyond { vec![10, 11, 12, 13] } else { vec![10, 12, 13] };
        first.into_iter().for_each(|psn| exchange.send(psn));
        exchange.acknowledge(11, NAK_SEQUENCE, 1);
        (11..14).for_each(|psn| exchange.send(psn));
        exchange.acknowledge(13, ACK, 4);
        let rule = if is_beyond { "FAB-LOSS-BEYOND" } else { "FAB-LOSS" };
        assert_eq!(exchange.findings(), BTreeMap::from([(rule, 1)]));
    }
}

/// The end of the responses to a READ is lost together with the begin of the responses to the next
/// one, in a retransmission as well.
#[test]
fn responses_that_are_lost_across_two_reads_are_losses() {
    let mut exchange = Exchange::new();
    exchange.read(10, 0x1000, 3072);
    exchange.read(13, 0x4000, 3072);
    exchange.read_response(READ_FIRST, 10, 1);
    for (opcode, psn) in [(READ_FIRST, 13), (READ_MIDDLE, 14), (READ_LAST, 15)] {
        exchange.read_response(opcode, psn, 2);
    }
    let again = |exchange: &mut Exchange| {
        exchange.wait(30 * MS);
        exchange.read(11, 0x1400, 2048);
        exchange.read(13, 0x4000, 3072);
    };
    again(&mut exchange);
    exchange.read_response(READ_MIDDLE, 14, 2);
    exchange.read_response(READ_LAST, 15, 2);
    again(&mut exchange);
    for (opcode, psn) in [(READ_FIRST, 11), (READ_LAST, 12), (READ_FIRST, 13), (READ_MIDDLE, 14)] {
        exchange.read_response(opcode, psn, 2);
    }
    exchange.read_response(READ_LAST, 15, 2);
    assert_eq!(exchange.findings(), BTreeMap::from([("FAB-RESPONSE-LOSS", 3)]));
}

/// Responses pass the capture point and never reach the requester.
#[test]
fn answers_lost_behind_the_capture_point_fail_the_connection() {
    let mut exchange = Exchange::new();
    for _ in 0..5 {
        exchange.send(10);
        exchange.acknowledge(10, ACK, 1);
        exchange.wait(500 * MS);
    }
    let expected = BTreeMap::from([("FAB-ACK-LOSS", 4), ("FAIL-ANSWER", 1)]);
    assert_eq!(exchange.findings(), expected);
    exchange.send(11);
    exchange.acknowledge(11, ACK, 2);
    assert_eq!(exchange.findings(), BTreeMap::from([("FAB-ACK-LOSS", 4)]), "it went on");
}

/// A CNP to a sender whose packets were not captured is not judged.
#[test]
fn a_cnp_for_a_direction_that_was_not_captured_accuses_nobody() {
    let mut exchange = Exchange::new();
    exchange.send(10);
    exchange.acknowledge(10, ACK, 1);
    let cnp = |exchange: &mut Exchange| {
        exchange.add(&exchange.response.clone(), 0x81, 0, &[&[0; 16]]);
        let frame = exchange.frames.last_mut().expect("a CNP");
        frame.bytes[BTH + 4] = 0x40;
        seal(&mut frame.bytes).expect("a CNP");
    };
    cnp(&mut exchange);
    assert_eq!(exchange.findings(), BTreeMap::from([("CNP-WITHOUT-MARK", 1)]));
    exchange.frames.remove(0);
    assert_eq!(exchange.findings(), BTreeMap::new());
}

/// Both directions are silent and then ahead.
#[test]
fn a_hole_of_the_capture_is_named() {
    for response_first in [false, true] {
        let mut exchange = Exchange::new();
        exchange.send(10);
        exchange.acknowledge(10, ACK, 1);
        if response_first {
            exchange.acknowledge(14, ACK, 5);
        }
        exchange.send(15);
        exchange.acknowledge(15, ACK, 6);
        assert_eq!(exchange.findings(), BTreeMap::from([("CAP-HOLE", 1)]), "{response_first}");
    }
}

/// The MSN shows that the responder completed requests before the first captured one.
#[test]
fn a_hole_at_the_start_of_a_connection_is_named() {
    let mut frames = read(&captures().join("rxe/rping_v4.pcap.zst"));
    let is_data = |frame: &Captured| frame.bytes[BTH] != 0x64;
    let first = frames.iter().position(is_data).expect("data");
    let [request, response] = [&frames[first], &frames[first + 1]].map(|frame| frame.bytes[BTH]);
    assert_eq!((request, response), (SEND_ONLY, ACKNOWLEDGE));
    frames.drain(first..first + 2);
    assert_eq!(findings(&frames, Severity::Warning), BTreeMap::from([("CAP-HOLE", 1)]));
}

/// Rules that a hole violates although its cause may be known: those of communication management, a
/// skipped PSN if the responses of before come after the hole, and unsent PSNs if no request
/// follows.
const ACCUSED: [&str; 7] = [
    "REQ-PSN-SKIPPED",
    "RSP-ACK-UNSENT",
    "CM-ORDER",
    "CM-STARTING-PSN",
    "CM-NO-RESPONSE",
    "CM-TRANSACTION",
    "CAP-NOTHING",
];

#[test]
fn a_hole_accuses_no_endpoint() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(26);
    let (mut tried, mut named, mut wrong) = (0, 0, Vec::new());
    let folders = ["hardware", "rxe", "softroce-public"];
    let entries =
        folders.iter().flat_map(|name| std::fs::read_dir(captures().join(name)).expect(name));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    for file in files {
        let frames = read(&file);
        if frames.len() < 10 || !findings(&frames, Severity::Warning).is_empty() {
            continue;
        }
        for _ in 0..8 {
            let mut below =
                |most: usize| usize::try_from(random.next_u64() >> 33).expect("31 bits") % most;
            let from = below(frames.len() - 4);
            let to = from + 1 + below(100.min(frames.len() - from - 3));
            let found = findings(&[&frames[..from], &frames[to..]].concat(), Severity::Warning);
            tried += 1;
            named += u32::from(found.contains_key("CAP-HOLE"));
            let is_accused = |name: &&str| !ACCUSED.contains(name) && !name.starts_with("FAB-");
            let errors: Vec<_> = found.keys().copied().filter(is_accused).collect();
            if errors.iter().any(|name| *name != "CAP-HOLE" && *name != "REQ-TIMEOUT") {
                wrong.push(format!("{}: without {from} to {to}: {found:?}", file.display()));
            }
        }
    }
    println!("{named} of {tried} holes are named");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named * 3 > tried, "{named} of {tried}");
}
