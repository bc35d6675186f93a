//! The bytes of the rsocket protocol as rdma-core's `docs/rsocket` describes them: private data of
//! the connection, immediate data, entries in the peer's tables, and the headers of datagrams.
//!
//! Private data and datagram headers are big-endian. Table entries are in the byte order of the
//! host that reads them, which its private data states.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The only protocol version.
const VERSION: u8 = 1;
/// Flag: the sender is big-endian.
const FLAG_BIG_ENDIAN: u8 = 1;
/// Flag: the sender states how many buffers the peer may map.
const FLAG_IOMAP: u8 = 1 << 1;

/// Entries of a target table: while one half of a receive buffer fills, the other is announced.
pub const TARGETS: u32 = 2;

/// A message in immediate data: three bits of type and 29 bits of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// This many bytes were written into the receive buffer.
    Data(u32),
    /// The sender may send until its message count reaches this value. A target entry may have been
    /// written, too.
    Credits(u16),
    /// The entry with this index was written in the table of mapped buffers.
    Mapped(u32),
    /// A control message of the connection.
    Control(Control),
}

/// Control messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// The peer sends nothing more and accepts nothing more.
    Disconnect,
    /// Keep-alive.
    KeepAlive,
    /// The peer sends nothing more.
    Shutdown,
}

const OP_DATA: u32 = 0;
const OP_CREDITS: u32 = 4;
const OP_MAPPED: u32 = 6;
const OP_CONTROL: u32 = 7;
const VALUE_BITS: u32 = 29;

/// Largest number of bytes that one data message can report.
pub const MESSAGE_MAX: u32 = (1 << VALUE_BITS) - 1;

impl Message {
    /// Returns the immediate data in host byte order.
    pub fn encode(self) -> u32 {
        let (op, value) = match self {
            Self::Data(bytes) => (OP_DATA, bytes & MESSAGE_MAX),
            Self::Credits(until) => (OP_CREDITS, u32::from(until)),
            Self::Mapped(index) => (OP_MAPPED, index & MESSAGE_MAX),
            Self::Control(Control::Disconnect) => (OP_CONTROL, 0),
            Self::Control(Control::KeepAlive) => (OP_CONTROL, 1),
            Self::Control(Control::Shutdown) => (OP_CONTROL, 2),
        };
        op << VALUE_BITS | value
    }

    /// Decodes immediate data. Returns `None` for reserved values.
    #[allow(clippy::cast_possible_truncation)] // credits count modulo 2^16
    pub fn decode(immediate: u32) -> Option<Self> {
        let value = immediate & MESSAGE_MAX;
        match (immediate >> VALUE_BITS, value) {
            (OP_DATA, bytes) => Some(Self::Data(bytes)),
            (OP_CREDITS, until) => Some(Self::Credits(until as u16)),
            (OP_MAPPED, index) => Some(Self::Mapped(index)),
            (OP_CONTROL, 0) => Some(Self::Control(Control::Disconnect)),
            (OP_CONTROL, 1) => Some(Self::Control(Control::KeepAlive)),
            (OP_CONTROL, 2) => Some(Self::Control(Control::Shutdown)),
            _ => None,
        }
    }
}

/// Byte order of the host that reads a table, relative to this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Same byte order.
    Same,
    /// Opposite byte order.
    Swapped,
}

impl Order {
    fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Same => value.to_ne_bytes(),
            Self::Swapped => value.swap_bytes().to_ne_bytes(),
        }
    }

    fn u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Same => value.to_ne_bytes(),
            Self::Swapped => value.swap_bytes().to_ne_bytes(),
        }
    }
}

/// Remote memory: a target table entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Remote {
    /// Start address.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// Length in bytes; for a table, in entries.
    pub length: u32,
}

/// Encoded length of a [`Remote`] in bytes.
pub const REMOTE_LENGTH: usize = 16;

impl Remote {
    /// Encodes an entry for a host with this byte order.
    pub fn encode(&self, order: Order) -> [u8; REMOTE_LENGTH] {
        let mut bytes = [0; REMOTE_LENGTH];
        bytes[..8].copy_from_slice(&order.u64(self.address));
        bytes[8..12].copy_from_slice(&order.u32(self.key));
        bytes[12..].copy_from_slice(&order.u32(self.length));
        bytes
    }

    /// Decodes an entry of a local table.
    pub fn decode(bytes: &[u8; REMOTE_LENGTH]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(array(bytes, at));
        Self { address: u64::from_ne_bytes(array(bytes, 0)), key: word(8), length: word(12) }
    }

    fn encode_big_endian(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_be_bytes());
    }

    fn decode_big_endian(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_be_bytes(array(bytes, at));
        Self { address: u64::from_be_bytes(array(bytes, 0)), key: word(8), length: word(12) }
    }
}

/// A mapped buffer and the offset of its first byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Offset, chosen by the side that mapped the buffer.
    pub offset: u64,
    /// Memory of the buffer.
    pub buffer: Remote,
}

/// Encoded length of a [`Mapping`] in bytes.
pub const MAPPING_LENGTH: usize = 24;

impl Mapping {
    /// Encodes an entry for a host with this byte order.
    pub fn encode(&self, order: Order) -> [u8; MAPPING_LENGTH] {
        let mut bytes = [0; MAPPING_LENGTH];
        bytes[..8].copy_from_slice(&order.u64(self.offset));
        bytes[8..].copy_from_slice(&self.buffer.encode(order));
        bytes
    }

    /// Returns the number of bytes from `offset` to the end of the buffer; 0 if the buffer does not
    /// contain the offset.
    pub fn left_at(&self, offset: u64) -> u32 {
        let into = offset.wrapping_sub(self.offset);
        if offset < self.offset { 0 } else { remaining(self.buffer.length, into) }
    }
}

fn remaining(length: u32, into: u64) -> u32 {
    u32::try_from(into).map_or(0, |into| length.saturating_sub(into))
}

/// Private data that both sides exchange when they connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectData {
    /// Byte order of the sender's host, relative to this host.
    pub order: Order,
    /// Number of messages that the sender can receive.
    pub credits: u16,
    /// The sender's target table; `length` is in entries.
    pub targets: Remote,
    /// Entries of the sender's table of mapped buffers, which follows the targets.
    pub mappings: u16,
    /// The first target: half of the receive buffer.
    pub buffer: Remote,
}

/// Encoded length of [`ConnectData`] in bytes.
pub const CONNECT_LENGTH: usize = 40;

impl ConnectData {
    /// Encodes the private data of this host.
    pub fn encode(&self) -> [u8; CONNECT_LENGTH] {
        let big_endian = if cfg!(target_endian = "big") { FLAG_BIG_ENDIAN } else { 0 };
        let mut bytes = [0; CONNECT_LENGTH];
        bytes[0] = VERSION;
        bytes[1] = FLAG_IOMAP | big_endian;
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = to_scale(self.mappings);
        self.targets.encode_big_endian(&mut bytes[8..24]);
        self.buffer.encode_big_endian(&mut bytes[24..40]);
        bytes
    }

    /// Decodes a peer's private data. Returns `None` if it is too short, has another version, or
    /// has no targets.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < CONNECT_LENGTH || bytes[0] != VERSION {
            return None;
        }
        let big_endian = bytes[1] & FLAG_BIG_ENDIAN != 0;
        let same = big_endian == cfg!(target_endian = "big");
        let data = Self {
            order: if same { Order::Same } else { Order::Swapped },
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            targets: Remote::decode_big_endian(&bytes[8..24]),
            mappings: if bytes[1] & FLAG_IOMAP != 0 { from_scale(bytes[7]) } else { 0 },
            buffer: Remote::decode_big_endian(&bytes[24..40]),
        };
        (data.targets.length > 0).then_some(data)
    }

    /// Returns the address of an entry in the peer's table of mapped buffers.
    pub fn mapping_address(&self, index: u32) -> u64 {
        let before = u64::from(self.targets.length) * REMOTE_LENGTH as u64;
        self.targets
            .address
            .wrapping_add(before)
            .wrapping_add(u64::from(index) * MAPPING_LENGTH as u64)
    }
}

/// Encodes a count of up to 32,512 in one byte: exactly up to 128, in steps of 256 above.
fn to_scale(value: u16) -> u8 {
    if value <= 128 { value.to_le_bytes()[0] } else { 0x80 | (value >> 8).to_le_bytes()[0] }
}

fn from_scale(scale: u8) -> u16 {
    if scale <= 128 { u16::from(scale) } else { u16::from(scale & 0x7f) << 8 }
}

/// Rounds a number of mapped buffers to one that the private data can state.
pub fn round_mappings(value: u16) -> u16 {
    from_scale(to_scale(value))
}

/// Header of a datagram between two QPs: its source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramHeader(pub SocketAddr);

/// Largest [`DatagramHeader`], in bytes.
pub const DATAGRAM_HEADER_MAX: usize = 24;
const DATAGRAM_HEADER_V4: usize = 8;

impl DatagramHeader {
    /// Returns the encoded bytes and their length.
    pub fn encode(&self) -> ([u8; DATAGRAM_HEADER_MAX], usize) {
        let mut bytes = [0; DATAGRAM_HEADER_MAX];
        bytes[2..4].copy_from_slice(&self.0.port().to_be_bytes());
        match self.0 {
            SocketAddr::V4(source) => {
                [bytes[0], bytes[1]] = [4, 8];
                bytes[4..8].copy_from_slice(&source.ip().octets());
                (bytes, DATAGRAM_HEADER_V4)
            }
            SocketAddr::V6(source) => {
                [bytes[0], bytes[1]] = [6, 24];
                bytes[4..8].copy_from_slice(&source.flowinfo().to_be_bytes());
                bytes[8..].copy_from_slice(&source.ip().octets());
                (bytes, DATAGRAM_HEADER_MAX)
            }
        }
    }

    /// Returns the header and the payload after it.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[version, length], rest) = bytes.split_first_chunk()?;
        let port = u16::from_be_bytes(array(rest.get(..2)?, 0));
        let address = rest.get(2..)?;
        let source = match (version, length) {
            (4, 8) => SocketAddr::from((array::<4>(address.get(..4)?, 0), port)),
            (6, 24) => {
                let flow = u32::from_be_bytes(array(address.get(..4)?, 0));
                let ip = Ipv6Addr::from(array::<16>(address.get(4..20)?, 0));
                SocketAddr::V6(SocketAddrV6::new(ip, port, flow, 0))
            }
            _ => return None,
        };
        Some((Self(source), bytes.get(usize::from(length)..)?))
    }
}

/// Type of a message on the UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UdpOp {
    /// Carries a datagram; the receiver replies with its QP number.
    Data,
    /// Reports the sender's QP number.
    Control,
}

/// Header of messages over UDP, used while the peer's QP is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpHeader {
    /// Type of the message.
    pub op: UdpOp,
    /// The sender's QP number.
    pub qpn: u32,
    /// The sender's address.
    pub address: IpAddr,
}

const UDP_TAG: [u8; 4] = [0x55; 4];
/// Largest [`UdpHeader`], in bytes.
pub const UDP_HEADER_MAX: usize = 28;
const UDP_HEADER_V4: usize = 16;

impl UdpHeader {
    /// Returns the encoded bytes and their length.
    #[allow(clippy::cast_possible_truncation)] // the values are at most 7 and 28
    pub fn encode(&self) -> ([u8; UDP_HEADER_MAX], usize) {
        let mut bytes = [0; UDP_HEADER_MAX];
        bytes[..4].copy_from_slice(&UDP_TAG);
        bytes[5] = match self.op {
            UdpOp::Data => OP_DATA,
            UdpOp::Control => OP_CONTROL,
        } as u8;
        bytes[8..12].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        let (version, length) = match self.address {
            IpAddr::V4(ip) => {
                bytes[12..16].copy_from_slice(&ip.octets());
                (4, UDP_HEADER_V4)
            }
            IpAddr::V6(ip) => {
                bytes[12..].copy_from_slice(&ip.octets());
                (6, UDP_HEADER_MAX)
            }
        };
        bytes[4] = version;
        bytes[6] = length as u8;
        (bytes, length)
    }

    /// Returns the header and the payload after it.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, address) = bytes.split_first_chunk::<12>()?;
        if head[..4] != UDP_TAG {
            return None;
        }
        let address = match (head[4], head[6]) {
            (4, 16) => IpAddr::V4(Ipv4Addr::from(array::<4>(address.get(..4)?, 0))),
            (6, 28) => IpAddr::V6(Ipv6Addr::from(array::<16>(address.get(..16)?, 0))),
            _ => return None,
        };
        let op = match u32::from(head[5]) {
            OP_DATA => UdpOp::Data,
            OP_CONTROL => UdpOp::Control,
            _ => return None,
        };
        let qpn = u32::from_be_bytes(array(head, 8)) & 0xff_ffff;
        Some((Self { op, qpn, address }, bytes.get(usize::from(head[6])..)?))
    }
}

/// Returns `N` bytes from offset `at`. The slice must contain them.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[at..at + N]);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_three_bits_and_a_value() {
        let pairs = [
            (Message::Data(4096), 0x0000_1000),
            (Message::Credits(0x0180), 0x8000_0180),
            (Message::Mapped(3), 0xc000_0003),
            (Message::Control(Control::Disconnect), 0xe000_0000),
            (Message::Control(Control::KeepAlive), 0xe000_0001),
            (Message::Control(Control::Shutdown), 0xe000_0002),
        ];
        for (message, immediate) in pairs {
            assert_eq!(message.encode(), immediate);
            assert_eq!(Message::decode(immediate), Some(message));
        }
        for reserved in [0x2000_0000, 0x4000_0000, 0x6000_0000, 0xa000_0000, 0xe000_0003] {
            assert_eq!(Message::decode(reserved), None, "{reserved:#x}");
        }
    }

    fn connect_data() -> ConnectData {
        ConnectData {
            order: Order::Same,
            credits: 384,
            targets: Remote { address: 0x7f00_1234_5678_9000, key: 0x0102_0304, length: 2 },
            mappings: 100,
            buffer: Remote { address: 0x7f00_aaaa_0000_0000, key: 0x0506_0708, length: 65536 },
        }
    }

    #[test]
    fn private_data_has_the_documented_layout() {
        let bytes = connect_data().encode();
        assert_eq!(bytes[..8], [1, 2, 0x01, 0x80, 0, 0, 0, 100]);
        assert_eq!(bytes[8..16], [0x7f, 0, 0x12, 0x34, 0x56, 0x78, 0x90, 0]);
        assert_eq!(bytes[16..24], [1, 2, 3, 4, 0, 0, 0, 2]);
        assert_eq!(bytes[24..32], [0x7f, 0, 0xaa, 0xaa, 0, 0, 0, 0]);
        assert_eq!(bytes[32..], [5, 6, 7, 8, 0, 1, 0, 0]);
        assert_eq!(ConnectData::decode(&bytes), Some(connect_data()));
        assert_eq!(connect_data().mapping_address(2), 0x7f00_1234_5678_9000 + 32 + 48);
    }

    #[test]
    fn invalid_private_data_is_rejected() {
        let bytes = connect_data().encode();
        assert_eq!(ConnectData::decode(&bytes[..39]), None);
        assert_eq!(ConnectData::decode(&[&[2], &bytes[1..]].concat()), None);
        let mut without_targets = bytes;
        without_targets[23] = 0;
        assert_eq!(ConnectData::decode(&without_targets), None);
    }

    #[test]
    fn table_entries_are_in_the_byte_order_of_their_reader() {
        let remote =
            Remote { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 0x2122_2324 };
        let swapped = remote.encode(Order::Swapped);
        assert_eq!(Remote::decode(&remote.encode(Order::Same)), remote);
        assert_eq!(Remote::decode(&swapped).address, 0x0807_0605_0403_0201);
        assert_eq!(Remote::decode(&swapped).length, 0x2423_2221);
        let mut other_host = connect_data().encode();
        other_host[1] ^= FLAG_BIG_ENDIAN;
        assert_eq!(ConnectData::decode(&other_host).unwrap().order, Order::Swapped);
    }

    #[test]
    fn table_sizes_are_encoded_in_one_byte() {
        for (count, rounded) in
            [(0, 0), (1, 1), (128, 128), (129, 128), (300, 256), (32_767, 32_512)]
        {
            assert_eq!(round_mappings(count), rounded, "{count}");
        }
    }

    #[test]
    fn a_mapping_counts_the_bytes_after_an_offset() {
        let buffer = Remote { address: 0, key: 0, length: 100 };
        let mapping = Mapping { offset: 50, buffer };
        let left = [49, 50, 149, 150, u64::MAX].map(|offset| mapping.left_at(offset));
        assert_eq!(left, [0, 100, 1, 0, 0]);
    }

    #[test]
    fn datagram_headers_contain_the_source() {
        let (bytes, length) = DatagramHeader("10.0.0.1:7471".parse().unwrap()).encode();
        assert_eq!(bytes[..length], [4, 8, 0x1d, 0x2f, 10, 0, 0, 1]);
        for source in ["10.0.0.1:7471", "[fd77::2]:9"] {
            let header = DatagramHeader(source.parse().unwrap());
            let (bytes, length) = header.encode();
            let datagram = [&bytes[..length], b"abc"].concat();
            assert_eq!(DatagramHeader::decode(&datagram), Some((header, &b"abc"[..])));
            for cut in 0..length {
                assert_eq!(DatagramHeader::decode(&datagram[..cut]), None);
            }
        }
    }

    #[test]
    fn udp_headers_contain_the_qp_number() {
        let v4 = UdpHeader { op: UdpOp::Control, qpn: 0x12_3456, address: [10, 0, 0, 1].into() };
        let (bytes, length) = v4.encode();
        let expected = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0x12, 0x34, 0x56, 10, 0, 0, 1];
        assert_eq!(bytes[..length], expected);
        let v6 = UdpHeader { op: UdpOp::Data, qpn: 7, address: "fd77::2".parse().unwrap() };
        for header in [v4, v6] {
            let (bytes, length) = header.encode();
            let datagram = [&bytes[..length], b"abc"].concat();
            assert_eq!(UdpHeader::decode(&datagram), Some((header, &b"abc"[..])));
            for cut in 0..length {
                assert_eq!(UdpHeader::decode(&datagram[..cut]), None);
            }
        }
        assert_eq!(UdpHeader::decode(&[0; 40]), None);
    }
}
