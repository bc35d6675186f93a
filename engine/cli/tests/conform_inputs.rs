//! The inputs of `check`: the same frames in every file format and behind every encapsulation have
//! the same verdict, and unreadable input is reported in one line.

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use feroce_conform::check::{Checker, Filter, Report};
use feroce_conform::trace::Trace;
use feroce_wire::Ipv4Header;
use pcap_file::pcap::PcapReader;

/// One capture with findings and IPv4, and a clean one with IPv6.
const CAPTURES: [&str; 2] = ["rxe/ops_rnr_exhaust.pcap.zst", "rxe/rc_pingpong_v6_1024.pcap.zst"];
const ETHERNET: u32 = 1;
/// Time of the first frame of written captures, in seconds since 1970.
const BEGIN: u64 = 1_700_000_000;

/// The byte order of a capture.
#[derive(Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn word(self, word: u32) -> [u8; 4] {
        match self {
            Self::Little => word.to_le_bytes(),
            Self::Big => word.to_be_bytes(),
        }
    }

    fn half(self, half: u16) -> [u8; 2] {
        match self {
            Self::Little => half.to_le_bytes(),
            Self::Big => half.to_be_bytes(),
        }
    }
}

/// A frame, and the time since the first frame of its capture.
struct CapturedFrame {
    at: Duration,
    bytes: Vec<u8>,
}

/// The frames of `tests/captures/<file>`.
fn read(file: &str) -> Vec<CapturedFrame> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(file);
    let packed = std::fs::read(&path).expect("a capture");
    let mut plain = Vec::new();
    let mut source = packed.as_slice();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(&mut source).expect("zstd");
    decoder.read_to_end(&mut plain).expect("zstd");
    let mut reader = PcapReader::new(plain.as_slice()).expect("a capture");
    let mut frames = Vec::new();
    let mut start = None;
    while let Some(record) = reader.next_packet() {
        let record = record.expect("a complete record");
        let start = *start.get_or_insert(record.timestamp);
        let at = record.timestamp.saturating_sub(start);
        frames.push(CapturedFrame { at, bytes: record.data.into_owned() });
    }
    frames
}

fn len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a frame")
}

fn nanos(frame: &CapturedFrame) -> u64 {
    u64::try_from(frame.at.as_nanos()).expect("a short capture")
}

/// A pcap of `frames`, each cut to `snap` bytes.
fn pcap(frames: &[CapturedFrame], order: Order, has_nanos: bool, link: u32, snap: u32) -> Vec<u8> {
    let magic = if has_nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut out = order.word(magic).to_vec();
    out.extend(order.half(2));
    out.extend(order.half(4));
    for word in [0, 0, snap, link] {
        out.extend(order.word(word));
    }
    for frame in frames {
        let nanos = nanos(frame);
        let seconds = u32::try_from(BEGIN + nanos / 1_000_000_000).expect("before 2106");
        let fraction = nanos % 1_000_000_000 / if has_nanos { 1 } else { 1000 };
        let fraction = u32::try_from(fraction).expect("below a second");
        let kept = snap.min(len(&frame.bytes));
        for word in [seconds, fraction, kept, len(&frame.bytes)] {
            out.extend(order.word(word));
        }
        out.extend(&frame.bytes[..kept as usize]);
    }
    out
}

/// A pcapng of `frames` with timestamps in nanoseconds.
fn pcapng(frames: &[CapturedFrame], order: Order) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let total = order.word(len(body) + 12);
        for part in [&order.word(kind)[..], &total, body, &total] {
            out.extend(part);
        }
    };
    let version = [order.half(1), order.half(0)].concat();
    block(0x0a0d_0d0a, &[&order.word(0x1a2b_3c4d)[..], &version, &[0xff; 8]].concat());
    // Ethernet, no snap length; if_tsresol 9, end of options.
    let link = [order.half(1), order.half(0)].concat();
    let options = [&order.half(9)[..], &order.half(1), &[9, 0, 0, 0], &[0; 4]].concat();
    block(1, &[&link[..], &order.word(0), &options].concat());
    for frame in frames {
        let at = BEGIN * 1_000_000_000 + nanos(frame);
        let half = |nanos: u64| order.word(u32::try_from(nanos & 0xffff_ffff).expect("masked"));
        let length = order.word(len(&frame.bytes));
        let head = [order.word(0), half(at >> 32), half(at), length, length].concat();
        let pad = vec![0; frame.bytes.len().next_multiple_of(4) - frame.bytes.len()];
        block(6, &[&head[..], &frame.bytes, &pad].concat());
    }
    out
}

/// `bytes` as a gzip file of two members without compression.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let (front, back) = bytes.split_at(bytes.len() / 2);
    for member in [front, back] {
        out.extend([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff]);
        let mut pieces = member.chunks(0xffff).peekable();
        while let Some(piece) = pieces.next() {
            let length = u16::try_from(piece.len()).expect("a piece");
            out.push(u8::from(pieces.peek().is_none()));
            out.extend(length.to_le_bytes());
            out.extend((!length).to_le_bytes());
            out.extend(piece);
        }
        out.extend(crc32fast::hash(member).to_le_bytes());
        out.extend(len(member).to_le_bytes());
    }
    out
}

/// Each frame with `tag` behind its Ethernet addresses.
fn tagged(frames: &[CapturedFrame], tag: &[u8]) -> Vec<CapturedFrame> {
    let insert = |frame: &CapturedFrame| {
        let (addresses, rest) = frame.bytes.split_at(12);
        CapturedFrame { at: frame.at, bytes: [addresses, tag, rest].concat() }
    };
    frames.iter().map(insert).collect()
}

/// Each frame inside a VXLAN tunnel.
fn tunnelled(frames: &[CapturedFrame]) -> Vec<CapturedFrame> {
    const UDP: usize = 8;
    const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 7, 0];
    let wrap = |frame: &CapturedFrame| {
        let udp_len = u16::try_from(UDP + VXLAN.len() + frame.bytes.len()).expect("a frame");
        let mut ip = Ipv4Header {
            tos: 0,
            total_length: udp_len + 20,
            identification: 0,
            reserved_flag: false,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: 17,
            checksum: 0,
            src: [192, 0, 2, 1].into(),
            dst: [192, 0, 2, 2].into(),
        };
        ip.checksum = ip.computed_checksum();
        let udp = [50_000, 4789, udp_len, 0].map(u16::to_be_bytes).concat();
        let head = [&[2; 12][..], &[8, 0], &ip.to_bytes(), &udp, &VXLAN].concat();
        CapturedFrame { at: frame.at, bytes: [&head[..], &frame.bytes].concat() }
    };
    frames.iter().map(wrap).collect()
}

fn checked(bytes: Vec<u8>) -> Report {
    let capture = feroce_pfc_tools::capture::Capture::of_source(
        Path::new("capture"),
        Box::new(Cursor::new(bytes)),
    );
    let mut trace = Trace::of(vec![capture.expect("a capture")]).expect("one capture");
    let (report, ended) = Checker::new(Filter::default(), false).check(&mut trace);
    ended.expect("read to the end");
    report
}

/// The part of a report that must not depend on the capture format: the numbers of packets,
/// findings and quirks, and the packets and bytes of each flow.
fn verdict(report: &Report) -> String {
    let rules: Vec<_> = report.findings.by_rule().into_iter().collect();
    let flow = |channel: &feroce_conform::flow::Channel| {
        let figures = channel.figures;
        (figures.requests, figures.request_bytes, figures.responses, figures.retransmitted)
    };
    let flows: Vec<_> = report.flows.all().iter().map(flow).collect();
    format!("{} of {} frames: {rules:?} {flows:?}", report.packets, report.frames)
}

#[test]
fn the_same_frames_have_the_same_verdict_in_every_format() {
    use Order::{Big, Little};
    const SNAP: u32 = 128;
    const ALL: u32 = 1 << 18;
    for name in CAPTURES {
        let frames = read(name);
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name);
        let expected = verdict(&checked(std::fs::read(packed).expect(name)));
        assert!(!expected.starts_with('0'), "{name}: {expected}");
        let plain = pcap(&frames, Little, true, ETHERNET, ALL);
        let vlan = tagged(&frames, &[0x81, 0, 0x60, 7]);
        let qinq = tagged(&frames, &[0x88, 0xa8, 0, 9, 0x81, 0, 0x60, 7]);
        let forms = [
            ("plain", plain.clone()),
            ("microseconds", pcap(&frames, Little, false, ETHERNET, ALL)),
            ("big-endian", pcap(&frames, Big, false, ETHERNET, ALL)),
            ("big-endian nanoseconds", pcap(&frames, Big, true, ETHERNET, ALL)),
            ("pcapng", pcapng(&frames, Little)),
            ("big-endian pcapng", pcapng(&frames, Big)),
            ("gzip", gzip(&plain)),
            ("pcapng in gzip", gzip(&pcapng(&frames, Little))),
            ("snap length", pcap(&frames, Little, true, ETHERNET, SNAP)),
            ("VLAN", pcap(&vlan, Little, true, ETHERNET, ALL)),
            ("QinQ", pcap(&qinq, Little, true, ETHERNET, ALL)),
            ("VXLAN", pcap(&tunnelled(&frames), Little, true, ETHERNET, ALL)),
            ("VLAN in VXLAN", pcap(&tunnelled(&vlan), Little, true, ETHERNET, ALL)),
            ("VLAN, snap length", pcap(&vlan, Big, true, ETHERNET, SNAP)),
        ];
        for (form, bytes) in forms {
            assert_eq!(verdict(&checked(bytes)), expected, "{name} as {form}");
        }
    }
}

/// A temporary folder that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("feroce-conform-inputs-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let file = self.0.join(name);
        std::fs::write(&file, bytes).expect("a file");
        file
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `feroce conform check FILE` with `input` as its standard input.
fn run(file: &Path, input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_feroce"))
        .args(["conform", "check"])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("feroce conform");
    // The program may exit before it has read everything.
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("the program exits")
}

#[test]
fn standard_input_is_read_like_a_file() {
    let folder = Folder::new("stdin");
    let plain = pcap(&read(CAPTURES[0]), Order::Little, true, ETHERNET, 1 << 18);
    let file = run(&folder.file("plain.pcap", &plain), &[]);
    let piped = run(Path::new("-"), &plain);
    let packed = run(Path::new("-"), &gzip(&plain));
    assert_eq!(file.status.code(), Some(3), "there are findings");
    assert!(!file.stdout.is_empty());
    for other in [piped, packed] {
        assert_eq!((other.status, other.stdout), (file.status, file.stdout.clone()));
    }
}

#[test]
fn unreadable_input_is_reported_in_one_line() {
    let folder = Folder::new("bad");
    let frames = read(CAPTURES[0]);
    let plain = pcap(&frames, Order::Little, true, ETHERNET, 1 << 18);
    let packed = gzip(&plain);
    let ng = pcapng(&frames, Order::Big);
    let user = pcap(&frames, Order::Little, true, 147, 1 << 18);
    let truncated = format!("is truncated after frame {}", frames.len() - 1);
    let bad: [(&str, &[u8], &str); 9] = [
        ("cut.pcap", &plain[..plain.len() - 5], &truncated),
        ("cut.pcapng", &ng[..ng.len() - 5], &truncated),
        ("cut.gz", &packed[..packed.len() / 3], "is truncated after frame"),
        ("link.pcap", &user, "link type 147"),
        ("empty", &[], "is neither pcap nor pcapng"),
        ("short", &plain[..10], "is neither pcap nor pcapng"),
        ("text", b"these are words, and no frames\n", "is neither pcap nor pcapng"),
        ("garbage.gz", &[&packed[..10], &[0xff; 64]].concat(), "cannot read"),
        ("garbage.zst", &[&[0x28, 0xb5, 0x2f, 0xfd][..], &[0xff; 64]].concat(), "cannot read"),
    ];
    let files: Vec<_> =
        bad.iter().map(|(name, bytes, why)| (folder.file(name, bytes), *why)).collect();
    let others =
        [(folder.0.clone(), "cannot read"), (folder.0.join("missing.pcap"), "cannot read")];
    for (file, why) in files.into_iter().chain(others) {
        let output = run(&file, &[]);
        let line = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{}: {line}", file.display());
        assert_eq!(line.lines().count(), 1, "{}: {line}", file.display());
        assert!(line.contains(why), "{}: {line:?} does not contain {why:?}", file.display());
    }
}
