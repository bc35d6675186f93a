//! DPDK devices of tests: the AF_PACKET driver of DPDK on a kernel interface.

use feroce_engine::device::DeviceConfig;
use feroce_engine::port::dpdk::{DpdkConfig, DpdkMemory};

/// Ordinary memory that DPDK gets in this process.
pub const MEMORY: DpdkMemory = DpdkMemory::Ordinary { mib: 1024 };

/// DPDK's name of device `number` on `interface`. The ring of each direction holds `frames` frames
/// of up to 8 KiB.
pub fn device(number: u32, interface: &str, frames: u32) -> String {
    format!(
        "net_af_packet{number},iface={interface},\
         blocksz=65536,framesz=8192,framecnt={frames},qdisc_bypass=0"
    )
}

/// `config` for a device that has `addresses`, each with its prefix length.
///
/// # Panics
/// If one of them is no valid address.
pub fn config(config: DeviceConfig, addresses: &[&str]) -> DeviceConfig {
    let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
    let dpdk = DpdkConfig { memory: MEMORY, ..DpdkConfig::new("", addresses) };
    DeviceConfig { ports: config.ports.clone().with(dpdk), ..config }
}
