//! The parameter sets of the literature and of vendors.

use super::dcqcn::{
    AlphaTimer, BeyondKmax, ByteRestart, CnpScope, CnpTiming, CutOrder, HyperIncrease, HyperPeriod,
    MarkAt, MarkingParams, NotificationParams, ReactionParams, StepCount, TargetClamp, TargetLimit,
};
use super::table::Params;
use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::Duration;

/// A parameter set.
#[derive(Debug)]
pub struct Set {
    /// The name by which settings choose the set.
    pub name: &'static str,
    /// The source of the values.
    pub source: &'static str,
    /// The values.
    pub params: Params,
}

/// All sets; the first is the default.
pub const SETS: &[Set] = &[
    Set {
        name: "paper",
        source: "Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015: \
                 figures 6, 7 and 14",
        params: PAPER,
    },
    Set {
        name: "ns3-rdma",
        source: "github.com/bobzhuyb/ns3-rdma, the paper's authors' simulator: \
                 qbb-net-device.cc, mix/config.txt",
        params: NS3_RDMA,
    },
    Set {
        name: "hpcc",
        source: "github.com/alibaba-edu/High-Precision-Congestion-Control: rdma-hw.cc, run.py \
                 --cc dcqcn, with its rates and queues for a link of 100 Gb/s",
        params: HPCC,
    },
    Set {
        name: "nvidia",
        source: "NVIDIA's page DCQCN CC Parameters and the defaults of its firmware",
        params: NVIDIA,
    },
];

pub(super) const PAPER: Params = Params::with_dcqcn(
    ReactionParams {
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
        clamp_after_time: true,
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
    NotificationParams {
        cnp_timing: CnpTiming::Window,
        cnp_interval: Duration::from_micros(50),
        cnp_scope: CnpScope::Qp,
        cnp_dscp: 48,
        cnp_priority: 6,
    },
    MarkingParams {
        kmin: 5000,
        kmax: 200_000,
        pmax: Fraction::ratio(1, 100),
        beyond_kmax: BeyondKmax::All,
        mark_at: MarkAt::Enqueue,
    },
);

const NS3_RDMA: Params = Params {
    reaction: ReactionParams {
        initial_alpha: Fraction::ratio(1, 2),
        cut_order: CutOrder::AlphaFirst,
        target_limit: TargetLimit::Unlimited,
        increase_interval: Duration::from_micros(60),
        byte_counter: 300_000_000,
        byte_restart: ByteRestart::OnClamp,
        hyper_increase: HyperIncrease::MinReachedTimes,
        hyper_period: HyperPeriod::Half,
        hai_rate: Rate::from_mbps(200),
        min_rate: Rate::from_mbps(100),
        ..PAPER.reaction
    },
    notification: NotificationParams { cnp_timing: CnpTiming::Periodic, ..PAPER.notification },
    marking: MarkingParams {
        kmin: 40_000,
        kmax: 1_000_000,
        pmax: Fraction::ONE,
        mark_at: MarkAt::Dequeue,
        ..PAPER.marking
    },
    ..PAPER
};

const HPCC: Params = Params {
    reaction: ReactionParams {
        alpha_interval: Duration::from_micros(1),
        alpha_timer: AlphaTimer::FreeRunning,
        cut_order: CutOrder::Apart,
        cut_interval: Duration::from_micros(4),
        target_clamp: TargetClamp::AfterIncrease,
        increase_interval: Duration::from_micros(300),
        byte_counter: 0,
        threshold: 1,
        step_count: StepCount::After,
        hyper_increase: HyperIncrease::MaxAbove,
        ai_rate: Rate::from_mbps(20),
        hai_rate: Rate::from_mbps(200),
        min_rate: Rate::from_mbps(1000),
        ..PAPER.reaction
    },
    notification: NotificationParams {
        cnp_timing: CnpTiming::EveryMark,
        cnp_interval: Duration::ZERO,
        ..PAPER.notification
    },
    marking: MarkingParams {
        kmin: 400_000,
        kmax: 1_600_000,
        pmax: Fraction::ratio(1, 5),
        mark_at: MarkAt::Dequeue,
        ..PAPER.marking
    },
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
