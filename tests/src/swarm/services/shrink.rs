//! Leaves out parts of a plan.

use super::super::shrink::{Shrink, without_each_fault, without_parts};
use super::plan::{Action, Plan};

impl Shrink for Plan {
    /// Leaves out cores, congestion control, a pair, a kind of fault, actions, or messages of a
    /// lane.
    fn smaller(&self) -> Vec<Self> {
        let pairs = if self.pairs.len() > 1 { 0..self.pairs.len() } else { 0..0 };
        let mut all: Vec<Self> = pairs.clone().map(|pair| self.without_pair(pair)).collect();
        all.extend((self.cores > 1).then(|| Self { cores: 1, ..self.clone() }));
        all.extend(self.congestion.then(|| Self { congestion: false, ..self.clone() }));
        let without_faults = without_each_fault(&self.faults).into_iter();
        all.extend(without_faults.map(|faults| Self { faults, ..self.clone() }));
        let without_actions = without_parts(&self.actions).into_iter();
        all.extend(without_actions.map(|actions| Self { actions, ..self.clone() }));
        for pair in 0..self.pairs.len() {
            for from in 0..2 {
                for messages in without_parts(&self.pairs[pair].lanes[from].messages) {
                    let mut plan = self.clone();
                    plan.pairs[pair].lanes[from].messages = messages;
                    all.push(plan);
                }
            }
        }
        all
    }
}

impl Plan {
    fn without_pair(&self, left_out: usize) -> Self {
        let mut plan = self.clone();
        plan.pairs.remove(left_out);
        plan.actions.retain(|(_, action)| action.pair() != Some(left_out));
        for (_, action) in &mut plan.actions {
            if let Some(pair) = action.pair_mut().filter(|pair| **pair > left_out) {
                *pair -= 1;
            }
        }
        plan
    }
}

impl Action {
    /// The pair that it happens to.
    fn pair(mut self) -> Option<usize> {
        self.pair_mut().copied()
    }

    fn pair_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Resize { .. } => None,
            Self::Kill { pair, .. }
            | Self::Destroy { pair, .. }
            | Self::Renew { pair }
            | Self::Migrate { pair }
            | Self::Deregister { pair, .. }
            | Self::CloseWindow { pair, .. }
            | Self::Drain { pair, .. }
            | Self::Resume { pair, .. }
            | Self::Stay { pair, .. }
            | Self::Break { pair, .. }
            | Self::BreakReceive { pair, .. }
            | Self::Recover { pair, .. } => Some(pair),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ServiceScenario;
    use crate::swarm::replay::Scenario;
    use crate::swarm::shrink::Shrink;
    use crate::swarm::trace::Trace;

    #[test]
    fn what_is_left_of_a_scenario_that_passes_passes() {
        for seed in 0..4 {
            let scenario = ServiceScenario::generate(seed);
            assert_eq!(scenario.run(&mut Trace::off()), Ok(()), "seed {seed}");
            for (number, smaller) in scenario.smaller().iter().enumerate() {
                let result = smaller.run(&mut Trace::off());
                assert_eq!(result, Ok(()), "seed {seed}, number {number}: {smaller:#?}");
            }
        }
    }
}
