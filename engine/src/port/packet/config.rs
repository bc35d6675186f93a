//! Configuration of a packet port.

use super::error::PacketError;
use crate::port::kind::PortConfig;

/// Maximum number of addresses of one interface. A filter program has at most 4096 instructions,
/// and an IPv6 address needs ten.
pub(super) const ADDRESSES: usize = 256;

/// The first Linux whose packet sockets send and receive super-frames of UDP:
/// `VIRTIO_NET_HDR_GSO_UDP_L4` in include/linux/virtio_net.h. Packet sockets before it drop those
/// that arrive.
const KNOWS_SUPER_FRAMES: (u32, u32) = (6, 2);

/// When the port sends [super-frames](crate::port::super_frame).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SuperFrames {
    /// On a veth, which does not segment super-frames, with Linux 6.2 or later.
    #[default]
    Auto,
    /// On any interface, with any kernel. Only for links whose segmentation increments the IPv4
    /// identification.
    On,
    /// Never: every packet is a frame of its own.
    Off,
}

/// How to open a packet port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketConfig {
    /// Interface name.
    pub interface: String,
    /// Receive slots per core, each with 1024 bytes; a power of two from 64 to 65536.
    pub rx_slots: u32,
    /// Receive buffer of long frames in bytes, including the kernel's overhead (`SO_RCVBUF`); 64
    /// KiB to 1 GiB. Without CAP_NET_ADMIN in the initial user namespace the kernel grants at most
    /// twice `net.core.rmem_max`.
    pub rx_bytes: u32,
    /// Transmit slots per core, one packet each; 64 to 16384.
    pub tx_slots: u32,
    /// When to send super-frames.
    pub super_frames: SuperFrames,
    /// Bypass the queueing discipline of the interface (`PACKET_QDISC_BYPASS`): slightly faster,
    /// but not shaped by `tc` and without super-frames.
    pub qdisc_bypass: bool,
    /// Also deliver flow-control frames. A device with [`pfc`](crate::device::DeviceConfig::pfc)
    /// sets this itself.
    pub flow_control: bool,
}

impl PortConfig for PacketConfig {
    fn boxed_clone(&self) -> Box<dyn PortConfig> {
        Box::new(self.clone())
    }
}

impl PacketConfig {
    /// The defaults for `interface`.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            rx_slots: 4096,
            rx_bytes: 32 << 20,
            tx_slots: 128,
            super_frames: SuperFrames::Auto,
            qdisc_bypass: false,
            flow_control: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), PacketError> {
        let both = self.qdisc_bypass && self.super_frames == SuperFrames::On;
        let rx_slots = self.rx_slots.is_power_of_two() && (64..=65536).contains(&self.rx_slots);
        let rules = [
            (!rx_slots, "rx_slots must be a power of two from 64 to 65536"),
            (!(64 << 10..=1 << 30).contains(&self.rx_bytes), "rx_bytes must be 64 KiB to 1 GiB"),
            (!(64..=16384).contains(&self.tx_slots), "tx_slots must be 64 to 16384"),
            (both, "super_frames and qdisc_bypass exclude each other: the qdisc cuts super-frames"),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, rule)) => Err(PacketError::Config(rule)),
            None => Ok(()),
        }
    }

    /// Returns true if the port carries super-frames. `veth`: the interface is a veth. `kernel`:
    /// the version of Linux.
    pub(super) fn carries_super_frames(&self, veth: bool, kernel: (u32, u32)) -> bool {
        match self.super_frames {
            SuperFrames::Auto => veth && !self.qdisc_bypass && kernel >= KNOWS_SUPER_FRAMES,
            SuperFrames::On => true,
            SuperFrames::Off => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_pass_and_each_bad_value_is_named() {
        let good = PacketConfig::new("eth0");
        assert!(good.check().is_ok());
        let bad = [
            ("rx_slots", PacketConfig { rx_slots: 1000, ..good.clone() }),
            ("rx_slots", PacketConfig { rx_slots: 1 << 17, ..good.clone() }),
            ("rx_bytes", PacketConfig { rx_bytes: 65535, ..good.clone() }),
            ("rx_bytes", PacketConfig { rx_bytes: (1 << 30) + 1, ..good.clone() }),
            ("tx_slots", PacketConfig { tx_slots: 63, ..good.clone() }),
            ("tx_slots", PacketConfig { tx_slots: 16385, ..good.clone() }),
            (
                "qdisc_bypass",
                PacketConfig { super_frames: SuperFrames::On, qdisc_bypass: true, ..good },
            ),
        ];
        for (name, config) in bad {
            let error = config.check().expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn super_frames_are_carried_on_veth_or_on_request() {
        let carries = |super_frames, qdisc_bypass, veth, kernel| {
            let base = PacketConfig::new("x");
            PacketConfig { super_frames, qdisc_bypass, ..base }.carries_super_frames(veth, kernel)
        };
        assert!(carries(SuperFrames::Auto, false, true, (6, 2)));
        assert!(!carries(SuperFrames::Auto, false, true, (6, 1)), "it would drop them");
        assert!(!carries(SuperFrames::Auto, true, true, (6, 2)));
        assert!(!carries(SuperFrames::Auto, false, false, (6, 2)));
        assert!(carries(SuperFrames::On, false, false, (6, 1)));
        assert!(!carries(SuperFrames::Off, false, true, (6, 2)));
    }
}
