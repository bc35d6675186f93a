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
pub enum What {
    /// Frames.
    Frames,
    /// Pause time in microseconds.
    Micros,
    /// Transitions between paused and not paused.
    Transitions,
}

/// The meaning of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct About {
    /// Direction of the frames.
    pub direction: Direction,
    /// Priority; `None` for PAUSE, or for a total over all priorities.
    pub priority: Option<u8>,
    /// The counted quantity.
    pub what: What,
}

/// The meaning of a counter's name, if it counts flow control: mlx5 `rx_prio3_pause_duration`,
/// mlxsw `rx_pause_prio_3`, ixgbe `rx_pb_3_pxoff`, i40e and ice `port.rx_priority_3_xoff`, bnxt
/// `rx_pfc_ena_frames_pri3` and `pfc_pri3_rx_duration_us`.
pub fn about(name: &str) -> Option<About> {
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
        () if has("duration") => What::Micros,
        () if has("transition") => What::Transitions,
        // Errors, storm warnings and watermarks are not frames.
        () if has("err") || has("storm") || has("ctrl_phy") || has("watermark") => return None,
        () => What::Frames,
    };
    Some(About { direction, priority: priority(name), what })
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
    pub fn moved(&self) -> BTreeMap<String, u64> {
        let now = self.ethtool.statistics().unwrap_or_default();
        let named = now.into_iter().filter(|(name, _)| about(name).is_some());
        named
            .map(|(name, value)| {
                let before = self.start.get(&name).copied().unwrap_or(0);
                (name, value.saturating_sub(before))
            })
            .filter(|(_, moved)| *moved > 0)
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
pub fn counted(moved: &BTreeMap<String, u64>) -> BTreeMap<(Direction, Option<u8>), Counted> {
    let mut rows = BTreeMap::<_, Counted>::new();
    for (name, moved) in moved {
        let Some(About { direction, priority, what }) = about(name) else { continue };
        let row = rows.entry((direction, priority)).or_default();
        match what {
            What::Frames => row.frames += moved,
            What::Micros => row.micros = Some(row.micros.unwrap_or(0) + moved),
            What::Transitions => {}
        }
    }
    rows
}

/// Increases between two readings, each relative to the start.
pub fn difference(
    now: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let moved = now.iter().map(|(name, now)| {
        (name.clone(), now.saturating_sub(before.get(name).copied().unwrap_or(0)))
    });
    moved.filter(|(_, moved)| *moved > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_names_are_understood() {
        use Direction::{Rx, Tx};
        let rows = [
            ("rx_prio3_pause", Rx, Some(3), What::Frames),
            ("rx_prio3_pause_duration", Rx, Some(3), What::Micros),
            ("tx_prio0_pause_transition", Tx, Some(0), What::Transitions),
            ("rx_pause_prio_7", Rx, Some(7), What::Frames),
            ("tx_pause_duration_prio_2", Tx, Some(2), What::Micros),
            ("rx_pb_3_pxoff", Rx, Some(3), What::Frames),
            ("port.tx_priority_5_xon", Tx, Some(5), What::Frames),
            ("rx_pfc_ena_frames_pri3", Rx, Some(3), What::Frames),
            ("pfc_pri4_rx_duration_us", Rx, Some(4), What::Micros),
            ("rx_global_pause", Rx, None, What::Frames),
        ];
        for (name, direction, priority, what) in rows {
            assert_eq!(about(name), Some(About { direction, priority, what }), "{name}");
        }
        for name in [
            "rx_packets",
            "peer_ifindex",
            "tx_prio3_bytes",
            "rx_prio9_packets",
            "tx_pause_storm_error_events",
        ] {
            assert_eq!(about(name), None, "{name}");
        }
    }

    #[test]
    fn what_has_moved_is_told_by_direction_and_priority() {
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
