//! What DCB netlink carries, as types; `linux/dcbnl.h` in words.

use serde::Serialize;

/// All that an interface has of IEEE 802.1Qaz; `None` and empty where its driver has nothing to say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ieee {
    /// Priority flow control.
    pub pfc: Option<Pfc>,
    /// Enhanced transmission selection.
    pub ets: Option<Ets>,
    /// Priorities of applications and DSCPs.
    pub apps: Vec<App>,
    /// Rate limits.
    pub max_rate: Option<MaxRate>,
    /// Receive buffers.
    pub buffers: Option<Buffers>,
    /// What of a packet tells its priority, the first that it has; `None` where the driver does not say.
    pub trust: Option<Vec<Selector>>,
    /// What the neighbour said of PFC.
    pub peer_pfc: Option<Pfc>,
    /// What the neighbour said of ETS.
    pub peer_ets: Option<Ets>,
}

impl Ieee {
    /// The priority of a DSCP, if the table has one. The largest counts, as in the kernel.
    pub fn priority_of_dscp(&self, dscp: u8) -> Option<u8> {
        let entries = self.apps.iter().filter(|app| app.selector == Selector::Dscp);
        entries.filter(|app| app.protocol == u16::from(dscp)).map(|app| app.priority).max()
    }
}

/// `struct ieee_pfc`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pfc {
    /// How many priorities can have PFC at a time.
    pub capable: u8,
    /// Those that have it, a bit each.
    pub enabled: u8,
    /// MACsec bypass.
    pub macsec_bypass: bool,
    /// Allowance for the cable's round trip in bit times; with some drivers, metres.
    pub delay: u16,
    /// PFC frames sent, by priority.
    pub requests: [u64; 8],
    /// PFC frames received, by priority.
    pub indications: [u64; 8],
}

impl Pfc {
    /// The priorities that have PFC.
    pub fn priorities(&self) -> impl Iterator<Item = u8> + use<> {
        let enabled = self.enabled;
        (0..8).filter(move |priority| enabled >> priority & 1 == 1)
    }
}

/// How a traffic class takes its turn: transmission selection algorithm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tsa {
    /// Ahead of all lower ones.
    #[default]
    Strict,
    /// Credit-based shaper.
    CreditBased,
    /// By its share of the bandwidth.
    Ets,
    /// The vendor knows.
    Vendor,
    /// A number without a meaning yet.
    Other(u8),
}

impl From<u8> for Tsa {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Strict,
            1 => Self::CreditBased,
            2 => Self::Ets,
            255 => Self::Vendor,
            other => Self::Other(other),
        }
    }
}

/// `struct ieee_ets`, without what is recommended to the neighbour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Ets {
    /// Takes what the neighbour recommends.
    pub willing: bool,
    /// How many traffic classes can have a share.
    pub capable: u8,
    /// The credit-based shaper is there.
    pub credit_based: bool,
    /// Per cent of the bandwidth, by traffic class.
    pub bandwidth: [u8; 8],
    /// How each traffic class takes its turn.
    pub tsa: [Tsa; 8],
    /// The traffic class of each priority.
    pub class_of: [u8; 8],
}

/// What an entry of the table of applications looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selector {
    /// EtherType; 0 is the default priority.
    EtherType,
    /// Port of TCP or SCTP.
    Stream,
    /// Port of UDP or DCCP.
    Datagram,
    /// Port of any of these.
    Port,
    /// DSCP.
    Dscp,
    /// Priority and drop eligibility of the VLAN tag.
    Pcp,
    /// A number without a meaning yet.
    Other(u8),
}

/// Selectors by their numbers.
const SELECTORS: [(u8, Selector); 6] = [
    (1, Selector::EtherType),
    (2, Selector::Stream),
    (3, Selector::Datagram),
    (4, Selector::Port),
    (5, Selector::Dscp),
    (255, Selector::Pcp),
];

impl From<u8> for Selector {
    fn from(number: u8) -> Self {
        let known = SELECTORS.iter().find(|(known, _)| *known == number);
        known.map_or(Self::Other(number), |(_, selector)| *selector)
    }
}

impl Selector {
    /// Its number.
    pub fn number(self) -> u8 {
        match self {
            Self::Other(number) => number,
            known => SELECTORS.iter().find(|(_, s)| *s == known).map_or(0, |(number, _)| *number),
        }
    }
}

/// `struct dcb_app`: a priority for an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct App {
    /// What is looked at.
    pub selector: Selector,
    /// Its value: EtherType, port, DSCP.
    pub protocol: u16,
    /// The priority.
    pub priority: u8,
}

/// `struct ieee_maxrate`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MaxRate {
    /// Most kilobits per second, by traffic class; 0 for no limit.
    pub kilobits: [u64; 8],
}

/// `struct dcbnl_buffer`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Buffers {
    /// The receive buffer of each priority.
    pub buffer_of: [u8; 8],
    /// Bytes of each buffer.
    pub sizes: [u32; 8],
    /// Bytes of all.
    pub total: u32,
}

/// Who speaks DCBX with the neighbour (`DCB_CAP_DCBX_...`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Dcbx {
    /// The host, by a daemon as lldpad.
    pub host: bool,
    /// The NIC's firmware.
    pub firmware: bool,
    /// As before IEEE (CEE).
    pub cee: bool,
    /// As IEEE has it.
    pub ieee: bool,
    /// Nobody negotiates.
    pub is_static: bool,
}

impl From<u8> for Dcbx {
    fn from(bits: u8) -> Self {
        let has = |bit: u8| bits >> bit & 1 == 1;
        Self { host: has(0), firmware: has(1), cee: has(2), ieee: has(3), is_static: has(4) }
    }
}
