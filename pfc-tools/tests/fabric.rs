//! Small networks with literal expectations: times to the picosecond, bytes and shares.

use feroce_congestion::{Params, Rate};
use feroce_pfc_tools::fabric::Fabric;
use feroce_pfc_tools::fabric::config::{
    Control, FabricConfig, FlowConfig, HostConfig, Network, PacketConfig, PfcConfig, Recovery,
    SwitchConfig,
};
use feroce_pfc_tools::fabric::error_model::ErrorModel;
use feroce_pfc_tools::fabric::measure::{PortResult, Results};
use feroce_pfc_tools::fabric::scheduler::SchedulerConfig;
use feroce_pfc_tools::fabric::time::{LinkRate, Time};
use feroce_pfc_tools::fabric::topology::{self, LinkSpec};

/// 40 Gb/s: 200 ps per byte; 1 us of delay.
const LINK: LinkSpec =
    LinkSpec { rate: LinkRate::new(40_000_000_000), delay: Time::from_micros(1) };
/// 10 Gb/s.
const SLOW: LinkSpec = LinkSpec { rate: LinkRate::new(10_000_000_000), ..LINK };

/// 1000 bytes in buffers and on the link.
const PACKET: PacketConfig = PacketConfig { payload: 1000, headers: 0, gap: 0, control: 64 };

fn flow(from: u32, to: u32) -> FlowConfig {
    FlowConfig {
        from,
        to,
        group: 0,
        priority: 3,
        message: 1 << 20,
        messages: None,
        start: Time::ZERO,
        stop: Time::FAR,
        control: Control::Off,
        initial_rate: None,
        chain: None,
        is_held: false,
        released: None,
    }
}

fn config(network: Network, flows: Vec<FlowConfig>) -> FabricConfig {
    FabricConfig {
        seed: 1,
        network,
        packet: PACKET,
        switch: SwitchConfig { ecn: false, ..SwitchConfig::default() },
        host: HostConfig { burst: 1, ..HostConfig::default() },
        engines: Vec::new(),
        congestion: Params::default(),
        flows,
        steps: Vec::new(),
        duration: Time::from_millis(10),
        warmup: Time::ZERO,
        sample: Time::from_micros(100),
        watch: Vec::new(),
        keep_samples: false,
    }
}

fn run(config: &FabricConfig) -> Results {
    let mut fabric = Fabric::new(config).expect("a network");
    while !fabric.run(1 << 20) {}
    fabric.results()
}

fn port<'a>(results: &'a Results, config: &FabricConfig, from: &str, to: &str) -> &'a PortResult {
    let number = |name| config.network.node(name).expect("a node");
    let wanted = (number(from), number(to));
    results.ports.iter().find(|port| (port.node, port.peer) == wanted).expect("a link")
}

#[test]
fn a_message_takes_its_transmission_times_and_delays() {
    let one = FlowConfig { message: 10_000, messages: Some(1), ..flow(0, 1) };
    let config = config(topology::single(2, LINK), vec![one]);
    let results = run(&config);
    // Ten packets of 200 ns on the first link, the last one again on the second link, and two
    // delays; an acknowledgement of 64 bytes back over two links.
    let there = 10 * 200_000 + 1_000_000 + 200_000 + 1_000_000;
    let back = 2 * (64 * 200 + 1_000_000);
    assert_eq!(results.flows[0].ended, Some(Time(there + back)));
    assert_eq!(results.flows[0].delivered, 10_000);
    assert_eq!(results.violations(), Vec::<String>::new());
}

/// A flow that ends before the end of the warm-up has no goodput; a flow cut off by the end of the
/// run is counted as unfinished.
#[test]
fn goodput_and_unfinished_flows() {
    let early = FlowConfig { message: 10_000, messages: Some(1), ..flow(0, 1) };
    let cut = FlowConfig { messages: Some(1000), group: 1, ..flow(0, 2) };
    let config = config(topology::single(3, LINK), vec![early, cut]);
    let results = run(&FabricConfig { warmup: Time::from_millis(1), ..config });
    assert_eq!(results.flows[0].goodput, None);
    assert!(results.flows[1].goodput.expect("measured") > 39e9);
    assert_eq!([None, Some(0), Some(1)].map(|group| results.unfinished(group)), [1, 0, 1]);
}

/// A flow whose data arrives before the end of the warm-up and is acknowledged after it has no
/// goodput either.
#[test]
fn a_flow_acknowledged_after_the_warm_up_has_no_goodput() {
    let early = FlowConfig { message: 10_000, messages: Some(1), ..flow(0, 1) };
    let config = config(topology::single(2, LINK), vec![early]);
    let ended = run(&config).flows[0].ended.expect("a message has an end");
    let warmup = Time(ended.0 - 1);
    let results = run(&FabricConfig { warmup, ..config });
    assert_eq!((results.flows[0].ended, results.flows[0].goodput), (Some(ended), None));
}

/// A flow that is stopped early has not finished; a flow that had sent everything has.
#[test]
fn a_flow_stopped_early_has_not_finished() {
    let stop = Time::from_micros(100);
    let cut = FlowConfig { messages: Some(1000), stop, ..flow(0, 1) };
    let all = FlowConfig { message: 10_000, messages: Some(1), stop, group: 1, ..flow(2, 3) };
    let results = run(&config(topology::single(4, LINK), vec![cut, all]));
    let [cut, all] = &results.flows[..] else { panic!("two flows") };
    assert!(cut.ended > Some(stop), "what it had sent was acknowledged");
    assert_eq!((cut.completion(), cut.slowdown()), (None, None));
    assert!(all.completion().is_some());
    assert_eq!([None, Some(0), Some(1)].map(|group| results.unfinished(group)), [1, 1, 0]);
}

/// The reference of the slowdown: without other traffic the slowdown is 1, for any link rates and
/// packet sizes.
#[test]
fn a_standalone_flow_has_slowdown_one() {
    let dumbbells = [(LINK, SLOW), (SLOW, LINK), (LINK, LINK)];
    for (outer, trunk) in dumbbells {
        for (message, messages) in
            [(1, 1), (999, 1), (1000, 1), (10_500, 1), (3_000_001, 1), (10_500, 3)]
        {
            let one = FlowConfig { message, messages: Some(messages), ..flow(0, 1) };
            let config = config(topology::dumbbell(1, 1, outer, trunk), vec![one]);
            let results = run(&config);
            let (took, standalone) = (results.flows[0].completion(), results.flows[0].standalone);
            if messages == 1 {
                assert_eq!(took, standalone, "{message} bytes, {outer:?}, {trunk:?}");
            } else {
                let slowdown = results.flows[0].slowdown().expect("it has ended");
                assert!((slowdown - 1.0).abs() < 0.02, "{slowdown}: {took:?} {standalone:?}");
            }
        }
    }
}

#[test]
fn a_closed_loop_runs_one_transfer_after_another() {
    let link = |message, chain| FlowConfig {
        message,
        messages: Some(1),
        chain: Some(chain),
        ..flow(0, 1)
    };
    let flows = vec![link(5000, 0), link(700_000, 1), link(90_000, 0), link(1, 0)];
    let results = run(&config(topology::single(2, LINK), flows));
    let at = |flow: usize| (results.flows[flow].started, results.flows[flow].ended);
    assert_eq!(
        (at(0).0, at(1).0),
        (Some(Time::ZERO), Some(Time::ZERO)),
        "the control loops are independent"
    );
    assert!(at(0).1.is_some() && at(0).1 == at(2).0 && at(2).1 == at(3).0, "{:?}", results.flows);
    assert!(at(3).1.is_some());
}

#[test]
fn fixed_rates_are_exact() {
    for gigabits in [1, 3, 7, 39] {
        let paced = FlowConfig {
            control: Control::Fixed(Rate::from_bps(gigabits * 1_000_000_000)),
            ..flow(0, 1)
        };
        let config = config(topology::single(2, LINK), vec![paced]);
        let goodput = run(&config).flows[0].goodput.expect("measured") / 1e9;
        // Of 10 ms the first two microseconds are without packets.
        #[allow(clippy::cast_precision_loss)]
        let exact = gigabits as f64;
        assert!((goodput - exact).abs() < exact * 1e-3, "{goodput} for {gigabits}");
    }
}

/// Without losses no timer expires, even for a flow so slow that 16 packets take longer than the
/// timeout, and for a flow that stops in the middle of a message.
#[test]
fn no_timer_expires_without_a_loss() {
    let slow = FlowConfig { control: Control::Fixed(Rate::from_bps(10_000_000)), ..flow(0, 1) };
    let stopped = FlowConfig { stop: Time::from_micros(50), ..flow(0, 1) };
    for of in [slow, stopped] {
        let mut config = config(topology::single(2, LINK), vec![of]);
        config.duration = Time::from_millis(50);
        let results = run(&config);
        assert!(results.flows[0].sender.packets > 40, "{:?}", results.flows[0]);
        assert_eq!(results.violations(), Vec::<String>::new());
        let retransmitted = results.flows[0].sender.retransmitted;
        assert_eq!(retransmitted, 0);
    }
}

#[test]
fn inconsistent_times_are_refused() {
    let backwards =
        FlowConfig { start: Time::from_micros(2), stop: Time::from_micros(1), ..flow(0, 1) };
    let error = Fabric::new(&config(topology::single(2, LINK), vec![backwards])).unwrap_err();
    assert!(
        error.message.contains("stops before it starts") && error.key == "traffic.0",
        "{error}"
    );
    let mut unmeasured = config(topology::single(2, LINK), vec![flow(0, 1)]);
    unmeasured.warmup = unmeasured.duration;
    assert_eq!(Fabric::new(&unmeasured).unwrap_err().key, "warmup");
}

/// Two senders at link rate to one receiver: PFC halves their rates and nothing is lost.
#[test]
fn pfc_keeps_an_incast_lossless() {
    let mut config = config(topology::single(3, LINK), vec![flow(0, 2), flow(1, 2)]);
    config.switch.buffer = 1_000_000;
    config.switch.alpha = (1, 8);
    config.watch = vec![(3, 2, 3)];
    let results = run(&config);
    assert_eq!(results.violations(), Vec::<String>::new());
    let goodput = |n: usize| results.flows[n].goodput.expect("measured") / 1e9;
    assert!(
        (goodput(0) - 20.0).abs() < 0.2 && (goodput(1) - 20.0).abs() < 0.2,
        "{} {}",
        goodput(0),
        goodput(1)
    );
    assert!(port(&results, &config, "s1", "h3").wire > 39.9e9);
    let pauses = port(&results, &config, "s1", "h1").counts.pauses_sent;
    assert!(pauses > 100, "{pauses}");
    // The threshold is T = (pool - 2 T) / 8, where the pool is 1 MB less the headroom of 3 x 13064
    // bytes: 96.1 KB for each sender. The bytes that arrive before a pause takes effect are added:
    // 2 us of link delay and three packets.
    let longest = results.queues[0].lengths.max();
    assert!((192_000..2 * (96_100 + 13_064)).contains(&longest), "{longest}");
}

#[test]
fn without_headroom_pfc_drops_packets() {
    let mut config = config(topology::single(3, LINK), vec![flow(0, 2), flow(1, 2)]);
    config.switch.buffer = 1_000_000;
    config.switch.headroom = Some(0);
    config.switch.threshold = Some(400_000);
    let results = run(&config);
    assert!(
        results.violations().iter().any(|loss| loss.ends_with("packets dropped at switches")),
        "{:?}",
        results.violations()
    );
    // The headroom computed from the link absorbs the bytes in flight.
    config.switch.headroom = None;
    assert_eq!(run(&config).violations(), Vec::<String>::new());
}

/// A sender resumes when the quanta expire, without an XON.
#[test]
fn a_pause_expires() {
    let mut config = config(topology::single(3, LINK), vec![flow(0, 2), flow(1, 2)]);
    config.switch.buffer = 1_000_000;
    // Much too short and not repeated: 100 quanta are 1.28 us.
    config.switch.pfc = PfcConfig { quanta: 100, repeat: false, response: Time::ZERO };
    config.switch.threshold = Some(100_000);
    let results = run(&config);
    assert!(!results.violations().is_empty(), "senders went on though they were still to wait");
    config.switch.pfc.repeat = true;
    assert_eq!(run(&config).violations(), Vec::<String>::new(), "repeated, a short pause does");
}

#[test]
fn without_pfc_packets_are_dropped_and_retransmitted() {
    let one = |from| FlowConfig { message: 10_000_000, messages: Some(1), ..flow(from, 2) };
    let mut config = config(topology::single(3, LINK), vec![one(0), one(1)]);
    config.switch.lossless = 0;
    config.switch.buffer = 100_000;
    config.duration = Time::from_millis(500);
    let results = run(&config);
    assert!(results.flows.iter().all(|flow| flow.ended.is_some() && flow.delivered == 10_000_000));
    let retransmitted = results.flows.iter().map(|flow| flow.sender.retransmitted).sum::<u64>();
    assert!(retransmitted > 0);
    assert_eq!(port(&results, &config, "s1", "h1").counts.pauses_sent, 0);
}

#[test]
fn weights_share_a_link() {
    let of = |from, priority| FlowConfig { priority, ..flow(from, 3) };
    let mut config = config(topology::single(4, LINK), vec![of(0, 1), of(1, 3), of(2, 4)]);
    let mut scheduling = SchedulerConfig { strict: 1 << 6, quantum: [1000; 8] };
    (scheduling.quantum[1], scheduling.quantum[3], scheduling.quantum[4]) = (1000, 2000, 5000);
    config.switch.scheduling = scheduling;
    config.switch.lossless = 1 << 1 | 1 << 3 | 1 << 4;
    config.host.ack_priority = Some(6);
    let results = run(&config);
    assert_eq!(results.violations(), Vec::<String>::new());
    for (flow, share) in results.flows.iter().zip([5.0, 10.0, 25.0]) {
        let goodput = flow.goodput.expect("measured") / 1e9;
        assert!((goodput - share).abs() < 0.1, "{goodput} of {share}");
    }
}

/// A pause of one priority does not affect another on the same link.
#[test]
fn a_pause_affects_only_its_priority() {
    // h1 sends to a slow receiver on priority 3 and to a fast one on priority 4.
    let mut network = topology::single(3, LINK);
    network.links[1].rate = SLOW.rate;
    let slow = FlowConfig { priority: 3, ..flow(0, 1) };
    let fast = FlowConfig { priority: 4, ..flow(0, 2) };
    let mut config = config(network, vec![slow, fast]);
    config.switch.lossless = 1 << 3 | 1 << 4;
    config.switch.threshold = Some(50_000);
    let results = run(&config);
    assert_eq!(results.violations(), Vec::<String>::new());
    let goodput = |n: usize| results.flows[n].goodput.expect("measured") / 1e9;
    assert!((goodput(0) - 10.0).abs() < 0.1, "{}", goodput(0));
    assert!((goodput(1) - 30.0).abs() < 0.2, "{}", goodput(1));
}

#[test]
fn one_loss_in_256_livelocks_only_go_back_0() {
    let mut network = topology::single(2, LINK);
    network.links[0].loss = ErrorModel::Every(256);
    let endless = FlowConfig { message: 4_194_304, ..flow(0, 1) };
    let mut config = config(network, vec![endless]);
    config.duration = Time::from_millis(20);
    let fine = run(&config).flows[0].goodput.expect("measured") / 1e9;
    assert!(fine > 36.0, "{fine}");
    config.host.recovery = Recovery::GoBack0;
    let results = run(&config);
    assert_eq!(results.flows[0].delivered, 0);
    assert!(port(&results, &config, "h1", "s1").wire > 38e9, "the link is busy all the time");
}

/// Every hundredth packet is lost, among them packets that are sent again.
#[test]
fn selective_repeat_sends_each_lost_packet_once_more() {
    let mut network = topology::single(2, LINK);
    network.links[0].loss = ErrorModel::Every(100);
    let one = FlowConfig { message: 5_000_000, messages: Some(1), ..flow(0, 1) };
    let mut config = config(network, vec![one]);
    config.host.recovery = Recovery::SelectiveRepeat;
    let flow = &run(&config).flows[0];
    assert_eq!(flow.delivered, 5_000_000);
    let lost = flow.sender.packets / 100;
    assert_eq!((flow.sender.retransmitted, flow.sender.timeouts), (lost, 0));
    assert_eq!(flow.sender.packets, 5000 + lost);
    // 5050 packets of 200 ns, and at most three round trips of 4.4 us to recover the last losses.
    assert!(flow.ended.expect("finished") < Time::from_micros(1010 + 14), "{:?}", flow.ended);
}

#[test]
fn selective_repeat_recovers_a_lost_last_packet_by_its_timer() {
    let mut network = topology::single(2, LINK);
    network.links[0].loss = ErrorModel::Every(10);
    let one = FlowConfig { message: 10_000, messages: Some(1), ..flow(0, 1) };
    let mut config = config(network, vec![one]);
    (config.host.recovery, config.host.ack_every) = (Recovery::SelectiveRepeat, 1);
    let flow = &run(&config).flows[0];
    assert_eq!((flow.sender.timeouts, flow.sender.retransmitted, flow.delivered), (1, 1, 10_000));
}

#[test]
fn a_corrupted_packet_reaches_the_receiver() {
    let mut network = topology::single(2, LINK);
    network.links[0].corruption = ErrorModel::Every(1000);
    let one = FlowConfig { message: 5_000_000, messages: Some(1), ..flow(0, 1) };
    let results = run(&config(network, vec![one]));
    assert!(results.corrupted >= 5, "{}", results.corrupted);
    assert_eq!(results.flows[0].delivered, 5_000_000);
    assert!(results.violations().iter().any(|loss| loss.ends_with("packets with a wrong ICRC")));
}

/// The last packet of a message is lost: there is no NAK, and the timer recovers.
#[test]
fn the_timer_recovers_a_lost_last_packet() {
    let mut network = topology::single(2, LINK);
    network.links[0].loss = ErrorModel::Every(10);
    let one = FlowConfig { message: 10_000, messages: Some(1), ..flow(0, 1) };
    let mut config = config(network, vec![one]);
    config.host.ack_every = 1;
    let results = run(&config);
    let flow = &results.flows[0];
    assert_eq!((flow.sender.timeouts, flow.sender.retransmitted), (1, 1));
    // The ninth acknowledgement arrives at 6025.6 ns and the timer expires 4 ms later. The NIC
    // sends at the next whole nanosecond.
    let round = 2 * (200_000 + 1_000_000) + 2 * (12_800 + 1_000_000);
    assert_eq!(flow.ended, Some(Time(4_006_026_000 + round)));
}

/// The first mark, its path and its CNP, to the nanosecond.
#[test]
fn a_cnp_halves_the_rate_when_it_arrives() {
    let mut network = topology::single(2, LINK);
    network.links[1].rate = SLOW.rate;
    let mut config = config(network, vec![FlowConfig { control: Control::DCQCN, ..flow(0, 1) }]);
    config.switch.ecn = true;
    (config.congestion.marking.kmin, config.congestion.marking.kmax) = (4500, 4500);
    (config.sample, config.keep_samples) = (Time::from_nanos(1), true);
    // Packets arrive every 200 ns from 1200 ns on, and leave every 800 ns. When the eighth arrives
    // at 2600 ns, five are queued. The eighth leaves at 6800 ns and is received 1800 ns later. The
    // CNP takes 51.2 ns on the receiver's link, 12.8 ns on the sender's, and their delays.
    for (delay, halves_at) in [(0, 10_664), (10_000, 20_664)] {
        config.host.cnp_delay = Time::from_nanos(delay);
        config.duration = Time::from_nanos(halves_at + 100);
        let samples = run(&config).samples;
        let at =
            samples.flows.iter().position(|sample| sample.rate != 40_000_000_000).expect("a CNP");
        assert_eq!(
            (samples.times[at], samples.flows[at].rate),
            (Time::from_nanos(halves_at), 20_000_000_000)
        );
    }
}

#[test]
fn inconsistent_configurations_are_refused() {
    let message = |config: &FabricConfig| Fabric::new(config).expect_err("a misfit").to_string();
    let mut config = config(topology::single(3, LINK), vec![flow(0, 0)]);
    assert_eq!(message(&config), "h1 sends to itself");
    config.flows = vec![flow(0, 1)];
    config.watch = vec![(0, 1, 3)];
    assert_eq!(message(&config), "no link joins h1 and h2");
    config.watch.clear();
    config.network.links.pop();
    assert_eq!(message(&config), "h3 has 0 links; a host has one");
    config = FabricConfig { network: topology::single(3, LINK), ..config };
    (config.switch.buffer, config.switch.lossless) = (999, 0);
    assert_eq!(
        message(&config),
        "s1: a lossy queue holds at most 999 bytes, less than a packet of 1000"
    );
    config.switch.lossless = 1 << 3;
    assert!(message(&config).starts_with("s1: 3 ports need "), "{}", message(&config));
}
