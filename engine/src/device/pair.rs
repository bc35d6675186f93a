//! Two devices in one process, connected by shared memory.

use std::net::Ipv4Addr;

use super::{Addressing, Device, DeviceConfig, OpenError, StaticAddresses};
use crate::memory::arena::Arena;
use crate::net::Gid;
use crate::port::Port;
use crate::port::shm::{ShmConfig, shm_pair};

/// Bytes of the arena of the two rings.
const ARENA_BYTES: usize = 64 << 20;

impl Device {
    /// Opens two devices in this process that are connected by a lossless cable in shared memory,
    /// for tests and first steps. Needs neither an interface nor a privilege. Their addresses are
    /// 10.0.0.1 and 10.0.0.2, the only GID of each.
    ///
    /// # Errors
    /// See [`OpenError`]. [`DeviceConfig::cores`] must be 1; the settings of ports are not used.
    pub fn open_pair(config: &DeviceConfig) -> Result<[Self; 2], OpenError> {
        let shm = ShmConfig::default();
        let (mtu, macs) = (shm.mtu, shm.macs);
        let gids = [1, 2].map(|host| Gid::from(Ipv4Addr::new(10, 0, 0, host)));
        let arena = Arena::new(ARENA_BYTES)
            .map_err(|source| OpenError::System { action: "reserve the arena", source })?;
        let (near, far) = shm_pair(&arena, shm)?;
        let open = |port: Box<dyn Port>, own: usize| {
            let addresses = StaticAddresses {
                mac: macs[own],
                gids: vec![(gids[own], None)],
                peers: [(gids[1 - own], macs[1 - own])].into(),
                mtu,
            };
            Self::with_ports(vec![port], Addressing::Static(addresses), config.clone())
        };
        Ok([open(Box::new(near), 0)?, open(Box::new(far), 1)?])
    }
}
