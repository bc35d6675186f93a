//! All parameters: their values ([`Params`]) and their names ([`TABLE`]). Scenario files, the
//! configuration file, the documentation and `feroce stat` share this table.

use core::fmt;
use core::ops::RangeInclusive;

use super::dcqcn::{
    AlphaTimer, BeyondKmax, ByteRestart, CnpScope, CnpTiming, CutOrder, HyperIncrease, HyperPeriod,
    MarkAt, MarkingParams, NotificationParams, ReactionParams, StepCount, TargetClamp, TargetLimit,
};
use super::value::{Kind, Raw, Shown};
use crate::algorithm::swift::SwiftParams;
use crate::algorithm::timely::TimelyParams;
use crate::fraction::Fraction;

/// The values of all parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Sender: DCQCN's reaction point.
    pub reaction: ReactionParams,
    /// Receiver: DCQCN's notification point.
    pub notification: NotificationParams,
    /// Switch: DCQCN's congestion point.
    pub marking: MarkingParams,
    /// TIMELY.
    pub timely: TimelyParams,
    /// Swift.
    pub swift: SwiftParams,
}

impl Params {
    /// A set with these DCQCN parameters and the defaults of the other algorithms.
    pub(super) const fn with_dcqcn(
        reaction: ReactionParams,
        notification: NotificationParams,
        marking: MarkingParams,
    ) -> Self {
        Self {
            reaction,
            notification,
            marking,
            timely: TimelyParams::PAPER,
            swift: SwiftParams::PAPER,
        }
    }
}

/// The part of the system that a parameter belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// DCQCN's sender.
    Reaction,
    /// DCQCN's receiver.
    Notification,
    /// DCQCN's switch.
    Marking,
    /// TIMELY.
    Timely,
    /// Swift.
    Swift,
}

/// A table row: a parameter.
#[derive(Debug)]
pub struct Param {
    /// The name in settings.
    pub name: &'static str,
    /// The part that it belongs to.
    pub part: Part,
    /// The kind of its value.
    pub kind: Kind,
    /// The accepted values.
    pub range: RangeInclusive<u64>,
    /// What it does, for the documentation.
    pub about: &'static str,
    /// Where the sets take the value from, and open questions about it.
    pub source: &'static str,
    /// Reads the value.
    pub get: fn(&Params) -> u64,
    /// Writes the value.
    pub set: fn(&mut Params, u64),
}

impl PartialEq for Param {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Param {}

impl Param {
    /// The value in `params`, in the form that [`Params::set`] accepts.
    pub fn show(&self, params: &Params) -> Shown {
        self.kind.show((self.get)(params))
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
    TABLE.iter().find(|param| param.name == name)
}

const SECOND: u64 = 1_000_000_000;
const TIME: RangeInclusive<u64> = 1000..=SECOND;
const RATE: RangeInclusive<u64> = 0..=10_000 * SECOND;
const RATE_NOT_0: RangeInclusive<u64> = 1000..=10_000 * SECOND;
const FRACTION: RangeInclusive<u64> = 0..=Fraction::ONE.units() as u64;
const FRACTION_NOT_0: RangeInclusive<u64> = 1..=Fraction::ONE.units() as u64;
const QUEUE: RangeInclusive<u64> = 0..=u32::MAX as u64;

/// A table row for a parameter and the field that stores it.
macro_rules! row {
    (
        $part:ident, $name:literal, $choice:ident, $($field:ident).+,
        $about:literal, $source:literal
    ) => {
        row!(
            $part, $name, Kind::Choice($choice::NAMES), 0..=$choice::LAST, $($field).+,
            $about, $source
        )
    };
    (
        $part:ident, $name:literal, $kind:expr, $range:expr, $($field:ident).+,
        $about:literal, $source:literal
    ) => {
        Param {
            name: $name,
            part: Part::$part,
            kind: $kind,
            range: $range,
            about: $about,
            source: $source,
            get: |params| params.$($field).+.to_raw(),
            set: |params, value| params.$($field).+ = Raw::from_raw(value),
        }
    };
}

/// All parameters.
pub const TABLE: &[Param] = &[
    row! { Reaction, "initial_alpha", Kind::Fraction, FRACTION, reaction.initial_alpha,
    "alpha before the first CNP",
    "paper: 1. ns3-rdma: m_alpha 0.5, raised by the first CNP before it cuts. hpcc: set to 1 by \
    the first CNP. nvidia: initial_alpha_value 1023" },
    row! { Reaction, "g", Kind::Fraction, FRACTION_NOT_0, reaction.g,
    "gain of alpha's moving average",
    "paper: figure 14, 1/256. hpcc: EWMA_GAIN 0.00390625. nvidia: dce_tcp_g 1019 is 1024 (1 - g)" },
    row! { Reaction, "alpha_interval", Kind::Time, TIME, reaction.alpha_interval,
    "alpha's period (K)",
    "paper: K = 55 us. hpcc: ALPHA_RESUME_INTERVAL 1. nvidia: dce_tcp_rtt 1" },
    row! { Reaction, "alpha_timer", AlphaTimer, reaction.alpha_timer,
    "whether a CNP restarts alpha's period",
    "paper and ns3-rdma restart it with each CNP; hpcc and nvidia update alpha by the clock" },
    row! { Reaction, "cut_order", CutOrder, reaction.cut_order,
    "whether a CNP cuts the rate by the alpha before it or after it, or each has a period of its \
    own",
    "paper, figure 7: Rt and Rc first. ns3-rdma: alpha first. hpcc and nvidia: two timers, each \
    with a flag that a CNP sets" },
    row! { Reaction, "cut_interval", Kind::Time, TIME, reaction.cut_interval,
    "cut_order apart: the period with at most one cut",
    "hpcc: RATE_DECREASE_INTERVAL 4, from the first CNP on. nvidia: rate_reduce_monitor_period 4" },
    row! { Reaction, "gd", Kind::Count, 0..=31, reaction.gd,
    "a cut is by alpha / 2^(gd - 10)",
    "paper: alpha / 2. nvidia: rpg_gd 11, with alpha in units of 2^-10, is the same; below 10 a \
    cut is by more than alpha, as far as min_dec_fac lets it" },
    row! { Reaction, "min_dec_fac", Kind::Fraction, FRACTION, reaction.min_dec_fac,
    "the smallest part of the rate that remains after a cut",
    "nvidia: rpg_min_dec_fac 50. With alpha / 2 it changes nothing" },
    row! { Reaction, "first_rate", Kind::Rate, RATE, reaction.first_rate,
    "the rate after the first CNP; with 0 the first CNP cuts the rate like any other",
    "nvidia: rate_to_set_on_first_cnp 0. Others have none" },
    row! { Reaction, "target_clamp", TargetClamp, reaction.target_clamp,
    "when a cut sets the target to the current rate",
    "paper: Rt = Rc at each cut. ns3-rdma: ClampTargetRate 1 in its configuration; with neither of \
    its two flags, after-byte-increase. hpcc: CLAMP_TARGET_RATE 0. nvidia: clamp_tgt_rate 0, \
    clamp_tgt_rate_after_time_inc 1" },
    row! { Reaction, "target_limit", TargetLimit, reaction.target_limit,
    "whether the target may exceed the highest rate",
    "ns3-rdma limits the current rate only. hpcc limits the target. The paper does not say" },
    row! { Reaction, "increase_interval", Kind::Time, TIME, reaction.increase_interval,
    "the increase timer's period (T)",
    "paper: T = 55 us. ns3-rdma: RP_TIMER 60. hpcc: t_inc 300. nvidia: rpg_time_reset 300" },
    row! { Reaction, "byte_counter", Kind::Bytes, 0..=1 << 40, reaction.byte_counter,
    "the byte counter's period (B); 0 turns it off",
    "paper: B = 10 MB. ns3-rdma: BYTE_COUNTER 300000, in units of 1000 bytes. hpcc has none. \
    nvidia: rpg_byte_reset 32767; whether it counts bytes or 64 of them is disputed" },
    row! { Reaction, "byte_restart", ByteRestart, reaction.byte_restart,
    "which CNPs restart the byte counter",
    "paper: with the timer. ns3-rdma: together with the target only" },
    row! { Reaction, "threshold", Kind::Count, 0..=1000, reaction.threshold,
    "the step count at which fast recovery ends (F)",
    "paper: F = 5. ns3-rdma: FAST_RECOVERY_TIMES 5. hpcc: 1. nvidia: rpg_threshold 1" },
    row! { Reaction, "step_count", StepCount, reaction.step_count,
    "whether a step is counted before the comparison with the threshold",
    "paper and ns3-rdma: T and BC include the step that they decide about. hpcc: m_rpTimeStage is \
    raised after the step" },
    row! { Reaction, "hyper_increase", HyperIncrease, reaction.hyper_increase,
    "when a step is hyper increase",
    "paper: min(T, BC) > F. ns3-rdma: both >= F, times min(T, BC) - F + 1, begun by the timer \
    only. hpcc: stage > F. nvidia: as 802.1Qau has it" },
    row! { Reaction, "hyper_period", HyperPeriod, reaction.hyper_period,
    "the periods of timer and byte counter in hyper increase",
    "ns3-rdma: half of T and of B in hyper increase. Others keep it, or do not say" },
    row! { Reaction, "ai_rate", Kind::Rate, RATE, reaction.ai_rate,
    "rate that a step of additive increase adds to the target",
    "paper: 40 Mb/s. hpcc: 5 Mb/s per 25 Gb/s of link rate. nvidia: rpg_ai_rate 5" },
    row! { Reaction, "hai_rate", Kind::Rate, RATE, reaction.hai_rate,
    "rate that a step of hyper increase adds to the target",
    "paper: not given; ten times ai_rate here, as in nvidia. ns3-rdma: RATE_HAI 200Mb/s. hpcc: 50 \
    Mb/s per 25 Gb/s. nvidia: rpg_hai_rate 50" },
    row! { Reaction, "min_rate", Kind::Rate, RATE_NOT_0, reaction.min_rate,
    "the lowest rate",
    "paper: not given; nvidia's here. ns3-rdma: MinRate 100Mb/s. hpcc: MIN_RATE 1000Mb/s. nvidia: \
    rpg_min_rate 1" },
    row! { Reaction, "max_rate", Kind::Rate, RATE, reaction.max_rate,
    "the highest rate; 0 is the link rate",
    "nvidia: rpg_max_rate 0" },
    row! { Notification, "cnp_timing", CnpTiming, notification.cnp_timing,
    "when a receiver sends a CNP",
    "paper, figure 6: a state machine per flow. ns3-rdma: CheckandSendQCN repeats itself every \
    interval. hpcc: each acknowledgement echoes the mark. nvidia: min_time_between_cnps" },
    row! { Notification, "cnp_interval", Kind::Time, 0..=SECOND, notification.cnp_interval,
    "the time between CNPs (N)",
    "paper: N = 50 us. ns3-rdma: CNP_INTERVAL 50. nvidia: min_time_between_cnps 4" },
    row! { Notification, "cnp_scope", CnpScope, notification.cnp_scope,
    "what shares one CNP interval",
    "paper: per flow. NICs differ" },
    row! { Notification, "cnp_dscp", Kind::Count, 0..=63, notification.cnp_dscp,
    "DSCP of CNPs",
    "nvidia: cnp_dscp 48" },
    row! { Notification, "cnp_priority", Kind::Count, 0..=7, notification.cnp_priority,
    "priority of CNPs on the wire",
    "nvidia: cnp_802p_prio 6" },
    row! { Marking, "kmin", Kind::Bytes, QUEUE, marking.kmin,
    "the queue length up to which no packet is marked",
    "paper: 5 KB. ns3-rdma: KMIN 40. hpcc: 100 KB per 25 Gb/s" },
    row! { Marking, "kmax", Kind::Bytes, QUEUE, marking.kmax,
    "the queue length at which the marking probability is pmax",
    "paper: 200 KB. ns3-rdma: KMAX 1000. hpcc: 400 KB per 25 Gb/s" },
    row! { Marking, "pmax", Kind::Fraction, FRACTION, marking.pmax,
    "the marking probability at kmax",
    "paper: 1 %. ns3-rdma: PMAX 1.0. hpcc: 0.2" },
    row! { Marking, "beyond_kmax", BeyondKmax, marking.beyond_kmax,
    "the marking probability above kmax",
    "switches mark every packet; fluid models continue the slope" },
    row! { Marking, "mark_at", MarkAt, marking.mark_at,
    "when a switch reads the queue length",
    "paper: on arrival. ns3-rdma and hpcc: when a packet leaves, by the queue behind it" },
    row! { Timely, "timely_alpha", Kind::Fraction, FRACTION_NOT_0, timely.alpha,
    "weight of the newest difference of RTTs",
    "HPCC's TimelyAlpha: 0.875" },
    row! { Timely, "timely_beta", Kind::Fraction, FRACTION, timely.beta,
    "factor of multiplicative decrease",
    "paper: 0.8" },
    row! { Timely, "timely_t_low", Kind::Time, TIME, timely.t_low,
    "RTT below which the rate rises",
    "paper: 50 us" },
    row! { Timely, "timely_t_high", Kind::Time, TIME, timely.t_high,
    "RTT above which the rate falls",
    "paper: 500 us" },
    row! { Timely, "timely_min_rtt", Kind::Time, TIME, timely.min_rtt,
    "RTT by which the gradient is normalised",
    "paper: 20 us; HPCC's TimelyMinRtt" },
    row! { Timely, "timely_delta", Kind::Rate, RATE, timely.delta,
    "rate that a step of additive increase adds",
    "paper: 10 Mb/s" },
    row! { Timely, "timely_hai_after", Kind::Count, 1..=1000, timely.hai_after,
    "consecutive updates between the thresholds without a positive gradient from which on steps \
    are larger",
    "paper: five in a row" },
    row! { Timely, "timely_hai_times", Kind::Count, 1..=1000, timely.hai_times,
    "factor by which these steps are larger",
    "paper: N = 5" },
    row! { Timely, "timely_segment", Kind::Bytes, 1..=1 << 30, timely.segment,
    "acknowledged bytes per update",
    "paper: 16 to 64 KB" },
    row! { Timely, "timely_min_rate", Kind::Rate, RATE_NOT_0, timely.min_rate,
    "the lowest rate",
    "not given" },
    row! { Swift, "swift_base_target", Kind::Time, TIME, swift.base_target,
    "target delay of one hop at a large window",
    "the operator's; 25 us here" },
    row! { Swift, "swift_hop_scale", Kind::Time, 0..=SECOND, swift.hop_scale,
    "addition to the target per hop",
    "the operator's" },
    row! { Swift, "swift_hops", Kind::Count, 0..=255, swift.hops,
    "hops of the path",
    "the path's" },
    row! { Swift, "swift_fs_range", Kind::Time, 0..=SECOND, swift.fs_range,
    "largest addition to the target for a small window",
    "the operator's" },
    row! { Swift, "swift_fs_min_cwnd", Kind::Count, 1..=1000, swift.fs_min_cwnd,
    "the window in tenths of packets up to which the largest addition applies",
    "0.1, as simulators of Swift have it" },
    row! { Swift, "swift_fs_max_cwnd", Kind::Count, 2..=100_000, swift.fs_max_cwnd,
    "the window in tenths of packets from which nothing is added",
    "100, as simulators of Swift have it" },
    row! { Swift, "swift_ai", Kind::Count, 1..=1000, swift.ai,
    "additive increase in tenths of packets per RTT",
    "1.0, as simulators of Swift have it" },
    row! { Swift, "swift_beta", Kind::Fraction, FRACTION, swift.beta,
    "factor of multiplicative decrease",
    "0.8, as simulators of Swift have it" },
    row! { Swift, "swift_max_mdf", Kind::Fraction, FRACTION, swift.max_mdf,
    "largest part of the window that a decrease removes",
    "0.5, as simulators of Swift have it" },
    row! { Swift, "swift_min_cwnd", Kind::Count, 1..=1000, swift.min_cwnd,
    "the smallest window in thousandths of packets",
    "0.001, as simulators of Swift have it" },
    row! { Swift, "swift_max_cwnd", Kind::Count, 1..=100_000, swift.max_cwnd,
    "the largest window in packets",
    "not given" },
    row! { Swift, "swift_packet", Kind::Bytes, 64..=65_536, swift.packet,
    "bytes per packet: the unit of windows",
    "the path MTU" },
];
