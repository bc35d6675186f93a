//! Opcode table: operation, extended headers and payload length of each packet.
//!
//! ```text
//!  7 6 5 4 3 2 1 0
//! +-----+---------+   transport: 000 RC, 001 UC, 011 UD, 101 XRC, 100 congestion (010 RD is not in RoCE)
//! |trans|operation|
//! +-----+---------+
//! ```

use core::fmt;

use crate::ExtHeaders;

/// The first byte of the BTH. Any byte is a valid value of this type; [`info`](Self::info) returns
/// `None` for unknown opcodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// The row of the table; `None` for reserved and manufacturer-specific opcodes and those of RD.
    #[inline]
    #[must_use]
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        BY_OPCODE[usize::from(self.0)].as_ref()
    }

    /// The known opcodes, ascending.
    pub fn all() -> impl Iterator<Item = &'static OpcodeInfo> {
        BY_OPCODE.iter().flatten()
    }

    /// Returns true if a requester sends this opcode. False for unknown opcodes and the CNP.
    #[must_use]
    pub fn is_request(self) -> bool {
        self.info().is_some_and(OpcodeInfo::is_request)
    }

    /// Returns true if a responder sends this opcode. False for unknown opcodes and the CNP.
    #[must_use]
    pub fn is_response(self) -> bool {
        self.info().is_some_and(OpcodeInfo::is_response)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

/// Transport service of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification, which belongs to no service.
    Cnp,
}

/// Operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND: message into a receive buffer.
    Send,
    /// RDMA WRITE: message into memory that the requester names.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also, without payload, the response to a FLUSH or ATOMIC WRITE.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Response to an atomic.
    AtomicAcknowledge,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// FLUSH: makes earlier WRITEs visible or persistent.
    Flush,
    /// ATOMIC WRITE: writes eight bytes atomically.
    AtomicWrite,
    /// Congestion notification.
    Cnp,
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several packets.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several packets.
    Last,
    /// The only packet of the message.
    Only,
}

impl Position {
    /// First or Only.
    #[inline]
    #[must_use]
    pub const fn starts_message(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Last or Only.
    #[inline]
    #[must_use]
    pub const fn ends_message(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Rule for the payload length of a packet, without pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// Empty.
    None,
    /// Exactly the path MTU: First and Middle.
    PathMtu,
    /// 1 byte to the path MTU: Last.
    OneToPathMtu,
    /// 0 bytes to the path MTU: Only.
    UpToPathMtu,
    /// Exactly this many bytes.
    Exactly(usize),
}

impl PayloadRule {
    /// Returns true if a payload of `len` bytes is allowed at a path MTU of `path_mtu` bytes.
    #[inline]
    #[must_use]
    pub const fn allows(self, len: usize, path_mtu: usize) -> bool {
        match self {
            Self::None => len == 0,
            Self::PathMtu => len == path_mtu,
            Self::OneToPathMtu => 1 <= len && len <= path_mtu,
            Self::UpToPathMtu => len <= path_mtu,
            Self::Exactly(exact) => len == exact,
        }
    }
}

/// A set of extended headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Headers(u16);

impl Headers {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// [`Reth`](crate::Reth).
    pub const RETH: Self = Self(1);
    /// [`Aeth`](crate::Aeth).
    pub const AETH: Self = Self(1 << 1);
    /// [`AtomicEth`](crate::AtomicEth).
    pub const ATOMIC_ETH: Self = Self(1 << 2);
    /// [`AtomicAckEth`](crate::AtomicAckEth).
    pub const ATOMIC_ACK_ETH: Self = Self(1 << 3);
    /// [`Deth`](crate::Deth).
    pub const DETH: Self = Self(1 << 4);
    /// [`ImmDt`](crate::ImmDt).
    pub const IMM: Self = Self(1 << 5);
    /// [`Ieth`](crate::Ieth).
    pub const IETH: Self = Self(1 << 6);
    /// [`XrcEth`](crate::XrcEth).
    pub const XRCETH: Self = Self(1 << 7);
    /// [`Feth`](crate::Feth).
    pub const FETH: Self = Self(1 << 8);

    /// The number of the flag of a set of one header.
    pub(crate) const fn index(self) -> usize {
        self.0.trailing_zeros() as usize
    }

    /// Returns true if all headers of `other` are in the set.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A row of the opcode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The opcode.
    pub opcode: Opcode,
    /// Name as packet analysers print it.
    pub name: &'static str,
    /// Transport service.
    pub transport: Transport,
    /// Operation.
    pub operation: Operation,
    /// Position in the message.
    pub position: Position,
    /// Extended headers after the BTH.
    pub headers: Headers,
    /// Bytes of the extended headers.
    pub headers_len: usize,
    /// Rule for the payload length.
    pub payload: PayloadRule,
    /// Where each extended header begins.
    pub(crate) offsets: [u8; ExtHeaders::COUNT],
    is_request: bool,
    is_response: bool,
}

impl OpcodeInfo {
    /// Returns true if a responder sends this opcode.
    #[inline]
    #[must_use]
    pub const fn is_response(&self) -> bool {
        self.is_response
    }

    /// Returns true if a requester sends this opcode.
    #[inline]
    #[must_use]
    pub const fn is_request(&self) -> bool {
        self.is_request
    }
}

impl Operation {
    const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge)
    }
}

/// Generates the constants and the table by opcode from one list.
macro_rules! opcodes {
    ($($code:literal $constant:ident $name:literal $transport:ident $operation:ident $position:ident
        [$($header:ident)*] $payload:expr;)*) => {
        impl Opcode {
            $(#[doc = concat!($name, ".")] pub const $constant: Self = Self($code);)*
        }

        static BY_OPCODE: [Option<OpcodeInfo>; 256] = {
            let mut table = [const { None }; 256];
            $(
                assert!(table[$code].is_none(), "an opcode is listed twice");
                let headers = Headers::NONE$(.union(Headers::$header))*;
                table[$code] = Some(OpcodeInfo {
                    opcode: Opcode($code),
                    name: $name,
                    transport: Transport::$transport,
                    operation: Operation::$operation,
                    position: Position::$position,
                    headers,
                    headers_len: ExtHeaders::len(headers),
                    payload: $payload,
                    offsets: ExtHeaders::offsets(headers),
                    is_request: !Operation::$operation.is_response()
                        && !matches!(Operation::$operation, Operation::Cnp),
                    is_response: Operation::$operation.is_response(),
                });
            )*
            table
        };
    };
}

use PayloadRule::{Exactly, None as Empty, OneToPathMtu, PathMtu, UpToPathMtu};

opcodes! {
    0x00 RC_SEND_FIRST            "RC Send First"                       Rc Send First  [] PathMtu;
    0x01 RC_SEND_MIDDLE           "RC Send Middle"                      Rc Send Middle [] PathMtu;
    0x02 RC_SEND_LAST             "RC Send Last"                        Rc Send Last   [] OneToPathMtu;
    0x03 RC_SEND_LAST_IMM         "RC Send Last Immediate"              Rc Send Last   [IMM] OneToPathMtu;
    0x04 RC_SEND_ONLY             "RC Send Only"                        Rc Send Only   [] UpToPathMtu;
    0x05 RC_SEND_ONLY_IMM         "RC Send Only Immediate"              Rc Send Only   [IMM] UpToPathMtu;
    0x06 RC_WRITE_FIRST           "RC RDMA Write First"                 Rc Write First  [RETH] PathMtu;
    0x07 RC_WRITE_MIDDLE          "RC RDMA Write Middle"                Rc Write Middle [] PathMtu;
    0x08 RC_WRITE_LAST            "RC RDMA Write Last"                  Rc Write Last   [] OneToPathMtu;
    0x09 RC_WRITE_LAST_IMM        "RC RDMA Write Last Immediate"        Rc Write Last   [IMM] OneToPathMtu;
    0x0a RC_WRITE_ONLY            "RC RDMA Write Only"                  Rc Write Only   [RETH] UpToPathMtu;
    0x0b RC_WRITE_ONLY_IMM        "RC RDMA Write Only Immediate"        Rc Write Only   [RETH IMM] UpToPathMtu;
    0x0c RC_READ_REQUEST          "RC RDMA Read Request"                Rc ReadRequest Only [RETH] Empty;
    0x0d RC_READ_RESPONSE_FIRST   "RC RDMA Read Response First"         Rc ReadResponse First  [AETH] PathMtu;
    0x0e RC_READ_RESPONSE_MIDDLE  "RC RDMA Read Response Middle"        Rc ReadResponse Middle [] PathMtu;
    0x0f RC_READ_RESPONSE_LAST    "RC RDMA Read Response Last"          Rc ReadResponse Last   [AETH] OneToPathMtu;
    0x10 RC_READ_RESPONSE_ONLY    "RC RDMA Read Response Only"          Rc ReadResponse Only   [AETH] UpToPathMtu;
    0x11 RC_ACKNOWLEDGE           "RC Acknowledge"                      Rc Acknowledge Only [AETH] Empty;
    0x12 RC_ATOMIC_ACKNOWLEDGE    "RC Atomic Acknowledge"               Rc AtomicAcknowledge Only [AETH ATOMIC_ACK_ETH] Empty;
    0x13 RC_COMPARE_SWAP          "RC Compare Swap"                     Rc CompareSwap Only [ATOMIC_ETH] Empty;
    0x14 RC_FETCH_ADD             "RC Fetch Add"                        Rc FetchAdd Only [ATOMIC_ETH] Empty;
    0x16 RC_SEND_LAST_INV         "RC Send Last Invalidate"             Rc Send Last [IETH] OneToPathMtu;
    0x17 RC_SEND_ONLY_INV         "RC Send Only Invalidate"             Rc Send Only [IETH] UpToPathMtu;
    0x1c RC_FLUSH                 "RC Flush"                            Rc Flush Only [FETH RETH] Empty;
    0x1d RC_ATOMIC_WRITE          "RC Atomic Write"                     Rc AtomicWrite Only [RETH] Exactly(8);

    0x20 UC_SEND_FIRST            "UC Send First"                       Uc Send First  [] PathMtu;
    0x21 UC_SEND_MIDDLE           "UC Send Middle"                      Uc Send Middle [] PathMtu;
    0x22 UC_SEND_LAST             "UC Send Last"                        Uc Send Last   [] OneToPathMtu;
    0x23 UC_SEND_LAST_IMM         "UC Send Last Immediate"              Uc Send Last   [IMM] OneToPathMtu;
    0x24 UC_SEND_ONLY             "UC Send Only"                        Uc Send Only   [] UpToPathMtu;
    0x25 UC_SEND_ONLY_IMM         "UC Send Only Immediate"              Uc Send Only   [IMM] UpToPathMtu;
    0x26 UC_WRITE_FIRST           "UC RDMA Write First"                 Uc Write First  [RETH] PathMtu;
    0x27 UC_WRITE_MIDDLE          "UC RDMA Write Middle"                Uc Write Middle [] PathMtu;
    0x28 UC_WRITE_LAST            "UC RDMA Write Last"                  Uc Write Last   [] OneToPathMtu;
    0x29 UC_WRITE_LAST_IMM        "UC RDMA Write Last Immediate"        Uc Write Last   [IMM] OneToPathMtu;
    0x2a UC_WRITE_ONLY            "UC RDMA Write Only"                  Uc Write Only   [RETH] UpToPathMtu;
    0x2b UC_WRITE_ONLY_IMM        "UC RDMA Write Only Immediate"        Uc Write Only   [RETH IMM] UpToPathMtu;

    0x64 UD_SEND_ONLY             "UD Send Only"                        Ud Send Only [DETH] UpToPathMtu;
    0x65 UD_SEND_ONLY_IMM         "UD Send Only Immediate"              Ud Send Only [DETH IMM] UpToPathMtu;

    0x81 CNP                      "CNP"                                 Cnp Cnp Only [] Exactly(crate::cnp::RESERVED_LEN);

    0xa0 XRC_SEND_FIRST           "XRC Send First"                      Xrc Send First  [XRCETH] PathMtu;
    0xa1 XRC_SEND_MIDDLE          "XRC Send Middle"                     Xrc Send Middle [XRCETH] PathMtu;
    0xa2 XRC_SEND_LAST            "XRC Send Last"                       Xrc Send Last   [XRCETH] OneToPathMtu;
    0xa3 XRC_SEND_LAST_IMM        "XRC Send Last Immediate"             Xrc Send Last   [XRCETH IMM] OneToPathMtu;
    0xa4 XRC_SEND_ONLY            "XRC Send Only"                       Xrc Send Only   [XRCETH] UpToPathMtu;
    0xa5 XRC_SEND_ONLY_IMM        "XRC Send Only Immediate"             Xrc Send Only   [XRCETH IMM] UpToPathMtu;
    0xa6 XRC_WRITE_FIRST          "XRC RDMA Write First"                Xrc Write First  [XRCETH RETH] PathMtu;
    0xa7 XRC_WRITE_MIDDLE         "XRC RDMA Write Middle"               Xrc Write Middle [XRCETH] PathMtu;
    0xa8 XRC_WRITE_LAST           "XRC RDMA Write Last"                 Xrc Write Last   [XRCETH] OneToPathMtu;
    0xa9 XRC_WRITE_LAST_IMM       "XRC RDMA Write Last Immediate"       Xrc Write Last   [XRCETH IMM] OneToPathMtu;
    0xaa XRC_WRITE_ONLY           "XRC RDMA Write Only"                 Xrc Write Only   [XRCETH RETH] UpToPathMtu;
    0xab XRC_WRITE_ONLY_IMM       "XRC RDMA Write Only Immediate"       Xrc Write Only   [XRCETH RETH IMM] UpToPathMtu;
    0xac XRC_READ_REQUEST         "XRC RDMA Read Request"               Xrc ReadRequest Only [XRCETH RETH] Empty;
    0xad XRC_READ_RESPONSE_FIRST  "XRC RDMA Read Response First"        Xrc ReadResponse First  [AETH] PathMtu;
    0xae XRC_READ_RESPONSE_MIDDLE "XRC RDMA Read Response Middle"       Xrc ReadResponse Middle [] PathMtu;
    0xaf XRC_READ_RESPONSE_LAST   "XRC RDMA Read Response Last"         Xrc ReadResponse Last   [AETH] OneToPathMtu;
    0xb0 XRC_READ_RESPONSE_ONLY   "XRC RDMA Read Response Only"         Xrc ReadResponse Only   [AETH] UpToPathMtu;
    0xb1 XRC_ACKNOWLEDGE          "XRC Acknowledge"                     Xrc Acknowledge Only [AETH] Empty;
    0xb2 XRC_ATOMIC_ACKNOWLEDGE   "XRC Atomic Acknowledge"              Xrc AtomicAcknowledge Only [AETH ATOMIC_ACK_ETH] Empty;
    0xb3 XRC_COMPARE_SWAP         "XRC Compare Swap"                    Xrc CompareSwap Only [XRCETH ATOMIC_ETH] Empty;
    0xb4 XRC_FETCH_ADD            "XRC Fetch Add"                       Xrc FetchAdd Only [XRCETH ATOMIC_ETH] Empty;
    0xb6 XRC_SEND_LAST_INV        "XRC Send Last Invalidate"            Xrc Send Last [XRCETH IETH] OneToPathMtu;
    0xb7 XRC_SEND_ONLY_INV        "XRC Send Only Invalidate"            Xrc Send Only [XRCETH IETH] UpToPathMtu;
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::{collections::BTreeSet, vec::Vec};

    /// The known opcodes in a second form: transport bits, and the operations of each.
    #[test]
    fn the_table_has_exactly_the_known_opcodes() {
        let rc: Vec<u8> = (0x00..=0x14).chain([0x16, 0x17]).collect();
        let expected: BTreeSet<u8> = rc
            .iter()
            .copied()
            .chain([0x1c, 0x1d])
            .chain(0x20..=0x2b)
            .chain([0x64, 0x65, 0x81])
            .chain(rc.iter().map(|code| 0xa0 | code))
            .collect();
        let listed: BTreeSet<u8> = Opcode::all().map(|info| info.opcode.0).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn a_row_is_found_by_its_opcode_and_has_the_length_of_its_headers() {
        for info in Opcode::all() {
            assert_eq!(info.opcode.info(), Some(info));
            assert_eq!(info.headers_len, ExtHeaders::len(info.headers));
        }
    }

    /// UC and XRC rows are the RC rows of the same low bits, but for the name, the transport and
    /// the XRCETH of XRC requests.
    #[test]
    fn rows_of_uc_and_xrc_follow_those_of_rc() {
        for info in Opcode::all() {
            let prefix = match info.transport {
                Transport::Uc => "UC",
                Transport::Xrc => "XRC",
                _ => continue,
            };
            let rc = Opcode(info.opcode.0 & 0x1f).info().unwrap();
            let (name, rc_name) = (info.name.strip_prefix(prefix), rc.name.strip_prefix("RC"));
            assert_eq!(name, rc_name);
            assert_eq!((info.operation, info.position), (rc.operation, rc.position));
            assert_eq!(info.payload, rc.payload);
            let xrceth = info.transport == Transport::Xrc && info.is_request();
            let more = if xrceth { Headers::XRCETH } else { Headers::NONE };
            assert_eq!(info.headers, rc.headers.union(more), "{}", info.name);
        }
    }

    /// Rules of the specification about headers, checked against the table.
    #[test]
    fn headers_follow_the_rules_of_the_specification() {
        for info in Opcode::all() {
            let name = info.name;
            let has = |header| info.headers.contains(header);
            assert_eq!(has(Headers::IMM), name.ends_with("Immediate"), "{name}");
            assert_eq!(has(Headers::IETH), name.ends_with("Invalidate"), "{name}");
            assert_eq!(has(Headers::DETH), info.transport == Transport::Ud, "{name}");
            assert_eq!(has(Headers::FETH), info.operation == Operation::Flush, "{name}");
            let starts = info.position.starts_message();
            let remote = match info.operation {
                Operation::Write => starts,
                Operation::ReadRequest | Operation::Flush | Operation::AtomicWrite => true,
                _ => false,
            };
            assert_eq!(has(Headers::RETH), remote, "{name}");
            let middle = info.position == Position::Middle;
            assert_eq!(has(Headers::AETH), info.is_response() && !middle, "{name}");
            let atomic = matches!(info.operation, Operation::CompareSwap | Operation::FetchAdd);
            assert_eq!(has(Headers::ATOMIC_ETH), atomic, "{name}");
            let answer = info.operation == Operation::AtomicAcknowledge;
            assert_eq!(has(Headers::ATOMIC_ACK_ETH), answer, "{name}");
        }
    }

    #[test]
    fn payload_rules_follow_the_position() {
        for info in Opcode::all() {
            let streams = matches!(
                info.operation,
                Operation::Send | Operation::Write | Operation::ReadResponse
            );
            let lengths = [0, 1, 8, 16, 1023, 1024, 1025];
            let allowed: Vec<usize> =
                lengths.into_iter().filter(|&len| info.payload.allows(len, 1024)).collect();
            let expected: &[usize] = match (info.operation, info.position) {
                (_, Position::First | Position::Middle) if streams => &[1024],
                (_, Position::Last) if streams => &[1, 8, 16, 1023, 1024],
                (_, Position::Only) if streams => &[0, 1, 8, 16, 1023, 1024],
                (Operation::AtomicWrite, _) => &[8],
                (Operation::Cnp, _) => &[16],
                _ => &[0],
            };
            assert_eq!(allowed, expected, "{}", info.name);
        }
    }

    #[test]
    fn opcodes_are_requests_or_responses() {
        assert!(Opcode::RC_FLUSH.is_request() && !Opcode::RC_FLUSH.is_response());
        assert!(Opcode::XRC_ACKNOWLEDGE.is_response() && !Opcode::XRC_ACKNOWLEDGE.is_request());
        for neither in [Opcode::CNP, Opcode(0xff), Opcode(0x40)] {
            assert!(!neither.is_request() && !neither.is_response());
        }
    }
}
