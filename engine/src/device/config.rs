//! What a user can choose about a device, and what a device can do.

use feroce_wire::PathMtu;

use super::host::HostId;
use super::ports::PortKind;
use crate::congestion::CongestionConfig;
use crate::pfc::PfcConfig;
use crate::port::af_xdp::AfXdpConfig;
use crate::port::dpdk::DpdkConfig;
use crate::port::packet::PacketConfig;
use crate::qp::RD_ATOMIC;
use crate::verbs::MAX_SGE;

/// Who turns the cores besides the threads that poll completion queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// One helper thread per core: spins a little, then yields, then sleeps on the port.
    Helper,
    /// One helper thread per core that never sleeps, pinned to the CPU listed for its core. An empty list
    /// pins none.
    SpinningHelper(Vec<usize>),
    /// Nobody: the caller calls [`Device::turn`](super::Device::turn), with its own idea of time.
    Manual,
}

/// How to open a device.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Cores. Each has a port of its own; a QP lives on one.
    pub cores: usize,
    /// Who turns them.
    pub driver: Driver,
    /// Most QPs.
    pub max_qp: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// First QP number. 0 and 1 are reserved by the specification.
    pub first_qpn: u32,
    /// Most bytes of the arena, which holds work queues and buffers. Mapped as they are needed.
    pub arena_bytes: usize,
    /// Packets of SENDs and WRITEs that one QP may have outstanding.
    pub window: u32,
    /// Mark data packets ECT(0), as a ConnectX does, so that switches mark instead of dropping; datagrams too, but those to
    /// groups.
    pub ecn: bool,
    /// How fast QPs may send. With DCQCN, data packets are marked ECT(0), whatever `ecn` says.
    pub congestion: CongestionConfig,
    /// Priority flow control in software.
    pub pfc: PfcConfig,
    /// Seed for keys and starting PSNs; `None` takes them from the kernel. For tests and replays only.
    pub seed: Option<u64>,
    /// Memory keys count up from 0 instead of being drawn from a permutation. For replays only.
    pub plain_keys: bool,
    /// Serve `feroce stat`: a thread that answers with [`stat::Snapshot`](super::stat::Snapshot)s. Only for a
    /// device opened on an interface, and never with [`Driver::Manual`].
    pub serve_stat: bool,
    /// The kind of port that the device opens on its interface.
    pub port: PortKind,
    /// The AF_XDP port; its interface is set when the device is opened.
    pub af_xdp: AfXdpConfig,
    /// The packet port; its interface is set when the device is opened.
    pub packet: PacketConfig,
    /// The DPDK port; its device is set when the device is opened.
    pub dpdk: DpdkConfig,
}

impl DeviceConfig {
    /// Whether data packets are marked ECT(0).
    pub(super) fn marks_data(&self) -> bool {
        self.ecn || self.congestion.control.heeds_marks()
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            cores: 1,
            driver: Driver::Helper,
            max_qp: 16_384,
            max_mr: 65_536,
            first_qpn: 0x10,
            arena_bytes: 1 << 30,
            window: 256,
            ecn: false,
            congestion: CongestionConfig::default(),
            pfc: PfcConfig::default(),
            seed: None,
            plain_keys: false,
            serve_stat: true,
            port: PortKind::Auto,
            af_xdp: AfXdpConfig::new(""),
            packet: PacketConfig::new(""),
            dpdk: DpdkConfig::new("", Vec::new()),
        }
    }
}

/// Most cores of a device: completion queues note theirs in 64 bits.
pub const MAX_CORES: usize = 64;

/// Smallest window: acknowledgements are asked for every 16 packets, and twice that must fit.
pub const MIN_WINDOW: u32 = 2 * crate::qp::ACK_INTERVAL;

/// Largest window in packets.
pub const MAX_WINDOW: u32 = 1 << 20;

/// What a device can do, as `ibv_device_attr` and `ibv_port_attr` say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Most QPs.
    pub max_qp: u32,
    /// Most outstanding requests of one work queue.
    pub max_qp_wr: u32,
    /// Most scatter/gather entries of one request.
    pub max_sge: u32,
    /// Most inline bytes of one request.
    pub max_inline: u32,
    /// Most entries of one completion queue.
    pub max_cqe: u32,
    /// Most memory regions and windows together.
    pub max_mr: u32,
    /// Most receives of one shared receive queue.
    pub max_srq_wr: u32,
    /// Most bytes of one piece of device memory.
    pub max_device_memory: usize,
    /// READs and atomics that one QP may have outstanding, either way.
    pub max_qp_rd_atom: u8,
    /// Longest message in bytes.
    pub max_message: u64,
    /// Largest path MTU that the port carries; `None` if it carries none.
    pub active_mtu: Option<PathMtu>,
    /// Largest IP packet of the port in bytes.
    pub mtu: u32,
    /// Link rate in bit/s, where the link has one.
    pub link_rate: Option<u64>,
    /// Kind of port and its mode.
    pub port: String,
    /// Why the port is of this kind. Empty where the device was given its ports.
    pub port_reason: String,
    /// Cores.
    pub cores: usize,
    /// Where the port carries super-frames: the host within which it does.
    pub super_frames: Option<HostId>,
}

/// Most outstanding requests of one work queue.
pub const MAX_WR: u32 = 32_768;
/// Most inline bytes of one request.
pub const MAX_INLINE: u32 = 1024;
/// Most entries of one completion queue.
pub const MAX_CQE: u32 = 1 << 22;

/// Maximum size of one allocation of device memory, in bytes. The arena limits the sum of all.
pub const MAX_DEVICE_MEMORY: usize = 1 << 20;

/// The limits that do not depend on the port.
pub(super) fn fixed_attributes(config: &DeviceConfig) -> DeviceAttributes {
    DeviceAttributes {
        max_qp: config.max_qp,
        max_qp_wr: MAX_WR,
        max_sge: u32::try_from(MAX_SGE).expect("small"),
        max_inline: MAX_INLINE,
        max_cqe: MAX_CQE,
        max_mr: config.max_mr,
        max_srq_wr: MAX_WR,
        max_device_memory: MAX_DEVICE_MEMORY,
        max_qp_rd_atom: RD_ATOMIC,
        max_message: crate::verbs::MAX_MESSAGE,
        active_mtu: None,
        mtu: 0,
        link_rate: None,
        port: String::new(),
        port_reason: String::new(),
        cores: config.cores,
        super_frames: None,
    }
}
