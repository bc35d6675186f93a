//! The capture file of `feroce run --pcap`: frames that cross the ports of an unmodified program.

use std::ffi::OsString;
use std::io;

use feroce_engine::device::{Device, DeviceConfig, OpenError};
use feroce_engine::port::pcap::PcapPort;
use feroce_engine::{environment, files};

use crate::device::DeviceEntry;

/// Environment variable: path of the capture file.
const FILE: &str = "FEROCE_PCAP";
/// Environment variable: bytes kept of each frame.
const SNAP: &str = "FEROCE_PCAP_SNAP";

/// Returns true if a capture was requested.
pub fn is_wanted() -> bool {
    file().is_some()
}

fn file() -> Option<OsString> {
    environment::var_os(FILE).filter(|file| !file.is_empty())
}

/// Opens the device, with a capture if one was requested. Devices and cores after the first write
/// to files of their own: `FILE.feroce1`, `FILE.1`.
///
/// # Errors
/// As for [`Device::open`], and if a capture file cannot be created.
pub fn open(entry: &DeviceEntry, config: DeviceConfig) -> Result<Device, OpenError> {
    let Some(file) = file() else { return Device::open(&entry.interface, config) };
    let snap = environment::var_os(SNAP).and_then(|text| text.to_str()?.parse().ok());
    let snap = snap.unwrap_or(u32::MAX);
    let mut core = 0;
    Device::open_wrapped(&entry.interface, config, &mut |port| {
        let mut path = file.clone();
        if entry.index > 0 {
            path.push(format!(".feroce{}", entry.index));
        }
        if core > 0 {
            path.push(format!(".{core}"));
        }
        core += 1;
        let failed = |error: io::Error| OpenError::System {
            action: "write the capture file",
            source: files::named(&path, &error),
        };
        let file = files::create_private(&path).map_err(failed)?;
        Ok(Box::new(PcapPort::new(port, file, snap).map_err(failed)?))
    })
}
