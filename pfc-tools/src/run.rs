//! Runs the cases of a scenario and evaluates their gates.

use std::collections::BTreeMap;

use crate::fabric::Fabric;
use crate::fabric::measure::histogram::TimeHistogram;
use crate::fabric::measure::{FlowResult, Results, per_second};
use crate::fabric::scenario::{Bound, Case, Gate, Measure, ScenarioError, Stat};
use crate::fabric::time::Time;

/// How far a run has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Current virtual time.
    pub now: Time,
    /// Virtual time at which the run ends.
    pub duration: Time,
    /// Events processed so far.
    pub events: u64,
}

/// A gate and the value measured for it.
#[derive(Debug, Clone, PartialEq)]
pub struct GateResult {
    /// The gate.
    pub gate: Gate,
    /// The measured value; `None` if nothing was measured.
    pub value: Option<f64>,
}

impl GateResult {
    /// Returns true if the value is within all bounds of the gate.
    pub fn holds(&self) -> bool {
        let is_fine = |bound: &Bound| match (self.value, *bound) {
            (_, Bound::Shown { .. }) => true,
            (None, _) => false,
            (Some(value), Bound::Within { published, part }) => {
                (value - published).abs() <= part * published.abs()
            }
            (Some(value), Bound::AtLeast(min)) => value >= min,
            (Some(value), Bound::AtMost(max)) => value <= max,
        };
        self.gate.bounds.iter().all(is_fine)
    }

    /// Returns true if the gate holds or the scenario explains why it does not.
    pub fn is_accepted(&self) -> bool {
        self.holds() || self.gate.explained.is_some()
    }

    /// The published value, if the gate has one.
    pub fn published(&self) -> Option<f64> {
        self.gate.bounds.iter().find_map(|bound| match *bound {
            Bound::Within { published, .. } => Some(published),
            Bound::Shown { published } => published,
            _ => None,
        })
    }
}

/// The results of one case.
#[derive(Debug)]
pub struct CaseResult {
    /// Results, one for each seed.
    pub results: Vec<Results>,
    /// The gates and their values.
    pub gate_results: Vec<GateResult>,
    /// Violations: in a lossless case losses, NAKs, timeouts and failed QPs; a deadlock, if no gate
    /// measures deadlocks.
    pub violations: Vec<String>,
}

impl CaseResult {
    /// Returns true if there is no violation and each gate holds or is explained.
    pub fn holds(&self) -> bool {
        self.violations.is_empty() && self.gate_results.iter().all(GateResult::is_accepted)
    }
}

/// Runs a case for all its seeds. Calls `progress` every 2^18 events.
///
/// # Errors
/// See [`ScenarioError`].
pub fn run(
    case: &Case,
    keep_samples: bool,
    mut progress: impl FnMut(Progress),
) -> Result<CaseResult, ScenarioError> {
    let mut results = Vec::new();
    let mut violations = Vec::new();
    for &seed in &case.seeds {
        let config = case.config(seed, keep_samples)?;
        let mut fabric =
            Fabric::new(&config).map_err(|error| case.inconsistent(error.to_string()))?;
        while !fabric.run(1 << 18) {
            progress(Progress {
                now: fabric.now(),
                duration: fabric.duration(),
                events: fabric.events(),
            });
        }
        let result = fabric.results();
        if !case.gates.iter().any(|gate| gate.measure == Measure::Deadlocks)
            && let Some(deadlock) = &result.deadlock
        {
            violations.push(format!("seed {seed}: {}", deadlock.describe(case.network())));
        }
        if case.lossless {
            violations.extend(
                result
                    .violations()
                    .into_iter()
                    .map(|violation| format!("seed {seed}: {violation}")),
            );
        }
        results.push(result);
    }
    let judge = |gate: &Gate| GateResult { gate: gate.clone(), value: value(gate, case, &results) };
    let gate_results = case.gates.iter().map(judge).collect();
    Ok(CaseResult { gate_results, violations, results })
}

/// Computes a gate's value over the results of all seeds.
#[allow(clippy::cast_precision_loss)] // Counts below 2^53.
fn value(gate: &Gate, case: &Case, results: &[Results]) -> Option<f64> {
    let flows = |group: &Option<u32>| {
        let group = *group;
        let all = results.iter().flat_map(|result| &result.flows);
        all.filter(move |flow| {
            flow.started.is_some() && group.is_none_or(|group| flow.group == group)
        })
    };
    let values: Vec<f64> = match &gate.measure {
        Measure::Goodput(group) => goodputs(*group, results),
        Measure::Alpha(group) => flows(group).filter_map(|flow| flow.alpha).collect(),
        Measure::Completion(group) => {
            flows(group).filter_map(|flow| Some(flow.completion()?.seconds() * 1e6)).collect()
        }
        Measure::Slowdown(group) => flows(group).filter_map(FlowResult::slowdown).collect(),
        Measure::Wire { node, next } => {
            let ports = results.iter().flat_map(|result| &result.ports);
            let own = ports.filter(|port| (port.node, port.peer) == (*node, *next));
            own.map(|port| port.wire / 1e9).collect()
        }
        Measure::Queue { node, next } => return queue(gate.stat, (*node, *next), results),
        Measure::Pauses(prefix) => {
            let here = |node: usize| case.network().name(node).starts_with(prefix);
            let of = |result: &Results| {
                let ports = result.ports.iter().filter(|port| here(port.node));
                ports.map(|port| port.counts.pauses_received).sum::<u64>() as f64
            };
            results.iter().map(of).collect()
        }
        Measure::Drops => {
            let of = |result: &Results| {
                result.ports.iter().map(|port| port.counts.dropped).sum::<u64>() as f64
            };
            results.iter().map(of).collect()
        }
        Measure::Deadlocks => {
            results.iter().map(|result| f64::from(u8::from(result.deadlock.is_some()))).collect()
        }
        Measure::Retransmitted => {
            let of = |result: &Results| {
                result.flows.iter().map(|flow| flow.sender.retransmitted).sum::<u64>() as f64
            };
            results.iter().map(of).collect()
        }
    };
    stat(gate.stat, values)
}

/// Goodput of each flow in Gb/s. The transfers of a closed loop count as one flow.
fn goodputs(group: Option<u32>, results: &[Results]) -> Vec<f64> {
    let mut values = Vec::new();
    for result in results {
        let mut loops = BTreeMap::<(u32, u32), u64>::new();
        for flow in result.flows.iter().filter(|flow| group.is_none_or(|own| flow.group == own)) {
            match flow.chain {
                Some(chain) => *loops.entry((flow.group, chain)).or_default() += flow.delivered,
                None => values.extend(flow.goodput.map(|goodput| goodput / 1e9)),
            }
        }
        let rate = |&bytes: &u64| per_second(bytes, result.ended - result.counted_from) / 1e9;
        values.extend(loops.values().map(rate));
    }
    values
}

/// A statistic of a queue's length, in KB.
#[allow(clippy::cast_precision_loss)]
fn queue(stat: Stat, at: (usize, usize), results: &[Results]) -> Option<f64> {
    let mut lengths = TimeHistogram::default();
    let queues = results.iter().flat_map(|result| &result.queues);
    for queue in queues.filter(|queue| (queue.node, queue.peer) == at) {
        lengths.merge(&queue.lengths);
    }
    if lengths.is_empty() {
        return None;
    }
    let bytes = match stat {
        Stat::Mean => lengths.mean(),
        Stat::Variation => {
            return Some(lengths.deviation() / lengths.mean().max(f64::MIN_POSITIVE));
        }
        Stat::Max | Stat::Sum => lengths.max() as f64,
        Stat::Min => lengths.quantile(0) as f64,
        Stat::Quantile(permille) => lengths.quantile(u64::from(permille)) as f64,
    };
    Some(bytes / 1e3)
}

/// Reduces several values to one number.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn stat(stat: Stat, mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (first, last) = (*values.first()?, *values.last()?);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    Some(match stat {
        Stat::Min => first,
        Stat::Max => last,
        Stat::Sum => values.iter().sum(),
        Stat::Mean => mean,
        Stat::Variation => {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / values.len() as f64).sqrt() / mean
        }
        Stat::Quantile(permille) => {
            // Interpolates linearly between the two neighbouring values.
            let place = f64::from(permille) / 1000.0 * (values.len() - 1) as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            let high = values.get(low + 1).copied().unwrap_or(last);
            values[low] + (high - values[low]) * part
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        let of = |kind| stat(kind, vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        let all =
            [Stat::Min, Stat::Quantile(500), Stat::Quantile(1000), Stat::Mean, Stat::Sum].map(of);
        assert_eq!(all, [1.0, 2.5, 4.0, 2.5, 10.0]);
        assert_eq!(stat(Stat::Mean, Vec::new()), None);
        assert_eq!(stat(Stat::Variation, vec![1.0, 3.0]), Some(0.5));
    }

    #[test]
    fn a_gate_holds_within_its_bounds() {
        let gate = |bound| Gate {
            name: String::new(),
            measure: Measure::Drops,
            stat: Stat::Sum,
            bounds: vec![bound],
            ns3: None,
            explained: None,
        };
        let holds = |bound, value| GateResult { gate: gate(bound), value }.holds();
        let within = Bound::Within { published: 10.0, part: 0.1 };
        assert!(holds(within, Some(9.0)) && holds(within, Some(11.0)));
        assert!(!holds(within, Some(8.9)) && !holds(within, None));
        assert!(holds(Bound::AtLeast(1.0), Some(1.0)) && !holds(Bound::AtMost(1.0), Some(1.1)));
        assert!(holds(Bound::Shown { published: None }, None));
        let missed = GateResult { gate: gate(within), value: Some(8.0) };
        let explained = Gate { explained: Some("why".to_owned()), ..gate(within) };
        let explained = GateResult { gate: explained, value: Some(8.0) };
        assert!(!missed.is_accepted() && !explained.holds() && explained.is_accepted());
    }
}
