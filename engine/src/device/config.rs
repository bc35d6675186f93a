//! Configuration of a device, and its attributes.

use std::ops::RangeInclusive;

use feroce_wire::PathMtu;

use super::host::HostId;
use crate::congestion::CongestionConfig;
use crate::pfc::PfcConfig;
use crate::port::kind::PortConfigs;
use crate::port::registry::PortKind;
use crate::qp::RD_ATOMIC;
use crate::verbs::MAX_SGE;

/// The threads that run the cores, in addition to threads that poll completion queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// One helper thread per core. An idle helper first spins, then yields, then sleeps until the
    /// port has frames.
    Helper,
    /// One helper thread per core that never sleeps, pinned to the CPU listed for its core. With an
    /// empty list no helper is pinned.
    SpinningHelper(Vec<usize>),
    /// None: the caller calls [`Device::turn`](super::Device::turn) and provides the time.
    Manual,
}

/// How to open a device.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Number of cores. Each core has its own port; each QP is on one core.
    pub cores: usize,
    /// The threads that run the cores.
    pub driver: Driver,
    /// Maximum number of QPs. An unused QP takes address space, but no memory.
    pub max_qp: u32,
    /// Maximum number of memory regions and windows together. An unused one takes address space,
    /// but no memory.
    pub max_mr: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of protection domains of a verbs application. [`Device::alloc_pd`] does not
    /// check it: a domain is only a number.
    ///
    /// [`Device::alloc_pd`]: super::Device::alloc_pd
    pub max_pd: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// First QP number; further QPs get the numbers after it. 0 and 1 are reserved by the
    /// specification. `None`: a random number, so that a restarted program does not get the numbers
    /// of its predecessor, which its peers may still know. A fixed number is for tests and replays
    /// only.
    pub first_qpn: Option<u32>,
    /// Maximum bytes of the arena, which holds work queues and buffers. Memory is mapped as needed.
    pub arena_bytes: usize,
    /// Maximum number of outstanding SEND and WRITE packets of a QP.
    pub window: u32,
    /// Maximum number of outstanding SEND and WRITE packets of all QPs of a core at one peer
    /// address; at least `window`. A loss makes it shorter for a while: a receive ring holds some
    /// thousand packets.
    pub peer_window: u32,
    /// Maximum number of outstanding response packets of READs and atomics of all QPs of a core.
    /// They arrive in the receive ring of the core. A READ of more than 128 packets counts as 128.
    /// A loss makes the window shorter for a while.
    pub read_window: u32,
    /// Code of the shortest local ACK timeout, 4.096 us * 2^n, for QPs that ask for a shorter one,
    /// at most 31. A core that shares its CPU may be descheduled for several milliseconds. A timer
    /// that fires late, or while received frames wait, runs on once. 0: timeouts are exact.
    pub min_ack_timeout: u8,
    /// Agree on selective repeat with peers that offer it as well: after a loss, only the lost
    /// packets are sent again. A device that offers it has memory for 1024 packets (4.4 MB) that
    /// arrive behind a lost one. Towards other peers, RC is as in the specification.
    pub selective_repeat: bool,
    /// Send [super-frames](crate::port::super_frame) to every peer, not only to those that agreed
    /// by their [`Endpoint`](super::Endpoint), if the port sends any. For programs that connect by
    /// other means, as all of libibverbs do. A peer must take them, or the kernel must cut them on
    /// the way.
    pub super_frames_to_all: bool,
    /// Mark data packets ECT(0), as a ConnectX does, so that switches mark packets instead of
    /// dropping them. Includes datagrams, except those to multicast groups.
    pub ecn: bool,
    /// Congestion control. With DCQCN, data packets are marked ECT(0) even if `ecn` is false.
    pub congestion: CongestionConfig,
    /// Priority flow control in software.
    pub pfc: PfcConfig,
    /// Seed for keys, QP numbers and starting PSNs; `None` takes them from the kernel. A seed is
    /// for tests and replays only.
    pub seed: Option<u64>,
    /// Memory keys count up from 0 instead of coming from a keyed permutation. For replays only.
    pub plain_keys: bool,
    /// Serve `feroce stat` with a thread that returns [`stat::Snapshot`](super::stat::Snapshot)s.
    /// Applies only to a device opened by name, and never with [`Driver::Manual`].
    pub serve_stat: bool,
    /// Whether a daemon may own the interface.
    pub sharing: Sharing,
    /// The kind of port to open, if no daemon owns the interface.
    pub port: PortKind,
    /// The configurations of all kinds of port, by type. Opening the device sets the interface and
    /// turns on flow control if [`Self::pfc`] needs it.
    pub ports: PortConfigs,
}

impl DeviceConfig {
    /// Returns true if data packets are marked ECT(0).
    pub(super) fn marks_data(&self) -> bool {
        self.ecn || self.congestion.control.is_ecn_capable()
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            cores: 1,
            driver: Driver::Helper,
            max_qp: 16_384,
            max_mr: 65_536,
            max_cq: 32_768,
            max_pd: 65_536,
            max_srq: 16_384,
            max_ah: 65_536,
            first_qpn: None,
            arena_bytes: 4 << 30,
            window: 256,
            peer_window: 1024,
            read_window: 512,
            min_ack_timeout: 11,
            selective_repeat: false,
            super_frames_to_all: false,
            ecn: false,
            congestion: CongestionConfig::default(),
            pfc: PfcConfig::default(),
            seed: None,
            plain_keys: false,
            serve_stat: true,
            sharing: Sharing::Auto,
            port: PortKind::Auto,
            ports: PortConfigs::default(),
        }
    }
}

/// Who owns the interface of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// The daemon (`feroce up`) of the interface, if there is one; otherwise this process.
    #[default]
    Auto,
    /// This process alone.
    Embedded,
    /// The daemon of the interface.
    Daemon,
}

impl Sharing {
    /// Every value, by its name.
    pub const NAMES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("embedded", Self::Embedded), ("daemon", Self::Daemon)];
}

/// Maximum number of cores of a device: completion queues keep a bit mask of 64 bits.
pub const MAX_CORES: usize = 64;

/// Valid numbers of cores.
pub(super) const CORES: RangeInclusive<usize> = 1..=MAX_CORES;

/// Valid maximum numbers of QPs. With 2^20, the QPs of a slot have eight different numbers.
pub(super) const QPS: RangeInclusive<u32> = 1..=1 << 20;
/// Valid maximum numbers of memory regions and windows, as a setting.
pub(super) const MRS: RangeInclusive<u32> = 1..=1 << 23;
/// Valid maximum numbers of completion queues: two for each QP.
pub(super) const CQS: RangeInclusive<u32> = 1..=1 << 21;
/// Valid maximum numbers of protection domains.
pub(super) const PDS: RangeInclusive<u32> = 1..=1 << 20;

/// Valid windows in packets. An acknowledgement is requested every 16 packets; a window must
/// hold twice that number.
pub(super) const WINDOWS: RangeInclusive<u32> = 2 * crate::qp::ACK_INTERVAL..=1 << 20;

/// Attributes of a device, as in `ibv_device_attr` and `ibv_port_attr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Node GUID: the EUI-64 of the port's Ethernet address; at a daemon, of the daemon's port.
    pub node_guid: u64,
    /// Maximum number of QPs.
    pub max_qp: u32,
    /// Maximum number of outstanding requests of a work queue.
    pub max_qp_wr: u32,
    /// Maximum number of scatter/gather entries of a request.
    pub max_sge: u32,
    /// Maximum inline bytes of a request.
    pub max_inline: u32,
    /// Maximum number of entries of a completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions and windows together.
    pub max_mr: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of protection domains of a verbs application.
    pub max_pd: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// Maximum number of receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum bytes of one allocation of device memory.
    pub max_device_memory: usize,
    /// Maximum number of outstanding READs and atomics of a QP, as requester and as responder.
    pub max_qp_rd_atom: u8,
    /// Longest message in bytes.
    pub max_message: u64,
    /// Largest path MTU that the port carries; `None` if its MTU is too small for all.
    pub active_mtu: Option<PathMtu>,
    /// Largest IP packet of the port in bytes.
    pub mtu: u32,
    /// Link rate in bit/s; `None` if the link has none.
    pub link_rate: Option<u64>,
    /// Kind of port and its mode.
    pub port: String,
    /// Why this kind of port was chosen; empty if the caller provided the ports.
    pub port_reason: String,
    /// Number of cores.
    pub cores: usize,
    /// The host within which the port carries [super-frames](crate::port::super_frame); `None` if
    /// it sends none.
    pub super_frames: Option<HostId>,
}

/// Maximum number of outstanding requests of a work queue.
pub const MAX_WR: u32 = 32_768;
/// Maximum inline bytes of a request.
pub const MAX_INLINE: u32 = 1024;
/// Maximum number of entries of a completion queue.
pub const MAX_CQE: u32 = 1 << 22;
/// Maximum number of multicast groups to which QPs of a device are attached.
pub const MAX_GROUPS: usize = 8192;

/// Maximum size of one allocation of device memory, in bytes. The arena limits the sum of all.
pub const MAX_DEVICE_MEMORY: usize = 1 << 20;

/// The attributes that do not depend on the port.
pub(super) fn fixed_attributes(config: &DeviceConfig) -> DeviceAttributes {
    DeviceAttributes {
        node_guid: 0,
        max_qp: config.max_qp,
        max_qp_wr: MAX_WR,
        max_sge: u32::try_from(MAX_SGE).expect("small"),
        max_inline: MAX_INLINE,
        max_cqe: MAX_CQE,
        max_mr: config.max_mr,
        max_cq: config.max_cq,
        max_pd: config.max_pd,
        max_srq: config.max_srq,
        max_ah: config.max_ah,
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
