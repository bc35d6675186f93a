//! The settings of a DPDK port.

use super::config::{DpdkConfig, DpdkMemory, MEMORY_MIN, MTUS};
use crate::port::kind::{PortConfigs, PortOption, PortSetting};
use crate::setting_text::{list, number, show_list};

const HUGEPAGES: &str = "hugepages";

fn config(configs: &PortConfigs) -> &DpdkConfig {
    configs.get()
}

fn config_mut(configs: &mut PortConfigs) -> &mut DpdkConfig {
    configs.get_mut()
}

/// A command-line option.
const fn option(
    flag: &'static str,
    value_name: &'static str,
    help: &'static str,
) -> Option<PortOption> {
    Some(PortOption { flag, value_name, help })
}

/// Every setting of the port.
pub(super) const SETTINGS: &[PortSetting] = &[
    PortSetting {
        name: "dpdk_device",
        expects: "a device name of DPDK: `0000:3b:00.0`, `net_memif0,role=client`",
        about: "port dpdk: the device to open if the command line names none",
        option: None,
        set: |configs, text| device(text).map(|device| config_mut(configs).port = device),
        show: |configs| config(configs).port.clone(),
    },
    PortSetting {
        name: "dpdk_addresses",
        expects: "local addresses with prefix length: `10.0.0.1/24, fd00::1/64, 10.0.1.1/24@VLAN`",
        about: "port dpdk: local addresses, which the kernel does not know",
        option: option(
            "--dpdk-addresses",
            "LIST",
            "Port dpdk: local addresses, such as `10.0.0.1/24,fd00::1/64`",
        ),
        set: |configs, text| list(text).map(|list| config_mut(configs).addresses = list),
        show: |configs| show_list(&config(configs).addresses),
    },
    PortSetting {
        name: "dpdk_gateways",
        expects: "addresses of routers: `10.0.0.254, fd00::ff`",
        about: "port dpdk: routers for destinations that are not on the link of a local address",
        option: option(
            "--dpdk-gateways",
            "LIST",
            "Port dpdk: routers for destinations that are not on the link",
        ),
        set: |configs, text| list(text).map(|list| config_mut(configs).gateways = list),
        show: |configs| show_list(&config(configs).gateways),
    },
    PortSetting {
        name: "dpdk_mtu",
        expects: "576 to 9600 bytes",
        about: "port dpdk: largest IP packet; the link must carry it",
        option: option("--dpdk-mtu", "BYTES", "Port dpdk: largest IP packet in bytes"),
        set: |configs, text| {
            let range = u64::from(*MTUS.start())..=u64::from(*MTUS.end());
            number(text, range).map(|mtu| config_mut(configs).mtu = mtu)
        },
        show: |configs| config(configs).mtu.to_string(),
    },
    PortSetting {
        name: "dpdk_memory",
        expects: "`hugepages`, or MiB of ordinary memory, at least 64",
        about: "port dpdk: memory for packet buffers; NICs need hugepages",
        option: option(
            "--dpdk-memory",
            "MEMORY",
            "Port dpdk: `hugepages`, or MiB of ordinary memory",
        ),
        set: |configs, text| memory(text).map(|memory| config_mut(configs).memory = memory),
        show: |configs| match config(configs).memory {
            DpdkMemory::Hugepages => HUGEPAGES.to_owned(),
            DpdkMemory::Ordinary { mib } => mib.to_string(),
        },
    },
    PortSetting {
        name: "dpdk_eal",
        expects: "arguments for DPDK's EAL, first one starting with `-`: `-l 2 --log-level=info`",
        about: "port dpdk: additional arguments for DPDK's EAL",
        option: option("--dpdk-eal", "ARGUMENTS", "Port dpdk: additional arguments for DPDK's EAL"),
        set: |configs, text| eal(text).map(|eal| config_mut(configs).eal = eal),
        show: |configs| config(configs).eal.join(" "),
    },
];

/// Reads a device name with its arguments. Empty text means no device. The part before the first
/// comma must look like a device name.
fn device(text: &str) -> Option<String> {
    let name = text.split(',').next()?;
    let is_name = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c));
    (is_name || text.is_empty()).then(|| text.to_owned())
}

fn memory(text: &str) -> Option<DpdkMemory> {
    match text {
        HUGEPAGES => Some(DpdkMemory::Hugepages),
        mib => number(mib, u64::from(MEMORY_MIN)..=u64::from(u32::MAX))
            .map(|mib| DpdkMemory::Ordinary { mib }),
    }
}

fn eal(text: &str) -> Option<Vec<String>> {
    let arguments: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
    arguments.first().is_none_or(|first| first.starts_with('-')).then_some(arguments)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::device::settings::{Origin, Settings};

    fn set(settings: &mut Settings, name: &str, text: &str) -> Result<(), String> {
        settings.set(name, text, Origin::Flag("-")).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_reach_the_configuration() {
        let mut settings = Settings::default();
        for (name, text) in [
            ("dpdk_device", "net_memif0,role=client"),
            ("dpdk_addresses", "10.0.0.1/24, fd00::1/64@7"),
            ("dpdk_gateways", "10.0.0.254"),
            ("dpdk_mtu", "1500"),
            ("dpdk_memory", "256"),
            ("dpdk_eal", "-l 1  -v"),
        ] {
            set(&mut settings, name, text).unwrap();
        }
        let device = settings.device_config();
        let config = config(&device.ports);
        assert_eq!(config.port, "net_memif0,role=client");
        let addresses = config.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(addresses, ["10.0.0.1/24", "fd00::1/64@7"]);
        assert_eq!(config.gateways, [IpAddr::from([10, 0, 0, 254])]);
        assert_eq!((config.mtu, config.memory), (1500, DpdkMemory::Ordinary { mib: 256 }));
        assert_eq!(config.eal, ["-l", "1", "-v"]);
    }

    #[test]
    fn errors_name_the_setting_and_the_expected_values() {
        let bad = [
            ("dpdk_device", ",role=client", "`dpdk_device` is `,role=client`"),
            ("dpdk_addresses", "10.0.0.1", "expected local addresses with prefix length"),
            ("dpdk_gateways", "10.0.0.1/24", "`dpdk_gateways` is `10.0.0.1/24`"),
            ("dpdk_mtu", "100", "expected 576 to 9600"),
            ("dpdk_memory", "1", "expected `hugepages`, or"),
            ("dpdk_eal", "0 -l", "`dpdk_eal` is `0 -l`"),
        ];
        for (name, text, expected) in bad {
            let error = set(&mut Settings::default(), name, text).unwrap_err();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[cfg(not(feature = "dpdk"))]
    #[test]
    fn a_kind_that_was_not_built_says_how_to_build_it() {
        use crate::device::{Device, DeviceConfig, PortKind};
        let config = DeviceConfig { port: PortKind::Dpdk, ..DeviceConfig::default() };
        let error = Device::open("net_null0", config).unwrap_err().to_string();
        assert!(error.contains("no dpdk port") && error.contains("`--features dpdk`"), "{error}");
    }
}
