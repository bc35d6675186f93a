//! The headers of a frame up to UDP: where they are, and how they become those of a segment.

use feroce_wire::{EthernetHeader, Ipv4Header, Ipv6Header, UdpHeader, VlanTag};

/// Maximum number of segments that any kernel cuts a super-frame into.
pub(super) const SEGMENTS_LIMIT: usize = 128;
/// Longest IP packet of either version, in bytes.
pub(super) const IP_MAX: usize = 65535;
/// The protocol number of UDP.
pub(super) const PROTOCOL_UDP: u8 = 17;

/// Offsets of the headers of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Headers {
    v6: bool,
    ip: usize,
    udp: usize,
}

impl Headers {
    /// Finds the headers; `None` unless they are Ethernet with at most one VLAN tag, IP without
    /// options, and UDP.
    pub fn find(frame: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let mut ip = EthernetHeader::LEN;
        let mut kind = word(12)?;
        if kind == 0x8100 {
            kind = word(16)?;
            ip += VlanTag::LEN;
        }
        let (v6, protocol, len) = match (kind, frame.get(ip)?) {
            (0x0800, 0x45) => (false, frame.get(ip + 9)?, Ipv4Header::LEN),
            (0x86dd, version) if version >> 4 == 6 => (true, frame.get(ip + 6)?, Ipv6Header::LEN),
            _ => return None,
        };
        let udp = ip + len;
        let fits = *protocol == PROTOCOL_UDP && frame.len() >= udp + UdpHeader::LEN;
        fits.then_some(Self { v6, ip, udp })
    }

    /// Bytes before the first segment.
    pub fn len(self) -> usize {
        self.udp + UdpHeader::LEN
    }

    /// Maximum bytes of all segments of a super-frame with these headers.
    pub fn segments_max(self) -> usize {
        IP_MAX - (self.len() - self.ip)
    }

    /// Returns true if a received super-frame of `len` bytes with these headers is well-formed: it
    /// has at least one segment, not too many, and fits an IP packet. A peer on a veth may write
    /// anything.
    pub fn can_be_cut(self, len: usize, segment: usize) -> bool {
        let segments = len.saturating_sub(self.len());
        (1..=self.segments_max()).contains(&segments)
            && segments.div_ceil(segment) <= SEGMENTS_LIMIT
    }

    /// The UDP destination port of the frame.
    pub fn udp_destination(self, frame: &[u8]) -> u16 {
        u16::from_be_bytes([frame[self.udp + 2], frame[self.udp + 3]])
    }

    /// The IPv4 identification; 0 for IPv6.
    pub fn identification(self, frame: &[u8]) -> u16 {
        match self.v6 {
            true => 0,
            false => u16::from_be_bytes([frame[self.ip + 4], frame[self.ip + 5]]),
        }
    }

    /// Turns the headers at the start of `frame` into those of a packet with `len` bytes after
    /// them. The UDP checksum becomes 0.
    pub fn set(self, frame: &mut [u8], len: usize, identification: u16) {
        let lengths = [UdpHeader::LEN + len, self.udp - self.ip + UdpHeader::LEN + len];
        let [udp_len, ip_len] =
            lengths.map(|len| u16::try_from(len).expect("an IP packet has at most 65535 bytes"));
        let (head, udp) = frame.split_at_mut(self.udp);
        let ip = &mut head[self.ip..];
        if self.v6 {
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        } else {
            ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
            ip[10..12].fill(0);
            let sum = fold(sum_words(&ip[..Ipv4Header::LEN]));
            ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
        }
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        udp[6..8].fill(0);
    }

    /// Computes the UDP checksum of `frame`, one packet, if it is IPv6. Receivers may require a
    /// checksum there, and a kernel that cuts a super-frame computes it.
    pub fn complete_v6(self, frame: &mut [u8]) {
        if self.v6 {
            let udp_len = u32::from(u16::from_be_bytes([frame[self.udp + 4], frame[self.udp + 5]]));
            let sum = u32::from(fold(sum_words(&frame[self.ip + 8..self.udp])))
                + u32::from(fold(sum_words(&frame[self.udp..])));
            let sum = match !fold(sum + u32::from(PROTOCOL_UDP) + udp_len) {
                0 => 0xffff, // 0 would mean that there is no checksum.
                sum => sum,
            };
            frame[self.udp + 6..self.udp + 8].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Writes the sum of the pseudo header into the checksum field, as the kernel requires for a
    /// checksum that is still to be computed.
    pub fn set_pseudo_sum(self, frame: &mut [u8]) {
        let addresses = if self.v6 { self.ip + 8 } else { self.ip + 12 };
        let udp_len = u32::from(u16::from_be_bytes([frame[self.udp + 4], frame[self.udp + 5]]));
        let sum = sum_words(&frame[addresses..self.udp]) + u32::from(PROTOCOL_UDP) + udp_len;
        frame[self.udp + 6..self.udp + 8].copy_from_slice(&fold(sum).to_be_bytes());
    }

    /// Returns true for IPv6.
    pub fn is_v6(self) -> bool {
        self.v6
    }

    /// Offset of the IP header.
    pub fn ip(self) -> usize {
        self.ip
    }

    /// Offset of the UDP header.
    pub fn udp(self) -> usize {
        self.udp
    }
}

/// The sum of the big-endian 16-bit words of at most 64 KiB, for [`fold`]. An odd last byte is the
/// high byte of its word.
pub(super) fn sum_words(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
    bytes.chunks(2).map(word).sum()
}

/// Folds a sum into 16 bits in ones' complement arithmetic, adding the carries.
pub(super) fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    u16::try_from(twice).expect("two carries at most")
}
