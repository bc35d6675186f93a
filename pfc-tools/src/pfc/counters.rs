//! Flow control counters of a NIC, by their driver-specific names (`ethtool -S`).

use std::collections::BTreeMap;
use std::io;

use feroce_engine::port::ethtool::Ethtool;

/// Direction of the counted frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

impl Direction {
    /// The direction as in drivers' names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }
}

/// The counted quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Frames.
    Frames,
    /// Pause time in microseconds.
    Micros,
    /// Transitions between paused and not paused.
    Transitions,
}

/// The meaning of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meaning {
    /// Direction of the frames.
    pub direction: Direction,
    /// Priority; `None` for PAUSE, or for a total over all priorities.
    pub priority: Option<u8>,
    /// The counted quantity.
    pub what: Quantity,
}

/// The meaning of a counter's name, if it counts flow control: mlx5 `rx_prio3_pause_duration`,
/// mlxsw `rx_pause_prio_3`, ixgbe `rx_pb_3_pxoff`, i40e and ice `port.rx_priority_3_xoff`, bnxt
/// `rx_pfc_ena_frames_pri3` and `pfc_pri3_rx_duration_us`.
pub fn parse_name(name: &str) -> Option<Meaning> {
    let has = |part: &str| name.contains(part);
    if !(has("pause") || has("pfc") || has("xoff") || has("xon")) {
        return None;
    }
    let direction = match (has("rx"), has("tx")) {
        (true, false) => Direction::Rx,
        (false, true) => Direction::Tx,
        _ => return None,
    };
    let what = match () {
        () if has("duration") => Quantity::Micros,
        () if has("transition") => Quantity::Transitions,
        // Errors, storm warnings and watermarks are not frames.
        () if has("err") || has("storm") || has("ctrl_phy") || has("watermark") => return None,
        () => Quantity::Frames,
    };
    Some(Meaning { direction, priority: priority(name), what })
}

fn priority(name: &str) -> Option<u8> {
    let rest = ["priority_", "prio_", "prio", "pri", "pb_"].iter().find_map(|word| {
        let at = name.find(word)? + word.len();
        let rest = &name[at..];
        rest.starts_with(|c: char| c.is_ascii_digit()).then_some(rest)
    })?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok().filter(|&priority| priority < 8)
}

/// The counters of an interface, and their values when it was opened.
#[derive(Debug)]
pub struct Counters {
    ethtool: Ethtool,
    start: BTreeMap<String, u64>,
}

impl Counters {
    /// Opens the counters of an interface and reads their values.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub fn open(interface: &str) -> io::Result<Self> {
        let ethtool = Ethtool::open(interface)?;
        let start = ethtool.statistics().unwrap_or_default();
        Ok(Self { ethtool, start })
    }

    /// Increases since the start, by name; unchanged counters are left out.
    pub fn increases(&self) -> BTreeMap<String, u64> {
        let now = self.ethtool.statistics().unwrap_or_default();
        let named = now.into_iter().filter(|(name, _)| parse_name(name).is_some());
        named
            .map(|(name, value)| {
                let before = self.start.get(&name).copied().unwrap_or(0);
                (name, value.saturating_sub(before))
            })
            .filter(|(_, increases)| *increases > 0)
            .collect()
    }
}

/// Frames and pause time of a priority in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counted {
    /// Frames for this priority.
    pub frames: u64,
    /// Pause time in microseconds, if the NIC counts it.
    pub micros: Option<u64>,
}

/// Frames and pause times by direction and priority (`None`: PAUSE, or a total over all
/// priorities), from the increases.
pub fn counted(increases: &BTreeMap<String, u64>) -> BTreeMap<(Direction, Option<u8>), Counted> {
    let mut rows = BTreeMap::<_, Counted>::new();
    for (name, increases) in increases {
        let Some(Meaning { direction, priority, what }) = parse_name(name) else { continue };
        let row = rows.entry((direction, priority)).or_default();
        match what {
            Quantity::Frames => row.frames += increases,
            Quantity::Micros => row.micros = Some(row.micros.unwrap_or(0) + increases),
            Quantity::Transitions => {}
        }
    }
    rows
}

/// Increases between two readings, each relative to the start.
pub fn difference(
    now: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let increases = now.iter().map(|(name, now)| {
        (name.clone(), now.saturating_sub(before.get(name).copied().unwrap_or(0)))
    });
    increases.filter(|(_, increases)| *increases > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_names_are_understood() {
        use Direction::{Rx, Tx};
        let rows = [
            ("rx_prio3_pause", Rx, Some(3), Quantity::Frames),
            ("rx_prio3_pause_duration", Rx, Some(3), Quantity::Micros),
            ("tx_prio0_pause_transition", Tx, Some(0), Quantity::Transitions),
            ("rx_pause_prio_7", Rx, Some(7), Quantity::Frames),
            ("tx_pause_duration_prio_2", Tx, Some(2), Quantity::Micros),
            ("rx_pb_3_pxoff", Rx, Some(3), Quantity::Frames),
            ("port.tx_priority_5_xon", Tx, Some(5), Quantity::Frames),
            ("rx_pfc_ena_frames_pri3", Rx, Some(3), Quantity::Frames),
            ("pfc_pri4_rx_duration_us", Rx, Some(4), Quantity::Micros),
            ("rx_global_pause", Rx, None, Quantity::Frames),
        ];
        for (name, direction, priority, what) in rows {
            assert_eq!(parse_name(name), Some(Meaning { direction, priority, what }), "{name}");
        }
        for name in [
            "rx_packets",
            "peer_ifindex",
            "tx_prio3_bytes",
            "rx_prio9_packets",
            "tx_pause_storm_error_events",
        ] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn increases_are_grouped_by_direction_and_priority() {
        let named = |rows: &[(&str, u64)]| -> BTreeMap<_, _> {
            rows.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
        };
        let before = named(&[("rx_prio3_pause", 3), ("tx_prio3_pause", 7)]);
        let now = named(&[
            ("rx_prio3_pause", 5),
            ("rx_prio3_pause_duration", 900),
            ("tx_prio3_pause", 7),
            ("port.rx_priority_4_xon", 1),
            ("port.rx_priority_4_xoff", 2),
        ]);
        let rows = counted(&difference(&now, &before));
        let due = [
            ((Direction::Rx, Some(3)), Counted { frames: 2, micros: Some(900) }),
            ((Direction::Rx, Some(4)), Counted { frames: 3, micros: None }),
        ];
        assert_eq!(rows, due.into());
    }
}
