//! Errors of parsing and writing, by the field at fault.

use thiserror::Error;

/// Why bytes are not a RoCEv2 packet. The sender or the network is at fault, never the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes end within a header.
    #[error("{what} needs {need} bytes, {have} are left")]
    Truncated {
        /// The header.
        what: &'static str,
        /// Its length in bytes.
        need: usize,
        /// Bytes available.
        have: usize,
    },
    /// The frame is long enough, but its first slice ends before the headers do.
    #[error("headers take {need} bytes, the first slice has {have}")]
    HeadersSplit {
        /// Bytes of all headers up to the payload, as far as they are known.
        need: usize,
        /// Length of the first slice.
        have: usize,
    },
    /// Neither IPv4 nor IPv6, directly or behind one 802.1Q tag.
    #[error("EtherType {0:#06x} is not IP")]
    EtherType(u16),
    /// The version nibble does not match the EtherType.
    #[error("IP version {0}")]
    IpVersion(u8),
    /// An IPv4 header that is not 20 bytes long. Options are not supported: no RoCE endpoint is
    /// known to send them, and the ICRC over them is not defined.
    #[error("IPv4 header length of {0} words, only 5 is supported")]
    IpHeaderLength(u8),
    /// The IPv4 header checksum is wrong.
    #[error("IPv4 header checksum {found:#06x}, expected {expected:#06x}")]
    IpChecksum {
        /// Checksum computed from the header.
        expected: u16,
        /// Checksum in the header.
        found: u16,
    },
    /// The IP length is smaller than the headers or larger than the frame.
    #[error("IP length field gives {stated} bytes, the frame has {have}")]
    IpLength {
        /// Bytes of the IP packet according to its header, header included.
        stated: usize,
        /// Bytes of the frame from the IP header on.
        have: usize,
    },
    /// An IPv4 fragment. RoCEv2 packets are never fragmented (they carry DF).
    #[error("IPv4 fragment")]
    Fragment,
    /// IP, but not UDP (or IPv6 with an extension header before it).
    #[error("IP protocol {0} is not UDP")]
    NotUdp(u8),
    /// UDP to a port other than 4791.
    #[error("UDP port {0} is not RoCEv2")]
    NotRoce(u16),
    /// The UDP length differs from the length of the IP payload.
    #[error("UDP length {stated}, IP leaves {have}")]
    UdpLength {
        /// The UDP length field.
        stated: usize,
        /// Bytes of the IP payload.
        have: usize,
    },
    /// The transport header version of the BTH is not 0.
    #[error("BTH version {0}")]
    BthVersion(u8),
    /// An unknown opcode: reserved, manufacturer-specific, or RD, which RoCE does not have.
    #[error("opcode {0:#04x} is not known")]
    Opcode(u8),
    /// The pad count of the BTH exceeds the bytes between the headers and the ICRC.
    #[error("pad of {pad} bytes, {have} bytes before the ICRC")]
    Pad {
        /// The pad count of the BTH.
        pad: u8,
        /// Bytes of payload and pad.
        have: usize,
    },
}

/// The ICRC of a received packet is wrong: the packet was damaged, or the sender computes the ICRC
/// wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("ICRC {found:#010x}, expected {expected:#010x}")]
pub struct IcrcError {
    /// ICRC computed from the packet.
    pub expected: u32,
    /// ICRC in the packet.
    pub found: u32,
}

/// Why a [`Packet`](crate::Packet) could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EmitError {
    /// The buffer is too short.
    #[error("the frame has {need} bytes, the buffer {have}")]
    BufferTooShort {
        /// Length of the frame.
        need: usize,
        /// Length of the buffer.
        have: usize,
    },
    /// An extended header that the opcode requires is `None`, or one that it excludes is `Some`.
    #[error("the extended headers are not those of the opcode")]
    Headers,
    /// The opcode has no entry in the table.
    #[error("opcode {0:#04x} is not known")]
    Opcode(u8),
    /// The pad count does not fit its two bits.
    #[error("pad of {0} bytes, at most 3")]
    Pad(u8),
}
