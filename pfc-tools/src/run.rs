//! Runs the cases of a scenario and evaluates their gates.

use std::collections::BTreeMap;

use crate::curve;
use crate::fabric::Fabric;
use crate::fabric::measure::histogram::TimeHistogram;
use crate::fabric::measure::{FlowResult, Results, per_second};
use crate::fabric::scenario::{Bound, Case, Gate, Measure, ScenarioError, Stat};
use crate::fabric::time::Time;
use crate::parallel;

/// The result of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The value is within the bounds.
    Holds,
    /// The value is outside the bounds, as the scenario says.
    Missed,
    /// The value is outside the bounds, or a miss is no longer what the scenario says.
    Fails,
    /// The gate has no bounds, or the case that they refer to has not been run.
    Shown,
}

impl Verdict {
    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Missed => "missed",
            Self::Fails => "fails",
            Self::Shown => "",
        }
    }
}

/// A gate and the value measured for it.
#[derive(Debug, Clone, PartialEq)]
pub struct GateResult {
    /// The gate.
    pub gate: Gate,
    /// The measured value; `None` if nothing was measured.
    pub value: Option<f64>,
    /// The lower bound, if any.
    pub least: Option<f64>,
    /// The upper bound, if any.
    pub most: Option<f64>,
    /// For completion times and slowdowns: flows that did not finish, which the value leaves out.
    pub unfinished: Option<usize>,
    /// The result.
    pub verdict: Verdict,
    /// The value is within the bounds, whatever the scenario explains.
    pub holds: bool,
}

impl GateResult {
    /// Judges `value`. `of_case` returns the value of the gate of the same name in another case.
    pub fn judge(
        gate: &Gate,
        value: Option<f64>,
        unfinished: Option<usize>,
        of_case: impl Fn(&str) -> Option<f64>,
    ) -> Self {
        let (mut least, mut most) = (gate.lower(), gate.upper());
        let (mut is_above, mut is_judged) = (true, !gate.bounds.is_empty());
        let tighten = |bound: &mut Option<f64>, by: f64, pick: fn(f64, f64) -> f64| {
            *bound = Some(bound.map_or(by, |known| pick(known, by)));
        };
        for bound in &gate.bounds {
            let Some(name) = bound.other_case() else { continue };
            let Some(other) = of_case(name) else {
                is_judged = false;
                continue;
            };
            tighten(&mut least, other, f64::max);
            if let Bound::Near { part, .. } = bound {
                let around = part * other.abs();
                (least, most) = (Some(other - around), Some(other + around));
            } else {
                is_above &= value.is_some_and(|value| value > other);
            }
        }
        let is_within = |value: f64, least: Option<f64>, most: Option<f64>| {
            least.is_none_or(|min| value >= min) && most.is_none_or(|max| value <= max)
        };
        let holds = is_above && value.is_some_and(|value| is_within(value, least, most));
        let is_known = |value| {
            let explained = gate.explained.as_ref();
            explained.is_some_and(|miss| is_within(value, Some(miss.at_least), Some(miss.at_most)))
        };
        let verdict = match (holds, &gate.explained) {
            _ if !is_judged => Verdict::Shown,
            (true, None) => Verdict::Holds,
            (false, Some(_)) if value.is_some_and(is_known) => Verdict::Missed,
            _ => Verdict::Fails,
        };
        Self {
            gate: gate.clone(),
            value,
            least,
            most,
            unfinished,
            verdict,
            holds: holds && is_judged,
        }
    }

    /// Returns true if the gate holds, or misses as the scenario says.
    pub fn is_accepted(&self) -> bool {
        self.verdict != Verdict::Fails
    }
}

/// The cases of a scenario that have run, in order: gates may refer to their values.
#[derive(Debug, Default)]
pub struct Judge {
    values: BTreeMap<(String, String), f64>,
}

impl Judge {
    /// Judges the gates of a case.
    pub fn judge(&mut self, case: &Case, case_run: CaseRun) -> CaseResult {
        let CaseRun { results, values, violations } = case_run;
        let gate_results = case.gates.iter().zip(values).map(|(gate, value)| {
            let key = |case: &str| (case.to_owned(), gate.name.clone());
            let of_case = |case: &str| self.values.get(&key(case)).copied();
            let judged = GateResult::judge(gate, value, unfinished(gate, &results), of_case);
            self.values.extend(value.map(|value| (key(&case.name), value)));
            judged
        });
        CaseResult { gate_results: gate_results.collect(), violations, results }
    }
}

/// The flows that a value leaves out because they did not finish.
fn unfinished(gate: &Gate, results: &[Results]) -> Option<usize> {
    match gate.measure {
        Measure::Completion(group)
        | Measure::Slowdown(group)
        | Measure::Collective(group)
        | Measure::Rank(group) => Some(results.iter().map(|result| result.unfinished(group)).sum()),
        _ => None,
    }
}

/// A case after its runs, before its gates are judged.
#[derive(Debug)]
pub struct CaseRun {
    /// Results, one for each seed.
    pub results: Vec<Results>,
    /// The value of each gate.
    pub values: Vec<Option<f64>>,
    /// See [`CaseResult::violations`].
    pub violations: Vec<String>,
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
    /// Returns true if there is no violation and no gate fails.
    pub fn holds(&self) -> bool {
        self.violations.is_empty() && self.gate_results.iter().all(GateResult::is_accepted)
    }
}

/// Runs a case for all its seeds.
///
/// # Errors
/// See [`ScenarioError`].
pub fn run(case: &Case, keep_samples: bool) -> Result<CaseRun, ScenarioError> {
    let each = |&seed: &u64| run_seed(case, seed, keep_samples, |_| {});
    let runs = case.seeds.iter().map(each).collect::<Result<_, _>>()?;
    Ok(case_run(case, runs))
}

/// Runs `cases` for all their seeds, `jobs` runs at a time. Calls `progress` with the virtual time
/// that a run has advanced, every 2^18 events and at its end, and `each` with the number and the
/// results of each case, in order: nothing that `each` sees depends on `jobs`.
///
/// # Errors
/// The first error of `each`.
pub(crate) fn run_all<E: Send>(
    cases: &[&Case],
    keep_samples: bool,
    jobs: usize,
    progress: impl Fn(Time) + Sync,
    mut each: impl FnMut(usize, Result<CaseRun, ScenarioError>) -> Result<(), E>,
) -> Result<(), E> {
    let seeds = |(number, case): (usize, &&Case)| -> Vec<(usize, u64)> {
        case.seeds.iter().map(|&seed| (number, seed)).collect()
    };
    let units: Vec<(usize, u64)> = cases.iter().enumerate().flat_map(seeds).collect();
    let work = |unit: usize| {
        let (number, seed) = units[unit];
        run_seed(cases[number], seed, keep_samples, &progress)
    };
    let mut runs = Vec::new();
    parallel::in_order(jobs, units.len(), work, |unit, ran| {
        let (number, _) = units[unit];
        runs.push(ran);
        match units.get(unit + 1) {
            Some((next, _)) if *next == number => Ok(()),
            _ => {
                let runs: Result<_, _> = std::mem::take(&mut runs).into_iter().collect();
                each(number, runs.map(|runs| case_run(cases[number], runs)))
            }
        }
    })
}

/// The run of one seed: its results and [`CaseResult::violations`].
type SeedRun = (Results, Vec<String>);

fn run_seed(
    case: &Case,
    seed: u64,
    keep_samples: bool,
    progress: impl Fn(Time),
) -> Result<SeedRun, ScenarioError> {
    let keeps = |gate: &Gate| matches!(gate.measure, Measure::Curve { .. });
    let keep_samples = keep_samples || case.gates.iter().any(keeps);
    let config = case.config(seed, keep_samples)?;
    let mut fabric = Fabric::new(&config).map_err(|error| case.inconsistent(error.to_string()))?;
    let mut before = Time::ZERO;
    while !fabric.run(1 << 18) {
        progress(fabric.now() - before);
        before = fabric.now();
    }
    progress(fabric.duration() - before);
    let results = fabric.results();
    let mut violations = Vec::new();
    if !case.gates.iter().any(|gate| gate.measure == Measure::Deadlocks)
        && let Some(deadlock) = &results.deadlock
    {
        violations.push(format!("seed {seed}: {}", deadlock.describe(case.network())));
    }
    if case.lossless {
        let seen = results.violations().into_iter();
        violations.extend(seen.map(|violation| format!("seed {seed}: {violation}")));
    }
    Ok((results, violations))
}

/// The runs of all seeds of a case.
fn case_run(case: &Case, runs: Vec<SeedRun>) -> CaseRun {
    let (results, violations): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let values = case.gates.iter().map(|gate| value(gate, case, &results)).collect();
    CaseRun { results, values, violations: violations.into_iter().flatten().collect() }
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
        Measure::Collective(group) => {
            // If a run does not complete, the gate has no value.
            let ends = results.iter().map(|result| result.collective(*group));
            ends.map(|end| Some(end?.1.seconds() * 1e6)).collect::<Option<_>>()?
        }
        Measure::Rank(group) => {
            let ranks = results.iter().flat_map(|result| result.ranks(*group));
            ranks.filter_map(|rank| Some(rank.completion?.seconds() * 1e6)).collect()
        }
        Measure::Wire { node, next } => {
            let ports = results.iter().flat_map(|result| &result.ports);
            let own = ports.filter(|port| (port.node, port.peer) == (*node, *next));
            own.map(|port| port.wire / 1e9).collect()
        }
        Measure::Curve { of, file } => {
            let distances = results.iter().map(|result| curve::distance(*of, file, result));
            distances.collect::<Option<_>>()?
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
    use crate::fabric::scenario::{Explained, Kind};

    #[test]
    fn quantiles_lie_between_values() {
        let of = |kind| stat(kind, vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        let all =
            [Stat::Min, Stat::Quantile(500), Stat::Quantile(1000), Stat::Mean, Stat::Sum].map(of);
        assert_eq!(all, [1.0, 2.5, 4.0, 2.5, 10.0]);
        assert_eq!(stat(Stat::Mean, Vec::new()), None);
        assert_eq!(stat(Stat::Variation, vec![1.0, 3.0]), Some(0.5));
    }

    fn gate(bounds: Vec<Bound>) -> Gate {
        Gate {
            name: "g".to_owned(),
            kind: Some(Kind::Regression),
            reproduces: None,
            measure: Measure::Drops,
            stat: Stat::Sum,
            bounds,
            published: None,
            ns3: None,
            explained: None,
        }
    }

    #[test]
    fn a_gate_holds_within_its_bounds() {
        let verdict = |bounds: &[Bound], value| {
            let other = |case: &str| (case == "a").then_some(10.0);
            GateResult::judge(&gate(bounds.to_vec()), value, None, other).verdict
        };
        let within = [Bound::AtLeast(9.0), Bound::AtMost(11.0)];
        let near = [Bound::Near { case: "a".to_owned(), part: 0.1 }];
        for bounds in [&within[..], &near] {
            for (value, due) in
                [(9.0, Verdict::Holds), (11.0, Verdict::Holds), (8.9, Verdict::Fails)]
            {
                assert_eq!(verdict(bounds, Some(value)), due, "{bounds:?} {value}");
            }
            assert_eq!(verdict(bounds, None), Verdict::Fails);
        }
        let above = |case: &str| [Bound::Above { case: case.to_owned() }];
        assert_eq!(verdict(&above("a"), Some(10.1)), Verdict::Holds);
        assert_eq!(verdict(&above("a"), Some(10.0)), Verdict::Fails);
        assert_eq!(verdict(&above("b"), Some(10.1)), Verdict::Shown, "`b` was not run");
        assert_eq!(verdict(&[], None), Verdict::Shown);
    }

    /// An explained miss can fail too: if it moves, and if the gate holds after all.
    #[test]
    fn an_explained_miss_has_a_bound_of_its_own() {
        let why = "why".to_owned();
        let explained = Some(Explained { why, at_least: 7.0, at_most: 8.0 });
        let gate = Gate { explained, ..gate(vec![Bound::AtLeast(9.0)]) };
        let of = |value| GateResult::judge(&gate, Some(value), None, |_| None);
        let verdicts = [6.9, 7.0, 8.0, 8.1, 9.0].map(|value| of(value).verdict);
        let due =
            [Verdict::Fails, Verdict::Missed, Verdict::Missed, Verdict::Fails, Verdict::Fails];
        assert_eq!(verdicts, due);
        assert!(of(7.5).is_accepted() && !of(9.0).is_accepted());
    }
}
