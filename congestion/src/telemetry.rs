//! What algorithms that need telemetry share: the most loaded link of the path, averaged over a
//! base RTT, and windows in bytes * 2^16.

use alloc::vec::Vec;

use crate::controller::{Hop, Path};
use crate::rate::Rate;
use crate::time::Duration;

/// A byte of a window.
pub const BYTE: u64 = 1 << 16;
/// A load of 1.
pub const LOAD: u64 = 1 << 20;

/// The base RTT of an unknown path: that of HPCC's simulated network.
const UNKNOWN_BASE_RTT: Duration = Duration::from_micros(13);

/// The hops for which a sender has memory from the start.
const USUAL_HOPS: usize = 8;

/// The load of a path.
#[derive(Clone, Debug)]
pub struct PathLoad {
    /// In ns, at least 1.
    pub base_rtt: u64,
    /// The average load of the most loaded link, in units of [`LOAD`].
    pub load: u64,
    /// The telemetry of the previous acknowledgement.
    hops: Vec<Hop>,
}

impl PathLoad {
    /// A load of 1. A base RTT of 0 stands for that of `path`.
    pub fn new(base_rtt: Duration, path: Path) -> Self {
        let base_rtt = match base_rtt {
            Duration::ZERO => path.base_rtt.unwrap_or(UNKNOWN_BASE_RTT),
            time => time,
        };
        let base_rtt = u64::try_from(base_rtt.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { base_rtt, load: LOAD, hops: Vec::with_capacity(USUAL_HOPS) }
    }

    /// Bytes that a sender of `rate` sends in a base RTT, at least one.
    pub fn bytes_at(&self, rate: Rate) -> u64 {
        rate.bytes_in(Duration::from_nanos(self.base_rtt)).max(1)
    }

    /// The rate of a sender that sends `window`, in units of [`BYTE`], per base RTT.
    pub fn rate_of(&self, window: u64) -> Rate {
        let bits = u128::from(window) * 8 * 1_000_000_000 / u128::from(BYTE);
        Rate::from_bps(narrow(bits / u128::from(self.base_rtt)))
    }

    /// Takes the telemetry of an acknowledgement. `load` computes the load of a hop from its
    /// telemetry now and before, the time between them and the base RTT, both in ns. Returns false
    /// if the path is another one than that of the previous acknowledgement.
    pub fn take(&mut self, hops: &[Hop], load: impl Fn(&Hop, &Hop, u64, u64) -> u64) -> bool {
        let is_comparable = self.hops.len() == hops.len();
        if is_comparable {
            self.measure(hops, load);
        }
        self.hops.clear();
        self.hops.extend_from_slice(hops);
        is_comparable
    }

    fn measure(&mut self, hops: &[Hop], load: impl Fn(&Hop, &Hop, u64, u64) -> u64) {
        let (mut most, mut over) = (0, 0);
        for (hop, before) in hops.iter().zip(&self.hops) {
            let time = u64::try_from((hop.at - before.at).as_nanos()).unwrap_or(u64::MAX);
            if time == 0 {
                continue;
            }
            let load = load(hop, before, time, self.base_rtt);
            if load > most {
                (most, over) = (load, time);
            }
        }
        let over = over.min(self.base_rtt);
        let parts = |part: u64, time: u64| u128::from(part) * u128::from(time);
        let sum = parts(self.load, self.base_rtt - over) + parts(most, over);
        self.load = narrow(sum / u128::from(self.base_rtt));
    }
}

/// `n`, or the largest number of 64 bits.
pub fn narrow(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
