//! Steps: what flows wait for. A step begins when all its milestones are reached, takes its time,
//! and then starts flows and releases messages.

use super::Fabric;
use super::config::{ConfigError, FabricConfig, Milestone, Step};
use super::events::Event;
use super::time::Time;

/// A step during a run.
#[derive(Debug, Clone)]
struct Waiting {
    /// Milestones not reached yet.
    missing: u32,
    takes: Time,
    starts: Vec<u32>,
    releases: Vec<u32>,
    /// Steps that wait for the end of this one.
    followers: Vec<u32>,
    group: u32,
    host: Option<u32>,
    done: Option<Time>,
}

/// All steps of a run.
#[derive(Debug, Default)]
pub(super) struct Steps {
    steps: Vec<Waiting>,
    /// For each flow, the steps that wait for its end. Empty without steps, like `arrived`.
    ended: Vec<Vec<u32>>,
    /// For each flow, the messages that steps wait for, the last one first, and the steps.
    arrived: Vec<Vec<(u32, u32)>>,
    /// Number of steps that have not ended.
    pending: usize,
}

/// A step of a run that has ended, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepResult {
    /// The traffic group that the step belongs to.
    pub group: u32,
    /// The host that works on the step.
    pub host: Option<u32>,
    /// The end of the step.
    pub done: Option<Time>,
}

impl Steps {
    fn new(config: &FabricConfig) -> Result<Self, ConfigError> {
        let (flows, steps) = (config.flows.len(), config.steps.len());
        let mut all = Self {
            steps: config.steps.iter().map(waiting).collect(),
            ended: vec![Vec::new(); flows],
            arrived: vec![Vec::new(); flows],
            pending: steps,
        };
        for (number, step) in (0_u32..).zip(&config.steps) {
            let unknown = || {
                let message = format!("step {number} refers to a flow or step that does not exist");
                ConfigError::about(format!("traffic.{}", step.group))(message)
            };
            for milestone in &step.after {
                let list = match *milestone {
                    Milestone::Ended(flow) => all.ended.get_mut(flow as usize),
                    Milestone::Done(other) => {
                        all.steps.get_mut(other as usize).map(|other| &mut other.followers)
                    }
                    Milestone::Arrived { flow, message } => {
                        let list = all.arrived.get_mut(flow as usize).ok_or_else(unknown)?;
                        list.push((message, number));
                        continue;
                    }
                };
                list.ok_or_else(unknown)?.push(number);
            }
            let own = step.starts.iter().chain(&step.releases);
            if own.copied().max().is_some_and(|flow| flow as usize >= flows) {
                return Err(unknown());
            }
        }
        for list in &mut all.arrived {
            list.sort_unstable_by(|a, b| b.cmp(a));
        }
        Ok(all)
    }

    /// Returns true if every step has ended.
    pub const fn are_done(&self) -> bool {
        self.pending == 0
    }

    /// The steps with the times of their ends.
    pub fn results(&self) -> Vec<StepResult> {
        let result =
            |step: &Waiting| StepResult { group: step.group, host: step.host, done: step.done };
        self.steps.iter().map(result).collect()
    }
}

fn waiting(step: &Step) -> Waiting {
    Waiting {
        missing: u32::try_from(step.after.len()).unwrap_or(u32::MAX),
        takes: step.takes,
        starts: step.starts.clone(),
        releases: step.releases.clone(),
        followers: Vec::new(),
        group: step.group,
        host: step.host,
        done: None,
    }
}

impl Fabric {
    /// Adds the steps, and schedules those that wait for nothing.
    pub(super) fn add_steps(&mut self, config: &FabricConfig) -> Result<(), ConfigError> {
        if config.steps.is_empty() {
            return Ok(());
        }
        self.steps = Steps::new(config)?;
        for (number, step) in (0_u32..).zip(&config.steps) {
            if step.after.is_empty() {
                self.events.push(step.start + step.takes, Event::StepDone { step: number });
            }
        }
        Ok(())
    }

    /// Handles the end of a flow: all its data has been acknowledged.
    pub(super) fn flow_ended(&mut self, flow: u32) {
        let list = self.steps.ended.get_mut(flow as usize).map(std::mem::take);
        for step in list.unwrap_or_default() {
            self.reach(step);
        }
    }

    /// Handles the arrival of messages of a flow.
    pub(super) fn message_arrived(&mut self, flow: u32) {
        let at = &mut self.flows[flow as usize];
        let arrived = at.receiver.messages;
        if at.config.messages.is_some_and(|all| u64::from(all) == arrived) {
            at.receiver.completed = Some(self.now);
        }
        while let Some(list) = self.steps.arrived.get_mut(flow as usize)
            && let Some((_, step)) = list.pop_if(|(message, _)| u64::from(*message) < arrived)
        {
            self.reach(step);
        }
    }

    /// A milestone of `step` is reached.
    fn reach(&mut self, step: u32) {
        let waiting = &mut self.steps.steps[step as usize];
        waiting.missing -= 1;
        if waiting.missing == 0 {
            self.events.push(self.now + waiting.takes, Event::StepDone { step });
        }
    }

    /// Handles the end of a step.
    pub(super) fn step_done(&mut self, number: u32) {
        self.steps.pending -= 1;
        let step = &mut self.steps.steps[number as usize];
        step.done = Some(self.now);
        let starts = std::mem::take(&mut step.starts);
        let releases = std::mem::take(&mut step.releases);
        for next in std::mem::take(&mut step.followers) {
            self.reach(next);
        }
        for flow in starts {
            let config = &self.flows[flow as usize].config;
            let at = self.now + config.start;
            if at < config.stop {
                self.events.push(at, Event::Start { flow });
            }
        }
        for flow in releases {
            self.flows[flow as usize].sender.release_message();
            self.reschedule(flow);
        }
    }
}
