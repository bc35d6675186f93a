//! The DPDK port (cargo feature `dpdk`): frames from and to any device that DPDK has a driver for,
//! without the kernel. Without the feature only its configuration exists, so that its settings stay
//! valid.
//!
//! - [`DpdkConfig::port`] names the device as DPDK does: a PCI address, or a virtual device that is
//!   created when the port opens and removed when it closes. The EAL starts with the first port of
//!   the process.
//! - **The port has no kernel interface.** It answers ARP requests, neighbour
//!   solicitations and pings to its addresses (`frames`) and resolves its neighbours itself
//!   (`neighbours`, `PortAddresses`). It drops all other frames that are not RoCE to one of its
//!   addresses, and counts them ([`rx_foreign`](super::PortStats::rx_foreign)).
//! - A frame is in one buffer. The port uses no offload: the core computes the ICRC as on every
//!   port, the UDP checksum of RoCE is zero, and computing the checksum of an IPv4 header is
//!   cheaper than requesting it from a device.
//! - Devices are polled. An idle helper sleeps on a timer for at most
//!   [`DpdkConfig::longest_sleep`]; a frame that arrives meanwhile waits until the timer expires.
//! - One transmit queue per core carries all priorities in order.
//!
//! # Unsafe
//! `unsafe` is allowed in this directory: for the functions and the packet buffers of DPDK.
#![allow(unsafe_code)] // See above.

pub mod af_packet;
mod config;
mod settings;

#[cfg(feature = "dpdk")]
mod device;
#[cfg(feature = "dpdk")]
mod eal;
#[cfg(feature = "dpdk")]
mod error;
#[cfg(feature = "dpdk")]
mod mbuf;
#[cfg(feature = "dpdk")]
mod port;

// These do not call DPDK: every build tests them.
#[cfg(any(feature = "dpdk", test))]
mod arguments;
#[cfg(any(feature = "dpdk", test))]
#[cfg_attr(not(feature = "dpdk"), allow(dead_code, reason = "the port uses the rest"))]
mod frames;
#[cfg(any(feature = "dpdk", test))]
mod idle_timer;
#[cfg(any(feature = "dpdk", test))]
#[cfg_attr(not(feature = "dpdk"), allow(dead_code, reason = "the port uses the rest"))]
mod neighbours;

pub use config::{Address, DpdkConfig, DpdkMemory, MEMORY_MIN, MTUS, ParseAddressError};
#[cfg(feature = "dpdk")]
pub use {error::DpdkError, neighbours::PortAddresses, port::DpdkPort};

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
    over_interface: Some(af_packet::OVER_INTERFACE),
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
