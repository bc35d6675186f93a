//! `feroce pfc` on the command line: captures of each format, invalid input of each kind, and a
//! pair of interfaces. The latter needs root.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};
use flate2::Compression;
use flate2::write::GzEncoder;
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
    Command::new(env!("CARGO_BIN_EXE_feroce")).arg("pfc").args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder that is removed at the end of the test.
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

/// Pauses of priority 3 for 1000 quanta, one each millisecond, and an XON half a millisecond after
/// the last.
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

/// Timestamps in nanoseconds if `resolution` is 9, in microseconds if it is 6.
fn pcapng(endianness: Endianness, resolution: u8, linktype: DataLink) -> Vec<u8> {
    let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
    let options = vec![InterfaceDescriptionOption::IfTsResol(resolution)];
    writer.write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen: 0, options }).unwrap();
    for (at, bytes) in frames() {
        let ticks = at.as_nanos() / if resolution == 9 { 1 } else { 1000 };
        // The writer takes timestamps for nanoseconds, as the reader does.
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

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn summary(output: &Output) -> Value {
    let text = text(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("{output:?}"));
    serde_json::from_str::<Value>(last).unwrap()["summary"].clone()
}

#[test]
fn all_capture_formats_give_the_same_result() {
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
    // Two zstd frames, with a skippable frame between them.
    let (head, tail) = captures[0].split_at(300);
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let zstd = [packed(head), skipped.to_vec(), packed(tail)].concat();
    // Two gzip members, as the format allows.
    let gzip = [zipped(head), zipped(tail)].concat();
    captures.extend([zstd, gzip]);
    // The link type word says that frames have check sequences of 4 bytes.
    let mut with_fcs = captures[0].clone();
    with_fcs[23] = 0x24;
    captures.push(with_fcs);
    for (n, capture) in captures.iter().enumerate() {
        let file = folder.file(&format!("{n}"), capture);
        let output = pfc(&["decode", &file, "--rate", "1G", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{n}: {output:?}");
        let summary = summary(&output);
        // 1000 quanta at 1 Gb/s are 512 us: nine pauses last that long, and the last one 500 us.
        let priority = &summary["senders"][0]["priorities"]["3"];
        assert_eq!(priority["paused_ns"], 9 * 512_000 + 500_000, "{n}: {summary}");
        assert_eq!(summary["duration_ns"], 9_500_000, "{n}");
        assert_eq!(
            (&priority["xoff"], &priority["xon"], &priority["expired"]),
            (&10.into(), &1.into(), &9.into())
        );
    }
}

/// Each invalid input gets one line of error message and exit code 2.
fn refused(rows: &[(&[&str], &str)]) {
    for (arguments, due) in rows {
        let output = pfc(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.contains(due) && message.lines().count() == 1, "{arguments:?}: {message}");
    }
}

#[test]
fn invalid_captures_get_one_line_and_exit_code_2() {
    let folder = Folder::new("bad");
    let good = pcap(Endianness::Little, TsResolution::MicroSecond, DataLink::ETHERNET);
    let loopback = pcap(Endianness::Little, TsResolution::MicroSecond, DataLink::NULL);
    let raw = pcapng(Endianness::Little, 6, DataLink::RAW);
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(good.as_slice(), level);
    let gzip = zipped(&good);
    let file = |name, bytes: &[u8]| folder.file(name, bytes);
    let cut = file("cut", &good[..good.len() - 20]);
    let here = folder.0.to_str().unwrap();
    refused(&[
        (&["decode", &cut], "is truncated after frame 10"),
        (&["decode", &file("zst", &zstd[..zstd.len() - 20])], "is truncated"),
        (&["decode", &file("gz", &gzip[..gzip.len() - 20])], "is truncated"),
        (&["decode", &file("whole", &good), "--html", "/proc/none"], "cannot write /proc/none"),
        (&["decode", &file("empty", &[])], "neither pcap nor pcapng"),
        (&["decode", &file("junk", &[0x55; 4000])], "neither pcap nor pcapng"),
        (&["decode", &file("loopback", &loopback)], "link of type"),
        (&["decode", &file("raw", &raw)], "link of type"),
        (&["decode", &folder.path("none")], "No such file"),
        (&["decode", here], "Is a directory"),
    ]);
    // The frames before the error are printed.
    let summary = summary(&pfc(&["decode", &cut, "--json"]));
    assert_eq!(summary["frames"]["pfc"], 10);
    let mut piped = Command::new(env!("CARGO_BIN_EXE_feroce"));
    let piped = piped.args(["pfc", "decode", "-"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!((piped.status.code(), text(&piped.stderr).lines().count()), (Some(2), 1));
}

#[test]
fn other_invalid_input_gets_one_line_and_exit_code_2() {
    let folder = Folder::new("other");
    let scenario = |name, text: &str| folder.file(name, text.as_bytes());
    let none = folder.path("none");
    let here = folder.0.to_str().unwrap();
    let topology = |text: &str| format!("title = \"x\"\nduration = \"1ms\"\n[topology]\n{text}\n");
    let kind = scenario("kind", &topology("kind = \"moebius\""));
    let key = scenario("key", &topology("kind = \"single\"\ncolour = 3"));
    let nodes = "kind = \"explicit\"\nhosts = [\"h1\"]\nswitches = [\"s1\"]\nlinks = [\"h1 - s2\"]";
    let line = scenario("line", &topology(nodes));
    let (empty, junk) = (scenario("empty", ""), folder.file("junk", &[0x55; 4000]));
    refused(&[
        (&["watch", "fr-none0"], "no interface 'fr-none0'"),
        (&["send", "frame", "fr-none0", "--src", "02:00:00:00:00:01"], "no interface 'fr-none0'"),
        (&["watchdog", "fr-none0"], "there is no interface fr-none0"),
        (&["doctor", "fr-none0"], "there is no interface fr-none0"),
        (&["watch", "lo"], "not Ethernet"),
        (&["watchdog", "lo"], "--frames"),
        (
            &["send", "frame", "--pause", "--malformed", "vector", "--pcap", &none],
            "no class enable vector",
        ),
        (&["send", "xon", "--pcap", "/proc/none"], "cannot write /proc/none"),
        (&["send", "xon", "--pcap", "/dev/full"], "cannot write /dev/full"),
        (
            &["send", "frame", "--pcap", &none, "--count", "36001", "--per-second", "10"],
            "the limit is 3600 s",
        ),
        (&["send", "sweep", "--pcap", &none, "--each", "901s"], "the limit is 3600 s"),
        (&["plan", "--rate", "100G", "--mtu", "9500"], "--mtu 9500 is larger"),
        (&["plan", "--rate", "7G"], "7000 Mb/s"),
        (&["deadlock", here], "Is a directory"),
        (&["deadlock", &empty], "`title` is missing"),
        (&["deadlock", &kind], "moebius"),
        (&["deadlock", &key], "unknown key `topology.colour`"),
        (&["deadlock", &line], "`s2` is unknown"),
        (&["deadlock", &junk], "junk:1:"),
        (&["deadlock", "deadlock-ring", "--case", "none"], "there is no case `none`"),
        (&["deadlock", "deadlock-ring", "--set", "topology.rate=fast"], "topology.rate"),
    ]);
    for arguments in
        [&["decode"][..], &["plan"], &["send", "storm", "eth0"], &["plan", "--rate", "fast"]]
    {
        assert_eq!(pfc(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn missing_privileges_get_one_line() {
    let Some(pair) = Pair::new("poor") else { return };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &pair.0, "setpriv", "--bounding-set=-all"]);
    command.args([env!("CARGO_BIN_EXE_feroce"), "pfc", "watch", "v0"]);
    let output = command.output().expect("ip");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.lines().count() == 1 && message.contains("no permission"), "{message}");
}

#[test]
fn a_capture_can_come_from_standard_input() {
    let good = pcap(Endianness::Little, TsResolution::MicroSecond, DataLink::ETHERNET);
    for capture in [zipped(&good), good] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
        command.args(["pfc", "decode", "-", "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut decoder = command.spawn().unwrap();
        decoder.stdin.take().unwrap().write_all(&capture).unwrap();
        let summary = summary(&decoder.wait_with_output().unwrap());
        assert_eq!(
            (&summary["frames"]["pfc"], &summary["read"]["frames"]),
            (&11.into(), &11.into())
        );
    }
}

#[test]
fn sent_frames_are_decoded_and_malformed_ones_named() {
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
        assert_eq!(output.status.code(), Some(3), "{kind}: findings");
        assert_eq!(summary(&output)["findings"][kind], 1, "{kind}");
        assert!(fs::read_to_string(html).unwrap().contains(kind));
    }
}

/// A namespace with a pair of interfaces, removed at the end of the test.
struct Pair(String);

impl Pair {
    fn new(name: &str) -> Option<Self> {
        if !geteuid().is_root() {
            feroce_test_skip::skip("network namespaces need root");
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
        command
            .args(["netns", "exec", &self.0, env!("CARGO_BIN_EXE_feroce"), "pfc"])
            .args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _status = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().expect(command);
    assert!(status.success(), "{command}");
}

/// Starts to watch one end, and sends a storm from the other. Returns the watcher and what the
/// sender said. A busy machine may be late for some of the frames: then all of it again, at most
/// five times.
fn watched_storm(pair: &Pair, picture: &str, record: &str) -> (Child, String) {
    let watch =
        ["watch", "v1", "--rate", "10M", "--interval", "500ms", "--json", "--snapshot", picture];
    let storm =
        ["send", "storm", "v0", "--for", "500ms", "--per-second", "1000", "--record", record];
    for attempt in 1.. {
        let watcher = pair.command(&watch).spawn().unwrap();
        thread::sleep(Duration::from_millis(500));
        let output = pair.command(&storm).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let message = text(&output.stdout);
        if message.contains("500 of 500 frames") || attempt == 5 {
            return (watcher, message);
        }
        kill(Pid::from_raw(watcher.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        watcher.wait_with_output().unwrap();
    }
    unreachable!("it returns after the last attempt")
}

#[test]
fn watch_sees_a_complete_storm() {
    let Some(pair) = Pair::new("storm") else { return };
    let folder = Folder::new("storm");
    let picture = folder.path("x.svg");
    let record = folder.path("sent.pcap");
    let (watcher, message) = watched_storm(&pair, &picture, &record);
    assert!(
        message.contains("500 of 500 frames") && message.contains("complete; XON sent"),
        "{message}"
    );
    pair.command(&["send", "frame", "v0", "--malformed", "padding"]).output().unwrap();
    kill(Pid::from_raw(watcher.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = watcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "a wrong frame was seen: {output:?}");
    let figures = summary(&output);
    let priority = &figures["senders"][0]["priorities"]["3"];
    assert_eq!((&priority["xoff"], &priority["xon"]), (&501.into(), &1.into()), "{figures}");
    assert_eq!(figures["senders"][0]["mac"], "02:00:00:00:00:0a");
    assert_eq!(figures["findings"]["padding"], 1);
    let drawn = fs::read_to_string(picture).unwrap();
    for due in ["<svg ", ">02:00:00:00:00:0a<", ">padding<", ">priority<"] {
        assert!(drawn.contains(due), "{due}: {drawn}");
    }
    // 65535 quanta at 10 Mb/s are 3.4 s: no pause expires before the XON, even if a busy machine
    // sends late.
    let longest = |figures: &Value| {
        let longest = &figures["senders"][0]["priorities"]["3"]["longest_ns"];
        assert!((400_000_000..30_000_000_000).contains(&longest.as_u64().unwrap()), "{figures}");
    };
    longest(&figures);
    let recorded = summary(&pfc(&["decode", &record, "--rate", "10M", "--json"]));
    let priority = &recorded["senders"][0]["priorities"]["3"];
    assert_eq!((&priority["xoff"], &priority["xon"]), (&500.into(), &1.into()), "{recorded}");
    longest(&recorded);
}

#[test]
fn an_interrupted_storm_sends_xon() {
    let Some(pair) = Pair::new("stop") else { return };
    let watcher = pair.command(&["watch", "v1", "--rate", "10G", "--json"]).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    let storm =
        pair.command(&["send", "storm", "v0", "--for", "3600s", "--priorities", "5"]).spawn();
    let storm = storm.unwrap();
    thread::sleep(Duration::from_millis(500));
    kill(Pid::from_raw(storm.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let output = storm.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stdout).contains("stopped by a signal; XON sent"), "{output:?}");
    kill(Pid::from_raw(watcher.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let figures = summary(&watcher.wait_with_output().unwrap());
    let priority = &figures["senders"][0]["priorities"]["5"];
    assert_eq!((&priority["xon"], &priority["is_paused"]), (&1.into(), &false.into()), "{figures}");
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn late_frames_count_from_their_arrival() {
    let Some(pair) = Pair::new("late") else { return };
    let watcher = pair.command(&["watch", "v1", "--rate", "1G", "--json"]).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    signal(&watcher, Signal::SIGSTOP);
    // A quantum at 1 Gb/s is 512 ns: every pause is over when the next frame arrives.
    let send = ["send", "frame", "v0", "--quanta", "1", "--count", "5", "--per-second", "50"];
    assert_eq!(pair.command(&send).output().unwrap().status.code(), Some(0));
    thread::sleep(Duration::from_millis(150));
    signal(&watcher, Signal::SIGCONT);
    signal(&watcher, Signal::SIGINT);
    let figures = summary(&watcher.wait_with_output().unwrap());
    let priority = &figures["senders"][0]["priorities"]["3"];
    let found = ["xoff", "refreshed", "expired", "paused_ns"].map(|name| priority[name].as_u64());
    assert_eq!(found, [5, 0, 5, 5 * 512].map(Some), "{figures}");
    assert!(figures["most_behind_ns"].as_u64().unwrap() >= 150_000_000, "{figures}");
}

#[test]
fn a_watchdog_reports_a_storm_runs_commands_and_writes_metrics() {
    let Some(pair) = Pair::new("dog") else { return };
    let folder = Folder::new("dog");
    let [figures, message] = ["figures.prom", "message"].map(|name| folder.path(name));
    // A signal that stops a watchdog also stops its command.
    let command =
        format!("echo $PFC_INTERFACE $PFC_PRIORITY >> {message}; kill $$; echo lives >> {message}");
    let watch = ["watchdog", "v1", "--frames", "--rate", "10M", "--poll", "20ms"];
    let times = ["--detection", "100ms", "--restoration", "100ms", "--prometheus", &figures];
    let commands = ["--on-storm", &command, "--on-restore", &command];
    let dog = pair.command(&[&watch[..], &times, &commands].concat()).spawn().unwrap();
    thread::sleep(Duration::from_millis(300));
    let storm = ["send", "storm", "v0", "--for", "1s", "--per-second", "1000"];
    assert_eq!(pair.command(&storm).output().unwrap().status.code(), Some(0));
    let figure = |name: &str| {
        let text = fs::read_to_string(&figures).unwrap_or_default();
        let name = format!("feroce_pfc_watchdog_{name}{{interface=\"v1\",priority=\"3\"}} ");
        text.lines().find_map(|line| Some(line.strip_prefix(&name)?.to_owned()))
    };
    let lines = || fs::read_to_string(&message).unwrap_or_default();
    let is_over = || figure("storm").as_deref() == Some("0") && lines().lines().count() >= 2;
    for _ in 0..500 {
        if is_over() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    signal(&dog, Signal::SIGTERM);
    let output = dog.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "there was a storm: {output:?}");
    let output_text = text(&output.stdout);
    assert!(
        output_text.contains("v1: priority 3: storm")
            && output_text.contains("v1: priority 3: restored"),
        "{output_text}"
    );
    assert_eq!(figure("storms_total"), figure("restored_total"));
    let frames: u64 = figure("pause_frames_total").unwrap().parse().unwrap();
    assert!((900..=1000).contains(&frames), "{frames}");
    assert!(lines().lines().all(|line| line == "v1 3"), "{}", lines());
    let mut left: Vec<_> =
        fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["figures.prom", "message"]);
}

#[test]
fn link_flaps_and_short_pauses_are_no_storm() {
    let Some(pair) = Pair::new("flap") else { return };
    // Between two frames of the first case the link goes down and up; a frame of the second case
    // pauses for 6.5 ms only.
    for (quanta, flaps) in [("65535", true), ("128", false)] {
        let times =
            ["--poll", "50ms", "--detection", "700ms", "--for", "1200ms", "--prometheus", "-"];
        let watch = ["watchdog", "v1", "--frames", "--rate", "10M"];
        let mut dog = pair.command(&[&watch[..], &times].concat()).spawn().unwrap();
        while dog.try_wait().unwrap().is_none() {
            if flaps {
                run(&format!("ip -n {} link set v0 down", pair.0));
                run(&format!("ip -n {} link set v0 up", pair.0));
            }
            let _refused = pair.command(&["send", "frame", "v0", "--quanta", quanta]).output();
            thread::sleep(Duration::from_millis(20));
        }
        let output = dog.wait_with_output().unwrap();
        let output_text = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{output_text}");
        let frames = output_text.lines().find_map(|line| {
            line.split_once("pause_frames_total{")?.1.split(' ').nth(1)?.parse().ok()
        });
        assert!(frames.is_some_and(|frames: u64| frames >= 5), "{output_text}");
    }
}

#[test]
fn doctor_reports_missing_dcb_and_changes_nothing() {
    let Some(pair) = Pair::new("doctor") else { return };
    let link = || Command::new("ip").args(["-n", &pair.0, "-d", "link"]).output().unwrap().stdout;
    let before = link();
    let output = pair.command(&["doctor", "v0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let output_text = text(&output.stdout);
    assert!(
        output_text.contains("EOPNOTSUPP: driver veth")
            && output_text.contains("ip link set dev v0 mtu"),
        "{output_text}"
    );
    assert_eq!(text(&before), text(&link()));
}
