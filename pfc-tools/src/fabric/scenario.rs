//! Scenarios: TOML files that describe network, traffic and measurements, and beside each a file
//! with gates, figures and published values.
//!
//! A file has one or more *cases*, `[[case]]`: variants with some values changed. Changes from the
//! command line (`--set`) apply to all cases.
//!
//! The tables are read by hand (`tree`, `section`) and not with serde. A case is a tree merged from
//! the file, the case's `set` and `--set`, and every value keeps its own origin: an error names
//! file and line, or the option, with the full key, the value as written and what was expected.
//! serde's errors carry a span only while it reads one TOML document, and a merged tree is not a
//! document. serde also cannot report keys that other keys make ineffective, or whose effect
//! `--set` removed.

mod beside;
mod collective;
mod config;
mod dependencies;
mod engine;
mod error;
mod figure;
mod files;
mod gate;
mod gate_reader;
mod honest;
mod network;
mod node_names;
mod routes;
mod section;
mod tree;

use std::path::Path;

pub use error::ScenarioError;
pub use figure::{Figure, FigureKind};
pub use gate::{Bound, Curve, Explained, Gate, Kind, Measure, Stat};

use super::config::{FabricConfig, Network};
use super::time::Time;
use super::traffic::{Pattern, Traffic, Workload};
use config::DEFAULT_PRIORITY;
use section::Section;
use tree::{Node, Origin, Value};

/// A change from the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// A path such as `switch.alpha` or `traffic.0.priority`.
    pub key: String,
    /// A TOML value, or a plain string.
    pub value: String,
}

impl std::str::FromStr for Change {
    type Err = String;

    /// Parses `KEY=VALUE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
        Ok(Self { key: key.trim().to_owned(), value: value.trim().to_owned() })
    }
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
    /// What the scenario shows.
    pub title: String,
    /// Source of the published numbers.
    pub source: String,
    /// The cases, in order.
    pub cases: Vec<Case>,
    /// Notes for the reader of the report.
    pub notes: String,
    /// The scenario takes minutes; a quick report leaves it out.
    pub long: bool,
    /// Figures of the report.
    pub figures: Vec<Figure>,
}

/// A case: one run, or several that differ only in the seed.
#[derive(Debug)]
pub struct Case {
    /// Name; empty if the file has only one case.
    pub name: String,
    /// Seeds of the runs.
    pub seeds: Vec<u64>,
    /// No drop, NAK or timeout may happen.
    pub lossless: bool,
    /// How the case differs from the published experiment, if it does.
    pub variant: Option<String>,
    /// Expected results.
    pub gates: Vec<Gate>,
    /// Names of the traffic groups.
    pub groups: Vec<String>,
    /// File and line of each traffic group.
    places: Vec<String>,
    /// File and line of each gate.
    gate_places: Vec<String>,
    file: String,
    base: FabricConfig,
    traffic: Vec<Traffic>,
}

impl Case {
    /// Topology of the case.
    pub const fn network(&self) -> &Network {
        &self.base.network
    }

    /// The collectives: number and name of the traffic group, and the hosts in the order of ranks.
    pub fn collectives(&self) -> impl Iterator<Item = (u32, &str, &[u32])> {
        let all = (0_u32..).zip(&self.traffic);
        all.filter_map(|(group, traffic)| match &traffic.pattern {
            Pattern::Collective(collective) => {
                Some((group, traffic.name.as_str(), collective.ranks.as_slice()))
            }
            _ => None,
        })
    }

    /// Time at which a run ends.
    pub const fn duration(&self) -> Time {
        self.base.duration
    }

    /// Returns true if any host runs the engine.
    pub const fn has_engines(&self) -> bool {
        !self.base.engines.is_empty()
    }

    /// An error about parts that do not fit together.
    pub(crate) fn inconsistent(&self, message: String) -> ScenarioError {
        ScenarioError::Inconsistent { place: self.file.clone(), message }
    }

    /// Configuration without traffic, for external hosts.
    pub fn network_config(&self, seed: u64) -> FabricConfig {
        FabricConfig { seed, ..self.base.clone() }
    }

    /// Configuration of the run with this seed.
    ///
    /// # Errors
    /// [`ScenarioError::Inconsistent`] if the traffic cannot be generated.
    pub fn config(&self, seed: u64, keep_samples: bool) -> Result<FabricConfig, ScenarioError> {
        let mut config = self.base.clone();
        (config.seed, config.keep_samples) = (seed, keep_samples);
        let mut workload = Workload::default();
        let numbered = || (0_u32..).zip(&self.traffic);
        let failed = |group: u32| {
            move |message| ScenarioError::Inconsistent {
                place: self.places[group as usize].clone(),
                message: format!("`traffic.{group}`: {message}"),
            }
        };
        for (group, traffic) in numbered() {
            let drawn = traffic.draw(&config.network, seed, group, &mut workload);
            drawn.map_err(failed(group))?;
        }
        for (group, Traffic { name, after, delay, .. }) in numbered() {
            if !after.is_empty() {
                workload.wait((name, group), after, *delay).map_err(failed(group))?;
            }
        }
        (config.flows, config.steps) = workload.ordered();
        Ok(config)
    }
}

impl Scenario {
    /// Keeps only the case of this name.
    ///
    /// # Errors
    /// The names of the existing cases, if none has this name.
    pub fn choose(&mut self, name: &str) -> Result<(), String> {
        let known: Vec<&str> = self.cases.iter().map(|case| case.name.as_str()).collect();
        let known = known.join(", ");
        self.cases.retain(|case| case.name == name);
        if self.cases.is_empty() { Err(known) } else { Ok(()) }
    }

    /// Checks that every case has traffic. A network and its routes can be analysed without
    /// traffic.
    ///
    /// # Errors
    /// [`ScenarioError::Missing`] if a case has no traffic.
    pub fn check_traffic(&self) -> Result<(), ScenarioError> {
        match self.cases.iter().all(|case| !case.traffic.is_empty()) {
            true => Ok(()),
            false => Err(ScenarioError::Missing {
                place: self.file.clone(),
                key: "traffic".to_owned(),
                expected: "at least one [[traffic]]".to_owned(),
            }),
        }
    }

    /// The file name without folder and extension.
    pub fn name(&self) -> String {
        let stem = Path::new(&self.file).file_stem();
        stem.map_or_else(|| self.file.clone(), |stem| stem.to_string_lossy().into_owned())
    }

    /// Reads a scenario file, and the gates file beside it if there is one.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn load(path: &Path, changes: &[Change], seed: Option<u64>) -> Result<Self, ScenarioError> {
        let read = |path: &Path| {
            let failed = |source| ScenarioError::Read { path: path.to_owned(), source };
            std::fs::read_to_string(path).map_err(failed)
        };
        let (text, gates) = (read(path)?, beside::path(path));
        let has_gates = gates.exists() || gates.is_symlink(); // A link to nothing is an error.
        let gates_text = if has_gates { Some(read(&gates)?) } else { None };
        let [name, gates] = [path, &gates].map(|path| path.display().to_string());
        let gates = gates_text.as_deref().map(|text| (gates.as_str(), text));
        Self::parse_with_gates((&name, &text), gates, changes, seed)
    }

    /// Parses a scenario without a gates file. `file` is the name for error messages.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn parse(
        file: &str,
        text: &str,
        changes: &[Change],
        seed: Option<u64>,
    ) -> Result<Self, ScenarioError> {
        Self::parse_with_gates((file, text), None, changes, seed)
    }

    /// Parses a scenario and its gates file: name for error messages and text of each.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn parse_with_gates(
        (file, text): (&str, &str),
        gates: Option<(&str, &str)>,
        changes: &[Change],
        seed: Option<u64>,
    ) -> Result<Self, ScenarioError> {
        let mut tree = Node::parse(file, text)?;
        if let Some((file, text)) = gates {
            beside::add(&mut tree, &Node::parse(file, text)?)?;
        }
        let cases = take(&mut tree, "case");
        let figures = take(&mut tree, "figure");
        let head = Section::new("", Some(&tree))?;
        let title =
            head.text("title")?.ok_or_else(|| head.missing("title", "what the scenario shows"))?;
        let source = head.text("source")?.unwrap_or_default();
        let notes = head.text("notes")?.unwrap_or_default();
        let long = head.flag("long", false)?;
        let reproduces = head.text("reproduces")?;
        let overrides = Overrides { changes, seed };
        let about = About { source: &source, reproduces: reproduces.as_deref(), variant: None };
        let cases = match &cases {
            None => vec![case(file, "", overrides.apply(&tree)?, &Member::alone(about), seed)?],
            Some(node) => self::cases(file, &tree, node, about, &overrides)?,
        };
        let figures = self::figures(figures.as_ref(), &cases)?;
        Ok(Self { file: file.to_owned(), title, source, cases, notes, long, figures })
    }
}

/// What the file or a `[[case]]` says about the published experiment.
#[derive(Debug, Clone, Copy)]
struct About<'a> {
    source: &'a str,
    reproduces: Option<&'a str>,
    variant: Option<&'a str>,
}

/// A case as one of those of its `[[case]]`.
#[derive(Debug, Clone, Copy)]
struct Member<'a> {
    about: About<'a>,
    /// Its own gates.
    gates: &'a [Section<'a>],
    /// The values of the `[[case]]`; empty without `values`.
    values: &'a [String],
    /// Its index among the values.
    number: usize,
}

impl<'a> Member<'a> {
    /// The only case of a file.
    const fn alone(about: About<'a>) -> Self {
        Self { about, gates: &[], values: &[], number: 0 }
    }
}

/// Options of the command line.
#[derive(Debug, Clone, Copy)]
struct Overrides<'a> {
    changes: &'a [Change],
    seed: Option<u64>,
}

impl Overrides<'_> {
    /// Applies the changes to the tree. They override everything in the file.
    fn apply(&self, tree: &Node) -> Result<Node, ScenarioError> {
        let mut tree = tree.clone();
        for Change { key, value } in self.changes {
            let origin = Origin::Set(format!("--set {key}={value}"));
            tree.set(key, Node::from_command_line(value, &origin))?;
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
    let gates = cases.iter().flat_map(|case| &case.gates).map(|gate| gate.name.as_str()).collect();
    let names = cases.iter().map(|case| case.name.as_str()).collect();
    let known = figure::Known { cases: names, gates };
    sections.into_iter().map(|section| figure::read(section, &known)).collect()
}

/// A table with `list` as its only entry.
fn holder(key: &str, list: &Node) -> Node {
    let table = [(key.to_owned(), list.clone())].into();
    Node { value: Value::Table(table), origin: list.origin.clone() }
}

/// The cases of a file: each entry of `[[case]]`, once for each of its `values`.
fn cases(
    file: &str,
    tree: &Node,
    list: &Node,
    about: About<'_>,
    overrides: &Overrides<'_>,
) -> Result<Vec<Case>, ScenarioError> {
    let holder = holder("case", list);
    let all = Section::new("", Some(&holder))?;
    let mut cases: Vec<Case> = Vec::new();
    for entry in all.sections("case")? {
        let name = entry.text("name")?.ok_or_else(|| entry.missing("name", "the case's name"))?;
        let values = entry.texts("values")?;
        let set = entry.section("set")?.unread();
        let gates = entry.sections("gate")?;
        let (reproduces, variant) = (entry.text("reproduces")?, entry.text("variant")?);
        let same = entry.get("name").map(|node| {
            entry.wrong("name", node, "a unique case name (`{}` stands for each of `values`)")
        });
        entry.finish()?;
        let values: Vec<String> = values.into_iter().flatten().map(|(value, _)| value).collect();
        let about = About {
            reproduces: reproduces.as_deref().or(about.reproduces),
            variant: variant.as_deref(),
            ..about
        };
        for number in 0..values.len().max(1) {
            let value = values.get(number);
            let filled = |text: &str| value.map_or(text.to_owned(), |by| text.replace("{}", by));
            let name = filled(&name);
            if cases.iter().any(|case| case.name == name)
                && let Some(same) = same
            {
                return Err(same);
            }
            let mut changed = tree.clone();
            for (key, node) in &set {
                let node = value.map_or_else(|| (*node).clone(), |by| node.substituted(by));
                changed.set(&filled(key), node)?;
            }
            let member = Member { about, gates: &gates, values: &values, number };
            let case = case(file, &name, overrides.apply(&changed)?, &member, overrides.seed)?;
            check_references(&case, &cases)?;
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Checks that the gates of `case` refer to gates of the same name in cases before it, and that the
/// published values have the order that the gate expects.
fn check_references(case: &Case, earlier: &[Case]) -> Result<(), ScenarioError> {
    for (gate, place) in case.gates.iter().zip(&case.gate_places) {
        for bound in &gate.bounds {
            let Some(name) = bound.other_case() else { continue };
            let other = earlier.iter().find(|other| other.name == name);
            let other = other.and_then(|other| other.gates.iter().find(|g| g.name == gate.name));
            let wrong = match (other, bound) {
                (None, _) => format!("`{name}` is no earlier case with such a gate"),
                (Some(Gate { published: Some(low), .. }), Bound::Above { .. })
                    if gate.published.is_some_and(|own| own <= *low) =>
                {
                    format!("the published values are in the other order than in `{name}`")
                }
                _ => continue,
            };
            let (case, gate, key) = (&case.name, &gate.name, bound.key());
            let message = format!("`{key}` of gate `{gate}`, case `{case}`: {wrong}");
            return Err(ScenarioError::Inconsistent { place: place.clone(), message });
        }
    }
    Ok(())
}

/// Reads one case.
fn case(
    file: &str,
    name: &str,
    tree: Node,
    member: &Member<'_>,
    seed: Option<u64>,
) -> Result<Case, ScenarioError> {
    let all = Section::new("", Some(&tree))?.with_overrides(tree.has_overrides());
    for key in ["title", "source", "notes", "long", "reproduces"] {
        all.get(key);
    }
    let first = all.count("seed", 0..=u64::MAX)?;
    let first = seed.or(first).unwrap_or(1).min(LAST_SEED);
    let repeat = all.count("repeat", 1..=10_000)?.unwrap_or(1);
    let network = network::read(&all, file)?;
    let mut base = config::read(&all, network)?;
    let (mut traffic, mut places) = (Vec::new(), Vec::new());
    for section in all.sections("traffic")? {
        places.push(section.place());
        let name = section.get("name");
        let read = config::traffic(section, &base, file)?;
        if let Some(node) = name.filter(|_| traffic.iter().any(|t: &Traffic| t.name == read.name)) {
            return Err(all.wrong("traffic.name", node, "a unique name"));
        }
        traffic.push(read);
    }
    dependencies::read(&all, &mut traffic)?;
    engine::check(&all, &base, &traffic)?;
    let lossless = all.flag("lossless", base.switch.lossless != 0)?;
    let groups: Vec<String> = traffic.iter().map(|traffic| traffic.name.clone()).collect();
    let measure = all.section("measure")?;
    let priority = measure.priority("priority")?;
    let priority =
        priority.or(traffic.first().map(|first| first.priority)).unwrap_or(DEFAULT_PRIORITY);
    let is_changed = tree.has_overrides();
    let read = read_gates(&all, &base, &groups, member, (lossless, is_changed))?;
    let (gates, gate_places): (Vec<Gate>, _) = read.into_iter().unzip();
    watch(&gates, &mut base, priority);
    if base.watch.is_empty() {
        measure.reject_ineffective(&["priority"], "without queues to measure")?;
    }
    all.finish()?;
    let case = Case {
        name: name.to_owned(),
        seeds: (first..first.saturating_add(repeat)).collect(),
        lossless,
        variant: member.about.variant.map(str::to_owned),
        gates,
        groups,
        places,
        gate_places,
        file: file.to_owned(),
        base,
        traffic,
    };
    // Report a configuration error now and not after an hour.
    super::Fabric::check(&case.config(first, false)?).map_err(|error| {
        let place = tree.place(&error.key).unwrap_or_else(|| file.to_owned());
        ScenarioError::Inconsistent {
            place,
            message: format!("`{}`: {}", error.key, error.message),
        }
    })?;
    Ok(case)
}

/// Reads the gates of the file and those of the case, each with its file and line.
fn read_gates(
    all: &Section<'_>,
    base: &FabricConfig,
    groups: &[String],
    member: &Member<'_>,
    (lossless, is_changed): (bool, bool),
) -> Result<Vec<(Gate, String)>, ScenarioError> {
    let place = gate_reader::Place {
        base,
        groups,
        number: member.number,
        values: member.values,
        reproduces: member.about.reproduces,
        source: member.about.source,
        is_variant: member.about.variant.is_some(),
        lossless,
        is_changed,
    };
    let sections = all.sections("gate")?;
    let read = |section: &Section<'_>| {
        let gate = gate_reader::read(section, &place)?;
        Ok((gate, section.place()))
    };
    sections.iter().chain(member.gates).map(read).collect()
}

/// Records the queues that the gates measure.
fn watch(gates: &[Gate], base: &mut FabricConfig, priority: u8) {
    for gate in gates {
        let (Measure::Queue { node, next }
        | Measure::Curve {
            of: Curve::Queue { node, next } | Curve::QueueCdf { node, next },
            ..
        }) = gate.measure
        else {
            continue;
        };
        if !base.watch.iter().any(|&(a, b, _)| (a, b) == (node, next)) {
            base.watch.push((node, next, priority));
        }
    }
}

/// Largest first seed: the following seeds must fit.
const LAST_SEED: u64 = u64::MAX - 10_000;
