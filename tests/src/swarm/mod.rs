//! The swarm test: random scenarios for two devices on the shm port in virtual time, with wire
//! faults, checked against a simple model of the verbs semantics.
//!
//! One seed determines a scenario: first its [`Options`], then its [`Workload`] (what each program
//! posts and when), then the faults of the wire. The scenario first runs with faults, then on a
//! wire without faults. There every posted request must complete within a bounded time, and both
//! ends must become idle. The result does not depend on the scenarios that ran before on the same
//! rig.

mod allowed_failures;
mod check;
mod coverage;
mod final_state;
mod layout;
mod memory;
mod model;
mod options;
mod random;
pub mod replay;
mod request;
mod request_generator;
mod run;
pub mod services;
mod shrink;
mod shrink_workload;
mod side_workload;
mod simulation;
mod trace;
mod transitions;
mod wire_rules;
mod workload;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use feroce_engine::time::Instant;

use crate::{Rig, manual_config, new_rig};
pub use coverage::Coverage;
use feroce_congestion::Params;
use feroce_engine::congestion::{CongestionConfig, Control};
pub use options::{Options, RIG_KINDS, RigKind};
use replay::Scenario;
pub use run::{number, run_all};
use simulation::Simulation;
use trace::Trace;
pub use workload::Workload;

/// A scenario that failed.
#[derive(Debug)]
pub struct Failure {
    /// Seed of the scenario.
    pub seed: u64,
    /// Reason of the failure.
    pub why: String,
    /// Options of the scenario.
    pub options: Box<Options>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, why, options } = self;
        writeln!(f, "seed {seed}: {why}")?;
        writeln!(f, "replay: cargo xtask swarm {seed}")?;
        write!(f, "{options:#?}")
    }
}

impl std::error::Error for Failure {}

/// The rigs that scenarios reuse, one of each kind.
#[derive(Debug, Default)]
pub struct Rigs(BTreeMap<RigKind, Rig>);

impl Rigs {
    /// Runs the scenario of `seed`.
    ///
    /// # Errors
    /// The violation that the model or the wire rules found, or the panic message.
    pub fn run(&mut self, seed: u64) -> Result<Coverage, Failure> {
        let workload = Workload::generate(seed);
        let options = workload.options.clone();
        let result = self.run_with(workload, &mut Trace::off());
        result.map_err(|why| Failure { seed, why, options: Box::new(options) })
    }

    fn run_with(&mut self, mut workload: Workload, trace: &mut Trace) -> Result<Coverage, String> {
        let (kind, delay) = (workload.options.rig, workload.options.delay);
        let (faults_end, wire_seed) = (workload.faults_end, workload.runtime_random.bits());
        self.run_on(kind, delay, trace, |rig, trace| {
            Simulation::new(workload, rig, trace).run(faults_end, wire_seed)
        })
    }

    /// Runs a scenario on the rig of this kind, whose wire has this delay and is recorded.
    fn run_on<T>(
        &mut self,
        kind: RigKind,
        delay: Duration,
        trace: &mut Trace,
        run: impl FnOnce(&mut Rig, &mut Trace) -> Result<T, String>,
    ) -> Result<T, String> {
        // The rig is removed from the map: after a failure it is not used again.
        let mut rig = self.0.remove(&kind).unwrap_or_else(|| make_rig(kind));
        rig.wire.set_delay(delay);
        rig.wire.set_record(true);
        trace.begin(rig.now);
        let result = caught(|| run(&mut rig, trace))?;
        self.0.insert(kind, reset_rig(rig));
        Ok(result)
    }
}

impl Scenario for Workload {
    fn generate(seed: u64) -> Self {
        Self::generate(seed)
    }

    fn run(&self, trace: &mut Trace) -> Result<(), String> {
        Rigs::default().run_with(self.clone(), trace).map(drop)
    }

    fn size(&self) -> String {
        self.size()
    }
}

/// The result of `run`; a panic is an error with its message.
fn caught<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("no message")))
    })
}

fn make_rig(kind: RigKind) -> Rig {
    let mut config = manual_config(1);
    // The pairs share the windows of one pair.
    (config.window, config.peer_window) = (kind.window, kind.window);
    config.read_window = kind.window;
    config.cores = kind.cores;
    config.selective_repeat = true;
    config.plain_keys = kind.plain_keys;
    config.arena_bytes = 16 << 20;
    if kind.congestion {
        let mut params = Params::default();
        let rates = [("max_rate", "40Gb/s"), ("min_rate", "1Gb/s"), ("cnp_interval", "5us")];
        rates.iter().for_each(|(name, rate)| params.set(name, rate).expect("a parameter"));
        config.congestion = CongestionConfig { control: Control::DCQCN, params, burst: 8192 };
    }
    new_rig(&config, Duration::ZERO)
}

/// Scenarios start at multiples of this many nanoseconds (almost five hours). Every scenario then
/// starts with the same low digits of the time, on which the lookups of a timing wheel depend.
const EPOCH: u64 = 1 << 44;

/// Clears the wire and the events of the finished scenario, and moves the clock to the next epoch.
fn reset_rig(mut rig: Rig) -> Rig {
    rig.wire.clear();
    rig.settle();
    for device in &rig.devices {
        while device.poll_event().is_some() {}
    }
    rig.now = Instant::from_nanos((rig.now.as_nanos() / EPOCH + 1) * EPOCH);
    rig
}
