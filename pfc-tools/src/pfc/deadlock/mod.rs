//! `feroce pfc deadlock`: whether PFC can deadlock a network, why, and what to change.

pub mod feedback_set;
pub mod graph;
mod simulate;

use std::io::{self, Write};

use serde::Serialize;

use super::outcome::{Failure, Outcome};
use super::report::print_json;
use crate::fabric::config::{Network, Turn};
use crate::fabric::scenario::{Case, Change};
use crate::scenarios::load;
use feedback_set::{Arc, FeedbackSet, Graph};
use graph::{Dependencies, Dependency, Pairs};

/// Options of `feroce pfc deadlock`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Scenario file, or the name of a built-in scenario (see `feroce fabric list`); topology,
    /// routing and PFC are used
    scenario: String,
    /// Case of the scenario; required if it has several
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Set a key of the scenario: link.0.down=true
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<Change>,
    /// Only consider hosts and priorities of the scenario's traffic [default: all pairs of hosts]
    #[arg(long)]
    traffic: bool,
    /// Also simulate the deadlock, with and without the changes: flows along the cycle, for 10 ms
    #[arg(long)]
    run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Maximum number of rounds of forbidding turns: rerouted packets may close another cycle.
const ROUNDS: usize = 16;

/// A step of a cycle, by names.
#[derive(Debug, Serialize)]
struct Step {
    /// The pausing switch.
    switch: String,
    /// The paused switch.
    paused: String,
    /// Port of the paused switch, counted from 1.
    port: usize,
    /// The pausing switch waits for its link to this switch.
    waits_for: String,
    /// Two hosts whose packets cause the dependency.
    between: [String; 2],
}

/// A set of changes.
#[derive(Debug, Serialize)]
struct Set {
    /// Turns as `s1 > s2 > s3`, or links as `s1->s2`.
    what: Vec<String>,
    /// True if the set is known to be minimal.
    is_minimum: bool,
    /// Lower bound on the number of changes.
    at_least: usize,
}

/// The result of forbidding the turns.
#[derive(Debug, Serialize)]
struct Rerouted {
    /// Further turns that had to be forbidden because of rerouted packets.
    more: Vec<String>,
    /// Two hosts without a route.
    cut_off: Option<[String; 2]>,
    /// True if no cycle is left and all hosts reach each other.
    is_free: bool,
}

/// The result of the analysis.
#[derive(Debug, Serialize)]
struct Report {
    title: String,
    case: String,
    /// The pairs of hosts considered.
    pairs: &'static str,
    /// Lossless priorities; all have the same dependencies.
    priorities: Vec<u8>,
    /// Number of link directions that are part of a dependency.
    links: usize,
    dependencies: usize,
    /// Each link waits for the next.
    cycle: Vec<Step>,
    turns: Option<Set>,
    links_to_change: Option<Set>,
    rerouted: Option<Rerouted>,
    runs: Vec<simulate::RunResult>,
}

/// Analyses the network and prints the result.
///
/// # Errors
/// If the scenario cannot be used or the output cannot be written.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut scenario = load(&options.scenario, &options.changes, None)?;
    if let Some(name) = &options.case {
        let unknown =
            |known| Failure::Unusable(format!("there is no case `{name}`; known cases: {known}"));
        scenario.choose(name).map_err(unknown)?;
    }
    let [case] = &scenario.cases[..] else {
        let known: Vec<&str> = scenario.cases.iter().map(|case| case.name.as_str()).collect();
        return Err(Failure::Unusable(format!(
            "the scenario has {} cases; choose one with --case: {}",
            known.len(),
            known.join(", ")
        )));
    };
    let report = analyse(&scenario.title, case, options)?;
    let mut out = io::stdout().lock();
    match options.json {
        true => print_json(&mut out, &report)?,
        false => show(&mut out, &report)?,
    }
    Ok(Outcome::of(!report.cycle.is_empty()))
}

fn analyse(title: &str, case: &Case, options: &Options) -> Result<Report, Failure> {
    let seed = case.seeds[0];
    let config = case.config(seed, false)?;
    let network = &config.network;
    let lossless = |priority: &u8| config.switch.lossless >> priority & 1 == 1;
    let mut priorities: Vec<u8> = (0..8).filter(lossless).collect();
    if options.traffic && config.flows.is_empty() {
        return Err(Failure::Unusable("--traffic: the scenario has no traffic".to_owned()));
    }
    let pairs = if options.traffic {
        priorities.retain(|priority| config.flows.iter().any(|flow| flow.priority == *priority));
        let flows = config.flows.iter().filter(|flow| lossless(&flow.priority));
        Pairs::These(flows.map(|flow| (flow.from, flow.to)).collect())
    } else {
        Pairs::All
    };
    let mut report = Report {
        title: title.to_owned(),
        case: case.name.clone(),
        pairs: if options.traffic { "the pairs of the traffic" } else { "all hosts" },
        priorities,
        links: 0,
        dependencies: 0,
        cycle: Vec::new(),
        turns: None,
        links_to_change: None,
        rerouted: None,
        runs: Vec::new(),
    };
    if report.priorities.is_empty() {
        return Ok(report);
    }
    let dependencies = Dependencies::of(network, &pairs);
    (report.links, report.dependencies) = (dependencies.links_used(), dependencies.all.len());
    let turns = by_turns(&dependencies);
    let Some(cycle) = turns.cycle() else { return Ok(report) };
    let cycle: Vec<&Dependency> = cycle.iter().map(|&arc| &dependencies.all[arc]).collect();
    report.cycle = cycle.iter().map(|one| step(network, &dependencies, one)).collect();
    let fewest = turns.feedback_set();
    let links = by_links(&dependencies).feedback_set();
    let link = |&link: &usize| {
        let link = &dependencies.links[link];
        format!("{}->{}", network.name(link.from), network.name(link.to))
    };
    report.links_to_change = Some(set(&links, links.removals.iter().map(link).collect()));
    let first: Vec<Turn> = fewest
        .removals
        .iter()
        .map(|&removal| dependencies.turn(&dependencies.all[removal]))
        .collect();
    let name = |turn: &Turn| turn_name(network, *turn);
    report.turns = Some(set(&fewest, first.iter().map(name).collect()));
    let (changed, rerouted) = reroute(network, &pairs, &first);
    let is_free = rerouted.is_free;
    report.rerouted = Some(rerouted);
    if options.run {
        let turns: Vec<_> = cycle.iter().map(|one| (dependencies.turn(one), one.between)).collect();
        let priority = report.priorities[0];
        report.runs = simulate::runs(&config, priority, &turns, is_free.then_some(&changed))
            .map_err(|error| Failure::Unusable(error.to_string()))?;
    }
    Ok(report)
}

fn set(feedback: &FeedbackSet, what: Vec<String>) -> Set {
    Set { what, is_minimum: feedback.is_minimum(), at_least: feedback.at_least }
}

fn turn_name(network: &Network, (from, at, to): Turn) -> String {
    format!("{} > {} > {}", network.name(from), network.name(at), network.name(to))
}

fn step(network: &Network, of: &Dependencies, one: &Dependency) -> Step {
    let (link, next) = (&of.links[one.link], &of.links[one.next]);
    let name = |node: usize| network.name(node).to_owned();
    Step {
        switch: name(link.to),
        paused: name(link.from),
        port: link.port,
        waits_for: name(next.to),
        between: [name(one.between.0 as usize), name(one.between.1 as usize)],
    }
}

/// The dependencies as a graph with turns as removals.
fn by_turns(of: &Dependencies) -> Graph {
    let arc = |(number, one): (usize, &Dependency)| Arc {
        from: one.link,
        to: one.next,
        removal: Some(number),
    };
    let arcs = of.all.iter().enumerate().map(arc).collect();
    Graph::new(of.links.len(), of.all.len(), arcs)
}

/// The dependencies as a graph with links as removals: each link is two vertices with an arc
/// between them.
fn by_links(of: &Dependencies) -> Graph {
    let count = of.links.len();
    let link = |link: usize| Arc { from: 2 * link, to: 2 * link + 1, removal: Some(link) };
    let turn = |one: &Dependency| Arc { from: 2 * one.link + 1, to: 2 * one.next, removal: None };
    let arcs = (0..count).map(link).chain(of.all.iter().map(turn)).collect();
    Graph::new(2 * count, count, arcs)
}

/// Forbids `turns`, and more turns as long as rerouted packets close a cycle.
fn reroute(network: &Network, pairs: &Pairs, turns: &[Turn]) -> (Network, Rerouted) {
    let mut changed = network.clone();
    changed.routing.forbidden.extend(turns);
    let mut rerouted = Rerouted { more: Vec::new(), cut_off: None, is_free: false };
    for _ in 0..ROUNDS {
        let dependencies = Dependencies::of(&changed, pairs);
        if let Some((from, to)) = dependencies.no_route {
            let name = |host: u32| network.name(host as usize).to_owned();
            rerouted.cut_off = Some([name(from), name(to)]);
            break;
        }
        let more = by_turns(&dependencies).feedback_set().removals;
        if more.is_empty() {
            rerouted.is_free = true;
            break;
        }
        for removal in more {
            let turn = dependencies.turn(&dependencies.all[removal]);
            rerouted.more.push(turn_name(network, turn));
            changed.routing.forbidden.insert(turn);
        }
    }
    (changed, rerouted)
}

fn show(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let case = if report.case.is_empty() { String::new() } else { format!(" ({})", report.case) };
    writeln!(out, "{}{case}", report.title)?;
    if report.priorities.is_empty() {
        return writeln!(out, "no lossless priority: PFC pauses nothing, so there is no deadlock");
    }
    let priorities: Vec<String> = report.priorities.iter().map(u8::to_string).collect();
    writeln!(
        out,
        "priority {}: {} dependencies between {} links, from packets between {}",
        priorities.join(", "),
        report.dependencies,
        report.links,
        report.pairs
    )?;
    if report.cycle.is_empty() {
        return writeln!(out, "no cycle: PFC cannot deadlock this network");
    }
    writeln!(out, "a cycle of {} links, each of which can wait for the next:", report.cycle.len())?;
    for Step { switch, paused, port, waits_for, between: [from, to] } in &report.cycle {
        writeln!(
            out,
            "  {switch} pauses port {port} of {paused} while its own link to {waits_for} is paused \
             (packets from {from} to {to})"
        )?;
    }
    if let (Some(turns), Some(links)) = (&report.turns, &report.links_to_change) {
        show_set(out, "turn", turns)?;
        show_set(out, "link", links)?;
        writeln!(
            out,
            "Route around them, or move their packets to another lossless priority or a lossy one."
        )?;
    }
    if let Some(rerouted) = &report.rerouted {
        show_rerouted(out, rerouted)?;
    }
    report.runs.iter().try_for_each(|seen| writeln!(out, "{seen}"))
}

fn show_set(out: &mut impl Write, what: &str, set: &Set) -> io::Result<()> {
    let count = set.what.len();
    let sure = match set.is_minimum {
        true => "the minimum".to_owned(),
        false => format!("approximation: at least {} are needed", set.at_least),
    };
    let s = if count == 1 { "" } else { "s" };
    writeln!(out, "removing {count} {what}{s} breaks all cycles ({sure}): {}", set.what.join(", "))
}

fn show_rerouted(out: &mut impl Write, rerouted: &Rerouted) -> io::Result<()> {
    let more = match rerouted.more.len() {
        0 => String::new(),
        count => {
            format!(" and {count} more of rerouted packets ({})", rerouted.more.join(", "))
        }
    };
    match &rerouted.cut_off {
        Some([from, to]) => {
            writeln!(out, "without these turns{more} there is no route from {from} to {to}")
        }
        None if rerouted.is_free => {
            writeln!(
                out,
                "without these turns{more} all hosts reach each other and there is no cycle"
            )
        }
        None => writeln!(out, "without these turns{more} cycles remain"),
    }
}
