//! Leaves out parts of a workload.

use std::fmt;

use super::request::Action;
use super::shrink::{Shrink, without_each_fault};
use super::workload::{Workload, consumers};

impl Shrink for Workload {
    /// Leaves out a pair, a kind of fault, an action, or the last requests of a QP. Requests depend
    /// on earlier ones, therefore none is left out before others.
    fn smaller(&self) -> Vec<Self> {
        let pairs = if self.sides.len() > 1 { self.sides.len() } else { 0 };
        let mut all: Vec<Self> = (0..pairs).map(|pair| self.without_pair(pair)).collect();
        for faults in without_each_fault(&self.options.faults) {
            let mut workload = self.clone();
            workload.options.faults = faults;
            all.push(workload);
        }
        all.extend(self.actions.iter().map(|timed| self.without_action(timed.action)));
        for pair in 0..self.sides.len() {
            for end in 0..2 {
                let count = self.sides[pair][end].final_from.0;
                let mut kept = vec![0, count / 2, count.saturating_sub(1)];
                kept.dedup();
                let kept = kept.into_iter().filter(|&kept| kept < count);
                all.extend(kept.map(|kept| self.with_requests(pair, end, kept)));
            }
        }
        all
    }
}

impl Workload {
    fn without_pair(&self, left_out: usize) -> Self {
        let mut workload = self.clone();
        workload.sides.remove(left_out);
        workload.options.psns.remove(left_out);
        workload.options.pairs -= 1;
        workload.actions.retain(|timed| timed.action.pair() != Some(left_out));
        for timed in &mut workload.actions {
            if let Some(pair) = timed.action.pair_mut().filter(|pair| **pair > left_out) {
                *pair -= 1;
            }
        }
        workload
    }

    /// Without `action` and what ends its effect.
    fn without_action(&self, action: Action) -> Self {
        let mut workload = self.clone();
        workload.actions.retain(|timed| match action {
            Action::Drain { .. } | Action::Resume { .. } => {
                !matches!(timed.action, Action::Drain { .. } | Action::Resume { .. })
            }
            Action::Cut { .. } | Action::Restore => {
                !matches!(timed.action, Action::Cut { .. } | Action::Restore)
            }
            _ => timed.action != action,
        });
        workload
    }

    /// With only the first `kept` requests of a QP and the receives for them, apart from the final
    /// ones.
    fn with_requests(&self, pair: usize, end: usize, kept: usize) -> Self {
        let mut workload = self.clone();
        let [sender, receiver] = [end, 1 - end];
        let side = &mut workload.sides[pair][sender];
        side.requests.drain(kept..side.final_from.0);
        side.final_from.0 = kept;
        let receives = consumers(&side.requests[..kept]).len();
        let side = &mut workload.sides[pair][receiver];
        if receives < side.final_from.1 {
            side.receives.drain(receives..side.final_from.1);
            side.final_from.1 = receives;
        }
        workload
    }

    /// Says in a line how large the scenario is.
    pub(super) fn size(&self) -> String {
        let requests: usize = self.sides.iter().flatten().map(|side| side.requests.len()).sum();
        let (pairs, actions) = (self.sides.len(), self.actions.len());
        format!("{pairs} pairs, {requests} requests, {actions} actions, {:?}", self.options.faults)
    }
}

impl Action {
    /// The pair that it happens to.
    fn pair(mut self) -> Option<usize> {
        self.pair_mut().copied()
    }

    fn pair_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Kill { pair, .. } | Self::Drain { pair, .. } | Self::Resume { pair, .. } => {
                Some(pair)
            }
            Self::Cut { .. } | Self::Restore | Self::Deregister { .. } => None,
        }
    }
}

/// Shows the options and the actions; the trace shows the requests.
impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Workload");
        shown.field("options", &self.options);
        shown.field("actions", &self.actions).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::Trace;
    use super::*;
    use crate::swarm::replay::Scenario;

    #[test]
    fn what_is_left_of_a_scenario_that_passes_passes() {
        for seed in 0..10 {
            let scenario = Workload::generate(seed);
            assert_eq!(scenario.run(&mut Trace::off()), Ok(()), "seed {seed}");
            for (number, smaller) in scenario.smaller().iter().enumerate() {
                let result = smaller.run(&mut Trace::off());
                assert_eq!(result, Ok(()), "seed {seed}, number {number}: {smaller:#?}");
            }
        }
    }
}
