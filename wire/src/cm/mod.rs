//! Communication management: the messages by which two QPs find each other, in MADs between the QPs 1 of their devices.
//!
//! ```text
//!   active                         passive          asker                   answerer
//!     | REQ ------------------------> |               | SIDR REQ ----------> |
//!     | <---------------------(MRA)-- |               | <---------- SIDR REP |
//!     | <------------------ REP / REJ |
//!     | RTU / REJ ------------------> |
//!     |           . . .               |
//!     | DREQ ---- (either) ---------> |
//!     | <----------------------- DREP |
//! ```
//!
//! | file | what |
//! |---|---|
//! | [`messages`] | the messages, each the table of its fields |
//! | `bits.rs` | how a table becomes reading and writing |
//! | `ip.rs` | the addresses in front of the private data of REQ and SIDR REQ, service ids |
//!
//! Any 256 bytes are a [`CmMad`] or a [`MadError`]. LAP and APR, which are about alternate paths, are refused: RoCE has none.

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
    /// No QP to be had.
    pub const NO_QP: Self = Self(1);
    /// No memory, or the like.
    pub const NO_RESOURCES: Self = Self(3);
    /// The answer did not come in time.
    pub const TIMEOUT: Self = Self(4);
    /// The service does not do this.
    pub const UNSUPPORTED: Self = Self(5);
    /// A communication id is not known.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// Nobody listens to the service id.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// Neither RC nor UC, or not the transport of the service.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// The QP is in a connection already: one side has forgotten it.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The GID is not that of the receiver.
    pub const INVALID_GID: Self = Self(12);
    /// The path MTU is not to be had.
    pub const INVALID_MTU: Self = Self(26);
    /// The program says no; its private data may say why.
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

/// The answer to a SIDR REQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QP and key follow.
    pub const SUCCESS: Self = Self(0);
    /// Nobody listens to the service id.
    pub const UNSUPPORTED: Self = Self(1);
    /// The program says no.
    pub const REJECT: Self = Self(2);
    /// No QP to be had.
    pub const NO_QP: Self = Self(3);
}

/// The transport of a connection, as a REQ says it.
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
    /// The transport; `None` for reliable datagrams and what is not defined.
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

/// What is done once for every message: one list, so that none is forgotten.
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
            /// The attribute of its MAD header.
            #[must_use]
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$message(_) => $message::ATTRIBUTE,)*
                }
            }

            /// Its name, as the specification writes it.
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

/// A MAD of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// Names the exchange: answers carry it back.
    pub transaction: u64,
    /// Options of enhanced connection establishment; 0 for none.
    pub modifier: u32,
    /// The message.
    pub message: CmMessage,
}

impl CmMad {
    /// Reads the payload of a packet to QP 1. Status, class-specific field and everything reserved are ignored.
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

    /// The MAD as it goes on the wire. Of a number that has fewer bits there than its type, the low ones go.
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
