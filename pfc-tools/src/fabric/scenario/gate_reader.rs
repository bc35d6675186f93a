//! Reads a `[[gate]]`.

use super::error::ScenarioError;
use super::gate::{Bound, Curve, Explained, Gate, Kind, Measure, Stat};
use super::honest::{self, Setting};
use super::node_names::direction;
use super::section::Section;
use super::tree::Node;
use crate::fabric::config::FabricConfig;
use crate::published;

const MEASURES: [&str; 15] = [
    "goodput",
    "wire",
    "queue",
    "alpha",
    "completion",
    "slowdown",
    "collective",
    "rank",
    "pauses",
    "drops",
    "retransmitted",
    "deadlocks",
    "goodput-curve",
    "queue-curve",
    "queue-ks",
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

const KEYS: &str = "name, kind, reproduces, source, measure, of, curve, stat, published, within, \
    at_least, at_most, near, above, ns3, explained";

/// The keys that limit the value.
const BOUNDS: [&str; 5] = ["within", "at_least", "at_most", "near", "above"];

/// What the case says about its gates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Configuration of the case, without traffic.
    pub base: &'a FabricConfig,
    /// Names of the traffic groups.
    pub groups: &'a [String],
    /// Index of the case among those of its `[[case]]`.
    pub number: usize,
    /// The values of its `[[case]]`; empty without `values`.
    pub values: &'a [String],
    /// The figure that the case is about.
    pub reproduces: Option<&'a str>,
    /// Source of the published numbers.
    pub source: &'a str,
    /// The case differs from the published experiment.
    pub is_variant: bool,
    /// Losses are failures.
    pub lossless: bool,
    /// The command line has changed the case.
    pub is_changed: bool,
}

impl Place<'_> {
    /// `text` with `{}` replaced by the value of the case.
    fn filled(&self, text: &str) -> String {
        self.values.get(self.number).map_or(text.to_owned(), |value| text.replace("{}", value))
    }
}

/// Reads a gate, and refuses one that is not honest: see [`honest`].
pub(super) fn read(section: &Section<'_>, place: &Place<'_>) -> Result<Gate, ScenarioError> {
    let names: Vec<&str> = STATS.iter().map(|(name, _)| *name).collect();
    let kinds = Kind::ALL.map(Kind::name);
    let measure = measure(section, place)?;
    let stat = section.choice("stat", &names)?.map(|n| STATS[n].1);
    let name =
        section.text("name")?.ok_or_else(|| section.missing("name", "the name of the gate"))?;
    let number = |key| of_case(section, key, place.number, "a number", finite);
    let (published, ns3) = (number("published")?, number("ns3")?);
    let kind = section.choice("kind", &kinds)?.map(|n| Kind::ALL[n]);
    let bounds = bounds(section, place, kind, published, ns3)?;
    // In a list of bounds, `"-"` leaves out this case.
    let is_left_out = bounds.is_empty() && BOUNDS.iter().any(|key| section.get(key).is_some());
    let kind = kind.filter(|_| !is_left_out);
    let own = section.text("reproduces")?;
    let reproduces = own.or_else(|| place.reproduces.map(|text| place.filled(text)));
    let source = section.text("source")?;
    let gate = Gate {
        name,
        kind,
        reproduces: reproduces.filter(|_| kind.is_some_and(Kind::reproduces)),
        measure,
        stat: stat.unwrap_or(Stat::Mean),
        bounds,
        published,
        ns3,
        explained: explained(section, place)?,
    };
    if let Some((key, node)) = section.unread().first() {
        return Err(ScenarioError::UnknownKey {
            place: node.origin.to_string(),
            key: (*key).clone(),
            known: KEYS.to_owned(),
        });
    }
    let setting = Setting {
        base: place.base,
        source: source.as_deref().unwrap_or(place.source),
        is_variant: place.is_variant,
        lossless: place.lossless,
        is_changed: place.is_changed,
    };
    match honest::objection(&gate, &setting) {
        None => Ok(gate),
        Some((key, message)) => Err(section.refused(key, &message)),
    }
}

fn measure(section: &Section<'_>, place: &Place<'_>) -> Result<Measure, ScenarioError> {
    let Place { base: FabricConfig { network, .. }, groups, number, .. } = *place;
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
        "collective" => Measure::Collective(group()?),
        "rank" => Measure::Rank(group()?),
        "wire" => link().map(|(node, next)| Measure::Wire { node, next })?,
        "queue" => link().map(|(node, next)| Measure::Queue { node, next })?,
        "pauses" => Measure::Pauses(of.unwrap_or_default()),
        "goodput-curve" => curve(section, Curve::Goodput(group()?), number)?,
        "queue-curve" => {
            link().and_then(|(node, next)| curve(section, Curve::Queue { node, next }, number))?
        }
        "queue-ks" => link()
            .and_then(|(node, next)| curve(section, Curve::QueueCdf { node, next }, number))?,
        "drops" => Measure::Drops,
        "deadlocks" => Measure::Deadlocks,
        _ => Measure::Retransmitted,
    })
}

/// A comparison with the published curve that the gate names for this case.
fn curve(section: &Section<'_>, of: Curve, number: usize) -> Result<Measure, ScenarioError> {
    let expected = || {
        let known: Vec<&str> = published::ALL.iter().map(|(name, _)| *name).collect();
        format!("a file in published/: {}", known.join(", "))
    };
    let Some((file, node)) = element(section, "curve", number)? else {
        return Err(section.missing("curve", expected()));
    };
    match published::find(&file) {
        Some(_) => Ok(Measure::Curve { of, file }),
        None => Err(section.wrong("curve", node, expected())),
    }
}

fn bounds(
    section: &Section<'_>,
    place: &Place<'_>,
    kind: Option<Kind>,
    published: Option<f64>,
    ns3: Option<f64>,
) -> Result<Vec<Bound>, ScenarioError> {
    let parse = |text: &str| match text.strip_suffix('%') {
        Some(percent) => finite(percent.trim()).map(|percent| percent / 100.0),
        None => finite(text),
    };
    let distance = "a relative distance, such as \"10%\"";
    let within = of_case(section, "within", place.number, distance, parse)?;
    let near = of_each(section, "near", place.number)?.map(|case| place.filled(&case));
    let above = of_each(section, "above", place.number)?.map(|case| place.filled(&case));
    let reference = if kind == Some(Kind::Simulator) { ns3 } else { published };
    let mut bounds = Vec::new();
    match (near, within, reference) {
        (Some(case), Some(part), _) => bounds.push(Bound::Near { case, part }),
        (Some(_), None, _) => {
            return Err(section.missing("within", "the distance that `near` allows"));
        }
        (None, Some(part), Some(reference)) => {
            let around = part * reference.abs();
            bounds.extend([Bound::AtLeast(reference - around), Bound::AtMost(reference + around)]);
        }
        (None, Some(_), None) => {
            let key = if kind == Some(Kind::Simulator) { "ns3" } else { "published" };
            return Err(section.missing(key, "the number that `within` refers to"));
        }
        (None, None, _) => {}
    }
    let limit = |key| of_case(section, key, place.number, "a number", finite);
    bounds.extend(limit("at_least")?.map(Bound::AtLeast));
    bounds.extend(limit("at_most")?.map(Bound::AtMost));
    bounds.extend(above.map(|case| Bound::Above { case }));
    Ok(bounds)
}

/// The known miss of this case. Each entry is about one of the case's `values`.
fn explained(section: &Section<'_>, place: &Place<'_>) -> Result<Option<Explained>, ScenarioError> {
    let mut found = None;
    for entry in section.sections("explained")? {
        let of = entry.text("of")?;
        let missing = |key| entry.missing(key, "a number: the miss has a bound of its own");
        let number = |key| entry.parsed(key, "a number", finite)?.ok_or_else(|| missing(key));
        let read = Explained {
            why: entry.text("why")?.ok_or_else(|| entry.missing("why", "what is different"))?,
            at_least: number("at_least")?,
            at_most: number("at_most")?,
        };
        let is_own = match (&of, place.values) {
            (None, []) => true,
            (Some(of), values) if values.contains(of) => values.get(place.number) == Some(of),
            _ => {
                let expected = format!("one of the case's values: {}", place.values.join(", "));
                return Err(entry.missing("of", expected));
            }
        };
        entry.finish()?;
        if is_own && found.replace(read).is_some() {
            return Err(section.refused("explained", "explains the same value twice"));
        }
    }
    Ok(found)
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
    match element(section, key, number)? {
        Some((text, node)) => {
            parse(&text).map(Some).ok_or_else(|| section.wrong(key, node, expected))
        }
        None => Ok(None),
    }
}

/// The text of a key that has one for all cases of a `[[case]]`, or one for each.
fn of_each(
    section: &Section<'_>,
    key: &'static str,
    number: usize,
) -> Result<Option<String>, ScenarioError> {
    Ok(element(section, key, number)?.map(|(text, _)| text))
}

/// The element of a list that belongs to a case. `"-"` stands for nothing.
fn element<'a>(
    section: &Section<'a>,
    key: &'static str,
    number: usize,
) -> Result<Option<(String, &'a Node)>, ScenarioError> {
    let Some(mut list) = section.texts(key)? else { return Ok(None) };
    let place = if list.len() > 1 { number } else { 0 };
    if place >= list.len() {
        let expected = format!("one for each value of the case; there are {}", list.len());
        return Err(section.missing(key, expected));
    }
    Ok(Some(list.swap_remove(place)).filter(|(text, _)| text != "-"))
}
