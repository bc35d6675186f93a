//! Recovers the IPv4 identification and the DF flag of a packet from its ICRC.
//!
//! A UDP socket shows the payload of a packet, its addresses, TOS and TTL. It shows neither the
//! identification nor the flags of IPv4, which the ICRC covers. A CRC is linear: the difference
//! between the received ICRC and the one computed for identification 0 with DF depends only on the
//! bits that differ and on their distance from the end of the packet. Divided by the power of x for
//! this distance, it is the difference of bytes 4 to 7 of the IPv4 header.
//!
//! ```text
//!  IPv4 byte    4   5            6                    7
//!              identification   flags, offset (high)  offset (low)
//!                               0, DF, 0, 00000       00000000
//! ```
//!
//! A packet that was damaged elsewhere passes if its difference has the form of an identification
//! and DF: with probability 2^17 / 2^32 = 2^-15 for a random difference. The checks of Ethernet
//! (FCS), IP (header checksum) and, if the sender writes one, UDP (checksum) come before.

/// The polynomial of CRC-32 without its highest power, least significant bit first: bit 31 is x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;
/// Number of powers that lengths up to 65535 bytes need.
const POWERS: usize = 16;
/// Element k is x^(-8 * 2^k): divides by the shift of 2^k bytes.
const INVERSES: [u32; POWERS] = inverses();
const DF: u8 = 0x40;

/// Fields of an IPv4 header that the ICRC covers and a UDP socket does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The identification.
    pub identification: u16,
    /// The DF flag.
    pub dont_fragment: bool,
}

/// Recovers [`Recovered`]. Keeps the divisor of the last length, since packets of one length often
/// follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    distance: usize,
    divisor: u32,
}

impl Recovery {
    /// A recovery for packets of any length.
    #[must_use]
    pub const fn new() -> Self {
        Self { distance: 0, divisor: ONE }
    }

    /// Returns the fields of a packet whose ICRC is `found`. `computed`: the ICRC for
    /// identification 0 with DF. `covered`: bytes that the ICRC covers, from the IP header to the
    /// last pad byte. `None` if no identification and DF explain the difference: the packet is
    /// damaged.
    ///
    /// # Panics
    /// If `covered` is less than 4 or more than 65539.
    pub fn recover(&mut self, computed: u32, found: u32, covered: usize) -> Option<Recovered> {
        // Bytes from the start of the four bytes to the end.
        let distance = covered - 4;
        if self.distance != distance {
            *self = Self { distance, divisor: divisor(distance) };
        }
        match multiply(computed ^ found, self.divisor).to_le_bytes() {
            [high, low, flags, 0] if flags & !DF == 0 => Some(Recovered {
                identification: u16::from_be_bytes([high, low]),
                dont_fragment: flags == 0,
            }),
            _ => None,
        }
    }
}

impl Default for Recovery {
    fn default() -> Self {
        Self::new()
    }
}

/// x to the power of -8 * `bytes`.
fn divisor(bytes: usize) -> u32 {
    assert!(bytes < 1 << POWERS, "an IP packet has at most 65535 bytes");
    let set = |(power, _): &(usize, &u32)| bytes >> power & 1 == 1;
    INVERSES
        .iter()
        .enumerate()
        .filter(set)
        .fold(ONE, |product, (_, inverse)| multiply(product, *inverse))
}

/// The product of two polynomials modulo the polynomial of the CRC.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut shifted, mut bit) = (0, b, 32);
    while bit > 0 {
        bit -= 1;
        // A mask in place of a branch: the bits are random.
        product ^= shifted & 0_u32.wrapping_sub(a >> bit & 1);
        shifted = (shifted >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(shifted & 1));
    }
    product
}

const fn inverses() -> [u32; POWERS] {
    // x^-8: eight divisions of 1 by x. The highest bit tells whether a multiplication by x would
    // have added the polynomial.
    let (mut inverse, mut bit) = (ONE, 0);
    while bit < 8 {
        inverse = match inverse >> 31 {
            0 => inverse << 1,
            _ => (inverse ^ POLYNOMIAL) << 1 | 1,
        };
        bit += 1;
    }
    let (mut powers, mut k) = ([inverse; POWERS], 1);
    while k < POWERS {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::{Payload, icrc};

    fn computed(bytes: &[u8]) -> u32 {
        icrc::icrc(Payload { first: bytes, second: &[] })
    }

    /// A packet of `len` covered bytes with these fields, and the same as a socket shows it.
    fn packet(len: usize, identification: u16, dont_fragment: bool) -> [Vec<u8>; 2] {
        let mut shown: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0].wrapping_mul(37)).collect();
        shown[..8].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, DF, 0]);
        let mut sent = shown.clone();
        sent[4..6].copy_from_slice(&identification.to_be_bytes());
        sent[6] = if dont_fragment { DF } else { 0 };
        [sent, shown]
    }

    #[test]
    fn every_identification_is_recovered() {
        let mut recovery = Recovery::new();
        for identification in 0..=u16::MAX {
            for dont_fragment in [false, true] {
                let [sent, shown] = packet(44, identification, dont_fragment);
                let recovered = recovery.recover(computed(&shown), computed(&sent), 44);
                assert_eq!(recovered, Some(Recovered { identification, dont_fragment }));
            }
        }
    }

    #[test]
    fn packets_of_every_length_are_recovered() {
        let mut recovery = Recovery::new();
        for len in (40..9000).step_by(4).chain([65_531]) {
            let [sent, shown] = packet(len, 0xbeef, len % 8 == 0);
            let recovered = recovery.recover(computed(&shown), computed(&sent), len);
            let expected = Recovered { identification: 0xbeef, dont_fragment: len % 8 == 0 };
            assert_eq!(recovered, Some(expected), "{len} bytes");
        }
    }

    /// An acknowledgement of a ConnectX, as captured: identification 0x9d4e.
    #[test]
    fn captured() {
        let mut bytes = [
            0x45, 0x02, 0x00, 0x30, 0x9d, 0x4e, 0x40, 0x00, 0x40, 0x11, 0x19, 0xe4, 0xc0, 0xaa,
            0x01, 0x02, 0xc0, 0xaa, 0x01, 0x32, 0xfa, 0x4f, 0x12, 0xb7, 0x00, 0x1c, 0x00, 0x00,
            0x11, 0x40, 0xff, 0xff, 0x00, 0xde, 0xad, 0xed, 0x00, 0xcf, 0x7b, 0xf7, 0x00, 0x00,
            0x00, 0x02,
        ];
        bytes[4..6].fill(0);
        let found = u32::from_le_bytes([0x59, 0xca, 0xea, 0xf7]);
        let recovered = Recovery::new().recover(computed(&bytes), found, bytes.len());
        let expected = Recovered { identification: 0x9d4e, dont_fragment: true };
        assert_eq!(recovered, Some(expected));
    }

    /// A flipped bit anywhere else is not explained, as is each of the other flags.
    #[test]
    fn damage_of_one_bit_is_refused() {
        let mut recovery = Recovery::new();
        let [sent, shown] = packet(80, 0x1234, true);
        for bit in 8..80 * 8 {
            let mut damaged = shown.clone();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            if computed(&damaged) == computed(&shown) {
                continue; // The ICRC does not cover this bit.
            }
            let hidden = (32..48).contains(&bit) || bit == 49;
            let recovered = recovery.recover(computed(&damaged), computed(&sent), 80);
            assert_eq!(recovered.is_some(), hidden, "bit {bit}");
        }
    }

    /// Of random differences 2^-15 pass: 32 of 2^20, of which 12 to 62 come out in 999,999 of a
    /// million drawings.
    #[test]
    fn one_random_difference_in_32768_passes() {
        let (mut recovery, mut state, mut passed) = (Recovery::new(), 1_u64, 0);
        for _ in 0..1 << 20 {
            // Numbers of a linear congruential generator (Knuth, MMIX); the upper half is random.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let difference = u32::try_from(state >> 32).unwrap();
            passed += u32::from(recovery.recover(0, difference, 1068).is_some());
        }
        assert!((12..=62).contains(&passed), "{passed}");
    }
}
