//! The reaction point: the rate of a sender, by the CNPs that it gets (DCQCN).
//!
//! Its timers are run by [`advance`](ReactionPoint::advance), in order, each at its own time: it may be called as
//! seldom as the rate is asked for, with the same result. At one time, timers come before CNPs, and among them alpha's
//! before the increase timer before the cut. Before the first CNP nothing runs, and the rate is the highest.

use crate::fraction::Fraction;
use crate::params::{
    AlphaTimer, ByteRestart, CutOrder, HyperIncrease, HyperPeriod, Params, ReactionParams,
    StepCount, TargetClamp, TargetLimit,
};
use crate::rate::Rate;
use crate::time::{Duration, Instant};

/// A sender's rate by DCQCN.
#[derive(Clone, Copy, Debug)]
pub struct ReactionPoint {
    rules: Rules,
    rate: u64,
    target: u64,
    alpha: Fraction,
    /// Steps of the timer and of the byte counter since the last cut.
    time_steps: u32,
    byte_steps: u32,
    /// Bytes since the byte counter's last step, and how many make the next; `FAR` before the first CNP.
    bytes: u64,
    byte_step: u64,
    /// Ends of periods; `FAR` before the first CNP.
    alpha_ends: u64,
    increase_ends: u64,
    cut_ends: u64,
    /// CNPs since the last update of alpha, the last cut.
    alpha_saw: bool,
    cut_saw: bool,
    /// The last step was hyper increase.
    hyper: bool,
}

/// The parameters, as the code needs them: nanoseconds and bits per second.
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
    /// A sender on a line of `line` that has got no CNP.
    pub fn new(params: &Params, line: Rate, _now: Instant) -> Self {
        let rules = Rules::new(&params.reaction, line);
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
            alpha_saw: false,
            cut_saw: false,
            hyper: false,
        }
    }

    /// Takes other parameters from `now` on. Running periods end when they would have.
    pub fn set_params(&mut self, params: &Params, line: Rate, now: Instant) {
        self.advance(now);
        self.rules = Rules::new(&params.reaction, line);
        let Rules { min, max, increase_interval, cut_interval, .. } = self.rules;
        if !self.is_limited() {
            *self = Self::new(params, line, now);
            return;
        }
        self.rate = self.rate.clamp(min, max);
        self.target = self.target.max(min);
        if self.rules.target_limit == TargetLimit::MaxRate {
            self.target = self.target.min(max);
        }
        self.byte_step = self.rules.byte_step(false);
        // What was counted for a longer step is less than one of the new.
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
        self.cut_saw &= self.rules.cut_order == CutOrder::Apart;
    }

    /// The rate, as of the last call that had a time.
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

    /// Whether a CNP has come, ever.
    pub const fn is_limited(&self) -> bool {
        self.alpha_ends != FAR
    }

    /// When the rate may next change by itself: call [`advance`](Self::advance) then. [`Instant::FAR`] if only a CNP
    /// changes it.
    pub fn next_event(&self) -> Instant {
        let increase = if self.is_settled() { FAR } else { self.increase_ends };
        let cut = if self.cut_saw { self.cut_ends } else { FAR };
        Instant::from_nanos(increase.min(cut))
    }

    /// `bytes` were sent.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= self.byte_step {
            self.count_bytes();
        }
    }

    /// A CNP came.
    pub fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        let now = now.as_nanos();
        let is_first = !self.is_limited();
        let sets_rate = is_first && self.rules.first_rate != 0;
        if is_first {
            self.limit(now);
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
            CutOrder::Apart => self.cut_saw = !sets_rate,
        }
        // The first CNP begins the first period, and is not in it.
        self.alpha_saw = !is_first;
        if self.rules.alpha_timer == AlphaTimer::Restarts {
            self.alpha_ends = now.saturating_add(self.rules.alpha_interval);
            self.alpha_saw &= self.rules.cut_order == CutOrder::Apart;
        }
    }

    /// The first CNP: timers and counters begin.
    fn limit(&mut self, now: u64) {
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
        let by = self.rules.part_of(self.alpha);
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
        match (self.rules.cut_order, core::mem::take(&mut self.alpha_saw)) {
            (CutOrder::Apart, true) => self.raise_alpha(),
            (_, true) => {}
            (_, false) => self.decay_alpha(),
        }
        // Zero stays zero until a CNP: all ends up to now are this one.
        let is_zero = self.alpha == Fraction::ZERO;
        let periods = if is_zero { periods_to(now, ends, self.rules.alpha_interval) } else { 1 };
        self.alpha_ends = ends.saturating_add(self.rules.alpha_interval.saturating_mul(periods));
    }

    fn end_cut_period(&mut self, now: u64) {
        let ends = self.cut_ends;
        let interval = self.rules.cut_interval;
        let is_due = core::mem::take(&mut self.cut_saw);
        if is_due {
            self.cut(ends);
        }
        let periods = if is_due { 1 } else { periods_to(now, ends, interval) };
        self.cut_ends = ends.saturating_add(interval.saturating_mul(periods));
    }

    fn end_increase_period(&mut self, now: u64) {
        let ends = self.increase_ends;
        let interval = self.rules.halved(self.rules.increase_interval, self.hyper);
        // A cut comes between: what follows it is another matter.
        let until = if self.cut_saw { now.min(self.cut_ends) } else { now };
        let skipped = self.skip_steps(periods_to(until, ends, interval));
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
        self.target = if self.is_far_off() {
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

    /// What a step adds to the target.
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
            // The byte counter goes on with hyper increase, and does not begin it.
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

    /// QCN's rule for a target that is not limited: the first steps bring it down where it is far above the rate.
    fn is_far_off(&self) -> bool {
        self.rules.target_limit == TargetLimit::Unlimited
            && (self.time_steps == 1 || self.byte_steps == 1)
            && self.target > self.rate.saturating_mul(10)
    }

    /// Whether steps no longer change the rate.
    fn is_settled(&self) -> bool {
        let Rules { max, ai, hai, .. } = self.rules;
        let is_at_most = self.rate == max && self.target >= max;
        is_at_most || (self.rate == self.target && ai == 0 && hai == 0)
    }

    /// Makes at once those of the next `due` steps of the timer that are alike and leave the rate as it is: a sender
    /// may have been silent for days. Says how many.
    fn skip_steps(&mut self, due: u64) -> u64 {
        // No longer by how many steps of the timer there were.
        let are_alike = self.time_steps > self.rules.threshold.max(1).max(self.byte_steps);
        let increase = self.increase(Step::Time);
        let rests = self.is_settled() || (self.rate == self.target && increase.by == 0);
        if due < 2 || !are_alike || increase.is_hyper != self.hyper || !rests {
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

impl Rules {
    fn new(params: &ReactionParams, line: Rate) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(FAR).max(1);
        let max = params.highest(line).as_bps().max(1);
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

    /// What a cut takes, by the `alpha` of its time: alpha / 2^(gd - 10).
    fn part_of(&self, alpha: Fraction) -> Fraction {
        match self.gd.checked_sub(GD_OF_ALPHA) {
            Some(shift) => alpha.shifted(shift),
            None => alpha.doubled(GD_OF_ALPHA - self.gd),
        }
    }

    /// Bytes until the byte counter's next step.
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

/// The `gd` with which a cut is by alpha: NVIDIA's alpha is in units of 2^-10.
const GD_OF_ALPHA: u32 = 10;

/// Who makes a step.
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

/// Periods until the first end after `now`, of those of which one ends at `ends`.
fn periods_to(now: u64, ends: u64, interval: u64) -> u64 {
    (now - ends) / interval.max(1) + 1
}
