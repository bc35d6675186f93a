//! Parsers of option values: rates such as `100G`, lengths such as `100m`, and the values of
//! [`Kind`].

use feroce_congestion::params::Kind;

use crate::fabric::time::{LinkRate, Time};

/// Lowest rate accepted, in bits per second.
const RATE_MIN: u64 = 1_000_000;

/// Parses a rate: `100G`, `2.5G`, `40Gb/s`, `100Gbps`.
pub fn rate(text: &str) -> Result<LinkRate, String> {
    let unit = if text.ends_with(['G', 'M', 'k']) { "b/s" } else { "" };
    let bits = Kind::Rate.parse(&format!("{text}{unit}")).filter(|&bits| bits >= RATE_MIN);
    bits.map(LinkRate::new).ok_or_else(|| "expected a rate of at least 1M, such as 100G".to_owned())
}

/// Parses metres: `100` or `100m`.
pub fn metres(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('m').unwrap_or(text).trim();
    let metres = number.parse().ok().filter(|&metres| metres <= 100_000);
    metres.ok_or_else(|| "expected metres up to 100000, such as 100".to_owned())
}

/// Parses bytes: `12MB` (of 1000 * 1000 bytes) or `16MiB`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let bytes = Kind::Bytes.parse(text).filter(|&bytes| bytes <= 1 << 40);
    bytes.ok_or_else(|| "expected bytes, such as 512KB".to_owned())
}

/// Parses the length of a frame: `4200`.
pub fn frame(text: &str) -> Result<u64, String> {
    let bytes = Kind::Bytes.parse(text).filter(|bytes| (64..=16_384).contains(bytes));
    bytes.ok_or_else(|| "expected 64 to 16384 bytes, such as 4200".to_owned())
}

/// Parses a time other than 0: `100ms`.
pub fn time(text: &str) -> Result<Time, String> {
    let nanos = Kind::Time.parse(text).filter(|&nanos| nanos > 0);
    nanos.map(Time::from_nanos).ok_or_else(|| "expected a time, such as 100ms".to_owned())
}

/// Parses a priority.
pub fn priority(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|&p| p < 8).ok_or_else(|| "expected a priority, 0 to 7".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_and_without_their_unit() {
        for text in ["100G", "100Gb/s", "100Gbps", "100000M"] {
            assert_eq!(rate(text), Ok(LinkRate::new(100_000_000_000)), "{text}");
        }
        assert_eq!(rate("2.5G"), Ok(LinkRate::new(2_500_000_000)));
        for text in ["", "G", "0", "0G", "1", "999k", "fast", "-1G", "1T"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn metres_and_priorities_have_bounds() {
        assert_eq!((metres("100"), metres("40m")), (Ok(100), Ok(40)));
        assert!(metres("-1").is_err() && metres("100km").is_err() && metres("200000").is_err());
        assert_eq!(priority("7"), Ok(7));
        assert!(priority("8").is_err() && priority("x").is_err());
    }
}
