//! The result type of all checks.

use feroce_engine::counters::Counter;
use feroce_engine::device::Device;

use crate::wire::WireFaults;

/// `Err` describes the violation.
pub type Check = Result<(), String>;

/// Counters of packets that look forged. No peer of a swarm forges.
const FORGED: [Counter; 2] = [Counter::RxImplausibleMsn, Counter::RxUnusualOrigin];

/// The sum of each counter over the devices.
pub fn sums<const N: usize>(devices: &[Device], counters: [Counter; N]) -> [u64; N] {
    counters.map(|counter| devices.iter().map(|device| device.counter(counter)).sum())
}

/// The counters of packets that look forged, over all devices.
pub fn suspicions(devices: &[Device]) -> [u64; 2] {
    sums(devices, FORGED)
}

/// No packet of an honest peer was taken for a forged one since the counters were `before`.
/// `faults`: those of the wire; they may damage Ethernet addresses, which the ICRC does not cover.
pub fn check_suspicions(devices: &[Device], before: [u64; 2], faults: &WireFaults) -> Check {
    let [msn, origin] = suspicions(devices);
    if msn > before[0] || (origin > before[1] && faults.corrupt == 0) {
        return Err(format!("{FORGED:?}, of honest packets: {before:?}, now {msn} and {origin}"));
    }
    Ok(())
}
