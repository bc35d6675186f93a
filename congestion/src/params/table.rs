//! All parameters: their values ([`Params`]) and their names ([`all`]). Scenario files, the
//! configuration file, the documentation and `feroce stat` share these tables.

use core::fmt;
use core::ops::RangeInclusive;

use super::dcqcn::{
    AlphaTimer, BeyondKmax, ByteRestart, CnpScope, CnpTiming, CutOrder, HyperIncrease, HyperPeriod,
    MarkAt, MarkingParams, NotificationParams, ReactionParams, StepCount, TargetClamp, TargetLimit,
};
use super::value::{Kind, Raw, Shown};
use crate::algorithm::ALGORITHMS;
use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::Duration;

/// The values of all parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Sender: DCQCN's reaction point.
    pub reaction: ReactionParams,
    /// Receiver: DCQCN's notification point.
    pub notification: NotificationParams,
    /// Switch: DCQCN's congestion point.
    pub marking: MarkingParams,
    /// The values of the parameters of the other algorithms, in the order of the registry.
    pub(super) own: [u64; OWN],
}

impl Params {
    /// A set with these DCQCN parameters and the defaults of the other algorithms.
    pub(super) const fn with_dcqcn(
        reaction: ReactionParams,
        notification: NotificationParams,
        marking: MarkingParams,
    ) -> Self {
        Self { reaction, notification, marking, own: OWN_DEFAULTS }
    }

    /// The value of a parameter of an algorithm: a duration.
    pub fn time(&self, param: &Param) -> Duration {
        Raw::from_raw(param.get(self))
    }

    /// The value of a parameter of an algorithm: a rate.
    pub fn rate(&self, param: &Param) -> Rate {
        Raw::from_raw(param.get(self))
    }

    /// The value of a parameter of an algorithm: a number from 0 to 1.
    pub fn fraction(&self, param: &Param) -> Fraction {
        Raw::from_raw(param.get(self))
    }

    /// The value of a parameter of an algorithm: a count.
    pub fn count(&self, param: &Param) -> u32 {
        Raw::from_raw(param.get(self))
    }

    /// The value of a parameter of an algorithm: bytes.
    pub fn bytes(&self, param: &Param) -> u64 {
        param.get(self)
    }
}

/// Number of parameters that [`Params`] stores without a field of their own.
const OWN: usize = own_defaults::<0>().1;

const OWN_DEFAULTS: [u64; OWN] = own_defaults::<OWN>().0;

/// The defaults of the first `N` of these parameters, and their number.
const fn own_defaults<const N: usize>() -> ([u64; N], usize) {
    let (mut defaults, mut count, mut row) = ([0; N], 0, 0);
    while row < ALGORITHMS.len() {
        let (params, mut place) = (ALGORITHMS[row].params, 0);
        while place < params.len() {
            if let Place::Own { default } = params[place].place {
                if count < N {
                    defaults[count] = default;
                }
                count += 1;
            }
            place += 1;
        }
        row += 1;
    }
    (defaults, count)
}

/// Where [`Params`] stores a value.
#[derive(Debug)]
enum Place {
    /// In a field.
    Field { get: fn(&Params) -> u64, set: fn(&mut Params, u64) },
    /// In the list of the values without a field.
    Own { default: u64 },
}

/// A table row: a parameter.
#[derive(Debug)]
pub struct Param {
    /// The name in settings.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// The accepted values.
    pub range: RangeInclusive<u64>,
    /// What it does, for the documentation.
    pub about: &'static str,
    /// Where the sets take the value from, and open questions about it.
    pub source: &'static str,
    place: Place,
}

impl PartialEq for Param {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Param {}

impl Param {
    const fn own(
        name: &'static str,
        kind: Kind,
        default: u64,
        range: RangeInclusive<u64>,
        [about, source]: [&'static str; 2],
    ) -> Self {
        Self { name, kind, range, about, source, place: Place::Own { default } }
    }

    /// A parameter of an algorithm: a duration.
    #[allow(clippy::cast_possible_truncation)] // Ranges end far below.
    pub const fn time(
        name: &'static str,
        default: Duration,
        range: RangeInclusive<u64>,
        about: &'static str,
        source: &'static str,
    ) -> Self {
        Self::own(name, Kind::Time, default.as_nanos() as u64, range, [about, source])
    }

    /// A parameter of an algorithm: a rate.
    pub const fn rate(
        name: &'static str,
        default: Rate,
        range: RangeInclusive<u64>,
        about: &'static str,
        source: &'static str,
    ) -> Self {
        Self::own(name, Kind::Rate, default.as_bps(), range, [about, source])
    }

    /// A parameter of an algorithm: a number from 0 to 1.
    pub const fn fraction(
        name: &'static str,
        default: Fraction,
        range: RangeInclusive<u64>,
        about: &'static str,
        source: &'static str,
    ) -> Self {
        Self::own(name, Kind::Fraction, default.units() as u64, range, [about, source])
    }

    /// A parameter of an algorithm: a count.
    pub const fn count(
        name: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
        about: &'static str,
        source: &'static str,
    ) -> Self {
        Self::own(name, Kind::Count, default, range, [about, source])
    }

    /// A parameter of an algorithm: bytes.
    pub const fn bytes(
        name: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
        about: &'static str,
        source: &'static str,
    ) -> Self {
        Self::own(name, Kind::Bytes, default, range, [about, source])
    }

    /// Reads the value, as a number in the unit of the kind. A parameter of an algorithm that is
    /// not in the registry has its default.
    pub fn get(&self, params: &Params) -> u64 {
        match self.place {
            Place::Field { get, .. } => get(params),
            Place::Own { default } => self.own_index().map_or(default, |index| params.own[index]),
        }
    }

    /// Writes the value.
    pub fn set(&self, params: &mut Params, value: u64) {
        match self.place {
            Place::Field { set, .. } => set(params, value),
            Place::Own { .. } => {
                if let Some(index) = self.own_index() {
                    params.own[index] = value;
                }
            }
        }
    }

    fn own_index(&self) -> Option<usize> {
        let rows = ALGORITHMS.iter().flat_map(|algorithm| algorithm.params);
        let mut own = rows.filter(|param| matches!(param.place, Place::Own { .. }));
        own.position(|param| *param == self)
    }

    /// The value in `params`, in the form that [`Params::set`] accepts.
    pub fn show(&self, params: &Params) -> Shown {
        self.kind.show(self.get(params))
    }

    pub(super) fn expects(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Kind::Choice(names) = self.kind {
            for (place, name) in names.iter().enumerate() {
                let before = match place {
                    0 => "",
                    _ if place + 1 == names.len() => " or ",
                    _ => ", ",
                };
                write!(f, "{before}`{name}`")?;
            }
            return Ok(());
        }
        if self.kind == Kind::Fraction {
            let zero = if *self.range.start() == 0 { "0 to 1" } else { "more than 0, at most 1" };
            return write!(f, "{zero} (as `1/256`, `0.01` or `1%`)");
        }
        let (min, max) = (self.kind.show(*self.range.start()), self.kind.show(*self.range.end()));
        let form = match self.kind {
            Kind::Time => " (as `55us`)",
            Kind::Rate => " (as `40Mb/s`)",
            Kind::Bytes => " (as `10MB`)",
            Kind::Fraction | Kind::Count | Kind::Choice(_) => "",
        };
        write!(f, "{min} to {max}{form}")
    }
}

/// The parameter `name`.
pub fn param(name: &str) -> Option<&'static Param> {
    all().find(|param| param.name == name)
}

/// All parameters: those of the algorithms, of the receiver and of the switch.
pub fn all() -> impl Iterator<Item = &'static Param> {
    let senders = ALGORITHMS.iter().flat_map(|algorithm| algorithm.params);
    senders.chain(NOTIFICATION).chain(MARKING).copied()
}

/// Ranges that several parameters accept.
pub mod range {
    use super::{Fraction, RangeInclusive};

    const SECOND: u64 = 1_000_000_000;

    /// A duration that is not 0, in ns.
    pub const TIME: RangeInclusive<u64> = 1000..=SECOND;
    /// A duration in ns.
    pub const TIME_OR_0: RangeInclusive<u64> = 0..=SECOND;
    /// A rate in bit/s.
    pub const RATE: RangeInclusive<u64> = 0..=10_000 * SECOND;
    /// A rate that is not 0, in bit/s.
    pub const RATE_NOT_0: RangeInclusive<u64> = 1000..=10_000 * SECOND;
    /// A number from 0 to 1.
    pub const FRACTION: RangeInclusive<u64> = 0..=Fraction::ONE.units() as u64;
    /// A number above 0, to 1.
    pub const FRACTION_NOT_0: RangeInclusive<u64> = 1..=Fraction::ONE.units() as u64;
    pub(super) const QUEUE: RangeInclusive<u64> = 0..=u32::MAX as u64;
}
use range::{FRACTION, FRACTION_NOT_0, QUEUE, RATE, RATE_NOT_0, TIME, TIME_OR_0};

/// A table row for a parameter and the field that stores it.
macro_rules! row {
    (
        $name:literal, $choice:ident, $($field:ident).+,
        $about:literal, $source:literal
    ) => {
        row!(
            $name, Kind::Choice($choice::NAMES), 0..=$choice::LAST, $($field).+,
            $about, $source
        )
    };
    (
        $name:literal, $kind:expr, $range:expr, $($field:ident).+,
        $about:literal, $source:literal
    ) => {
        &Param {
            name: $name,
            kind: $kind,
            range: $range,
            about: $about,
            source: $source,
            place: Place::Field {
                get: |params| params.$($field).+.to_raw(),
                set: |params, value| params.$($field).+ = Raw::from_raw(value),
            },
        }
    };
}

/// The parameters of DCQCN's sender; `max_rate` is that of every sender.
pub static REACTION: &[&Param] = &[
    row! { "initial_alpha", Kind::Fraction, FRACTION, reaction.initial_alpha,
    "alpha before the first CNP",
    "paper: 1. ns3-rdma: m_alpha 0.5, raised by the first CNP before it cuts. hpcc: set to 1 by \
    the first CNP. nvidia: initial_alpha_value 1023" },
    row! { "g", Kind::Fraction, FRACTION_NOT_0, reaction.g,
    "gain of alpha's moving average",
    "paper: figure 14, 1/256. hpcc: EWMA_GAIN 0.00390625. nvidia: dce_tcp_g 1019 is 1024 (1 - g)" },
    row! { "alpha_interval", Kind::Time, TIME, reaction.alpha_interval,
    "alpha's period (K)",
    "paper: K = 55 us. hpcc: ALPHA_RESUME_INTERVAL 1. nvidia: dce_tcp_rtt 1" },
    row! { "alpha_timer", AlphaTimer, reaction.alpha_timer,
    "whether a CNP restarts alpha's period",
    "paper and ns3-rdma restart it with each CNP; hpcc and nvidia update alpha by the clock" },
    row! { "cut_order", CutOrder, reaction.cut_order,
    "whether a CNP cuts the rate by the alpha before it or after it, or each has a period of its \
    own",
    "paper, figure 7: Rt and Rc first. ns3-rdma: alpha first. hpcc and nvidia: two timers, each \
    with a flag that a CNP sets" },
    row! { "cut_interval", Kind::Time, TIME, reaction.cut_interval,
    "cut_order apart: the period with at most one cut",
    "hpcc: RATE_DECREASE_INTERVAL 4, from the first CNP on. nvidia: rate_reduce_monitor_period 4" },
    row! { "gd", Kind::Count, 0..=31, reaction.gd,
    "a cut is by alpha / 2^(gd - 10)",
    "paper: alpha / 2. nvidia: rpg_gd 11, with alpha in units of 2^-10, is the same; below 10 a \
    cut is by more than alpha, as far as min_dec_fac lets it" },
    row! { "min_dec_fac", Kind::Fraction, FRACTION, reaction.min_dec_fac,
    "the smallest part of the rate that remains after a cut",
    "nvidia: rpg_min_dec_fac 50. With alpha / 2 it changes nothing" },
    row! { "first_rate", Kind::Rate, RATE, reaction.first_rate,
    "the rate after the first CNP; with 0 the first CNP cuts the rate like any other",
    "nvidia: rate_to_set_on_first_cnp 0. Others have none" },
    row! { "target_clamp", TargetClamp, reaction.target_clamp,
    "when a cut sets the target to the current rate",
    "paper: Rt = Rc at each cut. ns3-rdma: ClampTargetRate 1 in its configuration; with neither of \
    its two flags, after-byte-increase. hpcc: CLAMP_TARGET_RATE 0. nvidia: clamp_tgt_rate 0, \
    clamp_tgt_rate_after_time_inc 1" },
    row! { "target_limit", TargetLimit, reaction.target_limit,
    "whether the target may exceed the highest rate",
    "ns3-rdma limits the current rate only. hpcc limits the target. The paper does not say" },
    row! { "increase_interval", Kind::Time, TIME, reaction.increase_interval,
    "the increase timer's period (T)",
    "paper: T = 55 us. ns3-rdma: RP_TIMER 60. hpcc: t_inc 300. nvidia: rpg_time_reset 300" },
    row! { "byte_counter", Kind::Bytes, 0..=1 << 40, reaction.byte_counter,
    "the byte counter's period (B); 0 turns it off",
    "paper: B = 10 MB. ns3-rdma: BYTE_COUNTER 300000, in units of 1000 bytes. hpcc has none. \
    nvidia: rpg_byte_reset 32767; whether it counts bytes or 64 of them is disputed" },
    row! { "byte_restart", ByteRestart, reaction.byte_restart,
    "which CNPs restart the byte counter",
    "paper: with the timer. ns3-rdma: together with the target only" },
    row! { "threshold", Kind::Count, 0..=1000, reaction.threshold,
    "the step count at which fast recovery ends (F)",
    "paper: F = 5. ns3-rdma: FAST_RECOVERY_TIMES 5. hpcc: 1. nvidia: rpg_threshold 1" },
    row! { "step_count", StepCount, reaction.step_count,
    "whether a step is counted before the comparison with the threshold",
    "paper and ns3-rdma: T and BC include the step that they decide about. hpcc: m_rpTimeStage is \
    raised after the step" },
    row! { "hyper_increase", HyperIncrease, reaction.hyper_increase,
    "when a step is hyper increase",
    "paper: min(T, BC) > F. ns3-rdma: both >= F, times min(T, BC) - F + 1, begun by the timer \
    only. hpcc: stage > F. nvidia: as 802.1Qau has it" },
    row! { "hyper_period", HyperPeriod, reaction.hyper_period,
    "the periods of timer and byte counter in hyper increase",
    "ns3-rdma: half of T and of B in hyper increase. Others keep it, or do not say" },
    row! { "ai_rate", Kind::Rate, RATE, reaction.ai_rate,
    "rate that a step of additive increase adds to the target",
    "paper: 40 Mb/s. hpcc: 5 Mb/s per 25 Gb/s of link rate. nvidia: rpg_ai_rate 5" },
    row! { "hai_rate", Kind::Rate, RATE, reaction.hai_rate,
    "rate that a step of hyper increase adds to the target",
    "paper: not given; ten times ai_rate here, as in nvidia. ns3-rdma: RATE_HAI 200Mb/s. hpcc: 50 \
    Mb/s per 25 Gb/s. nvidia: rpg_hai_rate 50" },
    row! { "min_rate", Kind::Rate, RATE_NOT_0, reaction.min_rate,
    "the lowest rate",
    "paper: not given; nvidia's here. ns3-rdma: MinRate 100Mb/s. hpcc: MIN_RATE 1000Mb/s. nvidia: \
    rpg_min_rate 1" },
    row! { "max_rate", Kind::Rate, RATE, reaction.max_rate,
    "the highest rate; 0 is the link rate",
    "nvidia: rpg_max_rate 0" },
];

/// The parameters of the receiver.
pub static NOTIFICATION: &[&Param] = &[
    row! { "cnp_timing", CnpTiming, notification.cnp_timing,
    "when a receiver sends a CNP",
    "paper, figure 6: a state machine per flow. ns3-rdma: CheckandSendQCN repeats itself every \
    interval. hpcc: each acknowledgement echoes the mark. nvidia: min_time_between_cnps" },
    row! { "cnp_interval", Kind::Time, TIME_OR_0, notification.cnp_interval,
    "the time between CNPs (N)",
    "paper: N = 50 us. ns3-rdma: CNP_INTERVAL 50. nvidia: min_time_between_cnps 4" },
    row! { "cnp_scope", CnpScope, notification.cnp_scope,
    "what shares one CNP interval",
    "paper: per flow. NICs differ" },
    row! { "cnp_dscp", Kind::Count, 0..=63, notification.cnp_dscp,
    "DSCP of CNPs",
    "nvidia: cnp_dscp 48" },
    row! { "cnp_priority", Kind::Count, 0..=7, notification.cnp_priority,
    "priority of CNPs on the wire",
    "nvidia: cnp_802p_prio 6" },
];

/// The parameters of the switch.
pub static MARKING: &[&Param] = &[
    row! { "kmin", Kind::Bytes, QUEUE, marking.kmin,
    "the queue length up to which no packet is marked",
    "paper: 5 KB. ns3-rdma: KMIN 40. hpcc: 100 KB per 25 Gb/s" },
    row! { "kmax", Kind::Bytes, QUEUE, marking.kmax,
    "the queue length at which the marking probability is pmax",
    "paper: 200 KB. ns3-rdma: KMAX 1000. hpcc: 400 KB per 25 Gb/s" },
    row! { "pmax", Kind::Fraction, FRACTION, marking.pmax,
    "the marking probability at kmax",
    "paper: 1 %. ns3-rdma: PMAX 1.0. hpcc: 0.2" },
    row! { "beyond_kmax", BeyondKmax, marking.beyond_kmax,
    "the marking probability above kmax",
    "switches mark every packet; fluid models continue the slope" },
    row! { "mark_at", MarkAt, marking.mark_at,
    "when a switch reads the queue length",
    "paper: on arrival. ns3-rdma and hpcc: when a packet leaves, by the queue behind it" },
];
