//! The built-in scenarios.

use std::path::Path;

use crate::fabric::scenario::{Change, Scenario, ScenarioError};

/// Names and texts of the built-in scenarios.
pub const ALL: &[(&str, &str)] = &[
    ("all-to-all", include_str!("../scenarios/all-to-all.toml")),
    ("deadlock-fat-tree", include_str!("../scenarios/deadlock-fat-tree.toml")),
    ("deadlock-ring", include_str!("../scenarios/deadlock-ring.toml")),
    ("engine-hosts", include_str!("../scenarios/engine-hosts.toml")),
    ("fat-tree", include_str!("../scenarios/fat-tree.toml")),
    ("fig10", include_str!("../scenarios/fig10.toml")),
    ("fig12", include_str!("../scenarios/fig12.toml")),
    ("fig13", include_str!("../scenarios/fig13.toml")),
    ("fig15-fig16", include_str!("../scenarios/fig15-fig16.toml")),
    ("fig18", include_str!("../scenarios/fig18.toml")),
    ("fig19", include_str!("../scenarios/fig19.toml")),
    ("fig20", include_str!("../scenarios/fig20.toml")),
    ("fig3-fig8", include_str!("../scenarios/fig3-fig8.toml")),
    ("fig4-fig9", include_str!("../scenarios/fig4-fig9.toml")),
    ("fixed-point", include_str!("../scenarios/fixed-point.toml")),
    ("go-back-0", include_str!("../scenarios/go-back-0.toml")),
    ("hpcc-incast", include_str!("../scenarios/hpcc-incast.toml")),
    ("incast", include_str!("../scenarios/incast.toml")),
    ("live", include_str!("../scenarios/live.toml")),
    ("live-incast", include_str!("../scenarios/live-incast.toml")),
    ("loss", include_str!("../scenarios/loss.toml")),
    ("phase-margin", include_str!("../scenarios/phase-margin.toml")),
    ("pmax", include_str!("../scenarios/pmax.toml")),
    ("powertcp", include_str!("../scenarios/powertcp.toml")),
    ("ring-all-reduce", include_str!("../scenarios/ring-all-reduce.toml")),
    ("semantics", include_str!("../scenarios/semantics.toml")),
    ("web-search", include_str!("../scenarios/web-search.toml")),
];

/// The text of a built-in scenario.
pub fn find(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Loads a scenario file, or the built-in scenario `name` if there is no such file.
///
/// # Errors
/// See [`ScenarioError`].
pub fn load(name: &str, changes: &[Change], seed: Option<u64>) -> Result<Scenario, ScenarioError> {
    let path = Path::new(name);
    match find(name) {
        Some(text) if !path.is_file() => Scenario::parse(name, text, changes, seed),
        None if !name.contains(['/', '.']) && !path.exists() => {
            Err(ScenarioError::Unknown { name: name.to_owned() })
        }
        _ => Scenario::load(path, changes, seed),
    }
}
