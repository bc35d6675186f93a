//! A scenario file as a tree. Every value knows its origin, in the file or on the command line.

use std::collections::BTreeMap;
use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ScenarioError;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// In a file, at a line counted from 1.
    File(String, usize),
    /// On the command line, as shown in errors.
    Set(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file, line) => write!(f, "{file}:{line}"),
            Self::Set(what) => f.write_str(what),
        }
    }
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A string.
    Text(String),
    /// A number or boolean as written.
    Plain(String),
    /// A list.
    List(Vec<Node>),
    /// A table.
    Table(BTreeMap<String, Node>),
}

/// Maximum number of levels of a key.
const MAX_DEPTH: usize = 16;

/// A value and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub value: Value,
    pub origin: Origin,
}

impl Node {
    /// Parses the TOML `text` of `file`.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let starts: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let origin = |at: usize| {
            Origin::File(file.to_owned(), starts.partition_point(|&start| start < at) + 1)
        };
        let document = DeTable::parse(text).map_err(|error| ScenarioError::Syntax {
            place: origin(error.span().map_or(0, |span| span.start)).to_string(),
            message: error.message().to_owned(),
        })?;
        Ok(table(document.get_ref(), &origin, origin(0)))
    }

    /// The value as it would be written.
    pub fn to_text(&self) -> String {
        match &self.value {
            Value::Text(text) | Value::Plain(text) => text.clone(),
            Value::List(list) => {
                format!("[{}]", list.iter().map(Self::to_text).collect::<Vec<_>>().join(", "))
            }
            Value::Table(_) => "a table".to_owned(),
        }
    }

    /// Origin of the value at `key`, or of the innermost table on its path; `None` for the whole
    /// file.
    pub fn place(&self, key: &str) -> Option<String> {
        let (mut node, mut place) = (self, None);
        for part in key.split('.') {
            let inner = match &node.value {
                Value::Table(table) => table.get(part),
                Value::List(list) => part.parse::<usize>().ok().and_then(|index| list.get(index)),
                _ => None,
            };
            let Some(inner) = inner else { break };
            (node, place) = (inner, Some(inner.origin.to_string()));
        }
        place
    }

    /// Returns true if the command line has replaced or added this value or one inside it.
    pub fn has_overrides(&self) -> bool {
        let inner = match &self.value {
            Value::Table(table) => table.values().any(Self::has_overrides),
            Value::List(list) => list.iter().any(Self::has_overrides),
            Value::Text(_) | Value::Plain(_) => false,
        };
        inner || matches!(self.origin, Origin::Set(_))
    }

    /// Replaces the value at `key`, a path of names and list indexes (from 0) separated by dots.
    /// The index after the last one appends.
    pub fn set(&mut self, key: &str, value: Self) -> Result<(), ScenarioError> {
        let origin = value.origin.clone();
        let wrong = |expected: String| ScenarioError::Value {
            place: origin.to_string(),
            key: key.to_owned(),
            value: value.to_text(),
            expected,
        };
        if key.split('.').count() > MAX_DEPTH {
            return Err(wrong(format!("at most {MAX_DEPTH} names separated by dots")));
        }
        let mut place = self;
        let mut rest = Some(key);
        while let Some(key) = rest {
            let (part, remaining) =
                key.split_once('.').map_or((key, None), |(part, rest)| (part, Some(rest)));
            rest = remaining;
            place = match &mut place.value {
                Value::Table(table) => table.entry(part.to_owned()).or_insert_with(|| Self {
                    value: Value::Table(BTreeMap::new()),
                    origin: origin.clone(),
                }),
                Value::List(list) => {
                    let count = list.len();
                    let index = part.parse::<usize>().ok();
                    if index == Some(count) && rest.is_none() {
                        // Append.
                        list.push(value);
                        return Ok(());
                    }
                    match index.and_then(|index| list.get_mut(index)) {
                        Some(node) => node,
                        None => {
                            return Err(wrong(format!(
                                "an index below {count} instead of `{part}`"
                            )));
                        }
                    }
                }
                _ => return Err(wrong(format!("no key inside `{part}`, which is a single value"))),
            };
        }
        *place = value;
        Ok(())
    }

    /// A value that was not written in a file: TOML, or else a string.
    pub fn from_command_line(text: &str, origin: &Origin) -> Self {
        let document = format!("value = {text}");
        let parsed = DeTable::parse(&document).ok().and_then(|document| {
            let (_, value) = document.get_ref().iter().next()?;
            Some(tree(value, &|_| origin.clone()))
        });
        parsed
            .unwrap_or_else(|| Self { value: Value::Text(text.to_owned()), origin: origin.clone() })
    }

    /// A copy with `{}` replaced by `by` in every string. A string with `{}` may become a value of
    /// another type.
    pub fn substituted(&self, by: &str) -> Self {
        let value = match &self.value {
            Value::Text(text) if text.contains("{}") => {
                return Self::from_command_line(&text.replace("{}", by), &self.origin);
            }
            Value::List(list) => {
                Value::List(list.iter().map(|node| node.substituted(by)).collect())
            }
            Value::Table(table) => Value::Table(
                table.iter().map(|(name, node)| (name.clone(), node.substituted(by))).collect(),
            ),
            other => other.clone(),
        };
        Self { value, origin: self.origin.clone() }
    }
}

fn table(of: &DeTable<'_>, origin: &dyn Fn(usize) -> Origin, at: Origin) -> Node {
    let entries = of.iter().map(|(name, value)| {
        let mut node = tree(value, origin);
        // The origin of a key is where its name is written, not its value.
        node.origin = origin(name.span().start + 1);
        (name.get_ref().to_string(), node)
    });
    Node { value: Value::Table(entries.collect()), origin: at }
}

fn tree(of: &Spanned<DeValue<'_>>, origin: &dyn Fn(usize) -> Origin) -> Node {
    let at = origin(of.span().start + 1);
    let value = match of.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Boolean(flag) => Value::Plain(flag.to_string()),
        DeValue::Integer(number) => {
            Value::Plain(match u64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => number.to_string(),
                Err(_) => number.as_str().to_owned(),
            })
        }
        DeValue::Float(number) => Value::Plain(number.as_str().to_owned()),
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Array(list) => Value::List(list.iter().map(|item| tree(item, origin)).collect()),
        DeValue::Table(inner) => return table(inner, origin, at),
    };
    Node { value, origin: at }
}
