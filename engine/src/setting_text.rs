//! Text forms of setting values that more than one table of settings uses.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Reads a decimal number or, after `0x`, a hexadecimal one. Returns `None` for a number outside
/// `range` and for any other text.
pub(crate) fn number<T: TryFrom<u64>>(text: &str, range: RangeInclusive<u64>) -> Option<T> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().filter(|number| range.contains(number))?;
    T::try_from(number).ok()
}

/// Reads a list whose items are separated by commas. Empty text is an empty list.
pub(crate) fn list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|item| item.trim().parse().ok()).collect()
}

/// Writes a list as [`list`] reads it.
pub(crate) fn show_list(items: &[impl Display]) -> String {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}
