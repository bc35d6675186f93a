//! Fields of a message by bit position: the table of a message generates its parser and writer.

use crate::{Pkey, Psn, Qkey, Qpn};

/// Bytes of a message after the MAD header.
pub(super) const BODY_LEN: usize = crate::mad::MAD_LEN - crate::mad::MadHeader::LEN;

/// The body of a MAD.
pub(super) type Body = [u8; BODY_LEN];

/// The `width` bits (at most 64) from bit `at` on, counted from the top bit of byte 0.
pub(super) fn get(body: &Body, at: usize, width: usize) -> u64 {
    (at..at + width).fold(0, |value, bit| {
        let byte = body[bit / 8];
        value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
    })
}

/// Sets what [`get`] reads to the low `width` bits of `value`.
pub(super) fn set(body: &mut Body, at: usize, width: usize, value: u64) {
    for (index, bit) in (at..at + width).enumerate() {
        let mask = 1 << (7 - bit % 8);
        if value >> (width - 1 - index) & 1 == 1 {
            body[bit / 8] |= mask;
        } else {
            body[bit / 8] &= !mask;
        }
    }
}

/// A value stored in some bits of a message.
pub(super) trait Field: Copy {
    fn from_bits(bits: u64) -> Self;
    fn to_bits(self) -> u64;
}

/// Integer fields; the table gives them no more bits than the type has.
macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            #[allow(clippy::cast_possible_truncation)] // the width in the table fits the type
            fn from_bits(bits: u64) -> Self {
                bits as $number
            }
            fn to_bits(self) -> u64 {
                self.into()
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl Field for bool {
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
    fn to_bits(self) -> u64 {
        self.into()
    }
}

/// Fields of newtypes, by the number inside.
macro_rules! names {
    ($($name:ty, $number:ty, $from:expr, $to:expr;)*) => {$(
        impl Field for $name {
            fn from_bits(bits: u64) -> Self {
                $from(<$number>::from_bits(bits))
            }
            fn to_bits(self) -> u64 {
                u64::from($to(self))
            }
        }
    )*};
}

names! {
    Qpn, u32, Qpn::masked, Qpn::value;
    Psn, u32, Psn::new, Psn::value;
    Qkey, u32, Qkey, |key: Qkey| key.0;
    Pkey, u16, Pkey, |key: Pkey| key.0;
    super::RejectReason, u16, super::RejectReason, |reason: super::RejectReason| reason.0;
    super::SidrStatus, u8, super::SidrStatus, |status: super::SidrStatus| status.0;
    super::ServiceId, u64, super::ServiceId, |id: super::ServiceId| id.0;
}

/// Defines a message from the table of its fields: `bits(first, width)` counts bits from the front
/// of the message, `bytes(first)` bytes. Bits outside all fields are sent as 0 and ignored when
/// received.
macro_rules! message {
    (@get $body:ident bits($at:expr, $width:expr)) => {
        $crate::cm::bits::Field::from_bits($crate::cm::bits::get($body, $at, $width))
    };
    (@get $body:ident bytes($at:expr)) => {
        core::array::from_fn(|index| $body[$at + index])
    };
    (@set $body:ident $value:expr, bits($at:expr, $width:expr)) => {
        let bits = $crate::cm::bits::Field::to_bits($value);
        $crate::cm::bits::set($body, $at, $width, bits)
    };
    (@set $body:ident $value:expr, bytes($at:expr)) => {
        $body[$at..$at + $value.len()].copy_from_slice(&$value)
    };
    (
        $(#[$doc:meta])*
        $name:ident = $attribute:literal {
            $($(#[$field_doc:meta])* $field:ident: $kind:ty = $how:ident($($place:expr),*),)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        impl $name {
            /// MAD attribute of this message.
            pub const ATTRIBUTE: u16 = $attribute;

            pub(super) fn read(body: &$crate::cm::bits::Body) -> Self {
                Self { $($field: message!(@get body $how($($place),*)),)* }
            }

            pub(super) fn write(&self, body: &mut $crate::cm::bits::Body) {
                $(message!(@set body self.$field, $how($($place),*));)*
            }
        }

        /// All zeros.
        impl Default for $name {
            fn default() -> Self {
                Self::read(&[0; $crate::cm::bits::BODY_LEN])
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_begin_at_any_bit() {
        let mut body = [0; BODY_LEN];
        set(&mut body, 4, 12, 0xabc);
        set(&mut body, 16, 24, 0x12_3456);
        assert_eq!(body[..6], [0x0a, 0xbc, 0x12, 0x34, 0x56, 0]);
        assert_eq!(
            (get(&body, 4, 12), get(&body, 16, 24), get(&body, 0, 4)),
            (0xabc, 0x12_3456, 0)
        );
        set(&mut body, 0, 64, u64::MAX);
        set(&mut body, 8, 5, 0b10011);
        assert_eq!(body[..3], [0xff, 0b1001_1111, 0xff]);
        set(&mut body, BODY_LEN * 8 - 1, 1, 0xff);
        assert_eq!(body[BODY_LEN - 1], 1, "only the low bits of a value are set");
    }
}
