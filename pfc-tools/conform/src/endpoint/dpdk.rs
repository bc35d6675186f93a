//! DPDK's AF_PACKET driver on an interface of the kernel.

use feroce_engine::device::DeviceConfig;
use feroce_engine::port::dpdk::{DpdkConfig, DpdkMemory};

/// Ordinary memory of the process instead of hugepages.
pub const MEMORY: DpdkMemory = DpdkMemory::Ordinary { mib: 1024 };

/// Returns the device string of AF_PACKET device `number` on `interface`. Its ring per direction
/// holds `frames` frames of up to 8 KiB.
pub fn device(number: u32, interface: &str, frames: u32) -> String {
    format!(
        "net_af_packet{number},iface={interface},blocksz=65536,framesz=8192,framecnt={frames},\
         qdisc_bypass=0"
    )
}

/// Returns `config` for a device with `addresses`, each with a prefix length.
///
/// # Panics
/// If an address cannot be parsed.
pub fn config(config: DeviceConfig, addresses: &[&str]) -> DeviceConfig {
    let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
    DeviceConfig { dpdk: DpdkConfig { memory: MEMORY, ..DpdkConfig::new("", addresses) }, ..config }
}
