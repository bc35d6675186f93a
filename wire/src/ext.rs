//! The extended headers between the BTH and the payload, in the order of the packet.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Deth, EmitError, Feth, Headers, Ieth, ImmDt, ParseError, Reth,
    XrcEth,
};

/// One list, in the order of the packet, gives the struct, its length, its reading and its writing.
macro_rules! extended_headers {
    ($($(#[$doc:meta])* $field:ident: $header:ty = $flag:ident,)*) => {
        /// The extended headers of a packet; which ones are `Some` is a property of its opcode.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct ExtHeaders {
            $($(#[$doc])* pub $field: Option<$header>,)*
        }

        impl ExtHeaders {
            /// Bytes that the headers of the set `headers` take.
            #[must_use]
            pub const fn len(headers: Headers) -> usize {
                0 $(+ if headers.contains(Headers::$flag) { <$header>::LEN } else { 0 })*
            }

            /// Which headers are `Some`.
            #[must_use]
            pub const fn present(&self) -> Headers {
                Headers::NONE $(.union(if self.$field.is_some() { Headers::$flag } else { Headers::NONE }))*
            }

            /// Reads the headers of the set `headers` at the front of `bytes`.
            ///
            /// # Errors
            /// [`ParseError::Truncated`] naming the first header that does not fit.
            #[inline(always)] // spares the receive path a copy that stalls on the stores before it
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

            /// Writes the headers of the set `headers` at the front of `out` and returns their length in bytes.
            ///
            /// # Errors
            /// [`EmitError::Headers`] if one of the set is `None`, or one outside it is `Some`; nothing useful is in `out` then.
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
    };
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
    /// Verdict of a responder.
    aeth: Aeth = AETH,
    /// Value an atomic found.
    atomic_ack: AtomicAckEth = ATOMIC_ACK_ETH,
    /// Immediate data.
    imm: ImmDt = IMM,
    /// Key to be invalidated.
    ieth: Ieth = IETH,
}
