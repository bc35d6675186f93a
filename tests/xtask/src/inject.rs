//! Plays the catalogue of event scripts between two Feroce devices, and between Feroce and Linux
//! rxe in a guest, in both roles. A relay in user space takes the place of the cable, and changes
//! the packets that a script names.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Result;
use crate::guest::{DATA_MAC, Guest, MTU};
use crate::net::{Namespace, ip};
use crate::process::{run, run_into};
use crate::setup::{BUILD_PACKAGES, Work, feroce, need_packages, need_root, reserve_hugepages};

/// Where scorecards and captures are left.
const OUT: &str = "target/inject";
const KNOWN: &str = "pfc-tools/conform/known-failures.toml";
const PAGES: &str = "docs/scorecards";

/// Options of `xtask inject`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Feroce's port
    #[arg(long, value_name = "KIND", default_value = "af_xdp")]
    port: String,
    /// Against Feroce only, or against rxe only
    #[arg(long, value_name = "WHICH", value_parser = ["feroce", "rxe"])]
    only: Option<String>,
    /// Names of the catalogue, or files (default: the whole catalogue; docs/scorecards is
    /// written then)
    scripts: Vec<String>,
}

struct Injector {
    options: Options,
    feroce: PathBuf,
    work: Work,
    has_failed: bool,
}

/// Runs the command. `$FEROCE_CONFORM` names a `feroce` that is built already.
pub fn main(options: Options) -> Result<u8> {
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    let feroce = feroce()?;
    std::fs::create_dir_all(OUT)?;
    let _hugepages = reserve_hugepages(64)?;
    let work = Work::new()?;
    let mut injector = Injector { options, feroce, work, has_failed: false };
    injector.in_virtual_time()?;
    let only = injector.options.only.clone();
    if only.as_deref() != Some("rxe") {
        injector.against_feroce()?;
    }
    if only.as_deref() != Some("feroce") {
        injector.against_rxe()?;
    }
    if injector.options.scripts.is_empty() && only.is_none() {
        injector.write_pages()?;
    }
    Ok(u8::from(injector.has_failed))
}

/// Learns the MAC address of a neighbour without ARP.
fn set_neighbour(namespace: &Namespace, address: &str, mac: &str) -> Result {
    namespace.ip(&format!("neighbour replace {address} lladdr {mac} dev v0 nud permanent"))
}

impl Injector {
    /// `feroce conform inject SCRIPT... --json CARD --captures FOLDER`.
    fn inject(&self, name: &str) -> Command {
        let mut command = Command::new(&self.feroce);
        command.args(["conform", "inject"]);
        match self.options.scripts.as_slice() {
            [] => command.arg("--catalogue"),
            scripts => command.args(scripts),
        };
        command.args(["--json", &format!("{OUT}/{name}.json")]);
        command.args(["--captures", &format!("{OUT}/{name}")]);
        command
    }

    fn in_virtual_time(&mut self) -> Result {
        let log = self.work.file("fabric");
        self.has_failed |= run_into(&mut self.inject("feroce-fabric"), &log)? != 0;
        println!("{}", std::fs::read_to_string(&log)?.lines().last().unwrap_or_default());
        Ok(())
    }

    /// Plays with real endpoints. An item that fails may be played twice more, because the machine
    /// itself may have been late.
    fn play(
        &self,
        name: &str,
        relay: &Namespace,
        (a, b): (&str, &str),
        (requester, responder): (&str, &str),
    ) -> Result<bool> {
        println!("{name}");
        let mut command = self.inject(name);
        command.args(["--namespace", relay.name(), "--live", a, b]);
        command.args(["--requester", requester, "--responder", responder, "--again", "2"]);
        Ok(run(&mut command)? == 0)
    }

    /// Two namespaces, and one with the relay between them.
    fn against_feroce(&mut self) -> Result {
        let space = |suffix| Namespace::new("inject", suffix);
        let (a, b, relay) = (space("a")?, space("b")?, space("relay")?);
        const NO_IPV6: [&str; 2] =
            ["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"];
        for namespace in [&a, &b, &relay] {
            namespace.sysctl(&NO_IPV6)?;
        }
        for (end, far, address) in [(&a, "far-a", "10.77.0.1"), (&b, "far-b", "10.77.0.2")] {
            ip(&format!(
                "link add {far} netns {} mtu {MTU} type veth peer name v0 netns {} mtu {MTU}",
                relay.name(),
                end.name()
            ))?;
            end.ip(&format!("address add {address}/24 dev v0"))?;
            end.ip("link set v0 up")?;
            relay.ip(&format!("link set {far} up"))?;
            end.plain_frames("v0");
            relay.plain_frames(far);
        }
        set_neighbour(&a, "10.77.0.2", &b.mac("v0")?)?;
        set_neighbour(&b, "10.77.0.1", &a.mac("v0")?)?;
        let port = &self.options.port;
        let [requester, responder] = [&a, &b].map(|end| format!("feroce:{}:v0:{port}", end.name()));
        let name = format!("feroce-{port}");
        let ends = (requester.as_str(), responder.as_str());
        self.has_failed |= !self.play(&name, &relay, ("far-a", "far-b"), ends)?;
        Ok(())
    }

    /// The guest's TAP and the engine's veth leave their bridge: the relay joins them instead.
    fn against_rxe(&mut self) -> Result {
        let guest = Guest::new("inject", &self.work)?;
        for interface in ["tap-data", "v0-far"] {
            guest.switch.ip(&format!("link set {interface} nomaster"))?;
        }
        guest.switch.plain_frames("tap-data");
        set_neighbour(&guest.engine, "10.77.0.2", DATA_MAC)?;
        let mac = guest.engine.mac("v0")?;
        guest.shell(&format!(
            "ip neighbour replace 10.77.0.1 lladdr {mac} dev data nud permanent"
        ))?;
        let engine = guest.engine.name();
        let (feroce, rxe) =
            (format!("feroce:{engine}:v0:{}", self.options.port), format!("rxe:{engine}"));
        // Failures of rxe do not fail this command. Feroce's own errors in the same items are found
        // by the checkers of its side.
        let switch = &guest.switch;
        self.play("rxe-responds", switch, ("v0-far", "tap-data"), (&feroce, &rxe))?;
        self.play("rxe-requests", switch, ("tap-data", "v0-far"), (&rxe, &feroce))?;
        Ok(())
    }

    /// Writes docs/scorecards: the cards, and the packets that show what rxe fails.
    fn write_pages(&self) -> Result {
        std::fs::create_dir_all(PAGES)?;
        let feroce = format!("feroce-{}", self.options.port);
        let mut command = Command::new(&self.feroce);
        command.args(["conform", "scorecard"]);
        for card in ["feroce-fabric", &feroce, "rxe-responds", "rxe-requests"] {
            let page = format!("{PAGES}/{card}.json");
            std::fs::copy(format!("{OUT}/{card}.json"), &page)?;
            command.arg(page);
        }
        for card in ["rxe-responds", "rxe-requests"] {
            let folder = format!("{PAGES}/{card}");
            if Path::new(&folder).exists() {
                std::fs::remove_dir_all(&folder)?;
            }
            std::fs::create_dir_all(&folder)?;
            let text = std::fs::read_to_string(format!("{OUT}/{card}.json"))?;
            for item in failed_items(&serde_json::from_str(&text)?) {
                let capture = format!("{item}.pcap");
                std::fs::copy(format!("{OUT}/{card}/{capture}"), format!("{folder}/{capture}"))?;
            }
        }
        command.args(["--known", KNOWN, "-o", &format!("{OUT}/scorecards.html")]);
        command.args(["--markdown", &format!("{PAGES}/README.md")]);
        match run(&mut command)? {
            0 => Ok(()),
            code => Err(format!("feroce conform scorecard: exit code {code}").into()),
        }
    }
}

/// The names of the items of a card that were played and have findings.
fn failed_items(card: &Value) -> Vec<&str> {
    let items = card["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let has_findings = |verdict: &Value| {
        verdict["findings"].as_array().is_some_and(|findings| !findings.is_empty())
    };
    let was_played = |item: &&Value| match &item["not_played"] {
        Value::Null | Value::Bool(false) => true,
        Value::String(reason) => reason.is_empty(),
        _ => false,
    };
    items
        .iter()
        .filter(was_played)
        .filter(|item| item["verdicts"].as_array().is_some_and(|all| all.iter().any(has_findings)))
        .filter_map(|item| item["script"].as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_that_were_played_and_have_findings_failed() {
        let card = serde_json::json!({"items": [
            {"script": "a", "not_played": null, "verdicts": [{"findings": []}, {"findings": [1]}]},
            {"script": "b", "not_played": null, "verdicts": [{"findings": []}]},
            {"script": "c", "not_played": "why", "verdicts": [{"findings": [1]}]},
        ]});
        assert_eq!(failed_items(&card), ["a"]);
    }
}
