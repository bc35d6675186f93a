//! Configuration of an AF_XDP port.

use super::error::AfXdpError;
use crate::port::kind::PortConfig;

/// Where the XDP program runs in the receive path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// Native if the driver supports it, else generic.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the kernel's stack, before the protocols; works on any interface.
    Generic,
}

/// How frames are transferred from and to the packet buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyMode {
    /// Zero-copy if the driver supports it, else copy.
    #[default]
    Auto,
    /// The kernel copies each frame; works on any interface.
    Copy,
    /// The device accesses the packet buffers itself. Native mode only.
    ZeroCopy,
}

/// Busy polling: system calls of this process poll the device instead of interrupts.
///
/// Useful on a real NIC, together with `napi_defer_hard_irqs` and `gro_flush_timeout` of the
/// interface in sysfs. Harmful on veth, hence off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// Time for which one call polls the device, in microseconds (`SO_BUSY_POLL`); at least 1.
    pub microseconds: u16,
    /// Maximum number of frames per call (`SO_BUSY_POLL_BUDGET`); at least 1.
    pub budget: u16,
}

/// How to open an AF_XDP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfXdpConfig {
    /// Interface name.
    pub interface: String,
    /// Where the XDP program runs.
    pub mode: XdpMode,
    /// How frames are transferred from and to the packet buffers.
    pub copy: CopyMode,
    /// Receive buffers of 4096 bytes per queue; a power of two from 64 to 32768.
    pub rx_frames: u32,
    /// Transmit slots per core, each of one or two buffers of 4096 bytes depending on the MTU; a
    /// power of two from 64 to 16384.
    pub tx_slots: u32,
    /// Allocate the buffers in huge pages if any are free.
    pub hugepages: bool,
    /// Busy polling; with `None` the device uses interrupts.
    pub busy_poll: Option<BusyPoll>,
    /// Also deliver flow-control frames. A device with [`pfc`](crate::device::DeviceConfig::pfc)
    /// sets this itself.
    pub flow_control: bool,
}

impl PortConfig for AfXdpConfig {
    /// Returns true if the configuration chooses a mode of XDP.
    fn is_required(&self) -> bool {
        self.mode != XdpMode::Auto
    }

    fn boxed_clone(&self) -> Box<dyn PortConfig> {
        Box::new(self.clone())
    }
}

impl AfXdpConfig {
    /// The defaults for `interface`.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            mode: XdpMode::Auto,
            copy: CopyMode::Auto,
            rx_frames: 2048,
            tx_slots: 512,
            hugepages: true,
            busy_poll: None,
            flow_control: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), AfXdpError> {
        let power = |value: u32, most: u32| value.is_power_of_two() && (64..=most).contains(&value);
        if !power(self.rx_frames, 32768) {
            return Err(AfXdpError::Config("rx_frames must be a power of two from 64 to 32768"));
        }
        if !power(self.tx_slots, 16384) {
            return Err(AfXdpError::Config("tx_slots must be a power of two from 64 to 16384"));
        }
        if self.mode == XdpMode::Generic && self.copy == CopyMode::ZeroCopy {
            return Err(AfXdpError::Config("zero-copy needs native mode"));
        }
        if self.busy_poll.is_some_and(|poll| poll.microseconds == 0 || poll.budget == 0) {
            return Err(AfXdpError::Config(
                "busy_poll needs at least 1 us and a budget of at least 1",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_pass_and_each_bad_value_is_named() {
        let good = AfXdpConfig::new("eth0");
        assert!(good.check().is_ok());
        let bad = [
            ("rx_frames", AfXdpConfig { rx_frames: 1000, ..good.clone() }),
            ("rx_frames", AfXdpConfig { rx_frames: 32, ..good.clone() }),
            ("tx_slots", AfXdpConfig { tx_slots: 32768, ..good.clone() }),
            (
                "zero-copy",
                AfXdpConfig { mode: XdpMode::Generic, copy: CopyMode::ZeroCopy, ..good.clone() },
            ),
            (
                "busy_poll",
                AfXdpConfig { busy_poll: Some(BusyPoll { microseconds: 0, budget: 64 }), ..good },
            ),
        ];
        for (name, config) in bad {
            let error = config.check().expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
