//! Values of parameters as text: `55us`, `40Mb/s`, `10MB`, `1/256`.

use core::fmt;

use crate::fraction::Fraction;
use crate::rate::Rate;
use crate::time::Duration;

/// The kind of a parameter. Its value is stored as a number: nanoseconds, bits per second, bytes,
/// units of 2^-31, a count, or the index of a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nanoseconds: `55us`.
    Time,
    /// Bits per second: `40Mb/s` or `40Mbps`.
    Rate,
    /// Bytes: `200KB`; 1 KB is 1000 bytes.
    Bytes,
    /// [`Fraction`]: `1/256`, `0.01` or `1%`.
    Fraction,
    /// A whole number.
    Count,
    /// One of these names.
    Choice(&'static [&'static str]),
}

const TIMES: &[(&str, u64)] = &[("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
const RATES: &[(&str, u64)] = &[
    ("Gb/s", 1_000_000_000),
    ("Gbps", 1_000_000_000),
    ("Mb/s", 1_000_000),
    ("Mbps", 1_000_000),
    ("kb/s", 1000),
    ("kbps", 1000),
    ("b/s", 1),
    ("bps", 1),
];
const BYTES: &[(&str, u64)] = &[
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("kB", 1000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("B", 1),
    ("", 1),
];

impl Kind {
    /// Parses `text`; `None` if it is not a value of this kind.
    pub fn parse(self, text: &str) -> Option<u64> {
        let text = text.trim();
        match self {
            Self::Time => zero(text).or_else(|| with_unit(text, TIMES)),
            Self::Rate => zero(text).or_else(|| with_unit(text, RATES)),
            Self::Bytes => with_unit(text, BYTES),
            Self::Fraction => fraction(text).map(|fraction| u64::from(fraction.units())),
            Self::Count => text.parse().ok(),
            Self::Choice(names) => {
                let index = names.iter().position(|name| *name == text)?;
                u64::try_from(index).ok()
            }
        }
    }

    /// `value` as text that [`parse`](Self::parse) accepts.
    pub const fn show(self, value: u64) -> Shown {
        Shown { kind: self, value }
    }
}

fn zero(text: &str) -> Option<u64> {
    (text == "0").then_some(0)
}

/// Parses a decimal number with a unit. The result is in the smallest unit and must be whole.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (text.get(..digits)?, text.get(digits..)?.trim_start());
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    let (numerator, denominator) = decimal(number)?;
    let scaled = numerator.checked_mul(u128::from(scale))?;
    (scaled % denominator == 0).then(|| u64::try_from(scaled / denominator).ok())?
}

/// Parses a decimal number. Returns numerator and denominator, a power of ten.
fn decimal(number: &str) -> Option<(u128, u128)> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() + part.len() > 20 || !is_digits(whole) || !is_digits(part) {
        return None;
    }
    let denominator = 10u128.pow(u32::try_from(part.len()).ok()?);
    let part = if part.is_empty() { 0 } else { part.parse().ok()? };
    Some((whole.parse::<u128>().ok()? * denominator + part, denominator))
}

fn fraction(text: &str) -> Option<Fraction> {
    let (numerator, denominator) = if let Some((above, below)) = text.split_once('/') {
        (above.trim().parse::<u32>().ok()?.into(), below.trim().parse::<u32>().ok()?.into())
    } else if let Some(percent) = text.strip_suffix('%') {
        let (numerator, denominator) = decimal(percent.trim_end())?;
        (numerator, denominator * 100)
    } else {
        decimal(text)?
    };
    if denominator == 0 || numerator > denominator {
        return None;
    }
    let units = (numerator << 31) / denominator;
    u32::try_from(units).ok().map(Fraction::from_units)
}

/// A value as text.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    kind: Kind,
    value: u64,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.kind {
            Kind::Time => {
                let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];
                in_unit(f, value, &units)
            }
            Kind::Rate if value == 0 => f.write_str("0"),
            Kind::Rate => fmt::Display::fmt(&Rate::from_bps(value), f),
            Kind::Bytes => in_unit(f, value, &[("MB", 1_000_000), ("KB", 1000), ("B", 1)]),
            Kind::Fraction => {
                let units = u32::try_from(value).unwrap_or(u32::MAX);
                show_fraction(f, Fraction::from_units(units))
            }
            Kind::Count => write!(f, "{value}"),
            Kind::Choice(names) => {
                let name = usize::try_from(value).ok().and_then(|index| names.get(index));
                f.write_str(name.unwrap_or(&"?"))
            }
        }
    }
}

fn in_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |scale: u64| value != 0 && value.is_multiple_of(scale);
    match units.iter().find(|(_, scale)| fits(*scale)) {
        Some((name, scale)) => write!(f, "{}{name}", value / scale),
        None => write!(f, "{value}"),
    }
}

/// Writes the shortest decimal number; or a quotient, if the denominator is a power of two up to
/// 65536 and the decimal number needs more than four digits.
fn show_fraction(f: &mut fmt::Formatter<'_>, fraction: Fraction) -> fmt::Result {
    let units = fraction.units();
    let twos = units.trailing_zeros().min(31);
    if fraction == Fraction::ZERO || fraction == Fraction::ONE {
        return write!(f, "{}", units >> 31);
    }
    let quotient = (twos >= 31 - 16).then(|| (units >> twos, 1u32 << (31 - twos)));
    let shortest = (1..=4u32).find_map(|digits| decimals(fraction, digits));
    match (quotient, shortest) {
        (Some((above, below)), None) => write!(f, "{above}/{below}"),
        _ => {
            // Ten digits distinguish all fractions.
            let (digits, decimals) = (1..=10)
                .find_map(|digits| decimals(fraction, digits))
                .unwrap_or((10, u64::from(units)));
            write!(f, "0.{decimals:0width$}", width = usize::try_from(digits).unwrap_or(10))
        }
    }
}

/// The decimal number with `digits` digits that parses as `fraction`, if there is one: `digits`,
/// and the digits after the point as an integer.
fn decimals(fraction: Fraction, digits: u32) -> Option<(u32, u64)> {
    let scale = 10u64.pow(digits);
    let units = u128::from(fraction.units());
    let decimals = u64::try_from((units * u128::from(scale)).div_ceil(1 << 31)).ok()?;
    let parsed = (u128::from(decimals) << 31) / u128::from(scale);
    (parsed == units).then_some((digits, decimals))
}

/// Conversion of a field to and from the number of [`Kind`].
pub(super) trait Raw: Copy {
    fn to_raw(self) -> u64;
    fn from_raw(raw: u64) -> Self;
}

impl Raw for u64 {
    fn to_raw(self) -> u64 {
        self
    }
    fn from_raw(raw: u64) -> Self {
        raw
    }
}

macro_rules! raw_number {
    ($($number:ty),+) => {
        $(impl Raw for $number {
            fn to_raw(self) -> u64 {
                u64::from(self)
            }
            fn from_raw(raw: u64) -> Self {
                Self::try_from(raw).unwrap_or(Self::MAX)
            }
        })+
    };
}

raw_number!(u8, u32);

impl Raw for Duration {
    fn to_raw(self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }
    fn from_raw(raw: u64) -> Self {
        Self::from_nanos(raw)
    }
}

impl Raw for Rate {
    fn to_raw(self) -> u64 {
        self.as_bps()
    }
    fn from_raw(raw: u64) -> Self {
        Self::from_bps(raw)
    }
}

impl Raw for Fraction {
    fn to_raw(self) -> u64 {
        u64::from(self.units())
    }
    fn from_raw(raw: u64) -> Self {
        Self::from_units(u32::try_from(raw).unwrap_or(u32::MAX))
    }
}
