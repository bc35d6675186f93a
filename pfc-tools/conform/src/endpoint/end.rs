//! One end of a plan, for any stack.

use std::time::Duration;

use feroce_engine::device::Endpoint;
use feroce_engine::qp::QpState;
use feroce_engine::time::Clock;
use feroce_engine::verbs::{Completion, RemoteAddr};
use feroce_wire::{PathMtu, Psn};

use super::Failure;
use super::plan::{Family, Op, Place, Region, Settings};

/// A send request with everything that a stack needs to post it.
#[derive(Debug, Clone, Copy)]
pub struct Posting {
    /// Work request number.
    pub wr_id: u64,
    /// Operation.
    pub op: Op,
    /// Local memory.
    pub local: Place,
    /// Length, in bytes.
    pub len: u32,
    /// Remote memory; for SEND with invalidate, the key to invalidate.
    pub remote: RemoteAddr,
    /// Immediate data, or the add or compare operand of an atomic.
    pub operand: u64,
    /// Swap operand of an atomic.
    pub swap: u64,
    /// True if it waits for the preceding READs and atomics.
    pub fence: bool,
    /// True if the data is inlined into the work queue.
    pub inline: bool,
}

/// The clock of an end: the machine's, or a virtual one.
pub trait Pace: std::fmt::Debug {
    /// Returns the time since some origin.
    fn now(&self) -> Duration;

    /// Waits for at most `limit`.
    fn pass(&mut self, limit: Duration);
}

/// The machine's clock.
#[derive(Debug)]
pub struct RealPace(Clock);

impl RealPace {
    /// Starts the clock at zero.
    pub fn start() -> Self {
        Self(Clock::start())
    }
}

impl Pace for RealPace {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now().as_nanos())
    }

    fn pass(&mut self, limit: Duration) {
        // A helper thread drives the device. Sleeping leaves this CPU to the guest.
        std::thread::sleep(limit.min(Duration::from_micros(50)));
    }
}

/// A stack with one QP and the memory of a plan. If a call fails, the plan fails.
pub trait End: std::fmt::Debug {
    /// Returns the name of the stack.
    fn name(&self) -> &'static str;

    /// Registers `regions`, filled with the patterns of `seed`, `seed + 1` and so on, and creates a
    /// QP. Returns its address, with the PSN of `settings`.
    ///
    /// # Errors
    /// The error of the stack.
    fn prepare(
        &mut self,
        family: Family,
        regions: &[Region],
        seed: u64,
        settings: &Settings,
    ) -> Result<Endpoint, Failure>;

    /// Brings the QP to RTS, connected to `peer`, with `rq_psn` as the first expected PSN.
    ///
    /// # Errors
    /// The error of the stack.
    fn connect(
        &mut self,
        peer: &Endpoint,
        rq_psn: Psn,
        mtu: PathMtu,
        settings: &Settings,
    ) -> Result<(), Failure>;

    /// Returns the remote address and key of the start of each region.
    ///
    /// # Errors
    /// The error of the stack. Memory windows are bound here.
    fn keys(&mut self) -> Result<Vec<RemoteAddr>, Failure>;

    /// Posts receives in order: number, memory, length.
    ///
    /// # Errors
    /// The error of the stack.
    fn post_receives(&mut self, receives: &[(u64, Place, u32)]) -> Result<(), Failure>;

    /// Posts send requests in order; each generates a completion.
    ///
    /// # Errors
    /// The error of the stack.
    fn post_sends(&mut self, requests: &[Posting]) -> Result<(), Failure>;

    /// Returns completions, until there are `count` of them or `timeout` has passed.
    ///
    /// # Errors
    /// The error of the stack.
    fn completions(&mut self, count: usize, timeout: Duration) -> Result<Vec<Completion>, Failure>;

    /// Returns the contents of a region.
    ///
    /// # Errors
    /// The error of the stack.
    fn memory(&mut self, region: usize) -> Result<Vec<u8>, Failure>;

    /// Writes bytes to a region.
    ///
    /// # Errors
    /// The error of the stack.
    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), Failure>;

    /// Returns the state of the QP.
    ///
    /// # Errors
    /// The error of the stack.
    fn state(&mut self) -> Result<QpState, Failure>;

    /// Destroys the QP; the memory stays.
    ///
    /// # Errors
    /// The error of the stack.
    fn destroy_qp(&mut self) -> Result<(), Failure>;

    /// Kills the process of the stack.
    ///
    /// # Errors
    /// If this is impossible, as for Feroce, which runs in this process.
    fn kill(&mut self) -> Result<(), Failure>;
}
