//! A stray packet hides nothing: the check of a capture and one more packet has at least the errors
//! of the capture alone.

use std::path::PathBuf;

use feroce_conform::packet::roce_ip_at;
use feroce_conform::rules::Severity;
use feroce_conform::trace::Link;
use feroce_tests::capture_list;
use feroce_tests::captured::{Captured, findings, read};
use feroce_tests::conform_fuzz::seal;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const UDP: usize = 8;
/// Number of stray packets of each kind per capture.
const STRAYS: usize = 30;

fn captures() -> Vec<PathBuf> {
    let root = capture_list::captures();
    let mut files = Vec::new();
    for folder in ["hardware", "rxe", "softroce-public"] {
        let entries = std::fs::read_dir(root.join(folder)).expect(folder);
        files.extend(entries.map(|entry| entry.expect(folder).path()));
    }
    files.sort();
    files
}

/// Returns the offset of the BTH.
fn bth(frame: &Captured) -> Option<usize> {
    let ip = roce_ip_at(&frame.bytes).filter(|_| frame.link == Link::Ethernet)?;
    Some(ip + UDP + if frame.bytes[ip] >> 4 == 6 { 40 } else { 20 })
}

/// The kinds of stray packets: each is made of a packet of the capture.
const KINDS: [&str; 6] = ["UD", "UC", "RC", "CNP", "another QP", "distant PSN"];

/// Turns a captured packet into a stray one.
fn make_stray(frame: &mut Captured, kind: &str, random: &mut Xoshiro256PlusPlus) -> Option<()> {
    const HEADER: usize = 12;
    let at = bth(frame)?;
    let end = frame.bytes.len().checked_sub(4)?;
    let opcode = |code: u8, rest: &[u8], frame: &mut Captured| {
        frame.bytes[at] = code;
        frame.bytes[at + 1] &= 0xcf;
        frame.bytes.splice(at + HEADER..end, rest.iter().copied());
    };
    match kind {
        "UD" => opcode(0x64, &[0, 0, 0, 1, 0, 0, 0, 0x77], frame),
        "UC" => opcode(0x24, &[], frame),
        "RC" => {
            // A SEND, a WRITE, a READ or an atomic, whatever the packet was.
            let reth = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 0];
            let atomic = [&reth[..12], &[0; 16]].concat();
            let all: [(u8, &[u8]); 4] = [(4, &[]), (0x0a, &reth), (0x0c, &reth), (0x14, &atomic)];
            let old = frame.bytes[at];
            let (code, rest) = all[usize::try_from(random.next_u64() % 4).ok()?];
            opcode(code, rest, frame);
            (old != code && old < 0x20).then_some(())?;
        }
        "CNP" => {
            opcode(0x81, &[0; 16], frame);
            frame.bytes[at + 4] = 0x40;
            frame.bytes[at + 8..at + 12].fill(0);
        }
        "another QP" => frame.bytes[at + 5..at + 8].copy_from_slice(&[0x7a, 0xbc, 0xde]),
        _ => frame.bytes[at + 9] ^= 0x40,
    }
    frame.original_len = u32::try_from(frame.bytes.len()).ok()?;
    seal(&mut frame.bytes)
}

#[test]
fn a_stray_packet_hides_no_error() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(26);
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for file in captures() {
        let frames = read(&file);
        let alone = findings(&frames, Severity::Error);
        for kind in KINDS {
            for _ in 0..STRAYS {
                let mut below =
                    |most: usize| usize::try_from(random.next_u64() >> 33).expect("31 bits") % most;
                let (from, to) = (below(frames.len()), below(frames.len() + 1));
                let mut stray = frames[from].clone();
                stray.at = frames[to.min(frames.len() - 1)].at;
                if make_stray(&mut stray, kind, &mut random).is_none() {
                    continue;
                }
                tried += 1;
                let mixed = frames[..to].iter().chain([&stray]).chain(&frames[to..]);
                let mixed = findings(mixed, Severity::Error);
                let lacks = |(rule, count): (&&str, &u64)| mixed.get(*rule).unwrap_or(&0) < count;
                if alone.iter().any(lacks) {
                    wrong.push(format!(
                        "{}: {kind} made of frame {from} ahead of frame {to}: {alone:?} became \
                         {mixed:?}",
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(tried > 10_000, "{tried}");
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
}
