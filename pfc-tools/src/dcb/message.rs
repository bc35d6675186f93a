//! DCB netlink messages: `struct dcbmsg` with its attributes, encoding and decoding.

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NetlinkDeserializable, NetlinkHeader,
    NetlinkSerializable, NlasIterator,
};

use super::error::DcbError;
use super::value::{App, Buffers, Dcbx, Ets, Ieee, MaxRate, Pfc, Selector, Setting, Tsa};

const RTM_GETDCB: u16 = 78;
const RTM_SETDCB: u16 = 79;
/// Size of `struct dcbmsg`: address family, command, two bytes of padding.
const HEAD: usize = 4;

const IEEE_SET: u8 = 20;
const IEEE_GET: u8 = 21;
const GDCBX: u8 = 22;

const ATTR_IFNAME: u16 = 1;
const ATTR_IEEE: u16 = 13;
const ATTR_DCBX: u16 = 14;

/// Attributes nested in [`ATTR_IEEE`].
mod within {
    pub const ETS: u16 = 1;
    pub const PFC: u16 = 2;
    pub const APP_TABLE: u16 = 3;
    pub const PEER_ETS: u16 = 4;
    pub const PEER_PFC: u16 = 5;
    pub const MAX_RATE: u16 = 7;
    pub const BUFFER: u16 = 10;
    pub const TRUST_TABLE: u16 = 11;
}

/// Attribute types of table entries: IEEE, and Linux's extension.
const APP: u16 = 1;
const APP_OF_LINUX: u16 = 2;

/// A DCB message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DcbMessage {
    kind: u16,
    command: u8,
    /// Encoded attributes.
    attributes: Vec<u8>,
}

impl DcbMessage {
    fn new(kind: u16, command: u8, interface: &str, more: Option<DefaultNla>) -> Self {
        let mut name = interface.as_bytes().to_vec();
        name.push(0);
        let name = DefaultNla::new(ATTR_IFNAME, name);
        let all: Vec<DefaultNla> = [name].into_iter().chain(more).collect();
        Self { kind, command, attributes: bytes(&all) }
    }

    pub fn get_ieee(interface: &str) -> Self {
        Self::new(RTM_GETDCB, IEEE_GET, interface, None)
    }

    pub fn get_dcbx(interface: &str) -> Self {
        Self::new(RTM_GETDCB, GDCBX, interface, None)
    }

    pub fn set(interface: &str, setting: &Setting) -> Self {
        let within = match setting {
            Setting::Pfc(pfc) => DefaultNla::new(within::PFC, pfc_bytes(pfc)),
            Setting::App(app) => {
                let kind = if app.selector == Selector::Pcp { APP_OF_LINUX } else { APP };
                let [low, high] = app.protocol.to_ne_bytes();
                let entry = vec![app.selector.number(), app.priority, low, high];
                let entry = bytes(&[DefaultNla::new(kind, entry)]);
                DefaultNla::new(within::APP_TABLE | NLA_F_NESTED, entry)
            }
        };
        let ieee = DefaultNla::new(ATTR_IEEE | NLA_F_NESTED, bytes(&[within]));
        Self::new(RTM_SETDCB, IEEE_SET, interface, Some(ieee))
    }
}

fn bytes(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

impl NetlinkSerializable for DcbMessage {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        HEAD + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..HEAD].copy_from_slice(&[0, self.command, 0, 0]);
        buffer[HEAD..].copy_from_slice(&self.attributes);
    }
}

impl NetlinkDeserializable for DcbMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        match payload.split_at_checked(HEAD) {
            Some((&[_, command, ..], attributes)) => {
                Ok(Self { kind: header.message_type, command, attributes: attributes.to_vec() })
            }
            _ => Err(DecodeError::from("shorter than struct dcbmsg")),
        }
    }
}

/// Type and value of each attribute.
fn attributes(bytes: &[u8]) -> Result<Vec<(u16, Vec<u8>)>, DcbError> {
    let broken = |_| DcbError::Malformed("an attribute is longer than its message");
    NlasIterator::new(bytes)
        .map(|attribute| attribute.map(|a| (a.kind(), a.value().to_vec())).map_err(broken))
        .collect()
}

fn one(message: &DcbMessage, kind: u16) -> Result<Option<Vec<u8>>, DcbError> {
    let found = attributes(&message.attributes)?.into_iter().find(|(other, _)| *other == kind);
    Ok(found.map(|(_, value)| value))
}

/// Decodes a response to `DCB_CMD_IEEE_GET`.
pub(super) fn ieee(message: &DcbMessage) -> Result<Ieee, DcbError> {
    let missing = DcbError::Malformed("a response without DCB_ATTR_IEEE");
    let value = one(message, ATTR_IEEE)?.ok_or(missing)?;
    let mut ieee = Ieee::default();
    for (kind, value) in attributes(&value)? {
        match kind {
            within::PFC => ieee.pfc = Some(pfc(&value)?),
            within::PEER_PFC => ieee.peer_pfc = Some(pfc(&value)?),
            within::ETS => ieee.ets = Some(ets(&value)?),
            within::PEER_ETS => ieee.peer_ets = Some(ets(&value)?),
            within::MAX_RATE => {
                ieee.max_rate = Some(MaxRate { kilobits: Reader(&value).words()? });
            }
            within::BUFFER => ieee.buffers = Some(buffers(&value)?),
            within::APP_TABLE => {
                let entries = attributes(&value)?.into_iter();
                ieee.apps = entries.map(|(_, entry)| app(&entry)).collect::<Result<_, _>>()?;
            }
            within::TRUST_TABLE => {
                let entries = attributes(&value)?.into_iter();
                let selector = |(_, entry): (u16, Vec<u8>)| Reader(&entry).byte().map(Into::into);
                ieee.trust = Some(entries.map(selector).collect::<Result<_, _>>()?);
            }
            // Unknown attributes, of newer kernels or QCN.
            _ => {}
        }
    }
    Ok(ieee)
}

/// Decodes a response to `DCB_CMD_GDCBX`.
pub(super) fn dcbx(message: &DcbMessage) -> Result<Dcbx, DcbError> {
    let value = one(message, ATTR_DCBX)?.ok_or(DcbError::Malformed("no DCB_ATTR_DCBX"))?;
    Ok(Reader(&value).byte()?.into())
}

/// Result of a set request: 0, or a negated error number in a signed byte.
pub(super) fn set_outcome(message: &DcbMessage) -> Result<i32, DcbError> {
    let value =
        one(message, ATTR_IEEE)?.ok_or(DcbError::Malformed("no result of the set request"))?;
    Ok(i32::from(Reader(&value).byte()?.cast_signed()))
}

/// Reads the fields of a structure in native byte order.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DcbError> {
        let short = DcbError::Malformed("a structure is shorter than in linux/dcbnl.h");
        let (array, rest) = self.0.split_first_chunk().ok_or(short)?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, DcbError> {
        self.array().map(|[byte]| byte)
    }

    fn half(&mut self) -> Result<u16, DcbError> {
        self.array().map(u16::from_ne_bytes)
    }

    fn words(&mut self) -> Result<[u64; 8], DcbError> {
        let mut words = [0; 8];
        for word in &mut words {
            *word = u64::from_ne_bytes(self.array()?);
        }
        Ok(words)
    }
}

fn pfc(value: &[u8]) -> Result<Pfc, DcbError> {
    let mut read = Reader(value);
    let [capable, enabled, bypass, _] = read.array()?;
    let delay = read.half()?;
    read.half()?;
    let (requests, indications) = (read.words()?, read.words()?);
    Ok(Pfc { capable, enabled, macsec_bypass: bypass != 0, delay, requests, indications })
}

fn pfc_bytes(pfc: &Pfc) -> Vec<u8> {
    let mut bytes = vec![pfc.capable, pfc.enabled, u8::from(pfc.macsec_bypass), 0];
    bytes.extend(pfc.delay.to_ne_bytes());
    bytes.extend([0, 0]);
    let counters = pfc.requests.iter().chain(&pfc.indications);
    counters.for_each(|counter| bytes.extend(counter.to_ne_bytes()));
    bytes
}

fn ets(value: &[u8]) -> Result<Ets, DcbError> {
    let mut read = Reader(value);
    let [willing, capable, credit_based] = read.array()?;
    let bandwidth = read.array()?;
    let _receive: [u8; 8] = read.array()?;
    let tsa: [u8; 8] = read.array()?;
    let class_of = read.array()?;
    let (willing, credit_based) = (willing != 0, credit_based != 0);
    Ok(Ets { willing, capable, credit_based, bandwidth, tsa: tsa.map(Tsa::from), class_of })
}

fn app(value: &[u8]) -> Result<App, DcbError> {
    let mut read = Reader(value);
    let [selector, priority] = read.array()?;
    Ok(App { selector: selector.into(), priority, protocol: read.half()? })
}

fn buffers(value: &[u8]) -> Result<Buffers, DcbError> {
    let mut read = Reader(value);
    let buffer_of = read.array()?;
    let mut sizes = [0; 8];
    for size in &mut sizes {
        *size = u32::from_ne_bytes(read.array()?);
    }
    Ok(Buffers { buffer_of, sizes, total: u32::from_ne_bytes(read.array()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(kind: u16, within: &[DefaultNla]) -> DefaultNla {
        DefaultNla::new(kind | NLA_F_NESTED, bytes(within))
    }

    fn response(within: &[DefaultNla]) -> DcbMessage {
        let more = nested(ATTR_IEEE, within);
        DcbMessage::new(RTM_GETDCB, IEEE_GET, "eth0", Some(more))
    }

    #[test]
    fn a_request_has_the_kernels_layout() {
        let request = DcbMessage::get_ieee("eth0");
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        // AF_UNSPEC and the command; an attribute of 9 bytes and type 1, and padding.
        let mut expected = vec![0, 21, 0, 0];
        expected.extend(9_u16.to_ne_bytes());
        expected.extend(1_u16.to_ne_bytes());
        expected.extend(b"eth0\0\0\0\0");
        assert_eq!((request.message_type(), bytes), (78, expected));
    }

    /// 802.1Qaz.
    #[test]
    fn structures_are_decoded() {
        // A response of mlx5: PFC on priority 3 of eight, one frame sent and two received there.
        let mut value = vec![8, 1 << 3, 0, 0];
        value.extend(7_u16.to_ne_bytes());
        value.extend([0, 0]);
        (0..16).for_each(|n| {
            value.extend(u64::to_ne_bytes(match n {
                3 => 1,
                11 => 2,
                _ => 0,
            }))
        });
        assert_eq!(value.len(), 136, "sizeof(struct ieee_pfc)");
        let mut shares = vec![1, 8, 0];
        shares.extend([0, 0, 0, 60, 40, 0, 0, 0]);
        shares.extend([0; 8]);
        shares.extend([0, 0, 0, 2, 2, 1, 255, 9]);
        shares.extend([0, 1, 2, 3, 4, 5, 6, 7]);
        shares.extend([0; 24]);
        assert_eq!(shares.len(), 59, "sizeof(struct ieee_ets)");
        let mut sizes = vec![0, 0, 0, 1, 0, 0, 0, 0];
        for size in [20_000_u32, 156_096, 0, 0, 0, 0, 0, 0, 262_016] {
            sizes.extend(size.to_ne_bytes());
        }
        let dscp = [&[5, 3][..], &26_u16.to_ne_bytes()].concat();
        let ethertype = [&[1, 1][..], &0x8915_u16.to_ne_bytes()].concat();
        let ieee = ieee(&response(&[
            DefaultNla::new(within::ETS, shares),
            DefaultNla::new(within::PFC, value.clone()),
            nested(
                within::APP_TABLE,
                &[DefaultNla::new(APP, dscp), DefaultNla::new(APP, ethertype)],
            ),
            DefaultNla::new(within::BUFFER, sizes),
            nested(
                within::TRUST_TABLE,
                &[DefaultNla::new(APP, vec![5]), DefaultNla::new(APP_OF_LINUX, vec![255])],
            ),
            DefaultNla::new(8, vec![1, 2, 3]),
        ]))
        .expect("a response");
        let pfc = ieee.pfc.expect("PFC");
        assert_eq!((pfc.capable, pfc.delay, pfc.requests[3], pfc.indications[3]), (8, 7, 1, 2));
        assert_eq!(pfc.priorities().collect::<Vec<_>>(), [3]);
        assert_eq!(pfc_bytes(&pfc), value);
        let ets = ieee.ets.expect("ETS");
        assert_eq!((ets.willing, ets.bandwidth[3], ets.class_of[7]), (true, 60, 7));
        assert_eq!(
            ets.tsa[2..],
            [Tsa::Strict, Tsa::Ets, Tsa::Ets, Tsa::CreditBased, Tsa::Vendor, Tsa::Other(9)]
        );
        assert_eq!((ieee.priority_of_dscp(26), ieee.priority_of_dscp(48)), (Some(3), None));
        assert_eq!(
            ieee.apps[1],
            App { selector: Selector::EtherType, protocol: 0x8915, priority: 1 }
        );
        let buffers = ieee.buffers.expect("buffers");
        assert_eq!((buffers.buffer_of[3], buffers.sizes[1], buffers.total), (1, 156_096, 262_016));
        assert_eq!(ieee.trust, Some(vec![Selector::Dscp, Selector::Pcp]));
        assert_eq!((ieee.max_rate, ieee.peer_pfc), (None, None));
    }

    #[test]
    fn set_requests_can_be_decoded() {
        let pfc = Pfc { enabled: 0x18, delay: 100, ..Pfc::default() };
        let set = DcbMessage::set("eth0", &Setting::Pfc(pfc));
        assert_eq!((set.kind, set.command), (79, 20));
        assert_eq!(ieee(&set).expect("the same form").pfc, Some(pfc));
        let app = App { selector: Selector::Dscp, protocol: 48, priority: 6 };
        let set = DcbMessage::set("eth0", &Setting::App(app));
        assert_eq!(ieee(&set).expect("the same form").apps, [app]);
    }

    #[test]
    fn truncated_messages_are_refused() {
        let pfc = DefaultNla::new(within::PFC, pfc_bytes(&Pfc::default())[..100].to_vec());
        assert!(matches!(ieee(&response(&[pfc])), Err(DcbError::Malformed(_))));
        assert!(matches!(ieee(&DcbMessage::get_ieee("x")), Err(DcbError::Malformed(_))));
        let whole = response(&[DefaultNla::new(within::PFC, pfc_bytes(&Pfc::default()))]);
        for length in 0..whole.attributes.len() {
            let attributes = whole.attributes[..length].to_vec();
            assert!(ieee(&DcbMessage { attributes, ..whole.clone() }).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn dcbx_modes_are_bits() {
        let value = DefaultNla::new(ATTR_DCBX, vec![0x09]);
        let message = DcbMessage::new(RTM_GETDCB, GDCBX, "eth0", Some(value));
        let dcbx = dcbx(&message).expect("a response");
        assert!(dcbx.host && dcbx.ieee && !dcbx.cee && !dcbx.firmware && !dcbx.is_static);
    }
}
