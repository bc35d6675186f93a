//! The flows of a run and the steps that they wait for, while they are generated.

use crate::fabric::config::{FlowConfig, Milestone, Step};
use crate::fabric::time::Time;

/// Maximum number of flows of a run: each takes about 1 KB of memory.
const MAX_FLOWS: usize = 1 << 20;

/// Maximum number of steps of a run.
const MAX_STEPS: usize = 1 << 20;

/// Flows and steps. Their numbers are their indexes.
#[derive(Debug, Default)]
pub struct Workload {
    /// The flows.
    pub flows: Vec<FlowConfig>,
    /// What flows wait for.
    pub steps: Vec<Step>,
}

impl Workload {
    /// Adds a flow of the traffic group `name` and returns its number.
    pub(super) fn flow(&mut self, name: &str, flow: FlowConfig) -> Result<u32, String> {
        if self.flows.len() >= MAX_FLOWS {
            return Err(format!("{name}: more than {MAX_FLOWS} flows"));
        }
        self.flows.push(flow);
        Ok(last(self.flows.len()))
    }

    /// Adds a step of the traffic group `name` and returns its number.
    pub(super) fn step(&mut self, name: &str, step: Step) -> Result<u32, String> {
        if self.steps.len() >= MAX_STEPS {
            return Err(format!("{name}: more than {MAX_STEPS} flows and messages that wait"));
        }
        self.steps.push(step);
        Ok(last(self.steps.len()))
    }

    /// Makes the traffic group `group`, called `name`, wait until all flows of the groups `after`
    /// have ended and `delay` has passed. Every group must have been drawn.
    ///
    /// # Errors
    /// If there are too many steps, or a flow of the groups has no end.
    pub fn wait(
        &mut self,
        (name, group): (&str, u32),
        after: &[u32],
        delay: Time,
    ) -> Result<(), String> {
        let numbered = (0_u32..).zip(&self.flows).filter(|(_, flow)| after.contains(&flow.group));
        let milestones = numbered.map(|(number, flow)| {
            let ends = flow.messages.is_some() || flow.stop < Time::FAR;
            ends.then_some(Milestone::Ended(number))
        });
        let Some(after) = milestones.collect() else {
            return Err(format!("{name} waits for a flow without end: `messages` is missing"));
        };
        let opening = last(self.steps.len() + 1);
        let own = self.steps.iter_mut().filter(|step| step.group == group);
        for step in own.filter(|step| step.after.is_empty()) {
            step.after.push(Milestone::Done(opening));
        }
        let mut starts = Vec::new();
        let own = (0_u32..).zip(&mut self.flows).filter(|(_, flow)| flow.group == group);
        // The others already wait for flows of the same group.
        for (number, flow) in own.filter(|(_, flow)| !flow.is_held) {
            flow.is_held = true;
            starts.push(number);
        }
        let releases = Vec::new();
        let (host, start) = (None, Time::ZERO);
        let step = Step { group, host, after, start, takes: delay, starts, releases };
        self.step(name, step).map(drop)
    }

    /// The flows, ordered by their start and their group, and the steps with the numbers that the
    /// flows now have.
    pub fn ordered(self) -> (Vec<FlowConfig>, Vec<Step>) {
        let Self { flows, mut steps } = self;
        let mut order: Vec<usize> = (0..flows.len()).collect();
        order.sort_by_key(|&number| {
            let flow = &flows[number];
            (flow.is_held, flow.start, flow.group)
        });
        let mut numbers = vec![0; flows.len()];
        for (new, &old) in (0_u32..).zip(&order) {
            numbers[old] = new;
        }
        let renumber = |flow: &mut u32| *flow = numbers[*flow as usize];
        for step in &mut steps {
            step.starts.iter_mut().chain(&mut step.releases).for_each(renumber);
            for milestone in &mut step.after {
                match milestone {
                    Milestone::Ended(flow) | Milestone::Arrived { flow, .. } => renumber(flow),
                    Milestone::Done(_) => {}
                }
            }
        }
        (order.into_iter().map(|number| flows[number]).collect(), steps)
    }
}

/// The number of the last of `count` items.
fn last(count: usize) -> u32 {
    u32::try_from(count - 1).unwrap_or(u32::MAX)
}
