//! The built-in scenarios.

use std::path::Path;

use crate::fabric::scenario::{Change, Scenario, ScenarioError};

/// A built-in scenario.
#[derive(Debug)]
pub struct BuiltIn {
    /// Its name.
    pub name: &'static str,
    /// The scenario file: network, traffic and measurements.
    pub text: &'static str,
    /// The gates file.
    pub gates: &'static str,
}

impl BuiltIn {
    /// Parses the scenario with its gates.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn parse(&self, changes: &[Change], seed: Option<u64>) -> Result<Scenario, ScenarioError> {
        let gates = format!("{}.gates", self.name);
        let gates = Some((gates.as_str(), self.gates));
        Scenario::parse_with_gates((self.name, self.text), gates, changes, seed)
    }
}

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        &[$(BuiltIn {
            name: $name,
            text: include_str!(concat!("../scenarios/", $name, ".toml")),
            gates: include_str!(concat!("../scenarios/", $name, ".gates.toml")),
        }),*]
    };
}

/// The built-in scenarios by name.
pub const ALL: &[BuiltIn] = built_in![
    "all-to-all",
    "deadlock-fat-tree",
    "deadlock-ring",
    "engine-hosts",
    "fat-tree",
    "fig10",
    "fig12",
    "fig13",
    "fig15-fig16",
    "fig18",
    "fig19",
    "fig20",
    "fig3-fig8",
    "fig4-fig9",
    "fixed-point",
    "go-back-0",
    "hpcc-incast",
    "incast",
    "live",
    "live-incast",
    "loss",
    "phase-margin",
    "pmax",
    "powertcp",
    "ring-all-reduce",
    "semantics",
    "swift",
    "timely",
    "web-search",
];

/// The built-in scenario of this name.
pub fn find(name: &str) -> Option<&'static BuiltIn> {
    ALL.iter().find(|built_in| built_in.name == name)
}

/// Loads a scenario file, or the built-in scenario `name` if there is no such file.
///
/// # Errors
/// See [`ScenarioError`].
pub fn load(name: &str, changes: &[Change], seed: Option<u64>) -> Result<Scenario, ScenarioError> {
    let path = Path::new(name);
    match find(name) {
        Some(built_in) if !path.is_file() => built_in.parse(changes, seed),
        None if !name.contains(['/', '.']) && !path.exists() => {
            Err(ScenarioError::Unknown { name: name.to_owned() })
        }
        _ => Scenario::load(path, changes, seed),
    }
}
