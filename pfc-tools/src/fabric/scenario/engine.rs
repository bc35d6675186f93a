//! Rejects settings that engine hosts do not support.

use feroce_congestion::params::NVIDIA;
use feroce_wire::PathMtu;

use super::error::ScenarioError;
use super::section::Section;
use crate::fabric::config::{FabricConfig, PacketConfig, Recovery};
use crate::fabric::traffic::{Pattern, Traffic};

/// Smallest window in packets: the engine requests an acknowledgement every 16 packets.
const MIN_WINDOW: u64 = 32;

/// Returns an error about the first setting that engine hosts do not support, if there are engine
/// hosts.
pub(super) fn check(
    all: &Section<'_>,
    config: &FabricConfig,
    traffic: &[Traffic],
) -> Result<(), ScenarioError> {
    if config.engines.is_empty() {
        return Ok(());
    }
    let packet = all.section("packet")?;
    refuse(
        &packet,
        "payload",
        PathMtu::from_bytes(config.packet.payload).is_none(),
        "a path MTU of engine hosts: 256, 512, 1024, 2048 or 4096",
    )?;
    let headers = PacketConfig::default().headers;
    let is_other = config.packet.headers != headers;
    refuse(
        &packet,
        "headers",
        is_other,
        &format!("{headers}, the header size of engine hosts' packets"),
    )?;
    let host = all.section("host")?;
    for key in ["ack_delay", "cnp_delay"] {
        refuse(&host, key, true, "no value: engine hosts respond at once")?;
    }
    refuse(&host, "ack_every", true, "no value: engine hosts acknowledge on request")?;
    refuse(
        &host,
        "recovery",
        config.host.recovery == Recovery::GoBack0,
        "go-back-n or selective-repeat: engine hosts have no other",
    )?;
    let full = u64::from(config.packet.payload + config.packet.headers);
    let is_small = config.host.window.is_some_and(|bytes| bytes / full < MIN_WINDOW);
    let min = MIN_WINDOW * full;
    refuse(&host, "window", is_small, &format!("{min}B or more: {MIN_WINDOW} packets"))?;
    let notification = &config.congestion.notification;
    let is_other = notification.cnp_dscp >> 3 != notification.cnp_priority;
    let expected = "the upper three bits of cnp_dscp, the priority of engine hosts' CNPs";
    let congestion = all.section("congestion")?;
    let own = ["cnp_priority", "cnp_dscp"];
    let nvidia = NVIDIA.iter().filter(|other| own.contains(&other.param));
    for key in own.iter().chain(nvidia.flat_map(|other| other.names)) {
        refuse(&congestion, key, is_other, expected)?;
    }
    for (section, traffic) in all.sections("traffic")?.iter().zip(traffic) {
        let is_theirs = traffic.from.iter().any(|host| config.engines.contains(host));
        let expected = "no value: engine hosts start at link rate";
        refuse(section, "initial_rate", is_theirs, expected)?;
        let is_loop = is_theirs && matches!(traffic.pattern, Pattern::Pairs { .. });
        refuse(section, "kind", is_loop, "another kind: engine hosts have no closed loops")?;
    }
    Ok(())
}

/// Returns an error about `key` if the key is present and `cannot_be` is true.
fn refuse(
    section: &Section<'_>,
    key: &'static str,
    cannot_be: bool,
    expected: &str,
) -> Result<(), ScenarioError> {
    match section.get(key) {
        Some(node) if cannot_be => Err(section.wrong(key, node, expected)),
        _ => Ok(()),
    }
}
