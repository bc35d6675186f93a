//! DPDK ports of a rig: DPDK's AF_PACKET driver on the ends of the veths. All share the one EAL of
//! the process.

use std::sync::{Condvar, Mutex, PoisonError};

use feroce_engine::device::{DeviceConfig, PortKind};
use feroce_engine::port::RX_BURST;
#[cfg(feature = "dpdk")]
use feroce_engine::port::dpdk::DpdkConfig;
#[cfg(feature = "dpdk")]
use feroce_engine::port::dpdk::af_packet::MEMORY;
use feroce_engine::port::dpdk::af_packet::{config, device};

use super::Rig;

/// Maximum number of rigs at a time. Each has four devices, and DPDK allows 32 devices per process.
const MOST_RIGS: usize = 8;

/// How tests use DPDK ports.
pub(super) const RIG: Rig = Rig {
    start,
    reserve: Some(|| Box::new(RigPermit::take())),
    rigs_max: MOST_RIGS,
    burst: RX_BURST,
    device: |number, interface, base, addresses| {
        let parse = |text: &&str| {
            let (ip, prefix) = text.split_once('/').expect("an address with its prefix length");
            (ip.parse().expect("an address"), prefix.parse().expect("a number"))
        };
        let addresses: Vec<_> = addresses.iter().map(parse).collect();
        let ports = config(&base.ports, &addresses);
        (device(number, interface, 1024), DeviceConfig { ports, ..base })
    },
    ..Rig::new(PortKind::Dpdk, open)
};

static RIGS: Mutex<usize> = Mutex::new(0);
static GONE: Condvar = Condvar::new();

/// The right to have a rig, released when dropped.
#[derive(Debug)]
struct RigPermit(());

impl RigPermit {
    /// Waits until there is room for one more rig.
    fn take() -> Self {
        start();
        let rigs = RIGS.lock().unwrap_or_else(PoisonError::into_inner);
        let rigs = GONE.wait_while(rigs, |rigs| *rigs == MOST_RIGS);
        *rigs.unwrap_or_else(PoisonError::into_inner) += 1;
        Self(())
    }
}

impl Drop for RigPermit {
    fn drop(&mut self) {
        *RIGS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GONE.notify_one();
    }
}

/// Starts DPDK by opening and closing a device. Loading its drivers changes the environment of the
/// process, which must not happen while another thread starts a program.
///
/// # Panics
/// If DPDK does not start.
#[cfg(feature = "dpdk")]
pub fn start() {
    use std::sync::Once;

    use feroce_engine::port::dpdk::{Address, DpdkPort};

    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let unused = Address { ip: [10, 0, 0, 1].into(), prefix: 24, vlan: None };
        let config = DpdkConfig::new("net_null_start", vec![unused]);
        let config = DpdkConfig { memory: MEMORY, ..config };
        drop(DpdkPort::open(&config, 1).expect("a port"));
    });
}

/// Does nothing: this build has no DPDK port.
#[cfg(not(feature = "dpdk"))]
pub fn start() {}

/// Opens a DPDK port for the addresses of both ends.
#[cfg(feature = "dpdk")]
fn open(interface: &str) -> Box<dyn feroce_engine::port::Port> {
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
        // Tests with helper threads make thousands of round trips.
        longest_sleep: Duration::from_micros(50),
        ..DpdkConfig::new(device(number, interface, 1024), addresses.concat())
    };
    Box::new(DpdkPort::open(&config, 1).expect("a port").remove(0))
}

#[cfg(not(feature = "dpdk"))]
fn open(_interface: &str) -> Box<dyn feroce_engine::port::Port> {
    panic!("FEROCE_RIG=dpdk: build the tests with `--features dpdk`");
}
