//! The controller between a sender and its algorithm: which events reach the algorithm, in which
//! order, and what a change of parameters or algorithm keeps.

mod common;

use std::sync::{Arc, Mutex};

use common::us;
use feroce_congestion::{
    Ack, Algorithm, CongestionControl, Control, Controller, Duration, Instant, Needs, Params, Path,
    Rate, Setup,
};

const LINK: Rate = Rate::from_gbps(100);

fn setup(params: &Params) -> Setup<'_> {
    Setup { params, link_rate: LINK, now: Instant::ZERO, path: Path::default() }
}

fn ack() -> Ack<'static> {
    Ack::new(Duration::from_micros(10), 1000)
}

/// An algorithm that writes down its events. `KEEPS`: takes new parameters without a new start.
#[derive(Clone, Debug)]
struct Recorder<const KEEPS: bool> {
    events: Arc<Mutex<Vec<String>>>,
    rate: Rate,
    sent_limit: u64,
    timer: Instant,
}

impl<const KEEPS: bool> Recorder<KEEPS> {
    fn new() -> Self {
        let events = Arc::default();
        Self { events, rate: LINK, sent_limit: u64::MAX, timer: Instant::FAR }
    }

    fn note(&mut self, event: &str, now: Instant) {
        let micros = now.as_nanos() / 1000;
        self.events.lock().unwrap().push(format!("{event} at {micros}"));
    }
}

impl<const KEEPS: bool> CongestionControl for Recorder<KEEPS> {
    fn rate(&self) -> Rate {
        self.rate
    }

    fn on_sent(&mut self, bytes: u64, now: Instant) {
        self.note(&format!("{bytes} sent"), now);
    }

    fn sent_limit(&self) -> u64 {
        self.sent_limit
    }

    fn on_ack(&mut self, _: &Ack<'_>, now: Instant) {
        self.note("ack", now);
    }

    fn on_cnp(&mut self, now: Instant) {
        self.rate = Rate::from_gbps(50);
        self.note("cnp", now);
    }

    fn on_loss(&mut self, now: Instant) {
        self.note("loss", now);
    }

    fn next_timer(&self) -> Instant {
        self.timer
    }

    fn on_timer(&mut self, now: Instant) {
        self.timer = Instant::FAR;
        self.note("timer", now);
    }

    fn set_params(&mut self, _: &Setup<'_>) -> bool {
        KEEPS
    }

    fn start_at(&mut self, rate: Rate, _: &Setup<'_>) -> bool {
        self.rate = rate;
        true
    }
}

static KEEPS: Algorithm = Algorithm {
    name: "keeps",
    params: &[],
    needs: Needs::CNPS,
    starts_at_rate: true,
    new: |_| Controller::new(Recorder::<true>::new()),
};

static STARTS_OVER: Algorithm =
    Algorithm { name: "starts-over", new: |_| Controller::new(Recorder::<false>::new()), ..KEEPS };

#[test]
fn events_follow_the_bytes_sent_and_the_timers_before_them() {
    let recorder = Recorder::<true> { timer: us(5), ..Recorder::new() };
    let events = recorder.events.clone();
    let mut controller = Controller::new(recorder);
    controller.on_sent(700, us(1));
    controller.on_sent(300, us(2));
    controller.on_ack(&ack(), us(3));
    controller.on_cnp(us(4));
    controller.on_loss(us(6));
    controller.on_sent(500, us(7));
    controller.on_loss(us(8));
    let expected = [
        "1000 sent at 3",
        "ack at 3",
        "cnp at 4",
        "timer at 6",
        "loss at 6",
        "500 sent at 8",
        "loss at 8",
    ];
    assert_eq!(*events.lock().unwrap(), expected);
}

#[test]
fn bytes_are_reported_when_their_limit_is_reached() {
    let recorder = Recorder::<true> { sent_limit: 1000, ..Recorder::new() };
    let events = recorder.events.clone();
    let mut controller = Controller::new(recorder);
    for micros in 1..=4 {
        controller.on_sent(600, us(micros));
    }
    assert_eq!(*events.lock().unwrap(), ["1200 sent at 2", "1200 sent at 4"]);
}

#[test]
fn a_fixed_rate_takes_neither_parameters_nor_a_start() {
    let params = Params::default();
    let mut controller = Controller::fixed(LINK);
    controller.on_cnp(us(1));
    controller.on_loss(us(2));
    assert!(!controller.set_params(&setup(&params)));
    assert!(!controller.start_at(Rate::from_gbps(1), &setup(&params)));
    assert_eq!(controller.rate(), LINK);
}

#[test]
fn an_algorithm_says_whether_it_takes_parameters_and_a_start() {
    let params = Params::default();
    let mut keeps = Controller::new(Recorder::<true>::new());
    let mut starts_over = Controller::new(Recorder::<false>::new());
    assert!(keeps.set_params(&setup(&params)));
    assert!(!starts_over.set_params(&setup(&params)));
    assert!(keeps.start_at(Rate::from_gbps(1), &setup(&params)));
    assert_eq!(keeps.rate(), Rate::from_gbps(1));
}

/// The rate after a CNP, which halves it, and a change from `before` to `after`.
fn rate_after_change(before: Control, after: Control) -> Rate {
    let params = Params::default();
    let mut controller = before.controller(&setup(&params));
    controller.on_cnp(us(1));
    after.replace(before, &mut controller, &setup(&params));
    controller.rate()
}

#[test]
fn a_change_keeps_the_state_if_the_algorithm_can() {
    let [keeps, starts_over] = [&KEEPS, &STARTS_OVER].map(Control::Algorithm);
    assert_eq!(rate_after_change(keeps, keeps), Rate::from_gbps(50));
    assert_eq!(rate_after_change(starts_over, starts_over), LINK);
    assert_eq!(rate_after_change(keeps, starts_over), LINK);
    assert_eq!(rate_after_change(keeps, Control::Off), LINK);
}

#[test]
fn each_set_of_signals_is_what_its_name_says() {
    let signals = |needs: Needs| (needs.has_marks(), needs.has_acks(), needs.has_every_ack());
    assert_eq!(signals(Needs::NONE), (false, false, false));
    assert_eq!(signals(Needs::CNPS), (true, false, false));
    assert_eq!(signals(Needs::ACKS), (false, true, false));
    assert_eq!(signals(Needs::EVERY_ACK), (false, true, true));
    assert_eq!(signals(Needs::ECHO), (true, true, true));
    assert_eq!(signals(Needs::TELEMETRY), (false, true, true));
    assert_eq!((Needs::TELEMETRY.telemetry, Needs::ECHO.telemetry), (true, false));
}
