//! The swarm of all services: RC with shared receive queues and memory windows, UC, UD and XRC
//! share two devices, while queue pairs are destroyed, moved to ERR or connected again, regions
//! deregistered, windows closed and completion queues resized under traffic.
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
mod tally;
mod world;

use super::random::Random;
use super::trace::Trace;
use super::{Rig, RigKind, caught, make_rig, reset_rig};
use plan::Plan;
pub use tally::Tally;
use world::World;

/// The device configuration of all scenarios.
const RIG: RigKind = RigKind { window: 64, plain_keys: false, congestion: false };

/// A rig that scenarios reuse.
#[derive(Debug, Default)]
pub struct ServiceRig(Option<Rig>);

impl ServiceRig {
    /// Runs the scenario of `seed`; `traced`: prints every event, frame and completion.
    ///
    /// # Errors
    /// What was wrong, or the panic message, with the command that replays it.
    pub fn run(&mut self, seed: u64, traced: bool) -> Result<Tally, String> {
        let mut random = Random::new(seed ^ 0x5e12_71ce);
        let plan = Plan::generate(&mut random);
        if traced {
            println!("{plan:#?}");
        }
        let mut rig = self.0.take().unwrap_or_else(|| make_rig(RIG));
        rig.wire.set_delay(plan.delay);
        rig.wire.set_record(true);
        let trace = if traced { Trace::on(rig.now) } else { Trace::off() };
        match caught(|| World::new(plan.clone(), &mut rig, trace, random).run()) {
            Ok(tally) => {
                self.0 = Some(reset_rig(rig));
                Ok(tally)
            }
            Err(why) => Err(format!(
                "seed {seed}: {why}\nreplay: FEROCE_SEED={seed} cargo test -p feroce-tests --test \
                 services -- --nocapture\n{plan:#?}"
            )),
        }
    }
}
