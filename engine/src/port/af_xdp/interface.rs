//! Properties of an interface. Index, address, MTU, queues and rate come from `ioctl`s; the XDP
//! program and the features of the driver from netlink.
//!
//! sysfs is not used: it shows the network namespace in which it was mounted, not that of the
//! thread.

use std::ffi::CString;

use feroce_wire::MacAddr;
use libxdp_sys::{bpf_xdp_query, bpf_xdp_query_opts};
use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::super::ethtool::Ethtool;
use super::error::AfXdpError;

/// An interface at the time of [`Interface::query`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::port) struct Interface {
    pub name: String,
    pub index: u32,
    pub mac: MacAddr,
    pub mtu: u32,
    pub rx_queues: u32,
    pub tx_queues: u32,
    /// Link rate in bit/s, if the driver knows it.
    pub rate: Option<u64>,
    /// True if the device strips VLAN tags from received frames.
    pub strips_vlan: bool,
    /// True if the interface is one end of a veth pair.
    pub veth: bool,
}

impl Interface {
    /// Queries the interface `name` in the network namespace of the calling thread.
    pub fn query(name: &str) -> Result<Self, AfXdpError> {
        let absent = || AfXdpError::NoSuchInterface(name.to_owned());
        let text = CString::new(name).map_err(|_| absent())?;
        // SAFETY: `text` is a terminated string that outlives the call.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        if index == 0 {
            return Err(absent());
        }
        let ethtool = Ethtool::open(name);
        let ethtool = ethtool.map_err(|e| AfXdpError::system("open a control socket", e))?;
        read(&ethtool, name, index)
    }
}

/// The id of the XDP program on the interface with index `index` in the network namespace of the
/// calling thread, if any.
pub(super) fn attached_program(index: u32) -> Option<u32> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(link));
    request.header.flags = NLM_F_REQUEST;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);

    let socket = Socket::new(NETLINK_ROUTE).ok()?;
    socket.connect(&SocketAddr::new(0, 0)).ok()?;
    socket.send(&bytes, 0).ok()?;
    let (answer, _sender) = socket.recv_from_full().ok()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).ok()?;
    let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) = answer.payload else {
        return None;
    };
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Xdp(xdp) => xdp.iter().find_map(|part| match part {
            LinkXdp::ProgId(id) => Some(*id),
            _ => None,
        }),
        _ => None,
    })
}

/// XDP features of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpFeatures {
    /// Programs run in the driver (native mode).
    pub programs: bool,
    /// Programs in the driver may redirect frames, for example to AF_XDP sockets.
    pub redirects: bool,
    /// The device accesses packet buffers itself.
    pub zero_copy: bool,
    /// Programs in the driver get frames of several buffers, which an MTU above 3818 bytes needs.
    pub several_buffers: bool,
}

impl XdpFeatures {
    /// The features of the interface with index `index` in the network namespace of the calling
    /// thread. All are false before Linux 6.3, which does not report them. `None` if the interface
    /// is gone.
    ///
    /// The bits are those of the kernel's `enum netdev_xdp_act` (`uapi/linux/netdev.h`).
    pub fn of(index: u32) -> Option<Self> {
        const PROGRAMS: u64 = 1;
        const REDIRECTS: u64 = 1 << 1;
        const ZERO_COPY: u64 = 1 << 3;
        const SEVERAL_BUFFERS: u64 = 1 << 5;
        // SAFETY: plain data for which all zeros is a valid value.
        let mut found: bpf_xdp_query_opts = unsafe { std::mem::zeroed() };
        found.sz = size_of::<bpf_xdp_query_opts>();
        let index = i32::try_from(index).ok()?;
        // SAFETY: the call fills `found`, which states its size and outlives the call.
        let status = unsafe { bpf_xdp_query(index, 0, &raw mut found) };
        let has = |bits: u64| found.feature_flags & bits == bits;
        (status == 0).then(|| Self {
            programs: has(PROGRAMS),
            redirects: has(REDIRECTS),
            zero_copy: has(ZERO_COPY),
            several_buffers: has(SEVERAL_BUFFERS),
        })
    }

    /// Returns true if native mode works with AF_XDP sockets. Otherwise only generic mode does.
    pub fn native(self) -> bool {
        self.programs && self.redirects
    }
}

/// Reads the properties of the interface `name`, whose index is `index`.
fn read(ethtool: &Ethtool, name: &str, index: u32) -> Result<Interface, AfXdpError> {
    let get = |request, action| ethtool.ioctl(request).map_err(|e| AfXdpError::system(action, e));
    let flags = get(libc::SIOCGIFFLAGS, "read the interface's flags")?;
    let hardware = get(libc::SIOCGIFHWADDR, "read the interface's address")?;
    let mtu = get(libc::SIOCGIFMTU, "read the interface's MTU")?;
    // SAFETY: the kernel filled the union member of each request.
    let (flags, hardware, mtu) = unsafe {
        (flags.ifr_ifru.ifru_flags, hardware.ifr_ifru.ifru_hwaddr, mtu.ifr_ifru.ifru_mtu)
    };
    if i32::from(flags) & libc::IFF_UP == 0 {
        return Err(AfXdpError::Down(name.to_owned()));
    }
    if hardware.sa_family != libc::ARPHRD_ETHER {
        return Err(AfXdpError::NotEthernet(name.to_owned()));
    }
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(hardware.sa_data) {
        *to = from.cast_unsigned();
    }
    let (rx_queues, tx_queues) = ethtool.queues();
    Ok(Interface {
        name: name.to_owned(),
        index,
        mac: MacAddr(mac),
        mtu: mtu.cast_unsigned(),
        rx_queues,
        tx_queues,
        rate: ethtool.rate(),
        strips_vlan: ethtool.strips_vlan(),
        veth: ethtool.driver().as_deref() == Some("veth"),
    })
}

/// Runs `test` with one end of a new veth pair in a network namespace of its own. Without root,
/// prints a message and returns.
#[cfg(test)]
pub(super) fn in_own_namespace(test: impl FnOnce(&Interface) + Send) {
    let ip = |arguments: &str| {
        let mut command = std::process::Command::new("ip");
        let status = command.args(arguments.split_whitespace()).status();
        assert!(status.expect("the `ip` program").success(), "ip {arguments}");
    };
    let run = || {
        // SAFETY: moves only this thread, which ends with the test.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            feroce_test_skip::skip("a network namespace needs root");
            return;
        }
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        ip("link set v1 up");
        test(&Interface::query("v0").expect("it was just made"));
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_of_a_veth_are_read() {
        in_own_namespace(|veth| {
            assert_eq!((veth.name.as_str(), veth.mtu), ("v0", 1500));
            assert_eq!((veth.rx_queues, veth.tx_queues), (1, 1));
            assert_eq!(veth.rate, Some(10_000_000_000), "the rate that every veth reports");
            assert!(veth.veth && !veth.strips_vlan, "it reports stripping but does not strip");
            assert_ne!(veth.mac, MacAddr([0; 6]));
            assert_eq!(attached_program(veth.index), None);
            let features = XdpFeatures::of(veth.index).expect("it is there");
            assert!(features.native() && features.several_buffers, "{features:?}");
            assert!(!features.zero_copy, "{features:?}");
        });
    }

    #[test]
    fn drivers_without_xdp_have_no_features() {
        let found = XdpFeatures::of(1).expect("the loopback");
        assert!(!found.programs && !found.redirects && !found.zero_copy, "{found:?}");
        assert_eq!(XdpFeatures::of(i32::MAX.cast_unsigned()), None);
    }
}
