//! The options of a scenario: which connection, over which wire, under which load. Each is drawn, and
//! each fault is off or on with a strength, so that scenarios differ in kind and not only in detail.

use std::time::Duration;

use feroce_engine::memory::Access;
use feroce_engine::qp::MAX_RD_ATOMIC;
use feroce_engine::qp::attributes::ack_timeout;
use feroce_wire::{PathMtu, Psn, RnrTimer};

use super::draw::Draw;
use crate::ports::RigPorts;
use crate::wire::WireFaults;

/// What decides which rig a scenario runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RigKind {
    /// Packets of SENDs and WRITEs that a QP may have outstanding.
    pub window: u32,
    /// Memory keys count up, which allows regions at chosen addresses.
    pub plain_keys: bool,
    /// DCQCN, and frames that are marked: rates go up and down.
    pub congestion: bool,
}

/// How many of them there are: windows, with keys made in two ways, and one with congestion control. DPDK has room for no more
/// than eight.
pub const RIG_KINDS: usize = 2 * WINDOWS.len() + 1;
const WINDOWS: [u32; 3] = [32, 64, 256];

/// When receives are posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supply {
    /// Before everything else.
    Early,
    /// Around the time of the requests.
    Paced,
    /// After the requests: the peer is told to wait.
    Late,
    /// Half of them like the others, the rest only when the wire is healed.
    Scarce,
}

/// What one end's QPs are given.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Code of the local ACK timeout; 0 waits for ever.
    pub timeout: u8,
    /// Retries after time-outs and sequence errors.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 for ever.
    pub rnr_retry: u8,
    /// Code of the time that RNR NAKs ask to wait.
    pub min_rnr_timer: u8,
    /// What the peer may do to memory.
    pub access: Access,
}

/// What a scenario is drawn from: see the head of this file.
#[derive(Debug, Clone)]
pub struct Options {
    /// The rig.
    pub rig: RigKind,
    /// Connected pairs of QPs.
    pub pairs: usize,
    /// Path MTU.
    pub mtu: PathMtu,
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// End-to-end credits.
    pub flow_control: bool,
    /// READs and atomics outstanding, either way.
    pub max_rd_atomic: u8,
    /// Starting PSNs by pair and end.
    pub psns: Vec<[Psn; 2]>,
    /// By end.
    pub limits: [Limits; 2],
    /// Time that a frame takes.
    pub delay: Duration,
    /// What happens to frames until the wire is healed.
    pub faults: WireFaults,
    /// Slots of each work queue.
    pub queue: u32,
    /// Every send request completes with an entry.
    pub all_signaled: bool,
    /// One completion queue per end instead of two per QP.
    pub shared_cq: bool,
    /// Send requests per QP at most.
    pub requests: usize,
    /// Time in which they are posted.
    pub span: Duration,
    /// When receives are posted.
    pub supply: Supply,
    /// Requests in a hundred that cannot succeed.
    pub bad: u32,
    /// A QP is moved to ERR.
    pub kill: bool,
    /// The wire is cut for a while, one way or both.
    pub cut: bool,
    /// A QP is drained and resumed.
    pub drain: bool,
    /// Memory regions go away half way.
    pub withdraw: bool,
    /// At the end, all QPs are moved to ERR instead of being destroyed as they are.
    pub flush_at_end: bool,
}

impl Options {
    /// The options that follow from `draw`.
    pub fn draw(draw: &mut Draw) -> Self {
        let pairs = draw.weighted(&[(60, 1), (25, 2), (10, 3), (5, 4)]);
        let delay = draw.pick(&[100, 1000, 5000, 20_000, 100_000]);
        let delay = Duration::from_nanos(delay);
        let faults = draw_faults(draw);
        let timeout = safe_timeout(delay, faults.jitter);
        let limits = [0, 1].map(|_| Limits::draw(draw, timeout));
        Self {
            rig: RigKind {
                window: draw.pick(&WINDOWS),
                plain_keys: draw.percent(50),
                congestion: false,
            },
            pairs,
            mtu: draw.weighted(&[
                (50, PathMtu::Mtu256),
                (20, PathMtu::Mtu512),
                (15, PathMtu::Mtu1024),
                (8, PathMtu::Mtu2048),
                (7, PathMtu::Mtu4096),
            ]),
            v6: draw.percent(30),
            flow_control: draw.percent(25),
            max_rd_atomic: draw.weighted(&[(4, 0), (30, 1), (26, 2), (20, 4), (20, 16)]),
            psns: (0..pairs).map(|_| [0, 1].map(|_| draw_psn(draw))).collect(),
            limits,
            delay,
            faults,
            queue: draw.weighted(&[(10, 1), (20, 4), (70, 32)]),
            all_signaled: draw.percent(25),
            shared_cq: draw.percent(40),
            requests: draw.weighted(&[(40, 4), (40, 10), (17, 24), (3, 100)]),
            span: Duration::from_micros(draw.pick(&[0, 20, 200, 2000])),
            supply: draw.weighted(&[
                (45, Supply::Early),
                (25, Supply::Paced),
                (15, Supply::Late),
                (15, Supply::Scarce),
            ]),
            bad: draw.weighted(&[(60, 0), (25, 5), (15, 25)]),
            kill: draw.percent(8),
            cut: draw.percent(10),
            drain: draw.percent(15),
            withdraw: draw.percent(15),
            flush_at_end: draw.percent(50),
        }
    }

    /// Adds congestion control to some scenarios. `draw` is for nothing else: the others are what they were without.
    pub fn draw_congestion(&mut self, draw: &mut Draw) {
        if draw.percent(20) {
            self.rig = RigKind { window: WINDOWS[1], plain_keys: false, congestion: true };
            self.faults.mark = draw.pick(&[10_000, 200_000, 1_000_000]);
        }
    }

    /// Long WRITEs and READs go as several messages: in half of the scenarios where that is for, else in a quarter. Another draw would change
    /// all of them.
    pub fn split(&self) -> bool {
        let chosen = RigPorts::have_super_frames() || self.psns[0][0].value().is_multiple_of(2);
        self.rig.plain_keys && !self.flow_control && chosen
    }

    /// READs and atomics outstanding: where READs are to be split, enough for it in some scenarios.
    pub fn depth(&self) -> u8 {
        match self.max_rd_atomic {
            16 if self.split() => MAX_RD_ATOMIC,
            depth => depth,
        }
    }

    /// Path MTU in bytes.
    pub fn mtu_bytes(&self) -> usize {
        self.mtu.bytes() as usize
    }

    /// Nothing is done to frames.
    pub fn is_faultless(&self) -> bool {
        let WireFaults { loss, duplicate, reorder, corrupt, mark, jitter: _ } = self.faults;
        let none = [loss, duplicate, reorder, corrupt, mark] == [0; 5];
        none && !self.cut
    }

    /// The QPs of `end` time out although nothing is wrong.
    pub fn is_impatient(&self, end: usize) -> bool {
        let timeout = self.limits[end].timeout;
        let in_time = timeout >= safe_timeout(self.delay, self.faults.jitter);
        // What waits for its rate is late, too.
        timeout > 0 && (self.rig.congestion || !in_time)
    }

    /// Longest way of a frame through the wire.
    pub fn longest_way(&self) -> Duration {
        self.delay + self.faults.jitter
    }
}

impl Limits {
    fn draw(draw: &mut Draw, safe: u8) -> Self {
        let patient = safe + draw.weighted(&[(60, 0), (30, 1), (10, 4)]);
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Self {
            timeout: draw.weighted(&[(90, patient), (7, safe.saturating_sub(3).max(1)), (3, 0)]),
            retry_cnt: draw.weighted(&[(70, 7), (10, 3), (10, 1), (10, 0)]),
            rnr_retry: draw.weighted(&[(70, 7), (10, 6), (10, 1), (10, 0)]),
            min_rnr_timer: draw.weighted(&[(50, 1), (30, 5), (18, 12), (1, 0), (1, 31)]),
            access: draw.weighted(&[
                (85, all),
                (5, Access::REMOTE_READ | Access::REMOTE_ATOMIC),
                (5, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC),
                (5, Access::REMOTE_WRITE | Access::REMOTE_READ),
            ]),
        }
    }

    /// Local ACK timeout.
    pub fn ack_timeout(&self) -> Option<Duration> {
        ack_timeout(self.timeout)
    }

    /// Time that RNR NAKs ask to wait.
    pub fn rnr_time(&self) -> Duration {
        let timer = RnrTimer::new(self.min_rnr_timer).expect("a code below 32");
        Duration::from_nanos(timer.nanos())
    }
}

/// The shortest timeout that does not run out while an answer is on its way, as a code.
fn safe_timeout(delay: Duration, jitter: Duration) -> u8 {
    let round_trip = 2 * (delay + jitter) + Duration::from_micros(1);
    (1..32).find(|&n| ack_timeout(n).is_some_and(|timeout| timeout > round_trip)).expect("short")
}

fn draw_faults(draw: &mut Draw) -> WireFaults {
    if draw.percent(25) {
        return WireFaults::default();
    }
    let strength =
        |draw: &mut Draw| draw.weighted(&[(50, 0), (20, 10_000), (20, 50_000), (10, 200_000)]);
    let jitter = draw.weighted(&[(30, 1), (30, 10), (20, 50), (15, 200), (5, 2000)]);
    WireFaults {
        loss: strength(draw),
        duplicate: strength(draw),
        reorder: strength(draw),
        corrupt: strength(draw),
        mark: 0,
        jitter: Duration::from_micros(jitter),
    }
}

/// Often so close before the wrap that the scenario crosses it.
fn draw_psn(draw: &mut Draw) -> Psn {
    let near = u32::try_from(draw.below(40)).expect("small");
    let far = u32::try_from(draw.below(1 << 24)).expect("24 bits");
    draw.weighted(&[
        (50, Psn::new(0).add((1 << 24) - near)),
        (10, Psn::new((1 << 23) - near)),
        (40, Psn::new(far)),
    ])
}
