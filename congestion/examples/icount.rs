//! Program for `scripts/bench.sh`, which counts the instructions of congestion control per packet.
//! Each function that is never inlined is one case; `main` gets the number of packets as an
//! argument.

use std::hint::black_box;

use feroce_congestion::{
    Control, Controller, Duration, Instant, Pacer, Params, Path, Rate, ReactionPoint, Setup,
};

const PACKET: u64 = 1000;
const LINK_RATE: Rate = Rate::from_gbps(40);

fn main() {
    let packets: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let mut sender = Sender::new("paper");
    recovering(&mut sender, packets);
    let mut sender = Sender::new("nvidia");
    recovering_nvidia(&mut sender, packets);
    let mut sender = Sender::new("paper");
    unlimited(&mut sender, packets);
    let mut point = ReactionPoint::new(&Params::default(), LINK_RATE, Instant::ZERO);
    cnps(&mut point, packets);
}

struct Sender {
    controller: Controller,
    pacer: Pacer,
    now: Instant,
}

impl Sender {
    fn new(set: &str) -> Self {
        let params = Params::named(set).expect("a set");
        let path = Path::UNKNOWN;
        let setup = Setup { params: &params, link_rate: LINK_RATE, now: Instant::ZERO, path };
        let controller = Control::DCQCN.controller(&setup);
        Self { controller, pacer: Pacer::new(4096, Instant::ZERO), now: Instant::ZERO }
    }

    /// Sends one packet as a core does: runs timers, checks the pacer, sends, computes the next
    /// time.
    #[inline(always)]
    fn packet(&mut self) {
        self.controller.advance(self.now);
        let rate = self.controller.rate();
        if self.pacer.available(rate, self.now) >= PACKET {
            self.pacer.spend(PACKET, rate, self.now);
            self.controller.on_sent(PACKET, self.now);
        }
        self.now = self.pacer.ready_at(PACKET, rate).max(self.now + Duration::from_nanos(1));
        black_box(self.now);
    }
}

/// A CNP every 1000 packets, so that timers run.
#[inline(never)]
fn recovering(sender: &mut Sender, packets: u64) {
    for number in 0..packets {
        if number.is_multiple_of(1000) {
            sender.controller.on_cnp(sender.now);
        }
        sender.packet();
    }
}

/// The same with `nvidia`, whose alpha period is 1 us; the first CNP comes after 999 packets.
#[inline(never)]
fn recovering_nvidia(sender: &mut Sender, packets: u64) {
    for number in 1..=packets {
        if number.is_multiple_of(1000) {
            sender.controller.on_cnp(sender.now);
        }
        sender.packet();
    }
}

/// No CNP at all.
#[inline(never)]
fn unlimited(sender: &mut Sender, packets: u64) {
    for _ in 0..packets {
        sender.packet();
    }
}

/// Only CNPs.
#[inline(never)]
fn cnps(point: &mut ReactionPoint, count: u64) {
    let mut now = Instant::ZERO;
    for _ in 0..count {
        now += Duration::from_nanos(black_box(50_000));
        point.on_cnp(now);
    }
}
