//! Random networks with random traffic: everything arrives exactly once, and a lossless network
//! loses nothing.

use feroce_congestion::{Params, Rate};
use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::config::{
    Control, FabricConfig, FlowConfig, HostConfig, Network, PacketConfig, PfcConfig, Recovery,
    SwitchConfig,
};
use feroce_pfc_tools::fabric::error_model::ErrorModel;
use feroce_pfc_tools::fabric::measure::Results;
use feroce_pfc_tools::fabric::scheduler::SchedulerConfig;
use feroce_pfc_tools::fabric::time::{LinkRate, Time};
use feroce_pfc_tools::fabric::topology::{self, LinkSpec};
use rand_xoshiro::Xoshiro128PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Random draws from one seed.
struct Draw(Xoshiro128PlusPlus);

impl Draw {
    /// A number in `from..=to`.
    fn number(&mut self, from: u32, to: u32) -> u32 {
        from + self.0.next_u32() % (to - from + 1)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.next_u32() as usize % of.len()]
    }

    fn link(&mut self) -> LinkSpec {
        let gigabits = self.one(&[10, 25, 40, 100]);
        LinkSpec {
            rate: LinkRate::new(gigabits * 1_000_000_000),
            delay: Time::from_nanos(self.one(&[50, 1000, 5000])),
        }
    }

    fn network(&mut self) -> Network {
        let (host, trunk) = (self.link(), self.link());
        let some = |draw: &mut Self| draw.number(1, 4) as usize;
        match self.number(0, 3) {
            0 => topology::single(some(self) + 1, host),
            1 => topology::chain(&[some(self), some(self), some(self)], host, trunk),
            2 => topology::two_tier(some(self) + 1, some(self), some(self), host, trunk),
            _ => topology::fat_tree(4, host, trunk).expect("even"),
        }
    }

    fn flow(&mut self, hosts: u32) -> FlowConfig {
        let from = self.number(0, hosts - 1);
        FlowConfig {
            from,
            to: (from + self.number(1, hosts - 1)) % hosts,
            group: 0,
            priority: self.one(&[3, 4]),
            message: u64::from(self.number(1, 100_000)),
            messages: Some(self.number(1, 5)),
            chain: None,
            is_held: false,
            released: None,
            start: Time::from_micros(u64::from(self.number(0, 50))),
            stop: Time::FAR,
            control: self.one(&[
                Control::Off,
                Control::Fixed(Rate::from_bps(3_000_000_000)),
                Control::DCQCN,
                Control::TIMELY,
                Control::SWIFT,
            ]),
            initial_rate: None,
        }
    }

    fn config(&mut self, seed: u64, lossless: bool) -> FabricConfig {
        let network = self.network();
        let hosts = u32::try_from(network.hosts.len()).expect("few");
        let flows = (0..self.number(1, 20)).map(|_| self.flow(hosts)).collect();
        let mut config = FabricConfig {
            seed,
            network,
            packet: PacketConfig {
                payload: self.one(&[256, 1024, 4096]),
                ..PacketConfig::default()
            },
            switch: SwitchConfig {
                alpha: self.one(&[(1, 8), (1, 1), (1, 64)]),
                scheduling: self.one(&[
                    SchedulerConfig::default(),
                    SchedulerConfig { strict: 1 << 6, quantum: [1500; 8] },
                ]),
                lossless: if lossless { 1 << 3 | 1 << 4 } else { 0 },
                pfc: PfcConfig {
                    quanta: self.one(&[1000, 65_535]),
                    repeat: true,
                    response: Time::from_nanos(self.one(&[0, 500])),
                },
                ..SwitchConfig::default()
            },
            host: HostConfig {
                ack_every: self.one(&[1, 16]),
                ack_priority: self.one(&[None, Some(3), Some(6)]),
                ack_delay: Time::from_nanos(self.one(&[0, 700])),
                cnp_delay: Time::from_nanos(self.one(&[0, 3000])),
                window: self.one(&[None, Some(100_000)]),
                timeout: Time::from_millis(if lossless { 1000 } else { 4 }),
                ..HostConfig::default()
            },
            engines: Vec::new(),
            congestion: Params::default(),
            flows,
            steps: Vec::new(),
            duration: Time::from_millis(60_000),
            warmup: Time::ZERO,
            sample: Time::from_millis(1),
            watch: Vec::new(),
            keep_samples: false,
        };
        if !lossless {
            config.switch.buffer = u64::from(self.number(20_000, 200_000));
            config.switch.alpha = self.one(&[(1, 2), (1, 1), (8, 1)]);
            for link in &mut config.network.links {
                link.loss =
                    self.one(&[ErrorModel::None, ErrorModel::Every(97), ErrorModel::Rate(1 << 24)]);
                link.corruption = self.one(&[ErrorModel::None, ErrorModel::Rate(1 << 24)]);
            }
            config.host.recovery = self.one(&[Recovery::GoBackN, Recovery::SelectiveRepeat]);
        } else {
            // Acknowledgements are lossless too; otherwise a full buffer would drop them.
            config.switch.lossless |= 1 << 6;
        }
        config
    }
}

fn run(config: &FabricConfig, seed: u64) -> Results {
    let mut fabric = Fabric::new(config).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    while !fabric.run(1 << 20) {
        assert!(fabric.events() < 1 << 26, "seed {seed}: no end at {}", fabric.now());
    }
    fabric.results()
}

#[test]
fn everything_arrives_exactly_once() {
    let (mut pauses, mut lost, mut marked) = (0, 0, 0);
    for seed in 0..400 {
        let lossless = seed % 2 == 0;
        let mut config = Draw(Xoshiro128PlusPlus::seed_from_u64(seed)).config(seed, lossless);
        // In place of Swift, so that the draws stay the same.
        let others = [Control::SWIFT, Control::DCTCP, Control::HPCC, Control::POWERTCP];
        for flow in config.flows.iter_mut().filter(|flow| flow.control == Control::SWIFT) {
            flow.control = others[usize::try_from(seed / 2 % 4).expect("small")];
        }
        let results = run(&config, seed);
        for (number, flow) in results.flows.iter().enumerate() {
            assert!(flow.ended.is_some(), "seed {seed}: flow {number} does not end: {flow:?}");
            assert_eq!(Some(flow.delivered), flow.size, "seed {seed}: flow {number}");
        }
        if lossless {
            assert_eq!(results.violations(), Vec::<String>::new(), "seed {seed}");
        }
        for port in &results.ports {
            pauses += port.counts.pauses_received;
            lost += port.counts.lost + port.counts.dropped;
            marked += port.counts.marked;
        }
    }
    assert!(
        pauses > 100 && lost > 100 && marked > 1000,
        "{pauses} pauses, {lost} lost, {marked} marked"
    );
}
