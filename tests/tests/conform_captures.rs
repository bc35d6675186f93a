//! The verdict on every capture of the tree: its findings, which follow from how it was made, and
//! the quirks of the stacks that sent it.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use feroce_conform::check::{Checker, Filter, Report};
use feroce_conform::rules::{RULES, RuleId, Severity};
use feroce_conform::trace::Trace;
use feroce_pfc_tools::capture::Capture;
use feroce_tests::captured::read;
use feroce_tests::conform_fuzz::seal;

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join(file)
}

fn checked(files: &[&str]) -> Report {
    let files: Vec<_> = files.iter().map(|file| path(file)).collect();
    let mut trace = Trace::open(&files).expect("captures");
    let (report, ended) = Checker::new(Filter::default(), true).check(&mut trace);
    ended.expect("read to the end");
    report
}

/// The findings of the wanted severities as `RULE n, RULE n`.
fn verdict(report: &Report, is_wanted: impl Fn(Severity) -> bool) -> String {
    let counts = report.findings.by_rule().into_iter();
    let wanted = counts.filter(|(rule, _)| is_wanted(rule.rule().severity));
    let words: Vec<_> =
        wanted.map(|(rule, count)| format!("{} {count}", rule.rule().name)).collect();
    words.join(", ")
}

/// Captures with findings. All others have none.
///
/// The counts were verified independently: from gaps in PSNs, from gaps in rxe's IPv4
/// identification, which counts up, and, for pairs of captures, from the packets that only one side
/// has.
///
/// * `loss_netemA_readresp`: 97 responses are lost in 91 stretches; one stretch is at the start of
///   a retransmission (packet 993). One more response was lost ahead of packet 431, the last
///   response to a burst; only the identification shows it.
/// * `loss_netemB_write`: 97 gaps in 1871 requests, 5.2 %. One more request was lost ahead of
///   packet 472, the last of a retransmission that stopped there; only the identification shows it.
/// * `loss_nft_atomic`: the bridge dropped 6 requests and 4 responses. B reacts to three of the
///   lost responses as soon as a later response arrives, within half a millisecond (packets 158,
///   209, 357 of side A). The fourth costs a timeout. Side B shows three gaps in the responses, and
///   the timeout.
/// * `loss_nft_send_1024`, `loss_nft_write_1024`: 76 and 65 requests were dropped. Side A shows all
///   of them but one (PSN 0xcec9c4, the last of a retransmission that stopped there: packet 858 of
///   side B, where 840 and 841 of side A are adjacent). Side B shows the NAKs of A, 29 each. PSN
///   0xceca8f was lost twice, in packets 1807 and 1857 of side B, but was NAKed once: packet 1986
///   is sent after a timeout. One ACK was dropped (PSN 0xcec9c3); the next ACK covers it.
/// * `reorder_netemB_send`: 995 requests arrive after others with a later identification. None is
///   missing before the last 20 ms.
/// * `rnr_send_bw`: 39 RNR NAKs. B reads them up to 98 ms late and restarts at the PSN that they
///   name, although A has acknowledged it since (packets 1460 to 3645). Nothing was lost.
const FINDINGS: &[(&str, &str)] = &[
    ("rxe/cmtime_v4.pcap.zst", "CM-REJECTED 20"),
    ("rxe/loss_netemA_readresp.pcap.zst", "FAB-RESPONSE-LOSS 91"),
    ("rxe/loss_netemB_write.pcap.zst", "FAB-LOSS 97"),
    ("rxe/loss_nft_atomic.tapA.pcap.zst", "FAB-LOSS 6, FAB-ACK-LOSS 4"),
    ("rxe/loss_nft_atomic.tapB.pcap.zst", "REQ-TIMEOUT 1, FAB-LOSS-BEYOND 6, FAB-RESPONSE-LOSS 3"),
    ("rxe/loss_nft_send_1024.tapA.pcap.zst", "FAB-LOSS 76"),
    ("rxe/loss_nft_send_1024.tapB.pcap.zst", "FAB-LOSS-BEYOND 29"),
    ("rxe/loss_nft_write_1024.tapA.pcap.zst", "FAB-LOSS 64"),
    ("rxe/loss_nft_write_1024.tapB.pcap.zst", "REQ-TIMEOUT 1, FAB-LOSS-BEYOND 29"),
    ("rxe/ops_bad_rkey_atomic.pcap.zst", "FAIL-ACCESS 1"),
    ("rxe/ops_bad_rkey_read.pcap.zst", "FAIL-ACCESS 1"),
    ("rxe/ops_bad_rkey_write.pcap.zst", "FAIL-ACCESS 1"),
    ("rxe/ops_oob_read.pcap.zst", "FAIL-ACCESS 1"),
    ("rxe/ops_psn_mismatch.pcap.zst", "REQ-TIMEOUT 133, FAIL-PSN 1"),
    ("rxe/ops_retry_exhaust.pcap.zst", "REQ-TIMEOUT 3, FAIL-RETRY 1"),
    ("rxe/ops_rnr_exhaust.pcap.zst", "RSP-RNR 3, FAIL-RNR 1"),
    ("rxe/ops_rnr_late.pcap.zst", "RSP-RNR 26"),
    ("rxe/ops_ro_write.pcap.zst", "FAIL-ACCESS 1"),
    ("rxe/ops_rx_short.pcap.zst", "FAIL-OPERATION 1"),
    ("rxe/ops_send_inv.pcap.zst", "FAIL-ACCESS 1"),
    ("rxe/reorder_netemB_send.pcap.zst", "FAB-REORDER 995"),
    ("rxe/rnr_send_bw.pcap.zst", "RSP-RNR 39"),
    ("rxe/rping_reject.pcap.zst", "CM-REJECTED 1"),
];

/// Captures with quirks other than MigReq 0, which every capture of rxe has.
///
/// `rc_pingpong_v4_2048` is clean: A pauses for 163 ms, B retransmits packets 531 to 535 after 40
/// ms (packet 536) and after another 68 ms (packet 541), and then each of the ten copies is
/// acknowledged individually (packets 546 to 556), so all of them arrived.
const QUIRKS: &[(&str, &str)] = &[
    ("hardware/huawei_hiroce_oferby_proxy.pcap", "QUIRK-PORT, QUIRK-IPV4-ID-0, QUIRK-RESERVED"),
    ("hardware/native_ib_wireshark_sample_infiniband.pcap", "QUIRK-MULTICAST-ICRC"),
    ("rxe/ops_psn_mismatch.pcap.zst", "QUIRK-ACK-BEFORE-FIRST, QUIRK-RETRY-FOREVER"),
    ("rxe/ops_rnr_late.pcap.zst", "QUIRK-NAK-BEHIND-RNR, QUIRK-EARLY-RETRY"),
    ("rxe/rc_pingpong_events.pcap.zst", "QUIRK-EARLY-RETRY"),
    ("rxe/rc_pingpong_v4_1024.pcap.zst", "QUIRK-EARLY-RETRY"),
    ("rxe/rc_pingpong_v4_2048.pcap.zst", "QUIRK-EARLY-RETRY"),
    ("rxe/rc_pingpong_v4_256.pcap.zst", "QUIRK-EARLY-RETRY"),
    ("rxe/rc_pingpong_v6_1024.pcap.zst", "QUIRK-EARLY-RETRY"),
    ("rxe/rnr_send_bw.pcap.zst", "QUIRK-NAK-BEHIND-RNR"),
    ("rxe/send_lat_v4.pcap.zst", "QUIRK-EARLY-RETRY"),
    ("rxe/write_lat_v4.pcap.zst", "QUIRK-EARLY-RETRY"),
];

fn captures() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["hardware", "rxe", "softroce-public"] {
        for entry in std::fs::read_dir(path(folder)).expect(folder) {
            let name = entry.expect(folder).file_name().into_string().expect("plain names");
            names.push(format!("{folder}/{name}"));
        }
    }
    names.sort();
    names
}

#[test]
fn every_capture_has_its_verdict() {
    let mut wrong = Vec::new();
    for name in captures() {
        let report = checked(&[&name]);
        assert!(report.packets > 0, "{name}");
        let expected = FINDINGS.iter().find(|row| row.0 == name).map_or("", |row| row.1);
        let found = verdict(&report, |severity| severity.counts());
        if found != expected {
            wrong.push(format!("{name}: expected {expected:?}, found {found:?}"));
        }
        let expected = QUIRKS.iter().find(|row| row.0 == name).map_or("", |row| row.1);
        let quirks =
            report.findings.by_rule().into_keys().filter(|rule| {
                rule.rule().severity == Severity::Quirk && *rule != RuleId::QuirkMigReq
            });
        let found = quirks.map(|rule| rule.rule().name).collect::<Vec<_>>().join(", ");
        if found != expected {
            wrong.push(format!("{name}: expected quirks {expected:?}, found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Frames that the bridge dropped are in the capture of one side only.
#[test]
fn losses_between_two_capture_points_are_found() {
    // The expected numbers are the bridge's drop counters.
    for (both, expected) in pairs().iter().zip([10, 76, 66]) {
        let report = checked(&both.each_ref().map(String::as_str));
        assert_eq!(report.findings.by_rule().get(&RuleId::Between), Some(&expected), "{both:?}");
    }
}

/// The pairs of captures of one exchange at two points: the names of both files.
fn pairs() -> Vec<[String; 2]> {
    let all = captures();
    let second = |first: &String| first.replace(".tapA.", ".tapB.");
    let firsts = all.iter().filter(|name| name.contains(".tapA."));
    let pairs: Vec<_> = firsts.map(|first| [first.clone(), second(first)]).collect();
    assert_eq!(pairs.len() * 2, all.iter().filter(|name| name.contains(".tap")).count());
    pairs
}

/// A capture in memory, with the IPv4 identifications or without.
fn in_memory(file: &str, has_ids: bool) -> Capture {
    const IDENTIFICATION: std::ops::Range<usize> = 18..20;
    let mut out: Vec<u8> = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 1 << 18, 1]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    for mut frame in read(&path(file)) {
        if !has_ids {
            frame.bytes[IDENTIFICATION].fill(0);
            seal(&mut frame.bytes).expect("a whole frame over IPv4");
        }
        let (seconds, nanos) = (frame.at / 1_000_000_000, frame.at % 1_000_000_000);
        let words = [seconds, nanos].map(|word| u32::try_from(word).expect("32 bits"));
        let lengths = [frame.bytes.len(); 2].map(|len| u32::try_from(len).expect("short"));
        out.extend([words, lengths].concat().into_iter().flat_map(u32::to_le_bytes));
        out.extend(frame.bytes);
    }
    let source = Box::new(Cursor::new(out));
    Capture::of_source_within(Path::new(file), source, u64::MAX).expect("a pcap")
}

/// The findings of captures: rule, number of the file, number of the packet.
fn findings_in(captures: Vec<Capture>) -> Vec<(RuleId, u16, u64)> {
    let mut trace = Trace::of(captures).expect("captures");
    let (report, ended) = Checker::new(Filter::default(), false).check(&mut trace);
    ended.expect("read to the end");
    let all = report.findings.detailed().iter();
    let mut found: Vec<_> = all.map(|one| (one.rule, one.packet.file, one.packet.number)).collect();
    found.sort_unstable();
    found
}

/// Each of two capture points says the same together with the other and alone, with IPv4
/// identifications and without, finding by finding. Neither calls a packet late that the other
/// calls lost, and the losses that the first one sees are packets that only the other one has.
#[test]
fn two_capture_points_agree() {
    for files in pairs() {
        for has_ids in [true, false] {
            let alone = |at: usize| findings_in(vec![in_memory(&files[at], has_ids)]);
            let second = alone(1).into_iter().map(|(rule, _, number)| (rule, 1, number));
            let mut sum: Vec<_> = alone(0).into_iter().chain(second).collect();
            sum.sort_unstable();
            let both = findings_in(files.iter().map(|file| in_memory(file, has_ids)).collect());
            let is_between = |one: &&(RuleId, u16, u64)| one.0 == RuleId::Between;
            let (between, both): (Vec<_>, Vec<_>) =
                both.into_iter().partition(|one| is_between(&one));
            assert_eq!(both, sum, "{files:?}, IDs {has_ids}");
            let count = |rule: RuleId| both.iter().filter(|one| one.0 == rule).count();
            assert_eq!(count(RuleId::Reorder), 0, "{files:?}, IDs {has_ids}: {both:?}");
            let losses = count(RuleId::Loss);
            assert!(
                (1..=between.len()).contains(&losses),
                "{files:?}, IDs {has_ids}: {losses} of {} losses",
                between.len()
            );
        }
    }
}

/// The report explains why a connection failed in one sentence that names the packet.
#[test]
fn failures_are_explained() {
    let rows = [
        (
            "rxe/ops_retry_exhaust.pcap.zst",
            "was sent 4 times (first in packet 1, last in packet 10)",
        ),
        ("rxe/ops_rnr_exhaust.pcap.zst", "no receive was ever posted for PSN 0x000100"),
        ("rxe/ops_bad_rkey_write.pcap.zst", "refuses PSN 0x000103 with a remote access error"),
        ("rxe/ops_psn_mismatch.pcap.zst", "expects a later PSN than the requester starts with"),
    ];
    for (file, expected) in rows {
        let report = checked(&[file]);
        let failure = (0..).zip(report.flows.all()).find_map(|(flow, _)| report.failure(flow));
        let sentence = &failure.unwrap_or_else(|| panic!("{file}: no failure")).sentence;
        assert!(sentence.contains(expected), "{file}: {sentence}");
        let page = feroce_conform::report::html(&report);
        assert!(
            page.contains("Why it failed")
                && page.contains("class=\"graph\"")
                && page.contains("class=\"ladder\""),
            "{file}"
        );
        assert!(
            !page.replace("http://www.w3.org/2000/svg", "").contains("http"),
            "the page loads nothing"
        );
    }
}

/// Each rule is found by its name, and the source locations that it cites exist.
#[test]
fn the_source_locations_of_the_rules_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for rule in RULES {
        assert_eq!(RuleId::named(rule.name), Some(rule.id), "{}", rule.name);
        for place in [rule.engine, rule.proof].into_iter().flatten() {
            let text = std::fs::read_to_string(root.join(place.file)).expect(place.file);
            assert!(
                text.contains(place.word),
                "{}: {} has no {}",
                rule.name,
                place.file,
                place.word
            );
        }
    }
}
