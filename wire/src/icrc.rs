//! Invariant CRC (ICRC): protects all fields of a packet that routers do not change, end to end.
//!
//! CRC-32 (IEEE 802.3), least significant byte first on the wire, over eight bytes of ones (in
//! place of an InfiniBand link header) and the packet from the IP header to the last pad byte.
//! Fields that routers may change count as ones:
//!
//! ```text
//!  IPv4   TOS, TTL, header checksum
//!  IPv6   traffic class, flow label, hop limit
//!  UDP    checksum
//!  BTH    the byte with FECN and BECN
//! ```

#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod fold;

use crc32fast::Hasher;

use crate::{Bth, IcrcError, Ipv4Header, Ipv6Header, Payload, UdpHeader};

/// Length of the ICRC, in bytes.
pub const LEN: usize = 4;

/// Bytes of ones before the IP header.
pub(crate) const PREFIX: usize = 8;
/// Bytes of prefix, IPv4, UDP and BTH.
pub(crate) const V4_HEAD: usize = PREFIX + Ipv4Header::LEN + UdpHeader::LEN + Bth::LEN;
/// Bytes of prefix, IPv6, UDP and BTH.
pub(crate) const V6_HEAD: usize = PREFIX + Ipv6Header::LEN + UdpHeader::LEN + Bth::LEN;

/// Computes the ICRC of a packet. `covered` is the packet from the first byte of the IP header to
/// the last pad byte. On the wire the ICRC is written with [`to_le_bytes`](u32::to_le_bytes).
///
/// A version nibble of 6 means IPv6; any other value means IPv4 without options.
///
/// # Panics
/// If the IP, UDP and base transport headers are not all in the first slice.
#[inline(always)] // Once per packet.
#[must_use]
pub fn icrc(covered: Payload<'_>) -> u32 {
    match icrc_short(covered) {
        Some(icrc) => icrc,
        None => icrc_long(covered),
    }
}

#[inline(never)]
fn icrc_long(covered: Payload<'_>) -> u32 {
    sums(covered).icrc
}

/// A short packet has at most this many bytes after the BTH.
#[cfg(any(test, all(target_arch = "x86_64", feature = "std")))]
const SHORT: usize = 256;

/// The ICRC of a short IPv4 packet in one slice, where the CPU has an instruction for it.
#[cfg(all(target_arch = "x86_64", feature = "std"))]
#[inline(always)] // As `icrc`.
fn icrc_short(covered: Payload<'_>) -> Option<u32> {
    let bytes = covered.first;
    let behind = bytes.len().wrapping_sub(V4_HEAD - PREFIX); // Huge without whole headers.
    let is_short = behind <= SHORT && covered.second.is_empty() && bytes[0] >> 4 != 6;
    if is_short { fold::icrc_v4(bytes) } else { None }
}

#[cfg(not(all(target_arch = "x86_64", feature = "std")))]
const fn icrc_short(_: Payload<'_>) -> Option<u32> {
    None
}

/// Compares the computed `icrc` with `found`, the ICRC in the packet. Under a fuzzer every ICRC is
/// accepted.
///
/// # Errors
/// Both, if they differ.
#[inline]
pub(crate) const fn verify(icrc: u32, found: u32) -> Result<(), IcrcError> {
    if icrc == found || cfg!(fuzzing) { Ok(()) } else { Err(IcrcError { expected: icrc, found }) }
}

/// The ICRC of a packet, and the partial CRC of its headers through the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// The CRC through the BTH.
    pub head: u32,
    /// The ICRC.
    pub icrc: u32,
    /// Bytes after the BTH that the ICRC covers.
    pub behind: usize,
}

impl Sums {
    /// Compares with `found`, the ICRC in the packet. Under a fuzzer every ICRC is accepted.
    ///
    /// # Errors
    /// The computed ICRC and the one in the packet, if they differ.
    #[inline]
    pub const fn verify(&self, found: u32) -> Result<(), IcrcError> {
        verify(self.icrc, found)
    }

    /// Returns true if two packets are equal after the BTH (extended headers, payload and pad), as
    /// far as a CRC-32 shows, whatever their IP, UDP and base transport headers are.
    #[must_use]
    pub fn is_equal_after_bth(&self, other: &Self) -> bool {
        if self.behind != other.behind {
            return false;
        }
        // A CRC is linear: the difference of the heads, advanced over the bytes after them, is the
        // difference of the whole.
        let mut moved = Hasher::new_with_initial(self.head ^ other.head);
        moved.combine(&Hasher::new_with_initial_len(0, self.behind as u64));
        moved.finalize() == self.icrc ^ other.icrc
    }
}

/// [`icrc`], and its parts.
///
/// # Panics
/// As [`icrc`].
#[inline(always)] // A call costs 20 instructions more per packet (callgrind).
#[must_use]
pub fn sums(covered: Payload<'_>) -> Sums {
    let (mut hasher, at) = if covered.first[0] >> 4 == 6 {
        hash_head_v6(covered.first)
    } else {
        hash_head(covered.first, &ONES_V4)
    };
    let head = hasher.clone().finalize();
    hasher.update(&covered.first[at..]);
    if !covered.second.is_empty() {
        hasher.update(covered.second);
    }
    Sums { head, icrc: hasher.finalize(), behind: covered.len() - at }
}

/// The ICRC of the packet from `ip_at` on to the end of `frame`, whose bytes are the same
/// afterwards. For frames that this host writes: of a packet that is not short, the bytes that
/// count as ones are replaced meanwhile, so that it and the prefix are in one piece.
///
/// # Panics
/// If the headers are not all in the frame, or fewer than [`PREFIX`] bytes are in front of them.
#[inline(always)] // Once per packet.
pub(crate) fn icrc_in_place(frame: &mut [u8], ip_at: usize) -> u32 {
    if let Some(icrc) = icrc_short(Payload { first: &frame[ip_at..], second: &[] }) {
        return icrc;
    }
    let bytes = &mut frame[ip_at - PREFIX..];
    if bytes[PREFIX] >> 4 == 6 {
        hash_in_place(bytes, &ONES_V6)
    } else {
        hash_in_place(bytes, &ONES_V4)
    }
}

#[inline(always)] // As `icrc_in_place`.
fn hash_in_place<const HEAD: usize>(bytes: &mut [u8], ones: &[u8; HEAD]) -> u32 {
    let head: &mut [u8; HEAD] = bytes.first_chunk_mut().expect("the headers of a packet");
    let saved = *head;
    for (word, ones) in head.as_chunks_mut::<4>().0.iter_mut().zip(ones.as_chunks::<4>().0) {
        *word = (u32::from_ne_bytes(*word) | u32::from_ne_bytes(*ones)).to_ne_bytes();
    }
    let mut hasher = new_hasher();
    hasher.update(bytes);
    bytes[..HEAD].copy_from_slice(&saved);
    hasher.finalize()
}

/// CRC state after the BTH of a packet whose `HEAD - PREFIX` header bytes are at the front of
/// `packet`. `ones`: the prefix, and the bits of the headers that count as ones.
#[inline(always)] // The hasher stays in registers.
fn hash_head<const HEAD: usize>(packet: &[u8], ones: &[u8; HEAD]) -> (Hasher, usize) {
    let mut head = *ones;
    let (words, _) = head[PREFIX..].as_chunks_mut::<4>();
    let (from, _) = packet[..HEAD - PREFIX].as_chunks::<4>();
    for (word, from) in words.iter_mut().zip(from) {
        *word = (u32::from_ne_bytes(*word) | u32::from_ne_bytes(*from)).to_ne_bytes();
    }
    let mut hasher = new_hasher();
    hasher.update(&head);
    (hasher, HEAD - PREFIX)
}

/// [`hash_head`] of an IPv6 packet.
#[inline(never)]
fn hash_head_v6(packet: &[u8]) -> (Hasher, usize) {
    hash_head(packet, &ONES_V6)
}

/// A hasher before the first byte. `Hasher::new` looks up the features of the processor, which
/// costs 35 instructions.
#[cfg(feature = "std")]
#[inline]
fn new_hasher() -> Hasher {
    static NEW: std::sync::LazyLock<Hasher> = std::sync::LazyLock::new(Hasher::new);
    NEW.clone()
}

#[cfg(not(feature = "std"))]
#[inline]
fn new_hasher() -> Hasher {
    Hasher::new()
}

/// Sets to ones the fields of prefix, IPv4, UDP and BTH that routers may change.
#[inline]
pub(crate) const fn mask_v4(head: &mut [u8; V4_HEAD]) {
    const IP: usize = PREFIX;
    const UDP: usize = IP + Ipv4Header::LEN;
    const BTH: usize = UDP + UdpHeader::LEN;
    head[IP + 1] = 0xff;
    head[IP + 8] = 0xff;
    (head[IP + 10], head[IP + 11]) = (0xff, 0xff);
    (head[UDP + 6], head[UDP + 7]) = (0xff, 0xff);
    head[BTH + 4] = 0xff;
}

/// Sets to ones the fields of prefix, IPv6, UDP and BTH that routers may change.
#[inline]
pub(crate) const fn mask_v6(head: &mut [u8; V6_HEAD]) {
    const IP: usize = PREFIX;
    const UDP: usize = IP + Ipv6Header::LEN;
    const BTH: usize = UDP + UdpHeader::LEN;
    head[IP] |= 0x0f;
    (head[IP + 1], head[IP + 2], head[IP + 3]) = (0xff, 0xff, 0xff);
    head[IP + 7] = 0xff;
    (head[UDP + 6], head[UDP + 7]) = (0xff, 0xff);
    head[BTH + 4] = 0xff;
}

/// The prefix, and the bits of IPv4, UDP and BTH that count as ones.
const ONES_V4: [u8; V4_HEAD] = {
    let mut ones = prefix();
    mask_v4(&mut ones);
    ones
};

/// The prefix, and the bits of IPv6, UDP and BTH that count as ones.
const ONES_V6: [u8; V6_HEAD] = {
    let mut ones = prefix();
    mask_v6(&mut ones);
    ones
};

/// [`PREFIX`] bytes of ones, followed by zeros.
const fn prefix<const HEAD: usize>() -> [u8; HEAD] {
    let mut ones = [0; HEAD];
    let mut at = 0;
    while at < PREFIX {
        ones[at] = 0xff;
        at += 1;
    }
    ones
}

/// Reference implementation of [`icrc`], byte by byte and bit by bit: slow, and easy to verify
/// against the text above.
///
/// # Panics
/// If `covered` is empty.
#[must_use]
pub fn icrc_reference(covered: Payload<'_>) -> u32 {
    let front = covered.slices().into_iter().flatten().next();
    let is_v6 = front.expect("a packet has bytes") >> 4 == 6;
    let mut crc = u32::MAX;
    for _ in 0..8 {
        crc = crc_byte(crc, 0xff);
    }
    let bytes = covered.slices().into_iter().flatten();
    for (offset, &byte) in bytes.enumerate() {
        let ones = if is_v6 { changing_bits_v6(offset) } else { changing_bits_v4(offset) };
        crc = crc_byte(crc, byte | ones);
    }
    !crc
}

/// The bits that count as ones in the byte at `offset` from the start of an IPv4 header.
const fn changing_bits_v4(offset: usize) -> u8 {
    match offset {
        1 => 0xff,       // TOS
        8 => 0xff,       // TTL
        10 | 11 => 0xff, // header checksum
        26 | 27 => 0xff, // UDP checksum
        32 => 0xff,      // FECN, BECN, reserved
        _ => 0,
    }
}

/// The bits that count as ones in the byte at `offset` from the start of an IPv6 header.
const fn changing_bits_v6(offset: usize) -> u8 {
    match offset {
        0 => 0x0f,       // upper half of the traffic class
        1 => 0xff,       // its lower half, upper bits of the flow label
        2 | 3 => 0xff,   // flow label
        7 => 0xff,       // hop limit
        46 | 47 => 0xff, // UDP checksum
        52 => 0xff,      // FECN, BECN, reserved
        _ => 0,
    }
}

/// Adds one byte to a reflected CRC-32.
const fn crc_byte(crc: u32, byte: u8) -> u32 {
    let mut crc = crc ^ byte as u32;
    let mut bit = 0;
    while bit < 8 {
        crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        bit += 1;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::vec::Vec;

    /// The CRC itself, without masks: the check value that every CRC-32 table gives.
    #[test]
    fn the_crc_has_the_usual_check_value() {
        let crc = b"123456789".iter().fold(u32::MAX, |crc, &byte| crc_byte(crc, byte));
        assert_eq!(!crc, 0xcbf4_3926);
    }

    /// An acknowledgement of a ConnectX, as captured, from the IP header on.
    const CAPTURED: [u8; 48] = [
        0x45, 0x02, 0x00, 0x30, 0x9d, 0x4e, 0x40, 0x00, 0x40, 0x11, 0x19, 0xe4, 0xc0, 0xaa, 0x01,
        0x02, 0xc0, 0xaa, 0x01, 0x32, 0xfa, 0x4f, 0x12, 0xb7, 0x00, 0x1c, 0x00, 0x00, 0x11, 0x40,
        0xff, 0xff, 0x00, 0xde, 0xad, 0xed, 0x00, 0xcf, 0x7b, 0xf7, 0x00, 0x00, 0x00, 0x02, 0x59,
        0xca, 0xea, 0xf7,
    ];

    fn whole(bytes: &[u8]) -> Payload<'_> {
        Payload { first: bytes, second: &[] }
    }

    #[test]
    fn captured_bytes() {
        let (covered, found) = CAPTURED.split_at(44);
        assert_eq!(icrc(whole(covered)).to_le_bytes(), found);
        assert_eq!(icrc_reference(whole(covered)).to_le_bytes(), found);
    }

    /// A flipped bit changes the ICRC unless a router may flip it: each bit, both IP versions, both
    /// implementations.
    #[test]
    fn exactly_the_bits_that_routers_change_are_masked() {
        for first in [0x45, 0x60] {
            let mut bytes: Vec<u8> = (0..80).collect();
            bytes[0] = first;
            let (fast, slow) = (icrc(whole(&bytes)), icrc_reference(whole(&bytes)));
            assert_eq!(fast, slow);
            // The version nibble decides which masks apply.
            for bit in 4..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 0x80 >> (bit % 8);
                let v4 = [1, 8, 10, 11, 26, 27, 32];
                let v6 = [0, 1, 2, 3, 7, 46, 47, 52];
                let masked = if first == 0x45 { &v4[..] } else { &v6[..] };
                let may_change = masked.contains(&(bit / 8));
                assert_eq!(icrc(whole(&flipped)) == fast, may_change, "{first:#x} bit {bit}");
                assert_eq!(icrc_reference(whole(&flipped)) == slow, may_change);
            }
        }
    }

    /// For packets of every length around the limit of short ones, whole and in two slices, and for
    /// frames that this host writes, all forms equal the reference.
    #[test]
    fn every_form_gives_the_same_icrc() {
        for (first, head) in [(0x45, 40), (0x60, 60)] {
            for len in (head..head + SHORT + 20).chain([head + 1024, head + 4096]) {
                let mut frame: Vec<u8> = (0..PREFIX + len).map(|at| at.to_le_bytes()[0]).collect();
                frame[PREFIX] = first;
                let covered = whole(&frame[PREFIX..]);
                let expected = icrc_reference(covered);
                let (front, back) = frame[PREFIX..].split_at(head);
                let split = Payload { first: front, second: back };
                assert_eq!((icrc(covered), icrc(split)), (expected, expected), "{first:#x} {len}");
                assert_eq!(sums(covered).icrc, expected);
                let before = frame.clone();
                assert_eq!(icrc_in_place(&mut frame, PREFIX), expected, "{first:#x} {len}");
                assert_eq!(frame, before);
                let replaced = match first {
                    0x45 => hash_in_place(&mut frame, &ONES_V4),
                    _ => hash_in_place(&mut frame, &ONES_V6),
                };
                assert_eq!((replaced, frame), (expected, before), "{first:#x} {len}");
            }
        }
    }

    /// Two copies of a packet whose heads differ as those of a retransmission do are equal after
    /// the BTH, unless a bit there differs.
    #[test]
    fn packets_are_compared_after_the_bth_without_the_head() {
        for (first, head) in [(0x45, 40), (0x60, 60)] {
            for len in [head, head + 4, head + 16, head + 1040] {
                let mut copy: Vec<u8> = (0..len)
                    .map(|at: usize| if at == 0 { first } else { at.to_le_bytes()[0] })
                    .collect();
                let mut again = copy.clone();
                again[4..6].copy_from_slice(&[0x12, 0x34]);
                again[head - 1] ^= 0x55;
                let known = sums(whole(&copy));
                assert_ne!(known, sums(whole(&again)));
                assert!(known.is_equal_after_bth(&sums(whole(&again))));
                copy.push(0);
                assert!(!known.is_equal_after_bth(&sums(whole(&copy))), "one byte more");
                for at in head..len {
                    again[at] ^= 1 << (at % 8);
                    assert!(!known.is_equal_after_bth(&sums(whole(&again))), "byte {at} of {len}");
                    again[at] ^= 1 << (at % 8);
                }
            }
        }
    }
}
