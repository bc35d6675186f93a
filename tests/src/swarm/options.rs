//! The random options of a scenario: the connection, the wire and the load. Each kind of fault is
//! either off or on with a random strength, so that scenarios differ in kind and not only in
//! detail.

use std::time::Duration;

use feroce_engine::memory::Access;
use feroce_engine::qp::MAX_RD_ATOMIC;
use feroce_engine::qp::attributes::ack_timeout;
use feroce_wire::{PathMtu, Psn, RnrTimer};

use super::random::Random;
use crate::ports::RigPorts;
use crate::wire::WireFaults;

/// The device configuration of a scenario. Scenarios of the same kind share a rig.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RigKind {
    /// Maximum number of outstanding SEND and WRITE packets of a QP.
    pub window: u32,
    /// Memory keys are consecutive numbers, so regions can be registered at chosen addresses.
    pub plain_keys: bool,
    /// DCQCN is on and the wire marks frames, so rates change.
    pub congestion: bool,
    /// Cores of each device, on shm ports.
    pub cores: usize,
}

/// Number of rig kinds: each window with both ways to choose memory keys, and one kind with
/// congestion control. The DPDK port has room for eight rigs at most.
pub const RIG_KINDS: usize = 2 * WINDOWS.len() + 1;
const WINDOWS: [u32; 3] = [32, 64, 256];

/// Maximum number of inline bytes of a request.
pub const MAX_INLINE: usize = 64;

/// When receives are posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveTiming {
    /// Before all requests.
    Early,
    /// Around the time of the requests.
    Paced,
    /// After the requests, so the responder sends RNR NAKs.
    Late,
    /// The first half around the time of the requests, the rest only after the faults end.
    Scarce,
}

/// QP attributes of one end.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Code of the local ACK timeout; 0 means no timeout.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 means unlimited.
    pub rnr_retry: u8,
    /// Code of the RNR NAK timer that the responder sends.
    pub min_rnr_timer: u8,
    /// Remote access rights of the QP.
    pub access: Access,
}

/// The options of a scenario. See the head of this file.
#[derive(Debug, Clone)]
pub struct Options {
    /// Kind of rig that the scenario runs on.
    pub rig: RigKind,
    /// Connected pairs of QPs.
    pub pairs: usize,
    /// Path MTU.
    pub mtu: PathMtu,
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// End-to-end credits.
    pub flow_control: bool,
    /// Maximum number of outstanding READs and atomics, as requester and as responder.
    pub max_rd_atomic: u8,
    /// Starting PSNs by pair and end.
    pub psns: Vec<[Psn; 2]>,
    /// QP attributes by end.
    pub limits: [Limits; 2],
    /// One-way delay of the wire.
    pub delay: Duration,
    /// Faults of the wire until `faults_end`.
    pub faults: WireFaults,
    /// Depth of each send queue and receive queue.
    pub queue: u32,
    /// Every send request generates a completion.
    pub all_signaled: bool,
    /// One completion queue per end instead of two per QP.
    pub shared_cq: bool,
    /// Maximum number of send requests per QP.
    pub requests: usize,
    /// Time span in which send requests are posted.
    pub span: Duration,
    /// When receives are posted.
    pub receive_timing: ReceiveTiming,
    /// Percentage of requests that cannot succeed.
    pub bad: u32,
    /// One QP is moved to ERR during the scenario.
    pub kill: bool,
    /// The wire drops all frames for a while, in one direction or in both.
    pub cut: bool,
    /// One QP is moved to SQD and back to RTS.
    pub drain: bool,
    /// Some memory regions are deregistered during the scenario.
    pub deregister: bool,
    /// At the end, all QPs are moved to ERR instead of being destroyed as they are.
    pub flush_at_end: bool,
}

impl Options {
    /// Generates the options from `random`.
    pub fn generate(random: &mut Random) -> Self {
        let pairs = random.weighted(&[(60, 1), (25, 2), (10, 3), (5, 4)]);
        let delay = random.pick(&[100, 1000, 5000, 20_000, 100_000]);
        let delay = Duration::from_nanos(delay);
        let faults = random_faults(random);
        let timeout = safe_timeout(delay, faults.jitter);
        let limits = [0, 1].map(|_| Limits::generate(random, timeout));
        Self {
            rig: RigKind {
                window: random.pick(&WINDOWS),
                plain_keys: random.percent(50),
                congestion: false,
                cores: 1,
            },
            pairs,
            mtu: random.weighted(&[
                (50, PathMtu::Mtu256),
                (20, PathMtu::Mtu512),
                (15, PathMtu::Mtu1024),
                (8, PathMtu::Mtu2048),
                (7, PathMtu::Mtu4096),
            ]),
            v6: random.percent(30),
            flow_control: random.percent(25),
            max_rd_atomic: random.weighted(&[(4, 0), (30, 1), (26, 2), (20, 4), (20, 16)]),
            psns: (0..pairs).map(|_| [0, 1].map(|_| random_psn(random))).collect(),
            limits,
            delay,
            faults,
            queue: random.weighted(&[(10, 1), (20, 4), (70, 32)]),
            all_signaled: random.percent(25),
            shared_cq: random.percent(40),
            requests: random.weighted(&[(40, 4), (40, 10), (17, 24), (3, 100)]),
            span: Duration::from_micros(random.pick(&[0, 20, 200, 2000])),
            receive_timing: random.weighted(&[
                (45, ReceiveTiming::Early),
                (25, ReceiveTiming::Paced),
                (15, ReceiveTiming::Late),
                (15, ReceiveTiming::Scarce),
            ]),
            bad: random.weighted(&[(60, 0), (25, 5), (15, 25)]),
            kill: random.percent(8),
            cut: random.percent(10),
            drain: random.percent(15),
            deregister: random.percent(15),
            flush_at_end: random.percent(50),
        }
    }

    /// Turns on congestion control in some scenarios. `random` is a separate generator, so that the
    /// other options do not depend on this choice.
    pub fn add_congestion(&mut self, random: &mut Random) {
        if random.percent(20) {
            self.rig =
                RigKind { window: WINDOWS[1], plain_keys: false, congestion: true, cores: 1 };
            self.faults.mark = random.pick(&[10_000, 200_000, 1_000_000]);
        }
    }

    /// Returns true if long WRITEs and READs are split into several messages: in half of the
    /// eligible scenarios, or in all of them on ports with super-frames. The choice uses a PSN
    /// instead of a new random number, which would change all later choices of every scenario.
    pub fn splits_messages(&self) -> bool {
        let chosen = RigPorts::have_super_frames() || self.psns[0][0].value().is_multiple_of(2);
        self.rig.plain_keys && !self.flow_control && chosen
    }

    /// Returns true if both ends repeat only lost packets: in a third of the scenarios. The choice
    /// uses a PSN for the same reason.
    pub fn repeats_selectively(&self) -> bool {
        self.psns[0][1].value().is_multiple_of(3)
    }

    /// Maximum number of outstanding READs and atomics. Where READs are split, some scenarios use
    /// the largest depth.
    pub fn depth(&self) -> u8 {
        match self.max_rd_atomic {
            16 if self.splits_messages() => MAX_RD_ATOMIC,
            depth => depth,
        }
    }

    /// Path MTU in bytes.
    pub fn mtu_bytes(&self) -> usize {
        self.mtu.bytes() as usize
    }

    /// Returns true if no frame is lost, duplicated, reordered, corrupted or marked.
    pub fn is_faultless(&self) -> bool {
        let WireFaults { loss, duplicate, reorder, corrupt, mark, jitter: _ } = self.faults;
        let none = [loss, duplicate, reorder, corrupt, mark] == [0; 5];
        none && !self.cut
    }

    /// Returns true if QPs of `end` may time out without any fault.
    pub fn may_time_out_early(&self, end: usize) -> bool {
        let timeout = self.limits[end].timeout;
        let in_time = timeout >= safe_timeout(self.delay, self.faults.jitter);
        // Rate control also delays packets beyond the timeout.
        timeout > 0 && (self.rig.congestion || !in_time)
    }

    /// Maximum one-way delay of a frame.
    pub fn max_one_way_delay(&self) -> Duration {
        self.delay + self.faults.jitter
    }
}

impl Limits {
    fn generate(random: &mut Random, safe: u8) -> Self {
        let long = safe + random.weighted(&[(60, 0), (30, 1), (10, 4)]);
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Self {
            timeout: random.weighted(&[(90, long), (7, safe.saturating_sub(3).max(1)), (3, 0)]),
            retry_cnt: random.weighted(&[(70, 7), (10, 3), (10, 1), (10, 0)]),
            rnr_retry: random.weighted(&[(70, 7), (10, 6), (10, 1), (10, 0)]),
            min_rnr_timer: random.weighted(&[(50, 1), (30, 5), (18, 12), (1, 0), (1, 31)]),
            access: random.weighted(&[
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

    /// The RNR NAK timer that the responder sends.
    pub fn rnr_time(&self) -> Duration {
        let timer = RnrTimer::new(self.min_rnr_timer).expect("a code below 32");
        Duration::from_nanos(timer.nanos())
    }
}

/// Returns the code of the shortest timeout that is longer than one round trip.
fn safe_timeout(delay: Duration, jitter: Duration) -> u8 {
    let round_trip = 2 * (delay + jitter) + Duration::from_micros(1);
    (1..32).find(|&n| ack_timeout(n).is_some_and(|timeout| timeout > round_trip)).expect("short")
}

pub(super) fn random_faults(random: &mut Random) -> WireFaults {
    if random.percent(25) {
        return WireFaults::default();
    }
    let strength = |random: &mut Random| {
        random.weighted(&[(50, 0), (20, 10_000), (20, 50_000), (10, 200_000)])
    };
    let jitter = random.weighted(&[(30, 1), (30, 10), (20, 50), (15, 200), (5, 2000)]);
    WireFaults {
        loss: strength(random),
        duplicate: strength(random),
        reorder: strength(random),
        corrupt: strength(random),
        mark: 0,
        jitter: Duration::from_micros(jitter),
    }
}

/// Returns a starting PSN, often so close to the wrap that the scenario crosses it.
pub(super) fn random_psn(random: &mut Random) -> Psn {
    let near = u32::try_from(random.below(40)).expect("small");
    let far = u32::try_from(random.below(1 << 24)).expect("24 bits");
    random.weighted(&[
        (50, Psn::new(0).add((1 << 24) - near)),
        (10, Psn::new((1 << 23) - near)),
        (40, Psn::new(far)),
    ])
}
