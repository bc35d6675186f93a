//! The catalogue of fault scripts, played between two devices in virtual time.
//!
//! Other tests show that the checkers detect errors: a script with a wrong expectation fails, and
//! so does a trace that was altered.

use std::time::Duration;

use feroce_conform::inject::checker::{self, CHECKERS};
use feroce_conform::inject::fabric::Fabric;
use feroce_conform::inject::flows::Flows;
use feroce_conform::inject::injector::Injector;
use feroce_conform::inject::outcome::Evidence;
use feroce_conform::inject::play::{Played, play};
use feroce_conform::inject::scorecard::Item;
use feroce_conform::inject::script::{Cause, Script};
use feroce_conform::inject::trace::{Arrived, Sent, Side, Trace};
use feroce_wire::{Opcode, Operation, Packet, Syndrome};

fn script(name: &str) -> Script {
    let found = Script::catalogue().into_iter().find(|script| script.name == name);
    found.unwrap_or_else(|| panic!("no script {name}"))
}

fn played(script: &Script) -> Played {
    play(script, &mut Fabric::new()).unwrap_or_else(|failure| panic!("{}: {failure}", script.name))
}

/// The names of the checkers with findings.
fn failed_checks(script: &Script, evidence: &Evidence) -> Vec<String> {
    let verdicts = checker::check(script, evidence).into_iter();
    verdicts.filter(|verdict| !verdict.findings.is_empty()).map(|verdict| verdict.check).collect()
}

#[test]
fn every_script_of_the_catalogue_passes() {
    let mut fabric = Fabric::new();
    let mut failed = Vec::new();
    for script in Script::catalogue() {
        let item = Item::new(&script, &play(&script, &mut fabric));
        failed.extend(
            item.complaints()
                .into_iter()
                .map(|(check, finding)| format!("{}: {check}: {finding}", script.name)),
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_same_script_gives_the_same_trace() {
    let script = script("drop-two-packets");
    // Memory addresses are left out: they come from the operating system.
    let lines = || {
        let line = |sent: &Sent| {
            let bth = packet(&sent.bytes).bth;
            format!("{} {} {:?} {:?}", sent.at, sent.from, bth.opcode, bth.psn)
        };
        played(&script).evidence.trace.sent.iter().map(line).collect::<Vec<_>>()
    };
    let (one, other) = (lines(), lines());
    assert!(one.len() > 10);
    assert_eq!(one, other);
}

#[test]
fn a_wrong_expectation_fails() {
    type Change = fn(&mut Script);
    let rows: [(&str, Change, &str); 9] = [
        ("drop-write-middle", |s| s.expect.naks = Some(vec![5]), "nak-generation"),
        ("drop-write-middle", |s| s.expect.back_to = Some(vec![5]), "recovery"),
        ("drop-write-middle", |s| s.expect.back_by = Some(vec![Cause::Timeout]), "recovery"),
        ("drop-write-middle", |s| s.events.clear(), "recovery"),
        ("drop-every-response", |s| s.expect.tries = Some(9), "tries"),
        ("mark-write", |s| s.expect.cnps = Some(2), "cnps"),
        ("rnr-late-receive", |s| s.expect.rnr_naks = Some(99), "rnr-naks"),
        ("wrong-key-write", |s| s.expect.refused = None, "refusal"),
        ("wrong-key-write", |s| s.expect = Default::default(), "completions"),
    ];
    for (name, change, check) in rows {
        let mut script = script(name);
        change(&mut script);
        let found = failed_checks(&script, &played(&script).evidence);
        assert!(found.iter().any(|found| found == check), "{name}, {check}: {found:?}");
    }
}

/// A script fails if no packet matches one of its events.
#[test]
fn an_event_that_no_packet_matches_fails() {
    let text = "title = 'x'\n\
                [traffic]\nverbs = ['write']\nsize = 10\n\
                [[event]]\nfrom = 'requester'\npsn = 5\ndo = 'drop'";
    let script = Script::parse("test", text).expect("a script");
    assert_eq!(failed_checks(&script, &played(&script).evidence), ["events-applied"]);
}

/// An injector that does not know the QP pairs learns them from the packets.
#[test]
fn flows_are_learned_from_packets() {
    for name in ["drop-one-flow-of-two", "drop-in-mixed-operations", "mark-write"] {
        let script = script(name);
        let trace = played(&script).evidence.trace;
        let mut injector = Injector::new(&script, Flows::learned(trace.flows()), Duration::ZERO);
        for sent in &trace.sent {
            injector.take(&sent.bytes, sent.at);
        }
        let learned = injector.into_trace();
        assert!(learned.sent == trace.sent, "{name}: the trace differs");
        assert_eq!(learned.first_psns, trace.first_psns, "{name}");
    }
}

fn packet(bytes: &[u8]) -> Packet<'_> {
    Packet::parse(bytes, &[]).expect("a packet")
}

fn is_nak(bytes: &[u8]) -> bool {
    packet(bytes).ext.aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Nak(_)))
}

fn is_ack(bytes: &[u8]) -> bool {
    let aeth = packet(bytes).ext.aeth;
    packet(bytes).bth.opcode == Opcode::RC_ACKNOWLEDGE
        && aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_)))
}

/// The index of the `nth` packet sent by `side` that `matches`.
fn find(trace: &Trace, side: Side, nth: usize, matches: impl Fn(&[u8]) -> bool) -> usize {
    let found =
        trace.sent.iter().enumerate().filter(|(_, sent)| sent.from == side && matches(&sent.bytes));
    found.map(|(index, _)| index).nth(nth).expect("such a packet")
}

/// Removes the packet, as if it had not been sent.
fn erase(trace: &mut Trace, index: usize) {
    trace.sent.remove(index);
    trace.arrived.retain(|arrived| arrived.sent != index);
    for arrived in &mut trace.arrived {
        arrived.sent -= usize::from(arrived.sent > index);
    }
}

/// Adds a copy of the packet, sent `delay` ns after the original.
fn repeat(trace: &mut Trace, index: usize, delay: u64) {
    let mut again = trace.sent[index].clone();
    again.at += delay;
    let arrived =
        Arrived { at: again.at + 1000, sent: trace.sent.len(), bytes: again.bytes.clone() };
    trace.sent.push(again);
    trace.arrived.push(arrived);
}

/// Changes the packet and recomputes its ICRC.
fn rewrite(trace: &mut Trace, index: usize, change: impl Fn(&mut Packet<'_>)) {
    let changed = |bytes: &[u8]| {
        let mut packet = packet(bytes);
        change(&mut packet);
        let mut out = vec![0; packet.frame_len()];
        packet.emit(&mut out).expect("room");
        let icrc = Packet::parse(&out, &[]).expect("a packet").computed_icrc();
        let end = out.len();
        out[end - 4..].copy_from_slice(&icrc.to_le_bytes());
        out
    };
    trace.sent[index].bytes = changed(&trace.sent[index].bytes);
    for arrived in trace.arrived.iter_mut().filter(|arrived| arrived.sent == index) {
        arrived.bytes = changed(&arrived.bytes);
    }
}

const REQUESTER: Side = Side::Requester;
const RESPONDER: Side = Side::Responder;

/// A checker, a script whose trace it accepts, and a change that it must detect.
type Row = (&'static str, &'static str, fn(&mut Trace));

/// Checks that each row's checker detects the row's change.
fn assert_detected(rows: &[Row]) {
    for (check, name, mutate) in rows {
        let script = script(name);
        let mut evidence = played(&script).evidence;
        assert_eq!(failed_checks(&script, &evidence), Vec::<String>::new(), "{name}");
        mutate(&mut evidence.trace);
        let found = failed_checks(&script, &evidence);
        assert!(found.iter().any(|found| found == check), "{check}, {name}: {found:?}");
    }
}

#[test]
fn errors_of_a_responder_are_found() {
    assert_detected(&[
        ("nak-generation", "drop-write-middle", |t| erase(t, find(t, RESPONDER, 0, is_nak))),
        ("nak-generation", "drop-write-middle", |t| repeat(t, find(t, RESPONDER, 0, is_nak), 1)),
        ("nak-generation", "drop-write-middle", |t| {
            let nak = find(t, RESPONDER, 0, is_nak);
            rewrite(t, nak, |p| p.bth.psn = p.bth.psn.next());
        }),
        ("ack-order", "drop-ack", |t| {
            let ack = find(t, RESPONDER, 1, is_ack);
            rewrite(t, ack, |p| p.bth.psn = p.bth.psn.prev());
        }),
        ("ack-justified", "duplicate-write-last", |t| {
            let ack = find(t, RESPONDER, 0, is_ack);
            rewrite(t, ack, |p| p.bth.psn = p.bth.psn.next());
        }),
        ("msn", "duplicate-write-last", |t| {
            let ack = find(t, RESPONDER, 0, is_ack);
            rewrite(t, ack, |p| {
                if let Some(aeth) = &mut p.ext.aeth {
                    aeth.msn = feroce_wire::Msn::new(aeth.msn.value() + 1);
                }
            });
        }),
        ("duplicates-acknowledged", "duplicate-write-last", |t| {
            while t.sent.iter().any(|sent| sent.from == RESPONDER) {
                erase(t, find(t, RESPONDER, 0, |_| true));
            }
        }),
        ("read-responses", "drop-read-response-middle", |t| {
            let last = find(t, RESPONDER, 9, |_| true);
            repeat(t, last, 50_000_000);
        }),
        ("cnps", "mark-write", |t| {
            erase(t, find(t, RESPONDER, 0, |bytes| packet(bytes).bth.opcode == Opcode::CNP));
        }),
        ("refusal", "wrong-key-write", |t| repeat(t, find(t, RESPONDER, 0, is_nak), 1000)),
    ]);
}

#[test]
fn errors_of_a_requester_are_found() {
    assert_detected(&[
        ("nak-reaction", "drop-write-middle", |t| {
            let missing = t.sent[find(t, RESPONDER, 0, is_nak)].bytes.clone();
            let psn = packet(&missing).bth.psn;
            let again = find(t, REQUESTER, 1, |bytes| packet(bytes).bth.psn == psn);
            erase(t, again);
        }),
        ("go-back-n", "duplicate-write-last", |t| repeat(t, find(t, REQUESTER, 3, |_| true), 5)),
        ("go-back-n", "drop-write-middle", |t| erase(t, find(t, REQUESTER, 6, |_| true))),
        ("read-recovery", "drop-read-response-middle", |t| {
            let again = find(t, REQUESTER, 1, |bytes| {
                packet(bytes).info.operation == Operation::ReadRequest
            });
            rewrite(t, again, |p| {
                if let Some(reth) = &mut p.ext.reth {
                    reth.va += 256;
                }
            });
        }),
        ("rnr-wait", "rnr-late-receive", |t| {
            let nak = find(t, RESPONDER, 0, |bytes| {
                packet(bytes).ext.aeth.is_some_and(|a| matches!(a.syndrome, Syndrome::RnrNak(_)))
            });
            let (at, psn) = (t.sent[nak].at, packet(&t.sent[nak].bytes).bth.psn);
            let again = t.sent.iter().position(|sent| {
                sent.from == REQUESTER && sent.at > at && packet(&sent.bytes).bth.psn == psn
            });
            t.sent[again.expect("sent again")].at = at + 2000;
        }),
        ("timeout", "drop-write-last", |t| {
            let last = t.sent.len() - 1;
            let from = t.sent.iter().position(|sent| sent.at > 1_000_000).unwrap_or(last);
            t.sent[from..].iter_mut().for_each(|sent| sent.at += 4_000_000_000);
            t.arrived.iter_mut().filter(|a| a.sent >= from).for_each(|a| a.at += 4_000_000_000);
        }),
    ]);
}

/// The checkers also use the completions, memory and counters that the endpoints report.
#[test]
fn a_wrong_byte_a_wrong_counter_and_a_missing_completion_are_found() {
    let script = script("drop-write-middle");
    let good = played(&script).evidence;
    let mut bad = good.clone();
    bad.flows[0].wrong_bytes.push("a byte".into());
    assert_eq!(failed_checks(&script, &bad), ["data-intact"]);
    let mut bad = good.clone();
    bad.flows[0].sends.clear();
    assert_eq!(failed_checks(&script, &bad), ["completions"]);
    let mut bad = good;
    *bad.counted[1].as_mut().expect("ours").get_mut("out_of_sequence").expect("counted") += 1;
    assert_eq!(failed_checks(&script, &bad), ["counters"]);
}

/// rxe has its own counter names, and counts one NAK for each gap.
#[test]
fn counters_of_rxe_are_compared_with_the_trace() {
    let script = script("drop-write-middle");
    let mut good = played(&script).evidence;
    let device = |values: &[(&str, u64)]| {
        Some(values.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
    };
    good.counted = [
        device(&[("rcvd_rnr_err", 0), ("rcvd_seq_err", 1), ("out_of_seq_request", 0)]),
        device(&[("duplicate_request", 0), ("out_of_seq_request", 1), ("send_rnr_err", 0)]),
    ];
    assert_eq!(failed_checks(&script, &good), [""; 0]);
    for (side, counted) in [(0, "rcvd_rnr_err"), (0, "rcvd_seq_err"), (1, "out_of_seq_request")] {
        let mut bad = good.clone();
        let device = bad.counted[side].as_mut().expect("a device");
        *device.get_mut(counted).expect("counted") += 1;
        assert_eq!(failed_checks(&script, &bad), ["counters"], "{counted} is wrong");
        let device = bad.counted[side].as_mut().expect("a device");
        device.remove(counted);
        assert_eq!(failed_checks(&script, &bad), ["counters"], "{counted} is missing");
    }
}

#[test]
fn checkers_have_unique_names() {
    let mut names: Vec<_> = CHECKERS.iter().map(|checker| checker.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CHECKERS.len());
}
