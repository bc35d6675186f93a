//! Configuration and settings of a UDP port.

use super::error::UdpError;
use crate::port::kind::{PortConfig, PortConfigs, PortOption, PortSetting};
use crate::port::packet::SuperFrames;
use crate::setting_text::{list, number, show_list};

/// Maximum number of source ports: each needs up to four descriptors.
const SOURCE_PORTS_MAX: usize = 64;
const RX_SOCKETS: std::ops::RangeInclusive<u32> = 1..=16;
const RX_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=1 << 30;

/// How to open a UDP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpConfig {
    /// Interface name.
    pub interface: String,
    /// Receive sockets per core and address family, 1 to 16. The kernel spreads QPs over them, so
    /// each gets a receive buffer of its own.
    pub rx_sockets: u32,
    /// Receive buffer of each socket in bytes, including the kernel's overhead (`SO_RCVBUF`); 64
    /// KiB to 1 GiB. Without CAP_NET_ADMIN in the initial user namespace the kernel grants at most
    /// twice `net.core.rmem_max`.
    pub rx_bytes: u32,
    /// Transmit slots per core, one packet each; 64 to 16384.
    pub tx_slots: u32,
    /// UDP source ports, 1 to 64. 0 stands for a free port that the kernel chooses. Switches and
    /// receive queues spread flows by their source port.
    pub source_ports: Vec<u16>,
    /// When to send super-frames.
    pub super_frames: SuperFrames,
}

impl PortConfig for UdpConfig {
    fn boxed_clone(&self) -> Box<dyn PortConfig> {
        Box::new(self.clone())
    }
}

impl UdpConfig {
    /// The defaults for `interface`.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            rx_sockets: 4,
            rx_bytes: 32 << 20,
            tx_slots: 128,
            source_ports: vec![0; 4],
            super_frames: SuperFrames::Auto,
        }
    }

    pub(super) fn check(&self) -> Result<(), UdpError> {
        let rules = [
            (!RX_SOCKETS.contains(&self.rx_sockets), "rx_sockets must be 1 to 16"),
            (!RX_BYTES.contains(&self.rx_bytes), "rx_bytes must be 64 KiB to 1 GiB"),
            (!(64..=16384).contains(&self.tx_slots), "tx_slots must be 64 to 16384"),
            (
                !(1..=SOURCE_PORTS_MAX).contains(&self.source_ports.len()),
                "source_ports must be 1 to 64 ports",
            ),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, rule)) => Err(UdpError::Config(rule)),
            None => Ok(()),
        }
    }

    /// Returns true if the port sends super-frames. `veth`: the interface is a veth.
    pub(super) fn sends_super_frames(&self, veth: bool) -> bool {
        match self.super_frames {
            SuperFrames::Auto => veth,
            SuperFrames::On => true,
            SuperFrames::Off => false,
        }
    }
}

fn config(configs: &PortConfigs) -> &UdpConfig {
    configs.get()
}

/// Every setting of the port.
pub(super) const SETTINGS: &[PortSetting] = &[
    PortSetting {
        name: "udp_sockets",
        expects: "1 to 16",
        about: "port udp: receive sockets per core and address family, each with a receive buffer",
        option: Some(PortOption {
            flag: "--udp-sockets",
            value_name: "N",
            help: "Port udp: receive sockets per core and address family",
        }),
        set: |configs, text| {
            let range = u64::from(*RX_SOCKETS.start())..=u64::from(*RX_SOCKETS.end());
            number(text, range).map(|count| configs.get_mut::<UdpConfig>().rx_sockets = count)
        },
        show: |configs| config(configs).rx_sockets.to_string(),
    },
    PortSetting {
        name: "udp_source_ports",
        expects: "UDP ports to send from, at most 64: `50000, 50001`; 0 is a free one",
        about: "port udp: UDP source ports, by which switches and receive queues spread flows",
        option: Some(PortOption {
            flag: "--udp-source-ports",
            value_name: "LIST",
            help: "Port udp: UDP ports to send from, such as `50000,50001`; 0 is a free one",
        }),
        set: |configs, text| {
            let ports: Vec<u16> = list(text)?;
            let fits = (1..=SOURCE_PORTS_MAX).contains(&ports.len());
            fits.then(|| configs.get_mut::<UdpConfig>().source_ports = ports)
        },
        show: |configs| show_list(&config(configs).source_ports),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_pass_and_each_bad_value_is_named() {
        let good = UdpConfig::new("eth0");
        good.check().unwrap();
        let bad = [
            (UdpConfig { rx_sockets: 17, ..good.clone() }, "rx_sockets"),
            (UdpConfig { rx_bytes: 1000, ..good.clone() }, "rx_bytes"),
            (UdpConfig { tx_slots: 63, ..good.clone() }, "tx_slots"),
            (UdpConfig { source_ports: Vec::new(), ..good.clone() }, "source_ports"),
            (UdpConfig { source_ports: vec![0; 65], ..good }, "source_ports"),
        ];
        for (config, name) in bad {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
