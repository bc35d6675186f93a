//! Identifiers of the transport (QPN, key, P_Key, Q_Key, MSN, path MTU), each a type of its own.

use core::fmt;

const MASK_24: u32 = 0x00ff_ffff;

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// QP 1, the general services interface (communication management).
    pub const GSI: Self = Self(1);
    /// The destination of multicast packets.
    pub const MULTICAST: Self = Self(MASK_24);

    /// `None` if `value` needs more than 24 bits.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value <= MASK_24 { Some(Self(value)) } else { None }
    }

    /// The low 24 bits of `value`.
    #[must_use]
    pub const fn masked(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// R_Key or L_Key: a 24-bit index and, in the low 8 bits, a variant, so that a reused index gives a
/// new key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u32);

impl Key {
    /// The key of `index` (low 24 bits are used) and `variant`.
    #[must_use]
    pub const fn from_parts(index: u32, variant: u8) -> Self {
        Self((index << 8) | variant as u32)
    }

    /// The upper 24 bits: the index of the region.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The low 8 bits.
    #[must_use]
    pub const fn variant(self) -> u8 {
        self.0.to_be_bytes()[3]
    }

    /// The whole key.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Partition key: a 15-bit partition; the top bit means full membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pkey(pub u16);

impl Pkey {
    /// The default partition, full member: what RoCE endpoints use.
    pub const DEFAULT: Self = Self(0xffff);

    /// The partition without the membership bit.
    #[must_use]
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Returns true if the membership bit is set.
    #[must_use]
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Returns true if endpoints with these keys may communicate: same partition, not 0, and at
    /// least one full member.
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        self.partition() == other.partition()
            && self.partition() != 0
            && (self.is_full_member() || other.is_full_member())
    }
}

impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Queue key of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The well-known key of QP 1.
    pub const GSI: Self = Self(0x8001_0000);

    /// Returns true if only privileged users may send with this key (top bit).
    #[must_use]
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// Message sequence number: messages completed by the responder, modulo 2^24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// The low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The next message sequence number.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Messages from `self` up to `later`, modulo 2^24.
    #[must_use]
    pub const fn distance_to(self, later: Self) -> u32 {
        later.0.wrapping_sub(self.0) & MASK_24
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Largest payload of a packet on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl PathMtu {
    /// All of them, ascending; the code of an entry is its index + 1.
    pub const ALL: [Self; 5] =
        [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Maximum overhead of a packet in addition to its payload, from the IP header on: IPv6 40, UDP
    /// 8, BTH 12, the largest extended headers before a payload (XRCETH 4, RETH 16, ImmDt 4), ICRC
    /// 4.
    pub const OVERHEAD: u32 = 40 + 8 + 12 + 24 + 4;

    /// Payload bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        256 << (self as u32)
    }

    /// The MTU of exactly `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The code that verbs and communication management use: 1 for 256 to 5 for 4096.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The MTU of a code 1 to 5.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The largest path MTU whose packets fit an interface MTU of `netdev_mtu` bytes (the IP
    /// packet, without Ethernet). `None` if not even 256 does.
    #[must_use]
    pub fn largest_for(netdev_mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + Self::OVERHEAD <= netdev_mtu)
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn qpns_have_24_bits() {
        assert_eq!(Qpn::new(0xff_ffff), Some(Qpn::MULTICAST));
        assert_eq!(Qpn::new(0x100_0000), None);
        assert_eq!(Qpn::masked(0x1200_0001), Qpn::GSI);
        assert_eq!(Qpn::masked(0x11).to_string(), "0x000011");
    }

    #[test]
    fn keys_have_two_parts() {
        let key = Key::from_parts(0x12_3456, 0x78);
        assert_eq!(key, Key(0x1234_5678));
        assert_eq!(key.value(), 0x1234_5678);
        assert_eq!((key.index(), key.variant()), (0x12_3456, 0x78));
        assert_eq!(Key::from_parts(0xff00_0001, 2), Key(0x0000_0102));
    }

    #[test]
    fn partitions_match_with_a_full_member() {
        let (full, limited) = (Pkey(0x8012), Pkey(0x0012));
        assert!(full.matches(limited) && limited.matches(full) && full.matches(full));
        assert!(!limited.matches(limited), "two limited members");
        assert!(!full.matches(Pkey::DEFAULT), "another partition");
        assert!(!Pkey(0x8000).matches(Pkey(0x8000)), "no partition");
    }

    #[test]
    fn msn_wraps() {
        assert_eq!(Msn::new(0xff_ffff).next(), Msn::new(0));
        assert_eq!(Msn::new(0xff_ffff).distance_to(Msn::new(2)), 3);
    }

    #[test]
    fn path_mtus_convert_to_bytes_and_codes() {
        for (mtu, bytes, code) in [
            (PathMtu::Mtu256, 256, 1),
            (PathMtu::Mtu512, 512, 2),
            (PathMtu::Mtu1024, 1024, 3),
            (PathMtu::Mtu2048, 2048, 4),
            (PathMtu::Mtu4096, 4096, 5),
        ] {
            assert_eq!((mtu.bytes(), mtu.code()), (bytes, code));
            assert_eq!(PathMtu::from_bytes(bytes), Some(mtu));
            assert_eq!(PathMtu::from_code(code), Some(mtu));
        }
        assert_eq!(PathMtu::from_bytes(1500), None);
        assert_eq!(PathMtu::from_code(0), None);
        assert_eq!(PathMtu::from_code(6), None);
    }

    /// The choices of rdma_rxe and RNICs for common interface MTUs.
    #[test]
    fn the_path_mtu_follows_from_the_interface() {
        for (netdev, bytes) in [
            (576, Some(256)),
            (1280, Some(1024)),
            (1500, Some(1024)),
            (2200, Some(2048)),
            (4200, Some(4096)),
            (9000, Some(4096)),
            (343, None),
        ] {
            assert_eq!(PathMtu::largest_for(netdev).map(PathMtu::bytes), bytes, "{netdev}");
        }
    }
}
