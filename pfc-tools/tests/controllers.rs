//! Congestion control in small networks: what reaches a controller, and what the controllers do.

use std::sync::atomic::{AtomicU64, Ordering};

use feroce_congestion::algorithm::Algorithm;
use feroce_congestion::controller::{CongestionControl, Controller, Needs};
use feroce_congestion::{Ack, Instant, Params, Rate};
use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::config::{
    Control, FabricConfig, FlowConfig, HostConfig, PacketConfig, SwitchConfig,
};
use feroce_pfc_tools::fabric::error_model::ErrorModel;
use feroce_pfc_tools::fabric::measure::{QueueResult, Results};
use feroce_pfc_tools::fabric::time::{LinkRate, Time};
use feroce_pfc_tools::fabric::topology::{self, LinkSpec};

/// 25 Gb/s and 1 us.
const LINK: LinkSpec =
    LinkSpec { rate: LinkRate::new(25_000_000_000), delay: Time::from_micros(1) };

/// Marks every packet behind `kmin` bytes.
fn marks_from(kmin: &str) -> Params {
    let mut params = Params::default();
    for (name, value) in [("kmin", kmin), ("kmax", kmin), ("pmax", "1")] {
        params.set(name, value).expect("a parameter");
    }
    params
}

/// `senders` endless flows to one more host.
fn incast(control: Control, senders: u32, congestion: Params) -> FabricConfig {
    let network = topology::single(senders as usize + 1, LINK);
    let flow = |from| FlowConfig {
        from,
        to: senders,
        group: 0,
        priority: 3,
        message: 1 << 20,
        messages: None,
        start: Time::ZERO,
        stop: Time::FAR,
        control,
        initial_rate: None,
        chain: None,
        is_held: false,
        released: None,
    };
    let to = network.hosts.len() - 1;
    let switch = network.hosts.len();
    FabricConfig {
        seed: 1,
        packet: PacketConfig::default(),
        switch: SwitchConfig { buffer: 32_000_000, ..SwitchConfig::default() },
        host: HostConfig::default(),
        engines: Vec::new(),
        congestion,
        flows: (0..senders).map(flow).collect(),
        duration: Time::from_millis(20),
        warmup: Time::from_millis(5),
        sample: Time::from_micros(100),
        watch: vec![(switch, to, 3)],
        keep_samples: false,
        steps: Vec::new(),
        network,
    }
}

fn run(config: &FabricConfig) -> Results {
    let mut fabric = Fabric::new(config).expect("a network");
    while !fabric.run(1 << 20) {}
    let results = fabric.results();
    assert_eq!(results.violations(), Vec::<String>::new());
    results
}

/// Goodput of the flows in Gb/s.
fn goodputs(results: &Results) -> Vec<f64> {
    results.flows.iter().map(|flow| flow.goodput.expect("endless") / 1e9).collect()
}

/// Mean and 99th percentile of the queue, in KB.
fn queue(results: &Results) -> (f64, u64) {
    let QueueResult { lengths, .. } = &results.queues[0];
    (lengths.mean() / 1e3, lengths.quantile(990) / 1000)
}

/// One flow fills the link: 1024 of 1106 bytes are payload.
#[test]
fn one_flow_fills_a_link() {
    let full = 25.0 * 1024.0 / 1106.0;
    let shares = [(Control::DCTCP, 0.99), (Control::POWERTCP, 0.98), (Control::HPCC, 0.94)];
    for (control, share) in shares {
        let results = run(&incast(control, 1, marks_from("65KB")));
        let goodput = goodputs(&results)[0];
        assert!((full * share..=full * 1.001).contains(&goodput), "{control}: {goodput}");
    }
}

/// Eight flows share a link evenly and keep the queue that their algorithm promises.
#[test]
fn eight_flows_share_a_link() {
    let expected =
        [(Control::DCTCP, 0.98, 120), (Control::POWERTCP, 0.98, 60), (Control::HPCC, 0.9, 40)];
    for (control, share, longest) in expected {
        let results = run(&incast(control, 8, marks_from("65KB")));
        let goodputs = goodputs(&results);
        let total: f64 = goodputs.iter().sum();
        let (mean, tail) = queue(&results);
        let text = format!("{control}: {total} of {goodputs:?}, queue {mean} and {tail}");
        assert!(total > 25.0 * 1024.0 / 1106.0 * share, "{text}");
        assert!(goodputs.iter().all(|one| *one > total / 8.0 * 0.5), "{text}");
        assert!(tail <= longest, "{text}");
    }
}

/// Seven flows join a long one: with a decrease per update, all eight fell to the lowest rate of
/// 1 Mb/s and stayed there.
#[test]
fn timely_does_not_collapse_when_seven_flows_join() {
    let mut config = incast(Control::TIMELY, 8, Params::default());
    for flow in &mut config.flows[1..] {
        flow.start = Time::from_millis(1);
    }
    config.duration = Time::from_millis(30);
    let goodputs = goodputs(&run(&config));
    let total: f64 = goodputs.iter().sum();
    assert!(total > 10.0, "{goodputs:?}");
}

/// DCTCP gets the mark of each acknowledged packet: no CNP is sent.
#[test]
fn an_echo_replaces_cnps() {
    let results = run(&incast(Control::DCTCP, 4, marks_from("30KB")));
    let sum = |of: fn(&feroce_pfc_tools::fabric::measure::FlowResult) -> u64| -> u64 {
        results.flows.iter().map(of).sum()
    };
    assert!(sum(|flow| flow.marked) > 100);
    assert_eq!((sum(|flow| flow.cnps), sum(|flow| flow.sender.cnps)), (0, 0));
    let results = run(&incast(Control::DCQCN, 4, marks_from("30KB")));
    assert!(results.flows.iter().any(|flow| flow.cnps > 0));
}

/// Swift's target grows with the switches of its path: the queue that one flow of two is allowed.
#[test]
fn swift_allows_a_longer_delay_on_a_longer_path() {
    let longer = |hop_scale: &str| {
        let mut params = Params::default();
        params.set("swift_hop_scale", hop_scale).expect("a parameter");
        params.set("swift_fs_range", "0").expect("a parameter");
        queue(&run(&incast(Control::SWIFT, 2, params))).0
    };
    // One switch: 10 us at 25 Gb/s are 31 KB.
    let more = longer("11us") - longer("1us");
    assert!((20.0..40.0).contains(&more), "{more}");
}

/// A controller knows its path: a lone flow's window is that of the base RTT, and builds no queue.
#[test]
fn the_first_window_is_that_of_the_path() {
    // Two links of 1 us there and back; packets of 1106 bytes there, of 84 bytes back: 4.8 us, and
    // 15 KB at 25 Gb/s. With HPCC, a lone flow never has more than that in flight.
    let mut config = incast(Control::HPCC, 1, Params::default());
    config.warmup = Time::from_micros(1);
    let (_, tail) = queue(&run(&config));
    assert!(tail <= 2, "{tail}");
    config.flows[0].control = Control::Fixed(Rate::from_gbps(25));
    run(&config);
}

/// Acknowledgements of retransmitted packets that [`Witness`] has seen.
static RETRANSMISSIONS: AtomicU64 = AtomicU64::new(0);

/// Sends at 1 Gb/s and counts what it is told.
#[derive(Debug, Clone)]
struct Witness;

impl CongestionControl for Witness {
    fn rate(&self) -> Rate {
        Rate::from_gbps(1)
    }

    fn on_ack(&mut self, ack: &Ack<'_>, _now: Instant) {
        RETRANSMISSIONS.fetch_add(u64::from(ack.is_retransmission), Ordering::Relaxed);
    }
}

static WITNESS: Algorithm = Algorithm {
    name: "witness",
    params: &[],
    needs: Needs::EVERY_ACK,
    starts_at_rate: false,
    new: |_| Controller::new(Witness),
};

/// A controller learns which acknowledgements are of retransmitted packets: none without losses.
#[test]
fn a_controller_hears_of_retransmissions() {
    for loss in [ErrorModel::None, ErrorModel::Every(100)] {
        let mut config = incast(Control::Algorithm(&WITNESS), 1, Params::default());
        config.network.links[0].loss = loss;
        let mut fabric = Fabric::new(&config).expect("a network");
        while !fabric.run(1 << 20) {}
        let retransmitted = fabric.results().flows[0].sender.retransmitted;
        let seen = RETRANSMISSIONS.swap(0, Ordering::Relaxed);
        assert_eq!(seen > 0, loss != ErrorModel::None);
        assert!(seen <= retransmitted, "{seen} of {retransmitted}");
    }
}
