//! The metrics, one table. `docs/metrics.md` shows the same table.
//!
//! Names that begin with `node_infiniband_` are those of the infiniband collector of node_exporter,
//! for figures with the same meaning; all others begin with `feroce_`.

use feroce_engine::counters::Counter;
use feroce_engine::daemon::{DaemonStat, Limits, ProgramStat, UserStat};
use feroce_engine::device::stat::{CoreFigures, Snapshot};

use crate::figures::Figures;

/// A metric.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub unit: Unit,
    pub source: Source,
    /// The text of HELP. Empty for [`Source::Counter`]: the counter says what it counts.
    about: &'static str,
}

/// Unit of a metric's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    Bytes,
    BytesPerSecond,
    Seconds,
    /// Always 1: the labels are the information.
    Info,
}

impl Unit {
    /// The unit in the table of `docs/metrics.md`.
    #[cfg(test)]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Count => "1",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes/s",
            Self::Seconds => "seconds",
            Self::Info => "always 1",
        }
    }
}

/// Where the values come from, one for each set of labels.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// A counter of a program, times a factor.
    Counter(Counter, f64),
    /// Microseconds for which sending was paused, of each priority.
    Paused,
    /// Of a program.
    Program(fn(&Snapshot) -> Option<f64>),
    /// Facts about a program, as labels.
    ProgramInfo,
    /// Of a core of a program.
    Core(fn(&CoreFigures) -> u64),
    /// Of a daemon.
    Daemon(fn(&DaemonStat) -> u64),
    /// Facts about a daemon, as labels.
    DaemonInfo,
    /// Of a program, counted by its daemon.
    AtDaemon(fn(&ProgramStat) -> u64),
    /// Of a user, counted by a daemon.
    User(fn(&UserStat) -> u32),
    /// A limit of each user or program at a daemon.
    Limit(fn(&Limits) -> Option<u64>),
    /// Of this command.
    Own(fn(&Figures) -> usize),
    /// The version of this command, as a label.
    OwnInfo,
}

/// The labels of a program, which those of a source follow.
pub const PROGRAM: [&str; 5] = ["device", "port", "program", "pid", "user"];

impl Source {
    /// The names of the labels.
    pub const fn labels(self) -> &'static [&'static str] {
        match self {
            Self::Counter(..) | Self::Program(_) | Self::AtDaemon(_) => &PROGRAM,
            Self::Paused => &["device", "port", "program", "pid", "user", "priority"],
            Self::ProgramInfo => {
                &["device", "port", "program", "pid", "user", "version", "kind", "congestion"]
            }
            Self::Core(_) => &["device", "port", "program", "pid", "user", "core"],
            Self::Daemon(_) | Self::Limit(_) => &["device", "port"],
            Self::DaemonInfo => &["device", "port", "pid", "kind"],
            Self::User(_) => &["device", "port", "user"],
            Self::Own(_) => &[],
            Self::OwnInfo => &["version"],
        }
    }
}

impl Metric {
    /// Returns true for a counter, false for a gauge. The name says which.
    pub fn is_counter(&self) -> bool {
        self.name.ends_with("_total")
    }

    /// The text of HELP.
    pub fn about(&self) -> &'static str {
        match self.source {
            Source::Counter(counter, _) => counter.about(),
            _ => self.about,
        }
    }
}

/// A counter of a program, in the unit of its name.
const fn counter(name: &'static str, counter: Counter) -> Metric {
    Metric { name, unit: Unit::Count, source: Source::Counter(counter, 1.0), about: "" }
}

/// A counter of data, which counts units of 4 bytes.
const fn data(name: &'static str, counter: Counter) -> Metric {
    Metric { name, unit: Unit::Bytes, source: Source::Counter(counter, 4.0), about: "" }
}

const fn metric(name: &'static str, unit: Unit, source: Source, about: &'static str) -> Metric {
    Metric { name, unit, source, about }
}

/// The metrics.
pub const METRICS: &[&[Metric]] = &[COUNTERS, PROGRAMS, DAEMONS, OWN];

/// The counters of `engine/src/counters.rs`.
const COUNTERS: &[Metric] = &[
    data("node_infiniband_port_data_transmitted_bytes_total", Counter::PortXmitData),
    counter("node_infiniband_port_packets_transmitted_total", Counter::PortXmitPackets),
    data("node_infiniband_port_data_received_bytes_total", Counter::PortRcvData),
    counter("node_infiniband_port_packets_received_total", Counter::PortRcvPackets),
    counter("node_infiniband_port_errors_received_total", Counter::PortRcvErrors),
    counter("node_infiniband_rx_icrc_encapsulated_errors_total", Counter::RxIcrcEncapsulated),
    counter("feroce_discarded_packets_total", Counter::RxDiscards),
    counter("feroce_unusual_origin_packets_total", Counter::RxUnusualOrigin),
    counter("feroce_implausible_msn_packets_total", Counter::RxImplausibleMsn),
    counter("feroce_unasked_responses_total", Counter::RxUnaskedResponses),
    counter("feroce_qkey_violations_total", Counter::QkeyViolations),
    counter("feroce_loopback_frames_total", Counter::TxLoopback),
    counter("feroce_handed_over_frames_total", Counter::RxHandedOver),
    counter("feroce_handover_dropped_frames_total", Counter::RxHandoverDropped),
    counter("node_infiniband_out_of_sequence_packets_received_total", Counter::OutOfSequence),
    counter("feroce_held_packets_total", Counter::HeldPackets),
    counter("node_infiniband_packet_sequence_errors_total", Counter::PacketSeqErr),
    counter("node_infiniband_local_ack_timeout_errors_total", Counter::LocalAckTimeoutErr),
    counter("node_infiniband_rnr_nak_retry_packets_received_total", Counter::RnrNakRetryErr),
    counter("node_infiniband_duplicate_requests_packets_total", Counter::DuplicateRequest),
    counter("node_infiniband_implied_nak_seq_errors_total", Counter::ImpliedNakSeqErr),
    counter("node_infiniband_out_of_buffer_drops_total", Counter::OutOfBuffer),
    counter("node_infiniband_rx_write_requests_total", Counter::RxWriteRequests),
    counter("node_infiniband_rx_read_requests_total", Counter::RxReadRequests),
    counter("node_infiniband_rx_atomic_requests_total", Counter::RxAtomicRequests),
    counter(
        "node_infiniband_req_remote_invalid_request_errors_total",
        Counter::ReqRemoteInvalidRequest,
    ),
    counter("node_infiniband_req_remote_access_errors_total", Counter::ReqRemoteAccessErrors),
    counter("feroce_req_remote_operational_errors_total", Counter::ReqRemoteOperationalErrors),
    counter("feroce_req_bad_responses_total", Counter::ReqBadResponse),
    counter("node_infiniband_resp_remote_access_errors_total", Counter::RespRemoteAccessErrors),
    counter("feroce_resp_remote_invalid_request_errors_total", Counter::RespRemoteInvalidRequest),
    counter("feroce_resp_remote_operational_errors_total", Counter::RespRemoteOperationalErrors),
    counter("node_infiniband_resp_local_length_errors_total", Counter::RespLocalLengthError),
    counter("node_infiniband_req_cqes_errors_total", Counter::ReqCqeError),
    counter("node_infiniband_req_cqes_flush_errors_total", Counter::ReqCqeFlushError),
    counter("node_infiniband_resp_cqes_errors_total", Counter::RespCqeError),
    counter("node_infiniband_resp_cqes_flush_errors_total", Counter::RespCqeFlushError),
    counter("feroce_retransmitted_packets_total", Counter::RetransmittedPackets),
    counter("feroce_acks_transmitted_total", Counter::AcksSent),
    counter(
        "node_infiniband_np_ecn_marked_roce_packets_received_total",
        Counter::NpEcnMarkedRocePackets,
    ),
    counter("node_infiniband_np_cnp_packets_sent_total", Counter::NpCnpSent),
    counter("node_infiniband_rp_cnp_packets_handled_total", Counter::RpCnpHandled),
    counter("node_infiniband_rp_cnp_ignored_packets_received_total", Counter::RpCnpIgnored),
    counter("feroce_pause_frames_received_total", Counter::RxPause),
    counter("feroce_pause_frames_transmitted_total", Counter::TxPause),
    counter("feroce_cq_overflows_total", Counter::CqOverflow),
    counter("feroce_port_refused_bursts_total", Counter::PortErrors),
    metric(
        "feroce_paused_seconds_total",
        Unit::Seconds,
        Source::Paused,
        "Time that sending of a priority was paused.",
    ),
];

/// Other figures that a program serves.
const PROGRAMS: &[Metric] = &[
    metric(
        "node_infiniband_rate_bytes_per_second",
        Unit::BytesPerSecond,
        Source::Program(|program| program.link_rate.map(|bits| real(bits) / 8.0)),
        "Rate of the link, if the link has one.",
    ),
    metric(
        "feroce_queue_pairs",
        Unit::Count,
        Source::Program(|program| Some(f64::from(program.qps))),
        "QPs of the program.",
    ),
    metric(
        "feroce_cm_listeners",
        Unit::Count,
        Source::Program(|program| Some(real(program.listeners as u64))),
        "Identifiers of RDMA CM that listen.",
    ),
    metric(
        "feroce_open_seconds",
        Unit::Seconds,
        Source::Program(|program| Some(real(program.nanos) / 1e9)),
        "Time since the program has opened the device.",
    ),
    metric(
        "feroce_lost_events_total",
        Unit::Count,
        Source::Program(|program| Some(real(program.events_lost))),
        "Asynchronous events dropped because the program did not read them.",
    ),
    metric(
        "feroce_arena_limit_bytes",
        Unit::Bytes,
        Source::Program(|program| Some(real(program.arena_limit as u64))),
        "Maximum memory for queues and buffers.",
    ),
    metric(
        "feroce_arena_mapped_bytes",
        Unit::Bytes,
        Source::Program(|program| Some(real(program.arena_mapped as u64))),
        "Memory mapped for queues and buffers.",
    ),
    metric(
        "feroce_arena_huge_bytes",
        Unit::Bytes,
        Source::Program(|program| Some(real(program.arena_huge as u64))),
        "The part of the mapped memory in hugepages.",
    ),
    metric(
        "feroce_arena_used_bytes",
        Unit::Bytes,
        Source::Program(|program| Some(real(program.arena_used as u64))),
        "Memory used by queues and buffers.",
    ),
    metric(
        "feroce_core_received_frames_total",
        Unit::Count,
        Source::Core(|core| core.rx_frames),
        "Frames that the port of a core has received.",
    ),
    metric(
        "feroce_core_received_bytes_total",
        Unit::Bytes,
        Source::Core(|core| core.rx_bytes),
        "Bytes that the port of a core has received, including Ethernet headers.",
    ),
    metric(
        "feroce_core_receive_dropped_frames_total",
        Unit::Count,
        Source::Core(|core| core.rx_dropped),
        "Frames that the port of a core has dropped on reception.",
    ),
    metric(
        "feroce_core_transmitted_frames_total",
        Unit::Count,
        Source::Core(|core| core.tx_frames),
        "Frames that the port of a core has sent.",
    ),
    metric(
        "feroce_core_transmitted_bytes_total",
        Unit::Bytes,
        Source::Core(|core| core.tx_bytes),
        "Bytes that the port of a core has sent, including Ethernet headers.",
    ),
    metric(
        "feroce_core_transmit_dropped_frames_total",
        Unit::Count,
        Source::Core(|core| core.tx_dropped),
        "Frames that the link of a core has refused.",
    ),
    metric(
        "feroce_program_info",
        Unit::Info,
        Source::ProgramInfo,
        "Version of Feroce, kind of port and congestion control of a program.",
    ),
];

/// Figures of daemons (`feroce up`).
const DAEMONS: &[Metric] = &[
    metric(
        "feroce_daemon_received_frames_total",
        Unit::Count,
        Source::Daemon(|daemon| daemon.rx_frames),
        "Frames that the daemon's port has received.",
    ),
    metric(
        "feroce_daemon_received_bytes_total",
        Unit::Bytes,
        Source::Daemon(|daemon| daemon.rx_bytes),
        "Bytes that the daemon's port has received, including Ethernet headers.",
    ),
    metric(
        "feroce_daemon_receive_dropped_frames_total",
        Unit::Count,
        Source::Daemon(|daemon| daemon.rx_dropped),
        "Frames that the daemon's port has lost on arrival.",
    ),
    metric(
        "feroce_daemon_undelivered_frames_total",
        Unit::Count,
        Source::Daemon(|daemon| daemon.rx_undelivered),
        "Frames for which the daemon had no program.",
    ),
    metric(
        "feroce_daemon_transmitted_frames_total",
        Unit::Count,
        Source::Daemon(|daemon| daemon.tx_frames),
        "Frames that the daemon's port has sent.",
    ),
    metric(
        "feroce_daemon_transmitted_bytes_total",
        Unit::Bytes,
        Source::Daemon(|daemon| daemon.tx_bytes),
        "Bytes that the daemon's port has sent, including Ethernet headers.",
    ),
    metric(
        "feroce_daemon_programs",
        Unit::Count,
        Source::Daemon(|daemon| daemon.programs.len() as u64),
        "Programs attached to the daemon whose figures this command may read.",
    ),
    metric(
        "feroce_daemon_info",
        Unit::Info,
        Source::DaemonInfo,
        "Process and kind of port of a daemon.",
    ),
    metric(
        "feroce_client_received_frames_total",
        Unit::Count,
        Source::AtDaemon(|program| program.frames.rx_frames),
        "Frames that the daemon has passed to a program.",
    ),
    metric(
        "feroce_client_received_bytes_total",
        Unit::Bytes,
        Source::AtDaemon(|program| program.frames.rx_bytes),
        "Bytes that the daemon has passed to a program, including Ethernet headers.",
    ),
    metric(
        "feroce_client_receive_dropped_frames_total",
        Unit::Count,
        Source::AtDaemon(|program| program.frames.rx_dropped),
        "Frames lost because a program had not taken earlier ones.",
    ),
    metric(
        "feroce_client_transmitted_frames_total",
        Unit::Count,
        Source::AtDaemon(|program| program.frames.tx_frames),
        "Frames that the daemon has accepted from a program.",
    ),
    metric(
        "feroce_client_transmitted_bytes_total",
        Unit::Bytes,
        Source::AtDaemon(|program| program.frames.tx_bytes),
        "Bytes that the daemon has accepted from a program, including Ethernet headers.",
    ),
    metric(
        "feroce_client_refused_frames_total",
        Unit::Count,
        Source::AtDaemon(|program| program.frames.tx_refused),
        "Frames that a program may not send.",
    ),
    metric(
        "feroce_client_throttled_total",
        Unit::Count,
        Source::AtDaemon(|program| program.frames.tx_throttled),
        "Times that a program had to wait because its user had used up a rate.",
    ),
    metric(
        "feroce_client_qp_numbers",
        Unit::Count,
        Source::AtDaemon(|program| program.qp_numbers.into()),
        "QP numbers that a program has, 256 at a time.",
    ),
    metric(
        "feroce_client_connections",
        Unit::Count,
        Source::AtDaemon(|program| program.connections as u64),
        "Connections of RDMA CM of a program, half-open ones included.",
    ),
    metric(
        "feroce_client_services",
        Unit::Count,
        Source::AtDaemon(|program| program.services as u64),
        "Ports of RDMA CM that a program is bound to.",
    ),
    metric(
        "feroce_user_programs",
        Unit::Count,
        Source::User(|user| user.programs),
        "Programs of a user at a daemon.",
    ),
    metric(
        "feroce_user_qp_numbers",
        Unit::Count,
        Source::User(|user| user.qp_numbers),
        "QP numbers that count towards a user's limit.",
    ),
    metric(
        "feroce_limit_programs",
        Unit::Count,
        Source::Limit(|limits| Some(limits.clients.into())),
        "Limit of the programs of a user.",
    ),
    metric(
        "feroce_limit_qp_numbers",
        Unit::Count,
        Source::Limit(|limits| Some(limits.qps.into())),
        "Limit of the QP numbers of a user.",
    ),
    metric(
        "feroce_limit_connections",
        Unit::Count,
        Source::Limit(|limits| Some(limits.connections.into())),
        "Limit of the connections of a program.",
    ),
    metric(
        "feroce_limit_services",
        Unit::Count,
        Source::Limit(|limits| Some(limits.services.into())),
        "Limit of the ports of RDMA CM of a program.",
    ),
    metric(
        "feroce_limit_packets_per_second",
        Unit::Count,
        Source::Limit(|limits| limits.packets),
        "Limit of the packets of a user per second, if there is one.",
    ),
    metric(
        "feroce_limit_bytes_per_second",
        Unit::BytesPerSecond,
        Source::Limit(|limits| limits.bytes),
        "Limit of the bytes of a user per second, if there is one.",
    ),
];

/// Figures of this command.
const OWN: &[Metric] = &[
    metric(
        "feroce_exporter_failures",
        Unit::Count,
        Source::Own(|figures| figures.errors.len()),
        "Programs and daemons whose figures are missing in this scrape.",
    ),
    metric("feroce_exporter_info", Unit::Info, Source::OwnInfo, "Version of `feroce metrics`."),
];

/// The nearest number of the format, which has only floating-point numbers.
#[allow(clippy::cast_precision_loss)]
pub const fn real(number: u64) -> f64 {
    number as f64
}
