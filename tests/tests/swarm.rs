//! Random scenarios between two devices under seeded wire faults, checked against a simple model.
//!
//! `FEROCE_SWARM` sets the number of scenarios, `FEROCE_SWARM_FROM` the first seed. The seeds in
//! `tests/seeds.txt` failed once and always run first. `cargo xtask swarm SEED` replays one
//! scenario.

use feroce_tests::ports::RigPorts;
use feroce_tests::swarm::{Coverage, RIG_KINDS, Rigs, number, run_all};

/// Number of scenarios of an ordinary test run.
const SCENARIOS: u64 = 20_000;

/// Returns the seeds that failed in the past.
fn failed_seeds() -> Vec<u64> {
    let lines =
        include_str!("../seeds.txt").lines().map(|line| line.split('#').next().unwrap_or(""));
    let lines = lines.map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.parse().expect("a seed per line")).collect()
}

#[test]
fn random_scenarios_agree_with_the_model() {
    let pinned = failed_seeds();
    let first = number("FEROCE_SWARM_FROM").unwrap_or(0);
    let count = number("FEROCE_SWARM").unwrap_or(SCENARIOS);
    let seeds = |index: u64| match pinned.get(usize::try_from(index).ok()?) {
        Some(&seed) => Some(seed),
        None => Some(index - pinned.len() as u64).filter(|&n| n < count).map(|n| first + n),
    };
    // Each thread keeps a rig of each kind.
    let threads = RigPorts::most() / RIG_KINDS;
    let (coverage, failures) = run_all(threads, &seeds, Rigs::run, Coverage::add);
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
    if RigPorts::are_the_kernels() {
        return; // The timing of the kernel decides.
    }
    let mut together = Rigs::default();
    for seed in 0..300 {
        let after_others = together.run(seed).expect("passes");
        let alone = Rigs::default().run(seed).expect("passes");
        assert_eq!(alone, after_others, "seed {seed}");
    }
}
