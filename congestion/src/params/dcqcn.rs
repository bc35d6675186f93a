//! The parameters of DCQCN's three points, and their choices.

use super::value::Raw;
use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::Duration;

/// Parameters of the sender: DCQCN's reaction point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReactionParams {
    /// Alpha before the first CNP.
    pub initial_alpha: Fraction,
    /// Gain of alpha's moving average.
    pub g: Fraction,
    /// Period of the alpha timer (K).
    pub alpha_interval: Duration,
    /// Whether a CNP restarts the alpha timer.
    pub alpha_timer: AlphaTimer,
    /// Order of cut and alpha update at a CNP, or a timer of its own for each.
    pub cut_order: CutOrder,
    /// A cut removes alpha / 2^(gd - 10) of the rate: 11 is alpha / 2.
    pub gd: u32,
    /// Smallest part of the rate that remains after a cut.
    pub min_dec_fac: Fraction,
    /// With [`CutOrder::Apart`]: period with at most one cut.
    pub cut_interval: Duration,
    /// The rate after the first CNP; with 0 the first CNP cuts the rate like any other.
    pub first_rate: Rate,
    /// When a cut sets the target to the current rate.
    pub target_clamp: TargetClamp,
    /// NVIDIA's `clamp_tgt_rate_after_time_inc`, which has an effect only while `clamp_tgt_rate` is
    /// 0. It is stored while `clamp_tgt_rate` is 1, so that both can be set in any order.
    pub clamp_after_time: bool,
    /// Whether the target may exceed `max_rate`.
    pub target_limit: TargetLimit,
    /// Period of the increase timer (T).
    pub increase_interval: Duration,
    /// Period of the byte counter in bytes (B); 0 turns the byte counter off.
    pub byte_counter: u64,
    /// Which CNPs restart the byte counter.
    pub byte_restart: ByteRestart,
    /// Step count of timer or byte counter at which fast recovery ends (F); see [`StepCount`].
    pub threshold: u32,
    /// Whether a step is counted before or after its kind is decided.
    pub step_count: StepCount,
    /// When a step is hyper increase, and by how much.
    pub hyper_increase: HyperIncrease,
    /// The periods of timer and byte counter in hyper increase.
    pub hyper_period: HyperPeriod,
    /// Rate that a step of additive increase adds to the target.
    pub ai_rate: Rate,
    /// Rate that a step of hyper increase adds to the target.
    pub hai_rate: Rate,
    /// Lowest rate.
    pub min_rate: Rate,
    /// Highest rate; 0 is the link rate.
    pub max_rate: Rate,
}

/// Parameters of the receiver: DCQCN's notification point, and the headers of its CNPs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotificationParams {
    /// When a CNP is sent.
    pub cnp_timing: CnpTiming,
    /// The interval of [`CnpTiming`] (N).
    pub cnp_interval: Duration,
    /// What shares one CNP interval.
    pub cnp_scope: CnpScope,
    /// DSCP of CNPs.
    pub cnp_dscp: u8,
    /// Priority of CNPs on the wire.
    pub cnp_priority: u8,
}

/// Parameters of the switch: DCQCN's congestion point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MarkingParams {
    /// Queue length in bytes up to which no packet is marked.
    pub kmin: u32,
    /// Queue length in bytes at which the marking probability is `pmax`.
    pub kmax: u32,
    /// Marking probability at `kmax`.
    pub pmax: Fraction,
    /// Marking probability above `kmax`.
    pub beyond_kmax: BeyondKmax,
    /// When the switch reads the queue length.
    pub mark_at: MarkAt,
}

macro_rules! choices {
    (
        $(#[$about:meta])* $name:ident {
            $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The names of all values, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The number of the last value.
            pub(super) const LAST: u64 = Self::ALL.len() as u64 - 1;

            /// The name of this value.
            pub const fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }

        impl Raw for $name {
            fn to_raw(self) -> u64 {
                self as u64
            }

            fn from_raw(raw: u64) -> Self {
                let place = usize::try_from(raw).unwrap_or(usize::MAX).min(Self::ALL.len() - 1);
                Self::ALL[place]
            }
        }
    };
}

choices! {
    /// Order of cut and alpha update at a CNP, or a timer of its own for each.
    CutOrder {
        /// A CNP cuts the rate by the old alpha, then raises alpha.
        CutFirst = "cut-first",
        /// A CNP raises alpha, then cuts the rate by the new alpha.
        AlphaFirst = "alpha-first",
        /// Two separate timers: one raises alpha, one cuts the rate, each at the end of a period in
        /// which a CNP arrived.
        Apart = "apart",
    }
}

choices! {
    /// What starts a period of the alpha timer.
    AlphaTimer {
        /// Every CNP restarts the period.
        Restarts = "restarts",
        /// Only the first CNP starts it; then periods follow each other.
        FreeRunning = "free-running",
    }
}

choices! {
    /// When a cut sets the target to the current rate.
    TargetClamp {
        /// At every cut.
        Always = "always",
        /// If the timer or the byte counter made a step since the last cut.
        AfterIncrease = "after-increase",
        /// If the byte counter made a step since the last cut.
        AfterByteIncrease = "after-byte-increase",
    }
}

choices! {
    /// Whether the target may exceed `max_rate`.
    TargetLimit {
        /// The target is at most `max_rate`.
        MaxRate = "max-rate",
        /// The target is unlimited, as in QCN. A step while the step count of the timer or of the
        /// byte counter is 1 divides a target above ten times the rate by eight.
        Unlimited = "unlimited",
    }
}

choices! {
    /// Which CNPs restart the byte counter.
    ByteRestart {
        /// Every CNP that cuts the rate.
        OnCut = "on-cut",
        /// Every CNP that clamps the target.
        OnClamp = "on-clamp",
    }
}

choices! {
    /// Whether a step of timer or byte counter is counted before the comparison with the threshold.
    StepCount {
        /// Counted before: F - 1 steps of fast recovery.
        Before = "before",
        /// Counted after: F steps of fast recovery.
        After = "after",
    }
}

choices! {
    /// When a step is hyper increase, by the step counts of the timer and of the byte counter.
    HyperIncrease {
        /// When the smaller count is above the threshold.
        MinAbove = "min-above",
        /// When both counts have reached the threshold F. The increase is `hai_rate` times n: the
        /// smaller count - F + 1, which is 1 at the threshold and 2 one step above it. Only a step
        /// of the timer starts hyper increase; steps of the byte counter continue it.
        MinReachedTimes = "min-reached-times",
        /// When the larger count is above the threshold.
        MaxAbove = "max-above",
    }
}

choices! {
    /// The periods of timer and byte counter in hyper increase.
    HyperPeriod {
        /// Unchanged.
        Same = "same",
        /// Half of the period.
        Half = "half",
    }
}

choices! {
    /// When a receiver sends a CNP.
    CnpTiming {
        /// At a mark if no interval is running, and at the end of each interval with a mark.
        Window = "window",
        /// At a mark if the last CNP is at least one interval old.
        Gap = "gap",
        /// By a clock that starts with the first packet: at the end of each interval with a mark,
        /// and at once if the first packet is marked.
        Periodic = "periodic",
        /// At every mark.
        EveryMark = "every-mark",
    }
}

choices! {
    /// What shares one CNP interval.
    CnpScope {
        /// A QP.
        Qp = "qp",
        /// A pair of IP addresses.
        IpPair = "ip-pair",
        /// A port of the RNIC.
        Port = "port",
    }
}

choices! {
    /// When a switch reads the queue length to mark a packet.
    MarkAt {
        /// When the packet joins the queue.
        Enqueue = "enqueue",
        /// When the packet leaves the queue.
        Dequeue = "dequeue",
    }
}

choices! {
    /// The marking probability above Kmax.
    BeyondKmax {
        /// Probability 1.
        All = "all",
        /// The slope below Kmax continues, as in fluid models.
        Slope = "slope",
    }
}

impl ReactionParams {
    /// The highest rate on a link of `link_rate`.
    pub const fn highest(&self, link_rate: Rate) -> Rate {
        match self.max_rate.as_bps() {
            max if max != 0 && max < link_rate.as_bps() => self.max_rate,
            _ => link_rate,
        }
    }
}
