//! `feroce pfc deadlock`: whether PFC can bring a network to a stand for ever, why, and what to change.

pub mod feedback;
pub mod graph;
mod witness;

use std::io::{self, Write};

use serde::Serialize;

use super::cli::{Failure, Outcome};
use super::report::print_json;
use crate::cli::{change, load};
use crate::fabric::config::{Network, Turn};
use crate::fabric::scenario::{Case, Change};
use feedback::{Arc, Feedback, Graph};
use graph::{Dependencies, Dependency, Pairs};

/// Options of `feroce pfc deadlock`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A scenario file, or the name of one that `feroce fabric list` shows: topology, routing and PFC are used
    scenario: String,
    /// The case of the scenario [default: its first]
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Give a key of the scenario another value: link.0.down=true
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = change)]
    changes: Vec<Change>,
    /// Only between the hosts that the scenario's traffic is between, on its priorities [default: between all hosts, whatever traffic there is]
    #[arg(long)]
    traffic: bool,
    /// Also play it in the fabric, with and without what is to be changed: flows along the cycle, for 10 ms
    #[arg(long)]
    run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Rounds of forbidding turns: packets that go other ways may close another cycle.
const ROUNDS: usize = 16;

/// A step of a cycle, by names.
#[derive(Debug, Serialize)]
struct Step {
    /// The switch that pauses.
    switch: String,
    /// The switch that it pauses.
    paused: String,
    /// The port of the paused switch, counted from 1.
    port: usize,
    /// It waits for the line to this switch.
    waits_for: String,
    /// Hosts between which packets go this way.
    between: [String; 2],
}

/// Things to change.
#[derive(Debug, Serialize)]
struct Set {
    /// Each as `s1 > s2 > s3`, or `s1->s2`.
    what: Vec<String>,
    /// It is sure that no fewer do.
    is_minimum: bool,
    /// No fewer than so many do.
    at_least: usize,
}

/// What comes of forbidding the turns.
#[derive(Debug, Serialize)]
struct Rerouted {
    /// Turns that had to be forbidden beside the first, as packets took other ways.
    more: Vec<String>,
    /// Hosts between which no way is left.
    cut_off: Option<[String; 2]>,
    /// No cycle is left, and all hosts reach each other.
    is_free: bool,
}

/// All that is known of a network.
#[derive(Debug, Serialize)]
struct Report {
    title: String,
    case: String,
    /// Between which hosts packets were taken to go.
    pairs: &'static str,
    /// Lossless priorities; each has the same dependencies.
    priorities: Vec<u8>,
    /// Directions of lines between switches that wait or are waited for.
    lines: usize,
    dependencies: usize,
    /// Each waits for the next.
    cycle: Vec<Step>,
    turns: Option<Set>,
    lines_to_change: Option<Set>,
    rerouted: Option<Rerouted>,
    runs: Vec<witness::Seen>,
}

/// Analyses the network, and shows what it found.
///
/// # Errors
/// If the scenario cannot be used, or the output not be written.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut scenario = load(&options.scenario, &options.changes, None)?;
    if let Some(name) = &options.case {
        let unknown =
            |known| Failure::Unusable(format!("no case is called `{name}`; there are {known}"));
        scenario.choose(name).map_err(unknown)?;
    }
    let case = &scenario.cases[0];
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
        return Err(Failure::Unusable("--traffic: the scenario has none".to_owned()));
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
        pairs: if options.traffic { "those of the traffic" } else { "all hosts" },
        priorities,
        lines: 0,
        dependencies: 0,
        cycle: Vec::new(),
        turns: None,
        lines_to_change: None,
        rerouted: None,
        runs: Vec::new(),
    };
    if report.priorities.is_empty() {
        return Ok(report);
    }
    let dependencies = Dependencies::of(network, &pairs);
    (report.lines, report.dependencies) = (dependencies.lines_used(), dependencies.all.len());
    let turns = by_turns(&dependencies);
    let Some(cycle) = turns.cycle() else { return Ok(report) };
    let cycle: Vec<&Dependency> = cycle.iter().map(|&arc| &dependencies.all[arc]).collect();
    report.cycle = cycle.iter().map(|one| step(network, &dependencies, one)).collect();
    let fewest = turns.feedback();
    let lines = by_lines(&dependencies).feedback();
    let line = |&line: &usize| {
        let line = &dependencies.lines[line];
        format!("{}->{}", network.name(line.from), network.name(line.to))
    };
    report.lines_to_change = Some(set(&lines, lines.things.iter().map(line).collect()));
    let first: Vec<Turn> =
        fewest.things.iter().map(|&thing| dependencies.turn(&dependencies.all[thing])).collect();
    let told = |turn: &Turn| self::told(network, *turn);
    report.turns = Some(set(&fewest, first.iter().map(told).collect()));
    let (changed, rerouted) = reroute(network, &pairs, &first);
    let is_free = rerouted.is_free;
    report.rerouted = Some(rerouted);
    if options.run {
        let turns: Vec<_> = cycle.iter().map(|one| (dependencies.turn(one), one.between)).collect();
        let priority = report.priorities[0];
        report.runs = witness::runs(&config, priority, &turns, is_free.then_some(&changed))
            .map_err(|misfit| Failure::Unusable(misfit.to_string()))?;
    }
    Ok(report)
}

fn set(feedback: &Feedback, what: Vec<String>) -> Set {
    Set { what, is_minimum: feedback.is_minimum(), at_least: feedback.at_least }
}

fn told(network: &Network, (from, at, to): Turn) -> String {
    format!("{} > {} > {}", network.name(from), network.name(at), network.name(to))
}

fn step(network: &Network, of: &Dependencies, one: &Dependency) -> Step {
    let (line, next) = (&of.lines[one.line], &of.lines[one.next]);
    let name = |node: usize| network.name(node).to_owned();
    Step {
        switch: name(line.to),
        paused: name(line.from),
        port: line.port,
        waits_for: name(next.to),
        between: [name(one.between.0 as usize), name(one.between.1 as usize)],
    }
}

/// The dependencies as a graph in which turns can be taken away.
fn by_turns(of: &Dependencies) -> Graph {
    let arc = |(number, one): (usize, &Dependency)| Arc {
        from: one.line,
        to: one.next,
        thing: Some(number),
    };
    let arcs = of.all.iter().enumerate().map(arc).collect();
    Graph::new(of.lines.len(), of.all.len(), arcs)
}

/// The same in which lines can: each has two vertices, and an arc between them.
fn by_lines(of: &Dependencies) -> Graph {
    let count = of.lines.len();
    let line = |line: usize| Arc { from: 2 * line, to: 2 * line + 1, thing: Some(line) };
    let turn = |one: &Dependency| Arc { from: 2 * one.line + 1, to: 2 * one.next, thing: None };
    let arcs = (0..count).map(line).chain(of.all.iter().map(turn)).collect();
    Graph::new(2 * count, count, arcs)
}

/// Forbids `turns`, and more for as long as packets close a cycle on the ways that they then take.
fn reroute(network: &Network, pairs: &Pairs, turns: &[Turn]) -> (Network, Rerouted) {
    let mut changed = network.clone();
    changed.routing.forbidden.extend(turns);
    let mut rerouted = Rerouted { more: Vec::new(), cut_off: None, is_free: false };
    for _ in 0..ROUNDS {
        let dependencies = Dependencies::of(&changed, pairs);
        if let Some((from, to)) = dependencies.no_way {
            let name = |host: u32| network.name(host as usize).to_owned();
            rerouted.cut_off = Some([name(from), name(to)]);
            break;
        }
        let more = by_turns(&dependencies).feedback().things;
        if more.is_empty() {
            rerouted.is_free = true;
            break;
        }
        for thing in more {
            let turn = dependencies.turn(&dependencies.all[thing]);
            rerouted.more.push(told(network, turn));
            changed.routing.forbidden.insert(turn);
        }
    }
    (changed, rerouted)
}

fn show(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let case = if report.case.is_empty() { String::new() } else { format!(" ({})", report.case) };
    writeln!(out, "{}{case}", report.title)?;
    if report.priorities.is_empty() {
        return writeln!(
            out,
            "no priority is lossless: nothing is paused, and nothing can stand still"
        );
    }
    let priorities: Vec<String> = report.priorities.iter().map(u8::to_string).collect();
    writeln!(
        out,
        "priority {}: {} dependencies between {} lines, by packets between {}",
        priorities.join(", "),
        report.dependencies,
        report.lines,
        report.pairs
    )?;
    if report.cycle.is_empty() {
        return writeln!(out, "no cycle: PFC cannot bring this network to a stand");
    }
    writeln!(out, "a cycle of {} lines, each of which can wait for the next:", report.cycle.len())?;
    for Step { switch, paused, port, waits_for, between: [from, to] } in &report.cycle {
        writeln!(
            out,
            "  {switch} pauses port {port} of {paused} while its own line to {waits_for} is paused (packets from {from} to {to})"
        )?;
    }
    if let (Some(turns), Some(lines)) = (&report.turns, &report.lines_to_change) {
        show_set(out, "turn", turns)?;
        show_set(out, "line", lines)?;
        writeln!(
            out,
            "Route around them, or give what takes them another lossless priority there, or a lossy one."
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
        true => "no fewer are enough".to_owned(),
        false => format!("approximated: {} at least are needed", set.at_least),
    };
    let s = if count == 1 { "" } else { "s" };
    writeln!(out, "{count} {what}{s} fewer break all cycles ({sure}): {}", set.what.join(", "))
}

fn show_rerouted(out: &mut impl Write, rerouted: &Rerouted) -> io::Result<()> {
    let more = match rerouted.more.len() {
        0 => String::new(),
        count => {
            format!(", and {count} more that packets would then make: {}", rerouted.more.join(", "))
        }
    };
    match &rerouted.cut_off {
        Some([from, to]) => {
            writeln!(out, "without these turns{more} no way is left from {from} to {to}")
        }
        None if rerouted.is_free => {
            writeln!(
                out,
                "without these turns{more}, all hosts reach each other and no cycle is left"
            )
        }
        None => writeln!(out, "without these turns{more} there are still cycles"),
    }
}
