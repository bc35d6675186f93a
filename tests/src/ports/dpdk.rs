//! A rig's ports by DPDK: its AF_PACKET driver on the ends of the veths, all in the one EAL of the process.

use std::sync::{Condvar, Mutex, PoisonError};

#[cfg(feature = "dpdk")]
use feroce_conform::endpoint::dpdk::{MEMORY, device};
#[cfg(feature = "dpdk")]
use feroce_engine::port::dpdk::DpdkConfig;

/// Rigs that there can be at a time: each has four devices, and DPDK has 32 in a process.
pub const MOST_RIGS: usize = 8;

static RIGS: Mutex<usize> = Mutex::new(0);
static GONE: Condvar = Condvar::new();

/// The right to have a rig, given back when dropped.
#[derive(Debug)]
pub(super) struct Place(());

impl Place {
    /// Waits until there is room for one more.
    pub(super) fn take() -> Self {
        start();
        let rigs = RIGS.lock().unwrap_or_else(PoisonError::into_inner);
        let rigs = GONE.wait_while(rigs, |rigs| *rigs == MOST_RIGS);
        *rigs.unwrap_or_else(PoisonError::into_inner) += 1;
        Self(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *RIGS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GONE.notify_one();
    }
}

/// Starts DPDK, with a device that goes again. Its drivers change the process's environment as they are loaded, which
/// must not happen while another thread starts a program.
///
/// # Panics
/// If it does not start.
#[cfg(feature = "dpdk")]
pub fn start() {
    use std::sync::Once;

    use feroce_engine::port::dpdk::{Address, DpdkPort};

    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let nobody = Address { ip: [10, 0, 0, 1].into(), prefix: 24, vlan: None };
        let config = DpdkConfig::new("net_null_start", vec![nobody]);
        let config = DpdkConfig { memory: MEMORY, ..config };
        drop(DpdkPort::open(&config, 1).expect("a port"));
    });
}

/// There is none.
#[cfg(not(feature = "dpdk"))]
pub fn start() {}

/// Takes frames to the addresses of both ends.
#[cfg(feature = "dpdk")]
pub(super) fn open(interface: &str) -> Box<dyn feroce_engine::port::Port> {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use feroce_engine::port::dpdk::{Address, DpdkPort};

    use crate::{VLAN, gid, gid_v6, gid_vlan};

    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let addresses = [0, 1].map(|end| {
        [(gid(end), 24, None), (gid_v6(end), 64, None), (gid_vlan(end), 24, Some(VLAN))]
            .map(|(gid, prefix, vlan)| Address { ip: gid.ip(), prefix, vlan })
    });
    let config = DpdkConfig {
        memory: MEMORY,
        rx_descriptors: 256,
        tx_descriptors: 256,
        // Tests with helpers hand over to and fro thousands of times.
        longest_nap: Duration::from_micros(50),
        ..DpdkConfig::new(device(number, interface, 1024), addresses.concat())
    };
    Box::new(DpdkPort::open(&config, 1).expect("a port").remove(0))
}

#[cfg(not(feature = "dpdk"))]
pub(super) fn open(_interface: &str) -> Box<dyn feroce_engine::port::Port> {
    panic!("FEROCE_RIG=dpdk: build the tests with `--features dpdk`");
}
