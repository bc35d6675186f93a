//! DPDK's AF_PACKET driver on an interface of the kernel.

use feroce_engine::device::DeviceConfig;
use feroce_engine::port::dpdk::{DpdkConfig, DpdkMemory};

/// Ordinary memory of the process.
pub const MEMORY: DpdkMemory = DpdkMemory::Ordinary { mib: 1024 };

/// DPDK's device `number` on `interface`. Its ring for each direction holds `frames` frames of up to 8 KiB.
pub fn device(number: u32, interface: &str, frames: u32) -> String {
    format!(
        "net_af_packet{number},iface={interface},blocksz=65536,framesz=8192,framecnt={frames},qdisc_bypass=0"
    )
}

/// `config` for a device that has `addresses`, each with its prefix.
///
/// # Panics
/// If one is none.
pub fn config(config: DeviceConfig, addresses: &[&str]) -> DeviceConfig {
    let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
    DeviceConfig { dpdk: DpdkConfig { memory: MEMORY, ..DpdkConfig::new("", addresses) }, ..config }
}
