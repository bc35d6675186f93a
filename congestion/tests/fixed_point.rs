//! The closed loop converges to the fixed point of the fluid model of DCQCN (Zhu et al., ECN or
//! Delay, CoNEXT 2016): the mean queue and alpha of N senders at one bottleneck against the exact
//! solution of the model's equations.

mod common;

use common::bottleneck::{Bottleneck, Measured};
use feroce_congestion::params::{
    AlphaTimer, BeyondKmax, CnpTiming, CutOrder, HyperIncrease, MarkAt, StepCount, TargetClamp,
};
use feroce_congestion::{Duration, Fraction, Params, Rate};

const LINK_RATE: Rate = Rate::from_gbps(40);
const PACKET: u64 = 1000;

/// The exact fixed point: the queue in bytes, and alpha.
fn solve(params: &Params, senders: usize) -> (f64, f64) {
    let reaction = &params.reaction;
    let seconds = |time: Duration| time.as_nanos() as f64 / 1e9;
    let bits = PACKET as f64 * 8.0;
    let rate = LINK_RATE.as_bps() as f64 / bits / senders as f64;
    let increase = reaction.ai_rate.as_bps() as f64 / bits;
    let counter = reaction.byte_counter as f64 / PACKET as f64;
    let timer = seconds(reaction.increase_interval);
    let tau = seconds(params.notification.cnp_interval);
    let alpha_time = seconds(reaction.alpha_interval);
    let steps = f64::from(reaction.threshold);
    // p / ((1 - p)^-x - 1), for ln(1 - p) * -x.
    let per = |p: f64, x: f64| if x > 30.0 { p * (-x.min(700.0)).exp() } else { p / x.exp_m1() };
    let excess = |p: f64| {
        let log = (-p).ln_1p();
        let a = -(tau * rate * log).exp_m1();
        let alpha = -(alpha_time * rate * log).exp_m1();
        let b = per(p, -counter * log);
        let d = per(p, -timer * rate * log);
        let c = (steps * counter * log).exp() * b;
        let e = (steps * timer * rate * log).exp() * d;
        a * a * alpha / ((b + d) * (c + e)) - tau * tau * increase * rate
    };
    let (mut low, mut high) = (1e-9_f64, 0.9_f64);
    for _ in 0..300 {
        let middle = (low * high).sqrt();
        if excess(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    let marking = &params.marking;
    let pmax = f64::from(marking.pmax.units()) / f64::from(1u32 << 31);
    let (kmin, kmax) = (f64::from(marking.kmin), f64::from(marking.kmax));
    let alpha = 1.0 - (1.0 - low).powf(alpha_time * rate);
    (low / pmax * (kmax - kmin) + kmin, alpha)
}

/// The paper's parameters, with a marking slope that continues above Kmax.
fn paper_with_endless_slope() -> Params {
    let mut params = Params::default();
    params.marking.beyond_kmax = BeyondKmax::Slope;
    params
}

fn play(params: Params, senders: usize) -> Measured {
    let setup = Bottleneck {
        params,
        link_rate: LINK_RATE,
        senders,
        packet: PACKET,
        feedback: Duration::from_micros(1),
        warm_up: Duration::from_millis(100),
        measured: Duration::from_millis(300),
        seed: 1,
    };
    setup.play()
}

#[test]
fn the_solver_gives_the_published_queues() {
    let published = [
        (2, 20.2),
        (4, 41.8),
        (8, 93.8),
        (10, 122.6),
        (16, 217.0),
        (20, 285.0),
        (32, 505.0),
        (64, 1156.0),
    ];
    for (senders, kilobytes) in published {
        let (queue, _) = solve(&Params::default(), senders);
        assert!((queue / 1000.0 / kilobytes - 1.0).abs() < 0.005, "{senders}: {queue}");
    }
}

/// Marking at dequeue: with marking at enqueue, a queue of 500 KB delays the marks by 100 us, and
/// 32 senders oscillate.
fn at_dequeue() -> Params {
    let mut params = paper_with_endless_slope();
    params.marking.mark_at = MarkAt::Dequeue;
    params
}

/// Relative distance of the mean queue and of the mean alpha from the fixed point.
fn distance(params: Params, senders: usize) -> (f64, f64) {
    let (queue, alpha) = solve(&params, senders);
    let measured = play(params, senders);
    let far = (measured.queue / queue - 1.0, measured.alpha / alpha - 1.0);
    println!(
        "N {senders:2}: queue {:5.1} KB of {:5.1} ({:+5.1} %), \
         alpha {:.4} of {alpha:.4} ({:+5.1} %), link used {:.4}, least rate / greatest {:.2}",
        measured.queue / 1e3,
        queue / 1e3,
        far.0 * 100.0,
        measured.alpha,
        far.1 * 100.0,
        measured.utilisation,
        measured.fairness,
    );
    assert!(measured.utilisation > 0.99 && measured.fairness > 0.8, "{measured:?}");
    far
}

#[test]
fn queue_and_alpha_agree_with_the_fixed_point() {
    // The model is coarse at both ends of the range: two senders leave the queue empty at times,
    // where the marking slope ends; and the model has one more step of fast recovery, which shows
    // with 32 senders.
    for (senders, alpha_within) in [(2, 0.09), (4, 0.06), (8, 0.06), (16, 0.06), (32, 0.08)] {
        let (queue, alpha) = distance(at_dequeue(), senders);
        assert!(queue.abs() < 0.15, "N {senders}: queue off by {queue:.3}");
        assert!(alpha.abs() < alpha_within, "N {senders}: alpha off by {alpha:.3}");
    }
}

/// Single changes from the paper's parameters.
type Change = fn(&mut Params);
const OTHERS: &[(&str, Change)] = &[
    ("as the paper, marked at dequeue", |_| {}),
    ("`mark_at = enqueue`", |params| params.marking.mark_at = MarkAt::Enqueue),
    ("`cnp_timing = gap`", |params| params.notification.cnp_timing = CnpTiming::Gap),
    ("`cnp_timing = periodic`", |params| params.notification.cnp_timing = CnpTiming::Periodic),
    ("`cut_order = alpha-first`", |params| params.reaction.cut_order = CutOrder::AlphaFirst),
    ("`alpha_timer = free-running`", |params| {
        params.reaction.alpha_timer = AlphaTimer::FreeRunning
    }),
    ("`step_count = after`", |params| params.reaction.step_count = StepCount::After),
    ("`target_clamp = after-increase`", |params| {
        params.reaction.target_clamp = TargetClamp::AfterIncrease
    }),
    ("`byte_counter = 300MB`", |params| params.reaction.byte_counter = 300_000_000),
    ("`hyper_increase = max-above`", |params| {
        params.reaction.hyper_increase = HyperIncrease::MaxAbove
    }),
    ("`g = 1/16`", |params| params.reaction.g = Fraction::ratio(1, 16)),
    ("`g = 1/4096`", |params| params.reaction.g = Fraction::ratio(1, 4096)),
    ("`beyond_kmax = all`", |params| params.marking.beyond_kmax = BeyondKmax::All),
];

#[test]
fn other_parameter_values_move_the_fixed_point() {
    let expected = [
        ("`cnp_timing = gap`", 0.3),
        ("`target_clamp = after-increase`", 0.2),
        ("`g = 1/4096`", -0.2),
    ];
    for (name, at_least) in expected {
        let (_, change) = OTHERS.iter().find(|(other, _)| *other == name).expect("one of them");
        let mut params = at_dequeue();
        change(&mut params);
        let (queue, _) = distance(params, 8);
        assert!(queue / at_least > 1.0, "{name}: {queue:.3}");
    }
}

/// Prints the table of `docs/congestion.md`. Takes a minute.
#[test]
#[ignore = "prints a table for docs/congestion.md"]
fn print_the_deviations_from_the_fixed_point() {
    for (name, change) in OTHERS {
        let mut params = at_dequeue();
        change(&mut params);
        print!("| {name} |");
        for senders in [2, 8, 32] {
            let (queue, alpha) = solve(&at_dequeue(), senders);
            let measured = play(params, senders);
            if measured.utilisation > 1.01 {
                print!(" grows | |");
                continue;
            }
            let far = |value: f64, of: f64| (value / of - 1.0) * 100.0;
            print!(
                " {:+.0} % | {:+.0} % |",
                far(measured.queue, queue),
                far(measured.alpha, alpha)
            );
        }
        println!();
    }
}
