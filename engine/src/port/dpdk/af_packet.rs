//! DPDK ports on interfaces of the kernel, by DPDK's AF_PACKET driver, for tools and tests that run
//! the same traffic on every kind of port.

use std::net::IpAddr;

use super::config::{Address, DpdkConfig, DpdkMemory};
use crate::port::kind::{OverInterface, PortConfigs};

/// Memory of these ports. The first port of a process decides for all ports.
pub const MEMORY: DpdkMemory = DpdkMemory::Ordinary { mib: 1024 };

/// Frames that the ring of each direction holds.
const FRAMES: u32 = 2048;

/// Returns DPDK's name of device `number`, which is unique in the process, on `interface`. The ring
/// of each direction holds `frames` frames of up to 8 KiB.
pub fn device(number: u32, interface: &str, frames: u32) -> String {
    format!(
        "net_af_packet{number},iface={interface},\
         blocksz=65536,framesz=8192,framecnt={frames},qdisc_bypass=0"
    )
}

/// Returns `configs` for a device that has the local `addresses`, each with its prefix length.
#[must_use]
pub fn config(configs: &PortConfigs, addresses: &[(IpAddr, u8)]) -> PortConfigs {
    let address = |&(ip, prefix): &(IpAddr, u8)| Address { ip, prefix, vlan: None };
    let addresses = addresses.iter().map(address).collect();
    configs.clone().with(DpdkConfig { memory: MEMORY, ..DpdkConfig::new("", addresses) })
}

/// See [`PortEntry::over_interface`](crate::port::kind::PortEntry::over_interface).
pub(super) const OVER_INTERFACE: OverInterface = |number, interface, addresses, configs| {
    (device(number, interface, FRAMES), config(configs, addresses))
};
