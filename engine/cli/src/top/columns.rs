//! The columns of `feroce top`, one table: title, cell and order.

use std::cmp::Ordering;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::model::{Kind, Rates, Row};

/// A column.
#[derive(Debug)]
pub struct Column {
    /// Value of `--sort`.
    pub name: &'static str,
    pub title: &'static str,
    pub width: u16,
    pub is_text: bool,
    cell: fn(&Row) -> String,
    /// The order of the rows: largest figure, or first name, at the top.
    compare: fn(&Row, &Row) -> Ordering,
}

impl Column {
    /// The text of a row in this column.
    pub fn cell(&self, row: &Row) -> String {
        (self.cell)(row)
    }
}

/// A column of a rate.
macro_rules! rate {
    ($name:literal, $title:literal, $width:literal, $kind:ident) => {
        Column {
            name: $name,
            title: $title,
            width: $width,
            is_text: false,
            cell: |row| rate(row, |rates| rates.of(Kind::$kind)),
            compare: |a, b| by_rate(a, b, |rates| rates.of(Kind::$kind)),
        }
    };
}

/// The table. The program is last, because names have any length.
pub const COLUMNS: &[Column] = &[
    Column {
        name: "pid",
        title: "PID",
        width: 8,
        is_text: false,
        cell: |row| row.pid.to_string(),
        compare: |a, b| a.pid.cmp(&b.pid),
    },
    Column {
        name: "user",
        title: "USER",
        width: 10,
        is_text: true,
        cell: |row| row.user_name.clone(),
        compare: |a, b| a.user_name.cmp(&b.user_name),
    },
    Column {
        name: "interface",
        title: "IFACE",
        width: 10,
        is_text: true,
        cell: |row| row.interface.clone(),
        compare: |a, b| a.interface.cmp(&b.interface),
    },
    Column {
        name: "qps",
        title: "QPS",
        width: 5,
        is_text: false,
        cell: |row| row.qps.map_or_else(unknown, |qps| qps.to_string()),
        compare: |a, b| b.qps.cmp(&a.qps),
    },
    rate!("rx", "RX b/s", 7, RxBits),
    rate!("tx", "TX b/s", 7, TxBits),
    Column {
        name: "traffic",
        title: "RX+TX",
        width: 7,
        is_text: false,
        cell: |row| rate(row, Rates::traffic),
        compare: |a, b| by_rate(a, b, Rates::traffic),
    },
    rate!("rx-frames", "RX f/s", 7, RxFrames),
    rate!("tx-frames", "TX f/s", 7, TxFrames),
    rate!("retransmissions", "RETX/s", 6, Retransmissions),
    rate!("cnps", "CNP/s", 6, Cnps),
    rate!("pauses", "PAUSE/s", 7, Pauses),
    rate!("drops", "DROP/s", 6, Drops),
    Column {
        name: "quota",
        title: "QUOTA",
        width: 14,
        is_text: true,
        cell: |row| match row.quota {
            Some(quota) => format!("{:.0}% {}", quota.share * 100.0, quota.of),
            None => unknown(),
        },
        compare: |a, b| {
            let share = |row: &Row| row.quota.map_or(-1.0, |quota| quota.share);
            share(b).total_cmp(&share(a))
        },
    },
    Column {
        name: "program",
        title: "PROGRAM",
        width: 15,
        is_text: true,
        cell: |row| row.program.clone(),
        compare: |a, b| a.program.cmp(&b.program),
    },
];

fn unknown() -> String {
    "-".to_owned()
}

fn rate(row: &Row, of: impl Fn(&Rates) -> f64) -> String {
    row.rates.as_ref().map_or_else(unknown, |rates| short(of(rates)))
}

fn by_rate(a: &Row, b: &Row, of: impl Fn(&Rates) -> f64) -> Ordering {
    let of = |row: &Row| row.rates.as_ref().map_or(-1.0, &of);
    of(b).total_cmp(&of(a))
}

/// A number in at most 6 characters.
pub fn short(number: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut scaled, mut unit) = (number, 0);
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        (scaled, unit) = (scaled / 1000.0, unit + 1);
    }
    let digits = match scaled {
        _ if unit == 0 && scaled.fract() == 0.0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{}", UNITS[unit])
}

/// The column by which rows are sorted: an index of [`COLUMNS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort(usize);

impl Sort {
    /// The column.
    pub fn column(self) -> &'static Column {
        &COLUMNS[self.0]
    }

    /// The column `steps` to the right, or to the left.
    pub fn moved(self, steps: isize) -> Self {
        Self(self.0.saturating_add_signed(steps).min(COLUMNS.len() - 1))
    }

    /// Sorts rows; equal ones by process and interface.
    pub fn sort(self, rows: &mut [Row], reversed: bool) {
        rows.sort_by(|a, b| {
            let order = (self.column().compare)(a, b);
            let order = if reversed { order.reverse() } else { order };
            order.then_with(|| (a.pid, &a.interface).cmp(&(b.pid, &b.interface)))
        });
    }
}

/// The values of `--sort`.
const SORTS: [Sort; COLUMNS.len()] = {
    let mut sorts = [Sort(0); COLUMNS.len()];
    let mut index = 0;
    while index < sorts.len() {
        sorts[index] = Sort(index);
        index += 1;
    }
    sorts
};

impl ValueEnum for Sort {
    fn value_variants<'a>() -> &'a [Self] {
        &SORTS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.column().name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.25, 7.0, 12.34, 999.4, 999.6, 1234.0, 99_960.0, 9.9996e9, 1e18];
        let texts = ["0", "0.25", "7", "12.3", "999", "1.00k", "1.23k", "100k", "10.0G", "1000P"];
        assert_eq!(shown.map(short), texts);
    }

    #[test]
    fn the_column_stays_in_the_table() {
        let first = Sort(0);
        assert_eq!(first.moved(-1), first);
        assert_eq!(first.moved(1).column().name, COLUMNS[1].name);
        assert_eq!(first.moved(1000).column().name, "program");
    }
}
