//! Conversion of a fixed-size header between value and bytes: one macro, so that every header has
//! the same names.

/// Generates for `$value`: `LEN`, `parse`, `from_bytes`, `to_bytes` and `write`, through the
/// byte-order view `$view`.
///
/// Needs `From<&$view> for $value` and `From<&$value> for $view`.
macro_rules! fixed_header {
    ($value:ty, $view:ty, $name:literal) => {
        impl $value {
            /// Length on the wire, in bytes.
            pub const LEN: usize = core::mem::size_of::<$view>();

            #[doc = concat!("Parses the ", $name, " at the front of `bytes`. Bytes after it are")]
            #[doc = "ignored."]
            ///
            /// # Errors
            /// [`ParseError::Truncated`](crate::ParseError::Truncated) if `bytes` is shorter than
            #[doc = concat!("the ", $name, ".")]
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, crate::ParseError> {
                match bytes.first_chunk() {
                    Some(bytes) => Ok(Self::from_bytes(bytes)),
                    None => Err(crate::ParseError::Truncated {
                        what: $name,
                        need: Self::LEN,
                        have: bytes.len(),
                    }),
                }
            }

            #[doc = concat!("The ", $name, " in `bytes`.")]
            #[inline(always)] // Callers may use one field: a call would read all.
            #[must_use]
            pub(crate) fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
                let view: &$view = zerocopy::transmute_ref!(bytes);
                Self::from(view)
            }

            #[doc = concat!("The ", $name, " as it goes on the wire.")]
            #[inline(always)] // Most fields may be constants.
            #[must_use]
            pub fn to_bytes(&self) -> [u8; Self::LEN] {
                zerocopy::transmute!(<$view>::from(self))
            }

            #[doc = concat!("Writes the ", $name, " at the front of `out`.")]
            ///
            /// # Panics
            /// If `out` is shorter than [`LEN`](Self::LEN).
            #[inline(always)] // As `to_bytes`.
            pub fn write(&self, out: &mut [u8]) {
                out[..Self::LEN].copy_from_slice(&self.to_bytes());
            }
        }
    };
}
