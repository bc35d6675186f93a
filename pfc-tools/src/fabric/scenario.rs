//! Scenarios: TOML files that say what is connected, who sends, what is measured, and what was published.
//!
//! A file has one or more *cases*: the same with some values changed, `[[case]]`. What the command line changes by `--set` holds
//! for all of them.

mod engine;
mod figure;
mod gate;
mod network;
mod parts;
mod section;
mod tree;
mod ways;

use std::path::{Path, PathBuf};

pub use figure::{Figure, Shows};
pub use gate::{Bound, Gate, Measure, Stat};

use super::config::{FabricConfig, FlowConfig, Network};
use super::time::Time;
use super::traffic::Traffic;
use section::Section;
use tree::{Node, Origin, Value};

/// Why a scenario cannot be run. The culprit is whoever wrote it.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// File and line.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// Nothing reads this key.
    #[error("{place}: nothing is called `{key}`; here are {known}")]
    UnknownKey {
        /// File and line.
        place: String,
        /// The key.
        key: String,
        /// Those that there are.
        known: String,
    },
    /// A value is not what its key takes.
    #[error("{place}: `{key}` is `{value}`, expected {expected}")]
    Value {
        /// File and line.
        place: String,
        /// The key.
        key: String,
        /// As given.
        value: String,
        /// What it takes.
        expected: String,
    },
    /// Something must be said and is not.
    #[error("{place}: `{key}` is missing, expected {expected}")]
    Missing {
        /// File and line of what it is missing in.
        place: String,
        /// The key.
        key: String,
        /// What it takes.
        expected: String,
    },
    /// The parts do not fit together.
    #[error("{place}: {message}")]
    Misfit {
        /// The file.
        place: String,
        /// What does not fit.
        message: String,
    },
}

/// A change of the command line: a key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// As `switch.alpha` or `traffic.0.priority`.
    pub key: String,
    /// TOML, or text.
    pub value: String,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// A scenario file.
#[derive(Debug)]
pub struct Scenario {
    /// File name.
    pub file: String,
    /// What it shows.
    pub title: String,
    /// Where the published numbers are from.
    pub source: String,
    /// Its cases, in order.
    pub cases: Vec<Case>,
    /// What a reader of its report should know.
    pub notes: String,
    /// It takes minutes: a quick report is made without it.
    pub long: bool,
    /// What a report draws of it.
    pub figures: Vec<Figure>,
}

/// One run, or several that differ in their seed only.
#[derive(Debug)]
pub struct Case {
    /// Its name; empty if the file has only one.
    pub name: String,
    /// The seeds of its runs.
    pub seeds: Vec<u64>,
    /// No drop, NAK or time-out may happen.
    pub lossless: bool,
    /// What is expected.
    pub gates: Vec<Gate>,
    /// Names of the traffics.
    pub groups: Vec<String>,
    /// Where they are written.
    places: Vec<String>,
    file: String,
    base: FabricConfig,
    traffic: Vec<Traffic>,
}

impl Case {
    /// Nodes and lines.
    pub const fn network(&self) -> &Network {
        &self.base.network
    }

    /// Whether hosts of it are engines.
    pub const fn has_engines(&self) -> bool {
        !self.base.engines.is_empty()
    }

    /// An error about parts that do not fit together.
    pub(crate) fn misfit(&self, message: String) -> ScenarioError {
        ScenarioError::Misfit { place: self.file.clone(), message }
    }

    /// The network alone, for real hosts.
    pub fn network_config(&self, seed: u64) -> FabricConfig {
        FabricConfig { seed, ..self.base.clone() }
    }

    /// What is run for one seed.
    ///
    /// # Errors
    /// [`ScenarioError::Misfit`] if traffic cannot be drawn.
    pub fn config(&self, seed: u64, keep_samples: bool) -> Result<FabricConfig, ScenarioError> {
        let mut config = self.base.clone();
        (config.seed, config.keep_samples) = (seed, keep_samples);
        for (group, traffic) in (0_u32..).zip(&self.traffic) {
            traffic.draw(&config.network, seed, group, &mut config.flows).map_err(|message| {
                ScenarioError::Misfit {
                    place: self.places[group as usize].clone(),
                    message: format!("`traffic.{group}`: {message}"),
                }
            })?;
        }
        config.flows.sort_by_key(|flow: &FlowConfig| (flow.start, flow.group));
        Ok(config)
    }
}

impl Scenario {
    /// Keeps the case of this name only.
    ///
    /// # Errors
    /// The names of those that there are, if none is called so.
    pub fn choose(&mut self, name: &str) -> Result<(), String> {
        let known: Vec<&str> = self.cases.iter().map(|case| case.name.as_str()).collect();
        let known = known.join(", ");
        self.cases.retain(|case| case.name == name);
        if self.cases.is_empty() { Err(known) } else { Ok(()) }
    }

    /// The file's name without its folder and its ending.
    pub fn name(&self) -> String {
        let stem = Path::new(&self.file).file_stem();
        stem.map_or_else(|| self.file.clone(), |stem| stem.to_string_lossy().into_owned())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn load(path: &Path, changes: &[Change], seed: Option<u64>) -> Result<Self, ScenarioError> {
        let failed = |source| ScenarioError::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&path.display().to_string(), &text, changes, seed)
    }

    /// The scenario in `text`, which is said to be the file `file`.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn parse(
        file: &str,
        text: &str,
        changes: &[Change],
        seed: Option<u64>,
    ) -> Result<Self, ScenarioError> {
        let mut tree = Node::parse(file, text)?;
        let cases = take(&mut tree, "case");
        let figures = take(&mut tree, "figure");
        let head = Section::new("", Some(&tree))?;
        let title =
            head.text("title")?.ok_or_else(|| head.missing("title", "what the scenario shows"))?;
        let source = head.text("source")?.unwrap_or_default();
        let notes = head.text("notes")?.unwrap_or_default();
        let long = head.flag("long", false)?;
        let given = Given { changes, seed };
        let cases = match &cases {
            None => vec![case(file, "", given.change(&tree)?, &[], 0, seed)?],
            Some(node) => self::cases(file, &tree, node, &given)?,
        };
        let figures = self::figures(figures.as_ref(), &cases)?;
        Ok(Self { file: file.to_owned(), title, source, cases, notes, long, figures })
    }
}

/// What the command line says.
#[derive(Debug, Clone, Copy)]
struct Given<'a> {
    changes: &'a [Change],
    seed: Option<u64>,
}

impl Given<'_> {
    /// The tree with the changes, which win over everything in the file.
    fn change(&self, tree: &Node) -> Result<Node, ScenarioError> {
        let mut tree = tree.clone();
        for Change { key, value } in self.changes {
            let origin = Origin::Set(format!("--set {key}={value}"));
            tree.set(key, Node::given(value, &origin))?;
        }
        Ok(tree)
    }
}

fn take(tree: &mut Node, key: &str) -> Option<Node> {
    match &mut tree.value {
        Value::Table(table) => table.remove(key),
        _ => None,
    }
}

fn figures(list: Option<&Node>, cases: &[Case]) -> Result<Vec<Figure>, ScenarioError> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let holder = holder("figure", list);
    let sections = Section::new("", Some(&holder))?.sections("figure")?;
    sections.into_iter().map(|section| figure::read(section, cases)).collect()
}

/// A table that has nothing but `list`.
fn holder(key: &str, list: &Node) -> Node {
    let table = [(key.to_owned(), list.clone())].into();
    Node { value: Value::Table(table), origin: list.origin.clone() }
}

/// The cases of a file: each entry of `[[case]]`, once for each of its `values`.
fn cases(
    file: &str,
    tree: &Node,
    list: &Node,
    given: &Given<'_>,
) -> Result<Vec<Case>, ScenarioError> {
    let holder = holder("case", list);
    let all = Section::new("", Some(&holder))?;
    let mut cases = Vec::new();
    for entry in all.sections("case")? {
        let name = entry.text("name")?.ok_or_else(|| entry.missing("name", "the case's name"))?;
        let values = entry.texts("values")?;
        let set = entry.section("set")?.rest();
        let gates = entry.sections("gate")?;
        let same = entry.get("name").map(|node| {
            entry.wrong("name", node, "a name that no other case has; `{}` is each of `values`")
        });
        entry.finish()?;
        let values = match values {
            None => vec![None],
            Some(values) => values.into_iter().map(|(value, _)| Some(value)).collect(),
        };
        for (number, value) in values.iter().enumerate() {
            let filled =
                |text: &str| value.as_ref().map_or(text.to_owned(), |by| text.replace("{}", by));
            let name = filled(&name);
            if cases.iter().any(|case: &Case| case.name == name)
                && let Some(same) = same
            {
                return Err(same);
            }
            let mut changed = tree.clone();
            for (key, node) in &set {
                let node = value.as_ref().map_or_else(|| (*node).clone(), |by| node.filled(by));
                changed.set(&filled(key), node)?;
            }
            cases.push(case(file, &name, given.change(&changed)?, &gates, number, given.seed)?);
        }
    }
    Ok(cases)
}

/// One case. `number` is its place among the values of its `[[case]]`, for gates with a published number for each.
fn case(
    file: &str,
    name: &str,
    tree: Node,
    gates: &[Section<'_>],
    number: usize,
    seed: Option<u64>,
) -> Result<Case, ScenarioError> {
    let all = Section::new("", Some(&tree))?.of_changed(tree.is_changed());
    for key in ["title", "source", "notes", "long"] {
        all.get(key);
    }
    let first = all.count("seed", 0..=u64::MAX)?;
    let first = seed.or(first).unwrap_or(1).min(LAST_SEED);
    let repeat = all.count("repeat", 1..=10_000)?.unwrap_or(1);
    let network = network::read(&all)?;
    let mut base = parts::read(&all, network)?;
    let (mut traffic, mut places) = (Vec::new(), Vec::new());
    for section in all.sections("traffic")? {
        places.push(section.place());
        let name = section.get("name");
        let read = parts::traffic(section, &base, file)?;
        if let Some(node) = name.filter(|_| traffic.iter().any(|t: &Traffic| t.name == read.name)) {
            return Err(all.wrong("traffic.name", node, "a name that no other traffic has"));
        }
        traffic.push(read);
    }
    if traffic.is_empty() {
        return Err(all.missing("traffic", "at least one [[traffic]]"));
    }
    engine::check(&all, &base, &traffic)?;
    let lossless = all.flag("lossless", base.switch.lossless != 0)?;
    let groups: Vec<String> = traffic.iter().map(|traffic| traffic.name.clone()).collect();
    let mut expected = Vec::new();
    let measure = all.section("measure")?;
    let priority = measure.priority("priority")?.unwrap_or(traffic[0].priority);
    for section in all.sections("gate")?.iter().chain(gates) {
        let gate = gate::read(section, &base.network, &groups, number)?;
        if let Measure::Queue { node, next } = gate.measure
            && !base.watch.iter().any(|&(a, b, _)| (a, b) == (node, next))
        {
            base.watch.push((node, next, priority));
        }
        expected.push(gate);
    }
    if base.watch.is_empty() {
        measure.idle(&["priority"], "without queues to measure")?;
    }
    all.finish()?;
    let case = Case {
        name: name.to_owned(),
        seeds: (first..first.saturating_add(repeat)).collect(),
        lossless,
        gates: expected,
        groups,
        places,
        file: file.to_owned(),
        base,
        traffic,
    };
    // What does not fit together is told now, not after an hour.
    super::Fabric::check(&case.config(first, false)?).map_err(|misfit| {
        let place = tree.place(&misfit.key).unwrap_or_else(|| file.to_owned());
        ScenarioError::Misfit { place, message: format!("`{}`: {}", misfit.key, misfit.message) }
    })?;
    Ok(case)
}

/// The last seed that others may follow.
const LAST_SEED: u64 = u64::MAX - 10_000;

/// Shortest time that is a time: samples every zero seconds never end.
pub(super) const SHORTEST: Time = Time::from_nanos(1);
