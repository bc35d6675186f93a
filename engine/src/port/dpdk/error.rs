//! Errors of a DPDK port. A message names the remedy where Feroce knows one.

use std::io;

use crate::port::kind::PortFailure;

/// Why a DPDK port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// A configuration value is out of range.
    #[error("DPDK configuration: {0}")]
    Config(&'static str),

    /// The EAL did not start; its output on standard error has details. The EAL starts once per
    /// process, so another attempt needs another process.
    #[error(
        "DPDK's EAL did not start with `{arguments}`: {reason} (if hugepages are missing, \
         reserve some with `sysctl vm.nr_hugepages=256` or use ordinary memory)"
    )]
    Eal {
        /// The EAL's arguments.
        arguments: String,
        /// The error of the EAL.
        reason: String,
    },

    /// The EAL already runs with other arguments.
    #[error(
        "DPDK's EAL already runs in this process with `{running}` instead of `{requested}`; \
         it starts once per process"
    )]
    EalRuns {
        /// The EAL's arguments.
        running: String,
        /// The arguments requested now.
        requested: String,
    },

    /// DPDK has no such device, or its driver refused it.
    #[error(
        "DPDK has no device '{port}': {reason} (a NIC must be bound to vfio-pci: \
         `dpdk-devbind.py --status`; virtual devices are net_memif0,..., \
         net_af_packet0,iface=...; see docs/dpdk.md)"
    )]
    NoDevice {
        /// The requested device.
        port: String,
        /// The error of DPDK.
        reason: String,
    },

    /// This process already has the device open.
    #[error("DPDK device '{0}' is already open in this process")]
    Busy(String),

    /// A memif client found no server on its socket within the wait time.
    #[error(
        "DPDK device '{0}' found no memif server on its socket: start the server first, or wait \
         longer for it"
    )]
    NoServer(String),

    /// The device has fewer queues than there are cores. A core without a queue could not receive
    /// or send.
    #[error("DPDK device '{port}' has {queues} queues, too few for {cores} cores")]
    TooFewQueues {
        /// Device.
        port: String,
        /// The smaller of the numbers of receive and transmit queues.
        queues: u16,
        /// Cores; each needs a queue.
        cores: usize,
    },

    /// The device does not carry IP packets of this length.
    #[error("DPDK device '{port}' carries IP packets of at most {limit} bytes, not {mtu}")]
    Mtu {
        /// Device.
        port: String,
        /// The requested MTU in bytes.
        mtu: u32,
        /// The limit of the driver in bytes.
        limit: u32,
    },

    /// There is no memory for packet buffers.
    #[error(
        "no memory for {buffers} packet buffers of {bytes} bytes: {source} \
         (reserve hugepages, or configure more MiB of ordinary memory)"
    )]
    Memory {
        /// Number of buffers.
        buffers: u32,
        /// Bytes of each buffer.
        bytes: u32,
        /// The error of DPDK.
        #[source]
        source: io::Error,
    },

    /// DPDK refused another operation.
    #[error("DPDK cannot {action}: {source}")]
    Refused {
        /// The action that failed.
        action: &'static str,
        /// The error of DPDK.
        #[source]
        source: io::Error,
    },
}

impl PortFailure for DpdkError {}

impl DpdkError {
    /// The error for a negative return value.
    pub(super) fn refused(action: &'static str, status: i32) -> Self {
        Self::Refused { action, source: io::Error::from_raw_os_error(-status) }
    }
}
