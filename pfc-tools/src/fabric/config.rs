//! What a run is made of, as values: read from a scenario, or written by a test.

use std::collections::{BTreeMap, BTreeSet};

use feroce_congestion::Params;

use super::fault::Hits;
use super::scheduler::Plan;
use super::time::{LineRate, Time};

/// Parts of a configuration that do not fit together, or that the system refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Misfit {
    /// The key of a scenario that says it, as `switch.buffer`, or the table that has it.
    pub key: String,
    /// What does not fit.
    pub message: String,
}

impl Misfit {
    /// What makes one of a message, about `key`.
    pub(super) fn about<T: Into<String>>(key: impl Into<String>) -> impl FnOnce(T) -> Self {
        let key = key.into();
        move |message| Self { key, message: message.into() }
    }

    /// One about the traffic of `flow`.
    pub(super) fn of_flow(flow: &FlowConfig, message: String) -> Self {
        Self { key: format!("traffic.{}", flow.group), message }
    }
}

/// How large packets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketConfig {
    /// Payload of a full data packet in bytes.
    pub payload: u32,
    /// What a data packet has beside its payload while it is in a buffer: headers, ICRC and FCS.
    pub headers: u32,
    /// What a frame occupies on the line beside itself: preamble and gap.
    pub gap: u32,
    /// Bytes of an acknowledgement, a NAK, a CNP or a PFC frame in a buffer.
    pub control: u32,
}

impl Default for PacketConfig {
    /// RoCEv2 on IPv4: Ethernet 14, IP 20, UDP 8, BTH 12, ICRC 4 and FCS 4.
    fn default() -> Self {
        Self { payload: 1024, headers: 62, gap: 20, control: 64 }
    }
}

/// PFC at switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PfcConfig {
    /// Quanta of a pause.
    pub quanta: u16,
    /// A pause is repeated when half of it is over, for as long as it is needed.
    pub repeat: bool,
    /// How long a transmitter takes to obey a frame that has arrived.
    pub response: Time,
}

impl Default for PfcConfig {
    fn default() -> Self {
        Self { quanta: u16::MAX, repeat: true, response: Time::ZERO }
    }
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Buffer in bytes.
    pub buffer: u64,
    /// Bytes that each ingress queue has for itself.
    pub guaranteed: u64,
    /// Bytes of headroom of each lossless ingress queue; `None` is what the line needs.
    pub headroom: Option<u64>,
    /// Numerator and denominator of the dynamic threshold's alpha.
    pub alpha: (u64, u64),
    /// A static threshold in bytes in place of it.
    pub threshold: Option<u64>,
    /// A paused sender may go on this much below the threshold; `None` is two full packets.
    pub resume_offset: Option<u64>,
    /// Priorities with PFC, a bit each.
    pub lossless: u8,
    /// PFC.
    pub pfc: PfcConfig,
    /// Who goes first at a port.
    pub plan: Plan,
    /// Packets are marked, by the congestion parameters.
    pub ecn: bool,
}

impl Default for SwitchConfig {
    /// A Trident II with PFC on priority 3.
    fn default() -> Self {
        Self {
            buffer: 12_000_000,
            guaranteed: 0,
            headroom: None,
            alpha: (1, 1),
            threshold: None,
            resume_offset: None,
            lossless: 1 << 3,
            pfc: PfcConfig::default(),
            plan: Plan::default(),
            ecn: true,
        }
    }
}

/// Where a sender goes on after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// At the lost packet.
    #[default]
    GoBackN,
    /// At the beginning of its message.
    GoBack0,
}

/// A host's NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostConfig {
    /// Data packets that one acknowledgement covers at most. The end of a message is always acknowledged, and the packet that fills a
    /// window; with Swift, every packet.
    pub ack_every: u32,
    /// Priority of acknowledgements; `None` is their flow's.
    pub ack_priority: Option<u8>,
    /// How long a receiver takes to send an acknowledgement.
    pub ack_delay: Time,
    /// How long a receiver takes to send a CNP.
    pub cnp_delay: Time,
    /// Recovery from losses.
    pub recovery: Recovery,
    /// A sender that hears nothing for this long goes back; zero waits for ever.
    pub timeout: Time,
    /// Unacknowledged bytes that a flow may have; `None` for no limit.
    pub window: Option<u64>,
    /// Packets that a flow may send at once after it had to wait.
    pub burst: u32,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            ack_every: 16,
            ack_priority: None,
            ack_delay: Time::ZERO,
            cnp_delay: Time::ZERO,
            recovery: Recovery::GoBackN,
            timeout: Time::from_millis(4),
            window: None,
            burst: 2,
        }
    }
}

/// What decides a flow's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Control {
    /// Nothing: the line's rate.
    #[default]
    None,
    /// A rate in bits per second.
    Fixed(u64),
    /// DCQCN.
    Dcqcn,
    /// TIMELY.
    Timely,
    /// Swift.
    Swift,
}

/// A line between two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Number of one node.
    pub a: usize,
    /// Number of the other.
    pub b: usize,
    /// Rate, in both directions.
    pub rate: LineRate,
    /// Propagation delay.
    pub delay: Time,
    /// Frames that are lost, in both directions.
    pub loss: Hits,
    /// Frames that are damaged, in both directions.
    pub corruption: Hits,
}

/// Nodes and lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Names of the hosts, which come first in the order of nodes.
    pub hosts: Vec<String>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Lines.
    pub links: Vec<Link>,
    /// Ways.
    pub routing: Routing,
}

/// What a packet does at a switch: where it comes from, the switch, and where it goes on to.
pub type Turn = (usize, usize, usize);

/// Which ways packets take, other than the shortest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// Turns that no packet makes: ways are the shortest without them.
    pub forbidden: BTreeSet<Turn>,
    /// By switch and host: the neighbours that packets go on to, whatever is shortest.
    pub fixed: BTreeMap<(usize, usize), Vec<usize>>,
}

impl Network {
    /// A node's name.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn name(&self, node: usize) -> &str {
        self.hosts.get(node).unwrap_or_else(|| &self.switches[node - self.hosts.len()])
    }

    /// Whether a line lies between two nodes.
    pub fn joins(&self, a: usize, b: usize) -> bool {
        self.links.iter().any(|link| (link.a, link.b) == (a, b) || (link.a, link.b) == (b, a))
    }

    /// The number of the node of this name.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.hosts.iter().chain(&self.switches).position(|other| other == name)
    }
}

/// A flow: what one QP sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowConfig {
    /// Number of the sending host.
    pub from: u32,
    /// Number of the receiving host.
    pub to: u32,
    /// Which traffic it belongs to.
    pub group: u32,
    /// Priority of its data.
    pub priority: u8,
    /// Bytes of each message.
    pub message: u64,
    /// Messages, one after the other; `None` for no end.
    pub messages: Option<u32>,
    /// When it begins.
    pub start: Time,
    /// When it stops to send; [`Time::FAR`] for never.
    pub stop: Time,
    /// What decides its rate.
    pub control: Control,
    /// What it begins with, in bits per second, if that is not what its controller says.
    pub initial_rate: Option<u64>,
    /// Its closed loop: it begins when the flow ahead of it, of the same traffic and number here, has ended, and goes on with its QP.
    pub chain: Option<u32>,
}

/// All of a run.
#[derive(Debug, Clone)]
pub struct FabricConfig {
    /// Seed of everything that is random.
    pub seed: u64,
    /// Nodes and lines.
    pub network: Network,
    /// Sizes.
    pub packet: PacketConfig,
    /// Every switch.
    pub switch: SwitchConfig,
    /// Every host.
    pub host: HostConfig,
    /// Numbers of the hosts that are engines.
    pub engines: Vec<u32>,
    /// Congestion control's parameters.
    pub congestion: Params,
    /// Flows.
    pub flows: Vec<FlowConfig>,
    /// When the run ends.
    pub duration: Time,
    /// Figures count from here on.
    pub warmup: Time,
    /// How often rates and queues are looked at.
    pub sample: Time,
    /// Egress queues whose length is kept: node, its neighbour, priority.
    pub watch: Vec<(usize, usize, u8)>,
    /// Whether samples are kept, for files.
    pub keep_samples: bool,
}
