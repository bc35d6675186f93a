//! The capture that `feroce run --pcap` asks for: what crosses the ports of a program that knows nothing of it.

use std::ffi::OsString;
use std::fs::File;

use feroce_engine::device::{Device, DeviceConfig, OpenError};
use feroce_engine::port::pcap::PcapPort;

use crate::device::DeviceEntry;

/// The file.
const FILE: &str = "FEROCE_PCAP";
/// Bytes of a frame that are kept.
const SNAP: &str = "FEROCE_PCAP_SNAP";

/// Whether there is one.
pub fn is_wanted() -> bool {
    file().is_some()
}

fn file() -> Option<OsString> {
    std::env::var_os(FILE).filter(|file| !file.is_empty())
}

/// Opens the device, captured if that is wanted. Other devices than the first and other cores than the first have
/// files of their own: `FILE.feroce1`, `FILE.1`.
///
/// # Errors
/// As for [`Device::open`], and when a file cannot be written.
pub fn open(entry: &DeviceEntry, config: DeviceConfig) -> Result<Device, OpenError> {
    let Some(file) = file() else { return Device::open(&entry.interface, config) };
    let snap = std::env::var(SNAP).ok().and_then(|text| text.parse().ok()).unwrap_or(u32::MAX);
    let mut core = 0;
    Device::open_wrapped(&entry.interface, config, &mut |port| {
        let failed = |source| OpenError::System { action: "write the capture file", source };
        let mut path = file.clone();
        if entry.index > 0 {
            path.push(format!(".feroce{}", entry.index));
        }
        if core > 0 {
            path.push(format!(".{core}"));
        }
        core += 1;
        let file = File::create(&path).map_err(failed)?;
        Ok(Box::new(PcapPort::new(port, file, snap).map_err(failed)?))
    })
}
