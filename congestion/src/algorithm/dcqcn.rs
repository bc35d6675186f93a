//! DCQCN's reaction point: the rate of a sender that receives CNPs.
//!
//! [`advance`](ReactionPoint::advance) runs all timers that are due, in order, each at its own
//! time. The result does not depend on how often it is called. Events at the same time are ordered:
//! the alpha timer, the increase timer, the cut timer, then CNPs. Before the first CNP no timer
//! runs and the rate is the highest allowed.

use super::{Algorithm, Control};
use crate::controller::{CongestionControl, Controller, Figures, Needs, Setup};
use crate::fraction::Fraction;
use crate::params::{
    self, AlphaTimer, ByteRestart, CutOrder, HyperIncrease, HyperPeriod, Params, ReactionParams,
    StepCount, TargetClamp, TargetLimit,
};
use crate::rate::Rate;
use crate::time::{Duration, Instant};

/// DCQCN: the rate follows CNPs.
pub static ALGORITHM: Algorithm = Algorithm {
    name: "dcqcn",
    params: params::REACTION,
    needs: Needs::CNPS,
    starts_at_rate: true,
    new: |setup| Controller::new(ReactionPoint::new(setup.params, setup.link_rate, setup.now)),
};

impl Control {
    /// DCQCN.
    pub const DCQCN: Self = Self::Algorithm(&ALGORITHM);
}

/// The DCQCN state of one sender. Rates are in bit/s, times in ns.
#[derive(Clone, Copy, Debug)]
pub struct ReactionPoint {
    rules: Rules,
    rate: u64,
    target: u64,
    alpha: Fraction,
    /// Steps of the timer and of the byte counter since the last cut.
    time_steps: u32,
    byte_steps: u32,
    /// Bytes since the last step of the byte counter, and bytes per step; `FAR` before the first
    /// CNP.
    bytes: u64,
    byte_step: u64,
    /// Ends of the running timer periods; `FAR` before the first CNP.
    alpha_ends: u64,
    increase_ends: u64,
    cut_ends: u64,
    /// A CNP arrived in the running alpha period and in the running cut period.
    cnp_in_alpha_period: bool,
    cnp_in_cut_period: bool,
    /// The last step was hyper increase.
    hyper: bool,
}

/// The parameters in the units of the state: ns and bit/s.
#[derive(Clone, Copy, Debug)]
struct Rules {
    alpha_interval: u64,
    increase_interval: u64,
    cut_interval: u64,
    byte_counter: u64,
    min: u64,
    max: u64,
    ai: u64,
    hai: u64,
    first_rate: u64,
    g: Fraction,
    initial_alpha: Fraction,
    min_dec_fac: Fraction,
    gd: u32,
    threshold: u32,
    alpha_timer: AlphaTimer,
    cut_order: CutOrder,
    target_clamp: TargetClamp,
    target_limit: TargetLimit,
    byte_restart: ByteRestart,
    step_count: StepCount,
    hyper_increase: HyperIncrease,
    hyper_period: HyperPeriod,
}

const FAR: u64 = u64::MAX;

impl ReactionPoint {
    /// A sender on a link of `link_rate` that has received no CNP.
    pub fn new(params: &Params, link_rate: Rate, _now: Instant) -> Self {
        let rules = Rules::new(&params.reaction, link_rate);
        Self {
            rules,
            rate: rules.max,
            target: rules.max,
            alpha: rules.initial_alpha,
            time_steps: 0,
            byte_steps: 0,
            bytes: 0,
            byte_step: FAR,
            alpha_ends: FAR,
            increase_ends: FAR,
            cut_ends: FAR,
            cnp_in_alpha_period: false,
            cnp_in_cut_period: false,
            hyper: false,
        }
    }

    /// Changes the parameters at `now`. Running periods keep their ends.
    pub fn set_params(&mut self, params: &Params, link_rate: Rate, now: Instant) {
        self.advance(now);
        self.rules = Rules::new(&params.reaction, link_rate);
        let Rules { min, max, increase_interval, cut_interval, .. } = self.rules;
        if !self.is_limited() {
            *self = Self::new(params, link_rate, now);
            return;
        }
        self.rate = self.rate.clamp(min, max);
        self.target = self.target.max(min);
        if self.rules.target_limit == TargetLimit::MaxRate {
            self.target = self.target.min(max);
        }
        self.byte_step = self.rules.byte_step(false);
        // Bytes counted towards a longer step must not complete the new step.
        self.bytes = self.bytes.min(self.byte_step.saturating_sub(1));
        let start = |ends: u64, interval: u64| match ends {
            FAR => now.as_nanos().saturating_add(interval),
            runs => runs,
        };
        self.increase_ends = start(self.increase_ends, increase_interval);
        self.cut_ends = match self.rules.cut_order {
            CutOrder::Apart => start(self.cut_ends, cut_interval),
            CutOrder::CutFirst | CutOrder::AlphaFirst => FAR,
        };
        self.cnp_in_cut_period &= self.rules.cut_order == CutOrder::Apart;
    }

    /// The rate at the time of the last event or [`advance`](Self::advance).
    pub const fn rate(&self) -> Rate {
        Rate::from_bps(self.rate)
    }

    /// The target rate.
    pub const fn target(&self) -> Rate {
        Rate::from_bps(self.target)
    }

    /// Alpha.
    pub const fn alpha(&self) -> Fraction {
        self.alpha
    }

    /// Steps of the increase timer since the last cut.
    pub const fn time_steps(&self) -> u32 {
        self.time_steps
    }

    /// Steps of the byte counter since the last cut.
    pub const fn byte_steps(&self) -> u32 {
        self.byte_steps
    }

    /// Returns true if a CNP has arrived since the sender started.
    pub const fn is_limited(&self) -> bool {
        self.alpha_ends != FAR
    }

    /// Next time at which a timer may change the rate; call [`advance`](Self::advance) then.
    /// [`Instant::FAR`] if only a CNP can change the rate.
    pub fn next_event(&self) -> Instant {
        let increase = if self.is_steady() { FAR } else { self.increase_ends };
        let cut = if self.cnp_in_cut_period { self.cut_ends } else { FAR };
        Instant::from_nanos(increase.min(cut))
    }

    /// `bytes` were sent.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        CongestionControl::on_sent(self, bytes, now);
    }

    /// A CNP arrived.
    pub fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        let now = now.as_nanos();
        let is_first = !self.is_limited();
        let sets_rate = is_first && self.rules.first_rate != 0;
        if is_first {
            self.start(now);
        }
        match self.rules.cut_order {
            CutOrder::CutFirst => {
                self.cut_unless(sets_rate, now);
                self.raise_alpha();
            }
            CutOrder::AlphaFirst => {
                self.raise_alpha();
                self.cut_unless(sets_rate, now);
            }
            CutOrder::Apart => self.cnp_in_cut_period = !sets_rate,
        }
        // The first CNP starts the first period and does not count as a CNP inside it.
        self.cnp_in_alpha_period = !is_first;
        if self.rules.alpha_timer == AlphaTimer::Restarts {
            self.alpha_ends = now.saturating_add(self.rules.alpha_interval);
            self.cnp_in_alpha_period &= self.rules.cut_order == CutOrder::Apart;
        }
    }

    /// Starts timers and counters at the first CNP.
    fn start(&mut self, now: u64) {
        let Rules { alpha_interval, cut_interval, min, max, first_rate, .. } = self.rules;
        self.alpha_ends = now.saturating_add(alpha_interval);
        if self.rules.cut_order == CutOrder::Apart {
            self.cut_ends = now.saturating_add(cut_interval);
        }
        self.restart_bytes();
        if first_rate != 0 {
            self.rate = first_rate.clamp(min, max);
            self.target = self.rate;
            self.increase_ends = now.saturating_add(self.rules.increase_interval);
        }
    }

    fn restart_bytes(&mut self) {
        self.bytes = 0;
        self.byte_step = self.rules.byte_step(false);
    }

    fn cut_unless(&mut self, is_done: bool, now: u64) {
        if !is_done {
            self.cut(now);
        }
    }

    fn cut(&mut self, now: u64) {
        let clamps = match self.rules.target_clamp {
            TargetClamp::Always => true,
            TargetClamp::AfterIncrease => self.time_steps != 0 || self.byte_steps != 0,
            TargetClamp::AfterByteIncrease => self.byte_steps != 0,
        };
        if clamps {
            self.target = self.rate;
        }
        if clamps || self.rules.byte_restart == ByteRestart::OnCut {
            self.restart_bytes();
        }
        let by = self.rules.cut_fraction(self.alpha);
        let kept = by.complement().max(self.rules.min_dec_fac);
        self.rate = kept.of_u64(self.rate).max(self.rules.min);
        (self.time_steps, self.byte_steps, self.hyper) = (0, 0, false);
        self.increase_ends = now.saturating_add(self.rules.increase_interval);
    }

    /// alpha = (1 - g) alpha + g.
    fn raise_alpha(&mut self) {
        self.decay_alpha();
        self.alpha = self.alpha.saturating_add(self.rules.g);
    }

    /// alpha = (1 - g) alpha.
    fn decay_alpha(&mut self) {
        self.alpha = self.rules.g.complement().of(self.alpha);
    }

    /// Runs the timers that are due by `now`.
    #[inline]
    pub fn advance(&mut self, now: Instant) {
        let now = now.as_nanos();
        if now >= self.alpha_ends.min(self.increase_ends).min(self.cut_ends) {
            self.run_timers(now);
        }
    }

    #[inline(never)]
    fn run_timers(&mut self, now: u64) {
        loop {
            let at = self.alpha_ends.min(self.increase_ends).min(self.cut_ends);
            if at > now || at == FAR {
                return;
            }
            if at == self.alpha_ends {
                self.end_alpha_period(now);
            } else if at == self.increase_ends {
                self.end_increase_period(now);
            } else {
                self.end_cut_period(now);
            }
        }
    }

    fn end_alpha_period(&mut self, now: u64) {
        let ends = self.alpha_ends;
        match (self.rules.cut_order, core::mem::take(&mut self.cnp_in_alpha_period)) {
            (CutOrder::Apart, true) => self.raise_alpha(),
            (_, true) => {}
            (_, false) => self.decay_alpha(),
        }
        // An alpha of 0 stays 0 until a CNP arrives: skip all periods up to now at once.
        let is_zero = self.alpha == Fraction::ZERO;
        let periods = if is_zero { periods_until(now, ends, self.rules.alpha_interval) } else { 1 };
        self.alpha_ends = ends.saturating_add(self.rules.alpha_interval.saturating_mul(periods));
    }

    fn end_cut_period(&mut self, now: u64) {
        let ends = self.cut_ends;
        let interval = self.rules.cut_interval;
        let is_due = core::mem::take(&mut self.cnp_in_cut_period);
        if is_due {
            self.cut(ends);
        }
        let periods = if is_due { 1 } else { periods_until(now, ends, interval) };
        self.cut_ends = ends.saturating_add(interval.saturating_mul(periods));
    }

    fn end_increase_period(&mut self, now: u64) {
        let ends = self.increase_ends;
        let interval = self.rules.halved(self.rules.increase_interval, self.hyper);
        // Steps may be skipped only up to the next cut, which changes the rate.
        let until = if self.cnp_in_cut_period { now.min(self.cut_ends) } else { now };
        let skipped = self.skip_steps(periods_until(until, ends, interval));
        if skipped == 0 {
            self.step(Step::Time);
        }
        self.increase_ends = ends.saturating_add(interval.saturating_mul(skipped.max(1)));
    }

    fn count_bytes(&mut self) {
        while self.bytes >= self.byte_step {
            self.bytes -= self.byte_step;
            self.byte_step = self.rules.byte_step(self.hyper);
            self.step(Step::Bytes);
        }
    }

    fn step(&mut self, step: Step) {
        let is_before = self.rules.step_count == StepCount::Before;
        if is_before {
            self.count(step, 1);
        }
        let increase = self.increase(step);
        self.hyper = increase.is_hyper;
        self.target = if self.is_target_far_above() {
            self.target / 8
        } else {
            self.target.saturating_add(increase.by)
        };
        if self.rules.target_limit == TargetLimit::MaxRate {
            self.target = self.target.min(self.rules.max);
        }
        let next = Rate::from_bps(self.rate).midpoint(Rate::from_bps(self.target));
        self.rate = next.as_bps().min(self.rules.max);
        if !is_before {
            self.count(step, 1);
        }
    }

    fn count(&mut self, step: Step, times: u64) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        let steps = match step {
            Step::Time => &mut self.time_steps,
            Step::Bytes => &mut self.byte_steps,
        };
        *steps = steps.saturating_add(times);
    }

    /// The increase of the target at a step.
    fn increase(&self, step: Step) -> Increase {
        let Rules { threshold, ai, hai, .. } = self.rules;
        let more = self.time_steps.max(self.byte_steps);
        let fewer = self.time_steps.min(self.byte_steps);
        if more < threshold {
            return Increase { is_hyper: false, by: 0 };
        }
        let times = match self.rules.hyper_increase {
            HyperIncrease::MinAbove => u32::from(fewer > threshold),
            HyperIncrease::MaxAbove => u32::from(more > threshold),
            // The byte counter continues hyper increase but does not start it.
            HyperIncrease::MinReachedTimes if self.hyper || step == Step::Time => {
                fewer.saturating_add(1).saturating_sub(threshold)
            }
            HyperIncrease::MinReachedTimes => 0,
        };
        match times {
            0 => Increase { is_hyper: false, by: ai },
            _ => Increase { is_hyper: true, by: hai.saturating_mul(times.into()) },
        }
    }

    /// QCN's rule for an unlimited target: returns true if the step divides the target by eight,
    /// because the target is more than ten times the rate and one of the step counts is 1.
    fn is_target_far_above(&self) -> bool {
        self.rules.target_limit == TargetLimit::Unlimited
            && (self.time_steps == 1 || self.byte_steps == 1)
            && self.target > self.rate.saturating_mul(10)
    }

    /// Returns true if further steps do not change the rate.
    fn is_steady(&self) -> bool {
        let Rules { max, ai, hai, .. } = self.rules;
        let is_at_most = self.rate == max && self.target >= max;
        is_at_most || (self.rate == self.target && ai == 0 && hai == 0)
    }

    /// Skips the leading timer steps, of `due` steps, that are identical and leave the rate
    /// unchanged: a sender may have been silent for days. Returns how many were skipped.
    fn skip_steps(&mut self, due: u64) -> u64 {
        // The kind of increase no longer depends on the number of timer steps.
        let are_identical = self.time_steps > self.rules.threshold.max(1).max(self.byte_steps);
        let increase = self.increase(Step::Time);
        let is_unchanged = self.is_steady() || (self.rate == self.target && increase.by == 0);
        if due < 2 || !are_identical || increase.is_hyper != self.hyper || !is_unchanged {
            return 0;
        }
        let mut steps = due;
        if self.rules.target_limit == TargetLimit::Unlimited {
            if self.byte_steps == 1 && increase.by != 0 {
                let left = self.rate.saturating_mul(10).saturating_sub(self.target);
                steps = steps.min(left / increase.by);
            }
            self.target = self.target.saturating_add(increase.by.saturating_mul(steps));
        }
        self.count(Step::Time, steps);
        steps
    }
}

impl CongestionControl for ReactionPoint {
    fn rate(&self) -> Rate {
        self.rate()
    }

    fn on_sent(&mut self, bytes: u64, _now: Instant) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count_bytes();
    }

    fn sent_limit(&self) -> u64 {
        self.byte_step.saturating_sub(self.bytes)
    }

    fn on_cnp(&mut self, now: Instant) {
        self.on_cnp(now);
    }

    #[inline]
    fn next_timer(&self) -> Instant {
        Instant::from_nanos(self.alpha_ends.min(self.increase_ends).min(self.cut_ends))
    }

    /// The alpha timer alone changes no rate.
    #[inline]
    fn next_change(&self) -> Instant {
        self.next_event()
    }

    fn on_timer(&mut self, now: Instant) {
        self.advance(now);
    }

    fn set_params(&mut self, setup: &Setup<'_>) -> bool {
        self.set_params(setup.params, setup.link_rate, setup.now);
        true
    }

    /// Starts as if a CNP had cut the rate to `rate`.
    fn start_at(&mut self, rate: Rate, setup: &Setup<'_>) -> bool {
        let mut first = *setup.params;
        first.reaction.first_rate = rate;
        *self = Self::new(&first, setup.link_rate, setup.now);
        self.on_cnp(setup.now);
        self.set_params(setup.params, setup.link_rate, setup.now);
        true
    }

    fn figures(&self) -> Figures {
        Figures { target: Some(self.target()), alpha: Some(self.alpha()) }
    }
}

impl Rules {
    fn new(params: &ReactionParams, link_rate: Rate) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(FAR).max(1);
        let max = params.highest(link_rate).as_bps().max(1);
        Self {
            alpha_interval: nanos(params.alpha_interval),
            increase_interval: nanos(params.increase_interval),
            cut_interval: nanos(params.cut_interval),
            byte_counter: params.byte_counter,
            min: params.min_rate.as_bps().clamp(1, max),
            max,
            ai: params.ai_rate.as_bps(),
            hai: params.hai_rate.as_bps(),
            first_rate: params.first_rate.as_bps(),
            g: params.g,
            initial_alpha: params.initial_alpha,
            min_dec_fac: params.min_dec_fac,
            gd: params.gd,
            threshold: params.threshold,
            alpha_timer: params.alpha_timer,
            cut_order: params.cut_order,
            target_clamp: params.target_clamp,
            target_limit: params.target_limit,
            byte_restart: params.byte_restart,
            step_count: params.step_count,
            hyper_increase: params.hyper_increase,
            hyper_period: params.hyper_period,
        }
    }

    /// The part of the rate that a cut removes: alpha / 2^(gd - 10).
    fn cut_fraction(&self, alpha: Fraction) -> Fraction {
        match self.gd.checked_sub(GD_OF_ALPHA) {
            Some(bits) => alpha.shift_right(bits),
            None => alpha.saturating_shift_left(GD_OF_ALPHA - self.gd),
        }
    }

    /// Bytes per step of the byte counter.
    fn byte_step(&self, is_hyper: bool) -> u64 {
        match self.byte_counter {
            0 => FAR,
            bytes => self.halved(bytes, is_hyper).max(1),
        }
    }

    fn halved(&self, period: u64, is_hyper: bool) -> u64 {
        let is_half = is_hyper && self.hyper_period == HyperPeriod::Half;
        if is_half { (period / 2).max(1) } else { period }
    }
}

/// The `gd` for which a cut removes exactly alpha: NVIDIA's alpha is in units of 2^-10.
const GD_OF_ALPHA: u32 = 10;

/// The source of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Time,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
struct Increase {
    is_hyper: bool,
    by: u64,
}

/// Number of periods of length `interval` from the end at `ends` to the first end after `now`.
fn periods_until(now: u64, ends: u64, interval: u64) -> u64 {
    (now - ends) / interval.max(1) + 1
}
