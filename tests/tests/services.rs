//! Random scenarios of RC, UC, UD and XRC together, with shared receive queues, memory windows, and
//! objects that end under traffic, checked against what each service promises.
//!
//! The environment variables are those of the other swarm (`swarm.rs`). `cargo xtask swarm SEED
//! --services` replays one scenario.

use feroce_tests::ports::RigPorts;
use feroce_tests::swarm::services::{RIG_KINDS, ServiceRigs, Tally};
use feroce_tests::swarm::{number, run_all};

/// Number of scenarios of an ordinary test run.
const SCENARIOS: u64 = 20_000;

#[test]
fn random_scenarios_keep_the_promises_of_every_service() {
    let first = number("FEROCE_SWARM_FROM").unwrap_or(0);
    let count = number("FEROCE_SWARM").unwrap_or(SCENARIOS);
    let seeds = |index: u64| (index < count).then_some(first + index);
    let run = |rig: &mut ServiceRigs, seed| rig.run(seed);
    // Each thread keeps a rig of each kind.
    let threads = RigPorts::most() / RIG_KINDS;
    let (tally, failures) = run_all(threads, &seeds, run, Tally::add);
    println!("{tally}");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    if count >= SCENARIOS {
        let missing = tally.missing();
        assert!(missing.is_empty(), "the tally is not as it should be: {missing:#?}");
    }
}
