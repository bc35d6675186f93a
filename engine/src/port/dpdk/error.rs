//! What can go wrong with a DPDK port, by culprit, each with its remedy.

use std::io;

use crate::port::kind::PortFailure;

/// Why a DPDK port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// A value of the configuration is out of its range.
    #[error("DPDK configuration: {0}")]
    Config(&'static str),

    /// The EAL did not start; what it wrote to standard error says more. It starts once per process, so that
    /// another try needs another process.
    #[error(
        "DPDK's EAL did not start with `{arguments}`: {reason} (for want of hugepages: reserve some with \
         `sysctl vm.nr_hugepages=256`, or use ordinary memory)"
    )]
    Eal {
        /// What it was started with.
        arguments: String,
        /// What it answered.
        reason: String,
    },

    /// The EAL runs already, with other arguments.
    #[error(
        "DPDK's EAL runs in this process already, with `{running}` and not with `{asked}`: it starts once per process"
    )]
    EalRuns {
        /// What it was started with.
        running: String,
        /// What was asked for now.
        asked: String,
    },

    /// DPDK knows no such device, or its driver refused it.
    #[error(
        "DPDK has no device '{port}': {reason} (a NIC must be bound to vfio-pci: `dpdk-devbind.py --status`; a \
         virtual device is net_memif0,..., net_af_packet0,iface=...; see docs/dpdk.md)"
    )]
    NoDevice {
        /// As asked for.
        port: String,
        /// What DPDK answered.
        reason: String,
    },

    /// The device is open already in this process.
    #[error("DPDK device '{0}' is open already in this process")]
    Busy(String),

    /// A memif client found no server on its socket while it waited for the link.
    #[error(
        "DPDK device '{0}' found no memif server on its socket: start that end first, or wait longer for it"
    )]
    NoServer(String),

    /// There are fewer queues than cores, and a core without a queue could not receive or send.
    #[error("DPDK device '{port}' has {queues} queues, too few for {cores} cores")]
    TooFewQueues {
        /// Device.
        port: String,
        /// Receive or transmit queues, whichever are fewer.
        queues: u16,
        /// Cores that asked for one each.
        cores: usize,
    },

    /// The device does not carry frames that long.
    #[error("DPDK device '{port}' carries IP packets of at most {limit} bytes, not {mtu}")]
    Mtu {
        /// Device.
        port: String,
        /// As asked for, in bytes.
        mtu: u32,
        /// As the driver says, in bytes.
        limit: u32,
    },

    /// No memory for packet buffers.
    #[error(
        "no memory for {buffers} packet buffers of {bytes} bytes: {source} (reserve hugepages, or raise the MiB of \
         ordinary memory)"
    )]
    Memory {
        /// Buffers.
        buffers: u32,
        /// Bytes of each.
        bytes: u32,
        /// DPDK's answer.
        #[source]
        source: io::Error,
    },

    /// DPDK refused something else.
    #[error("DPDK cannot {action}: {source}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// DPDK's answer.
        #[source]
        source: io::Error,
    },
}

impl PortFailure for DpdkError {}

impl DpdkError {
    /// The error behind a negative return value.
    pub(super) fn refused(action: &'static str, status: i32) -> Self {
        Self::Refused { action, source: io::Error::from_raw_os_error(-status) }
    }
}
