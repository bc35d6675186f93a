//! Ethernet (MAC) addresses.

use core::{fmt, str::FromStr};

use thiserror::Error;

/// A 48-bit Ethernet address, in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns true for group addresses, broadcast included.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns the modified EUI-64 of RFC 4291, with the universal/local bit inverted: the
    /// interface identifier of IPv6, and the node GUID of a RoCE device.
    #[must_use]
    pub const fn eui64(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.0;
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Text that is not six two-digit hexadecimal numbers joined by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a MAC address (expected aa:bb:cc:dd:ee:ff)")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or(ParseMacError)?;
            // from_str_radix alone accepts "+f".
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(ParseMacError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() {
            return Err(ParseMacError);
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::string::ToString;

    #[test]
    fn text_is_formatted_and_parsed() {
        let mac = MacAddr([0x02, 0x77, 0, 0, 1, 0xfe]);
        assert_eq!(mac.to_string(), "02:77:00:00:01:fe");
        assert_eq!("02:77:00:00:01:fe".parse(), Ok(mac));
        assert_eq!("02:77:00:00:01:FE".parse(), Ok(mac));
        for wrong in [
            "",
            "02:77:00:00:01",
            "02:77:00:00:01:fe:00",
            "2:77:0:0:1:fe",
            "+2:77:00:00:01:fe",
            "02-77-00-00-01-fe",
        ] {
            assert_eq!(wrong.parse::<MacAddr>(), Err(ParseMacError), "{wrong}");
        }
    }

    #[test]
    fn the_interface_identifier_inverts_the_local_bit() {
        let [universal, local] = [0x00, 0x02].map(|first| MacAddr([first, 0x77, 3, 4, 5, 6]));
        assert_eq!(universal.eui64(), [0x02, 0x77, 3, 0xff, 0xfe, 4, 5, 6]);
        assert_eq!(local.eui64(), [0x00, 0x77, 3, 0xff, 0xfe, 4, 5, 6]);
    }

    #[test]
    fn group_addresses_are_recognised() {
        assert!(MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr([0x01, 0, 0x5e, 0, 0, 1]).is_multicast());
        assert!(!MacAddr([0x02, 0, 0, 0, 0, 1]).is_multicast());
    }
}
