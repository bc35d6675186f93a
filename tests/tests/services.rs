//! Random scenarios of RC, UC, UD and XRC together, with shared receive queues, memory windows, and
//! objects that end under traffic, checked against what each service promises.
//!
//! The environment variables are those of the other swarm (`swarm.rs`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use feroce_tests::ports::RigPorts;
use feroce_tests::swarm::services::{ServiceRig, Tally};

/// Number of scenarios of an ordinary test run.
const SCENARIOS: u64 = 20_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs `count` scenarios from `first` on as many threads as there are processors.
fn run_all(first: u64, count: u64) -> (Tally, Vec<String>) {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let (failures, total) = (Mutex::new(Vec::new()), Mutex::new(Tally::default()));
    let work = || {
        let (mut rig, mut tally) = (ServiceRig::default(), Tally::default());
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            match rig.run(first + index, false) {
                Ok(one) => tally.add(&one),
                Err(why) => {
                    failures.lock().unwrap().push(why);
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
        total.lock().unwrap().add(&tally);
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(RigPorts::most()) {
            scope.spawn(work);
        }
    });
    (total.into_inner().unwrap(), failures.into_inner().unwrap())
}

#[test]
fn random_scenarios_keep_the_promises_of_every_service() {
    if let Some(seed) = number("FEROCE_SEED") {
        let replayed = ServiceRig::default().run(seed, true);
        println!("{}", replayed.unwrap_or_else(|why| panic!("{why}")));
        return;
    }
    let first = number("FEROCE_SWARM_FROM").unwrap_or(0);
    let count = number("FEROCE_SWARM").unwrap_or(SCENARIOS);
    let (tally, failures) = run_all(first, count);
    println!("{tally}");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    if count >= SCENARIOS {
        let missing = tally.missing();
        assert!(missing.is_empty(), "no scenario covered {missing:?}");
    }
}
