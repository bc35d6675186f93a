//! The extended headers between the BTH and the payload, in the order of the packet.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Deth, EmitError, Feth, Headers, Ieth, ImmDt, OpcodeInfo,
    ParseError, Reth, XrcEth,
};

/// Generates from one list, in the order of the packet: the struct, its length, its parser and its
/// writer, and the headers of a received packet.
macro_rules! extended_headers {
    ($($(#[$doc:meta])* $field:ident: $header:ty = $flag:ident,)*) => {
        /// The extended headers of a packet; its opcode decides which are `Some`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct ExtHeaders {
            $($(#[$doc])* pub $field: Option<$header>,)*
        }

        impl ExtHeaders {
            /// Length of the headers in the set `headers`, in bytes.
            #[must_use]
            pub const fn len(headers: Headers) -> usize {
                0 $(+ if headers.contains(Headers::$flag) { <$header>::LEN } else { 0 })*
            }

            /// The set of headers that are `Some`.
            #[must_use]
            pub const fn present(&self) -> Headers {
                Headers::NONE $(.union(match self.$field.is_some() {
                    true => Headers::$flag,
                    false => Headers::NONE,
                }))*
            }

            /// Reads the headers of the set `headers` at the front of `bytes`.
            ///
            /// # Errors
            /// [`ParseError::Truncated`] naming the first header that does not fit.
            pub fn parse(headers: Headers, bytes: &[u8]) -> Result<Self, ParseError> {
                let mut ext = Self::default();
                let mut rest = bytes;
                $(if headers.contains(Headers::$flag) {
                    ext.$field = Some(<$header>::parse(rest)?);
                    rest = &rest[<$header>::LEN..];
                })*
                let _ = rest;
                Ok(ext)
            }

            /// Number of headers.
            pub(crate) const COUNT: usize = [$(Headers::$flag),*].len();

            /// Where each header of the set `headers` begins, by the number of its flag.
            pub(crate) const fn offsets(headers: Headers) -> [u8; Self::COUNT] {
                let mut offsets = [0; Self::COUNT];
                let mut at = 0;
                $(if headers.contains(Headers::$flag) {
                    offsets[Headers::$flag.index()] = at;
                    at += <$header>::LEN.to_le_bytes()[0]; // At most 28.
                })*
                let _ = at;
                offsets
            }

            /// Writes the headers of the set `headers` at the front of `out` and returns their
            /// length in bytes.
            ///
            /// # Errors
            /// [`EmitError::Headers`] if a header of the set is `None`, or one outside the set is
            /// `Some`; the content of `out` is then unspecified.
            ///
            /// # Panics
            /// If `out` is shorter than [`len`](Self::len) of the set.
            #[inline]
            pub fn write(&self, headers: Headers, out: &mut [u8]) -> Result<usize, EmitError> {
                let mut at = 0;
                $(match &self.$field {
                    Some(header) if headers.contains(Headers::$flag) => {
                        header.write(&mut out[at..]);
                        at += <$header>::LEN;
                    }
                    None if !headers.contains(Headers::$flag) => {}
                    _ => return Err(EmitError::Headers),
                })*
                Ok(at)
            }
        }

        impl ExtView<'_> {
            $($(#[$doc])*
            #[inline(always)] // Without the header, one test is left.
            #[must_use]
            pub fn $field(&self) -> Option<$header> {
                if !self.info.headers.contains(Headers::$flag) {
                    return None;
                }
                let at = usize::from(self.info.offsets[Headers::$flag.index()]);
                Some(<$header>::from_bytes(self.bytes.get(at..)?.first_chunk()?))
            })*
        }
    };
}

/// The extended headers of a received packet, in its bytes. Each is `Some` if the opcode has it.
#[derive(Clone, Copy, Debug)]
pub struct ExtView<'a> {
    info: &'static OpcodeInfo,
    bytes: &'a [u8],
}

impl<'a> ExtView<'a> {
    /// `bytes`: the extended headers of a packet with the opcode of `info`.
    #[inline(always)] // As the headers.
    pub(crate) fn new(info: &'static OpcodeInfo, bytes: &'a [u8]) -> Self {
        Self { info, bytes }
    }
}

extended_headers! {
    /// Shared receive queue, in XRC requests.
    xrceth: XrcEth = XRCETH,
    /// Q_Key and source QP, in UD packets.
    deth: Deth = DETH,
    /// Extent of a FLUSH.
    feth: Feth = FETH,
    /// Remote memory of a WRITE, READ, FLUSH or ATOMIC WRITE.
    reth: Reth = RETH,
    /// Operands of an atomic.
    atomic_eth: AtomicEth = ATOMIC_ETH,
    /// ACK or NAK of a responder.
    aeth: Aeth = AETH,
    /// Original value, in the response to an atomic.
    atomic_ack: AtomicAckEth = ATOMIC_ACK_ETH,
    /// Immediate data.
    imm: ImmDt = IMM,
    /// Key to invalidate.
    ieth: Ieth = IETH,
}
