//! What a NIC counts of flow control, by the names that drivers give (`ethtool -S`).

use std::collections::BTreeMap;
use std::io;

use feroce_engine::port::ethtool::Ethtool;

/// Whose frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Frames.
    Frames,
    /// Microseconds of pause.
    Micros,
    /// Changes between paused and not.
    Transitions,
}

/// What a counter is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct About {
    /// Whose frames.
    pub direction: Direction,
    /// `None` of PAUSE, or of all together.
    pub priority: Option<u8>,
    /// What is counted.
    pub what: What,
}

/// What a name says, if it is about flow control: mlx5 `rx_prio3_pause_duration`, mlxsw `rx_pause_prio_3`, ixgbe `rx_pb_3_pxoff`, i40e and ice
/// `port.rx_priority_3_xoff`, bnxt `rx_pfc_ena_frames_pri3` and `pfc_pri3_rx_duration_us`.
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
        // Errors, warnings of storms, watermarks: no frames.
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

/// The counters of an interface, and what they were when it was opened.
#[derive(Debug)]
pub struct Counters {
    ethtool: Ethtool,
    start: BTreeMap<String, u64>,
}

impl Counters {
    /// Looks at the counters of an interface.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub fn open(interface: &str) -> io::Result<Self> {
        let ethtool = Ethtool::open(interface)?;
        let start = ethtool.statistics().unwrap_or_default();
        Ok(Self { ethtool, start })
    }

    /// Whether the driver counts flow control at all.
    pub fn is_empty(&self) -> bool {
        self.start.keys().all(|name| about(name).is_none())
    }

    /// What has been counted since the beginning, by name; what has not moved is left out.
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

/// Frames received, of what has moved.
pub fn received(moved: &BTreeMap<String, u64>) -> u64 {
    let rx = moved.iter().filter(|(name, _)| {
        about(name).is_some_and(|a| a.direction == Direction::Rx && a.what == What::Frames)
    });
    rx.map(|(_, moved)| moved).sum()
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
    fn frames_of_all_priorities_are_added_up() {
        let moved = [
            ("rx_prio3_pause", 5),
            ("rx_prio4_pause", 2),
            ("rx_prio3_pause_duration", 900),
            ("tx_prio3_pause", 7),
        ];
        let moved = moved.map(|(name, value)| (name.to_owned(), value)).into();
        assert_eq!(received(&moved), 7);
    }
}
