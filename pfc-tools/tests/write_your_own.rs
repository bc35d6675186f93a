//! The controller of docs/write-your-own-cc.md: its code is the page's, and runs in simulated hosts
//! and in engine hosts of the fabric.

use std::path::Path;

use feroce_congestion::{Control, Instant, Params, Rate, Setup};
use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::config::{
    FabricConfig, FlowConfig, HostConfig, PacketConfig, SwitchConfig,
};
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

#[test]
fn the_page_has_this_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = folder.join("../docs/write-your-own-cc.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let code = folder.join("tests/write_your_own/aimd.rs");
    let code = std::fs::read_to_string(code).expect("the code");
    let blocks = page.split("```rust\n").skip(1).filter_map(|rest| rest.split_once("\n```\n"));
    let of_page: Vec<&str> = blocks.map(|(block, _)| block).collect();
    assert_eq!(of_page.join("\n\n").trim(), code.trim());
}

fn us(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

#[test]
fn a_cnp_halves_the_rate_and_each_period_adds_a_step() {
    let (params, path) = (Params::default(), feroce_congestion::Path::UNKNOWN);
    let link_rate = Rate::from_gbps(10);
    let mut aimd = AIMD.controller(&Setup { params: &params, link_rate, now: us(0), path });
    aimd.on_cnp(us(1000));
    assert_eq!(aimd.rate(), Rate::from_gbps(5));
    aimd.on_cnp(us(1049));
    assert_eq!(aimd.rate(), Rate::from_gbps(5), "within the period");
    assert_eq!(aimd.next_event(), us(1050));
    aimd.advance(us(1099));
    assert_eq!(aimd.rate(), Rate::from_mbps(5040));
    // The timers that have ended run before a CNP.
    aimd.on_cnp(us(1150));
    assert_eq!(aimd.rate(), Rate::from_mbps(2560));
    aimd.advance(us(1_000_000));
    assert_eq!((aimd.rate(), aimd.next_event()), (link_rate, Instant::FAR));
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
