//! Removes the pseudo-headers of capture links.

/// The type of the first header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Ethernet.
    Ethernet,
    /// IPv4 or IPv6.
    Ip,
    /// The local routing header of InfiniBand.
    InfiniBand,
    /// A type that carries no RoCE.
    Other,
}

// Numbers of the registry of link types (www.tcpdump.org/linktypes.html).
const NULL: u32 = 0;
const ETHERNET: u32 = 1;
const RAW: [u32; 5] = [12, 14, 101, 228, 229];
const LOOP: u32 = 108;
const SLL: u32 = 113;
const ERF: u32 = 197;
const INFINIBAND: u32 = 247;
const SLL2: u32 = 276;

/// Length of an ERF record header, in bytes.
const ERF_HEADER: usize = 16;
const ERF_ETHERNET: u8 = 2;
const ERF_INFINIBAND: u8 = 21;

/// Returns the type of the first header, the bytes and the length on the wire of the frame inside
/// `bytes`, which were captured on a link of type `link`. `None` for link types that carry no RoCE.
#[inline(always)] // As `Trace::next_frame`.
pub(super) fn unwrap(link: u32, bytes: &[u8], original_len: u32) -> Option<(Link, &[u8], u32)> {
    match link {
        ETHERNET => Some((Link::Ethernet, bytes, original_len)),
        _ => unwrap_other(link, bytes, original_len),
    }
}

fn unwrap_other(link: u32, bytes: &[u8], original_len: u32) -> Option<(Link, &[u8], u32)> {
    match link {
        INFINIBAND => Some((Link::InfiniBand, bytes, original_len)),
        link if RAW.contains(&link) => Some((Link::Ip, bytes, original_len)),
        NULL | LOOP => Some(without_header(bytes, original_len, 4, true)),
        SLL => Some(without_header(bytes, original_len, 16, is_ip(bytes, 14))),
        SLL2 => Some(without_header(bytes, original_len, 20, is_ip(bytes, 0))),
        ERF => Some(erf(bytes)),
        _ => None,
    }
}

fn is_ip(bytes: &[u8], at: usize) -> bool {
    matches!(bytes.get(at..at + 2), Some([0x08, 0x00] | [0x86, 0xdd]))
}

fn without_header(bytes: &[u8], original_len: u32, header: u32, is_ip: bool) -> (Link, &[u8], u32) {
    let inner = bytes.get(header as usize..).unwrap_or_default();
    let link = if is_ip { Link::Ip } else { Link::Other };
    (link, inner, original_len.saturating_sub(header))
}

/// Parses an ERF record, which states its own type. Extension headers follow while the top bit of
/// the type is set.
fn erf(bytes: &[u8]) -> (Link, &[u8], u32) {
    const NOTHING: (Link, &[u8], u32) = (Link::Other, &[], 0);
    let Some((header, mut rest)) = bytes.split_at_checked(ERF_HEADER) else { return NOTHING };
    let original_len = u32::from(u16::from_be_bytes([header[14], header[15]]));
    let mut more = header[8] & 0x80 != 0;
    while more {
        let Some((extension, next)) = rest.split_at_checked(8) else { return NOTHING };
        more = extension[0] & 0x80 != 0;
        rest = next;
    }
    match header[8] & 0x7f {
        ERF_INFINIBAND => (Link::InfiniBand, rest, original_len),
        // Two bytes, offset and pad, precede the frame; the length includes the frame check
        // sequence.
        ERF_ETHERNET => {
            (Link::Ethernet, rest.get(2..).unwrap_or_default(), original_len.saturating_sub(4))
        }
        _ => NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pseudo_headers_are_removed() {
        let mut sll = [0; 20];
        sll[14..16].copy_from_slice(&[0x08, 0x00]);
        sll[16] = 0x45;
        assert_eq!(unwrap(SLL, &sll, 60), Some((Link::Ip, &sll[16..], 44)));
        let mut sll2 = [0; 24];
        sll2[..2].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!(unwrap(SLL2, &sll2, 60), Some((Link::Ip, &sll2[20..], 40)));
        let other = [0; 24];
        assert_eq!(unwrap(SLL, &other, 60).map(|found| found.0), Some(Link::Other));
        assert_eq!(unwrap(147, &other, 60), None);
    }

    #[test]
    fn extension_headers_of_erf_are_skipped() {
        let mut record = [0; 36];
        record[8] = 0x80 | ERF_INFINIBAND;
        record[14..16].copy_from_slice(&[0, 12]);
        record[16] = 0x80;
        record[32] = 0xaa;
        assert_eq!(unwrap(ERF, &record, 36), Some((Link::InfiniBand, &record[32..], 12)));
        assert_eq!(unwrap(ERF, &record[..20], 36), Some((Link::Other, &[][..], 0)));
    }
}
