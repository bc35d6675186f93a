//! Input files of other simulators: topologies and flows of HPCC's ns-3, connection matrices of
//! htsim, and flows as CSV.

pub mod flows;
pub mod hpcc;

use super::time::Time;

/// An error in a file: file and line, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct FormatError {
    /// File and line.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

/// A flow of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFlow {
    /// Number of the sending host in the file.
    pub from: u32,
    /// Number of the receiving host in the file.
    pub to: u32,
    /// Priority, if the file has one.
    pub priority: Option<u8>,
    /// Bytes to send.
    pub bytes: u64,
    /// Start.
    pub start: Time,
    /// Line of the flow, counted from 1.
    pub line: usize,
}

/// The words of a text with their lines, one after the other.
struct Words<'a> {
    file: &'a str,
    words: Vec<(usize, &'a str)>,
    next: usize,
}

impl<'a> Words<'a> {
    fn new(file: &'a str, text: &'a str) -> Self {
        let lines = (1..).zip(text.lines());
        let words =
            lines.flat_map(|(line, text)| text.split_whitespace().map(move |word| (line, word)));
        Self { file, words: words.collect(), next: 0 }
    }

    /// Line of the next word, or of the last one at the end.
    fn line(&self) -> usize {
        self.words.get(self.next).or(self.words.last()).map_or(1, |word| word.0)
    }

    fn error(&self, line: usize, message: String) -> FormatError {
        FormatError { place: format!("{}:{line}", self.file), message }
    }

    /// Reads the next word, of which `what` is the name.
    fn word<T>(
        &mut self,
        what: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, FormatError> {
        let line = self.line();
        let Some((_, word)) = self.words.get(self.next) else {
            return Err(self.error(line, format!("ends before {what}, expected {expected}")));
        };
        self.next += 1;
        parse(word)
            .ok_or_else(|| self.error(line, format!("{what} is `{word}`, expected {expected}")))
    }

    fn number(&mut self, what: &str) -> Result<u32, FormatError> {
        self.word(what, "an integer", |text| text.parse().ok())
    }
}

/// Parses a decimal number of `unit` picoseconds: exact up to a picosecond without an exponent.
fn decimal_time(text: &str, unit: u64) -> Option<Time> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if is_plain && !whole.is_empty() && part.len() <= 12 {
        let scale = 10_u64.pow(u32::try_from(part.len()).ok()?);
        let part: u64 = if part.is_empty() { 0 } else { part.parse().ok()? };
        let below = u128::from(part) * u128::from(unit) / u128::from(scale);
        let whole: u128 = whole.parse::<u64>().ok()?.into();
        return u64::try_from(whole * u128::from(unit) + below).ok().map(Time);
    }
    let number: f64 = text.parse().ok()?;
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (0.0..1e6).contains(&number).then(|| Time((number * unit as f64).round() as u64))
}

/// Picoseconds of a second.
const SECOND: u64 = 1_000_000_000_000;

/// A time as decimal seconds.
fn seconds(time: Time) -> String {
    let text = format!("{}.{:012}", time.0 / SECOND, time.0 % SECOND);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Reads a file.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &std::path::Path) -> Result<String, FormatError> {
    std::fs::read_to_string(path).map_err(|error| FormatError {
        place: path.display().to_string(),
        message: format!("cannot be read: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        for (text, due) in [
            ("2", 2 * SECOND),
            ("2.000001234", 2 * SECOND + 1_234_000),
            ("0.000000000001", 1),
            ("1e-6", 1_000_000),
        ] {
            assert_eq!(decimal_time(text, SECOND), Some(Time(due)), "{text}");
        }
        for text in ["", "-1", "x", "1.2.3", "nan", "1e9"] {
            assert_eq!(decimal_time(text, SECOND), None, "{text}");
        }
        assert_eq!(seconds(Time(2 * SECOND + 1_234_000)), "2.000001234");
        assert_eq!((seconds(Time(0)), seconds(Time(10 * SECOND))), ("0".into(), "10".into()));
    }
}
