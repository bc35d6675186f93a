//! DCTCP, HPCC and PowerTCP: each rule as a trace with literal numbers.

mod common;

use common::us;
use feroce_congestion::{
    Ack, CongestionControl, Dctcp, Duration, Hop, Hpcc, Instant, Params, Path, PowerTcp, Rate,
    Setup,
};

const LINK: Rate = Rate::from_gbps(100);

/// A base RTT of 10 us: 125 000 bytes at 100 Gb/s.
const PATH: Path = Path { hops: Some(1), base_rtt: Some(Duration::from_micros(10)) };

/// The defaults with these parameters.
fn params(changed: &[(&str, &str)]) -> Params {
    let mut params = Params::default();
    for (name, text) in changed {
        params.set(name, text).unwrap_or_else(|error| panic!("{name} = {text}: {error}"));
    }
    params
}

fn setup(params: &Params) -> Setup<'_> {
    Setup { params, link_rate: LINK, now: Instant::ZERO, path: PATH }
}

fn ack(micros: u64, bytes: u64) -> Ack<'static> {
    Ack::new(Duration::from_micros(micros), bytes)
}

fn marked(micros: u64, bytes: u64) -> Ack<'static> {
    Ack { is_marked: true, ..ack(micros, bytes) }
}

/// Packets of 1000 bytes, a gain of 1/2, alpha 1 at first.
fn dctcp() -> Dctcp {
    let changed = [("dctcp_packet", "1000"), ("dctcp_g", "1/2"), ("dctcp_max_window", "200")];
    Dctcp::new(&setup(&params(&changed)))
}

/// Alpha in thousandths.
fn alpha(dctcp: &Dctcp) -> u64 {
    dctcp.alpha().of_u64(1000)
}

/// A first window of ten packets: RFC 6928, section 2.
#[test]
fn dctcp_doubles_its_window_until_the_first_mark() {
    let mut dctcp = dctcp();
    assert_eq!((dctcp.window(), dctcp.rate()), (10_000, LINK));
    for step in 0..10 {
        dctcp.on_ack(&ack(10, 1000), us(10 + step));
    }
    assert_eq!(dctcp.window(), 20_000);
    // One of ten packets is marked. Alpha was 1, then 1/2, and is now 1/2 * 1/2 + 1/2 * 1/10; half
    // of it is cut.
    dctcp.on_ack(&marked(9, 1000), us(20));
    assert_eq!((alpha(&dctcp), dctcp.window()), (299, 17_000));
    // No slow start any more: a packet per window.
    for step in 0..17 {
        dctcp.on_ack(&ack(10, 1000), us(30 + step));
    }
    assert!((17_950..=18_000).contains(&dctcp.window()), "{}", dctcp.window());
}

/// RFC 8257, section 3.3.
#[test]
fn dctcp_averages_the_fraction_of_marked_bytes_once_per_window() {
    let mut dctcp = dctcp();
    // The first acknowledgement ends a window without marks: alpha 1 becomes 1/2.
    dctcp.on_ack(&ack(10, 1000), us(10));
    assert_eq!(alpha(&dctcp), 500);
    // Packets that were sent before: one of four is marked.
    dctcp.on_ack(&marked(10, 1000), us(12));
    dctcp.on_ack(&ack(10, 1000), us(14));
    dctcp.on_ack(&ack(10, 1000), us(16));
    assert_eq!(alpha(&dctcp), 500);
    // The first packet of the next window: 1/2 * 1/2 + 1/2 * 1/4.
    dctcp.on_ack(&ack(10, 1000), us(20));
    assert_eq!(alpha(&dctcp), 375);
    assert_eq!(dctcp.figures().alpha, Some(dctcp.alpha()));
}

#[test]
fn dctcp_cuts_once_per_window_and_does_not_grow_meanwhile() {
    let mut dctcp = dctcp();
    dctcp.on_ack(&ack(10, 1000), us(10));
    assert_eq!(dctcp.window(), 11_000);
    dctcp.on_ack(&marked(10, 1000), us(12));
    assert_eq!(dctcp.window(), 8_250);
    dctcp.on_ack(&marked(10, 1000), us(13));
    dctcp.on_ack(&ack(10, 1000), us(14));
    assert_eq!(dctcp.window(), 8_250);
    // Sent after the cut.
    dctcp.on_ack(&marked(10, 1000), us(22));
    assert!(dctcp.window() < 8_250);
}

/// Never fewer than two packets: RFC 5681, equation 4.
#[test]
fn dctcp_halves_for_a_loss_and_stays_within_its_limits() {
    let mut dctcp = dctcp();
    dctcp.on_ack(&ack(10, 90_000), us(10));
    assert_eq!(dctcp.window(), 100_000);
    dctcp.on_loss(us(20));
    dctcp.on_loss(us(21));
    assert_eq!(dctcp.window(), 50_000);
    for step in 1..10 {
        dctcp.on_loss(us(20 + 20 * step));
    }
    assert_eq!(dctcp.window(), 2000);
    let mut params = params(&[("dctcp_max_window", "20")]);
    params.set("dctcp_packet", "1000").unwrap();
    let mut dctcp = Dctcp::new(&setup(&params));
    dctcp.on_ack(&ack(10, 90_000), us(10));
    assert_eq!(dctcp.window(), 20_000);
}

/// The engine has CNPs instead of marked acknowledgements: each is one marked packet.
#[test]
fn dctcp_counts_cnps_as_marked_packets() {
    let mut dctcp = dctcp();
    dctcp.on_ack(&ack(10, 1000), us(10));
    dctcp.on_cnp(us(12));
    assert_eq!(dctcp.window(), 8_250);
    dctcp.on_cnp(us(13));
    assert_eq!(dctcp.window(), 8_250, "once per RTT");
    dctcp.on_ack(&ack(10, 2000), us(14));
    // Two of four packets: 1/2 * 1/2 + 1/2 * 1/2.
    dctcp.on_ack(&ack(10, 2000), us(20));
    assert_eq!(alpha(&dctcp), 500);
}

/// A hop at a link of 100 Gb/s.
fn hop(queue: u64, sent: u64, micros: u64) -> Hop {
    Hop { queue, sent, at: us(micros), rate: LINK }
}

/// An acknowledgement of a packet that was sent 10 us ago.
fn told<'a>(hops: &'a [Hop]) -> Ack<'a> {
    Ack { hops, ..ack(10, 1000) }
}

#[test]
fn hpcc_starts_with_the_bandwidth_delay_product() {
    let hpcc = Hpcc::new(&setup(&Params::default()));
    assert_eq!((hpcc.window(), hpcc.rate()), (125_000, LINK));
    let longer = params(&[("hpcc_base_rtt", "20us")]);
    assert_eq!(Hpcc::new(&setup(&longer)).window(), 250_000);
}

#[test]
fn hpcc_scales_the_window_to_its_target() {
    let mut hpcc = Hpcc::new(&setup(&Params::default()));
    hpcc.on_ack(&told(&[hop(0, 0, 5)]), us(10));
    assert_eq!(hpcc.window(), 125_000, "no two acknowledgements yet");
    // In 10 us the link sent all it can, and the queue has grown to half of that.
    hpcc.on_ack(&told(&[hop(62_500, 125_000, 15)]), us(20));
    // Of two queues, the smaller one counts: U = 1, and 0.95 / 1 of 125 000, plus 80.
    assert_eq!(hpcc.window(), 118_830);
    // Now both acknowledgements have seen the queue: U = 1.5, and 0.95 / 1.5 of 118 830, plus 80.
    hpcc.on_ack(&told(&[hop(62_500, 250_000, 25)]), us(30));
    assert_eq!(hpcc.window(), 75_339);
}

#[test]
fn hpcc_increases_additively_for_five_rtts_then_multiplies() {
    let mut hpcc = Hpcc::new(&setup(&Params::default()));
    hpcc.on_ack(&told(&[hop(0, 0, 5)]), us(10));
    // Twice the bandwidth-delay product in flight.
    hpcc.on_ack(&told(&[hop(0, 250_000, 15)]), us(20));
    assert_eq!(hpcc.window(), 59_455);
    let mut windows = Vec::new();
    for step in 1..=6 {
        // The link is half empty.
        let hops = [hop(0, 250_000 + 62_500 * step, 15 + 10 * step)];
        hpcc.on_ack(&told(&hops), us(20 + 10 * step));
        windows.push(hpcc.window());
    }
    // 0.95 / 0.5 of 59 855, plus 80.
    assert_eq!(windows, [59_535, 59_615, 59_695, 59_775, 59_855, 113_805]);
}

/// Acknowledgements of one RTT start from one reference window: they do not multiply. The queue
/// stays; `first` is the window after the first RTT, `next` that after each acknowledgement of the
/// second.
fn reacts_without_multiplying(
    mut control: impl CongestionControl,
    queue: u64,
    first: u64,
    next: u64,
) {
    control.on_ack(&told(&[hop(queue, 0, 5)]), us(10));
    control.on_ack(&told(&[hop(queue, 125_000, 15)]), us(20));
    assert_eq!(control.window(), first);
    for step in 1..10 {
        control.on_ack(&told(&[hop(queue, 125_000 + 12_500 * step, 15 + step)]), us(20 + step));
        assert_eq!(control.window(), next, "step {step}");
    }
}

#[test]
fn hpcc_reacts_to_each_acknowledgement_without_multiplying() {
    let hpcc = Hpcc::new(&setup(&Params::default()));
    // 0.95 of the reference, plus 80.
    reacts_without_multiplying(hpcc, 0, 118_830, 112_969);
}

/// Current 1, voltage 2: the window is 0.9 (reference / 2 + 12 500) + 0.1 reference.
#[test]
fn powertcp_reacts_to_each_acknowledgement_without_multiplying() {
    let power = PowerTcp::new(&setup(&Params::default()));
    reacts_without_multiplying(power, 125_000, 80_000, 55_250);
}

#[test]
fn the_most_loaded_hop_decides() {
    let (params, idle) = (Params::default(), hop(0, 0, 5));
    let mut hpcc = Hpcc::new(&setup(&params));
    let mut power = PowerTcp::new(&setup(&params));
    for control in [&mut hpcc as &mut dyn Told, &mut power] {
        control.told(&[idle, idle, idle], us(10));
        control.told(&[hop(0, 0, 15), hop(0, 250_000, 15), hop(0, 62_500, 15)], us(20));
    }
    let mut alone = Hpcc::new(&setup(&params));
    alone.on_ack(&told(&[idle]), us(10));
    alone.on_ack(&told(&[hop(0, 250_000, 15)]), us(20));
    assert_eq!(hpcc.window(), alone.window());
    let mut alone = PowerTcp::new(&setup(&params));
    alone.on_ack(&told(&[idle]), us(10));
    alone.on_ack(&told(&[hop(0, 250_000, 15)]), us(20));
    assert_eq!(power.window(), alone.window());
}

trait Told {
    fn told(&mut self, hops: &[Hop], now: Instant);
}

impl<T: CongestionControl> Told for T {
    fn told(&mut self, hops: &[Hop], now: Instant) {
        self.on_ack(&told(hops), now);
    }
}

/// A path that changes its length has no earlier telemetry.
#[test]
fn another_path_starts_a_new_measurement() {
    let params = Params::default();
    let mut hpcc = Hpcc::new(&setup(&params));
    let mut power = PowerTcp::new(&setup(&params));
    for control in [&mut hpcc as &mut dyn Told, &mut power] {
        control.told(&[hop(0, 0, 5)], us(10));
        control.told(&[hop(0, 900_000, 6), hop(0, 0, 6)], us(20));
    }
    assert_eq!((hpcc.window(), power.window()), (125_000, 125_000));
}

#[test]
fn powertcp_follows_power() {
    let mut power = PowerTcp::new(&setup(&Params::default()));
    assert_eq!((power.window(), power.rate()), (125_000, LINK));
    power.on_ack(&told(&[hop(0, 0, 5)]), us(10));
    // A full link without a queue has power 1: 0.9 beta, a tenth of the product, is added.
    power.on_ack(&told(&[hop(0, 125_000, 15)]), us(20));
    assert_eq!((power.window(), power.rate()), (136_250, LINK));
    // The queue grows by as much as the link sends: current 2, voltage 2.
    power.on_ack(&told(&[hop(125_000, 250_000, 25)]), us(30));
    // 0.9 (136 250 / 4 + 12 500) + 0.1 * 136 250.
    assert_eq!(power.window(), 55_532);
    // The queue stays: current 1, voltage 2: 0.9 (55 531 / 2 + 12 500) + 0.1 * 55 531.
    power.on_ack(&told(&[hop(125_000, 375_000, 35)]), us(40));
    assert_eq!(power.window(), 41_793);
    // An almost idle link: up to a product and beta.
    power.on_ack(&told(&[hop(0, 525_000, 100)]), us(110));
    assert_eq!(power.window(), 137_500);
}
