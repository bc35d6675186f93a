//! Chooses the interface for a program.

use feroce_engine::net::Interface;

use crate::failure::Failure;

/// The interface `name`, if it can be a device.
pub fn named(name: &str) -> Result<Interface, Failure> {
    let interface = Interface::read(name)?;
    if interface.loopback {
        return Err(Failure::Plan(format!(
            "{name} is the loopback interface, which carries no RoCE"
        )));
    }
    Ok(interface)
}

/// Chooses an interface. Returns it with the reason.
pub fn choose() -> Result<(Interface, &'static str), Failure> {
    let all = Interface::list()?;
    // A table that cannot be read counts as empty.
    let table =
        |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    pick(&all, &default_routes(&table("route"), &table("ipv6_route")))
}

fn is_device(interface: &Interface) -> bool {
    !interface.loopback && interface.vlan.is_none() && interface.is_usable()
}

fn pick(all: &[Interface], routes: &[String]) -> Result<(Interface, &'static str), Failure> {
    let usable: Vec<_> = all.iter().filter(|interface| is_device(interface)).collect();
    let by_route = routes.iter().find_map(|name| usable.iter().find(|found| found.name == *name));
    if let Some(interface) = by_route {
        return Ok((
            (*interface).clone(),
            "the interface of the default route (--interface chooses another)",
        ));
    }
    if let [only] = usable.as_slice() {
        return Ok(((*only).clone(), "the only usable one"));
    }
    let names = |interfaces: &[&Interface]| {
        interfaces.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    Err(Failure::Plan(match usable.as_slice() {
        [] => {
            let down: Vec<_> = all.iter().filter(|interface| !interface.loopback).collect();
            match down.as_slice() {
                [] => "this network namespace has no Ethernet interface".to_owned(),
                down => {
                    format!("no Ethernet interface is up with a link: {} are down", names(down))
                }
            }
        }
        several => format!(
            "{} are up, but none has the default route: choose with --interface",
            names(several)
        ),
    }))
}

/// Names of the interfaces of the default routes, from the text of the kernel's tables.
fn default_routes(v4: &str, v6: &str) -> Vec<String> {
    // Column 1: interface, column 2: destination, column 8: mask.
    let v4 = v4.lines().skip(1).filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let is_default = columns.get(1) == Some(&"00000000") && columns.get(7) == Some(&"00000000");
        is_default.then(|| columns[0].to_owned())
    });
    // Column 1: destination, column 2: prefix length, last column: interface. The loopback has a
    // reject route.
    let v6 = v6.lines().filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let is_default = columns.get(1) == Some(&"00") && columns.last() != Some(&"lo");
        is_default.then(|| columns.last().map(ToString::to_string)).flatten()
    });
    v4.chain(v6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_wire::MacAddr;

    fn interface(name: &str, up: bool) -> Interface {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let name = name.to_owned();
        Interface {
            index: 1,
            name,
            mac,
            mtu: 1500,
            up,
            carrier: up,
            carrier_changes: None,
            loopback: false,
            vlan: None,
        }
    }

    const V4: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
        eth1\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n\
        eth1\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\n";
    const V6: &str = "fe800000000000000000000000000000 40 0 00 0 0 0 0 0 eth0\n\
        00000000000000000000000000000000 00 0 00 0 ffffffff 1 0 200200 lo\n\
        00000000000000000000000000000000 00 0 00 fe80 00000400 1 0 3 eth2\n";

    #[test]
    fn default_routes_are_found() {
        assert_eq!(default_routes(V4, V6), ["eth1", "eth2"]);
        assert_eq!(default_routes("", ""), Vec::<String>::new());
    }

    #[test]
    fn an_interface_is_chosen_or_the_error_says_why() {
        let routes = ["eth1".to_owned()];
        let result = |all: &[Interface], routes: &[String]| match pick(all, routes) {
            Ok((interface, _)) => interface.name,
            Err(failure) => failure.to_string(),
        };
        let (up, down) = (interface("eth0", true), interface("eth1", false));
        let both = [interface("eth0", true), interface("eth1", true)];
        assert_eq!(result(&both, &routes), "eth1");
        assert_eq!(result(&[up, down.clone()], &routes), "eth0");
        assert!(result(&both, &[]).contains("eth0, eth1 are up"));
        assert!(result(&[down], &routes).contains("eth1 are down"));
        assert!(result(&[], &routes).contains("no Ethernet interface"));
    }
}
