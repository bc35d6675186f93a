//! What may be chosen: the parameters of DCQCN's three points and of the delay-based controllers, the sets
//! that the literature and the vendors use, and every parameter by name ([`TABLE`]).

mod nvidia;
mod sets;
mod table;
mod value;

pub use nvidia::{NVIDIA, NvidiaKnob};
pub use sets::{SETS, Set};
pub use table::{Knob, Part, TABLE, knob};
pub use value::{Kind, Shown};

use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::algorithm::swift::SwiftParams;
use crate::time::Duration;
use crate::algorithm::timely::TimelyParams;

/// Every parameter of congestion control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Of the sender: DCQCN's reaction point.
    pub reaction: ReactionParams,
    /// Of the receiver: DCQCN's notification point.
    pub notification: NotificationParams,
    /// Of the switch: DCQCN's congestion point.
    pub marking: MarkingParams,
    /// Of TIMELY.
    pub timely: TimelyParams,
    /// Of Swift.
    pub swift: SwiftParams,
}

/// What the reaction point does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReactionParams {
    /// Alpha before the first CNP.
    pub initial_alpha: Fraction,
    /// The gain of alpha's moving average.
    pub g: Fraction,
    /// Alpha's period (K).
    pub alpha_interval: Duration,
    /// Whether a CNP restarts that period.
    pub alpha_timer: AlphaTimer,
    /// Whether a CNP cuts before or after alpha is raised.
    pub cut_order: CutOrder,
    /// The logarithm of what divides alpha, in units of 2^-10, in a cut: 11 is alpha / 2.
    pub gd: u32,
    /// The part of the rate that a cut leaves at least.
    pub min_dec_fac: Fraction,
    /// With [`CutOrder::Apart`]: the period in which at most one cut is made.
    pub cut_interval: Duration,
    /// The rate after the first CNP; 0 cuts as for any other.
    pub first_rate: Rate,
    /// When a cut makes the current rate the target.
    pub target_clamp: TargetClamp,
    /// NVIDIA's `clamp_tgt_rate_after_time_inc`, which means something only while its `clamp_tgt_rate` is 0: kept while
    /// that is 1, so that it does not matter which of them is set first.
    pub clamp_after_time: bool,
    /// Whether the target may exceed the highest rate.
    pub target_limit: TargetLimit,
    /// The increase timer's period (T).
    pub increase_interval: Duration,
    /// The byte counter's period in bytes (B); 0 is none.
    pub byte_counter: u64,
    /// Which CNPs restart the byte counter.
    pub byte_restart: ByteRestart,
    /// Steps of fast recovery (F).
    pub threshold: u32,
    /// Whether a step is counted before it is made.
    pub step_count: StepCount,
    /// When and how hyper increase is.
    pub hyper_increase: HyperIncrease,
    /// The periods of timer and byte counter in hyper increase.
    pub hyper_period: HyperPeriod,
    /// What a step of additive increase adds to the target.
    pub ai_rate: Rate,
    /// What a step of hyper increase adds to the target.
    pub hai_rate: Rate,
    /// The lowest rate.
    pub min_rate: Rate,
    /// The highest rate; 0 is the line's.
    pub max_rate: Rate,
}

/// What the notification point does, and how its CNPs travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotificationParams {
    /// When a CNP is sent.
    pub cnp_timing: CnpTiming,
    /// The time that [`CnpTiming`] speaks of (N).
    pub cnp_interval: Duration,
    /// What shares one interval.
    pub cnp_scope: CnpScope,
    /// The DSCP of CNPs.
    pub cnp_dscp: u8,
    /// The priority of CNPs on the wire.
    pub cnp_priority: u8,
}

/// What the congestion point does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MarkingParams {
    /// The queue in bytes up to which nothing is marked.
    pub kmin: u32,
    /// The queue in bytes at which the probability is `pmax`.
    pub kmax: u32,
    /// The probability at `kmax`.
    pub pmax: Fraction,
    /// The probability above `kmax`.
    pub beyond_kmax: BeyondKmax,
    /// When the queue is looked at.
    pub mark_at: MarkAt,
}

macro_rules! switch {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every way.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Their names, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The number of the last.
            const LAST: u64 = Self::ALL.len() as u64 - 1;

            /// Its name.
            pub const fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }

        impl table::Raw for $name {
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

switch! {
    /// What a CNP does first.
    CutOrder {
        /// It cuts by the alpha before it, then raises alpha.
        CutFirst = "cut-first",
        /// It raises alpha, then cuts by the new one.
        AlphaFirst = "alpha-first",
        /// Neither: alpha is updated, and the rate cut, by periods that saw a CNP.
        Apart = "apart",
    }
}

switch! {
    /// What alpha's period begins with.
    AlphaTimer {
        /// Every CNP.
        Restarts = "restarts",
        /// The first CNP only.
        FreeRunning = "free-running",
    }
}

switch! {
    /// When a cut makes the current rate the target.
    TargetClamp {
        /// At every cut.
        Always = "always",
        /// If timer or byte counter have made a step since the last cut.
        AfterIncrease = "after-increase",
        /// If the byte counter has.
        AfterByteIncrease = "after-byte-increase",
    }
}

switch! {
    /// Whether the target may exceed the highest rate.
    TargetLimit {
        /// It may not.
        MaxRate = "max-rate",
        /// It may, as in QCN; above ten times the rate, a first step divides it by eight.
        Unlimited = "unlimited",
    }
}

switch! {
    /// Which CNPs restart the byte counter.
    ByteRestart {
        /// All that cut.
        OnCut = "on-cut",
        /// Those that clamp the target.
        OnClamp = "on-clamp",
    }
}

switch! {
    /// Whether a step of timer or byte counter is counted before the threshold is looked at.
    StepCount {
        /// Before: F - 1 steps of fast recovery.
        Before = "before",
        /// After: F steps.
        After = "after",
    }
}

switch! {
    /// When, by the steps of timer and byte counter, a step is hyper increase.
    HyperIncrease {
        /// When the fewer are above the threshold.
        MinAbove = "min-above",
        /// When both have reached the threshold, and then by as many times `hai_rate` as steps since.
        MinReachedTimes = "min-reached-times",
        /// When the more are above the threshold.
        MaxAbove = "max-above",
    }
}

switch! {
    /// The periods of timer and byte counter in hyper increase.
    HyperPeriod {
        /// As before.
        Same = "same",
        /// Half as long.
        Half = "half",
    }
}

switch! {
    /// When a receiver sends a CNP.
    CnpTiming {
        /// At a mark if none was sent in the interval before, and at the end of each interval that saw a mark.
        Window = "window",
        /// At a mark if none was sent in the interval before.
        Gap = "gap",
        /// By a clock that starts with the first packet: at the end of each interval that saw a mark.
        Periodic = "periodic",
        /// At every mark.
        EveryMark = "every-mark",
    }
}

switch! {
    /// What shares one CNP interval.
    CnpScope {
        /// A QP.
        Qp = "qp",
        /// A pair of IP addresses.
        IpPair = "ip-pair",
        /// A port.
        Port = "port",
    }
}

switch! {
    /// When a switch looks at the queue to mark a packet.
    MarkAt {
        /// When the packet joins it.
        Enqueue = "enqueue",
        /// When the packet leaves it.
        Dequeue = "dequeue",
    }
}

switch! {
    /// The probability of a mark above Kmax.
    BeyondKmax {
        /// 1.
        All = "all",
        /// On along the slope below Kmax, as fluid models have it.
        Slope = "slope",
    }
}

/// Why a parameter was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamError {
    /// Nothing has this name.
    UnknownName,
    /// The value is not what this parameter takes.
    BadValue {
        /// The parameter.
        knob: &'static str,
        /// What it takes.
        expects: Expects,
    },
}

/// What a parameter takes, in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expects {
    /// A value of this kind in the knob's range.
    Kind(&'static Knob),
    /// A whole number, in NVIDIA's unit.
    Number(&'static NvidiaKnob),
}

impl Params {
    /// The set of this name.
    pub fn named(name: &str) -> Option<Self> {
        SETS.iter().find(|set| set.name == name).map(|set| set.params)
    }

    /// Sets the parameter of this name, ours or NVIDIA's, to what `text` says.
    ///
    /// # Errors
    ///
    /// [`ParamError`] if there is none of this name, or it does not take this value.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ParamError> {
        if let Some(knob) = knob(name) {
            let expects = Expects::Kind(knob);
            let refused = ParamError::BadValue { knob: knob.name, expects };
            let value = knob.kind.parse(text).filter(|value| knob.range.contains(value));
            (knob.set)(self, value.ok_or(refused)?);
            return Ok(());
        }
        let known = NVIDIA.iter().find(|known| known.names.contains(&name));
        let known = known.ok_or(ParamError::UnknownName)?;
        let refused =
            ParamError::BadValue { knob: known.names[0], expects: Expects::Number(known) };
        let value = text.parse().ok().filter(|value| *value <= known.max);
        *self = value.and_then(|value| known.applied(self, value)).ok_or(refused)?;
        Ok(())
    }
}

impl ReactionParams {
    /// The highest rate on a line of `line`.
    pub const fn highest(&self, line: Rate) -> Rate {
        match self.max_rate.as_bps() {
            max if max != 0 && max < line.as_bps() => self.max_rate,
            _ => line,
        }
    }
}

impl Default for Params {
    /// The set `paper`.
    fn default() -> Self {
        sets::PAPER
    }
}

impl core::fmt::Display for Expects {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Kind(knob) => knob.expects(f),
            Self::Number(known) => {
                let least = u64::from(known.applied(&Params::default(), 0).is_none());
                write!(f, "{least} to {} ({})", known.max, known.unit)
            }
        }
    }
}

impl core::fmt::Display for ParamError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::UnknownName => f.write_str("no parameter of congestion control has this name"),
            Self::BadValue { knob, expects } => write!(f, "{knob} takes {expects}"),
        }
    }
}

impl core::error::Error for ParamError {}
