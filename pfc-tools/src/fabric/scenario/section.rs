//! A table of a scenario. Keys are read one by one; a key that nothing has read is an error.

use std::cell::RefCell;
use std::collections::BTreeSet;

use feroce_congestion::Fraction;
use feroce_congestion::params::Kind;

use super::error::ScenarioError;
use super::tree::{Node, Origin, Value};
use crate::fabric::error_model::ErrorModel;
use crate::fabric::time::{LinkRate, Time};

type Result<T> = std::result::Result<T, ScenarioError>;

/// A table while it is being read.
#[derive(Debug)]
pub(super) struct Section<'a> {
    /// Name of the table with a trailing dot; empty for the whole file.
    prefix: String,
    node: Option<&'a Node>,
    /// File and line of the table, or of the table that lacks it.
    place: String,
    known: RefCell<BTreeSet<&'static str>>,
    /// True if the command line has changed any value of the scenario.
    has_overrides: bool,
}

impl<'a> Section<'a> {
    pub fn new(prefix: &str, node: Option<&'a Node>) -> Result<Self> {
        let known = RefCell::default();
        let place = node.map_or_else(String::new, |node| node.origin.to_string());
        let prefix = prefix.to_owned();
        let section = Self { prefix, node, place, known, has_overrides: false };
        match node {
            Some(Node { value: Value::Table(_), .. }) | None => Ok(section),
            Some(other) => Err(ScenarioError::Value {
                place: other.origin.to_string(),
                key: section.prefix.trim_end_matches('.').to_owned(),
                value: other.to_text(),
                expected: "a table".to_owned(),
            }),
        }
    }

    /// Sets whether the command line has changed any value of the scenario.
    pub fn with_overrides(self, has_overrides: bool) -> Self {
        Self { has_overrides, ..self }
    }

    /// The value of `key`, if present. Marks the key as known.
    pub fn get(&self, key: &'static str) -> Option<&'a Node> {
        self.known.borrow_mut().insert(key);
        match self.node {
            Some(Node { value: Value::Table(table), .. }) => table.get(key),
            _ => None,
        }
    }

    /// An error about the value of `key`.
    pub fn wrong(&self, key: &str, node: &Node, expected: impl Into<String>) -> ScenarioError {
        ScenarioError::Value {
            place: node.origin.to_string(),
            key: format!("{}{key}", self.prefix),
            value: node.to_text(),
            expected: expected.into(),
        }
    }

    /// An error about the missing `key`.
    pub fn missing(&self, key: &str, expected: impl Into<String>) -> ScenarioError {
        ScenarioError::Missing {
            place: self.place(),
            key: format!("{}{key}", self.prefix),
            expected: expected.into(),
        }
    }

    /// An error about `key` in its context; the message follows the key.
    pub fn refused(&self, key: &'static str, message: &str) -> ScenarioError {
        let place = self.get(key).map_or_else(|| self.place(), |node| node.origin.to_string());
        let message = format!("`{}{key}` {message}", self.prefix);
        ScenarioError::Inconsistent { place, message }
    }

    /// File and line of the table, or of the table that lacks it.
    pub fn place(&self) -> String {
        self.place.clone()
    }

    /// Reads a single value with `parse`.
    pub fn parsed<T>(
        &self,
        key: &'static str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let text = match &node.value {
            Value::Text(text) | Value::Plain(text) => text.as_str(),
            _ => return Err(self.wrong(key, node, expected)),
        };
        parse(text).map(Some).ok_or_else(|| self.wrong(key, node, expected))
    }

    pub fn text(&self, key: &'static str) -> Result<Option<String>> {
        self.parsed(key, "text", |text| Some(text.to_owned()))
    }

    pub fn flag(&self, key: &'static str, default: bool) -> Result<bool> {
        let flag = self.parsed(key, "true or false", |text| text.parse().ok())?;
        Ok(flag.unwrap_or(default))
    }

    pub fn time(&self, key: &'static str) -> Result<Option<Time>> {
        // A sum of several such times fits in 64 bits.
        let is_time = |nanos: &u64| *nanos <= 1_000_000_000_000_000;
        let parse = |text: &str| Kind::Time.parse(text).filter(is_time).map(Time::from_nanos);
        self.parsed(key, "a time up to 1000000s, such as \"55us\"", parse)
    }

    pub fn rate(&self, key: &'static str) -> Result<Option<LinkRate>> {
        let is_rate = |rate: &u64| (LinkRate::SLOWEST..=LinkRate::FASTEST).contains(rate);
        let parse = |text: &str| Kind::Rate.parse(text).filter(is_rate).map(LinkRate::new);
        self.parsed(key, "a rate from 1kb/s to 100000Gb/s, such as \"40Gb/s\"", parse)
    }

    /// Reads bytes up to 1 TiB, so that sums and products stay within 64 bits.
    pub fn bytes(&self, key: &'static str) -> Result<Option<u64>> {
        self.parsed(key, "bytes such as \"200KB\" (of 1000 bytes) or \"1MiB\"", |text| {
            Kind::Bytes.parse(text).filter(|&bytes| bytes <= 1 << 40)
        })
    }

    /// Reads a length of at least `min` bytes that is part of a packet.
    pub fn length(&self, key: &'static str, min: u64) -> Result<Option<u32>> {
        let number = self.count(key, min..=1 << 20)?;
        Ok(number.and_then(|n| u32::try_from(n).ok()))
    }

    /// Returns an error if one of `keys` is present although it has no effect, `because` of other
    /// settings. A key of the file is accepted if the command line may have removed its effect, so
    /// that a sweep continues.
    pub fn reject_ineffective(&self, keys: &[&'static str], because: &str) -> Result<()> {
        let given = keys.iter().filter_map(|key| Some((key, self.get(key)?)));
        let is_wrong = |node: &Node| !self.has_overrides || matches!(node.origin, Origin::Set(_));
        match given.into_iter().find(|(_, node)| is_wrong(node)) {
            None => Ok(()),
            Some((key, node)) => Err(ScenarioError::Inconsistent {
                place: node.origin.to_string(),
                message: format!("`{}{key}` has no effect {because}", self.prefix),
            }),
        }
    }

    pub fn fraction(&self, key: &'static str) -> Result<Option<Fraction>> {
        let parse = |text: &str| {
            let units = Kind::Fraction.parse(text)?;
            u32::try_from(units).ok().map(Fraction::from_units)
        };
        self.parsed(key, "a fraction such as \"1/256\", \"0.01\" or \"1%\"", parse)
    }

    /// Reads an integer within a range.
    pub fn count(
        &self,
        key: &'static str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>> {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.parsed(key, &expected, |text| text.parse().ok().filter(|n| range.contains(n)))
    }

    /// Reads an integer that fits a `u32`.
    pub fn small(&self, key: &'static str, min: u32) -> Result<Option<u32>> {
        let number = self.count(key, u64::from(min)..=u64::from(u32::MAX / 2))?;
        Ok(number.and_then(|n| u32::try_from(n).ok()))
    }

    /// Reads a number of items.
    pub fn size(&self, key: &'static str, default: usize) -> Result<usize> {
        let number = self.count(key, 0..=100_000)?;
        Ok(number.and_then(|n| usize::try_from(n).ok()).unwrap_or(default))
    }

    pub fn priority(&self, key: &'static str) -> Result<Option<u8>> {
        self.parsed(key, "a priority from 0 to 7", |text| text.parse().ok().filter(|&p| p < 8))
    }

    /// Reads a ratio such as `1/8`, or an integer.
    pub fn ratio(&self, key: &'static str) -> Result<Option<(u64, u64)>> {
        let parse = |text: &str| {
            let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
            let small =
                |text: &str| text.trim().parse().ok().filter(|n| (1..=1_000_000).contains(n));
            Some((small(numerator)?, small(denominator)?))
        };
        self.parsed(key, "a ratio of integers, such as \"1/8\"", parse)
    }

    /// Reads an error model: a probability, or every n-th frame.
    pub fn error_model(
        &self,
        probability: &'static str,
        every: &'static str,
    ) -> Result<Option<ErrorModel>> {
        let every = self.small(every, 1)?.map(ErrorModel::Every);
        let probability = self.fraction(probability)?;
        Ok(every.or_else(|| probability.map(|p| ErrorModel::Rate(p.units().saturating_mul(2)))))
    }

    /// Reads one of several names and returns its index.
    pub fn choice(&self, key: &'static str, names: &[&str]) -> Result<Option<usize>> {
        let expected =
            names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" or ");
        self.parsed(key, &expected, |text| names.iter().position(|name| *name == text))
    }

    /// Reads a list of priorities as bits.
    pub fn priorities(&self, key: &'static str) -> Result<Option<u8>> {
        let Some(nodes) = self.list(key, "a list of priorities from 0 to 7")? else {
            return Ok(None);
        };
        let mut bits = 0;
        for node in nodes {
            let priority = node.to_text().parse().ok().filter(|&p: &u8| p < 8);
            bits |= 1 << priority.ok_or_else(|| self.wrong(key, node, "a priority from 0 to 7"))?;
        }
        Ok(Some(bits))
    }

    /// Reads a list.
    pub fn list(&self, key: &'static str, expected: &str) -> Result<Option<&'a [Node]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Node { value: Value::List(list), .. }) => Ok(Some(list)),
            Some(node) => Err(self.wrong(key, node, expected)),
        }
    }

    /// Reads one string or a list of strings, each with its node.
    pub fn texts(&self, key: &'static str) -> Result<Option<Vec<(String, &'a Node)>>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let nodes = match &node.value {
            Value::List(list) => list.as_slice(),
            _ => std::slice::from_ref(node),
        };
        Ok(Some(nodes.iter().map(|node| (node.to_text(), node)).collect()))
    }

    /// The table `key`; an empty table if absent.
    pub fn section(&self, key: &'static str) -> Result<Section<'a>> {
        let node = self.get(key);
        let section = Section::new(&format!("{}{key}.", self.prefix), node)?;
        let place = if node.is_some() { section.place } else { self.place() };
        Ok(Section { place, has_overrides: self.has_overrides, ..section })
    }

    /// The tables `[[key]]`.
    pub fn sections(&self, key: &'static str) -> Result<Vec<Section<'a>>> {
        let nodes =
            self.list(key, &format!("tables [[{}{key}]]", self.prefix))?.unwrap_or_default();
        let prefix = |number| format!("{}{key}.{number}.", self.prefix);
        nodes
            .iter()
            .enumerate()
            .map(|(number, node)| Section::new(&prefix(number), Some(node)))
            .map(|section| Ok(section?.with_overrides(self.has_overrides)))
            .collect()
    }

    /// Entries whose keys have not been read yet.
    pub fn unread(&self) -> Vec<(&'a String, &'a Node)> {
        let known = self.known.borrow();
        match self.node {
            Some(Node { value: Value::Table(table), .. }) => {
                table.iter().filter(|(key, _)| !known.contains(key.as_str())).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Ends the reading of the table: a key that was not read is unknown.
    pub fn finish(self) -> Result<()> {
        match self.unread().first() {
            None => Ok(()),
            Some((key, node)) => Err(ScenarioError::UnknownKey {
                place: node.origin.to_string(),
                key: format!("{}{key}", self.prefix),
                known: self.known.borrow().iter().copied().collect::<Vec<_>>().join(", "),
            }),
        }
    }
}
