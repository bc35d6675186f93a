//! The sets of parameters that the literature and the vendors use.

use super::{
    AlphaTimer, BeyondKmax, ByteRestart, CnpScope, CnpTiming, CutOrder, HyperIncrease, HyperPeriod,
    MarkAt, MarkingParams, NotificationParams, Params, ReactionParams, StepCount, TargetClamp,
    TargetLimit,
};
use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::swift::SwiftParams;
use crate::time::Duration;
use crate::timely::TimelyParams;

/// A set of parameters.
#[derive(Debug)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// What is in it.
    pub params: Params,
}

/// Every set.
pub const SETS: &[Set] = &[
    Set { name: "paper", source: "Zhu et al., SIGCOMM 2015, sections 3 and 5", params: PAPER },
    Set { name: "ns3-rdma", source: "bobzhuyb/ns3-rdma, qbb-net-device.cc", params: NS3_RDMA },
    Set {
        name: "hpcc",
        source: "alibaba-edu/High-Precision-Congestion-Control, rdma-hw.cc",
        params: HPCC,
    },
    Set { name: "nvidia", source: "NVIDIA's documentation of its drivers", params: NVIDIA },
];

pub(super) const PAPER: Params = Params {
    reaction: ReactionParams {
        initial_alpha: Fraction::ONE,
        g: Fraction::ratio(1, 256),
        alpha_interval: Duration::from_micros(55),
        alpha_timer: AlphaTimer::Restarts,
        cut_order: CutOrder::CutFirst,
        gd: 11,
        min_dec_fac: Fraction::ratio(1, 2),
        cut_interval: Duration::from_micros(50),
        first_rate: Rate::ZERO,
        target_clamp: TargetClamp::Always,
        target_limit: TargetLimit::MaxRate,
        increase_interval: Duration::from_micros(55),
        byte_counter: 10_000_000,
        byte_restart: ByteRestart::OnCut,
        threshold: 5,
        step_count: StepCount::Before,
        hyper_increase: HyperIncrease::MinAbove,
        hyper_period: HyperPeriod::Same,
        ai_rate: Rate::from_mbps(40),
        hai_rate: Rate::from_mbps(400),
        min_rate: Rate::from_mbps(1),
        max_rate: Rate::ZERO,
    },
    notification: NotificationParams {
        cnp_timing: CnpTiming::Window,
        cnp_interval: Duration::from_micros(50),
        cnp_scope: CnpScope::Qp,
        cnp_dscp: 48,
        cnp_priority: 6,
    },
    marking: MarkingParams {
        kmin: 5000,
        kmax: 200_000,
        pmax: Fraction::ratio(1, 100),
        beyond_kmax: BeyondKmax::All,
        mark_at: MarkAt::Enqueue,
    },
    timely: TimelyParams::PAPER,
    swift: SwiftParams::PAPER,
};

const NS3_RDMA: Params = Params {
    reaction: ReactionParams {
        initial_alpha: Fraction::ratio(1, 2),
        cut_order: CutOrder::AlphaFirst,
        target_clamp: TargetClamp::AfterIncrease,
        target_limit: TargetLimit::Unlimited,
        byte_counter: 300_000_000,
        byte_restart: ByteRestart::OnClamp,
        hyper_increase: HyperIncrease::MinReachedTimes,
        hyper_period: HyperPeriod::Half,
        ..PAPER.reaction
    },
    notification: NotificationParams { cnp_timing: CnpTiming::Periodic, ..PAPER.notification },
    marking: MarkingParams { mark_at: MarkAt::Dequeue, ..PAPER.marking },
    ..PAPER
};

const HPCC: Params = Params {
    reaction: ReactionParams {
        alpha_timer: AlphaTimer::FreeRunning,
        cut_order: CutOrder::Apart,
        cut_interval: Duration::from_micros(4),
        target_clamp: TargetClamp::AfterIncrease,
        byte_counter: 0,
        step_count: StepCount::After,
        hyper_increase: HyperIncrease::MaxAbove,
        ..PAPER.reaction
    },
    notification: NotificationParams {
        cnp_timing: CnpTiming::EveryMark,
        cnp_interval: Duration::ZERO,
        ..PAPER.notification
    },
    marking: MarkingParams { mark_at: MarkAt::Dequeue, ..PAPER.marking },
    ..PAPER
};

const NVIDIA: Params = Params {
    reaction: ReactionParams {
        initial_alpha: Fraction::ratio(1023, 1024),
        g: Fraction::ratio(5, 1024),
        alpha_interval: Duration::from_micros(1),
        alpha_timer: AlphaTimer::FreeRunning,
        cut_order: CutOrder::Apart,
        cut_interval: Duration::from_micros(4),
        target_clamp: TargetClamp::AfterIncrease,
        increase_interval: Duration::from_micros(300),
        byte_counter: 32767,
        threshold: 1,
        ai_rate: Rate::from_mbps(5),
        hai_rate: Rate::from_mbps(50),
        ..PAPER.reaction
    },
    notification: NotificationParams {
        cnp_timing: CnpTiming::Gap,
        cnp_interval: Duration::from_micros(4),
        ..PAPER.notification
    },
    ..PAPER
};
