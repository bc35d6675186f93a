//! The table of send operations: one row per operation, with everything that the requester, the
//! responder and the completion path need about it.
//!
//! [`SendOp::info`] finds the row of a request that is being sent, [`OperationInfo::of_opcode`] the
//! row of a request that was received. Operands (addresses, keys, immediate data) are not part of
//! the table: they are in [`SendOp`] on the sending side and in the packet headers on the receiving
//! side.

use feroce_wire::{Opcode, Position};

use super::completion::CompletionOpcode;
use super::service::Service;
use super::work_request::{LocalOp, Row, SendOp, SendWqe};
use crate::memory::Access;

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct OperationInfo {
    /// Name, as the InfiniBand specification writes it.
    pub name: &'static str,
    /// Opcode of the completion at the requester.
    pub completion: CompletionOpcode,
    /// The request packets.
    pub packets: RequestPackets,
    /// How the responder responds.
    pub response: ResponseKind,
    /// The receive that the operation consumes at the responder.
    pub receive: Option<ReceiveUse>,
    /// Rights that the responder's QP must grant the requester. A FLUSH also needs the rights that
    /// its placement type names, see [`Access::FLUSH_GLOBAL`].
    pub remote_access: Access,
    /// Rights that the requester's own buffers need.
    pub local_access: Access,
    /// Allowed lengths of the local data.
    pub length: LengthRule,
    /// Services whose QPs send the operation.
    pub services: Services,
}

/// The packets that a request consists of. Opcodes are those of the RC service; the other services
/// use the same lower five bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPackets {
    /// None: the operation is executed locally.
    Local,
    /// One packet without payload, which may be repeated from the middle of its response.
    Bare(Opcode),
    /// One packet that carries all local data.
    Whole(Opcode),
    /// A message of one or more packets with payload.
    Message(MessageOpcodes),
}

/// The opcodes of a message by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageOpcodes {
    /// The first of several packets.
    pub first: Opcode,
    /// Between first and last.
    pub middle: Opcode,
    /// The last of several packets.
    pub last: Opcode,
    /// The only packet.
    pub only: Opcode,
}

/// How a responder responds to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseKind {
    /// Not at all: the operation is executed locally.
    Local,
    /// With an ACK, which may cover several requests.
    Ack,
    /// With READ response packets that carry the data.
    ReadResponse,
    /// With one empty READ response packet.
    EmptyReadResponse,
    /// With an atomic acknowledge packet that carries the old value.
    AtomicAck,
}

/// The use that an operation makes of a receive at the responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveUse {
    /// Position of the packet that needs the receive.
    pub needed_at: ReceiveNeed,
    /// Opcode of the receive's completion.
    pub completion: CompletionOpcode,
}

/// Position of the packet that needs a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveNeed {
    /// First or Only: the receive holds the payload.
    FirstPacket,
    /// Last or Only: the receive only carries the immediate data.
    LastPacket,
}

/// Allowed lengths of the local data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthRule {
    /// 0 to [`MAX_MESSAGE`](super::MAX_MESSAGE) bytes.
    Message,
    /// Exactly this many bytes.
    Exactly(u64),
}

/// A set of transport services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Services(u8);

impl Services {
    const RC: Self = Self(1 << Service::Rc as u8);
    const RC_XRC: Self = Self(Self::RC.0 | 1 << Service::XrcIni as u8);
    const CONNECTED: Self = Self(Self::RC_XRC.0 | 1 << Service::Uc as u8);
    const ALL: Self = Self(Self::CONNECTED.0 | 1 << Service::Ud as u8);

    /// Returns true if the set contains `service`.
    pub const fn contains(self, service: Service) -> bool {
        self.0 >> service as u8 & 1 != 0
    }
}

impl ReceiveNeed {
    /// Returns true if the packet at `position` is the one that needs the receive.
    #[inline]
    pub const fn is_at(self, position: Position) -> bool {
        match self {
            Self::FirstPacket => position.starts_message(),
            Self::LastPacket => position.ends_message(),
        }
    }
}

impl LengthRule {
    /// Returns true if `length` bytes are allowed.
    #[inline]
    pub const fn allows(self, length: u64) -> bool {
        match self {
            Self::Message => length <= super::MAX_MESSAGE,
            Self::Exactly(exact) => length == exact,
        }
    }
}

impl MessageOpcodes {
    /// The opcode of a packet, by whether it is the first and the last of its message.
    #[inline]
    pub const fn at(&self, first: bool, last: bool) -> Opcode {
        match (first, last) {
            (true, true) => self.only,
            (true, false) => self.first,
            (false, false) => self.middle,
            (false, true) => self.last,
        }
    }

    const fn ending_with(self, last: Opcode, only: Opcode) -> Self {
        Self { last, only, ..self }
    }
}

const SEND_PACKETS: MessageOpcodes = MessageOpcodes {
    first: Opcode::RC_SEND_FIRST,
    middle: Opcode::RC_SEND_MIDDLE,
    last: Opcode::RC_SEND_LAST,
    only: Opcode::RC_SEND_ONLY,
};
const WRITE_PACKETS: MessageOpcodes = MessageOpcodes {
    first: Opcode::RC_WRITE_FIRST,
    middle: Opcode::RC_WRITE_MIDDLE,
    last: Opcode::RC_WRITE_LAST,
    only: Opcode::RC_WRITE_ONLY,
};
/// The opcodes of READ response packets.
pub const READ_RESPONSE_PACKETS: MessageOpcodes = MessageOpcodes {
    first: Opcode::RC_READ_RESPONSE_FIRST,
    middle: Opcode::RC_READ_RESPONSE_MIDDLE,
    last: Opcode::RC_READ_RESPONSE_LAST,
    only: Opcode::RC_READ_RESPONSE_ONLY,
};

const MESSAGE_RECEIVE: Option<ReceiveUse> =
    Some(ReceiveUse { needed_at: ReceiveNeed::FirstPacket, completion: CompletionOpcode::Receive });
const IMMEDIATE_RECEIVE: Option<ReceiveUse> = Some(ReceiveUse {
    needed_at: ReceiveNeed::LastPacket,
    completion: CompletionOpcode::ReceiveRdmaWithImmediate,
});

const SEND: OperationInfo = OperationInfo {
    name: "SEND",
    completion: CompletionOpcode::Send,
    packets: RequestPackets::Message(SEND_PACKETS),
    response: ResponseKind::Ack,
    receive: MESSAGE_RECEIVE,
    remote_access: Access::NONE,
    local_access: Access::NONE,
    length: LengthRule::Message,
    services: Services::ALL,
};
const SEND_IMM: OperationInfo = OperationInfo {
    name: "SEND with immediate",
    packets: RequestPackets::Message(
        SEND_PACKETS.ending_with(Opcode::RC_SEND_LAST_IMM, Opcode::RC_SEND_ONLY_IMM),
    ),
    ..SEND
};
const SEND_INVALIDATE: OperationInfo = OperationInfo {
    name: "SEND with invalidate",
    packets: RequestPackets::Message(
        SEND_PACKETS.ending_with(Opcode::RC_SEND_LAST_INV, Opcode::RC_SEND_ONLY_INV),
    ),
    services: Services::RC_XRC,
    ..SEND
};
const WRITE: OperationInfo = OperationInfo {
    name: "RDMA WRITE",
    completion: CompletionOpcode::RdmaWrite,
    packets: RequestPackets::Message(WRITE_PACKETS),
    response: ResponseKind::Ack,
    receive: None,
    remote_access: Access::REMOTE_WRITE,
    local_access: Access::NONE,
    length: LengthRule::Message,
    services: Services::CONNECTED,
};
const WRITE_IMM: OperationInfo = OperationInfo {
    name: "RDMA WRITE with immediate",
    packets: RequestPackets::Message(
        WRITE_PACKETS.ending_with(Opcode::RC_WRITE_LAST_IMM, Opcode::RC_WRITE_ONLY_IMM),
    ),
    receive: IMMEDIATE_RECEIVE,
    ..WRITE
};
const READ: OperationInfo = OperationInfo {
    name: "RDMA READ",
    completion: CompletionOpcode::RdmaRead,
    packets: RequestPackets::Bare(Opcode::RC_READ_REQUEST),
    response: ResponseKind::ReadResponse,
    receive: None,
    remote_access: Access::REMOTE_READ,
    local_access: Access::LOCAL_WRITE,
    length: LengthRule::Message,
    services: Services::RC_XRC,
};
const COMPARE_SWAP: OperationInfo = OperationInfo {
    name: "CmpSwap",
    completion: CompletionOpcode::CompareSwap,
    packets: RequestPackets::Bare(Opcode::RC_COMPARE_SWAP),
    response: ResponseKind::AtomicAck,
    receive: None,
    remote_access: Access::REMOTE_ATOMIC,
    local_access: Access::LOCAL_WRITE,
    length: LengthRule::Exactly(8),
    services: Services::RC_XRC,
};
const FETCH_ADD: OperationInfo = OperationInfo {
    name: "FetchAdd",
    completion: CompletionOpcode::FetchAdd,
    packets: RequestPackets::Bare(Opcode::RC_FETCH_ADD),
    ..COMPARE_SWAP
};
const ATOMIC_WRITE: OperationInfo = OperationInfo {
    name: "ATOMIC WRITE",
    completion: CompletionOpcode::AtomicWrite,
    packets: RequestPackets::Whole(Opcode::RC_ATOMIC_WRITE),
    response: ResponseKind::EmptyReadResponse,
    receive: None,
    remote_access: Access::REMOTE_WRITE,
    local_access: Access::NONE,
    length: LengthRule::Exactly(8),
    services: Services::RC,
};
const FLUSH: OperationInfo = OperationInfo {
    name: "FLUSH",
    completion: CompletionOpcode::Flush,
    packets: RequestPackets::Bare(Opcode::RC_FLUSH),
    response: ResponseKind::EmptyReadResponse,
    receive: None,
    remote_access: Access::NONE,
    local_access: Access::NONE,
    length: LengthRule::Exactly(0),
    services: Services::RC,
};
const BIND_WINDOW: OperationInfo = OperationInfo {
    name: "bind memory window",
    completion: CompletionOpcode::BindWindow,
    packets: RequestPackets::Local,
    response: ResponseKind::Local,
    receive: None,
    remote_access: Access::NONE,
    local_access: Access::NONE,
    length: LengthRule::Exactly(0),
    services: Services::CONNECTED,
};
const LOCAL_INVALIDATE: OperationInfo = OperationInfo {
    name: "local invalidate",
    completion: CompletionOpcode::LocalInvalidate,
    ..BIND_WINDOW
};

/// All operations. Those that have packets come first.
static ROWS: [OperationInfo; 12] = [
    SEND,
    SEND_IMM,
    SEND_INVALIDATE,
    WRITE,
    WRITE_IMM,
    READ,
    COMPARE_SWAP,
    FETCH_ADD,
    ATOMIC_WRITE,
    FLUSH,
    BIND_WINDOW,
    LOCAL_INVALIDATE,
];

/// The number of operations that have packets.
const REMOTE_OPERATIONS: usize = 10;

/// The lower five bits of an opcode, which name the operation in every service.
const OPERATION_BITS: u8 = 0x1f;

/// The rows by the operation bits of the opcode. Several rows share the First and Middle opcodes;
/// the earliest of them, which has no immediate data, is used for such a packet.
static BY_OPCODE: [Option<&OperationInfo>; 1 + OPERATION_BITS as usize] = {
    let mut table: [Option<&OperationInfo>; 1 + OPERATION_BITS as usize] =
        [None; 1 + OPERATION_BITS as usize];
    let mut row = 0;
    while row < REMOTE_OPERATIONS {
        let opcodes = ROWS[row].packets.opcodes();
        let mut position = 0;
        while position < opcodes.len() {
            let place = (opcodes[position].0 & OPERATION_BITS) as usize;
            if table[place].is_none() {
                table[place] = Some(&ROWS[row]);
            }
            position += 1;
        }
        row += 1;
    }
    table
};

impl RequestPackets {
    /// The opcodes of First, Middle, Last and Only; of a single-packet request, its one opcode.
    const fn opcodes(&self) -> [Opcode; 4] {
        match self {
            Self::Local => panic!("a local request has no packets"),
            Self::Bare(opcode) | Self::Whole(opcode) => [*opcode; 4],
            Self::Message(MessageOpcodes { first, middle, last, only }) => {
                [*first, *middle, *last, *only]
            }
        }
    }
}

impl OperationInfo {
    /// The row of the request that a packet with `opcode` belongs to; `None` if no request has it.
    #[inline]
    pub fn of_opcode(opcode: Opcode) -> Option<&'static Self> {
        BY_OPCODE[usize::from(opcode.0 & OPERATION_BITS)]
    }

    /// Returns true if the operation is executed locally, without packets.
    #[inline]
    pub const fn is_local(&self) -> bool {
        matches!(self.response, ResponseKind::Local)
    }

    /// Returns true if the operation has a response of its own instead of an ACK. Such an operation
    /// occupies a responder resource and counts against the depth of READs and atomics.
    #[inline]
    pub const fn needs_responder_resource(&self) -> bool {
        !matches!(self.response, ResponseKind::Ack | ResponseKind::Local)
    }

    /// Returns true if the operation stores data from the peer in local memory: READ and atomics.
    #[inline]
    pub const fn returns_data(&self) -> bool {
        matches!(self.response, ResponseKind::ReadResponse | ResponseKind::AtomicAck)
    }

    /// Returns true if the operation consumes a receive of the peer.
    #[inline]
    pub const fn consumes_receive(&self) -> bool {
        self.receive.is_some()
    }
}

impl Row {
    /// The row in [`ROWS`].
    #[inline]
    const fn info(self) -> &'static OperationInfo {
        &ROWS[self.0 as usize]
    }
}

impl SendWqe {
    /// The row of the operation.
    #[inline]
    pub(crate) const fn info(&self) -> &'static OperationInfo {
        self.row.info()
    }
}

impl SendOp {
    /// The row of this operation.
    #[inline]
    pub(crate) const fn info(&self) -> &'static OperationInfo {
        self.row().info()
    }

    /// The number of the row.
    #[inline]
    pub(super) const fn row(&self) -> Row {
        Row(match self {
            Self::Send => 0,
            Self::SendImm(_) => 1,
            Self::SendInvalidate(_) => 2,
            Self::Write(_) => 3,
            Self::WriteImm(..) => 4,
            Self::Read(_) => 5,
            Self::CompareSwap { .. } => 6,
            Self::FetchAdd { .. } => 7,
            Self::AtomicWrite(_) => 8,
            Self::Flush { .. } => 9,
            Self::Local(LocalOp::Bind(_)) => 10,
            Self::Local(LocalOp::Invalidate(_)) => 11,
        })
    }

    /// Opcode of the completion.
    pub const fn completion_opcode(&self) -> CompletionOpcode {
        self.info().completion
    }

    /// Returns true for compare-and-swap and fetch-and-add.
    pub const fn is_atomic(&self) -> bool {
        matches!(self.info().response, ResponseKind::AtomicAck)
    }

    /// See `OperationInfo::returns_data`.
    pub const fn returns_data(&self) -> bool {
        self.info().returns_data()
    }

    /// See `OperationInfo::needs_responder_resource`: READ, atomics, ATOMIC WRITE and FLUSH.
    pub const fn needs_responder_resource(&self) -> bool {
        self.info().needs_responder_resource()
    }

    /// See `OperationInfo::consumes_receive`.
    pub const fn consumes_receive(&self) -> bool {
        self.info().consumes_receive()
    }
}

impl Service {
    /// Returns true if QPs of this service send requests of the operation `op`.
    pub const fn supports(self, op: &SendOp) -> bool {
        op.info().services.contains(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::RemoteAddr;
    use feroce_wire::{
        Headers, Key, Operation, PayloadRule, PlacementType, Selectivity, Transport,
    };

    const REMOTE: RemoteAddr = RemoteAddr { addr: 0, rkey: Key(0) };

    /// A request of each operation that has packets, in the order of the table.
    fn remote_operations() -> Vec<SendOp> {
        vec![
            SendOp::Send,
            SendOp::SendImm(0),
            SendOp::SendInvalidate(Key(0)),
            SendOp::Write(REMOTE),
            SendOp::WriteImm(REMOTE, 0),
            SendOp::Read(REMOTE),
            SendOp::CompareSwap { remote: REMOTE, compare: 0, swap: 0 },
            SendOp::FetchAdd { remote: REMOTE, add: 0 },
            SendOp::AtomicWrite(REMOTE),
            SendOp::Flush {
                remote: REMOTE,
                length: 0,
                placement: PlacementType::GLOBAL,
                selectivity: Selectivity::Range,
            },
        ]
    }

    #[test]
    fn operations_of_each_service() {
        // Reliable connection, unreliable connection, datagram, extended: the two ends.
        let rows = [
            (SendOp::Send, "yyyyn"),
            (SendOp::SendImm(0), "yyyyn"),
            (SendOp::SendInvalidate(Key(0)), "ynnyn"),
            (SendOp::Write(REMOTE), "yynyn"),
            (SendOp::WriteImm(REMOTE, 0), "yynyn"),
            (SendOp::Read(REMOTE), "ynnyn"),
            (SendOp::AtomicWrite(REMOTE), "ynnnn"),
            (SendOp::Local(LocalOp::Invalidate(Key(0))), "yynyn"),
            (SendOp::FetchAdd { remote: REMOTE, add: 0 }, "ynnyn"),
            (SendOp::CompareSwap { remote: REMOTE, compare: 0, swap: 0 }, "ynnyn"),
        ];
        for (op, expected) in rows {
            let found = [Service::Rc, Service::Uc, Service::Ud, Service::XrcIni, Service::XrcTgt]
                .map(|service| if service.supports(&op) { 'y' } else { 'n' });
            assert_eq!(found.iter().collect::<String>(), expected, "{op:?}");
        }
    }

    #[test]
    fn every_request_opcode_has_a_row_that_agrees_with_the_wire() {
        for wire in Opcode::all().filter(|info| info.is_request()) {
            let row = OperationInfo::of_opcode(wire.opcode).expect(wire.name);
            let kind = match wire.operation {
                Operation::Send | Operation::Write => ResponseKind::Ack,
                Operation::ReadRequest => ResponseKind::ReadResponse,
                Operation::CompareSwap | Operation::FetchAdd => ResponseKind::AtomicAck,
                Operation::Flush | Operation::AtomicWrite => ResponseKind::EmptyReadResponse,
                other => panic!("{other:?} is no request"),
            };
            assert_eq!(row.response, kind, "{}", wire.name);
            let immediate = wire.headers.contains(Headers::IMM);
            let receive = wire.operation == Operation::Send || immediate;
            assert_eq!(row.receive.is_some(), receive, "{}", wire.name);
            // Only a message may be longer than a packet; only a bare request has no payload.
            let expected = match wire.payload {
                PayloadRule::None => matches!(row.packets, RequestPackets::Bare(_)),
                PayloadRule::Exactly(len) => {
                    row.length == LengthRule::Exactly(len as u64)
                        && matches!(row.packets, RequestPackets::Whole(_))
                }
                _ => matches!(row.packets, RequestPackets::Message(_)),
            };
            assert!(expected, "{}", wire.name);
            let service = match wire.transport {
                Transport::Rc => Service::Rc,
                Transport::Uc => Service::Uc,
                Transport::Ud => Service::Ud,
                _ => Service::XrcIni,
            };
            assert!(row.services.contains(service), "{}", wire.name);
        }
        for response in Opcode::all().filter(|info| info.is_response()) {
            assert_eq!(OperationInfo::of_opcode(response.opcode), None, "{}", response.name);
        }
    }

    #[test]
    fn rows_name_opcodes_that_the_wire_has_at_their_positions() {
        use Position::{First, Last, Middle, Only};
        for op in remote_operations() {
            let (row, opcodes) = (op.info(), op.info().packets.opcodes());
            for (opcode, position) in opcodes.into_iter().zip([First, Middle, Last, Only]) {
                let wire = opcode.info().expect(row.name);
                match row.packets {
                    RequestPackets::Message(_) => assert_eq!(wire.position, position),
                    _ => assert_eq!(wire.position, Only),
                }
                assert_eq!(wire.transport, Transport::Rc);
            }
            // A service supports the operation exactly if it has the opcode.
            for service in [Service::Uc, Service::Ud, Service::XrcIni] {
                let has_opcode = service.opcode(opcodes[3]).info().is_some();
                assert_eq!(service.supports(&op), has_opcode, "{service:?}: {}", row.name);
            }
        }
    }

    /// The properties of each operation for applications and the protocol, written a second time.
    #[test]
    fn properties_of_each_operation() {
        // Name, completion, needs a responder resource, returns data, atomic, consumes a receive.
        let expected = [
            ("SEND", CompletionOpcode::Send, "nnny"),
            ("SEND with immediate", CompletionOpcode::Send, "nnny"),
            ("SEND with invalidate", CompletionOpcode::Send, "nnny"),
            ("RDMA WRITE", CompletionOpcode::RdmaWrite, "nnnn"),
            ("RDMA WRITE with immediate", CompletionOpcode::RdmaWrite, "nnny"),
            ("RDMA READ", CompletionOpcode::RdmaRead, "yynn"),
            ("CmpSwap", CompletionOpcode::CompareSwap, "yyyn"),
            ("FetchAdd", CompletionOpcode::FetchAdd, "yyyn"),
            ("ATOMIC WRITE", CompletionOpcode::AtomicWrite, "ynnn"),
            ("FLUSH", CompletionOpcode::Flush, "ynnn"),
            ("local invalidate", CompletionOpcode::LocalInvalidate, "nnnn"),
        ];
        let mut operations = remote_operations();
        assert_eq!(operations.len(), REMOTE_OPERATIONS);
        operations.push(SendOp::Local(LocalOp::Invalidate(Key(0))));
        assert_eq!(operations.len(), expected.len());
        for (op, (name, completion, flags)) in operations.into_iter().zip(expected) {
            assert_eq!((op.info().name, op.completion_opcode()), (name, completion));
            let found = [
                op.needs_responder_resource(),
                op.returns_data(),
                op.is_atomic(),
                op.consumes_receive(),
            ]
            .map(|property| if property { 'y' } else { 'n' });
            assert_eq!(found.iter().collect::<String>(), flags, "{name}");
            // Returned data are stored in local memory, which must be writable.
            let writes = op.info().local_access == Access::LOCAL_WRITE;
            assert_eq!(op.returns_data(), writes, "{name}");
            assert_eq!(op.info().is_local(), matches!(op, SendOp::Local(_)), "{name}");
        }
    }
}
