//! The plan of a test: what both sides do. It travels from the client to the server.

use std::time::Duration;

use clap::ValueEnum;
use feroce_engine::device::{PortKind, Split};
use feroce_wire::PathMtu;
use serde::{Deserialize, Serialize};

use super::error::PerfError;

/// Largest message: each side holds two of them.
pub const MAX_SIZE: u32 = 1 << 30;
/// Most QPs of a test.
pub const MAX_QPS: u32 = 100_000;
/// Exponents of the sizes of `--all`: 2 bytes to 8 MiB, as in perftest.
const SWEEP: std::ops::RangeInclusive<u32> = 1..=23;
/// Allowed durations in seconds.
pub const DURATIONS: std::ops::RangeInclusive<f64> = 0.001..=1e6;
/// Bytes per size without `-n` or `-D`, at most.
const VOLUME: u64 = 1 << 30;

/// A path MTU in bytes; `None`: the largest that both ports carry. An alias, because clap treats a
/// literal `Option<Option<T>>` differently.
pub type RequestedMtu = Option<u32>;

/// The transport of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// RoCEv2 by Feroce
    Roce,
    /// The kernel's TCP
    Tcp,
}

/// When messages are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitMode {
    /// If both ends support super-frames
    Auto,
    /// To every peer
    Always,
    /// Never
    Never,
}

impl From<SplitMode> for Split {
    fn from(when: SplitMode) -> Self {
        match when {
            SplitMode::Auto => Self::Auto,
            SplitMode::Always => Self::Always,
            SplitMode::Never => Self::Never,
        }
    }
}

/// The operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// RDMA WRITE
    Write,
    /// RDMA WRITE WITH IMMEDIATE
    WriteImm,
    /// RDMA READ
    Read,
    /// SEND
    Send,
    /// SEND with immediate data
    SendImm,
    /// Fetch and add
    AtomicFadd,
    /// Compare and swap
    AtomicCas,
}

impl Op {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA WRITE",
            Self::WriteImm => "RDMA WRITE WITH IMMEDIATE",
            Self::Read => "RDMA READ",
            Self::Send => "SEND",
            Self::SendImm => "SEND WITH IMMEDIATE",
            Self::AtomicFadd => "FETCH AND ADD",
            Self::AtomicCas => "COMPARE AND SWAP",
        }
    }

    /// Returns true for fetch-and-add and compare-and-swap.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicFadd | Self::AtomicCas)
    }

    /// Returns true if the response carries the data, so that the peer's program has no part in it.
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(self, Self::Read) || self.is_atomic()
    }

    /// Returns true if each message consumes a receive of the peer.
    pub const fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }
}

/// A complete test, as the client decided. The fields have the names of the fields of
/// `TestOptions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub transport: Transport,
    pub op: Op,
    pub latency: bool,
    pub size: u32,
    pub all: bool,
    pub iters: Option<u64>,
    pub duration: Option<f64>,
    pub qps: u32,
    pub mtu: RequestedMtu,
    pub tx_depth: u32,
    pub bidirectional: bool,
    pub inline: u32,
    pub tclass: u8,
    pub timeout: u8,
    pub retry: u8,
    pub split: SplitMode,
    pub check: bool,
}

/// When a round ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// After this number of messages per QP.
    Messages(u64),
    /// After this time.
    Time(Duration),
}

impl Plan {
    /// The first contradiction or value out of range; also for a plan received over the network.
    pub fn contradiction(&self) -> Option<&'static str> {
        let tcp = self.transport == Transport::Tcp;
        let rules = [
            (tcp && self.op != Op::Send, "TCP supports only --op send"),
            (tcp && self.bidirectional, "TCP is measured one way: leave -b out"),
            (tcp && self.check, "--check does not apply to TCP"),
            (self.op.is_atomic() && self.all, "atomics have 8 bytes: leave -a out"),
            (self.op.is_atomic() && self.size != 8, "atomics have 8 bytes: leave -s out"),
            (self.latency && self.qps > 1, "latency is measured with one QP: leave -q out"),
            (self.latency && self.bidirectional, "latency is measured one way: leave -b out"),
            (
                self.latency && self.size == 0,
                "latency needs at least 1 byte, whose arrival can be seen",
            ),
            (tcp && self.size == 0, "TCP needs at least 1 byte"),
            (
                self.inline > 0 && self.op.is_read_or_atomic(),
                "READs and atomics have no inline data: leave --inline out",
            ),
            (self.size > MAX_SIZE, "a message is at most 1 GiB"),
            (self.qps == 0 || self.qps > MAX_QPS, "1 to 100000 QPs"),
            (self.tx_depth == 0 || self.tx_depth > 32_768, "a depth is 1 to 32768"),
            (self.iters == Some(0), "at least one message"),
            (
                self.duration.is_some_and(|s| !DURATIONS.contains(&s)),
                "a duration is 0.001 to 1000000 s",
            ),
        ];
        rules.into_iter().find(|(broken, _)| *broken).map(|(_, detail)| detail)
    }

    /// Message sizes, in the order of the rounds.
    pub fn sizes(&self) -> Vec<u32> {
        if self.all { SWEEP.map(|exponent| 1 << exponent).collect() } else { vec![self.size] }
    }

    /// The goal of a round with messages of `size` bytes.
    pub fn goal(&self, size: u32) -> Goal {
        match (self.iters, self.duration) {
            (_, Some(seconds)) => Goal::Time(Duration::from_secs_f64(seconds)),
            (Some(messages), None) => Goal::Messages(messages),
            (None, None) if self.latency => Goal::Messages(1000),
            (None, None) => {
                let qps = u64::from(self.qps);
                Goal::Messages((VOLUME / u64::from(size.max(1)) / qps).clamp(1, 5000))
            }
        }
    }

    /// The path MTU, if both ports carry `active` at most.
    ///
    /// # Errors
    /// [`PerfError::Plan`] if the plan requires more.
    pub fn path_mtu(&self, active: PathMtu) -> Result<PathMtu, PerfError> {
        match self.mtu.and_then(PathMtu::from_bytes) {
            Some(requested) if requested.bytes() > active.bytes() => Err(PerfError::Plan(format!(
                "path MTU {requested} is required, but the ports carry {active}: raise the ports' \
                 MTU at both ends ({}) or use a smaller path MTU",
                mtu_commands(requested.bytes() + PathMtu::OVERHEAD)
            ))),
            Some(requested) => Ok(requested),
            None => Ok(active),
        }
    }
}

/// The commands that raise the MTU of a port to `mtu`: for an interface of the kernel, and for each
/// kind of port with a setting for its MTU.
fn mtu_commands(mtu: u32) -> String {
    let interface = format!("`ip link set IFACE mtu {mtu}`");
    let options = PortKind::rows().filter_map(|(kind, entry)| {
        let flag = entry.setting("mtu")?.option?.flag;
        Some(format!("port {kind}: `{flag} {mtu}`"))
    });
    std::iter::once(interface).chain(options).collect::<Vec<_>>().join("; ")
}
