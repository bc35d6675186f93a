//! `feroce conform inject --for`: endpoints that nobody controls, whose settings are unknown, or
//! known from the messages that set up their connections. Nothing right is called wrong.

use std::time::Duration;

use feroce_conform::inject::checker;
use feroce_conform::inject::connection::{Connection, TimeoutCodes, cm_mad};
use feroce_conform::inject::fabric::Fabric;
use feroce_conform::inject::flows::Flows;
use feroce_conform::inject::injector::{Forwarded, Injector};
use feroce_conform::inject::outcome::{Evidence, Known};
use feroce_conform::inject::play::play;
use feroce_conform::inject::script::Script;
use feroce_conform::inject::trace::{Sent, Side, Trace};
use feroce_tests::capture_list::captures;
use feroce_tests::captured::{Captured, read};
use feroce_wire::cm::CmMessage;
use feroce_wire::{Packet, PathMtu};

/// Ten messages whose only acknowledgement is lost: all are sent again.
const LOST_ACK: &str = "title = 'x'\n[traffic]\nverbs = ['write']\nsize = 100\ncount = 10\n\
                        [[event]]\nfrom = 'responder'\nwhat = 'ack'\nnth = 1\ndo = 'drop'";

/// The catalogue, and scripts for which a relay that joins late needs care.
fn scripts() -> Vec<Script> {
    let mut scripts = Script::catalogue();
    scripts.push(Script::parse("lost-ack-of-ten", LOST_ACK).expect("a script"));
    scripts
}

/// Plays the script with other settings than a script has by default, and as somebody sees it who
/// only stands between the endpoints.
fn observed(script: &Script) -> Evidence {
    let mut other = script.clone();
    other.traffic.mtu = PathMtu::Mtu1024;
    other.traffic.size *= 4;
    other.traffic.timeout = 14;
    other.traffic.rnr_timer = 10;
    let played = play(&other, &mut Fabric::new());
    let evidence = played.unwrap_or_else(|failure| panic!("{}: {failure}", script.name)).evidence;
    let unknown = Known { connection: Connection::default(), from_start: false };
    let until = evidence.trace.sent.last().map_or(0, |sent| sent.at);
    let known = vec![unknown; evidence.trace.flows()];
    Evidence { flows: Vec::new(), counted: [None, None], known, until, ..evidence }
}

/// The findings, except that an event applied to no packet.
fn accusations(script: &Script, evidence: &Evidence) -> Vec<String> {
    let verdicts = checker::check(script, evidence).into_iter();
    let verdicts = verdicts.filter(|verdict| verdict.check != "events-applied");
    let sentences = verdicts.flat_map(|verdict| {
        let of =
            move |finding: checker::Finding| format!("{}: {}", verdict.check, finding.sentence);
        verdict.findings.into_iter().map(of)
    });
    sentences.map(|sentence| format!("{}: {sentence}", script.name)).collect()
}

#[test]
fn endpoints_with_other_settings_are_not_accused() {
    let accused = |script: &Script| accusations(script, &observed(script));
    let found: Vec<_> = scripts().iter().flat_map(accused).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The trace without its first `count` packets.
fn joined_late(mut trace: Trace, count: usize) -> Option<Trace> {
    trace.sent.drain(..count.min(trace.sent.len()));
    trace.arrived.retain(|arrived| arrived.sent >= count);
    trace.arrived.iter_mut().for_each(|arrived| arrived.sent -= count);
    // A flow begins with a request.
    let is_request =
        |sent: &Sent| Packet::parse(&sent.bytes, &[]).is_ok_and(|packet| packet.info.is_request());
    let first = trace.sent.iter().position(is_request)?;
    if first > 0 {
        return joined_late(trace, first);
    }
    for (flow, first) in &mut trace.first_psns {
        let requests = trace.sent.iter().filter(|sent| sent.from == Side::Requester);
        let mut requests = requests.filter(|sent| sent.flow == *flow);
        let packet = Packet::parse(&requests.next()?.bytes, &[]).ok()?;
        *first = packet.bth.psn.value();
    }
    Some(trace)
}

/// A relay that comes between two endpoints at any moment accuses nobody of what it has missed.
#[test]
fn a_relay_that_joins_late_accuses_nobody() {
    let mut found = Vec::new();
    for script in scripts() {
        let whole = observed(&script);
        for count in 1..whole.trace.sent.len().min(14) {
            let Some(trace) = joined_late(whole.trace.clone(), count) else { continue };
            let evidence = Evidence { trace, ..whole.clone() };
            let late = accusations(&script, &evidence);
            found.extend(late.into_iter().map(|line| format!("{line} (without {count} packets)")));
        }
    }
    assert!(found.is_empty(), "{} accusations\n{}", found.len(), found.join("\n"));
}

/// A relay that is removed at any moment accuses nobody of what would have come.
#[test]
fn a_relay_that_leaves_early_accuses_nobody() {
    let mut found = Vec::new();
    for script in scripts() {
        let whole = observed(&script);
        for count in 1..whole.trace.sent.len().min(40) {
            let mut trace = whole.trace.clone();
            let until = trace.sent[count].at;
            trace.sent.truncate(count);
            trace.arrived.retain(|arrived| arrived.sent < count && arrived.at <= until);
            let evidence = Evidence { trace, until, ..whole.clone() };
            let early = accusations(&script, &evidence);
            found.extend(early.into_iter().map(|line| format!("{line} (only {count} packets)")));
        }
    }
    assert!(found.is_empty(), "{} accusations\n{}", found.len(), found.join("\n"));
}

/// What is known is judged: the same traces with a wrong setting are found.
#[test]
fn known_settings_are_judged() {
    let known = |change: fn(&mut Connection)| {
        let mut connection = Connection::default();
        change(&mut connection);
        connection
    };
    let code = TimeoutCodes::exactly;
    let rows = [
        ("drop-write-last", known(|c| c.timeout = Some(TimeoutCodes::exactly(18))), "go-back-n"),
        ("drop-write-last", Connection { timeout: Some(code(10)), ..known(|_| {}) }, "timeout"),
        ("drop-every-response", known(|c| c.retries = Some(1)), "tries"),
        ("rnr-never", known(|c| c.rnr_retries = Some(0)), "tries"),
        ("rnr-late-receive", known(|c| c.rnr_timer = Some(3)), "rnr-naks"),
        ("drop-read-response-before-another", known(|c| c.depth = Some(1)), "read-depth"),
    ];
    for (name, connection, check) in rows {
        let found = Script::catalogue().into_iter().find(|script| script.name == name);
        let script = found.unwrap_or_else(|| panic!("no script {name}"));
        let mut evidence = observed(&script);
        evidence.known[0].connection = connection;
        let found = accusations(&script, &evidence);
        let begin = format!("{name}: {check}: ");
        assert!(found.iter().any(|line| line.starts_with(&begin)), "{check}: {found:?}");
    }
}

/// The relay learns a connection from the REQ and the REP. Values as tshark shows them.
#[test]
fn the_set_up_of_a_connection_is_learned() {
    let frames = read(&captures().join("rxe/rping_v4.pcap.zst"));
    let text = "title = 'x'\n[traffic]\nverbs = ['write']\nsize = 10";
    let script = Script::parse("test", text).expect("a script");
    let mut injector = Injector::new(&script, Flows::learned(2), Duration::ZERO);
    for frame in &frames {
        injector.take(&frame.bytes, frame.at);
    }
    let flows = injector.flows().known().to_vec();
    assert!(flows.iter().all(|flow| flow.known.from_start), "{flows:?}");
    let [active, passive] = [0, 1].map(|index| flows[index].known.connection);
    assert_eq!(active.mtu, Some(PathMtu::Mtu1024));
    assert_eq!((active.retries, passive.retries), (Some(7), Some(7)));
    assert_eq!(passive.timeout, Some(TimeoutCodes::exactly(19)));
    assert_eq!((active.depth, passive.depth), (Some(1), Some(1)));
}

/// Passes the frames of a capture through an injector with one event. Returns, for each frame, the
/// frames that follow from it.
fn passed(event: &str, frames: &[Captured]) -> Vec<Vec<Forwarded>> {
    let head = "title = 'x'\n[traffic]\nverbs = ['write']\nsize = 10\n[[event]]\n";
    let script = Script::parse("test", &format!("{head}{event}")).expect("a script");
    let mut injector = Injector::new(&script, Flows::learned(2), Duration::ZERO);
    let passed = frames.iter().map(|frame| injector.take(&frame.bytes, frame.at)).collect();
    assert_eq!(injector.times_applied(), [1], "{event}");
    passed
}

/// Faults in the set-up of connections: exactly the message that the event names is changed.
#[test]
fn events_apply_to_messages_of_the_cm() {
    let frames = read(&captures().join("rxe/rping_v4.pcap.zst"));
    let message = |bytes: &[u8]| cm_mad(&Packet::parse(bytes, &[]).ok()?).map(|mad| mad.message);
    let is_rep = |bytes: &[u8]| matches!(message(bytes), Some(CmMessage::Rep(_)));
    let reps: Vec<_> = (0..frames.len()).filter(|&at| is_rep(&frames[at].bytes)).collect();
    let rep = reps[0];
    let changed = |event: &str| {
        let passed = passed(event, &frames);
        let differs = |at: &usize| {
            let unchanged = passed[*at].len() == 1
                && passed[*at][0].bytes == frames[*at].bytes
                && passed[*at][0].after.is_zero();
            !unchanged
        };
        ((0..frames.len()).filter(differs).collect::<Vec<_>>(), passed)
    };
    let event = |action: &str| format!("from = 'responder'\nwhat = 'cm-rep'\nnth = 1\n{action}");
    let (at, passed) = changed(&event("do = 'drop'"));
    assert_eq!((at, passed[rep].len()), (vec![rep], 0));
    let (at, passed) = changed(&event("do = 'duplicate'"));
    assert_eq!((at, passed[rep].len()), (vec![rep], 2));
    let (at, passed) = changed(&event("do = 'delay'\ntime = '3s'"));
    assert_eq!((at, passed[rep][0].after), (vec![rep], Duration::from_secs(3)));
    let (at, passed) = changed(&event("do = 'reorder'\ncount = 1"));
    assert_eq!((at.len(), passed[rep].len()), (2, 0));
    let (at, passed) = changed(&event("do = 'wrong-qpn'"));
    assert_eq!(at, [rep]);
    let wrong = &passed[rep][0].bytes;
    assert!(Packet::parse(wrong, &[]).expect("a packet").icrc_valid());
    let (Some(CmMessage::Rep(wrong)), Some(CmMessage::Rep(right))) =
        (message(wrong), message(&frames[rep].bytes))
    else {
        panic!("a REP remains one");
    };
    assert_eq!(wrong.local_qpn.value(), right.local_qpn.value() + 1);
    // The requester is who asks first.
    let (at, _) = changed("from = 'requester'\nwhat = 'cm-req'\nnth = 1\ndo = 'drop'");
    assert!(matches!(message(&frames[at[0]].bytes), Some(CmMessage::Req(_))));
}

/// Each script for the set-up of connections finds its message in what two rxe exchange.
#[test]
fn the_scripts_without_traffic_apply_to_connections_of_the_cm() {
    let frames = read(&captures().join("rxe/rping_v4.pcap.zst"));
    let scripts: Vec<_> =
        Script::built_in().into_iter().filter(|script| !script.has_traffic()).collect();
    assert!(scripts.len() >= 8, "{}", scripts.len());
    for script in scripts {
        let mut injector = Injector::new(&script, Flows::learned(1), Duration::ZERO);
        for frame in &frames {
            injector.take(&frame.bytes, frame.at);
        }
        assert_eq!(injector.times_applied(), [1], "{}", script.name);
    }
}
