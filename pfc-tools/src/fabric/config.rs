//! The configuration of a run: read from a scenario, or written by a test.

use std::collections::{BTreeMap, BTreeSet};

pub use feroce_congestion::Control;
use feroce_congestion::Params;

use super::error_model::ErrorModel;
use super::scheduler::SchedulerConfig;
use super::time::{LinkRate, Time};

/// An error in a configuration: parts that do not fit together, or a refusal by the system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// The scenario key at fault, such as `switch.buffer`, or the table that holds the key.
    pub key: String,
    /// What is wrong.
    pub message: String,
}

impl ConfigError {
    /// Returns a function that turns a message into an error about `key`.
    pub(super) fn about<T: Into<String>>(key: impl Into<String>) -> impl FnOnce(T) -> Self {
        let key = key.into();
        move |message| Self { key, message: message.into() }
    }

    /// An error about the traffic that `flow` belongs to.
    pub(super) fn of_flow(flow: &FlowConfig, message: String) -> Self {
        Self { key: format!("traffic.{}", flow.group), message }
    }
}

/// Packet sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketConfig {
    /// Payload of a full data packet in bytes.
    pub payload: u32,
    /// Bytes that a data packet occupies in a buffer in addition to its payload: headers, ICRC and
    /// FCS.
    pub headers: u32,
    /// Bytes that a frame occupies on the link in addition to its own: preamble and inter-frame
    /// gap.
    pub gap: u32,
    /// Buffer bytes of an acknowledgement, a NAK, a CNP or a PFC frame.
    pub control: u32,
}

impl Default for PacketConfig {
    /// RoCEv2 on IPv4: Ethernet 14, IP 20, UDP 8, BTH 12, ICRC 4 and FCS 4.
    fn default() -> Self {
        Self { payload: 1024, headers: 62, gap: 20, control: 64 }
    }
}

/// PFC configuration of the switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PfcConfig {
    /// Pause time in quanta.
    pub quanta: u16,
    /// Repeat a pause after half its time, as long as it is needed.
    pub repeat: bool,
    /// Time from the arrival of a PFC frame until the transmitter obeys it.
    pub response: Time,
}

impl Default for PfcConfig {
    fn default() -> Self {
        Self { quanta: u16::MAX, repeat: true, response: Time::ZERO }
    }
}

/// Configuration of the switches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Buffer size in bytes.
    pub buffer: u64,
    /// Guaranteed bytes of each ingress queue.
    pub guaranteed: u64,
    /// Headroom in bytes of each lossless ingress queue; `None` computes it from the link.
    pub headroom: Option<u64>,
    /// Numerator and denominator of alpha, the factor of the dynamic threshold.
    pub alpha: (u64, u64),
    /// Static threshold in bytes; replaces the dynamic threshold.
    pub threshold: Option<u64>,
    /// A pause ends when the queue is this many bytes below the threshold; `None` is two full
    /// packets.
    pub resume_offset: Option<u64>,
    /// Lossless priorities (with PFC), one bit each.
    pub lossless: u8,
    /// PFC.
    pub pfc: PfcConfig,
    /// Scheduling of the priorities at a port.
    pub scheduling: SchedulerConfig,
    /// Mark packets (ECN) according to the congestion parameters.
    pub ecn: bool,
}

impl Default for SwitchConfig {
    /// A Broadcom Trident II with PFC on priority 3.
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
            scheduling: SchedulerConfig::default(),
            ecn: true,
        }
    }
}

/// What a sender sends again after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// The lost packet and all after it.
    #[default]
    GoBackN,
    /// The message of the lost packet, and all after it.
    GoBack0,
    /// The lost packets.
    SelectiveRepeat,
}

/// A host's NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostConfig {
    /// Maximum number of data packets that one acknowledgement covers. The end of a message is
    /// always acknowledged, and so is the packet that fills a window; with Swift, every packet.
    pub ack_every: u32,
    /// Priority of acknowledgements; `None` is the priority of the flow.
    pub ack_priority: Option<u8>,
    /// Delay of a receiver before it sends an acknowledgement.
    pub ack_delay: Time,
    /// Delay of a receiver before it sends a CNP.
    pub cnp_delay: Time,
    /// Recovery from packet loss.
    pub recovery: Recovery,
    /// Retransmission timeout; zero disables it.
    pub timeout: Time,
    /// Maximum number of unacknowledged bytes of a flow; `None` for no limit.
    pub window: Option<u64>,
    /// Maximum number of packets that a flow may send back to back after the pacer held it back.
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

/// A link between two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Number of one node.
    pub a: usize,
    /// Number of the other.
    pub b: usize,
    /// Rate of each direction.
    pub rate: LinkRate,
    /// Propagation delay.
    pub delay: Time,
    /// Frames lost, in each direction.
    pub loss: ErrorModel,
    /// Frames corrupted, in each direction.
    pub corruption: ErrorModel,
}

/// Topology: nodes, links and routing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Names of the hosts. Hosts come first in the numbering of nodes.
    pub hosts: Vec<String>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Links.
    pub links: Vec<Link>,
    /// Routing.
    pub routing: Routing,
    /// Numbers of the hosts in flow files; if empty, hosts are numbered from 0.
    pub ids: Vec<u32>,
}

/// A turn of a packet at a switch: previous node, switch, next node.
pub type Turn = (usize, usize, usize);

/// Deviations from shortest-path routing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// Turns that no packet may take: routes are the shortest paths without them.
    pub forbidden: BTreeSet<Turn>,
    /// Next hops by switch and host; they replace the shortest paths.
    pub fixed: BTreeMap<(usize, usize), Vec<usize>>,
}

impl Network {
    /// The name of a node.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn name(&self, node: usize) -> &str {
        self.hosts.get(node).unwrap_or_else(|| &self.switches[node - self.hosts.len()])
    }

    /// Returns true if a link joins the two nodes.
    pub fn joins(&self, a: usize, b: usize) -> bool {
        self.links.iter().any(|link| (link.a, link.b) == (a, b) || (link.a, link.b) == (b, a))
    }

    /// The number of the node with this name.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.hosts.iter().chain(&self.switches).position(|other| other == name)
    }
}

/// A flow: the traffic of one QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowConfig {
    /// Number of the sending host.
    pub from: u32,
    /// Number of the receiving host.
    pub to: u32,
    /// The traffic group that the flow belongs to.
    pub group: u32,
    /// Priority of its data packets.
    pub priority: u8,
    /// Bytes of each message.
    pub message: u64,
    /// Number of messages, sent one after the other; `None` for an endless flow.
    pub messages: Option<u32>,
    /// Start time.
    pub start: Time,
    /// Time at which the flow stops sending; [`Time::FAR`] for never.
    pub stop: Time,
    /// Congestion control.
    pub control: Control,
    /// Initial rate in bits per second, if it differs from the controller's.
    pub initial_rate: Option<u64>,
    /// Number of its closed loop within its traffic group. The flow starts when the previous flow
    /// of the same loop has finished, and continues on the same QP.
    pub chain: Option<u32>,
    /// A [`Step`] starts the flow; `start` is the time from the end of the step.
    pub is_held: bool,
    /// Messages that may be sent from the start; `None` for all. A [`Step`] releases each other
    /// message.
    pub released: Option<u32>,
}

/// An event that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    /// All data of a flow has been acknowledged.
    Ended(u32),
    /// A message of a flow has arrived.
    Arrived {
        /// Number of the flow.
        flow: u32,
        /// Number of the message, from 0.
        message: u32,
    },
    /// A step has ended.
    Done(u32),
}

/// Something that waits for flows and then lets other flows send: a dependency, or the work of a
/// host between two messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The traffic group that the step belongs to.
    pub group: u32,
    /// The host that works on the step; its rank of the group is not complete before.
    pub host: Option<u32>,
    /// What the step waits for. Without anything, the step begins at time `start`.
    pub after: Vec<Milestone>,
    /// Beginning of a step that waits for nothing.
    pub start: Time,
    /// Duration of the step.
    pub takes: Time,
    /// Numbers of the flows that start at its end.
    pub starts: Vec<u32>,
    /// Numbers of the flows that may send one more message at its end.
    pub releases: Vec<u32>,
}

/// The whole configuration of a run.
#[derive(Debug, Clone)]
pub struct FabricConfig {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Topology.
    pub network: Network,
    /// Packet sizes.
    pub packet: PacketConfig,
    /// Configuration of every switch.
    pub switch: SwitchConfig,
    /// Configuration of every host.
    pub host: HostConfig,
    /// Numbers of the hosts that run the engine.
    pub engines: Vec<u32>,
    /// Parameters of the congestion control.
    pub congestion: Params,
    /// Flows.
    pub flows: Vec<FlowConfig>,
    /// What flows wait for.
    pub steps: Vec<Step>,
    /// Virtual time at which the run ends.
    pub duration: Time,
    /// Warm-up: measurements count from this time on.
    pub warmup: Time,
    /// Interval at which rates and queues are sampled.
    pub sample: Time,
    /// Egress queues to record: node, its neighbour, priority.
    pub watch: Vec<(usize, usize, u8)>,
    /// Keep samples, for output files.
    pub keep_samples: bool,
}
