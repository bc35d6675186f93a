//! NVIDIA's names of the parameters, with the units that its drivers give them.

use super::{Params, TargetClamp};
use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::Duration;

/// A parameter of NVIDIA's, whose value is a whole number.
#[derive(Debug)]
pub struct NvidiaKnob {
    /// Its names: the documentation's, Linux' under `cc_params`, others.
    pub names: &'static [&'static str],
    /// Our parameter.
    pub knob: &'static str,
    /// What the number counts.
    pub unit: &'static str,
    /// The largest.
    pub max: u64,
    /// Reads it.
    pub get: fn(&Params) -> u64,
    /// Writes it.
    pub set: fn(&mut Params, u64),
}

impl NvidiaKnob {
    /// `params` with this `value`; `None` if our knob does not take it: a timer has a length.
    pub(super) fn applied(&self, params: &Params, value: u64) -> Option<Params> {
        let mut changed = *params;
        (self.set)(&mut changed, value);
        let own = super::knob(self.knob)?;
        own.range.contains(&(own.get)(&changed)).then_some(changed)
    }
}

impl PartialEq for NvidiaKnob {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

impl Eq for NvidiaKnob {}

macro_rules! micros {
    ($($name:literal)|+, $knob:literal, $($field:ident).+) => {
        NvidiaKnob {
            names: &[$($name),+],
            knob: $knob,
            unit: "us",
            max: 1_000_000,
            get: |params| to_micros(params.$($field).+),
            set: |params, micros| params.$($field).+ = Duration::from_micros(micros),
        }
    };
}

macro_rules! megabits {
    ($($name:literal)|+, $knob:literal, $($field:ident).+) => {
        NvidiaKnob {
            names: &[$($name),+],
            knob: $knob,
            unit: "Mb/s",
            max: 10_000_000,
            get: |params| params.$($field).+.as_bps() / 1_000_000,
            set: |params, megabits| params.$($field).+ = Rate::from_mbps(megabits),
        }
    };
}

/// Every name.
pub const NVIDIA: &[NvidiaKnob] = &[
    micros!("rpg_time_reset" | "rp_time_reset", "increase_interval", reaction.increase_interval),
    NvidiaKnob {
        names: &["rpg_byte_reset", "rp_byte_reset"],
        knob: "byte_counter",
        unit: "bytes",
        max: 1 << 40,
        get: |params| params.reaction.byte_counter,
        set: |params, bytes| params.reaction.byte_counter = bytes,
    },
    NvidiaKnob {
        names: &["rpg_threshold", "rp_threshold"],
        knob: "threshold",
        unit: "steps",
        max: 1000,
        get: |params| params.reaction.threshold.into(),
        set: |params, steps| params.reaction.threshold = small(steps),
    },
    megabits!("rpg_ai_rate" | "rp_ai_rate", "ai_rate", reaction.ai_rate),
    megabits!("rpg_hai_rate" | "rp_hai_rate", "hai_rate", reaction.hai_rate),
    megabits!("rpg_max_rate" | "rp_max_rate", "max_rate", reaction.max_rate),
    megabits!("rpg_min_rate" | "rp_min_rate", "min_rate", reaction.min_rate),
    NvidiaKnob {
        names: &["rpg_gd", "rp_gd"],
        knob: "gd",
        unit: "logarithm",
        max: 31,
        get: |params| params.reaction.gd.into(),
        set: |params, gd| params.reaction.gd = small(gd),
    },
    NvidiaKnob {
        names: &["rpg_min_dec_fac", "rp_min_dec_fac"],
        knob: "min_dec_fac",
        unit: "%",
        max: 100,
        get: |params| params.reaction.min_dec_fac.of_u64(1000).div_ceil(10),
        set: |params, percent| params.reaction.min_dec_fac = Fraction::ratio(small(percent), 100),
    },
    megabits!(
        "rate_to_set_on_first_cnp" | "rp_rate_to_set_on_first_cnp",
        "first_rate",
        reaction.first_rate
    ),
    NvidiaKnob {
        names: &["dce_tcp_g", "rp_dce_tcp_g"],
        knob: "g",
        unit: "1/1024 of 1 - g",
        max: 1023,
        get: |params| 1024 - params.reaction.g.of_u64(1024),
        set: |params, kept| params.reaction.g = Fraction::ratio(1024 - small(kept), 1024),
    },
    micros!("dce_tcp_rtt" | "rp_dce_tcp_rtt", "alpha_interval", reaction.alpha_interval),
    micros!(
        "rate_reduce_monitor_period" | "rp_rate_reduce_monitor_period",
        "cut_interval",
        reaction.cut_interval
    ),
    NvidiaKnob {
        names: &["initial_alpha_value", "rp_initial_alpha_value"],
        knob: "initial_alpha",
        unit: "1/1024",
        max: 1024,
        get: |params| params.reaction.initial_alpha.of_u64(1024),
        set: |params, units| params.reaction.initial_alpha = Fraction::ratio(small(units), 1024),
    },
    NvidiaKnob {
        names: &["clamp_tgt_rate", "rp_clamp_tgt_rate"],
        knob: "target_clamp",
        unit: "0 or 1",
        max: 1,
        get: |params| u64::from(params.reaction.target_clamp == TargetClamp::Always),
        set: |params, on| {
            let after_time = clamps_after_time(params);
            params.reaction.clamp_after_time = after_time;
            params.reaction.target_clamp = match (on, after_time) {
                (0, true) => TargetClamp::AfterIncrease,
                (0, false) => TargetClamp::AfterByteIncrease,
                _ => TargetClamp::Always,
            };
        },
    },
    NvidiaKnob {
        names: &["clamp_tgt_rate_after_time_inc", "rp_clamp_tgt_rate_ati"],
        knob: "target_clamp",
        unit: "0 or 1; without meaning while clamp_tgt_rate is 1",
        max: 1,
        get: |params| u64::from(clamps_after_time(params)),
        set: |params, on| {
            params.reaction.clamp_after_time = on != 0;
            let clamp = &mut params.reaction.target_clamp;
            *clamp = match (on, *clamp) {
                (_, TargetClamp::Always) => TargetClamp::Always,
                (0, _) => TargetClamp::AfterByteIncrease,
                _ => TargetClamp::AfterIncrease,
            };
        },
    },
    micros!(
        "min_time_between_cnps" | "np_min_time_between_cnps",
        "cnp_interval",
        notification.cnp_interval
    ),
    NvidiaKnob {
        names: &["np_cnp_dscp"],
        knob: "cnp_dscp",
        unit: "DSCP",
        max: 63,
        get: |params| params.notification.cnp_dscp.into(),
        set: |params, dscp| params.notification.cnp_dscp = tiny(dscp),
    },
    NvidiaKnob {
        names: &["cnp_802p_prio", "np_cnp_prio"],
        knob: "cnp_priority",
        unit: "priority",
        max: 7,
        get: |params| params.notification.cnp_priority.into(),
        set: |params, priority| params.notification.cnp_priority = tiny(priority),
    },
];

/// NVIDIA's `clamp_tgt_rate_after_time_inc`, as it is or would be with `clamp_tgt_rate` at 0.
fn clamps_after_time(params: &Params) -> bool {
    match params.reaction.target_clamp {
        TargetClamp::Always => params.reaction.clamp_after_time,
        clamp => clamp == TargetClamp::AfterIncrease,
    }
}

fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What is at most `max` of a row.
fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn tiny(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}
