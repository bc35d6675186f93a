//! `feroce fabric import` and `export`: files of HPCC's simulator.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::fabric::formats::{self, FormatError, hpcc};
use crate::fabric::scenario::{Change, Scenario, ScenarioError};
use crate::fabric::time::Time;
use crate::scenarios;

/// Options of `feroce fabric import`.
#[derive(Debug, clap::Args)]
pub struct ImportOptions {
    /// Topology file: nodes, switches and links, as HPCC's ns-3 reads it
    #[arg(long, value_name = "FILE")]
    hpcc_topology: PathBuf,
    /// Flow file: the number of flows, and `src dst pg dport bytes start` for each
    #[arg(long, value_name = "FILE")]
    hpcc_flows: PathBuf,
    /// Write the scenario to this file; it refers to the other two
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
}

/// Options of `feroce fabric export`.
#[derive(Debug, clap::Args)]
pub struct ExportOptions {
    /// Scenario: a file, or a name from `feroce fabric list`
    scenario: String,
    /// Write the topology to this file
    #[arg(long, value_name = "FILE")]
    hpcc_topology: PathBuf,
    /// Write the flows to this file
    #[arg(long, value_name = "FILE")]
    hpcc_flows: PathBuf,
    /// Seed of random traffic [default: the scenario's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Override a key of the scenario
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<Change>,
    /// Export this case [default: the first]
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
}

/// Why files cannot be imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// An input file is wrong.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario has no such case.
    #[error("the scenario has no case `{case}`; its cases are {known}")]
    NoCase {
        /// The name given.
        case: String,
        /// The names that exist.
        known: String,
    },
    /// HPCC's files cannot hold the scenario.
    #[error("{scenario} cannot be exported: {what}")]
    Inexpressible {
        /// The scenario.
        scenario: String,
        /// What they cannot hold.
        what: String,
    },
    /// A file cannot be written.
    #[error("cannot write results: {0}")]
    Output(#[from] io::Error),
}

/// Checks both files and writes a scenario that refers to them.
///
/// # Errors
/// See [`ConvertError`].
pub fn import(options: &ImportOptions) -> Result<(), ConvertError> {
    let ImportOptions { hpcc_topology: topology, hpcc_flows: flows, out } = options;
    let network = hpcc::topology(&topology.display().to_string(), &formats::read(topology)?)?;
    let all = hpcc::flows(&flows.display().to_string(), &formats::read(flows)?)?;
    let last = all.iter().map(|flow| flow.start).max().unwrap_or_default();
    // A run ends with its last flow, so a long time costs nothing.
    let duration = Time((last + Time::from_millis(1000)).0.next_multiple_of(1_000_000));
    let text = format!(
        "title = \"{} flows on {} hosts, imported\"\n\
         # Time for the flows that start last. A run ends with its last flow.\n\
         duration = \"{duration}\"\n\n\
         [topology]\nkind = \"hpcc\"\nfile = {}\n\n\
         # HPCC's simulator: packets of 1000 bytes, and its parameters of DCQCN.\n\
         [packet]\npayload = 1000\n\n[switch]\nbuffer = \"32MB\"\n\n\
         [congestion]\nset = \"hpcc\"\nkmin = \"100KB\"\nkmax = \"400KB\"\npmax = \"20%\"\n\n\
         [[traffic]]\nname = \"flows\"\nkind = \"file\"\nformat = \"hpcc\"\nfile = {}\n\
         control = \"dcqcn\"\n\n\
         [[gate]]\nname = \"completion, mean, us\"\nmeasure = \"completion\"\n\n\
         [[gate]]\nname = \"slowdown, 99th percentile\"\nmeasure = \"slowdown\"\nstat = \"p99\"\n\n\
         [[figure]]\ntitle = \"FCT slowdown by flow size\"\nshows = \"slowdown\"\nlog = true\n",
        all.len(),
        network.hosts.len(),
        reference(topology, out)?,
        reference(flows, out)?,
    );
    // Finds errors of both files together, such as unknown hosts.
    Scenario::parse(&out.display().to_string(), &text, &[], None)?;
    feroce_engine::files::write(out, text)?;
    writeln!(io::stdout(), "{}", out.display())?;
    Ok(())
}

/// How the scenario `out` names `file`, as a TOML string: by its name in the same folder, and
/// otherwise by its whole path.
fn reference(file: &Path, out: &Path) -> io::Result<String> {
    let whole = std::fs::canonicalize(file)?;
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = std::fs::canonicalize(folder)?;
    let name = whole.strip_prefix(&folder).unwrap_or(&whole).display().to_string();
    Ok(serde_json::Value::from(name).to_string())
}

/// Writes network and traffic of a case as HPCC's files.
///
/// # Errors
/// See [`ConvertError`].
pub fn export(options: &ExportOptions) -> Result<(), ConvertError> {
    let mut scenario = scenarios::load(&options.scenario, &options.changes, options.seed)?;
    if let Some(case) = &options.case {
        let chosen = scenario.choose(case);
        chosen.map_err(|known| ConvertError::NoCase { case: case.clone(), known })?;
    }
    scenario.check_traffic()?;
    let case = &scenario.cases[0];
    let inexpressible =
        |what: String| ConvertError::Inexpressible { scenario: options.scenario.clone(), what };
    let topology = hpcc::write_topology(case.network()).map_err(inexpressible)?;
    let config = case.config(case.seeds[0], false)?;
    let flows = hpcc::write_flows(&config.flows).map_err(inexpressible)?;
    feroce_engine::files::write(&options.hpcc_topology, topology)?;
    feroce_engine::files::write(&options.hpcc_flows, flows)?;
    Ok(())
}
