//! `[[gate]]`: an expected result of a run, and the published value.

use super::error::ScenarioError;
use super::node_names::direction;
use super::section::Section;
use crate::fabric::config::Network;

/// The measured quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Measure {
    /// Goodput in Gb/s of each flow of a traffic group; `None` for all groups.
    Goodput(Option<u32>),
    /// Rate on a link in Gb/s, from one node to the next.
    Wire {
        /// The sending node.
        node: usize,
        /// The node at the other end.
        next: usize,
    },
    /// Length of a queue in KB over time.
    Queue {
        /// The node that has the queue.
        node: usize,
        /// The node at the other end of the link.
        next: usize,
    },
    /// Alpha of DCQCN, of each flow of a traffic group.
    Alpha(Option<u32>),
    /// Completion time of each flow of a traffic group, in us.
    Completion(Option<u32>),
    /// Slowdown of each flow of a traffic group.
    Slowdown(Option<u32>),
    /// Pauses received by the nodes whose names start with this prefix.
    Pauses(String),
    /// Packets dropped by switches.
    Drops,
    /// Packets retransmitted by senders.
    Retransmitted,
    /// Deadlocks: 1 for each run with a deadlock, 0 for each without.
    Deadlocks,
}

/// Reduces several values to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    /// Mean.
    Mean,
    /// Sum.
    Sum,
    /// Smallest.
    Min,
    /// Largest.
    Max,
    /// Coefficient of variation: standard deviation divided by the mean.
    Variation,
    /// Quantile, in thousandths.
    Quantile(u32),
}

/// A condition on the value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// Within a relative distance of the published value.
    Within {
        /// The published value.
        published: f64,
        /// The relative distance, 0.1 for 10 %.
        part: f64,
    },
    /// A lower bound.
    AtLeast(f64),
    /// An upper bound.
    AtMost(f64),
    /// No condition: the value is only shown beside the published one.
    Shown {
        /// The published value.
        published: Option<f64>,
    },
}

impl Bound {
    /// The lower bound, if any.
    pub fn lower(&self) -> Option<f64> {
        match *self {
            Self::Within { published, part } => Some(published - part * published.abs()),
            Self::AtLeast(min) => Some(min),
            Self::AtMost(_) | Self::Shown { .. } => None,
        }
    }

    /// The upper bound, if any.
    pub fn upper(&self) -> Option<f64> {
        match *self {
            Self::Within { published, part } => Some(published + part * published.abs()),
            Self::AtMost(max) => Some(max),
            Self::AtLeast(_) | Self::Shown { .. } => None,
        }
    }
}

/// An expected result of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// Name in the output.
    pub name: String,
    /// The measured quantity.
    pub measure: Measure,
    /// How several values are reduced to one.
    pub stat: Stat,
    /// Conditions on the value.
    pub bounds: Vec<Bound>,
    /// The value of HPCC's ns-3 simulator.
    pub ns3: Option<f64>,
    /// Why the gate does not hold: what would have to differ, and where this is shown. An explained
    /// miss is not a failure.
    pub explained: Option<String>,
}

const MEASURES: [&str; 10] = [
    "goodput",
    "wire",
    "queue",
    "alpha",
    "completion",
    "slowdown",
    "pauses",
    "drops",
    "retransmitted",
    "deadlocks",
];
const STATS: [(&str, Stat); 13] = [
    ("mean", Stat::Mean),
    ("sum", Stat::Sum),
    ("min", Stat::Min),
    ("max", Stat::Max),
    ("variation", Stat::Variation),
    ("median", Stat::Quantile(500)),
    ("p1", Stat::Quantile(10)),
    ("p10", Stat::Quantile(100)),
    ("p25", Stat::Quantile(250)),
    ("p75", Stat::Quantile(750)),
    ("p90", Stat::Quantile(900)),
    ("p95", Stat::Quantile(950)),
    ("p99", Stat::Quantile(990)),
];

/// Reads a gate. `number` is the index of the case among those of its `[[case]]`.
pub(super) fn read(
    section: &Section<'_>,
    network: &Network,
    groups: &[String],
    number: usize,
) -> Result<Gate, ScenarioError> {
    let names: Vec<&str> = STATS.iter().map(|(name, _)| *name).collect();
    let measure = measure(section, network, groups)?;
    let stat = section.choice("stat", &names)?.map(|n| STATS[n].1);
    let name =
        section.text("name")?.ok_or_else(|| section.missing("name", "the name of the gate"))?;
    let stat = stat.unwrap_or(Stat::Mean);
    let ns3 = of_case(section, "ns3", number, "a number", finite)?;
    let bounds = bounds(section, number, ns3)?;
    let explained = section.text("explained")?;
    let gate = Gate { name, measure, stat, bounds, ns3, explained };
    match section.unread().first() {
        None => Ok(gate),
        Some((key, node)) => Err(ScenarioError::UnknownKey {
            place: node.origin.to_string(),
            key: (*key).clone(),
            known: "name, measure, of, stat, published, within, at_least, at_most, ns3, explained"
                .to_owned(),
        }),
    }
}

fn measure(
    section: &Section<'_>,
    network: &Network,
    groups: &[String],
) -> Result<Measure, ScenarioError> {
    let expected = MEASURES.join(", ");
    let which = section
        .choice("measure", &MEASURES)?
        .ok_or_else(|| section.missing("measure", expected))?;
    let of = section.text("of")?;
    let wrong = |expected: &str| match section.get("of") {
        Some(node) => section.wrong("of", node, expected),
        None => section.missing("of", expected),
    };
    let group = || match &of {
        None => Ok(None),
        Some(name) => match (0..).zip(groups).find(|(_, group)| *group == name) {
            Some((number, _)) => Ok(Some(number)),
            None => Err(wrong(&format!("the name of a traffic: {}", groups.join(", ")))),
        },
    };
    let link = || {
        let link = of.as_ref().and_then(|text| direction(text, network));
        link.ok_or_else(|| wrong("a link from one node to its neighbour, such as \"s1->h3\""))
    };
    Ok(match MEASURES[which] {
        "goodput" => Measure::Goodput(group()?),
        "alpha" => Measure::Alpha(group()?),
        "completion" => Measure::Completion(group()?),
        "slowdown" => Measure::Slowdown(group()?),
        "wire" => link().map(|(node, next)| Measure::Wire { node, next })?,
        "queue" => link().map(|(node, next)| Measure::Queue { node, next })?,
        "pauses" => Measure::Pauses(of.unwrap_or_default()),
        "drops" => Measure::Drops,
        "deadlocks" => Measure::Deadlocks,
        _ => Measure::Retransmitted,
    })
}

fn bounds(
    section: &Section<'_>,
    number: usize,
    ns3: Option<f64>,
) -> Result<Vec<Bound>, ScenarioError> {
    let parse = |text: &str| match text.strip_suffix('%') {
        Some(percent) => finite(percent.trim()).map(|percent| percent / 100.0),
        None => finite(text),
    };
    let published = of_case(section, "published", number, "a number", finite)?;
    let within = of_case(section, "within", number, "a relative distance, such as \"10%\"", parse)?;
    let mut bounds = Vec::new();
    match (published, within, ns3) {
        (Some(published), Some(part), _) => bounds.push(Bound::Within { published, part }),
        (None, Some(part), Some(ns3)) => {
            let around = part * ns3.abs();
            bounds.extend([Bound::AtLeast(ns3 - around), Bound::AtMost(ns3 + around)]);
        }
        (None, Some(_), None) => {
            return Err(
                section.missing("published", "the number that `within` refers to, or `ns3`")
            );
        }
        (published, None, _) => bounds.push(Bound::Shown { published }),
    }
    let limit = |key| of_case(section, key, number, "a number", finite);
    bounds.extend(limit("at_least")?.map(Bound::AtLeast));
    bounds.extend(limit("at_most")?.map(Bound::AtMost));
    Ok(bounds)
}

/// A number that charts can show.
fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|n: &f64| n.abs() < 1e18)
}

/// The value of a key that has one value for all cases of a `[[case]]`, or one for each.
fn of_case(
    section: &Section<'_>,
    key: &'static str,
    number: usize,
    expected: &str,
    parse: impl Fn(&str) -> Option<f64>,
) -> Result<Option<f64>, ScenarioError> {
    let Some(list) = section.texts(key)? else { return Ok(None) };
    let place = if list.len() > 1 { number } else { 0 };
    let each = || {
        section.missing(
            key,
            format!("one number for each value of the case; there are {}", list.len()),
        )
    };
    let (text, node) = list.get(place).ok_or_else(each)?;
    parse(text).map(Some).ok_or_else(|| section.wrong(key, node, expected))
}
