//! Which gates are not honest: gates that cannot fail, that the published value itself would fail,
//! or whose published value is nobody else's.

use super::gate::{Bound, Curve, Gate, Kind, Measure, Stat};
use crate::fabric::config::FabricConfig;

/// What a gate is judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    /// Configuration of the case, without traffic.
    pub base: &'a FabricConfig,
    /// Source of the published number.
    pub source: &'a str,
    /// The case differs from the published experiment.
    pub is_variant: bool,
    /// Losses are failures of the case.
    pub lossless: bool,
    /// The command line has changed the case: bounds that suit the file may now be out of reach.
    pub is_changed: bool,
}

type Objection = Option<(&'static str, String)>;

/// The objection to a gate, with the key that it is about.
pub(super) fn objection(gate: &Gate, setting: &Setting<'_>) -> Objection {
    kind(gate, setting)
        .or_else(|| source(gate, setting))
        .or_else(|| published(gate, setting))
        .or_else(|| cannot_fail(gate, setting))
        .or_else(|| explained(gate))
}

/// Objects to a gate that does not say where its expectation comes from, or without the number that
/// its kind needs.
fn kind(gate: &Gate, setting: &Setting<'_>) -> Objection {
    // A published order of cases needs no number.
    let compares = matches!(gate.measure, Measure::Curve { .. })
        || gate.bounds.iter().any(|bound| bound.other_case().is_some());
    let (key, message) = match gate.kind {
        None if gate.bounds.is_empty() => return None,
        None => ("kind", "is missing: a bound says where it comes from"),
        Some(_) if gate.bounds.is_empty() => {
            ("kind", "has no effect: without a bound nothing fails")
        }
        Some(kind) if kind.reproduces() && setting.is_variant => {
            ("kind", "is not for a variant, which differs from what was published")
        }
        Some(kind) if kind.reproduces() && gate.reproduces.is_none() => {
            ("reproduces", "is missing: the figure or claim that the gate is about")
        }
        Some(kind) if kind.reproduces() && gate.published.is_none() && !compares => {
            ("published", "is missing: a gate of this kind compares with somebody else's number")
        }
        Some(Kind::Simulator) if gate.ns3.is_none() => {
            ("ns3", "is missing: a gate of this kind compares with a simulator's number")
        }
        Some(_) => return None,
    };
    Some((key, message.to_owned()))
}

/// Objects to a published value without the work that published it, and to our own values.
fn source(gate: &Gate, setting: &Setting<'_>) -> Objection {
    if gate.published.is_none() && !gate.kind.is_some_and(Kind::reproduces) {
        return None;
    }
    let words = setting.source.split(|c: char| !c.is_ascii_alphanumeric());
    let is_year = |word: &str| word.len() == 4 && word.parse().is_ok_and(|year: u32| year > 1900);
    let is_own = setting.source.to_ascii_lowercase().contains("feroce");
    let message = match () {
        () if is_own => "is Feroce's own: `published` is for the numbers of others",
        () if !words.clone().any(is_year) => {
            "does not name the work, with its year, that published the number"
        }
        () => return None,
    };
    Some(("source", message.to_owned()))
}

/// Objects to a gate that the published value itself does not meet, and to a published value
/// without a gate.
fn published(gate: &Gate, setting: &Setting<'_>) -> Objection {
    let pairs = [("published", gate.published), ("ns3", gate.ns3)];
    for (key, value) in pairs {
        let is_judged = key == "published" || gate.kind == Some(Kind::Simulator);
        if let Some(value) = value.filter(|value| is_judged && !gate.admits(*value)) {
            return Some((key, format!("is {value}, which the gate itself excludes")));
        }
    }
    let is_shown = gate.published.is_some() && gate.bounds.is_empty();
    (is_shown && !setting.is_variant).then(|| {
        let message = "has no bound: only a case with `variant` shows a published value without \
            judging by it";
        ("published", message.to_owned())
    })
}

/// Objects to a gate that every value meets, or none.
fn cannot_fail(gate: &Gate, setting: &Setting<'_>) -> Objection {
    if setting.is_changed {
        return None;
    }
    let (least, most) = range(gate, setting.base);
    if gate.measure == Measure::Drops && setting.lossless && gate.upper() == Some(0.0) {
        let message = "repeats the loss check, which every lossless case has";
        return Some(("measure", message.to_owned()));
    }
    if let (Some(lower), Some(upper)) = (gate.lower(), gate.upper())
        && lower > upper
    {
        return Some(("at_least", "is above `at_most`: no value meets the gate".to_owned()));
    }
    let is_free = |bound: &Bound| match bound {
        Bound::AtLeast(min) => *min <= least,
        Bound::AtMost(max) => *max >= most,
        Bound::Near { part, .. } => *part >= 1.0,
        Bound::Above { .. } => false,
    };
    let is_exact = gate.lower().is_some_and(|lower| gate.upper() == Some(lower));
    let key = match gate.bounds.iter().find(|bound| is_free(bound) && !is_exact)? {
        Bound::AtLeast(_) => "at_least",
        Bound::AtMost(_) => "at_most",
        Bound::Near { .. } | Bound::Above { .. } => "within",
    };
    Some((key, format!("cannot fail: the value is always from {least} to {most}")))
}

/// The range that a value cannot leave.
#[allow(clippy::cast_precision_loss)] // Rates and buffers below 2^53.
fn range(gate: &Gate, base: &FabricConfig) -> (f64, f64) {
    let spreads = gate.stat == Stat::Variation;
    let rates = base.network.links.iter().map(|link| link.rate.bits_per_second() as f64 / 1e9);
    let fastest = rates.fold(0.0, f64::max);
    match &gate.measure {
        _ if spreads => (0.0, f64::INFINITY),
        Measure::Alpha(_) | Measure::Deadlocks if gate.stat != Stat::Sum => (0.0, 1.0),
        Measure::Wire { .. } | Measure::Goodput(_) if gate.stat != Stat::Sum => (0.0, fastest),
        Measure::Queue { .. } => (0.0, base.switch.buffer as f64 / 1e3),
        Measure::Slowdown(_) => (1.0, f64::INFINITY),
        Measure::Curve { of: Curve::QueueCdf { .. }, .. } => (0.0, 1.0),
        _ => (0.0, f64::INFINITY),
    }
}

/// Objects to an explanation of a gate that holds, or that may become any value.
fn explained(gate: &Gate) -> Objection {
    let explained = gate.explained.as_ref()?;
    let refers = gate.bounds.iter().any(|bound| bound.other_case().is_some());
    let message = match () {
        () if gate.kind.is_none() => "has no effect without a bound that is missed",
        () if explained.at_least > explained.at_most => "has no value between its bounds",
        () if !refers
            && gate.lower().is_none_or(|min| explained.at_most >= min)
            && gate.upper().is_none_or(|max| explained.at_least <= max) =>
        {
            "has bounds that overlap those of the gate: a miss is outside them"
        }
        () => return None,
    };
    Some(("explained", message.to_owned()))
}
