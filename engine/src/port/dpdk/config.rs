//! What a user can choose about a DPDK port.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use feroce_wire::{EthernetHeader, VlanTag};

#[cfg(feature = "dpdk")]
use super::error::DpdkError;
use crate::port::kind::PortConfig;

/// What [`DpdkConfig::mtu`] may be, in bytes.
pub const MTUS: RangeInclusive<u32> = 576..=9600;
/// Ethernet header and a VLAN's tag, in bytes.
pub(super) const LINK_HEADERS: usize = EthernetHeader::LEN + VlanTag::LEN;
/// Buffers hold this at least, in bytes, and always a power of two: the sizes that virtual devices are given.
const LEAST_ROOM: u32 = 2048;
/// Buffers per core besides those in the rings: a burst each way, what waits to be sent, what drivers take ahead.
const SPARE: u32 = 1024;
/// Bytes of DPDK's own with each buffer: the pool's, the mbuf and its headroom, and what spreads them over memory channels.
const BESIDE_BUFFER: u32 = 384;
/// Least ordinary memory, in MiB.
pub const LEAST_MEMORY: u32 = 64;

/// Where DPDK's packet buffers come from. Decided once per process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DpdkMemory {
    /// Huge pages, taken as they are needed.
    Hugepages,
    /// Ordinary pages (`--no-huge`): enough for virtual devices, not for a NIC.
    Ordinary {
        /// How much, in MiB; mapped at start, used as needed.
        mib: u32,
    },
}

/// An own address with its on-link prefix: `10.0.0.1/24`, `fd00::1/64`, or in a VLAN `10.0.1.1/24@100`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits of it that all neighbours on the link have in common.
    pub prefix: u8,
    /// VLAN that its frames are tagged with.
    pub vlan: Option<u16>,
}

impl Address {
    /// Whether `ip` is on the link of this address. IPv6's link-local addresses always are.
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

    /// Whether `ip` is the last address of the prefix, which IPv4 keeps for broadcasts.
    pub fn broadcasts_at(&self, ip: IpAddr) -> bool {
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

/// Text that is not `IP/PREFIX` or `IP/PREFIX@VLAN`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an address with its prefix, as 10.0.0.1/24, fd00::1/64 or 10.0.1.1/24@100"
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
    /// The rule that it breaks.
    fn rule(&self) -> Option<&'static str> {
        let bits = if self.ip.is_ipv4() { 32 } else { 128 };
        let rules = [
            (self.prefix > bits, "a prefix is at most 32 bits long, in IPv6 128"),
            (self.ip.is_unspecified() || self.ip.is_multicast(), "an own address is one host's"),
            (self.vlan.is_some_and(|id| id == 0 || id > 4094), "a VLAN is 1 to 4094"),
        ];
        rules.into_iter().find(|(broken, _)| *broken).map(|(_, rule)| rule)
    }
}

/// How to open a DPDK port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpdkConfig {
    /// The device, as DPDK names it; set when it is opened as a device of this kind. A PCI address (`0000:3b:00.0`), a virtual device with its arguments
    /// (`net_memif0,role=client,bsize=8192`), or the name or number of one that the EAL's arguments made.
    pub port: String,
    /// Own addresses: the device's GIDs, in this order.
    pub addresses: Vec<Address>,
    /// Routers for what is not on the link: at most one for each family and VLAN is used, the first.
    pub gateways: Vec<IpAddr>,
    /// Largest IP packet in bytes, 576 to 9600.
    pub mtu: u32,
    /// Arguments for the EAL besides those that Feroce gives it (`docs/dpdk.md` lists them). The EAL starts once
    /// per process: whoever opens a second port gives the same or none.
    pub eal: Vec<String>,
    /// Where packet buffers come from. As for `eal`, decided by the first port of the process.
    pub memory: DpdkMemory,
    /// Receive descriptors per core; the driver may round.
    pub rx_descriptors: u16,
    /// Transmit descriptors per core; the driver may round.
    pub tx_descriptors: u16,
    /// How long opening waits for the link to come up. Without a link the port opens all the same, and says so.
    pub link_wait: Duration,
    /// Longest sleep of an idle core's helper. The devices are polled, so a frame that arrives meanwhile waits
    /// for its end. Zero: the helper never sleeps.
    pub longest_nap: Duration,
    /// Take frames of flow control, too. A device with [`pfc`](crate::device::DeviceConfig::pfc) does by itself.
    pub flow_control: bool,
}

/// The packet buffers of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Buffers {
    pub count: u32,
    /// Bytes of a frame that each holds.
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
    /// The defaults for `port`, with these own addresses.
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
            longest_nap: Duration::from_millis(1),
            flow_control: false,
        }
    }

    /// The packet buffers of a core with so many descriptors.
    pub(super) fn buffers(&self, rx_descriptors: u16, tx_descriptors: u16) -> Buffers {
        let descriptors = u32::from(rx_descriptors) + u32::from(tx_descriptors);
        let room = frame_max(self.mtu).next_power_of_two().max(LEAST_ROOM);
        Buffers {
            count: (descriptors + SPARE).next_power_of_two() - 1,
            room: u16::try_from(room).expect("the largest MTU fits a buffer"),
        }
    }

    /// About how many bytes the packet buffers of `cores` cores take, where the driver leaves the number of descriptors.
    pub fn buffer_bytes(&self, cores: usize) -> u64 {
        let Buffers { count, room } = self.buffers(self.rx_descriptors, self.tx_descriptors);
        cores as u64 * u64::from(count) * u64::from(u32::from(room) + BESIDE_BUFFER)
    }

    #[cfg(feature = "dpdk")]
    pub(super) fn check(&self) -> Result<(), DpdkError> {
        let strange = self.addresses.iter().find_map(Address::rule);
        let descriptors = |count: u16| !(64..=16_384).contains(&count);
        let ordinary = matches!(self.memory, DpdkMemory::Ordinary { mib } if mib < LEAST_MEMORY);
        let lost = |gateway: &IpAddr| !self.addresses.iter().any(|own| own.reaches(*gateway));
        let rules = [
            (self.port.is_empty(), "port must name a device"),
            (self.port.contains('\0'), "port must be text"),
            (
                self.addresses.is_empty(),
                "addresses must hold at least one (setting `dpdk_addresses`)",
            ),
            (strange.is_some(), strange.unwrap_or_default()),
            (self.gateways.iter().any(lost), "gateways must be on the link of an own address"),
            (!MTUS.contains(&self.mtu), "mtu must be 576 to 9600 bytes"),
            (descriptors(self.rx_descriptors), "rx_descriptors must be 64 to 16384"),
            (descriptors(self.tx_descriptors), "tx_descriptors must be 64 to 16384"),
            (ordinary, "memory must be at least 64 MiB"),
            (self.eal.iter().any(|text| text.contains('\0')), "eal arguments must be text"),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, rule)) => Err(DpdkError::Config(rule)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_read_and_written() {
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
    fn prefixes_say_who_is_on_the_link() {
        let reaches = |own: &str, ip: &str| address(own).reaches(ip.parse().unwrap());
        assert!(reaches("10.0.0.1/24", "10.0.0.255") && !reaches("10.0.0.1/24", "10.0.1.1"));
        assert!(reaches("10.0.0.1/0", "192.168.0.1") && !reaches("10.0.0.1/32", "10.0.0.2"));
        assert!(
            reaches("fd00::1/64", "fd00::ffff:0:0:1") && !reaches("fd00::1/64", "fd00:0:0:1::1")
        );
        assert!(reaches("fd00::1/128", "fe80::1") && !reaches("fd00::1/0", "10.0.0.1"));
        assert!(reaches("::1/0", "fd00::1") && reaches("10.0.0.1/32", "10.0.0.1"));
        let last = |own: &str, ip: &str| address(own).broadcasts_at(ip.parse().unwrap());
        assert!(last("10.0.0.1/24", "10.0.0.255") && !last("10.0.0.1/24", "10.0.1.255"));
        assert!(!last("10.0.0.1/31", "10.0.0.1") && !last("10.0.0.1/32", "10.0.0.1"));
        assert!(!last("fd00::1/64", "fd00::ffff:ffff:ffff:ffff"));
    }

    #[cfg(feature = "dpdk")]
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
            let error = config.check().expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
