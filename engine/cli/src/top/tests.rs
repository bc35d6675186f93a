//! Samples, and the views and screens that follow from them.

use feroce_engine::daemon::Limits;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::figures::samples::{daemon, snapshot};
use model::Kind;

const SECOND: u64 = 1_000_000_000;

/// A sample after `seconds`: an embedded program on `eth1` that has received 2000 frames and 3 NAKs
/// per second and retransmitted 5 packets, and a program at the daemon of `eth0`, of which only the
/// daemon serves figures, with 100 frames per second each way.
fn sample(seconds: u64) -> Sample {
    let mut embedded = snapshot(seconds * SECOND, 1000 * seconds, 3 * seconds);
    embedded.interface = "eth1".into();
    embedded.counters.insert("retransmitted_packets".into(), 5 * seconds);
    let daemons = vec![daemon(4711, 100 * seconds)];
    let figures = Figures { programs: vec![embedded], daemons, errors: Vec::new() };
    Sample { nanos: seconds * SECOND, figures }
}

fn sorted(mut view: View, column: &str) -> View {
    sort_by(column).sort(&mut view.rows, false);
    view
}

fn sort_by(column: &str) -> Sort {
    <Sort as clap::ValueEnum>::from_str(column, false).unwrap()
}

#[test]
fn rates_come_from_two_samples() {
    let first = View::between(None, &sample(1));
    assert!(first.rows.iter().all(|row| row.rates.is_none()));
    let view = sorted(View::between(Some(&sample(1)), &sample(3)), "pid");
    let [embedded, at_daemon] = &view.rows[..] else { panic!("{view:?}") };
    let rates = embedded.rates.unwrap();
    assert_eq!((embedded.pid, &*embedded.interface, embedded.qps), (1, "eth1", Some(0)));
    assert_eq!(rates.of(Kind::RxFrames), 2000.0);
    assert_eq!(rates.of(Kind::RxBits), 16e6);
    assert_eq!((rates.of(Kind::Retransmissions), rates.of(Kind::Drops)), (5.0, 0.0));
    assert_eq!(embedded.quota, None);
    let rates = at_daemon.rates.unwrap();
    assert_eq!((at_daemon.pid, at_daemon.user, at_daemon.qps), (4711, 1000, None));
    assert_eq!((rates.of(Kind::TxFrames), rates.of(Kind::TxBits)), (100.0, 800_000.0));
    let interfaces: Vec<_> =
        view.interfaces.iter().map(|it| (&*it.name, it.daemon, it.programs)).collect();
    assert_eq!(interfaces, [("eth0", Some(7), 1), ("eth1", None, 1)]);
    let port = view.interfaces[0].rates.unwrap();
    assert_eq!(port.of(Kind::TxFrames), 200.0, "the port's, not the program's");
}

#[test]
fn a_program_at_a_daemon_has_one_row() {
    let with_own_figures = |seconds: u64| {
        let mut sample = sample(seconds);
        let own = &mut sample.figures.programs[0];
        (own.interface, own.pid, own.user) = ("eth0@4711".into(), 4711, 1000);
        own.qps = 3;
        sample.figures.daemons[0].stat.programs[0].frames.tx_refused = 4 * seconds;
        sample
    };
    let view = View::between(Some(&with_own_figures(1)), &with_own_figures(2));
    let [row] = &view.rows[..] else { panic!("{view:?}") };
    let rates = row.rates.unwrap();
    assert_eq!((row.pid, &*row.interface, row.qps), (4711, "eth0", Some(3)));
    assert_eq!(rates.of(Kind::RxFrames), 2000.0, "the program's own figures");
    assert_eq!(rates.of(Kind::Drops), 4.0, "the daemon knows what it refused");
    assert_eq!((view.interfaces.len(), view.interfaces[0].qps), (1, 3));
    // Only the daemon's figures are left: a difference from the program's own gives no rate.
    let view = View::between(Some(&with_own_figures(1)), &sample(2));
    assert_eq!(view.rows.iter().find(|row| row.pid == 4711).unwrap().rates, None);
}

#[test]
fn counts_of_another_device_give_no_rates() {
    let view = View::between(Some(&sample(5)), &Sample { nanos: 6 * SECOND, ..sample(2) });
    assert!(view.rows.iter().all(|row| row.rates.is_none()), "{view:?}");
}

#[test]
fn the_quota_is_the_largest_share() {
    let quota = |limits: Limits| {
        let mut now = sample(2);
        now.figures.daemons[0].stat.limits = Some(limits);
        let view = View::between(Some(&sample(1)), &now);
        view.rows.iter().find(|row| row.pid == 4711).unwrap().quota.unwrap()
    };
    let default = quota(Limits::default());
    assert_eq!((default.share, default.of), (1.0 / 64.0, "programs"));
    let qps = quota(Limits { qps: 512, ..Limits::default() });
    assert_eq!((qps.share, qps.of), (0.5, "QPs"));
    let packets = quota(Limits { packets: Some(125), ..Limits::default() });
    assert_eq!((packets.share, packets.of), (0.8, "pkt/s"));
    let bytes = quota(Limits { bytes: Some(200_000), ..Limits::default() });
    assert_eq!((bytes.share, bytes.of), (0.5, "bytes/s"));
    let services = quota(Limits { services: 1, ..Limits::default() });
    assert_eq!((services.share, services.of), (1.0, "services"));
}

#[test]
fn rows_are_sorted_by_any_column() {
    let view = View::between(Some(&sample(1)), &sample(2));
    let order = |column: &str, reversed: bool| {
        let mut rows = view.rows.clone();
        sort_by(column).sort(&mut rows, reversed);
        rows.iter().map(|row| row.pid).collect::<Vec<_>>()
    };
    for (column, pids) in [
        ("pid", [1, 4711]),
        ("traffic", [1, 4711]),
        ("tx", [4711, 1]),
        ("retransmissions", [1, 4711]),
        ("quota", [4711, 1]),
        ("interface", [4711, 1]),
        ("program", [4711, 1]),
    ] {
        assert_eq!(order(column, false), pids, "{column}");
        assert_eq!(order(column, true), [pids[1], pids[0]], "{column} reversed");
    }
}

#[test]
fn keys_change_the_choice() {
    let mut choice = Choice { sort: sort_by("pid"), is_reversed: false, scrolled: 0 };
    let mut press = |key| apply(&mut choice, Input::Key(key));
    assert_eq!(press(KeyCode::Char('>')), Some(Next::Redraw));
    assert_eq!(press(KeyCode::Char('r')), Some(Next::Redraw));
    assert_eq!(press(KeyCode::Down), Some(Next::Redraw));
    assert_eq!(press(KeyCode::Char(' ')), Some(Next::Sample));
    assert_eq!(press(KeyCode::Char('x')), None);
    assert_eq!(apply(&mut choice, Input::Quit), Some(Next::Quit));
    assert_eq!((choice.sort.column().name, choice.is_reversed, choice.scrolled), ("user", true, 1));
}

fn drawn(view: &View, choice: &Choice, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| screen::draw(frame, view, choice)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(usize::from(columns));
    lines.map(|cells| cells.iter().map(|cell| cell.symbol()).collect()).collect()
}

#[test]
fn the_screen_has_interfaces_and_programs() {
    let mut view = sorted(View::between(Some(&sample(1)), &sample(2)), "traffic");
    view.errors.push("eth2 does not answer".into());
    let choice = Choice { sort: sort_by("traffic"), is_reversed: false, scrolled: 0 };
    let lines = drawn(&view, &choice, 160, 12);
    let has = |line: &str, words: &[&str]| {
        assert!(words.iter().all(|word| line.contains(word)), "{words:?} in {lines:#?}");
    };
    has(&lines[0], &["feroce top: 2 programs on 2 interfaces"]);
    has(&lines[1], &["eth0: daemon 7, udp", "tx 1.60M b/s 200 f/s"]);
    has(&lines[2], &["eth1: no daemon, af_xdp", "rx 16.0M b/s 2.00k f/s", "retx 5/s"]);
    has(&lines[3], &["PID", "USER", "RX b/s", "RETX/s", "QUOTA", "PROGRAM"]);
    has(&lines[4], &["1 ", "eth1", "16.0M", "2.00k", " 5 ", "test"]);
    has(&lines[5], &["4711", "1000", "eth0", "800k", "2% programs", "ib_write_bw"]);
    has(&lines[10], &["eth2 does not answer"]);
    has(&lines[11], &["q quit", "sorted by traffic"]);

    let scrolled = drawn(&view, &Choice { scrolled: 1, is_reversed: true, ..choice }, 160, 7);
    assert!(scrolled.iter().any(|line| line.contains("4711")), "{scrolled:#?}");
    assert!(!scrolled.iter().any(|line| line.contains("test")), "{scrolled:#?}");
    assert!(scrolled[6].contains("sorted in reverse by"));
    for (columns, rows) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
        drawn(&view, &choice, columns, rows);
        drawn(&View::default(), &choice, columns, rows);
    }
}

#[test]
fn a_batch_has_the_same_cells() {
    let view = sorted(View::between(Some(&sample(1)), &sample(2)), "tx");
    let text = screen::text(&view);
    let words =
        |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(0)[..4], ["feroce", "top:", "2", "programs"]);
    let row = ["4711", "1000", "eth0", "-", "800k", "800k", "1.60M", "100", "100"];
    assert_eq!(words(4)[..9], row);
    assert_eq!(words(4)[9..], ["0", "0", "0", "0", "2%", "programs", "ib_write_bw"]);
    assert!(text.lines().all(|line| !line.ends_with(' ')), "{text:?}");
}
