//! NVIDIA's names of the parameters, in the units of its drivers.

use super::dcqcn::TargetClamp;
use super::table::{self, Params};
use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::Duration;

/// A parameter under NVIDIA's names. The value is a whole number.
#[derive(Debug)]
pub struct NvidiaParam {
    /// The accepted names: that of NVIDIA's documentation and OFED, then that of Linux (`cc_params`
    /// in debugfs) if it differs.
    pub names: &'static [&'static str],
    /// The name of Feroce's parameter.
    pub param: &'static str,
    /// The unit of the value.
    pub unit: &'static str,
    /// The largest value.
    pub max: u64,
    /// Reads the value.
    pub get: fn(&Params) -> u64,
    /// Writes the value.
    pub set: fn(&mut Params, u64),
}

impl NvidiaParam {
    /// Returns `params` with this `value`; `None` if Feroce's parameter does not accept it (a
    /// period of 0, for example).
    pub(super) fn applied(&self, params: &Params, value: u64) -> Option<Params> {
        let mut changed = *params;
        (self.set)(&mut changed, value);
        let own = table::param(self.param)?;
        own.range.contains(&own.get(&changed)).then_some(changed)
    }
}

impl PartialEq for NvidiaParam {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

impl Eq for NvidiaParam {}

macro_rules! micros {
    ($($name:literal)|+, $param:literal, $($field:ident).+) => {
        NvidiaParam {
            names: &[$($name),+],
            param: $param,
            unit: "us",
            max: 1_000_000,
            get: |params| to_micros(params.$($field).+),
            set: |params, micros| params.$($field).+ = Duration::from_micros(micros),
        }
    };
}

macro_rules! megabits {
    ($($name:literal)|+, $param:literal, $($field:ident).+) => {
        NvidiaParam {
            names: &[$($name),+],
            param: $param,
            unit: "Mb/s",
            max: 10_000_000,
            get: |params| params.$($field).+.as_bps() / 1_000_000,
            set: |params, megabits| params.$($field).+ = Rate::from_mbps(megabits),
        }
    };
}

/// All parameters that NVIDIA names.
pub const NVIDIA: &[NvidiaParam] = &[
    micros!("rpg_time_reset" | "rp_time_reset", "increase_interval", reaction.increase_interval),
    NvidiaParam {
        names: &["rpg_byte_reset", "rp_byte_reset"],
        param: "byte_counter",
        unit: "bytes",
        max: 1 << 40,
        get: |params| params.reaction.byte_counter,
        set: |params, bytes| params.reaction.byte_counter = bytes,
    },
    NvidiaParam {
        names: &["rpg_threshold", "rp_threshold"],
        param: "threshold",
        unit: "steps",
        max: 1000,
        get: |params| params.reaction.threshold.into(),
        set: |params, steps| params.reaction.threshold = saturating_u32(steps),
    },
    megabits!("rpg_ai_rate" | "rp_ai_rate", "ai_rate", reaction.ai_rate),
    megabits!("rpg_hai_rate" | "rp_hai_rate", "hai_rate", reaction.hai_rate),
    megabits!("rpg_max_rate" | "rp_max_rate", "max_rate", reaction.max_rate),
    megabits!("rpg_min_rate" | "rp_min_rate", "min_rate", reaction.min_rate),
    NvidiaParam {
        names: &["rpg_gd", "rp_gd"],
        param: "gd",
        unit: "log2: a cut removes alpha / 2^(gd - 10)",
        max: 31,
        get: |params| params.reaction.gd.into(),
        set: |params, gd| params.reaction.gd = saturating_u32(gd),
    },
    NvidiaParam {
        names: &["rpg_min_dec_fac", "rp_min_dec_fac"],
        param: "min_dec_fac",
        unit: "%",
        max: 100,
        // `Fraction::ratio` rounds down: a set percentage may read as up to 0.1 % less, in units
        // of 0.1 %. Rounding up restores it.
        get: |params| params.reaction.min_dec_fac.of_u64(1000).div_ceil(10),
        set: |params, percent| {
            params.reaction.min_dec_fac = Fraction::ratio(saturating_u32(percent), 100)
        },
    },
    megabits!(
        "rate_to_set_on_first_cnp" | "rp_rate_to_set_on_first_cnp",
        "first_rate",
        reaction.first_rate
    ),
    NvidiaParam {
        names: &["dce_tcp_g", "rp_dce_tcp_g"],
        param: "g",
        unit: "1 - g, in 1/1024",
        max: 1023,
        get: |params| 1024 - params.reaction.g.of_u64(1024),
        set: |params, kept| params.reaction.g = Fraction::ratio(1024 - saturating_u32(kept), 1024),
    },
    micros!("dce_tcp_rtt" | "rp_dce_tcp_rtt", "alpha_interval", reaction.alpha_interval),
    micros!(
        "rate_reduce_monitor_period" | "rp_rate_reduce_monitor_period",
        "cut_interval",
        reaction.cut_interval
    ),
    NvidiaParam {
        names: &["initial_alpha_value", "rp_initial_alpha_value"],
        param: "initial_alpha",
        unit: "1/1024",
        max: 1024,
        get: |params| params.reaction.initial_alpha.of_u64(1024),
        set: |params, units| {
            params.reaction.initial_alpha = Fraction::ratio(saturating_u32(units), 1024)
        },
    },
    NvidiaParam {
        names: &["clamp_tgt_rate", "rp_clamp_tgt_rate"],
        param: "target_clamp",
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
    NvidiaParam {
        names: &["clamp_tgt_rate_after_time_inc", "rp_clamp_tgt_rate_ati"],
        param: "target_clamp",
        unit: "0 or 1; no effect while clamp_tgt_rate is 1",
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
    NvidiaParam {
        names: &["np_cnp_dscp"],
        param: "cnp_dscp",
        unit: "DSCP",
        max: 63,
        get: |params| params.notification.cnp_dscp.into(),
        set: |params, dscp| params.notification.cnp_dscp = saturating_u8(dscp),
    },
    NvidiaParam {
        names: &["cnp_802p_prio", "np_cnp_prio"],
        param: "cnp_priority",
        unit: "priority",
        max: 7,
        get: |params| params.notification.cnp_priority.into(),
        set: |params, priority| params.notification.cnp_priority = saturating_u8(priority),
    },
];

/// The value of NVIDIA's `clamp_tgt_rate_after_time_inc`, which has an effect while
/// `clamp_tgt_rate` is 0.
fn clamps_after_time(params: &Params) -> bool {
    match params.reaction.target_clamp {
        TargetClamp::Always => params.reaction.clamp_after_time,
        clamp => clamp == TargetClamp::AfterIncrease,
    }
}

fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Narrows a value that is at most `max` of its row.
fn saturating_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn saturating_u8(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}
