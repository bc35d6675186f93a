//! The DPDK port (cargo feature `dpdk`): frames from and to any device that DPDK has a driver for, past the
//! kernel altogether. Without the feature there is its configuration, which settings can have all the same.
//!
//! - The device is named as DPDK names it ([`DpdkConfig::port`]): a PCI address, or a virtual device that is
//!   made when the port opens and removed when it closes. The EAL starts with the first port of the process.
//! - **No kernel stands behind the port**, so it answers ARP, neighbour solicitations and pings for its
//!   addresses (`frames`), and finds its neighbours itself (`lan`, `PortAddresses`). What is neither that nor
//!   RoCE for one of its addresses is dropped and counted ([`rx_foreign`](super::PortStats::rx_foreign)).
//! - A frame is in one buffer. No offload is used: the ICRC is computed by the core as on every port, the UDP
//!   checksum of RoCE is zero, and the checksum of an IPv4 header costs less than telling a device to compute it.
//! - Devices are polled. An idle helper sleeps by a timer, up to [`DpdkConfig::longest_nap`], and a frame that
//!   arrives meanwhile waits for its end.
//! - One transmit queue per core carries all priorities in order.
//!
//! # Unsafe
//! This directory is one of the rooms where `unsafe` is allowed: for DPDK's functions and its packet buffers.
#![allow(unsafe_code)] // A named room; see above.

mod config;
#[cfg(feature = "dpdk")]
mod device;
#[cfg(feature = "dpdk")]
mod eal;
#[cfg(feature = "dpdk")]
mod error;
#[cfg(feature = "dpdk")]
mod frames;
#[cfg(feature = "dpdk")]
mod lan;
#[cfg(feature = "dpdk")]
mod mbuf;
#[cfg(feature = "dpdk")]
mod nap;
#[cfg(feature = "dpdk")]
mod port;
mod settings;

pub use config::{Address, DpdkConfig, DpdkMemory, LEAST_MEMORY, MTUS, ParseAddressError};
#[cfg(feature = "dpdk")]
pub use {error::DpdkError, lan::PortAddresses, port::DpdkPort};

use super::kind::{BufferMemory, OpenPorts, PortConfigs, PortEntry};

/// The kind of port `dpdk`.
pub(super) const ENTRY: PortEntry = PortEntry {
    name: "dpdk",
    title: "DPDK",
    feature: Some("dpdk"),
    on_kernel: false,
    in_auto: false,
    config: || Box::new(DpdkConfig::new("", Vec::new())),
    settings: settings::SETTINGS,
    open: OPEN,
    buffers: Some(buffers),
};

#[cfg(feature = "dpdk")]
const OPEN: Option<OpenPorts> = Some(port::open);
#[cfg(not(feature = "dpdk"))]
const OPEN: Option<OpenPorts> = None;

/// DPDK allocates its packet buffers when it starts.
fn buffers(configs: &PortConfigs, cores: usize) -> BufferMemory {
    let config = configs.get::<DpdkConfig>();
    BufferMemory {
        needed_mib: config.buffer_bytes(cores).div_ceil(1 << 20),
        ordinary_mib: match config.memory {
            DpdkMemory::Ordinary { mib } => Some(mib),
            DpdkMemory::Hugepages => None,
        },
        setting: "dpdk_memory",
    }
}
