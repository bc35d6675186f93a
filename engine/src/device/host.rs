//! Identity of the host: two ends on the same host may use mechanisms that work only within it.

use std::fmt;
use std::num::NonZeroU64;

/// The kernel's identity of this boot of this host: a random UUID.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Identity of a running host. Two hosts have equal identities with probability 2^-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostId(pub NonZeroU64);

impl HostId {
    /// Returns this host's identity; `None` if the kernel does not provide one.
    pub fn read() -> Option<Self> {
        Self::from_boot_id(&std::fs::read_to_string(BOOT_ID).ok()?)
    }

    fn from_boot_id(text: &str) -> Option<Self> {
        let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
        let id = u128::from_str_radix(&digits, 16).ok()?;
        let half = |id: u128| u64::try_from(id & u128::from(u64::MAX)).expect("64 bits");
        NonZeroU64::new(half(id) ^ half(id >> 64)).map(Self)
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_stable_and_differs_between_hosts() {
        let id = HostId::read();
        assert!(id.is_some());
        assert_eq!(id, HostId::read());
        let other = HostId::from_boot_id("00000000-0000-0001-0000-000000000002\n").unwrap();
        assert_eq!(other.to_string(), "0000000000000003");
        assert_ne!(id, Some(other));
        for bad in ["", "x", "00000000-0000-0000-0000-000000000000"] {
            assert_eq!(HostId::from_boot_id(bad), None);
        }
    }
}
