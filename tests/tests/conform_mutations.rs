//! Violations made one at a time in clean captures, with a correct ICRC: each is found by its rule
//! and by no other.

use std::collections::BTreeMap;
use std::path::Path;

use feroce_conform::check::{Checker, Filter};
use feroce_conform::packet::Reader;
use feroce_conform::rules::Severity;
use feroce_conform::trace::{Frame, Link, Trace};
use feroce_pfc_tools::capture::Capture;

/// Offset of the BTH: every capture used here has Ethernet, IPv4 and UDP headers.
const BTH: usize = 14 + 20 + 8;

#[derive(Clone)]
struct Captured {
    at: u64,
    bytes: Vec<u8>,
}

fn read(file: &str) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join(file);
    let mut trace = Trace::of(vec![Capture::open_any(&path).expect(file)]).expect(file);
    let mut frames = Vec::new();
    while let Some(frame) = trace.next_frame().expect(file) {
        frames.push(Captured { at: frame.at, bytes: frame.bytes.to_vec() });
    }
    frames
}

/// The findings in `frames` without quirks, counted by rule.
fn findings(frames: &[Captured]) -> BTreeMap<&'static str, u64> {
    findings_of(frames, |severity| severity.counts())
}

/// The findings in `frames` of the wanted severities, counted by rule.
fn findings_of(
    frames: &[Captured],
    is_wanted: fn(Severity) -> bool,
) -> BTreeMap<&'static str, u64> {
    let mut checker = Checker::new(Filter::default(), false);
    let mut reader = Reader::default();
    for (number, frame) in (1..).zip(frames) {
        let frame = Frame {
            file: 0,
            tap: 0,
            number,
            at: frame.at,
            link: Link::Ethernet,
            bytes: &frame.bytes,
            original_len: u32::try_from(frame.bytes.len()).expect("a frame"),
        };
        checker.frame(&frame, &mut reader);
    }
    let report = checker.finish(vec!["mutated".to_owned()]);
    let rules = report.findings.by_rule().into_iter();
    let wanted = rules.filter(|(rule, _)| is_wanted(rule.rule().severity));
    wanted.map(|(rule, count)| (rule.rule().name, count)).collect()
}

/// Recomputes the lengths, the header checksum and the ICRC.
fn seal(frame: &mut Captured) {
    let bytes = &mut frame.bytes;
    let ip_len = u16::try_from(bytes.len() - 14).expect("a frame");
    bytes[16..18].copy_from_slice(&ip_len.to_be_bytes());
    bytes[38..40].copy_from_slice(&(ip_len - 20).to_be_bytes());
    bytes[24..26].fill(0);
    let sum: u32 =
        bytes[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = u16::try_from((folded & 0xffff) + (folded >> 16)).expect("folded");
    bytes[24..26].copy_from_slice(&(!folded).to_be_bytes());
    let end = bytes.len() - 4;
    let covered = feroce_wire::Payload { first: &bytes[14..end], second: &[] };
    let icrc = feroce_wire::icrc::icrc_reference(covered);
    bytes[end..].copy_from_slice(&icrc.to_le_bytes());
}

/// Overwrites the bytes at offset `at` of the BTH.
fn put(frame: &mut Captured, at: usize, value: &[u8]) {
    frame.bytes[BTH + at..BTH + at + value.len()].copy_from_slice(value);
}

fn psn(frame: &Captured) -> u32 {
    u32::from_be_bytes([0, frame.bytes[BTH + 9], frame.bytes[BTH + 10], frame.bytes[BTH + 11]])
}

fn set_psn(frame: &mut Captured, psn: u32) {
    put(frame, 9, &psn.to_be_bytes()[1..]);
}

/// Removes the last `count` bytes of the payload.
fn shorten(frame: &mut Captured, count: usize) {
    let len = frame.bytes.len();
    frame.bytes.drain(len - 4 - count..len - 4);
}

/// Appends `count` bytes of 0 to the payload.
fn lengthen(frame: &mut Captured, count: usize) {
    let len = frame.bytes.len();
    frame.bytes.splice(len - 4..len - 4, std::iter::repeat_n(0, count));
}

/// Appends a copy of frame `index` with another IPv4 identification, `later` ns after the last
/// frame. Returns its index.
fn append_copy(frames: &mut Vec<Captured>, index: usize, later: u64) -> usize {
    let mut copy = frames[index].clone();
    let last = frames.last().expect("frames");
    copy.at = last.at + later;
    let newest = u16::from_be_bytes([frames[index].bytes[18], frames[index].bytes[19]]);
    copy.bytes[18..20].copy_from_slice(&newest.wrapping_add(1000).to_be_bytes());
    frames.push(copy);
    frames.len() - 1
}

/// Appends a CNP to the destination of the acknowledgement at `index`, `later` ns after the last
/// frame. Returns its index.
fn append_cnp(frames: &mut Vec<Captured>, index: usize, later: u64) -> usize {
    let at = append_copy(frames, index, later);
    let frame = &mut frames[at];
    frame.bytes[BTH] = 0x81;
    frame.bytes[BTH + 4] = 0x40;
    set_psn(frame, 0);
    shorten(frame, 4);
    lengthen(frame, 16);
    at
}

/// Turns a request without extension headers into a datagram from QP 0x99.
fn make_datagram(frame: &mut Captured) {
    frame.bytes[BTH] = 0x64;
    frame.bytes.splice(BTH + 12..BTH + 12, [0, 0, 0, 7, 0, 0, 0, 0x99]);
}

/// Marks the frame as CE.
fn mark(frame: &mut Captured) {
    frame.bytes[15] |= 3;
}

/// Returns true if the frame is a CM message with that attribute.
fn is_cm(frame: &Captured, attribute: u8) -> bool {
    frame.bytes[BTH] == 0x64 && frame.bytes[BTH + 20 + 16..][..2] == [0, attribute]
}

fn first(frames: &[Captured], matches: impl Fn(&Captured) -> bool) -> usize {
    frames.iter().position(matches).expect("in the capture")
}

type Change = fn(&mut Vec<Captured>) -> Vec<usize>;

/// A violation: its name, the capture it is made in, the rule that must find it, and the change
/// that makes it. The change returns the indices of the frames to [`seal`].
struct Row {
    name: &'static str,
    file: &'static str,
    rule: &'static str,
    change: Change,
}

const fn row(name: &'static str, file: &'static str, rule: &'static str, change: Change) -> Row {
    Row { name, file, rule, change }
}

const ZERO: &str = "rxe/ops_zero_len.pcap.zst";
const WRAP: &str = "rxe/ops_psn_wrap.pcap.zst";
const IMM: &str = "rxe/ops_send_imm.pcap.zst";
const UD: &str = "rxe/ud_pingpong_v4_1024.pcap.zst";
const CM: &str = "rxe/rping_v4.pcap.zst";
const CNP: &str = "hardware/connectx4lx_cnp.pcap";

/// The frames of `WRAP`, counted from 0: 0 SEND Only, 1 to 5 WRITE, 6 READ, 7 atomic, 8 to 10 SEND,
/// then their responses: 11 ACK, 12 ACK, 13 to 17 READ responses, 18 atomic acknowledgement, 19
/// ACK.
const ROWS: &[Row] = &[
    row("an ICRC that is wrong", WRAP, "PKT-ICRC", |f| {
        let end = f[19].bytes.len() - 1;
        f[19].bytes[end] ^= 1;
        vec![]
    }),
    row("a header checksum that is wrong", ZERO, "PKT-IPV4-CHECKSUM", |f| {
        f[9].bytes[24] ^= 1;
        vec![]
    }),
    row("a UDP length that is wrong", ZERO, "PKT-LENGTH", |f| {
        f[9].bytes[39] ^= 4;
        vec![]
    }),
    row("transport version 1", ZERO, "PKT-VERSION", |f| {
        f[9].bytes[BTH + 1] |= 1;
        vec![9]
    }),
    row("an undefined opcode", ZERO, "PKT-OPCODE", |f| {
        f[9].bytes[BTH] = 0x1f;
        vec![9]
    }),
    row("more pad than payload", ZERO, "PKT-PAD", |f| {
        f[9].bytes[BTH + 1] |= 0x30;
        vec![9]
    }),
    row("payload that is not padded", ZERO, "PKT-PAD", |f| {
        lengthen(&mut f[0], 2);
        vec![0]
    }),
    row("reserved bits behind FECN", ZERO, "PKT-RESERVED", |f| {
        f[0].bytes[BTH + 4] |= 1;
        vec![0]
    }),
    row("reserved bits behind the acknowledge request", ZERO, "PKT-RESERVED", |f| {
        f[0].bytes[BTH + 8] |= 1;
        vec![0]
    }),
    row("an acknowledgement with payload", ZERO, "PKT-PAYLOAD", |f| {
        lengthen(&mut f[5], 4);
        vec![5]
    }),
    row("a READ request with payload", ZERO, "PKT-PAYLOAD", |f| {
        lengthen(&mut f[2], 4);
        vec![2]
    }),
    row("P_Key 0", ZERO, "PKT-PKEY", |f| {
        put(&mut f[3], 2, &[0x80, 0]);
        vec![3]
    }),
    row("another P_Key", ZERO, "PKT-PKEY", |f| {
        put(&mut f[3], 2, &[0x80, 5]);
        vec![3]
    }),
    row("a connected request to QP 1", ZERO, "PKT-QPN", |f| {
        let at = append_copy(f, 0, 1000);
        put(&mut f[at], 5, &[0, 0, 1]);
        vec![at]
    }),
    row("a datagram to the QP of a connection", ZERO, "PKT-TRANSPORT", |f| {
        let at = append_copy(f, 0, 1000);
        make_datagram(&mut f[at]);
        vec![at]
    }),
    row("a UC packet to the QP of a connection", ZERO, "PKT-TRANSPORT", |f| {
        let at = append_copy(f, 0, 1000);
        f[at].bytes[BTH] = 0x24;
        let stray = f.remove(at);
        f.insert(3, stray);
        vec![3]
    }),
    row("a single request to another QP", ZERO, "PKT-STRAY", |f| {
        let at = append_copy(f, 0, 0);
        put(&mut f[at], 5, &[0, 0x7a, 0xbc]);
        let stray = f.remove(at);
        f.insert(3, stray);
        f[10].at += 2_000_000_000;
        vec![3]
    }),
    row("a capture without a RoCE packet", ZERO, "CAP-NOTHING", |f| {
        f.iter_mut().for_each(|frame| frame.bytes[36] = 0);
        vec![]
    }),
    row("a single packet with a distant PSN", ZERO, "REQ-PSN-JUMP", |f| {
        let at = append_copy(f, 0, 0);
        set_psn(&mut f[at], 0x40_0000);
        let stray = f.remove(at);
        f.insert(3, stray);
        vec![3]
    }),
    row("a UDP checksum that is wrong", ZERO, "PKT-UDP-CHECKSUM", |f| {
        f[0].bytes[40..42].copy_from_slice(&[0x12, 0x34]);
        vec![0]
    }),
    row("two limited members of a partition", ZERO, "PKT-PKEY-MEMBER", |f| {
        f.iter_mut().for_each(|frame| frame.bytes[BTH + 2] &= 0x7f);
        (0..f.len()).collect()
    }),
    row("a changed membership", ZERO, "PKT-PKEY-MEMBER", |f| {
        f[3].bytes[BTH + 2] &= 0x7f;
        vec![3]
    }),
    row("reserved bits of a DETH", UD, "PKT-RESERVED", |f| {
        let at = f.len() - 1;
        f[at].bytes[BTH + 16] = 1;
        vec![at]
    }),
    row("a solicited event of an acknowledgement", ZERO, "PKT-SOLICITED", |f| {
        f[5].bytes[BTH + 1] |= 0x80;
        vec![5]
    }),
    row("a READ that ends beyond 2^64", WRAP, "REQ-ADDRESS", |f| {
        put(&mut f[6], 12, &[0xff; 8]);
        vec![6]
    }),
    row("a retransmitted READ with another key", WRAP, "REQ-READ-RANGE", |f| {
        f.truncate(11);
        let at = append_copy(f, 6, 100_000_000);
        f[at].bytes[BTH + 23] ^= 8;
        vec![at]
    }),
    row("a retransmitted atomic with another key", WRAP, "REQ-REPEAT-DIFFERS", |f| {
        f.truncate(11);
        let at = append_copy(f, 7, 100_000_000);
        f[at].bytes[BTH + 23] ^= 8;
        vec![at]
    }),
    row("an atomic acknowledgement that refuses", WRAP, "RSP-SYNDROME", |f| {
        f[18].bytes[BTH + 12] = 0x62;
        vec![18]
    }),
    row("a CNP with another P_Key", ZERO, "CNP-PKEY", |f| {
        mark(&mut f[0]);
        let at = append_cnp(f, 5, 1000);
        put(&mut f[at], 2, &[0x80, 5]);
        vec![0, at]
    }),
    row("a message with a status", CM, "CM-MAD", |f| {
        f[2].bytes[BTH + 20 + 5] = 1;
        vec![2]
    }),
    row("a message with an undefined method", CM, "CM-MAD", |f| {
        f[2].bytes[BTH + 20 + 3] = 9;
        vec![2]
    }),
    row("a message with an undefined attribute", CM, "CM-MAD", |f| {
        f[2].bytes[BTH + 20 + 17] = 0x40;
        vec![2]
    }),
    row("a second REQ with another QP", CM, "CM-REQ-DIFFERS", |f| {
        let mut copy = f[0].clone();
        copy.bytes[BTH + 20 + 24 + 34] ^= 1;
        f.insert(1, copy);
        vec![1]
    }),
    row("a REQ with another GID", CM, "CM-GID", |f| {
        f[0].bytes[BTH + 20 + 24 + 56 + 15] ^= 1;
        vec![0]
    }),
    row("a REP with more resources than its REQ", CM, "CM-RESOURCES", |f| {
        f[1].bytes[BTH + 20 + 24 + 24] = 200;
        vec![1]
    }),
    row("a connection with another P_Key than its REQ", CM, "CM-PKEY", |f| {
        put(&mut f[0], 20 + 24 + 48, &[0x80, 5]);
        vec![0]
    }),
    row("a connection of another service than its REQ", CM, "PKT-TRANSPORT", |f| {
        f[0].bytes[BTH + 20 + 24 + 43] |= 2;
        vec![0]
    }),
    row("a request after the DREP", CM, "CM-DATA-AFTER-DREP", |f| {
        let is_request = |frame: &Captured| frame.bytes[BTH] < 0x0d;
        let last = f.iter().rposition(is_request).expect("a request");
        let at = append_copy(f, last, 200_000_000);
        let next = psn(&f[at]) + 1;
        set_psn(&mut f[at], next);
        vec![at]
    }),
    row("a solicited event of a WRITE", ZERO, "PKT-SOLICITED", |f| {
        f[1].bytes[BTH + 1] |= 0x80;
        vec![1]
    }),
    row("an acknowledge request in an acknowledgement", ZERO, "PKT-ACK-REQUEST", |f| {
        f[5].bytes[BTH + 8] |= 0x80;
        vec![5]
    }),
    row("a multicast source", UD, "PKT-SOURCE", |f| {
        let at = f.len() - 1;
        f[at].bytes[26] = 239;
        vec![at]
    }),
    row("a Middle where a Last is due", WRAP, "REQ-SEQUENCE", |f| {
        f[8].bytes[BTH] = 1;
        vec![8]
    }),
    row("an Only inside of a message", WRAP, "REQ-SEQUENCE", |f| {
        f[10].bytes[BTH] = 4;
        vec![10]
    }),
    row("a short Middle", WRAP, "REQ-MTU", |f| {
        shorten(&mut f[9], 4);
        vec![9]
    }),
    row("an empty Last", WRAP, "REQ-MTU", |f| {
        let len = f[10].bytes.len() - BTH - 12 - 4;
        shorten(&mut f[10], len);
        f[10].bytes[BTH + 1] &= 0xcf;
        vec![10]
    }),
    row("an Only longer than the MTU", IMM, "REQ-MTU", |f| {
        lengthen(&mut f[0], 4100);
        vec![0]
    }),
    row("a RETH with another length than the data", WRAP, "REQ-WRITE-LENGTH", |f| {
        f[1].bytes[BTH + 12 + 15] ^= 8;
        vec![1]
    }),
    row("a READ of more than 2^31 bytes", ZERO, "REQ-DMA-LENGTH", |f| {
        f.truncate(5);
        f.push(f[4].clone());
        f.remove(4);
        put(&mut f[4], 12 + 12, &[0x80, 0, 0, 1]);
        vec![4]
    }),
    row("an atomic at an odd address", WRAP, "REQ-ATOMIC-ALIGNMENT", |f| {
        f[7].bytes[BTH + 12 + 7] |= 1;
        vec![7]
    }),
    row("a skipped PSN", ZERO, "REQ-PSN-SKIPPED", |f| {
        f.remove(1);
        vec![]
    }),
    row("a distant PSN", ZERO, "REQ-PSN-JUMP", |f| {
        f.truncate(10);
        let at = append_copy(f, 1, 1000);
        f[at].bytes[BTH] = 7;
        f[at].bytes.drain(BTH + 12..BTH + 28);
        set_psn(&mut f[at], 0x40_0000);
        lengthen(&mut f[at], 1024);
        vec![at]
    }),
    row("a retransmission with other contents", IMM, "REQ-REPEAT-DIFFERS", |f| {
        f.truncate(1);
        let at = append_copy(f, 0, 100_000_000);
        f[at].bytes[BTH + 12] ^= 1;
        vec![at]
    }),
    row("a request retransmitted after 5 ms without a response", ZERO, "REQ-TIMEOUT", |f| {
        f.truncate(1);
        vec![append_copy(f, 0, 5_000_000)]
    }),
    row("MSN too high", ZERO, "RSP-MSN", |f| {
        put(&mut f[9], 15, &[9]);
        vec![9]
    }),
    row("MSN too low", WRAP, "RSP-MSN", |f| {
        put(&mut f[19], 15, &[4]);
        vec![19]
    }),
    row("an acknowledgement of an unsent PSN", ZERO, "RSP-ACK-UNSENT", |f| {
        f[6].bytes[BTH + 12] = 0x1f;
        let at = append_copy(f, 6, 1000);
        let next = psn(&f[4]) + 7;
        set_psn(&mut f[at], next);
        vec![at]
    }),
    row("an acknowledgement with a lower PSN than the last", ZERO, "RSP-ACK-BACKWARDS", |f| {
        let at = append_copy(f, 5, 1000);
        vec![at]
    }),
    row("an undefined syndrome", ZERO, "RSP-SYNDROME", |f| {
        let at = append_copy(f, 8, 1000);
        put(&mut f[at], 12, &[0x45]);
        vec![at]
    }),
    row("a NAK without a gap", WRAP, "RSP-NAK-SPURIOUS", |f| {
        f[19].bytes[BTH + 12] = 0x60;
        f[19].bytes[BTH + 15] = 4;
        let last = psn(&f[10]);
        set_psn(&mut f[19], last);
        vec![19]
    }),
    row("a NAK for an acknowledged PSN", ZERO, "RSP-NAK-RANGE", |f| {
        let at = append_copy(f, 5, 1000);
        put(&mut f[at], 12, &[0x60]);
        vec![at]
    }),
    row("an RNR NAK for a READ", ZERO, "RSP-RNR-KIND", |f| {
        f.truncate(9);
        let at = append_copy(f, 8, 1000);
        put(&mut f[at], 12, &[0x2c]);
        let read = psn(&f[4]);
        set_psn(&mut f[at], read);
        vec![at]
    }),
    row("a READ answered by an acknowledgement", ZERO, "RSP-KIND", |f| {
        f[9].bytes[BTH] = 17;
        vec![9]
    }),
    row("an atomic answered by an acknowledgement", WRAP, "RSP-KIND", |f| {
        f.truncate(19);
        f[18].bytes[BTH] = 17;
        f[18].bytes.drain(BTH + 16..BTH + 24);
        vec![18]
    }),
    row("a Middle where the last response is due", WRAP, "RSP-READ-SEQUENCE", |f| {
        f[17].bytes[BTH] = 14;
        f[17].bytes.drain(BTH + 12..BTH + 16);
        vec![17]
    }),
    row("a last response that is short", WRAP, "RSP-READ-LENGTH", |f| {
        shorten(&mut f[17], 4);
        vec![17]
    }),
    row("an atomic executed twice", WRAP, "RSP-ATOMIC-REPLAY", |f| {
        let at = append_copy(f, 18, 1000);
        f[at].bytes[BTH + 23] ^= 1;
        vec![at]
    }),
    row("another source port", ZERO, "FAB-SOURCE-PORT", |f| {
        f[4].bytes[35] ^= 1;
        vec![4]
    }),
    row("another DSCP", ZERO, "FAB-TRAFFIC-CLASS", |f| {
        f[4].bytes[15] = 0x68;
        vec![4]
    }),
    row("ECT in one packet", ZERO, "ECN-ECT", |f| {
        f[4].bytes[15] |= 2;
        vec![4]
    }),
    row("a duplicated frame", ZERO, "FAB-DUPLICATE", |f| {
        let copy = f[4].clone();
        f.insert(5, copy);
        vec![]
    }),
    row("two reordered requests", ZERO, "FAB-REORDER", |f| {
        f.swap(3, 4);
        vec![]
    }),
    row("a lost and retransmitted request", ZERO, "FAB-LOSS", |f| {
        let mut lost = f.remove(3);
        lost.at = f[3].at + 500_000_000;
        lost.bytes[18] ^= 0x10;
        lost.bytes[19] = 0;
        f.insert(4, lost);
        vec![4]
    }),
    row("a CNP without BECN", CNP, "CNP-FORMAT", |f| {
        f[0].bytes[BTH + 4] = 0;
        vec![0]
    }),
    row("a CNP with a PSN", CNP, "CNP-FORMAT", |f| {
        set_psn(&mut f[0], 7);
        vec![0]
    }),
    row("a CNP whose reserved bytes are not 0", CNP, "CNP-FORMAT", |f| {
        put(&mut f[0], 20, &[1]);
        vec![0]
    }),
    row("CNPs a microsecond apart", ZERO, "CNP-INTERVAL", |f| {
        mark(&mut f[0]);
        vec![0, append_cnp(f, 5, 1000), append_cnp(f, 5, 1000)]
    }),
    row("a CNP without a mark", ZERO, "CNP-WITHOUT-MARK", |f| vec![append_cnp(f, 5, 1000)]),
    row("a mark without a CNP", ZERO, "CNP-MISSING", |f| {
        mark(&mut f[0]);
        f[9].at += 20_000_000;
        vec![0]
    }),
    row("a SEND beyond the credits", CM, "REQ-CREDITS", |f| {
        f[0].bytes[BTH + 20 + 24 + 43] |= 1;
        f[1].bytes[BTH + 20 + 24 + 26] |= 1;
        f[4].bytes[BTH + 12] = 0;
        f.remove(10);
        vec![0, 1, 4]
    }),
    row("another Q_Key", UD, "UD-QKEY", |f| {
        let at = f.len() - 1;
        put(&mut f[at], 15, &[0x99]);
        vec![at]
    }),
    row("a datagram from QP 0xffffff", UD, "UD-SOURCE-QP", |f| {
        let at = f.len() - 1;
        put(&mut f[at], 17, &[0xff; 3]);
        vec![at]
    }),
    row("a unicast datagram to QP 0xffffff", UD, "UD-MULTICAST", |f| {
        let at = f.len() - 1;
        put(&mut f[at], 5, &[0xff; 3]);
        vec![at]
    }),
    row("a datagram that is too long", UD, "UD-SIZE", |f| {
        let at = f.len() - 1;
        lengthen(&mut f[at], 4096);
        vec![at]
    }),
    row("a REP of another transaction", CM, "CM-TRANSACTION", |f| {
        f[1].bytes[BTH + 20 + 15] ^= 1;
        vec![1]
    }),
    row("an RTU with another communication ID", CM, "CM-COMM-ID", |f| {
        f[2].bytes[BTH + 20 + 24 + 7] ^= 1;
        vec![2]
    }),
    row("a MAD of another class version", CM, "CM-MAD", |f| {
        f[2].bytes[BTH + 20 + 2] = 9;
        vec![2]
    }),
    row("an invalid request", ZERO, "FAIL-INVALID", |f| {
        f.truncate(9);
        let at = append_copy(f, 8, 1000);
        put(&mut f[at], 12, &[0x61]);
        let read = psn(&f[4]);
        set_psn(&mut f[at], read);
        vec![at]
    }),
    row("a fragment", ZERO, "PKT-FRAGMENT", |f| {
        f[9].bytes[20] |= 0x20;
        vec![9]
    }),
    row("a retransmitted READ of another address", WRAP, "REQ-READ-RANGE", |f| {
        f.truncate(11);
        let at = append_copy(f, 6, 100_000_000);
        f[at].bytes[BTH + 19] ^= 8;
        vec![at]
    }),
    row("a response to another QP", ZERO, "RSP-QPN", |f| {
        put(&mut f[9], 5, &[0, 0x12, 0x34]);
        vec![9]
    }),
    row("a DREP without a DREQ", CM, "CM-ORDER", |f| {
        f.retain(|frame| !is_cm(frame, 0x15));
        vec![]
    }),
    row("a DREQ for another QP", CM, "CM-DREQ-QPN", |f| {
        let at = first(f, |frame| is_cm(frame, 0x15));
        f[at].bytes[BTH + 20 + 24 + 10] ^= 1;
        vec![at]
    }),
    row("a starting PSN other than the negotiated one", CM, "CM-STARTING-PSN", |f| {
        f[1].bytes[BTH + 20 + 24 + 22] ^= 1;
        vec![1]
    }),
    row("too many copies of a REQ", CM, "CM-RETRIES", |f| {
        for _ in 0..20 {
            let copy = f[0].clone();
            f.insert(0, copy);
        }
        vec![]
    }),
    row("a REQ without a response", CM, "CM-NO-RESPONSE", |f| {
        f.truncate(1);
        let at = append_copy(f, 0, 5_000_000_000);
        vec![at]
    }),
    row("requests ahead of the REP", CM, "CM-EARLY-DATA", |f| {
        let at = first(f, |frame| frame.bytes[BTH] != 0x64);
        let mut copy = f[at].clone();
        copy.at = f[0].at;
        f.insert(1, copy);
        vec![]
    }),
    row("more READs than negotiated", CM, "REQ-READ-DEPTH", |f| {
        f[0].bytes[BTH + 20 + 24 + 35] = 0;
        f[1].bytes[BTH + 20 + 24 + 24..][..2].fill(0);
        vec![0, 1]
    }),
];

/// Violations made in captures that already have findings. The rules of these findings must remain.
const MORE: &[Row] = &[
    row(
        "a request sent too early after an RNR NAK",
        "rxe/ops_rnr_exhaust.pcap.zst",
        "REQ-RNR-WAIT",
        |f| {
            f[2].at = f[1].at + 100_000;
            vec![]
        },
    ),
    row(
        "retransmissions beyond the retry count",
        "rxe/ops_retry_exhaust.pcap.zst",
        "REQ-RETRY-COUNT",
        |f| {
            let (mut at, mut copies) = (0, vec![]);
            for _ in 0..6 {
                at = append_copy(f, at, 20_000_000);
                copies.push(at);
            }
            copies
        },
    ),
    row(
        "a request after a fatal NAK",
        "rxe/ops_bad_rkey_atomic.pcap.zst",
        "REQ-AFTER-ERROR",
        |f| {
            let at = append_copy(f, 0, 200_000_000);
            let next = psn(&f[0]) + 1;
            set_psn(&mut f[at], next);
            vec![at]
        },
    ),
    row(
        "a response after a fatal NAK",
        "rxe/ops_bad_rkey_write.pcap.zst",
        "RSP-AFTER-ERROR",
        |f| {
            let nak = first(f, |frame| frame.bytes[BTH] == 0x11 && frame.bytes[BTH + 12] == 0x62);
            vec![append_copy(f, nak, 1000)]
        },
    ),
    row("two NAKs for a gap", "rxe/loss_nft_send_1024.tapB.pcap.zst", "RSP-NAK-ONCE", |f| {
        let at = first(f, is_nak);
        let copy = f[at].clone();
        f.insert(at + 1, copy);
        vec![]
    }),
    row("an ignored NAK", "rxe/loss_nft_atomic.tapB.pcap.zst", "REQ-NAK-RESTART", |f| {
        let nak = first(f, is_nak);
        let behind = f[nak + 1..].iter().position(|frame| psn(frame) == psn(&f[nak]));
        f.remove(nak + 1 + behind.expect("the NAK is obeyed"));
        vec![]
    }),
];

/// Changes that a switch or a router may make, or that receivers ignore: notes, and no findings.
const NOTES: &[Row] = &[
    row("FECN in a request", ZERO, "PKT-FECN-BECN", |f| {
        f[0].bytes[BTH + 4] |= 0x80;
        vec![0]
    }),
    row("an acknowledge request of a datagram", UD, "PKT-ACK-REQUEST-UNRELIABLE", |f| {
        let at = f.len() - 1;
        f[at].bytes[BTH + 8] |= 0x80;
        vec![at]
    }),
    row("another source MAC address", ZERO, "FAB-MAC", |f| {
        f[3].bytes[11] ^= 1;
        vec![]
    }),
    row(
        "another VLAN priority",
        "hardware/connectx_vlan_cmreq_rtu_send_ack.pcap",
        "FAB-VLAN",
        |f| {
            f[4].bytes[14] ^= 0x20;
            vec![]
        },
    ),
    row("another flow label", "rxe/rc_pingpong_v6_1024.pcap.zst", "FAB-FLOW-LABEL", |f| {
        f[10].bytes[17] ^= 1;
        vec![]
    }),
    row("a response with another DSCP", ZERO, "FAB-ANSWER-PATH", |f| {
        f[7].bytes[15] = 0x68;
        vec![7]
    }),
    row("a response with another source port", ZERO, "FAB-ANSWER-PATH", |f| {
        f[7].bytes[35] ^= 1;
        vec![7]
    }),
    row("a CNP that is marked", ZERO, "CNP-CE", |f| {
        mark(&mut f[0]);
        let at = append_cnp(f, 5, 1000);
        mark(&mut f[at]);
        vec![0, at]
    }),
    row("a CNP to an unknown QP", ZERO, "CNP-UNKNOWN-QP", |f| {
        let at = append_cnp(f, 5, 1000);
        put(&mut f[at], 5, &[0x12, 0x34, 0x56]);
        vec![at]
    }),
];

#[test]
fn changes_that_are_legal_on_the_way_are_notes() {
    let mut wrong = Vec::new();
    for Row { name, file, rule, change } in NOTES {
        let mut frames = read(file);
        for index in change(&mut frames) {
            seal(&mut frames[index]);
        }
        let found = findings(&frames);
        let notes = findings_of(&frames, |severity| severity == Severity::Note);
        if !notes.contains_key(rule) || !found.is_empty() {
            wrong.push(format!("{name}: expected {rule}, found {notes:?} and {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns true if the frame is a NAK (PSN sequence).
fn is_nak(frame: &Captured) -> bool {
    frame.bytes[BTH] == 0x11 && frame.bytes[BTH + 12] == 0x60
}

#[test]
fn violations_are_found_among_other_findings() {
    let mut wrong = Vec::new();
    for Row { name, file, rule, change } in MORE {
        let mut frames = read(file);
        let mut expected: Vec<_> = findings(&frames).into_keys().collect();
        expected.push(*rule);
        expected.sort_unstable();
        for index in change(&mut frames) {
            seal(&mut frames[index]);
        }
        let mut found: Vec<_> = findings(&frames).into_keys().collect();
        found.sort_unstable();
        if found != expected {
            wrong.push(format!("{name}: expected {expected:?}, found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// No violation is hidden by a datagram or a UC packet to the QP of a connection, whatever the
/// place of the stray packet.
#[test]
fn stray_packets_hide_no_violation() {
    let mut wrong = Vec::new();
    for Row { name, file, rule, change } in ROWS {
        let mut frames = read(file);
        for index in change(&mut frames) {
            seal(&mut frames[index]);
        }
        if *rule == "CAP-NOTHING" {
            continue; // The stray packet is one to judge.
        }
        let is_data = |frame: &&Captured| frame.bytes[BTH] < 0x0d;
        let Some(data) = frames.iter().find(is_data).cloned() else { continue };
        for is_datagram in [false, true] {
            for at in 0..=frames.len().min(24) {
                let mut stray = data.clone();
                let end = stray.bytes.len() - 4;
                stray.bytes.drain(BTH + 12..end);
                stray.bytes[BTH] = 0x24;
                stray.bytes[BTH + 1] = 0x40;
                if is_datagram {
                    make_datagram(&mut stray);
                }
                stray.at = frames[at.min(frames.len() - 1)].at;
                seal(&mut stray);
                let mut mixed = frames.clone();
                mixed.insert(at, stray);
                if !findings(&mixed).contains_key(rule) {
                    wrong.push(format!("{name}: {rule} is hidden ahead of frame {at}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A ConnectX sends "0 credits" even if no credits were negotiated.
#[test]
fn zero_credits_without_negotiation_are_a_quirk() {
    let mut frames = read(ZERO);
    frames[5].bytes[BTH + 12] = 0;
    seal(&mut frames[5]);
    assert_eq!(findings(&frames), BTreeMap::new());
    let quirks = findings_of(&frames, |severity| severity == Severity::Quirk);
    assert_eq!(quirks.get("QUIRK-CREDITS-0"), Some(&1), "{quirks:?}");
}

/// A datagram to the QP of a connection used to relabel the connection, whose failure was then not
/// reported.
#[test]
fn a_stray_packet_does_not_hide_a_failure() {
    let failed = read("rxe/ops_bad_rkey_atomic.pcap.zst");
    for at in 0..=failed.len() {
        let mut frames = failed.clone();
        let mut stray = read(ZERO)[0].clone();
        make_datagram(&mut stray);
        stray.bytes[14..BTH].copy_from_slice(&failed[0].bytes[14..BTH]);
        stray.bytes[BTH + 5..BTH + 8].copy_from_slice(&failed[0].bytes[BTH + 5..BTH + 8]);
        stray.at = failed[at.min(failed.len() - 1)].at;
        frames.insert(at, stray);
        seal(&mut frames[at]);
        let expected = BTreeMap::from([("FAIL-ACCESS", 1), ("PKT-TRANSPORT", 1)]);
        assert_eq!(findings(&frames), expected, "before frame {at}");
    }
}

/// A copy of a response that goes to another QP, captured first, used to keep the right responses
/// from being judged.
#[test]
fn the_first_response_does_not_decide_alone_where_responses_go() {
    let mut frames = read("rxe/ops_bad_rkey_write.pcap.zst");
    let at = first(&frames, |frame| frame.bytes[BTH] == 0x11);
    let mut stray = frames[at].clone();
    put(&mut stray, 5, &[0, 0x12, 0x34]);
    seal(&mut stray);
    frames.insert(at, stray);
    let found = findings(&frames);
    assert!(found.contains_key("FAIL-ACCESS") && found.contains_key("RSP-QPN"), "{found:?}");
}

#[test]
fn clean_captures_have_no_findings() {
    for file in [ZERO, WRAP, IMM, UD, CM, CNP] {
        assert_eq!(findings(&read(file)), BTreeMap::new(), "{file}");
    }
}

/// Among them C9-6, C9-148, C10-93.1.1 and C13-3.
#[test]
fn every_violation_is_found_by_its_rule_and_no_other() {
    assert!(ROWS.len() >= 40);
    let mut wrong = Vec::new();
    for Row { name, file, rule, change } in ROWS {
        let mut frames = read(file);
        for index in change(&mut frames) {
            seal(&mut frames[index]);
        }
        let found: Vec<_> = findings(&frames).into_keys().collect();
        if found != [*rule] {
            wrong.push(format!("{name}: expected {rule}, found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
}

/// The check ends with a report whatever the packets contain and in whatever order they come.
#[test]
fn random_changes_do_not_make_the_check_panic() {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut below = |most: usize| usize::try_from(random.next_u64() >> 33).expect("31 bits") % most;
    for file in [ZERO, WRAP, IMM, CM] {
        for _ in 0..10 {
            let mut frames = read(file);
            for _ in 0..frames.len() {
                let (index, other) = (below(frames.len()), below(frames.len()));
                let at = BTH + below(frames[index].bytes.len() - BTH);
                frames[index].bytes[at] = u8::try_from(below(256)).expect("a byte");
                if below(4) == 0 {
                    frames.swap(index, other);
                }
                seal(&mut frames[index]);
            }
            findings(&frames);
        }
    }
}
