//! The values of DCB netlink as types, after `linux/dcbnl.h`.

use serde::Serialize;

/// IEEE 802.1Qaz state of an interface. `None` or empty where the driver does not report a value.
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
    /// Trust mode: the selectors that determine a packet's priority, in order of preference; `None`
    /// if the driver does not report it.
    pub trust: Option<Vec<Selector>>,
    /// PFC settings received from the peer.
    pub peer_pfc: Option<Pfc>,
    /// ETS settings received from the peer.
    pub peer_ets: Option<Ets>,
}

impl Ieee {
    /// The priority of a DSCP, if the table has one. The highest wins, as in the kernel.
    pub fn priority_of_dscp(&self, dscp: u8) -> Option<u8> {
        let entries = self.apps.iter().filter(|app| app.selector == Selector::Dscp);
        entries.filter(|app| app.protocol == u16::from(dscp)).map(|app| app.priority).max()
    }
}

/// `struct ieee_pfc`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pfc {
    /// Number of priorities that may have PFC at the same time.
    pub capable: u8,
    /// Priorities with PFC, one bit each.
    pub enabled: u8,
    /// MACsec bypass capability.
    pub macsec_bypass: bool,
    /// Allowance for the round trip on the cable in bit times; some drivers use metres.
    pub delay: u16,
    /// PFC frames sent, by priority.
    pub requests: [u64; 8],
    /// PFC frames received, by priority.
    pub indications: [u64; 8],
}

impl Pfc {
    /// The priorities with PFC.
    pub fn priorities(&self) -> impl Iterator<Item = u8> + use<> {
        let enabled = self.enabled;
        (0..8).filter(move |priority| enabled >> priority & 1 == 1)
    }
}

/// Transmission selection algorithm of a traffic class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tsa {
    /// Strict priority.
    #[default]
    Strict,
    /// Credit-based shaper.
    CreditBased,
    /// ETS: a share of the bandwidth.
    Ets,
    /// Vendor-specific.
    Vendor,
    /// An unassigned number.
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

/// `struct ieee_ets`, without the recommendations to the peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Ets {
    /// Accepts the peer's recommendations.
    pub willing: bool,
    /// Number of traffic classes that may have a bandwidth share.
    pub capable: u8,
    /// The credit-based shaper is supported.
    pub credit_based: bool,
    /// Bandwidth share of each traffic class in percent.
    pub bandwidth: [u8; 8],
    /// Transmission selection algorithm of each traffic class.
    pub tsa: [Tsa; 8],
    /// Traffic class of each priority.
    pub class_of: [u8; 8],
}

/// Selector of an application table entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selector {
    /// EtherType; 0 stands for the default priority.
    EtherType,
    /// TCP or SCTP port.
    Stream,
    /// UDP or DCCP port.
    Datagram,
    /// Port of any of these protocols.
    Port,
    /// DSCP.
    Dscp,
    /// PCP and DEI of the VLAN tag.
    Pcp,
    /// An unassigned number.
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
    /// The selector's number.
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
    /// The selector.
    pub selector: Selector,
    /// The selected value: EtherType, port or DSCP.
    pub protocol: u16,
    /// The priority.
    pub priority: u8,
}

/// `struct ieee_maxrate`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MaxRate {
    /// Rate limit in kilobits per second of each traffic class; 0 for no limit.
    pub kilobits: [u64; 8],
}

/// `struct dcbnl_buffer`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Buffers {
    /// Receive buffer of each priority.
    pub buffer_of: [u8; 8],
    /// Size of each buffer in bytes.
    pub sizes: [u32; 8],
    /// Total size in bytes.
    pub total: u32,
}

/// DCBX mode: who negotiates with the peer (`DCB_CAP_DCBX_...`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Dcbx {
    /// The host, with a daemon such as lldpad.
    pub host: bool,
    /// The NIC's firmware.
    pub firmware: bool,
    /// CEE version of DCBX.
    pub cee: bool,
    /// IEEE version of DCBX.
    pub ieee: bool,
    /// Static configuration without negotiation.
    pub is_static: bool,
}

impl From<u8> for Dcbx {
    fn from(bits: u8) -> Self {
        let has = |bit: u8| bits >> bit & 1 == 1;
        Self { host: has(0), firmware: has(1), cee: has(2), ieee: has(3), is_static: has(4) }
    }
}

/// A value to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// The lossless priorities, and the allowance for the cable delay.
    Pfc(Pfc),
    /// A priority for an application, added to the existing ones.
    App(App),
}
