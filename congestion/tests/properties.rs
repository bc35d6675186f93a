//! What holds of the reaction point whatever happens: it does not matter how often it is looked at, and its numbers
//! stay where they belong. Over all sets and all their switches.

mod common;

use common::ns;
use feroce_congestion::params::{Kind, Part, SETS, TABLE};
use feroce_congestion::{Fraction, Instant, Params, Rate, ReactionPoint};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Cnp,
    Sent(u64),
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![Just(Event::Cnp), (1..20_000_000u64).prop_map(Event::Sent)];
    // Mostly within the timers' periods, sometimes long after them.
    let wait = prop_oneof![0..3_000u64, 0..200_000u64, 0..50_000_000u64];
    prop::collection::vec((wait, event), 1..80)
}

/// A set with some of its switches and numbers changed.
fn params() -> impl Strategy<Value = Params> {
    let switches = prop::collection::vec(any::<u64>(), TABLE.len());
    (0..SETS.len(), switches, any::<u64>()).prop_map(|(set, choices, which)| {
        let mut params = SETS[set].params;
        for (place, (knob, choice)) in TABLE.iter().zip(choices).enumerate() {
            let changes = which >> (place % 64) & 1 == 1 && knob.part == Part::Reaction;
            match knob.kind {
                Kind::Choice(names) if changes => {
                    (knob.set)(&mut params, choice % names.len() as u64)
                }
                _ if !changes => {}
                _ if knob.name == "threshold" => (knob.set)(&mut params, choice % 8),
                _ if knob.name.ends_with("ai_rate") => {
                    (knob.set)(&mut params, choice % 1_000_000_000)
                }
                _ if knob.name == "first_rate" => (knob.set)(&mut params, choice % 10_000_000_000),
                _ if knob.name == "gd" => (knob.set)(&mut params, 8 + choice % 6),
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
    fn looking_often_changes_nothing(
        params in params(), events in events(), looks in prop::collection::vec(1..40_000u64, 1..50),
    ) {
        let mut seldom = ReactionPoint::new(&params, Rate::from_gbps(40), Instant::ZERO);
        let mut often = seldom;
        let (mut now, mut look) = (0, 0);
        for (wait, event) in events {
            let next = now + wait;
            for index in 0..200 {
                look += looks[index % looks.len()];
                if look > next {
                    break;
                }
                often.advance(ns(look));
            }
            look = next;
            now = next;
            apply(&mut often, event, ns(now));
            apply(&mut seldom, event, ns(now));
            prop_assert_eq!(format!("{often:?}"), format!("{seldom:?}"), "at {} ns", now);
        }
    }

    #[test]
    fn numbers_stay_where_they_belong(params in params(), events in events()) {
        let line = Rate::from_gbps(40);
        let mut point = ReactionPoint::new(&params, line, Instant::ZERO);
        let least = params.reaction.min_rate.min(line);
        let mut now = 0;
        for (wait, event) in events {
            now += wait;
            apply(&mut point, event, ns(now));
            prop_assert!((least..=line).contains(&point.rate()), "{:?}", point);
            prop_assert!(point.target() >= least, "{:?}", point);
            prop_assert!(point.alpha() <= Fraction::ONE);
            prop_assert!(point.next_event() > ns(now));
        }
    }

    /// Between two events the rate changes at the times that were foretold, and at no others.
    #[test]
    fn the_rate_changes_when_foretold(params in params(), events in events()) {
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
