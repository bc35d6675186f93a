//! When a receiver sends a CNP, for each `cnp_timing`, as traces with literal times.

mod common;

use common::us;
use feroce_congestion::params::{CnpTiming, NotificationParams};
use feroce_congestion::{Duration, Instant, NotificationPoint, Params};

fn point(timing: CnpTiming) -> NotificationPoint {
    let paper = Params::default().notification;
    assert_eq!(paper.cnp_interval, Duration::from_micros(50));
    NotificationPoint::new(&NotificationParams { cnp_timing: timing, ..paper })
}

/// Times in us at which the receiver sends CNPs: `packets` (time in us, marked) arrive, and
/// `advance` is called at each `next_event` before the next packet.
fn cnps(timing: CnpTiming, packets: &[(u64, bool)]) -> Vec<u64> {
    let mut point = point(timing);
    let mut sent = Vec::new();
    for (micros, marked) in packets {
        while point.next_event() < us(*micros) {
            let at = point.next_event();
            if point.advance(at) {
                sent.push(at.as_nanos() / 1000);
            }
        }
        if point.on_packet(*marked, us(*micros)) {
            sent.push(*micros);
        }
    }
    sent
}

#[test]
fn window_sends_at_once_then_at_ends_of_windows_with_a_mark() {
    let packets = [
        (10, false),
        (20, true), // at once; a window to 70
        (30, true),
        (69, false),
        (100, false), // at 70: the window 20 to 70 had a mark; next window to 120
        (119, true),
        (169, false), // at 120: the window had a mark (119); the window to 170 has none
        (175, true),  // at once; a window to 225
        (225, true),  // at once: the window 175 to 225 had no mark; a window to 275
        (240, true),
        (280, false), // at 275: the window had a mark (240)
        (400, false),
    ];
    assert_eq!(cnps(CnpTiming::Window, &packets), [20, 70, 120, 175, 225, 275]);
}

#[test]
fn a_mark_at_the_end_of_a_window_counts_for_the_next_one() {
    // At 70 the window 20 to 70 ends, with a mark; the packet at 70 belongs to the window to 120.
    let packets = [(20, true), (30, true), (70, true), (200, false)];
    assert_eq!(cnps(CnpTiming::Window, &packets), [20, 70, 120]);
}

#[test]
fn a_late_window_sends_one_cnp_and_starts_a_new_window() {
    let mut point = point(CnpTiming::Window);
    assert!(point.on_packet(true, us(0)));
    assert!(!point.on_packet(true, us(10)));
    assert_eq!(point.next_event(), us(50));
    // No call at 50: the CNP is sent at 200, and none follows before 250.
    assert!(point.advance(us(200)));
    assert_eq!(point.next_event(), Instant::FAR);
    assert!(!point.on_packet(true, us(210)));
    assert_eq!(point.next_event(), us(250));
    // A packet has the same effect as a call.
    assert!(point.on_packet(false, us(260)));
    assert!(!point.advance(us(310)));
    assert!(point.on_packet(true, us(311)));
}

#[test]
fn gap_sends_only_at_a_mark() {
    let packets =
        [(10, false), (20, true), (69, true), (70, true), (90, true), (500, true), (549, true)];
    assert_eq!(cnps(CnpTiming::Gap, &packets), [20, 70, 500]);
    assert_eq!(point(CnpTiming::Gap).next_event(), Instant::FAR);
}

#[test]
fn periodic_sends_by_the_clock_of_the_first_packet() {
    // The clock ticks at 10, 60, 110, 160, ...: a mark waits for the next tick.
    let packets = [
        (10, false),
        (20, true),
        (75, false),
        (120, true),
        (159, true),
        (200, false),
        (401, true),
        (480, false),
    ];
    assert_eq!(cnps(CnpTiming::Periodic, &packets), [60, 160, 410]);
    // A mark on the first packet, which starts the clock, sends a CNP at once.
    assert_eq!(cnps(CnpTiming::Periodic, &[(10, true), (20, true), (80, false)]), [10, 60]);
}

#[test]
fn every_mark_sends_a_cnp() {
    let packets = [(10, false), (20, true), (21, true), (22, false), (23, true)];
    assert_eq!(cnps(CnpTiming::EveryMark, &packets), [20, 21, 23]);
}

#[test]
fn without_an_interval_every_mark_sends_a_cnp() {
    let paper = Params::default().notification;
    for timing in [CnpTiming::Gap, CnpTiming::Window] {
        let params =
            NotificationParams { cnp_timing: timing, cnp_interval: Duration::ZERO, ..paper };
        let mut point = NotificationPoint::new(&params);
        for micros in [1, 1, 2, 3] {
            assert!(point.on_packet(true, us(micros)), "{timing:?} at {micros}");
        }
        assert!(!point.on_packet(false, us(4)));
    }
}
