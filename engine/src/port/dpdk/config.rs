//! Configuration of a DPDK port.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use feroce_wire::{EthernetHeader, VlanTag};

use crate::port::kind::PortConfig;

/// Valid values of [`DpdkConfig::mtu`], in bytes.
pub const MTUS: RangeInclusive<u32> = 576..=9600;
/// Ethernet header and one VLAN tag, in bytes.
pub(super) const LINK_HEADERS: usize = EthernetHeader::LEN + VlanTag::LEN;
/// Minimum size of a buffer in bytes. Sizes are powers of two, as virtual devices expect.
const ROOM_MIN: u32 = 2048;
/// Buffers per core in addition to those in the rings: for a burst in each direction, for frames
/// that wait to be sent, and for buffers that drivers take in advance.
const SPARE: u32 = 1024;
/// Bytes that DPDK adds to each buffer: pool header, mbuf, headroom, and padding that spreads
/// buffers over memory channels.
const BUFFER_OVERHEAD: u32 = 384;
/// Minimum ordinary memory, in MiB.
pub const MEMORY_MIN: u32 = 64;

/// The memory of DPDK's packet buffers. The first port of a process decides for all ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DpdkMemory {
    /// Huge pages, allocated as needed.
    Hugepages,
    /// Ordinary pages (`--no-huge`), which suffice for virtual devices but not for a NIC.
    Ordinary {
        /// Size in MiB; mapped at start, used as needed.
        mib: u32,
    },
}

/// A local address with its on-link prefix: `10.0.0.1/24`, `fd00::1/64`, or in a VLAN
/// `10.0.1.1/24@100`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length: number of bits that all neighbours on the link have in common.
    pub prefix: u8,
    /// VLAN tag of its frames.
    pub vlan: Option<u16>,
}

impl Address {
    /// Returns true if `ip` is on the link of this address. IPv6 link-local addresses always are.
    pub fn reaches(&self, ip: IpAddr) -> bool {
        let shared = |bits: u32, own: u128, other: u128| {
            let host = bits - u32::from(self.prefix).min(bits);
            own.checked_shr(host).unwrap_or(0) == other.checked_shr(host).unwrap_or(0)
        };
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                shared(32, u32::from(own).into(), u32::from(other).into())
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                other.is_unicast_link_local() || shared(128, own.into(), other.into())
            }
            _ => false,
        }
    }

    /// Returns true if `ip` is the last address of the prefix, the IPv4 broadcast address.
    pub fn is_broadcast(&self, ip: IpAddr) -> bool {
        let IpAddr::V4(last) = ip else { return false };
        let host = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        self.prefix < 31 && self.reaches(ip) && u32::from(last) & host == host
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)?;
        self.vlan.map_or(Ok(()), |vlan| write!(f, "@{vlan}"))
    }
}

/// The text is not `IP/PREFIX` or `IP/PREFIX@VLAN`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an address with prefix length, such as 10.0.0.1/24, fd00::1/64 or \
     10.0.1.1/24@100"
)]
pub struct ParseAddressError {
    text: String,
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (address, vlan) = match text.split_once('@') {
                Some((address, vlan)) => (address, Some(vlan.parse::<u16>().ok()?)),
                None => (text, None),
            };
            let (ip, prefix) = address.split_once('/')?;
            let address = Self { ip: ip.parse().ok()?, prefix: prefix.parse().ok()?, vlan };
            address.rule().is_none().then_some(address)
        };
        parse().ok_or_else(|| ParseAddressError { text: text.to_owned() })
    }
}

impl Address {
    /// The rule that the address breaks, if any.
    fn rule(&self) -> Option<&'static str> {
        let bits = if self.ip.is_ipv4() { 32 } else { 128 };
        let rules = [
            (self.prefix > bits, "a prefix length is at most 32, for IPv6 128"),
            (self.ip.is_unspecified() || self.ip.is_multicast(), "a local address must be unicast"),
            (self.vlan.is_some_and(|id| id == 0 || id > 4094), "a VLAN id is 1 to 4094"),
        ];
        rules.into_iter().find(|(broken, _)| *broken).map(|(_, rule)| rule)
    }
}

/// How to open a DPDK port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpdkConfig {
    /// DPDK's name of the device; opening a device of this kind sets it. A PCI address
    /// (`0000:3b:00.0`), a virtual device with its arguments (`net_memif0,role=client,bsize=8192`),
    /// or the name or number of a device that the arguments of the EAL created.
    pub port: String,
    /// Local addresses: the GIDs of the device, in this order.
    pub addresses: Vec<Address>,
    /// Routers for destinations that are not on the link. For each address family and VLAN the
    /// first one is used.
    pub gateways: Vec<IpAddr>,
    /// Largest IP packet in bytes, 576 to 9600.
    pub mtu: u32,
    /// Arguments for the EAL in addition to those of Feroce (`docs/dpdk.md` lists them). The EAL
    /// starts once per process: further ports must have the same arguments or none.
    pub eal: Vec<String>,
    /// Memory of the packet buffers. As for `eal`, the first port of the process decides.
    pub memory: DpdkMemory,
    /// Receive descriptors per core; the driver may round the number.
    pub rx_descriptors: u16,
    /// Transmit descriptors per core; the driver may round the number.
    pub tx_descriptors: u16,
    /// Time that opening waits for the link to come up. Without a link the port opens with a
    /// warning.
    pub link_wait: Duration,
    /// Longest sleep of the helper of an idle core. The devices are polled, so a frame that arrives
    /// during the sleep waits until its end. Zero: the helper never sleeps.
    pub longest_sleep: Duration,
    /// Also deliver flow-control frames. A device with [`pfc`](crate::device::DeviceConfig::pfc)
    /// sets this itself.
    pub flow_control: bool,
}

/// The packet buffers of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Buffers {
    pub count: u32,
    /// Bytes of a frame that each buffer holds.
    pub room: u16,
}

/// Longest Ethernet frame for an IP packet of `mtu` bytes.
pub(super) fn frame_max(mtu: u32) -> u32 {
    mtu + u32::try_from(LINK_HEADERS).expect("18 bytes")
}

impl PortConfig for DpdkConfig {
    fn default_device(&self) -> &str {
        &self.port
    }

    fn boxed_clone(&self) -> Box<dyn PortConfig> {
        Box::new(self.clone())
    }
}

impl DpdkConfig {
    /// The defaults for the device `port` with these local addresses.
    pub fn new(port: impl Into<String>, addresses: Vec<Address>) -> Self {
        Self {
            port: port.into(),
            addresses,
            gateways: Vec::new(),
            mtu: 4200,
            eal: Vec::new(),
            memory: DpdkMemory::Hugepages,
            rx_descriptors: 1024,
            tx_descriptors: 512,
            link_wait: Duration::from_secs(3),
            longest_sleep: Duration::from_millis(1),
            flow_control: false,
        }
    }

    /// The packet buffers of a core with these numbers of descriptors.
    pub(super) fn buffers(&self, rx_descriptors: u16, tx_descriptors: u16) -> Buffers {
        let descriptors = u32::from(rx_descriptors) + u32::from(tx_descriptors);
        let room = frame_max(self.mtu).next_power_of_two().max(ROOM_MIN);
        Buffers {
            count: (descriptors + SPARE).next_power_of_two() - 1,
            room: u16::try_from(room).expect("the largest MTU fits a buffer"),
        }
    }

    /// Approximate bytes of the packet buffers of `cores` cores, if the driver does not change the
    /// numbers of descriptors.
    pub fn buffer_bytes(&self, cores: usize) -> u64 {
        let Buffers { count, room } = self.buffers(self.rx_descriptors, self.tx_descriptors);
        cores as u64 * u64::from(count) * u64::from(u32::from(room) + BUFFER_OVERHEAD)
    }

    /// The rule that the configuration breaks, if any.
    #[cfg(any(feature = "dpdk", test))]
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let invalid = self.addresses.iter().find_map(Address::rule);
        let descriptors = |count: u16| !(64..=16_384).contains(&count);
        let ordinary = matches!(self.memory, DpdkMemory::Ordinary { mib } if mib < MEMORY_MIN);
        let lost = |gateway: &IpAddr| !self.addresses.iter().any(|own| own.reaches(*gateway));
        let rules = [
            (self.port.is_empty(), "port must name a device"),
            (self.port.contains('\0'), "port must be text"),
            (
                self.addresses.is_empty(),
                "addresses must hold at least one (setting `dpdk_addresses`)",
            ),
            (invalid.is_some(), invalid.unwrap_or_default()),
            (self.gateways.iter().any(lost), "gateways must be on the link of a local address"),
            (!MTUS.contains(&self.mtu), "mtu must be 576 to 9600 bytes"),
            (descriptors(self.rx_descriptors), "rx_descriptors must be 64 to 16384"),
            (descriptors(self.tx_descriptors), "tx_descriptors must be 64 to 16384"),
            (ordinary, "memory must be at least 64 MiB"),
            (self.eal.iter().any(|text| text.contains('\0')), "eal arguments must be text"),
        ];
        let broken = rules.into_iter().find(|(broken, _)| *broken);
        broken.map_or(Ok(()), |(_, rule)| Err(rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_parsed_and_formatted() {
        for text in ["10.0.0.1/24", "fd00::1/64", "10.0.1.1/24@100", "0.0.0.1/0", "::1/128"] {
            assert_eq!(address(text).to_string(), text);
        }
        let wrong =
            ["", "10.0.0.1", "10.0.0.1/33", "fd00::1/129", "10.0.0.1/24@0", "1.2.3.4/8@4095"];
        for text in wrong.into_iter().chain(["0.0.0.0/8", "ff02::1/64", "224.0.0.1/8", "x/8"]) {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn prefixes_determine_the_addresses_on_the_link() {
        let reaches = |own: &str, ip: &str| address(own).reaches(ip.parse().unwrap());
        assert!(reaches("10.0.0.1/24", "10.0.0.255") && !reaches("10.0.0.1/24", "10.0.1.1"));
        assert!(reaches("10.0.0.1/0", "192.168.0.1") && !reaches("10.0.0.1/32", "10.0.0.2"));
        assert!(
            reaches("fd00::1/64", "fd00::ffff:0:0:1") && !reaches("fd00::1/64", "fd00:0:0:1::1")
        );
        assert!(reaches("fd00::1/128", "fe80::1") && !reaches("fd00::1/0", "10.0.0.1"));
        assert!(reaches("::1/0", "fd00::1") && reaches("10.0.0.1/32", "10.0.0.1"));
        let last = |own: &str, ip: &str| address(own).is_broadcast(ip.parse().unwrap());
        assert!(last("10.0.0.1/24", "10.0.0.255") && !last("10.0.0.1/24", "10.0.1.255"));
        assert!(!last("10.0.0.1/31", "10.0.0.1") && !last("10.0.0.1/32", "10.0.0.1"));
        assert!(!last("fd00::1/64", "fd00::ffff:ffff:ffff:ffff"));
    }

    #[test]
    fn the_defaults_pass_and_each_bad_value_is_named() {
        let good = DpdkConfig::new("net_null0", vec![address("10.0.0.1/24")]);
        assert!(good.check().is_ok());
        let bad = [
            ("port", DpdkConfig { port: String::new(), ..good.clone() }),
            ("addresses", DpdkConfig { addresses: Vec::new(), ..good.clone() }),
            (
                "gateways",
                DpdkConfig { gateways: vec!["10.9.9.9".parse().unwrap()], ..good.clone() },
            ),
            ("mtu", DpdkConfig { mtu: 500, ..good.clone() }),
            ("mtu", DpdkConfig { mtu: 9601, ..good.clone() }),
            ("rx_descriptors", DpdkConfig { rx_descriptors: 8, ..good.clone() }),
            ("tx_descriptors", DpdkConfig { tx_descriptors: 20_000, ..good.clone() }),
            ("memory", DpdkConfig { memory: DpdkMemory::Ordinary { mib: 1 }, ..good.clone() }),
            ("eal", DpdkConfig { eal: vec!["a\0b".to_owned()], ..good }),
        ];
        for (name, config) in bad {
            let error = config.check().expect_err(name);
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
