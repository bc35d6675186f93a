//! Properties of the reaction point over all parameter sets and their variations: the result does
//! not depend on how often timers are run, and values stay in their ranges.

mod common;

use common::ns;
use feroce_congestion::params::{self, Kind, REACTION, SETS};
use feroce_congestion::{Controller, Fraction, Instant, Params, Rate, ReactionPoint};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Cnp,
    Sent(u64),
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![Just(Event::Cnp), (1..20_000_000u64).prop_map(Event::Sent)];
    // Mostly within the timer periods, sometimes long after them.
    let wait = prop_oneof![0..3_000u64, 0..200_000u64, 0..50_000_000u64];
    prop::collection::vec((wait, event), 1..80)
}

/// A set with some of its parameters changed.
fn params() -> impl Strategy<Value = Params> {
    let raw_values = prop::collection::vec(any::<u64>(), params::all().count());
    (0..SETS.len(), raw_values, any::<u64>()).prop_map(|(set, choices, selected)| {
        let mut params = SETS[set].params;
        for (index, (param, choice)) in params::all().zip(choices).enumerate() {
            let changes = selected >> (index % 64) & 1 == 1 && REACTION.contains(&param);
            match param.kind {
                Kind::Choice(names) if changes => {
                    param.set(&mut params, choice % names.len() as u64)
                }
                _ if !changes => {}
                _ if param.name == "threshold" => param.set(&mut params, choice % 8),
                _ if param.name.ends_with("ai_rate") => {
                    param.set(&mut params, choice % 1_000_000_000)
                }
                _ if param.name == "first_rate" => param.set(&mut params, choice % 10_000_000_000),
                _ if param.name == "gd" => param.set(&mut params, 8 + choice % 6),
                _ => {}
            }
        }
        params
    })
}

fn apply(point: &mut ReactionPoint, event: Event, now: Instant) {
    match event {
        Event::Cnp => point.on_cnp(now),
        Event::Sent(bytes) => point.on_sent(bytes, now),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn advancing_often_changes_nothing(
        params in params(),
        events in events(),
        poll_intervals in prop::collection::vec(1..40_000u64, 1..50),
    ) {
        let mut seldom = ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO);
        let mut often = seldom;
        let (mut now, mut poll) = (0, 0);
        for (wait, event) in events {
            let next = now + wait;
            for index in 0..200 {
                poll += poll_intervals[index % poll_intervals.len()];
                if poll > next {
                    break;
                }
                often.advance(ns(poll));
            }
            poll = next;
            now = next;
            apply(&mut often, event, ns(now));
            apply(&mut seldom, event, ns(now));
            prop_assert_eq!(format!("{often:?}"), format!("{seldom:?}"), "at {} ns", now);
        }
    }

    /// A controller reports sent bytes late and timers only when they are due. Its rates are those
    /// of a reaction point that is called for each event.
    #[test]
    fn a_controller_follows_its_algorithm(params in params(), events in events()) {
        let mut point = ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO);
        let mut controller = Controller::new(point);
        let mut now = 0;
        for (wait, event) in events {
            now += wait;
            apply(&mut point, event, ns(now));
            match event {
                Event::Cnp => controller.on_cnp(ns(now)),
                Event::Sent(bytes) => controller.on_sent(bytes, ns(now)),
            }
            prop_assert_eq!(controller.rate(), point.rate(), "at {} ns", now);
            prop_assert_eq!(controller.next_event(), point.next_event(), "at {} ns", now);
            prop_assert_eq!(controller.figures().alpha, Some(point.alpha()), "at {} ns", now);
        }
    }

    #[test]
    fn values_stay_in_their_ranges(params in params(), events in events()) {
        let link_rate = Rate::from_gbps(40);
        let mut point = ReactionPoint::new(&params, link_rate, Instant::ZERO);
        let min_rate = params.reaction.min_rate.min(link_rate);
        let mut now = 0;
        for (wait, event) in events {
            now += wait;
            apply(&mut point, event, ns(now));
            prop_assert!((min_rate..=link_rate).contains(&point.rate()), "{:?}", point);
            prop_assert!(point.target() >= min_rate, "{:?}", point);
            prop_assert!(point.alpha() <= Fraction::ONE);
            prop_assert!(point.next_event() > ns(now));
        }
    }

    /// Between two events the rate changes only at the times that `next_event` returned.
    #[test]
    fn the_rate_changes_only_at_next_event(params in params(), events in events()) {
        let mut point = ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO);
        let mut now = 0;
        for (wait, event) in events.into_iter().take(20) {
            for _ in 0..50 {
                let next = point.next_event().as_nanos();
                if next > now + wait {
                    break;
                }
                let before = point.rate();
                point.advance(ns(next - 1));
                prop_assert_eq!(point.rate(), before);
                point.advance(ns(next));
            }
            now += wait;
            apply(&mut point, event, ns(now));
        }
    }
}
