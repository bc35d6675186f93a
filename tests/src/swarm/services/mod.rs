//! The swarm of all services: RC with shared receive queues and memory windows, UC, UD and XRC
//! share two devices of one core or several, with and without DCQCN and selective repeat, while
//! queue pairs are destroyed, moved through their states or connected again, regions deregistered,
//! windows closed and completion queues resized under traffic.
//!
//! The model of the other swarm knows one RC connection exactly. This one knows only what each
//! service promises a program:
//!
//! | service | a message | its requests complete |
//! |---|---|---|
//! | RC, XRC | arrives once, in order, whole | when it has arrived, or fail |
//! | UC | arrives whole; at most once and in order unless the wire reorders | in order |
//! | UD | arrives whole at the QP that it names, if it has its Q_Key | in order |
//!
//! Everywhere: one completion per signaled request and per receive, in the order of posting; after
//! the first error of a queue, only flushed requests; memory changes by whole packets of the
//! requests that name it. One seed determines the scenario.

mod actions;
mod completions;
mod final_state;
mod lane;
mod objects;
mod plan;
mod posts;
mod shrink;
mod states;
mod tally;
mod world;

use std::fmt;

use super::Rigs;
use super::random::Random;
use super::replay::Scenario;
use super::shrink::Shrink;
use super::trace::Trace;
use plan::Plan;
pub use plan::RIG_KINDS;
pub use tally::Tally;
use world::World;

/// The rigs of the scenarios of this swarm.
#[derive(Debug, Default)]
pub struct ServiceRigs(Rigs);

impl ServiceRigs {
    /// Runs the scenario of `seed`.
    ///
    /// # Errors
    /// What was wrong, or the panic message, with the command that replays it.
    pub fn run(&mut self, seed: u64) -> Result<Tally, String> {
        let scenario = ServiceScenario::generate(seed);
        self.run_with(&scenario, &mut Trace::off()).map_err(|why| {
            let plan = &scenario.plan;
            format!("seed {seed}: {why}\nreplay: cargo xtask swarm {seed} --services\n{plan:#?}")
        })
    }

    fn run_with(&mut self, scenario: &ServiceScenario, trace: &mut Trace) -> Result<Tally, String> {
        let ServiceScenario { plan, random } = scenario.clone();
        self.0.run_on(plan.rig(), plan.delay, trace, |rig, trace| {
            World::new(plan, rig, trace, random).run()
        })
    }
}

/// What happens in a scenario, and the random numbers that are needed while it runs.
#[derive(Clone)]
pub struct ServiceScenario {
    plan: Plan,
    random: Random,
}

impl fmt::Debug for ServiceScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt(f)
    }
}

impl Shrink for ServiceScenario {
    fn smaller(&self) -> Vec<Self> {
        let with = |plan| Self { plan, random: self.random.clone() };
        self.plan.smaller().into_iter().map(with).collect()
    }
}

impl Scenario for ServiceScenario {
    fn generate(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5e12_71ce);
        Self { plan: Plan::generate(&mut random), random }
    }

    fn run(&self, trace: &mut Trace) -> Result<(), String> {
        ServiceRigs::default().run_with(self, trace).map(drop)
    }

    fn size(&self) -> String {
        let messages = self.plan.pairs.iter().flat_map(|pair| &pair.lanes);
        let messages: usize = messages.map(|lane| lane.messages.len()).sum();
        let (pairs, actions) = (self.plan.pairs.len(), self.plan.actions.len());
        format!("{pairs} pairs, {messages} messages, {actions} actions, {:?}", self.plan.faults)
    }
}
