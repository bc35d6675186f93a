//! Settings from the file, the environment and the command line, as they reach the packets. Tests
//! that open an interface need root; without root they are skipped with a message.

mod common;

use common::{Pair, Server, TempFile, feroce, json, text};

#[test]
fn the_example_is_a_file_of_the_defaults() {
    let example = text(&feroce("config --example", &[]).stdout);
    let settings: Vec<_> = example.lines().filter_map(|line| line.strip_prefix('#')).collect();
    let settings = settings.iter().filter(|line| !line.is_empty() && !line.starts_with(' '));
    let file = TempFile::new("example.toml", &settings.copied().collect::<Vec<_>>().join("\n"));
    let values = |variables: &[(&str, &str)]| {
        let output = feroce("config --json", variables);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let rows = json(&output);
        let rows = rows.as_array().expect("rows").iter();
        rows.map(|row| (row["setting"].clone(), row["value"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(values(&[("FEROCE_CONFIG", file.path())]), values(&[]));
}

#[test]
fn each_value_shows_its_source() {
    let file = TempFile::new("order.toml", "hop_limit = 9\ncores = 2\nwindow = 64\n");
    let variables = [("FEROCE_CONFIG", file.path()), ("FEROCE_CORES", "3")];
    let output = feroce("config --json --window 128", &variables);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = json(&output);
    let row = |name: &str| {
        let mut rows = rows.as_array().expect("rows").iter();
        let row = rows.find(|row| row["setting"] == name).expect(name);
        (
            row["value"].as_str().expect("text").to_owned(),
            row["from"].as_str().expect("text").to_owned(),
        )
    };
    let expected = |value: &str, from: &str| (value.to_owned(), from.to_owned());
    assert_eq!(row("hop_limit"), expected("9", &format!("{}:1", file.path())));
    assert_eq!(row("cores"), expected("3", "FEROCE_CORES"));
    assert_eq!(row("window"), expected("128", "--window"));
    assert_eq!(row("retry_count"), expected("7", "default"));
    let shown = text(&feroce("config", &variables).stdout);
    assert!(shown.contains("FEROCE_CORES"), "{shown}");
}

#[test]
fn invalid_settings_are_reported_by_every_command_that_reads_them() {
    let file = TempFile::new("bad.toml", "# ours\nack_timeout = 40\n");
    for arguments in ["config", "perf -i none0"] {
        let output = feroce(arguments, &[("FEROCE_CONFIG", file.path())]);
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        let expected = format!("{}:2: `ack_timeout` is `40`, expected 0 to 31", file.path());
        assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
    }
    let output = feroce("config", &[("FEROCE_CONFIG", "/nonexistent.toml")]);
    assert!(text(&output.stderr).contains("/nonexistent.toml"), "{output:?}");
    let output = feroce("config --cores many", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("expected 1 to 64"), "{}", text(&output.stderr));
    let output = feroce("config", &[("FEROCE_WINDWO", "64")]);
    assert_eq!(output.status.code(), Some(0), "it may be another program's");
    assert!(text(&output.stderr).contains("FEROCE_WINDWO is no setting"), "{output:?}");
    let output = feroce("config", &[("FEROCE_ECN", "maybe")]);
    assert!(text(&output.stderr).contains("FEROCE_ECN: `ecn` is `maybe`"), "{output:?}");
}

#[test]
fn every_setting_has_an_option() {
    let help = text(&feroce("config --help", &[]).stdout);
    let doctor = text(&feroce("doctor --help", &[]).stdout);
    let rows = json(&feroce("config --json", &[]));
    for row in rows.as_array().expect("rows") {
        let setting = row["setting"].as_str().expect("text");
        // Options that perftest has, too, have perftest's names.
        let option = match setting {
            // Each subcommand that opens devices has an option for the interface: `feroce run
            // --interface`, and -i.
            "interfaces" | "dpdk_device" => continue,
            "path_mtu" => "--mtu".to_owned(),
            "traffic_class" => "--tclass".to_owned(),
            "ack_timeout" => "--timeout".to_owned(),
            "retry_count" => "--retry".to_owned(),
            other => format!("--{}", other.replace('_', "-")),
        };
        assert!(help.contains(&option) && doctor.contains(&option), "{option}");
    }
    let output = feroce("config --json --tclass 0x6a --user", &[("FEROCE_USER", "nobody")]);
    assert_eq!(output.status.code(), Some(2), "--user takes a name");
}

#[test]
fn settings_reach_the_packets() {
    let Some(pair) = Pair::new() else { return };
    let file =
        TempFile::new("packets.toml", "hop_limit = 7\ntraffic_class = 104\nuser = \"root\"\n");
    let capture = TempFile::new("packets.pcap", "");
    let server = Server::start(&mut pair.feroce(1, "perf -i v1"));
    let arguments =
        format!("perf -i v0 -n 50 -s 4096 --pcap {} --source-port 50001 10.9.0.2", capture.path());
    let mut client = pair.feroce(0, &arguments);
    client
        .env("FEROCE_CONFIG", file.path())
        .env("FEROCE_ECN", "true")
        .env("FEROCE_PATH_MTU", "1024");
    let client = client.output().expect("feroce");
    assert!(client.status.success(), "{}", text(&client.stderr));
    assert!(server.end().status.success());

    let captured = std::fs::read(capture.path()).expect("a capture");
    let sent = sent_by(&captured, [10, 9, 0, 1]);
    assert!(sent.len() > 150, "{} packets", sent.len());
    let mut data = 0;
    for packet in sent {
        let header = |at: usize| u32::from(packet[at]);
        assert_eq!((header(8), header(1) & !3), (7, 104), "TTL, DSCP");
        // The setting `ecn` marks data packets. Traffic class 104 has no ECN bits of its own.
        let is_data = packet.len() > 1000;
        assert_eq!(header(1) & 3, if is_data { 2 } else { 0 }, "ECN");
        data += usize::from(is_data);
        assert_eq!(header(20) << 8 | header(21), 50_001, "UDP source port");
        assert!(packet.len() <= 20 + 8 + 12 + 16 + 1024 + 4, "path MTU");
    }
    assert!(data >= 150, "{data} packets of data");
}

/// The IPv4 packets from `address` in a big-endian pcap file.
fn sent_by(capture: &[u8], address: [u8; 4]) -> Vec<&[u8]> {
    let mut packets = Vec::new();
    let mut rest = &capture[24..];
    while rest.len() > 16 {
        let length = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().expect("four"));
        let frame = &rest[16..16 + length(8) as usize];
        if frame[12..14] == [8, 0] && frame[26..30] == address {
            packets.push(&frame[14..]);
        }
        rest = &rest[16 + length(8) as usize..];
    }
    packets
}
