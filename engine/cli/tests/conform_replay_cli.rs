//! The command line of `feroce conform replay --live` and `--needs`: refused arguments, error
//! messages and output. `conform_replay_live.rs` tests the replay itself.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// RC over IPv4: WRITEs of one packet.
const WRITES: &str = "rxe/write_lat_v4.pcap.zst";
/// RC over IPv6.
const V6: &str = "rxe/rc_pingpong_v6_1024.pcap.zst";
const UC: &str = "rxe/uc_pingpong_v4_1024.pcap.zst";
/// Connection management only.
const NO_QPS: &str = "rxe/cmtime_v4.pcap.zst";
/// A receive is posted late.
const LATE: &str = "rxe/ops_rnr_late.pcap.zst";
/// READs of memory that no request writes.
const READS: &str = "rxe/read_lat_v4.pcap.zst";

fn replay(file: &str, arguments: &[&str]) -> Output {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(file);
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.args(["conform", "replay"]).arg(path).args(arguments).output().expect("feroce runs")
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// An interface that does not exist and an unused address.
const NOWHERE: [&str; 4] = ["--live", "nowhere0", "--peer", "192.0.2.9"];

#[test]
fn wrong_usage_is_refused() {
    for wrong in [
        &["--live", "v0"][..],
        &["--peer", "192.0.2.9"],
        &["--live", "v0", "--peer", "nobody"],
        &["--live", "v0", "--peer", "192.0.2.9", "--role", "requester"],
        &["--live", "v0", "--peer", "192.0.2.9", "--needs"],
        &["--live", "v0", "--peer", "192.0.2.9", "--response-timeout", "0s"],
        &["--live", "v0", "--peer", "192.0.2.9", "--responder", "rxe"],
        &["--live", "v0", "--peer", "192.0.2.9", "--map", "qpn:1"],
        &["--map", "qpn:1=2"],
        &["--namespace", "n"],
        &["--needs", "--role", "requester"],
    ] {
        let output = replay(WRITES, wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}");
    }
}

#[test]
fn an_impossible_replay_is_reported_in_one_line() {
    let qpn = "qpn:0x45=0x11";
    let v6 = ["--live", "nowhere0", "--peer", "2001:db8::9"];
    let refused: [(&str, &[&str], &[&str], &str); 13] = [
        (UC, &NOWHERE, &[], "Uc requests have no responses"),
        (UC, &["--needs"], &[], "Uc requests have no responses"),
        (NO_QPS, &NOWHERE, &[], "it has no RC packets"),
        (NO_QPS, &["--needs"], &[], "it has no RC packets"),
        (WRITES, &v6, &[], "the capture is IPv4, but the peer's address is 2001:db8::9"),
        (V6, &NOWHERE, &[], "the capture is IPv6, but the peer's address is 192.0.2.9"),
        (WRITES, &NOWHERE, &[], "which QP of 192.0.2.9 responds? Map one of the captured QPs"),
        (
            WRITES,
            &NOWHERE,
            &["--map", "mac:06:00:00:00:00:01=06:00:00:00:00:02"],
            "--map mac: and ip: are not allowed",
        ),
        (
            WRITES,
            &NOWHERE,
            &["--map", "ip:10.0.0.1=10.0.0.2"],
            "--map mac: and ip: are not allowed",
        ),
        (WRITES, &NOWHERE, &["--responder", "rxe:n", "--map", "rkey:1=2"], "no --map for them"),
        (WRITES, &NOWHERE, &["--responder", "rxe:n", "--map", "va:1=+2"], "no --map for them"),
        (WRITES, &NOWHERE, &["--responder", "rxe:n"], "nowhere0"),
        (WRITES, &NOWHERE, &["--namespace", "fr-no-such", "--map", qpn], "fr-no-such"),
    ];
    for (file, live, more, why) in refused {
        let arguments = [live, more].concat();
        let output = replay(file, &arguments);
        let line = text_of(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{file} {arguments:?}: {line}");
        assert!(output.stdout.is_empty(), "{file} {arguments:?}");
        assert!(line.lines().count() == 1 && line.starts_with("feroce: "), "{line}");
        assert!(line.contains(why), "{arguments:?}: {line}");
    }
}

fn needs(file: &str) -> Value {
    let output = replay(file, &["--needs", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{file}: {}", text_of(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The fields named in the row of the table in `docs/conform.md` that begins with `of`.
fn documented(of: &str) -> Vec<String> {
    let docs = include_str!("../../../docs/conform.md");
    let start = format!("| {of} | ");
    let row = docs.lines().find_map(|line| line.strip_prefix(&start)).expect(of);
    let mut fields: Vec<_> = row.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    fields.sort();
    fields
}

fn fields(value: &Value) -> Vec<String> {
    let mut fields: Vec<_> = value.as_object().expect("an object").keys().cloned().collect();
    fields.sort();
    fields
}

#[test]
fn needs_lists_memory_to_the_byte() {
    let found = needs(READS);
    assert_eq!(fields(&found[0]), documented("an endpoint"));
    assert_eq!((&found[0]["first_psn"], &found[0]["path_mtu"]), (&0x75_e2e8.into(), &1024.into()));
    let regions = found[0]["regions"].as_array().expect("regions");
    assert!(!regions.is_empty());
    let mut held = 0;
    for region in regions {
        assert_eq!(fields(region), documented("a region"));
        let [start, length] = ["address", "length"].map(|key| region[key].as_u64().expect(key));
        for part in region["holds"].as_array().expect("what it holds") {
            assert_eq!(fields(part), documented("what it holds"));
            let bytes = part["bytes"].as_str().expect("digits").len() as u64 / 2;
            let at = part["address"].as_u64().expect("an address");
            assert!(bytes > 0 && at >= start && at + bytes <= start + length, "{part}");
            held += bytes;
        }
    }
    assert_eq!(held, 64, "the bytes that the READs return");
    let text = text_of(&replay(READS, &["--needs"]).stdout);
    for words in ["a new RC QP", "first expected PSN 0x75e2e8", "remote read", "initially at 0x"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// `--needs` lists receives that must be posted only after an RNR NAK, and changes that the program
/// of `rping` makes to its memory during the exchange.
#[test]
fn needs_lists_what_happens_during_the_exchange() {
    let found = needs(LATE);
    let receives = found[0]["receives"].as_array().expect("receives");
    assert!(receives.iter().all(|receive| fields(receive) == documented("a receive")));
    let after: Vec<_> = receives.iter().map(|receive| receive["after_packet"].as_u64()).collect();
    assert_eq!(after, [Some(208), Some(229)], "the last packet of each that got an RNR NAK");
    let text = text_of(&replay(LATE, &["--needs"]).stdout);
    assert!(text.contains(", not before packet "), "{text}");
    // A message that was retransmitted because it was lost got no RNR NAK.
    let found = needs("rxe/loss_nft_send_1024.tapA.pcap.zst");
    let receives = found[0]["receives"].as_array().expect("receives");
    assert!(receives.len() > 1 && receives.iter().all(|one| one["after_packet"].is_null()));
    let found = needs("rxe/rping_v4.pcap.zst");
    let endpoints = found.as_array().expect("endpoints");
    let changes = endpoints.iter().flat_map(|one| one["changes"].as_array().expect("changes"));
    let all: Vec<_> = changes.collect();
    assert!(!all.is_empty() && all.iter().all(|change| fields(change) == documented("a change")));
}
