//! Simulates the deadlock, and the network without it: flows along a cycle.

use std::fmt;

use serde::Serialize;

use crate::fabric::Fabric;
use crate::fabric::config::{ConfigError, Control, FabricConfig, FlowConfig, Network, Turn};
use crate::fabric::time::{LinkRate, Time};

/// Duration of a run.
const DURATION: Time = Time::from_millis(10);
/// Warm-up of a run.
const WARMUP: Time = Time::from_millis(5);
/// Flows tried between two hosts to find one that takes a certain turn.
const CANDIDATES: u32 = 64;
/// Divisors of the link rate on the cycle: the full rate is tried first, then a tenth.
const DIVISORS: [u64; 2] = [1, 10];

/// The result of a run.
#[derive(Debug, Serialize)]
pub(super) struct RunResult {
    /// True if the turns were forbidden.
    changed: bool,
    /// Divisor of the link rates on the cycle.
    slowness: u64,
    flows: usize,
    /// Description of the deadlock.
    deadlock: Option<String>,
    /// Goodput in the second half of the run, in Gb/s.
    goodput: f64,
    /// Flows without any goodput in the second half.
    starved: usize,
}

impl fmt::Display for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { changed, slowness, flows, deadlock, goodput, starved } = self;
        let network = if *changed { "without these turns" } else { "unchanged" };
        let slow = match slowness {
            1 => String::new(),
            parts => format!(", links of the cycle at 1/{parts} of their rate"),
        };
        let deadlock = deadlock.as_deref().unwrap_or("no deadlock");
        write!(
            f,
            "simulated, {network}, {flows} flows{slow}: {deadlock}; then {goodput:.1} Gb/s, \
             {starved} flows without progress"
        )
    }
}

/// Simulates flows that take `turns`, each between its two hosts, in the unchanged network; after a
/// deadlock, also in `changed`.
pub(super) fn runs(
    base: &FabricConfig,
    priority: u8,
    turns: &[(Turn, (u32, u32))],
    changed: Option<&Network>,
) -> Result<Vec<RunResult>, ConfigError> {
    let mut config = FabricConfig {
        duration: DURATION,
        warmup: WARMUP,
        sample: Time::from_micros(50),
        watch: Vec::new(),
        ..base.clone()
    };
    config.flows = flows(&mut config, priority, turns)?;
    let mut seen = Vec::new();
    for slowness in DIVISORS {
        let slow = with_slower_links(&config, turns, slowness);
        let found = simulate(&slow, false, slowness)?;
        let is_deadlock = found.deadlock.is_some();
        seen.push(found);
        if is_deadlock {
            if let Some(changed) = changed {
                let routing = changed.routing.clone();
                let network = Network { routing, ..slow.network.clone() };
                seen.push(simulate(&FabricConfig { network, ..slow }, true, slowness)?);
            }
            break;
        }
    }
    Ok(seen)
}

/// One endless flow for each turn: the first flow between its hosts that takes the turn. The others
/// never start.
fn flows(
    config: &mut FabricConfig,
    priority: u8,
    turns: &[(Turn, (u32, u32))],
) -> Result<Vec<FlowConfig>, ConfigError> {
    let idle = |(from, to): (u32, u32)| FlowConfig {
        from,
        to,
        group: 0,
        priority,
        message: 1 << 20,
        messages: None,
        chain: None,
        is_held: false,
        released: None,
        start: DURATION + DURATION,
        stop: Time::FAR,
        control: Control::Off,
        initial_rate: None,
    };
    let mut pairs: Vec<(u32, u32)> = turns.iter().map(|turn| turn.1).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let repeated = |pair| std::iter::repeat_n(pair, CANDIDATES as usize);
    config.flows = pairs.into_iter().flat_map(repeated).map(idle).collect();
    let fabric = Fabric::new(config)?;
    let mut flows = config.flows.clone();
    for ((from, at, to), pair) in turns {
        let takes_turn = |number: &usize| {
            let path = fabric.path(*number);
            (flows[*number].from, flows[*number].to) == *pair
                && path.windows(3).any(|nodes| nodes == [*from, *at, *to])
        };
        if let Some(number) = (0..flows.len()).find(takes_turn) {
            flows[number].start = Time::ZERO;
        }
    }
    Ok(flows)
}

/// The configuration with slower links on the cycle: slow hosts could not fill the cycle at the
/// full rate.
fn with_slower_links(
    config: &FabricConfig,
    turns: &[(Turn, (u32, u32))],
    slowness: u64,
) -> FabricConfig {
    let mut slow = config.clone();
    for link in &mut slow.network.links {
        let is_here =
            |(from, at, _): Turn| (link.a, link.b) == (from, at) || (link.a, link.b) == (at, from);
        if turns.iter().any(|turn| is_here(turn.0)) {
            link.rate = LinkRate::new((link.rate.bits_per_second() / slowness).max(1));
        }
    }
    slow
}

fn simulate(config: &FabricConfig, changed: bool, slowness: u64) -> Result<RunResult, ConfigError> {
    let mut fabric = Fabric::new(config)?;
    while !fabric.run(1 << 20) {}
    let results = fabric.results();
    let flows: Vec<_> = results.flows.iter().filter(|flow| flow.started.is_some()).collect();
    Ok(RunResult {
        changed,
        slowness,
        flows: flows.len(),
        deadlock: results.deadlock.map(|deadlock| deadlock.describe(&config.network)),
        goodput: flows.iter().filter_map(|flow| flow.goodput).sum::<f64>() / 1e9,
        starved: flows.iter().filter(|flow| flow.goodput == Some(0.0)).count(),
    })
}
