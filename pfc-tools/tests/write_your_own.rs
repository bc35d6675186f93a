//! The controller of docs/write-your-own-cc.md: its code is the page's, and runs in simulated hosts
//! and in engine hosts of the fabric.

use std::path::Path;

use feroce_congestion::{Control, Params};
use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::config::{
    FabricConfig, FlowConfig, HostConfig, PacketConfig, SwitchConfig,
};
use feroce_pfc_tools::fabric::scenario::Scenario;
use feroce_pfc_tools::fabric::time::{LinkRate, Time};
use feroce_pfc_tools::fabric::topology::{self, LinkSpec};

// The file names the modules of the crate `congestion`, to which a reader adds it.
use feroce_congestion::{controller, fraction, params, rate, time};

#[path = "write_your_own"]
mod algorithm {
    pub use feroce_congestion::algorithm::Algorithm;

    pub mod aimd;
}

const AIMD: Control = Control::Algorithm(&algorithm::aimd::ALGORITHM);

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_page_has_this_code() {
    let page = file("../docs/write-your-own-cc.md");
    let code = file("tests/write_your_own/aimd.rs");
    let blocks = page.split("```rust\n").skip(1).filter_map(|rest| rest.split_once("\n```\n"));
    let of_page: Vec<&str> = blocks.map(|(block, _)| block).collect();
    assert_eq!(of_page.join("\n\n").trim(), code.trim());
}

/// The page's scenario, here with an algorithm that is registered.
#[test]
fn the_page_has_a_scenario() {
    let page = file("../docs/write-your-own-cc.md");
    let (_, text) = page.split_once("```toml\n").expect("a scenario");
    let (text, _) = text.split_once("```").expect("its end");
    let text = text.replace("\"aimd\"", "\"timely\"");
    let scenario = Scenario::parse("page", &text, &[], None).expect("a scenario");
    assert_eq!((scenario.cases.len(), scenario.figures.len()), (2, 2));
}

/// Two senders share a link of 10 Gb/s.
fn two_to_one(engines: &[u32]) -> FabricConfig {
    let link = LinkSpec { rate: LinkRate::new(10_000_000_000), delay: Time::from_micros(1) };
    let flow = |from| FlowConfig {
        from,
        to: 2,
        group: 0,
        priority: 3,
        message: 100_000,
        messages: None,
        start: Time::ZERO,
        stop: Time::FAR,
        control: AIMD,
        initial_rate: None,
        chain: None,
        is_held: false,
        released: None,
    };
    FabricConfig {
        seed: 1,
        network: topology::single(3, link),
        packet: PacketConfig::default(),
        switch: SwitchConfig::default(),
        host: HostConfig::default(),
        engines: engines.to_vec(),
        congestion: Params::default(),
        flows: (0..2).map(flow).collect(),
        duration: Time::from_millis(20),
        warmup: Time::from_millis(5),
        sample: Time::from_micros(100),
        watch: Vec::new(),
        keep_samples: false,
        steps: Vec::new(),
    }
}

#[test]
fn the_controller_runs_in_the_fabric_and_in_the_engine() {
    for engines in [&[][..], &[0, 1, 2]] {
        let mut fabric = Fabric::new(&two_to_one(engines)).expect("a network");
        while !fabric.run(1 << 20) {}
        let results = fabric.results();
        let rates: Vec<f64> =
            results.flows.iter().map(|flow| flow.goodput.expect("endless") / 1e9).collect();
        let cnps: u64 = results.flows.iter().map(|flow| flow.sender.cnps).sum();
        assert!(cnps > 10, "{cnps} CNPs");
        assert!(rates.iter().sum::<f64>() > 7.0, "{rates:?}");
        assert!(rates.iter().all(|rate| *rate > 3.0), "{rates:?}");
    }
}
