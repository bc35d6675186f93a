//! Communication management: the messages that connect two QPs, in MADs between QP 1 of their
//! devices.
//!
//! ```text
//!   active                         passive          requester              responder
//!     | REQ ------------------------> |               | SIDR REQ ----------> |
//!     | <---------------------(MRA)-- |               | <---------- SIDR REP |
//!     | <------------------ REP / REJ |
//!     | RTU / REJ ------------------> |
//!     |           . . .               |
//!     | DREQ ---- (either) ---------> |
//!     | <----------------------- DREP |
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`messages`] | the messages, each as a table of its fields |
//! | `bits.rs` | parser and writer generated from a table |
//! | `ip.rs` | the addresses in front of the private data of REQ and SIDR REQ; service IDs |
//!
//! Any 256 bytes parse to a [`CmMad`] or a [`MadError`]. LAP and APR are refused: they are about
//! alternate paths, which RoCE does not have.

#[macro_use]
mod bits;
mod ip;
pub mod messages;

use core::fmt;

pub use ip::{IpCmError, IpCmHeader, PortSpace, ServiceId};
pub use messages::{Drep, Dreq, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

use crate::mad::{BASE_VERSION, MAD_LEN, MadError, MadHeader};

/// The management class of communication management.
pub const CLASS: u8 = 0x07;
/// Its version.
pub const CLASS_VERSION: u8 = 2;
/// Its only method, Send.
pub const METHOD_SEND: u8 = 0x03;

/// Why a message is rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// No QP available.
    pub const NO_QP: Self = Self(1);
    /// No resources, for example memory.
    pub const NO_RESOURCES: Self = Self(3);
    /// The response did not arrive in time.
    pub const TIMEOUT: Self = Self(4);
    /// The service does not support the request.
    pub const UNSUPPORTED: Self = Self(5);
    /// Unknown communication ID.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// No listener for the service ID.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// Neither RC nor UC, or not the transport of the service.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// Stale connection: the QP is in a connection that one side has forgotten.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The GID is not one of the receiver's.
    pub const INVALID_GID: Self = Self(12);
    /// The path MTU is not supported.
    pub const INVALID_MTU: Self = Self(26);
    /// Rejected by the program; its private data may say why.
    pub const CONSUMER: Self = Self(28);
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::NO_QP => "no QP",
            Self::NO_RESOURCES => "no resources",
            Self::TIMEOUT => "timeout",
            Self::UNSUPPORTED => "unsupported",
            Self::INVALID_COMM_ID => "invalid communication id",
            Self::INVALID_SERVICE_ID => "invalid service id",
            Self::INVALID_TRANSPORT => "invalid transport type",
            Self::STALE_CONNECTION => "stale connection",
            Self::INVALID_GID => "invalid GID",
            Self::INVALID_MTU => "invalid MTU",
            Self::CONSUMER => "rejected by the program",
            Self(code) => return write!(f, "reason {code}"),
        };
        f.write_str(text)
    }
}

/// Status in a SIDR REP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QP and key follow.
    pub const SUCCESS: Self = Self(0);
    /// No listener for the service ID.
    pub const UNSUPPORTED: Self = Self(1);
    /// Rejected by the program.
    pub const REJECT: Self = Self(2);
    /// No QP available.
    pub const NO_QP: Self = Self(3);
}

/// Transport of a connection, as encoded in a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection, from an initiator to a target.
    Xrc,
}

impl Req {
    /// The transport; `None` for reliable datagrams and undefined values.
    #[must_use]
    pub const fn connection(&self) -> Option<Transport> {
        match (self.transport, self.extended_transport) {
            (0, _) => Some(Transport::Rc),
            (1, _) => Some(Transport::Uc),
            (3, 1) => Some(Transport::Xrc),
            _ => None,
        }
    }

    /// Sets the transport.
    pub const fn set_connection(&mut self, transport: Transport) {
        (self.transport, self.extended_transport) = match transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
        };
    }
}

impl Rep {
    /// Enhanced connection establishment: the vendor id, 24 bits.
    #[must_use]
    pub fn vendor_id(&self) -> u32 {
        u32::from_be_bytes([0, self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low])
    }

    /// Sets the vendor id to the low 24 bits of `id`.
    pub fn set_vendor_id(&mut self, id: u32) {
        let [_, high, middle, low] = id.to_be_bytes();
        (self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low) = (high, middle, low);
    }
}

/// A message of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// See [`Req`].
    Req(Req),
    /// See [`Mra`].
    Mra(Mra),
    /// See [`Rej`].
    Rej(Rej),
    /// See [`Rep`].
    Rep(Rep),
    /// See [`Rtu`].
    Rtu(Rtu),
    /// See [`Dreq`].
    Dreq(Dreq),
    /// See [`Drep`].
    Drep(Drep),
    /// See [`SidrReq`].
    SidrReq(SidrReq),
    /// See [`SidrRep`].
    SidrRep(SidrRep),
}

/// Generates per-message code from one list, so that no message is missed.
macro_rules! each_message {
    ($with:ident) => {
        $with! { Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep }
    };
}

macro_rules! conversions {
    ($($message:ident),*) => {
        $(impl From<$message> for CmMessage {
            fn from(message: $message) -> Self {
                Self::$message(message)
            }
        })*

        impl CmMessage {
            /// MAD attribute of the message.
            #[must_use]
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$message(_) => $message::ATTRIBUTE,)*
                }
            }

            /// Name of the message, as the specification writes it.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$message(_) => stringify!($message),)*
                }
            }

            fn read(attribute: u16, body: &bits::Body) -> Option<Self> {
                match attribute {
                    $($message::ATTRIBUTE => Some(Self::$message($message::read(body))),)*
                    _ => None,
                }
            }

            fn write(&self, body: &mut bits::Body) {
                match self {
                    $(Self::$message(message) => message.write(body),)*
                }
            }
        }
    };
}

each_message!(conversions);

/// A communication management MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// Transaction ID; responses repeat it.
    pub transaction: u64,
    /// Options of enhanced connection establishment; 0: none.
    pub modifier: u32,
    /// The message.
    pub message: CmMessage,
}

impl CmMad {
    /// Parses the payload of a packet to QP 1. Status, class-specific field and reserved fields are
    /// ignored.
    ///
    /// # Errors
    /// The [`MadError`] of the first field at fault.
    pub fn parse(payload: &[u8]) -> Result<Self, MadError> {
        let length = MadError::Length(payload.len());
        let mad: &[u8; MAD_LEN] = payload.try_into().map_err(|_| length)?;
        let header = MadHeader::parse(mad).map_err(|_| length)?;
        let checks = [
            (header.base_version == BASE_VERSION, MadError::BaseVersion(header.base_version)),
            (header.class == CLASS, MadError::Class(header.class)),
            (header.class_version == CLASS_VERSION, MadError::ClassVersion(header.class_version)),
            (header.method == METHOD_SEND, MadError::Method(header.method)),
        ];
        if let Some((_, error)) = checks.into_iter().find(|(holds, _)| !holds) {
            return Err(error);
        }
        let body = core::array::from_fn(|index| mad[MadHeader::LEN + index]);
        let message = CmMessage::read(header.attribute, &body)
            .ok_or(MadError::Attribute(header.attribute))?;
        Ok(Self { transaction: header.transaction, modifier: header.modifier, message })
    }

    /// The MAD as sent on the wire. A number with fewer bits on the wire than its type is truncated
    /// to its low bits.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let header = MadHeader {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            transaction: self.transaction,
            attribute: self.message.attribute(),
            modifier: self.modifier,
            ..MadHeader::default()
        };
        let mut body = [0; bits::BODY_LEN];
        self.message.write(&mut body);
        let mut mad = [0; MAD_LEN];
        header.write(&mut mad);
        mad[MadHeader::LEN..].copy_from_slice(&body);
        mad
    }
}
