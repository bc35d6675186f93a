//! What two ends exchange to connect: [`Endpoint`], and [`RemoteAddr`] for each memory region that
//! the peer may access. As bytes, and with the feature `serde` as fields.

use std::num::NonZeroU64;

use feroce_wire::{Key, Psn, Qpn};

use super::HostId;
use crate::net::Gid;
use crate::verbs::RemoteAddr;

/// What each end sends to the other before connecting. The channel is the program's choice, for
/// example TCP.
///
/// ```
/// # use feroce_engine::device::{Device, DeviceConfig, Endpoint, QpInit};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let [device, _] = Device::open_pair(&DeviceConfig::default())?;
/// # let qp = device.alloc_pd().create_qp(&QpInit::new(&device.create_cq(16)?))?;
/// let endpoint = qp.endpoint(device.random_psn()?, device.default_gid_index())?;
/// let bytes: [u8; 32] = endpoint.to_bytes(); // to send
/// assert_eq!(Endpoint::from_bytes(&bytes)?, endpoint);
/// # Ok(())
/// # }
/// ```
///
/// With the feature `serde`, the fields are `qpn` and `psn` as numbers, `gid` as text,
/// `super_frames` as text of 16 hexadecimal digits or nothing, and `selective_repeat`:
/// `{"qpn":17,"psn":4711,"gid":"0000:0000:0000:0000:0000:ffff:0a00:0001","super_frames":null,
/// "selective_repeat":false}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// QP number.
    pub qpn: Qpn,
    /// First PSN that this side sends.
    pub psn: Psn,
    /// GID.
    pub gid: Gid,
    /// The host within which the port carries super-frames. The connection uses super-frames if
    /// both ends name the same host. `None` for peers that do not announce it, such as other RNICs.
    pub super_frames: Option<HostId>,
    /// The QP can hold packets behind a lost one. The connection uses selective repeat if both ends
    /// can.
    pub selective_repeat: bool,
}

/// Why an [`Endpoint`] cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The first byte names another format.
    #[error("an endpoint in format {0}; this version reads format 1")]
    Format(u8),
    /// The flags have bits that this version does not know.
    #[error("the flags of an endpoint are {0:#04x}; this version knows 0x01")]
    Flags(u8),
}

/// Format of [`Endpoint::to_bytes`].
const FORMAT: u8 = 1;

/// Flag of [`Endpoint::to_bytes`].
const SELECTIVE_REPEAT: u8 = 1;

impl Endpoint {
    /// Length of the byte form.
    pub const LEN: usize = 32;

    /// The end of a peer that announces neither super-frames nor selective repeat, such as another
    /// RNIC.
    pub const fn new(qpn: Qpn, psn: Psn, gid: Gid) -> Self {
        Self { qpn, psn, gid, super_frames: None, selective_repeat: false }
    }

    /// Returns the byte form. Numbers are big-endian.
    ///
    /// ```text
    /// 0        format, 1
    /// 1 to 3   QP number
    /// 4        flags: 0x01 selective repeat
    /// 5 to 7   PSN
    /// 8 to 23  GID
    /// 24 to 31 host of super-frames, 0 for none
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let host = self.super_frames.map_or(0, |host| host.0.get());
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.qpn.value().to_be_bytes());
        bytes[4..8].copy_from_slice(&self.psn.value().to_be_bytes());
        bytes[8..24].copy_from_slice(&self.gid.0);
        bytes[24..].copy_from_slice(&host.to_be_bytes());
        bytes[0] = FORMAT;
        bytes[4] = if self.selective_repeat { SELECTIVE_REPEAT } else { 0 };
        bytes
    }

    /// Reads the byte form.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, EndpointError> {
        let [format, q0, q1, q2, flags, p0, p1, p2, rest @ ..] = *bytes;
        if format != FORMAT {
            return Err(EndpointError::Format(format));
        }
        if flags & !SELECTIVE_REPEAT != 0 {
            return Err(EndpointError::Flags(flags));
        }
        let (mut gid, mut host) = ([0; 16], [0; 8]);
        gid.copy_from_slice(&rest[..16]);
        host.copy_from_slice(&rest[16..]);
        Ok(Self {
            qpn: Qpn::masked(u32::from_be_bytes([0, q0, q1, q2])),
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
            gid: Gid(gid),
            super_frames: NonZeroU64::new(u64::from_be_bytes(host)).map(HostId),
            selective_repeat: flags != 0,
        })
    }
}

impl RemoteAddr {
    /// Length of the byte form.
    pub const LEN: usize = 12;

    /// Returns the byte form: address (8 bytes), then R_Key (4 bytes), both big-endian.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..].copy_from_slice(&self.rkey.value().to_be_bytes());
        bytes
    }

    /// Reads the byte form. All bytes are valid; the peer's RNIC checks address and key.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let (mut addr, mut rkey) = ([0; 8], [0; 4]);
        addr.copy_from_slice(&bytes[..8]);
        rkey.copy_from_slice(&bytes[8..]);
        Self { addr: u64::from_be_bytes(addr), rkey: Key(u32::from_be_bytes(rkey)) }
    }
}

/// The fields as serde reads and writes them.
#[cfg(feature = "serde")]
mod fields {
    use std::num::NonZeroU64;

    use feroce_wire::{Key, Psn, Qpn};
    use serde::de::{Error, Unexpected};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Endpoint, HostId, RemoteAddr};

    #[derive(Serialize, Deserialize)]
    #[serde(rename = "Endpoint")]
    struct EndpointFields {
        qpn: u32,
        psn: u32,
        gid: String,
        #[serde(default)]
        super_frames: Option<String>,
        #[serde(default)]
        selective_repeat: bool,
    }

    impl Serialize for Endpoint {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let fields = EndpointFields {
                qpn: self.qpn.value(),
                psn: self.psn.value(),
                gid: self.gid.to_string(),
                super_frames: self.super_frames.map(|host| host.to_string()),
                selective_repeat: self.selective_repeat,
            };
            fields.serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Endpoint {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let fields = EndpointFields::deserialize(deserializer)?;
            let number = |value: u32| {
                let too_large = Unexpected::Unsigned(u64::from(value));
                Qpn::new(value).ok_or_else(|| D::Error::invalid_value(too_large, &"24 bits"))
            };
            let host = |text: String| {
                let id = u64::from_str_radix(&text, 16).ok().and_then(NonZeroU64::new);
                let expected = "a host as hexadecimal digits, not 0";
                id.map(HostId)
                    .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &expected))
            };
            Ok(Self {
                qpn: number(fields.qpn)?,
                psn: Psn::new(number(fields.psn)?.value()),
                gid: fields.gid.parse().map_err(D::Error::custom)?,
                super_frames: fields.super_frames.map(host).transpose()?,
                selective_repeat: fields.selective_repeat,
            })
        }
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename = "RemoteAddr")]
    struct RemoteAddrFields {
        addr: u64,
        rkey: u32,
    }

    impl Serialize for RemoteAddr {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            RemoteAddrFields { addr: self.addr, rkey: self.rkey.value() }.serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for RemoteAddr {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let RemoteAddrFields { addr, rkey } = Deserialize::deserialize(deserializer)?;
            Ok(Self { addr, rkey: Key(rkey) })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn endpoint(host: u64) -> Endpoint {
        Endpoint {
            qpn: Qpn::masked(0x12_3456),
            psn: Psn::new(0xab_cdef),
            gid: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
            super_frames: NonZeroU64::new(host).map(HostId),
            selective_repeat: false,
        }
    }

    /// The byte form is fixed: programs of different versions exchange it.
    #[test]
    fn the_bytes_of_an_endpoint() {
        let mut expected = [
            1, 0x12, 0x34, 0x56, 0, 0xab, 0xcd, 0xef, // format, QP number, reserved, PSN
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1, // GID
            1, 2, 3, 4, 5, 6, 7, 8, // host
        ];
        assert_eq!(endpoint(0x0102_0304_0506_0708).to_bytes(), expected);
        expected[24..].fill(0);
        assert_eq!(endpoint(0).to_bytes(), expected);
        expected[4] = 1;
        assert_eq!(Endpoint { selective_repeat: true, ..endpoint(0) }.to_bytes(), expected);
    }

    #[test]
    fn other_formats_are_refused() {
        let mut bytes = endpoint(0).to_bytes();
        bytes[4] = 9;
        assert_eq!(Endpoint::from_bytes(&bytes), Err(EndpointError::Flags(9)));
        bytes[0] = 2;
        assert_eq!(Endpoint::from_bytes(&bytes), Err(EndpointError::Format(2)));
        assert_eq!(Endpoint::from_bytes(&[0; 32]), Err(EndpointError::Format(0)));
    }

    #[test]
    fn the_bytes_of_a_remote_address() {
        let remote = RemoteAddr { addr: 0x0102_0304_0506_0708, rkey: Key(0x090a_0b0c) };
        assert_eq!(remote.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(RemoteAddr::from_bytes(&remote.to_bytes()), remote);
    }

    proptest! {
        #[test]
        fn valid_bytes_are_read_and_written_again(mut bytes: [u8; 32]) {
            (bytes[0], bytes[4]) = (1, bytes[4] & 1);
            prop_assert_eq!(Endpoint::from_bytes(&bytes).unwrap().to_bytes(), bytes);
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn the_fields_as_json() {
        let text = concat!(
            r#"{"qpn":1193046,"psn":11259375,"gid":"0000:0000:0000:0000:0000:ffff:0a00:0001","#,
            r#""super_frames":"000000000000000b","selective_repeat":false}"#
        );
        assert_eq!(serde_json::to_string(&endpoint(11)).unwrap(), text);
        assert_eq!(serde_json::from_str::<Endpoint>(text).unwrap(), endpoint(11));
        let short = r#"{"qpn":1193046,"psn":11259375,"gid":"10.0.0.1"}"#;
        assert_eq!(serde_json::from_str::<Endpoint>(short).unwrap(), endpoint(0));

        let remote = RemoteAddr { addr: u64::MAX, rkey: Key(7) };
        let text = r#"{"addr":18446744073709551615,"rkey":7}"#;
        assert_eq!(serde_json::to_string(&remote).unwrap(), text);
        assert_eq!(serde_json::from_str::<RemoteAddr>(text).unwrap(), remote);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn invalid_fields_are_refused() {
        for (qpn, psn, gid, host, expected) in [
            ("16777216", "1", "::1", "null", "24 bits"),
            ("1", "16777216", "::1", "null", "24 bits"),
            ("1", "1", "here", "null", "neither a GID nor an IP address"),
            ("1", "1", "::1", "\"0\"", "a host as hexadecimal digits"),
            ("1", "1", "::1", "\"x\"", "a host as hexadecimal digits"),
        ] {
            let text =
                format!(r#"{{"qpn":{qpn},"psn":{psn},"gid":"{gid}","super_frames":{host}}}"#);
            let error = serde_json::from_str::<Endpoint>(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
