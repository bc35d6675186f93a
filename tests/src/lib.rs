//! Rigs for tests that use several crates: two devices and a wire between them, in virtual time.

#![deny(unsafe_code)]

pub mod bench;
pub mod capture;
pub mod capture_list;
pub mod captured;
pub mod cm;
pub mod cm_fuzz;
pub mod cm_transitions;
pub mod conform_fuzz;
#[allow(unsafe_code)] // A global allocator.
pub mod counting_alloc;
pub mod datagram;
pub mod forger;
pub mod fuzz;
pub mod live;
pub mod pair;
pub mod ports;
pub mod replay_fuzz;
pub mod rxe;
pub mod swarm;

pub use feroce_conform::device_pair::{
    DevicePair, MACS, VLAN, addresses, drain, gid, gid_v6, gid_vlan, manual_config,
};
pub use feroce_conform::virtual_wire as wire;

use feroce_engine::device::DeviceConfig;
use feroce_engine::time::Duration;

use ports::RigPorts;

/// Compiles the example of docs/library.md.
#[cfg(doctest)]
#[doc = include_str!("../../docs/library.md")]
#[derive(Debug)]
pub struct Library;

/// Two devices, the wire between them, and their clock.
pub type Rig = DevicePair;

/// Creates two devices with `config` on the [ports](RigPorts) that `FEROCE_RIG` selects, and a wire
/// without faults that delays frames by `delay`.
pub fn new_rig(config: &DeviceConfig, delay: Duration) -> Rig {
    let RigPorts { near, far, resources } = RigPorts::with_cores(config.cores);
    let burst = resources.burst();
    let mut rig = DevicePair::on_ports(near, far, Some(Box::new(resources)), config, delay);
    rig.wire.set_burst(burst);
    rig
}
