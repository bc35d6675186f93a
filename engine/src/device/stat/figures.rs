//! The statistics, and where in a device they come from.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use feroce_congestion::Rate;
use serde::{Deserialize, Serialize};

use super::Request;
use crate::congestion::{self, Control};
use crate::counters::Counter;
use crate::device::DeviceInner;
use crate::port::PortStats;
use crate::qp::QpSnapshot;

/// QPs read per acquisition of a core's token.
const QPS_AT_ONCE: usize = 64;

/// The statistics of a device at one moment. Bytes and frames count from its opening.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of Feroce in the process.
    pub feroce: String,
    /// Process ID.
    pub pid: u32,
    /// User ID.
    #[serde(default)]
    pub user: u32,
    /// Name of the program.
    pub program: String,
    /// Name of the interface.
    pub interface: String,
    /// Time of the snapshot, in nanoseconds since the device was opened.
    pub nanos: u64,
    /// Kind of port and its mode.
    pub port: String,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Largest path MTU in bytes; `None` if the port carries none.
    pub active_mtu: Option<u32>,
    /// Link rate in bit/s, if the link has one.
    pub link_rate: Option<u64>,
    /// Port statistics of each core.
    pub cores: Vec<CoreFigures>,
    /// Sums of the counters of all cores, under the names and in the units of RNICs:
    /// `port_xmit_data` and `port_rcv_data` count units of four bytes.
    pub counters: BTreeMap<String, u64>,
    /// Number of QPs.
    pub qps: u32,
    /// Number of identifiers of RDMA CM that listen.
    #[serde(default)] // Older programs do not send it.
    pub listeners: usize,
    /// Maximum size of the arena, in bytes.
    pub arena_limit: usize,
    /// Memory mapped by the arena, in bytes.
    pub arena_mapped: usize,
    /// The part of it in hugepages, in bytes.
    pub arena_huge: usize,
    /// Memory used by queues and buffers, in bytes.
    pub arena_used: usize,
    /// Asynchronous events dropped because they were not read.
    pub events_lost: u64,
    /// Congestion control as in the setting: `off`, `dcqcn`, ...
    pub congestion: String,
    /// Parameters of congestion control by name; empty if it is off.
    pub congestion_params: BTreeMap<String, String>,
    /// The QPs, if requested.
    pub queue_pairs: Option<Vec<QueuePairFigures>>,
}

/// Statistics of a core's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CoreFigures {
    /// Receive queues that the port serves.
    pub queues: u16,
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received, including Ethernet headers.
    pub rx_bytes: u64,
    /// Frames dropped on reception.
    pub rx_dropped: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent, including Ethernet headers.
    pub tx_bytes: u64,
    /// Frames that the link refused.
    pub tx_dropped: u64,
}

/// Statistics of a QP, from [`QpSnapshot`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `QpSnapshot`.
pub struct QueuePairFigures {
    pub qpn: u32,
    pub core: usize,
    pub state: String,
    pub peer_qpn: Option<u32>,
    pub peer: Option<String>,
    pub path_mtu: usize,
    pub unacknowledged_psn: u32,
    pub next_psn: u32,
    pub expected_psn: u32,
    pub packets_outstanding: u32,
    pub sends_posted: u32,
    pub receives_posted: u32,
    pub reads_in_flight: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub waits_for_receive: bool,
    pub ssn: u32,
    pub msn: u32,
    /// `None` without congestion control.
    pub rate: Option<RateFigures>,
}

/// Statistics of a QP's rate, from [`RateSnapshot`](crate::congestion::RateSnapshot); rates in
/// bit/s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `RateSnapshot`.
pub struct RateFigures {
    pub rate: u64,
    pub target: Option<u64>,
    pub alpha_ppm: Option<u32>,
    pub waits: bool,
    pub cnps_handled: u64,
    pub cnps_sent: u64,
    pub marked: u64,
}

impl Snapshot {
    /// Reads the statistics of `device`.
    pub(super) fn take(device: &DeviceInner, interface: &str, request: &Request) -> Self {
        let attributes = device.attributes.read().unwrap_or_else(PoisonError::into_inner).clone();
        let counter = |counter: &Counter| {
            let sum =
                device.counters.iter().fold(0u64, |sum, set| sum.wrapping_add(set.get(*counter)));
            counter.shown(sum)
        };
        let arena = device.arena.stats();
        let free = device.free_qpns.lock().unwrap_or_else(PoisonError::into_inner).len();
        let congestion = *device.congestion.lock().unwrap_or_else(PoisonError::into_inner);
        let is_on = congestion.control != Control::Off;
        let params = congestion::shown(&congestion.params).filter(|_| is_on);
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Self {
            feroce: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            user: nix::unistd::geteuid().as_raw(),
            program: program.trim().to_owned(),
            interface: interface.to_owned(),
            nanos: device.now().as_nanos(),
            port: attributes.port,
            mtu: attributes.mtu,
            active_mtu: attributes.active_mtu.map(feroce_wire::PathMtu::bytes),
            link_rate: attributes.link_rate,
            cores: (0..device.cores.len()).map(|core| core_figures(device, core)).collect(),
            counters: Counter::ALL.iter().map(|c| (c.name().to_owned(), counter(c))).collect(),
            qps: device.config.max_qp - u32::try_from(free).unwrap_or(0),
            listeners: listeners(device),
            arena_limit: arena.limit,
            arena_mapped: arena.mapped,
            arena_huge: arena.huge,
            arena_used: arena.used,
            events_lost: device.events.lost(),
            congestion: congestion.control.to_string(),
            congestion_params: params.map(|(name, value)| (name.to_owned(), value)).collect(),
            queue_pairs: request.queue_pairs.then(|| queue_pairs(device)),
        }
    }
}

fn listeners(device: &DeviceInner) -> usize {
    device.users().iter().map(|user| user.listeners()).sum()
}

fn core_figures(device: &DeviceInner, core: usize) -> CoreFigures {
    let token = device.cores[core].lock();
    let (stats, queues) = (token.port().stats(), token.port().attributes().queues);
    drop(token);
    let PortStats { rx_frames, rx_bytes, rx_dropped, tx_frames, tx_bytes, tx_dropped, .. } = stats;
    CoreFigures { queues, rx_frames, rx_bytes, rx_dropped, tx_frames, tx_bytes, tx_dropped }
}

/// Reads every QP, a few per acquisition of a core's token, so that no core waits for long.
fn queue_pairs(device: &DeviceInner) -> Vec<QueuePairFigures> {
    let mut figures = Vec::new();
    let mut batch = Vec::with_capacity(QPS_AT_ONCE);
    for (core, cell) in device.cores.iter().enumerate() {
        let mut next = Some(0);
        while let Some(from) = next {
            batch.clear();
            next = cell.lock().snapshots(from, &mut batch, device.now());
            figures.extend(batch.iter().map(|qp| queue_pair(core, qp)));
        }
    }
    figures.sort_unstable_by_key(|qp| qp.qpn);
    figures
}

fn queue_pair(core: usize, qp: &QpSnapshot) -> QueuePairFigures {
    QueuePairFigures {
        qpn: qp.qpn.value(),
        core,
        state: format!("{:?}", qp.state).to_uppercase(),
        peer_qpn: qp.peer.map(|(qpn, _)| qpn.value()),
        peer: qp.peer.map(|(_, ip)| ip.to_string()),
        path_mtu: qp.path_mtu,
        unacknowledged_psn: qp.unacknowledged.value(),
        next_psn: qp.next.value(),
        expected_psn: qp.expected.value(),
        packets_outstanding: qp.packets_outstanding,
        sends_posted: qp.sends_posted,
        receives_posted: qp.receives_posted,
        reads_in_flight: qp.reads_in_flight,
        retries: qp.retries,
        rnr_retries: qp.rnr_retries,
        waits_for_receive: qp.waits_for_receive,
        ssn: qp.ssn,
        msn: qp.msn,
        rate: qp.rate.map(|rate| RateFigures {
            rate: rate.rate.as_bps(),
            target: rate.target.map(Rate::as_bps),
            alpha_ppm: rate.alpha_ppm,
            waits: rate.waits,
            cnps_handled: rate.cnps_handled,
            cnps_sent: rate.cnps_sent,
            marked: rate.marked,
        }),
    }
}
