//! Thresholds of a shared-buffer switch for PFC and ECN (Zhu et al., "Congestion Control for
//! Large-Scale RDMA Deployments", SIGCOMM 2015, section 4): marking must start before pausing,
//! from whichever ports the traffic arrives.

use feroce_congestion::fraction::Fraction;

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Switch {
    /// Shared buffer in bytes.
    pub buffer: u64,
    /// Number of ports.
    pub ports: u64,
    /// Number of lossless classes.
    pub classes: u64,
    /// Factor of the dynamic threshold.
    pub beta: f64,
}

/// The thresholds for a given headroom.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Thresholds {
    /// Headroom of all classes of all ports.
    pub headroom: u64,
    /// Rest of the buffer; negative if it does not suffice.
    pub shared: i64,
    /// Maximum number of lossless classes for which the buffer suffices, with one frame for each.
    pub classes_max: u64,
    /// Highest static XOFF threshold, the same for every class of every port.
    pub xoff_static: u64,
    /// Marking must start below this value with the static threshold.
    pub ecn_static: u64,
    /// Dynamic XOFF threshold of an empty switch, at most the rest of the buffer.
    pub xoff_dynamic: u64,
    /// Marking must start below this value with the dynamic threshold.
    pub ecn_dynamic: u64,
}

impl Switch {
    /// The thresholds for `headroom` bytes per class and port and frames of `mtu` bytes.
    // Bytes below 2^52.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    pub fn thresholds(&self, headroom: u64, mtu: u64) -> Thresholds {
        let queues = self.ports * self.classes;
        let total = queues * headroom;
        let shared = i64::try_from(self.buffer).unwrap_or(i64::MAX)
            - i64::try_from(total).unwrap_or(i64::MAX);
        let free = u64::try_from(shared).unwrap_or(0);
        // Dynamic threshold: xoff = beta (shared - used) / classes. If the packets of one egress
        // queue come evenly from all ports, each port holds an equal part of them; marking starts
        // first below this value.
        let (beta, classes, ports) = (self.beta, self.classes as f64, self.ports as f64);
        let dynamic = beta * free as f64 / classes;
        Thresholds {
            headroom: total,
            shared,
            classes_max: (self.buffer / (self.ports * (headroom + mtu))).min(8),
            xoff_static: free / queues,
            ecn_static: free / queues / self.ports,
            xoff_dynamic: (dynamic as u64).min(free),
            ecn_dynamic: (dynamic / (ports * (beta + 1.0))) as u64,
        }
    }
}

/// Parses a factor such as `8`, `1/8` or `0.125`.
pub fn beta(text: &str) -> Result<f64, String> {
    let whole = text.parse::<u32>().ok().map(f64::from);
    let part = || {
        let units = feroce_congestion::params::Kind::Fraction.parse(text)?;
        let units = u32::try_from(units).ok()?;
        Some(f64::from(Fraction::from_units(units).units()) / f64::from(1_u32 << 31))
    };
    let beta = whole.or_else(part).filter(|&beta| beta > 0.0 && beta <= 1024.0);
    beta.ok_or_else(|| "expected a factor such as 8 or 1/8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's example: Trident II, 12 MB, 32 ports, 8 classes, 22.4 KB of headroom.
    const TRIDENT_II: Switch = Switch { buffer: 12_000_000, ports: 32, classes: 8, beta: 8.0 };

    #[test]
    fn trident_ii_pauses_at_24_47_kb_and_marks_below_21_75_kb() {
        let thresholds = TRIDENT_II.thresholds(22_400, 1500);
        assert_eq!(thresholds.headroom, 256 * 22_400);
        assert_eq!(thresholds.xoff_static, 24_475);
        assert_eq!(thresholds.ecn_dynamic, 21_755);
        // Less than one frame: the paper's reason for dynamic thresholds.
        assert!(thresholds.ecn_static < 1500);
    }

    #[test]
    fn the_buffer_limits_the_number_of_classes() {
        let max = TRIDENT_II.thresholds(22_400, 1500).classes_max;
        assert_eq!(max, 8);
        let max = TRIDENT_II.thresholds(101_616, 4200).classes_max;
        assert_eq!(max, 3);
        for classes in 1..=8 {
            let switch = Switch { classes, ..TRIDENT_II };
            let thresholds = switch.thresholds(101_616, 4200);
            let room = thresholds.shared >= i64::try_from(4200 * 32 * classes).unwrap();
            assert_eq!(room, classes <= max, "{classes}");
        }
    }

    #[test]
    fn headroom_beyond_the_buffer_leaves_nothing() {
        let thresholds = TRIDENT_II.thresholds(101_616, 4200);
        assert!(thresholds.shared < 0);
        assert_eq!((thresholds.xoff_static, thresholds.ecn_dynamic), (0, 0));
    }

    #[test]
    fn beta_is_a_number_or_a_part() {
        assert_eq!((beta("8"), beta("1/8"), beta("0.5")), (Ok(8.0), Ok(0.125), Ok(0.5)));
        assert!(beta("0").is_err() && beta("x").is_err() && beta("9999").is_err());
    }
}
