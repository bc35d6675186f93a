//! One end of a case, whichever stack it is.

use std::time::{Duration, Instant};

use feroce_engine::device::Endpoint;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::{Completion, RemoteAddr};
use feroce_wire::{PathMtu, Psn};

use super::Failure;
use super::plan::{Family, Op, Place, Region, Settings};

/// A send request with everything that a stack needs to post it.
#[derive(Debug, Clone, Copy)]
pub struct Posting {
    /// Number of the request.
    pub wr_id: u64,
    /// What it does.
    pub op: Op,
    /// Its local bytes.
    pub local: Place,
    /// How many.
    pub len: u32,
    /// The remote bytes; for SEND with invalidate, the key that goes.
    pub remote: RemoteAddr,
    /// Immediate, or what an atomic adds or compares with.
    pub operand: u64,
    /// What an atomic swaps in.
    pub swap: u64,
    /// Waits for the READs and atomics before it.
    pub fence: bool,
    /// The bytes go into the work queue.
    pub inline: bool,
}

/// How time goes by while one waits for an end: really, or as a rig's.
pub trait Pace: std::fmt::Debug {
    /// Time since some origin.
    fn now(&self) -> Duration;

    /// Lets some time go by, `most` at most.
    fn pass(&mut self, most: Duration);
}

/// The machine's time.
#[derive(Debug)]
pub struct RealPace(Instant);

impl RealPace {
    /// From now on.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Pace for RealPace {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn pass(&mut self, most: Duration) {
        // The helper turns the device: the guest needs this CPU more than we do.
        std::thread::sleep(most.min(Duration::from_micros(50)));
    }
}

/// A stack with one QP and the memory of a case. Each call either does what it says or fails the case.
pub trait End: std::fmt::Debug {
    /// Who it is, for the reader.
    fn name(&self) -> &'static str;

    /// Registers `regions`, filled with the patterns of `seed`, `seed + 1` .., and makes a QP; returns where
    /// it is reached, with the PSN of `settings`.
    ///
    /// # Errors
    /// The stack's words.
    fn prepare(
        &mut self,
        family: Family,
        regions: &[Region],
        seed: u64,
        settings: &Settings,
    ) -> Result<Endpoint, Failure>;

    /// Takes the QP to RTS, with `peer` at the other end, of which `rq_psn` is expected first.
    ///
    /// # Errors
    /// The stack's words.
    fn connect(
        &mut self,
        peer: &Endpoint,
        rq_psn: Psn,
        mtu: PathMtu,
        settings: &Settings,
    ) -> Result<(), Failure>;

    /// How the peer names the start of each region.
    ///
    /// # Errors
    /// The stack's words: windows are bound here.
    fn keys(&mut self) -> Result<Vec<RemoteAddr>, Failure>;

    /// Posts receives, in order: number, place, length.
    ///
    /// # Errors
    /// The stack's words.
    fn post_receives(&mut self, receives: &[(u64, Place, u32)]) -> Result<(), Failure>;

    /// Posts send requests, in order; each completes with an entry.
    ///
    /// # Errors
    /// The stack's words.
    fn post_sends(&mut self, requests: &[Posting]) -> Result<(), Failure>;

    /// Completions, until there are `count` of them or `patience` is over.
    ///
    /// # Errors
    /// The stack's words.
    fn completions(&mut self, count: usize, patience: Duration)
    -> Result<Vec<Completion>, Failure>;

    /// The bytes of a region.
    ///
    /// # Errors
    /// The stack's words.
    fn memory(&mut self, region: usize) -> Result<Vec<u8>, Failure>;

    /// Puts bytes into a region.
    ///
    /// # Errors
    /// The stack's words.
    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), Failure>;

    /// The state of the QP.
    ///
    /// # Errors
    /// The stack's words.
    fn state(&mut self) -> Result<QpState, Failure>;

    /// Destroys the QP; the memory stays.
    ///
    /// # Errors
    /// The stack's words.
    fn destroy_qp(&mut self) -> Result<(), Failure>;

    /// Ends the stack's process without a word.
    ///
    /// # Errors
    /// If it cannot, as Feroce, which is this process.
    fn kill(&mut self) -> Result<(), Failure>;
}
