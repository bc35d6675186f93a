//! Random scenarios between two devices under seeded wire faults, checked against a simple model.
//!
//! `FEROCE_SWARM` sets the number of scenarios, `FEROCE_SWARM_FROM` the first seed. `FEROCE_SEED`
//! replays one scenario and prints everything that happens in it. The seeds in `tests/seeds.txt`
//! failed once and always run first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use feroce_tests::ports::RigPorts;
use feroce_tests::swarm::{Coverage, Failure, RIG_KINDS, Rigs};

/// Number of scenarios of an ordinary test run.
const SCENARIOS: u64 = 20_000;

/// The run stops after this many failures.
const MAX_FAILURES: usize = 3;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Returns the seeds that failed in the past.
fn failed_seeds() -> Vec<u64> {
    let lines =
        include_str!("../seeds.txt").lines().map(|line| line.split('#').next().unwrap_or(""));
    let lines = lines.map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.parse().expect("a seed per line")).collect()
}

/// Runs `seeds` on as many threads as there are processors.
fn run_all(seeds: &(dyn Fn(u64) -> Option<u64> + Sync)) -> (Coverage, Vec<Failure>) {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    let total = Mutex::new(Coverage::default());
    // Each thread keeps a rig of each kind.
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = threads.min(RigPorts::most() / RIG_KINDS);
    let work = || {
        let (mut rigs, mut coverage) = (Rigs::default(), Coverage::default());
        while !stop.load(Ordering::Relaxed) {
            let Some(seed) = seeds(next.fetch_add(1, Ordering::Relaxed)) else { break };
            match rigs.run(seed) {
                Ok(one) => coverage.add(&one),
                Err(failure) => {
                    eprintln!("{failure}\n");
                    let mut failures = failures.lock().unwrap();
                    failures.push(failure);
                    stop.store(failures.len() >= MAX_FAILURES, Ordering::Relaxed);
                }
            }
        }
        total.lock().unwrap().add(&coverage);
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    (total.into_inner().unwrap(), failures.into_inner().unwrap())
}

#[test]
fn random_scenarios_agree_with_the_model() {
    if let Some(seed) = number("FEROCE_SEED") {
        let replayed = Rigs::default().replay(seed);
        println!("{}", replayed.unwrap_or_else(|failure| panic!("{failure}")));
        return;
    }
    let pinned = failed_seeds();
    let first = number("FEROCE_SWARM_FROM").unwrap_or(0);
    let count = number("FEROCE_SWARM").unwrap_or(SCENARIOS);
    let seeds = |index: u64| match pinned.get(usize::try_from(index).ok()?) {
        Some(&seed) => Some(seed),
        None => Some(index - pinned.len() as u64).filter(|&n| n < count).map(|n| first + n),
    };
    let (coverage, failures) = run_all(&seeds);
    println!("{coverage}");
    let seeds: Vec<u64> = failures.iter().map(|failure| failure.seed).collect();
    assert!(seeds.is_empty(), "scenarios failed: seeds {seeds:?}");
    assert_eq!(coverage.scenarios, count + pinned.len() as u64);
    if count >= SCENARIOS {
        let missing = coverage.missing();
        assert!(missing.is_empty(), "no scenario covered {missing:?}");
    }
}

#[test]
fn a_scenario_depends_only_on_its_seed() {
    if number("FEROCE_SEED").is_some() || RigPorts::are_the_kernels() {
        return; // One scenario was requested, or the timing of the kernel decides.
    }
    let mut together = Rigs::default();
    for seed in 0..300 {
        let after_others = together.run(seed).expect("passes");
        let alone = Rigs::default().run(seed).expect("passes");
        assert_eq!(alone, after_others, "seed {seed}");
    }
}
