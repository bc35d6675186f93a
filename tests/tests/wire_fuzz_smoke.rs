//! The fuzz entries of `wire/fuzz` on a stable toolchain: a seeded corpus from real frames, mutated
//! for a fixed number of rounds. This finds less than a fuzzer, but it runs in every test run and
//! keeps the entries compiling.

#[path = "../../wire/fuzz/src/entries.rs"]
mod entries;

use std::{collections::BTreeSet, fs, path::Path};

use feroce_tests::capture_list;
use feroce_wire::{FlowControl, FlowControlFrame, Ipv4Header, MacAddr, Packet};

/// Mutated inputs per entry.
const ROUNDS: usize = 20_000;

/// xorshift64*: small and stable, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % limit
    }

    fn byte(&mut self) -> u8 {
        // Extreme values find more faults than values between them.
        match self.below(4) {
            0 => 0,
            1 => 0xff,
            _ => self.next().to_be_bytes()[0],
        }
    }
}

/// The inputs of an entry before mutation: parts of captured frames that begin where the header of
/// the entry can begin.
fn corpus(entry: &str) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    if entry == "pause" {
        return flow_control();
    }
    for listed in capture_list::listed() {
        for frame in capture_list::frames(&listed.path).1.iter().take(3) {
            let Ok(packet) = Packet::parse(frame, &[]) else {
                seeds.push(frame.clone());
                continue;
            };
            let ip = if packet.vlan.is_some() { 18 } else { 14 };
            let udp = ip + packet.ip.header_len();
            let bth = udp + 8;
            let mut seed = match entry {
                "packet" | "ethernet" => frame.clone(),
                "vlan" => frame[14..].to_vec(),
                "ipv4" | "ipv6" => frame[ip..].to_vec(),
                "icrc" => frame[ip..frame.len() - 4].to_vec(),
                "udp" => frame[udp..].to_vec(),
                "bth" => frame[bth..].to_vec(),
                "mac" => packet.ethernet.src.to_string().into_bytes(),
                "mad" | "cm" | "ip_cm" => {
                    let mad = packet.payload.first;
                    let skip = if entry == "ip_cm" { 24 + 140 } else { 0 };
                    mad.get(skip..).unwrap_or_default().to_vec()
                }
                _ => frame[bth + 12..].to_vec(),
            };
            match entry {
                "packet" => seed.insert(0, 0xff),
                "icrc" => seed.insert(0, 7),
                "ext" => seed.insert(0, packet.bth.opcode.0),
                _ => {}
            }
            seeds.push(seed);
        }
    }
    seeds.push(Vec::new());
    seeds
}

/// Flow-control frames; the captures contain none.
fn flow_control() -> Vec<Vec<u8>> {
    let controls = [
        FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, 0xffff, 0, 0, 0, 0] },
        FlowControl::Pfc { enabled: 0xff, quanta: [0; 8] },
        FlowControl::Pause { quanta: 0x1234 },
    ];
    let frame = |control| FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control }.to_bytes();
    controls.map(|control| [&[0][..], &frame(control)].concat()).into()
}

fn mutate(random: &mut Random, input: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(8) {
            0 => input.truncate(at),
            1 => input.insert(at, random.byte()),
            2 => input.extend_from_within(at..),
            // A split offset for the entries that take one; ordinary input for the others.
            3 if !input.is_empty() => input[0] = random.byte(),
            _ if at < input.len() => input[at] = random.byte(),
            _ => {}
        }
    }
}

/// Repairs the header checksum of an untagged IPv4 frame, so that more mutants get past it.
fn repair_checksum(input: &mut [u8]) {
    let ip_at = 1 + 14;
    let Some(Ok(mut ip)) = input.get(ip_at..).map(Ipv4Header::parse) else {
        return;
    };
    ip.checksum = ip.computed_checksum();
    ip.write(&mut input[ip_at..]);
}

#[test]
fn entries_accept_a_mutated_seeded_corpus() {
    for (index, (name, entry)) in (1..).zip(entries::ENTRIES) {
        let corpus = corpus(name);
        corpus.iter().for_each(|input| entry(input));
        let mut random = Random(0x9e37_79b9_7f4a_7c15 + index);
        for _ in 0..ROUNDS {
            let mut input = corpus[random.below(corpus.len())].clone();
            mutate(&mut random, &mut input);
            if *name == "packet" {
                repair_checksum(&mut input);
            }
            entry(&input);
        }
    }
}

/// The table of entries, the target files and the manifest name the same targets.
#[test]
fn every_entry_is_a_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/fuzz");
    let entries: BTreeSet<String> =
        entries::ENTRIES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let files: BTreeSet<String> = fs::read_dir(fuzz.join("fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(entries, files);
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for name in entries {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
    }
}

/// Not a check: writes the corpus into the folder of cargo-fuzz, so that a fuzzer starts from real
/// frames.
#[test]
#[ignore = "writes files under wire/fuzz/corpus"]
fn write_corpus() {
    for (name, _) in entries::ENTRIES {
        let directory =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/fuzz/corpus").join(name);
        fs::create_dir_all(&directory).unwrap();
        for (index, input) in corpus(name).iter().enumerate() {
            fs::write(directory.join(format!("seed-{index:03}")), input).unwrap();
        }
    }
}
