//! Keys that name files of other simulators: `kind = "hpcc"` in `[topology]`, and `kind = "file"`
//! in `[[traffic]]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::ScenarioError;
use super::section::Section;
use crate::fabric::config::{FabricConfig, Network};
use crate::fabric::formats::{FileFlow, FormatError, flows, hpcc};

/// The formats of flow files.
const FORMATS: [&str; 3] = ["hpcc", "htsim", "csv"];

impl From<FormatError> for ScenarioError {
    fn from(error: FormatError) -> Self {
        Self::Syntax { place: error.place, message: error.message }
    }
}

/// The path of the file that `file` names, relative to the folder of the scenario, and its text.
fn text(section: &Section<'_>, scenario: &str) -> Result<(PathBuf, String), ScenarioError> {
    let Some(name) = section.text("file")? else {
        return Err(section.missing("file", "a file, relative to the scenario's folder"));
    };
    let folder = Path::new(scenario).parent().unwrap_or_else(|| Path::new(""));
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|error| match section.get("file") {
        Some(node) => section.wrong("file", node, format!("a readable file ({error})")),
        None => section.missing("file", "a file"),
    })?;
    Ok((path, text))
}

/// Reads a topology in HPCC's format.
pub(super) fn topology(section: Section<'_>, scenario: &str) -> Result<Network, ScenarioError> {
    let (path, text) = text(&section, scenario)?;
    let given = ["rate", "delay", "trunk_rate", "trunk_delay", "hosts", "switches", "links"];
    section.reject_ineffective(&given, "with kind = \"hpcc\": the file has them")?;
    let network = hpcc::topology(&path.display().to_string(), &text)?;
    section.finish()?;
    Ok(network)
}

/// Reads the flows of a file. Their ends become numbers of hosts.
pub(super) fn flows(
    section: &Section<'_>,
    config: &FabricConfig,
    scenario: &str,
) -> Result<Vec<FileFlow>, ScenarioError> {
    let given = ["from", "to", "message", "messages", "stagger"];
    section.reject_ineffective(&given, "with kind = \"file\": the file has the flows")?;
    let (path, text) = text(section, scenario)?;
    let name = path.display().to_string();
    let mut flows = match section.choice("format", &FORMATS)?.unwrap_or(0) {
        0 => {
            section.reject_ineffective(&["priority"], "with format = \"hpcc\": see `pg`")?;
            hpcc::flows(&name, &text)?
        }
        1 => flows::htsim(&name, &text)?,
        _ => flows::csv(&name, &text)?,
    };
    let network = &config.network;
    let hosts: BTreeMap<u32, u32> = match network.ids[..] {
        [] => (0..).take(network.hosts.len()).map(|host| (host, host)).collect(),
        _ => network.ids.iter().copied().zip(0..).collect(),
    };
    let begins = section.time("start")?.unwrap_or_default();
    let waits = section.get("after").is_some();
    for flow in &mut flows {
        let error =
            |message: String| FormatError { place: format!("{name}:{}", flow.line), message };
        let host = |number: u32| {
            hosts.get(&number).copied().ok_or_else(|| error(format!("{number} is no host")))
        };
        let (from, to) = (host(flow.from)?, host(flow.to)?);
        if from == to {
            return Err(error(format!("{} sends to itself", flow.from)).into());
        }
        if flow.bytes.div_ceil(config.packet.payload.into()) >= 1 << 32 {
            return Err(error("a flow of 2^32 packets or more".to_owned()).into());
        }
        if !waits && flow.start + begins >= config.duration {
            let message = format!("starts after the run: `duration` is {}", config.duration);
            return Err(error(message).into());
        }
        (flow.from, flow.to) = (from, to);
    }
    Ok(flows)
}

/// The senders and the receivers of flows.
pub(super) fn hosts(flows: &[FileFlow]) -> (Vec<u32>, Vec<u32>) {
    let ends = |end: fn(&FileFlow) -> u32| {
        let all: std::collections::BTreeSet<u32> = flows.iter().map(end).collect();
        all.into_iter().collect()
    };
    (ends(|flow| flow.from), ends(|flow| flow.to))
}
