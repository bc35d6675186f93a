//! `feroce-pfc` as people run it: captures of each kind, bad input of each kind, and what goes through a pair of interfaces. The latter needs root.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, TsResolution};
use serde_json::Value;

const SRC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

fn pfc(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feroce-pfc")).args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fr-pfc-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// Pauses of priority 3 for 1000 quanta, one each millisecond, and an XON half a millisecond behind the last.
fn frames() -> Vec<(Duration, [u8; 60])> {
    let frame = |quanta| {
        let control = FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, quanta, 0, 0, 0, 0] };
        FlowControlFrame { src: SRC, control }.to_bytes()
    };
    let begin = Duration::from_secs(1_700_000_000);
    let pauses = (0..10).map(|n| (begin + Duration::from_millis(n), frame(1000)));
    pauses.chain([(begin + Duration::from_micros(9500), frame(0))]).collect()
}

fn pcap(endianness: Endianness, ts_resolution: TsResolution, datalink: DataLink) -> Vec<u8> {
    let header = PcapHeader { endianness, ts_resolution, datalink, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (at, bytes) in frames() {
        writer.write_packet(&PcapPacket::new(at, 60, &bytes)).unwrap();
    }
    writer.into_writer()
}

/// Ticks of a nanosecond if `resolution` is 9, of a microsecond if it is 6.
fn pcapng(endianness: Endianness, resolution: u8, linktype: DataLink) -> Vec<u8> {
    let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
    let options = vec![InterfaceDescriptionOption::IfTsResol(resolution)];
    writer.write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen: 0, options }).unwrap();
    for (at, bytes) in frames() {
        let ticks = at.as_nanos() / if resolution == 9 { 1 } else { 1000 };
        // The writer takes ticks for nanoseconds, as the reader does.
        let timestamp = Duration::from_nanos(ticks.try_into().unwrap());
        let data = (&bytes[..]).into();
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp,
            original_len: 60,
            data,
            options: Vec::new(),
        };
        writer.write_pcapng_block(block).unwrap();
    }
    writer.into_inner()
}

fn summary(output: &Output) -> Value {
    let text = text(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("{output:?}"));
    serde_json::from_str::<Value>(last).unwrap()["summary"].clone()
}

#[test]
fn captures_of_each_kind_say_the_same() {
    let folder = Folder::new("kinds");
    let both = [Endianness::Little, Endianness::Big];
    let mut captures = Vec::new();
    for endianness in both {
        for resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            captures.push(pcap(endianness, resolution, DataLink::ETHERNET));
        }
        for resolution in [6, 9] {
            captures.push(pcapng(endianness, resolution, DataLink::ETHERNET));
        }
    }
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let packed = |bytes: &[u8]| ruzstd::encoding::compress_to_vec(bytes, level);
    captures.push(packed(&captures[0]));
    // Two frames of zstd, and one that is to be skipped between.
    let (head, tail) = captures[0].split_at(300);
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    captures.push([packed(head), skipped.to_vec(), packed(tail)].concat());
    // The word of the link type says that frames have check sequences of 4 bytes.
    let mut with_fcs = captures[0].clone();
    with_fcs[23] = 0x24;
    captures.push(with_fcs);
    for (n, capture) in captures.iter().enumerate() {
        let file = folder.file(&format!("{n}"), capture);
        let output = pfc(&["decode", &file, "--rate", "1G", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{n}: {output:?}");
        let summary = summary(&output);
        // 1000 quanta at 1 Gb/s are 512 us, which each of nine pauses takes; the last one has 500 us.
        let priority = &summary["senders"][0]["priorities"]["3"];
        assert_eq!(priority["paused_ns"], 9 * 512_000 + 500_000, "{n}: {summary}");
        assert_eq!(summary["duration_ns"], 9_500_000, "{n}");
        assert_eq!(
            (&priority["xoff"], &priority["xon"], &priority["expired"]),
            (&10.into(), &1.into(), &9.into())
        );
    }
}

#[test]
fn bad_input_gets_one_line_and_exit_code_2() {
    let folder = Folder::new("bad");
    let good = pcap(Endianness::Little, TsResolution::MicroSecond, DataLink::ETHERNET);
    let loopback = pcap(Endianness::Little, TsResolution::MicroSecond, DataLink::NULL);
    let raw = pcapng(Endianness::Little, 6, DataLink::RAW);
    let cut = folder.file("cut", &good[..good.len() - 20]);
    let whole = folder.file("whole", &good);
    let empty = folder.file("empty", &[]);
    let junk = folder.file("junk", &[0x55; 4000]);
    let [loopback, raw] =
        [("loopback", loopback), ("raw", raw)].map(|(name, bytes)| folder.file(name, &bytes));
    let none = folder.path("none");
    let packed = ruzstd::encoding::compress_to_vec(
        good.as_slice(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    let cut_zstd = folder.file("zstd", &packed[..packed.len() - 20]);
    let rows: [(&[&str], &str); 17] = [
        (&["decode", &cut], "is cut off behind its frame 10"),
        (&["decode", &cut_zstd], "is cut off"),
        (&["decode", &whole, "--html", "/proc/none"], "cannot write /proc/none"),
        (&["decode", &empty], "no capture"),
        (&["decode", &junk], "no capture"),
        (&["decode", &loopback], "link of type"),
        (&["decode", &raw], "link of type"),
        (&["decode", &none], "No such file"),
        (&["watch", "fr-none0"], "no interface 'fr-none0'"),
        (&["send", "frame", "fr-none0", "--src", "02:00:00:00:00:01"], "no interface 'fr-none0'"),
        (
            &["send", "frame", "--pause", "--malformed", "vector", "--pcap", &none],
            "no class enable vector",
        ),
        (&["send", "xon", "--pcap", "/proc/none"], "cannot write /proc/none"),
        (&["send", "xon", "--pcap", "/dev/full"], "cannot write /dev/full"),
        (
            &["send", "frame", "--pcap", &none, "--count", "36001", "--per-second", "10"],
            "3600 s is the most",
        ),
        (&["send", "sweep", "--pcap", &none, "--each", "901s"], "3600 s is the most"),
        (&["plan", "--rate", "100G", "--mtu", "9500"], "--mtu 9500 is larger"),
        (&["plan", "--rate", "7G"], "7000 Mb/s"),
    ];
    for (arguments, due) in rows {
        let output = pfc(arguments);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(due) && told.lines().count() == 1, "{arguments:?}: {told}");
    }
    // What comes ahead of the fault is shown.
    let summary = summary(&pfc(&["decode", &cut, "--json"]));
    assert_eq!(summary["frames"]["pfc"], 10);
    for arguments in
        [&["decode"][..], &["plan"], &["send", "storm", "eth0"], &["plan", "--rate", "fast"]]
    {
        assert_eq!(pfc(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn without_privilege_one_line_says_so() {
    let Some(pair) = Pair::new("poor") else { return };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &pair.0, "setpriv", "--bounding-set=-all"]);
    command.args([env!("CARGO_BIN_EXE_feroce-pfc"), "watch", "v0"]);
    let output = command.output().expect("ip");
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.lines().count() == 1 && told.contains("no permission"), "{told}");
}

#[test]
fn what_is_sent_is_decoded_and_wrong_frames_are_named() {
    let folder = Folder::new("sent");
    let file = folder.path("x.pcap");
    let storm = [
        "send",
        "storm",
        "--pcap",
        &file,
        "--for",
        "100ms",
        "--per-second",
        "1000",
        "--priorities",
        "3,4",
    ];
    assert_eq!(pfc(&storm).status.code(), Some(0));
    let output = pfc(&["decode", &file, "--rate", "100G", "--frames", "none", "--json"]);
    let figures = summary(&output);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        (&figures["frames"]["pfc"], &figures["duration_ns"]),
        (&101.into(), &100_000_000.into())
    );
    for kind in ["destination", "tagged", "opcode", "vector", "padding", "short", "long"] {
        let send = ["send", "frame", "--pcap", &file, "--malformed", kind];
        assert_eq!(pfc(&send).status.code(), Some(0));
        let html = folder.path("x.html");
        let output = pfc(&["decode", &file, "--rate", "100G", "--json", "--html", &html]);
        assert_eq!(output.status.code(), Some(1), "{kind}: findings");
        assert_eq!(summary(&output)["findings"][kind], 1, "{kind}");
        assert!(fs::read_to_string(html).unwrap().contains(kind));
    }
}

/// A namespace with a pair of interfaces, which goes with the test.
struct Pair(String);

impl Pair {
    fn new(name: &str) -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return None;
        }
        let pair = Self(format!("fr-pfc-{}-{name}", std::process::id()));
        run(&format!("ip netns add {}", pair.0));
        run(&format!(
            "ip -n {} link add v0 address 02:00:00:00:00:0a type veth peer name v1",
            pair.0
        ));
        run(&format!("ip -n {} link set v0 up", pair.0));
        run(&format!("ip -n {} link set v1 up", pair.0));
        Some(pair)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, env!("CARGO_BIN_EXE_feroce-pfc")]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _told = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().expect(command);
    assert!(status.success(), "{command}");
}

#[test]
fn a_watcher_sees_a_storm_that_ends_by_itself() {
    let Some(pair) = Pair::new("storm") else { return };
    let watch = ["watch", "v1", "--rate", "10M", "--interval", "500ms", "--json"];
    let watcher = pair.command(&watch).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    let storm =
        ["send", "storm", "v0", "--for", "500ms", "--per-second", "1000", "--priorities", "3"];
    let storm = pair.command(&storm).output().unwrap();
    assert_eq!(storm.status.code(), Some(0), "{storm:?}");
    let told = text(&storm.stdout);
    assert!(
        told.contains("500 of 500 frames") && told.contains("ended by itself; XON sent"),
        "{told}"
    );
    pair.command(&["send", "frame", "v0", "--malformed", "padding"]).output().unwrap();
    kill(Pid::from_raw(watcher.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = watcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "a wrong frame was seen: {output:?}");
    let figures = summary(&output);
    let priority = &figures["senders"][0]["priorities"]["3"];
    assert_eq!((&priority["xoff"], &priority["xon"]), (&501.into(), &1.into()), "{figures}");
    assert_eq!(figures["senders"][0]["mac"], "02:00:00:00:00:0a");
    assert_eq!(figures["findings"]["padding"], 1);
    // 65535 quanta at 10 Mb/s are 3.4 s: nothing ends until the XON, however late a busy machine sends.
    let longest = priority["longest_ns"].as_u64().unwrap();
    assert!((400_000_000..30_000_000_000).contains(&longest), "{figures}");
}

#[test]
fn a_storm_that_is_stopped_lets_go() {
    let Some(pair) = Pair::new("stop") else { return };
    let watcher = pair.command(&["watch", "v1", "--rate", "10G", "--json"]).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    let storm =
        pair.command(&["send", "storm", "v0", "--for", "3600s", "--priorities", "5"]).spawn();
    let storm = storm.unwrap();
    thread::sleep(Duration::from_millis(500));
    kill(Pid::from_raw(storm.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let output = storm.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("stopped by a signal; XON sent"), "{output:?}");
    kill(Pid::from_raw(watcher.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let figures = summary(&watcher.wait_with_output().unwrap());
    let priority = &figures["senders"][0]["priorities"]["5"];
    assert_eq!((&priority["xon"], &priority["is_paused"]), (&1.into(), &false.into()), "{figures}");
}
