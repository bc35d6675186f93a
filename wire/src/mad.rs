//! Management datagrams (MADs): the 256 bytes that QP 1 exchanges, and their header.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+---------------+---------------+
//! | base version  |     class     | class version |    method     |
//! +---------------+---------------+---------------+---------------+
//! |            status             |        class specific         |
//! +-------------------------------+-------------------------------+
//! |                                                               |
//! |                        transaction id                         |
//! +-------------------------------+-------------------------------+
//! |           attribute           |           reserved            |
//! +-------------------------------+-------------------------------+
//! |                      attribute modifier                       |
//! +---------------------------------------------------------------+
//! ```

use thiserror::Error;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::network_endian::{U16, U32, U64},
};

/// Bytes of a management datagram, header included.
pub const MAD_LEN: usize = 256;

/// The base version of every MAD.
pub const BASE_VERSION: u8 = 1;

/// Header of a management datagram, 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MadHeader {
    /// [`BASE_VERSION`].
    pub base_version: u8,
    /// Management class: 7 is communication management.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method: 3 is Send; the top bit marks a response.
    pub method: u8,
    /// Result, in responses.
    pub status: u16,
    /// Class-specific field.
    pub class_specific: u16,
    /// Chosen by the side that begins a transaction; responses repeat it.
    pub transaction: u64,
    /// Attribute: which message of the class.
    pub attribute: u16,
    /// Sent as 0, ignored when received.
    pub reserved: u16,
    /// Attribute modifier; in communication management: options of enhanced connection
    /// establishment.
    pub modifier: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction: U64,
    attribute: U16,
    reserved: U16,
    modifier: U32,
}

impl From<&View> for MadHeader {
    fn from(view: &View) -> Self {
        Self {
            base_version: view.base_version,
            class: view.class,
            class_version: view.class_version,
            method: view.method,
            status: view.status.get(),
            class_specific: view.class_specific.get(),
            transaction: view.transaction.get(),
            attribute: view.attribute.get(),
            reserved: view.reserved.get(),
            modifier: view.modifier.get(),
        }
    }
}

impl From<&MadHeader> for View {
    fn from(value: &MadHeader) -> Self {
        Self {
            base_version: value.base_version,
            class: value.class,
            class_version: value.class_version,
            method: value.method,
            status: value.status.into(),
            class_specific: value.class_specific.into(),
            transaction: value.transaction.into(),
            attribute: value.attribute.into(),
            reserved: value.reserved.into(),
            modifier: value.modifier.into(),
        }
    }
}

fixed_header!(MadHeader, View, "MAD header");

/// Why the payload of a packet to QP 1 is not a supported message. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MadError {
    /// Not 256 bytes.
    #[error("a MAD has {MAD_LEN} bytes, not {0}")]
    Length(usize),
    /// A base version other than 1.
    #[error("MAD base version {0}")]
    BaseVersion(u8),
    /// Not communication management.
    #[error("management class {0:#04x}")]
    Class(u8),
    /// A class version other than 2.
    #[error("communication management version {0}")]
    ClassVersion(u8),
    /// A method other than Send.
    #[error("method {0:#04x}")]
    Method(u8),
    /// An unknown message, or one about alternate paths, which RoCE does not have.
    #[error("attribute {0:#06x}")]
    Attribute(u16),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header of a captured REQ of rdma_rxe, with the unused fields filled.
    #[test]
    fn captured_bytes() {
        let bytes = [
            1, 7, 2, 3, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 2, 0xdc, 0xdb, 0x3a, 0x7a, 0, 0x10, 0xab,
            0xcd, 0x9a, 0xbc, 0xde, 0xf0,
        ];
        let header = MadHeader {
            base_version: 1,
            class: 7,
            class_version: 2,
            method: 3,
            status: 0x1234,
            class_specific: 0x5678,
            transaction: 0x2_dcdb_3a7a,
            attribute: 0x10,
            reserved: 0xabcd,
            modifier: 0x9abc_def0,
        };
        assert_eq!(MadHeader::parse(&bytes), Ok(header));
        assert_eq!(header.to_bytes(), bytes);
    }
}
