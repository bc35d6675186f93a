//! ACK extended transport header: the responder's ACK or NAK, in acknowledgements and READ
//! responses.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-----------------------------------------------+
//! |   syndrome    |           message sequence number             |
//! +---------------+-----------------------------------------------+
//!
//! syndrome: 000ccccc ACK, credit code      001ttttt RNR NAK, timer code
//!           011nnnnn NAK, NAK code         others reserved
//! ```

use core::fmt;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::network_endian::U32,
};

use crate::Msn;

/// ACK extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed.
    pub msn: Msn,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct View {
    syndrome_and_msn: U32,
}

impl From<&View> for Aeth {
    #[inline]
    fn from(view: &View) -> Self {
        let [syndrome, ..] = view.syndrome_and_msn.to_bytes();
        Self { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(view.syndrome_and_msn.get()) }
    }
}

impl From<&Aeth> for View {
    #[inline]
    fn from(value: &Aeth) -> Self {
        let syndrome = u32::from(value.syndrome.to_byte());
        Self { syndrome_and_msn: ((syndrome << 24) | value.msn.value()).into() }
    }
}

fixed_header!(Aeth, View, "AETH");

/// Syndrome of an AETH: ACK, RNR NAK or NAK. Conversion to its byte and back is lossless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// ACK: everything up to the PSN of the packet has arrived; the code gives the number of
    /// further SENDs that have a receive buffer.
    Ack(CreditCode),
    /// RNR NAK: no receive buffer; retry after this time.
    RnrNak(RnrTimer),
    /// NAK: the request was refused.
    Nak(NakCode),
    /// A reserved value (0x40-0x5f, 0x65-0xff), to be ignored.
    Reserved(u8),
}

impl Syndrome {
    /// From the byte of the AETH.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        match byte >> 5 {
            0b000 => Self::Ack(CreditCode(byte & 0x1f)),
            0b001 => Self::RnrNak(RnrTimer(byte & 0x1f)),
            0b011 => match NakCode::from_code(byte & 0x1f) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// The byte of the AETH.
    #[inline]
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits.0,
            Self::RnrNak(timer) => 0x20 | timer.0,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(code) => match code.credits() {
                Some(credits) => write!(f, "ack credits {credits}"),
                None => write!(f, "ack"),
            },
            Self::RnrNak(timer) => write!(f, "rnr-nak {} us", timer.nanos() / 1000),
            Self::Nak(code) => write!(f, "nak {code}"),
            Self::Reserved(byte) => write!(f, "syndrome {byte:#04x}"),
        }
    }
}

/// NAK code: why a responder refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// PSN sequence error: a packet is missing; retransmit from the expected PSN on.
    PsnSequence = 0,
    /// Invalid request: opcode sequence, length, or an unsupported operation.
    InvalidRequest = 1,
    /// Remote access error: key, rights or bounds of the memory region do not allow the access.
    RemoteAccess = 2,
    /// Remote operational error: the responder cannot execute the request for a local reason.
    RemoteOperational = 3,
    /// Invalid RD request: reliable datagrams only, which RoCE does not have.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// From the low five bits of a NAK syndrome.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::PsnSequence),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccess),
            3 => Some(Self::RemoteOperational),
            4 => Some(Self::InvalidRdRequest),
            _ => None,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequence => "psn-sequence",
            Self::InvalidRequest => "invalid-request",
            Self::RemoteAccess => "remote-access",
            Self::RemoteOperational => "remote-operational",
            Self::InvalidRdRequest => "invalid-rd-request",
        })
    }
}

/// Credits of the codes 0 to 30.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Credit count as encoded in an ACK, five bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditCode(u8);

impl CreditCode {
    /// No credit count: the responder does not limit SENDs.
    pub const UNLIMITED: Self = Self(0x1f);

    /// `None` if `code` needs more than five bits.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 0x20 { Some(Self(code)) } else { None }
    }

    /// The largest code that grants no more than `credits` SENDs.
    #[must_use]
    pub fn for_credits(credits: u32) -> Self {
        let codes_up_to = CREDITS.partition_point(|&count| count <= credits);
        #[allow(clippy::cast_possible_truncation)] // at most 31
        Self((codes_up_to - 1) as u8)
    }

    /// SENDs that have a receive buffer, counted from the acknowledged message; `None`: not
    /// limited.
    #[must_use]
    pub fn credits(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied()
    }

    /// The five bits.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Waiting times of the RNR timer codes 0 to 31, in units of 10 microseconds. Code 0 is the longest
/// time, not zero.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Waiting time as encoded in an RNR NAK, five bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// `None` if `code` needs more than five bits.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 0x20 { Some(Self(code)) } else { None }
    }

    /// Minimum time before the request is retransmitted, in nanoseconds.
    #[must_use]
    pub fn nanos(self) -> u64 {
        u64::from(RNR_TIMERS[usize::from(self.0)]) * 10_000
    }

    /// The five bits.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::vec::Vec;

    /// A captured acknowledgement of rdma_rxe.
    #[test]
    fn captured_bytes() {
        let bytes = [0x1f, 0x00, 0x00, 0x01];
        let aeth = Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(1) };
        assert_eq!(Aeth::parse(&bytes), Ok(aeth));
        assert_eq!(aeth.to_bytes(), bytes);
    }

    #[test]
    fn every_syndrome_converts_back_to_its_byte() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn each_byte_has_its_syndrome() {
        let nak = |byte| match Syndrome::from_byte(byte) {
            Syndrome::Nak(code) => Some(code),
            _ => None,
        };
        assert_eq!(nak(0x60), Some(NakCode::PsnSequence));
        assert_eq!(nak(0x61), Some(NakCode::InvalidRequest));
        assert_eq!(nak(0x62), Some(NakCode::RemoteAccess));
        assert_eq!(nak(0x63), Some(NakCode::RemoteOperational));
        assert_eq!(nak(0x64), Some(NakCode::InvalidRdRequest));
        for byte in (0x40..=0x5f).chain(0x65..=0xff) {
            assert_eq!(Syndrome::from_byte(byte), Syndrome::Reserved(byte));
        }
        assert_eq!(Syndrome::from_byte(0x2c), Syndrome::RnrNak(RnrTimer::new(12).unwrap()));
    }

    /// The timers in milliseconds, as they are usually printed.
    #[test]
    fn each_rnr_timer_code_has_its_time() {
        let printed = "655.36 .01 .02 .03 .04 .06 .08 .12 .16 .24 .32 .48 .64 .96 \
                       1.28 1.92 2.56 3.84 5.12 7.68 10.24 15.36 20.48 30.72 \
                       40.96 61.44 81.92 122.88 163.84 245.76 327.68 491.52";
        let printed: Vec<u64> = printed
            .split(' ')
            .map(|text| {
                let (whole, hundredths) = text.split_once('.').unwrap();
                let whole: u64 = whole.parse().unwrap_or(0);
                (whole * 100 + hundredths.parse::<u64>().unwrap()) * 10_000
            })
            .collect();
        let ours: Vec<u64> = (0..32).map(|code| RnrTimer::new(code).unwrap().nanos()).collect();
        assert_eq!(ours, printed);
        assert_eq!(RnrTimer::new(32), None);
    }

    /// The credit table by its rule: from code 3 on, powers of two alternate with 1.5 times these.
    #[test]
    fn credit_codes_follow_their_rule() {
        for code in 0..31u8 {
            let by_rule = match code {
                0..=2 => u32::from(code),
                _ if code % 2 == 1 => 3 << ((code - 3) / 2),
                _ => 2 << ((code - 2) / 2),
            };
            assert_eq!(CreditCode::new(code).unwrap().credits(), Some(by_rule), "{code}");
        }
        assert_eq!(CreditCode::UNLIMITED.credits(), None);
        assert_eq!(CreditCode::new(32), None);
    }

    #[test]
    fn credits_round_down() {
        for credits in (0..70_000).chain([u32::MAX]) {
            let code = CreditCode::for_credits(credits);
            let granted = code.credits().unwrap();
            assert!(granted <= credits);
            let above = CreditCode::new(code.code() + 1).unwrap();
            assert!(above.credits().is_none_or(|more| more > credits));
        }
    }
}
