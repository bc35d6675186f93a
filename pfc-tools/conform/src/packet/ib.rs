//! Converts InfiniBand routing headers to Ethernet, IPv6 and UDP, and computes the ICRC over the
//! original headers.
//!
//! ```text
//! LRH  8 bytes: VL:4 version:4 | SL:4 reserved:2 next:2 | destination LID |
//!               reserved:5 length:11 (words, LRH to ICRC) | source LID
//! GRH 40 bytes: as an IPv6 header; next header 0x1b
//! ```

use crc32fast::Hasher;
use feroce_wire::icrc;
use feroce_wire::{Bth, ROCE_PORT};

const LRH: usize = 8;
const GRH: usize = 40;
const UDP: usize = 8;
/// LRH: next header is a BTH.
const NEXT_BTH: u8 = 2;
const NEXT_GRH: u8 = 3;
const NEXT_HEADER_UDP: u8 = 17;
const NEXT_HEADER_BTH: u8 = 0x1b;
const BITS_OF_VL: u8 = 0xf0;

/// Writes a packet that begins with an LRH in `out`; returns the computed ICRC. `None` if it is
/// not of the InfiniBand transport.
pub(super) fn from_lrh(out: &mut Vec<u8>, bytes: &[u8]) -> Option<u32> {
    let lrh: [u8; LRH] = bytes.get(..LRH)?.try_into().ok()?;
    let words = u16::from_be_bytes([lrh[4], lrh[5]]) & 0x7ff;
    // The CRC of the link follows the ICRC.
    let bytes = bytes.get(..usize::from(words) * 4).unwrap_or(bytes);
    let rest = bytes.get(LRH..)?;
    match lrh[1] & 3 {
        NEXT_GRH => from_grh(out, rest, Some(lrh)),
        NEXT_BTH => {
            let lid = |at: usize| [lrh[at], lrh[at + 1]];
            let mut ip = [0; GRH];
            ip[0] = 0x60;
            ip[7] = u8::MAX;
            for (at, lid) in [(8, lid(6)), (24, lid(2))] {
                ip[at..at + 2].copy_from_slice(&[0xfe, 0x80]);
                ip[at + 14..at + 16].copy_from_slice(&lid);
            }
            write_packet(out, ip, rest)?;
            Some(crc(lrh, None, rest))
        }
        _ => None,
    }
}

/// Writes a packet that begins with a GRH in `out`; returns the computed ICRC. `lrh` is the
/// preceding LRH, if any.
pub(super) fn from_grh(out: &mut Vec<u8>, bytes: &[u8], lrh: Option<[u8; LRH]>) -> Option<u32> {
    let grh: [u8; GRH] = bytes.get(..GRH)?.try_into().ok()?;
    if grh[0] >> 4 != 6 || grh[6] != NEXT_HEADER_BTH {
        return None;
    }
    let len = usize::from(u16::from_be_bytes([grh[4], grh[5]]));
    let rest = &bytes[GRH..];
    // Ethernet pads short frames.
    let rest = rest.get(..len).unwrap_or(rest);
    write_packet(out, grh, rest)?;
    Some(crc(lrh.unwrap_or([u8::MAX; LRH]), Some(grh), rest))
}

/// Writes Ethernet, IPv6 and UDP headers followed by BTH, payload and ICRC.
fn write_packet(out: &mut Vec<u8>, mut ip: [u8; GRH], transport: &[u8]) -> Option<()> {
    let len = u16::try_from(transport.len() + UDP).ok()?;
    ip[4..6].copy_from_slice(&len.to_be_bytes());
    ip[6] = NEXT_HEADER_UDP;
    super::ethernet(out, None, true);
    out.extend_from_slice(&ip);
    for word in [0, ROCE_PORT, len, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(transport);
    Some(())
}

/// Computes the ICRC of LRH, GRH and transport; fields that switches and routers change count as
/// ones.
fn crc(mut lrh: [u8; LRH], grh: Option<[u8; GRH]>, transport: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    lrh[0] |= BITS_OF_VL;
    hasher.update(&lrh);
    if let Some(mut grh) = grh {
        grh[0] |= 0x0f;
        grh[1..4].fill(u8::MAX);
        grh[7] = u8::MAX;
        hasher.update(&grh);
    }
    let covered = transport.len().saturating_sub(icrc::LEN);
    let (head, payload) = transport[..covered].split_at(covered.min(Bth::LEN));
    let mut bth = [0; Bth::LEN];
    bth[..head.len()].copy_from_slice(head);
    bth[4] = u8::MAX;
    hasher.update(&bth[..head.len()]);
    hasher.update(payload);
    hasher.finalize()
}
