//! What the kernel knows of an interface: index, address, MTU, queues, rate by `ioctl`; the XDP
//! program by netlink.
//!
//! Not by sysfs: that shows the network namespace in which it was mounted, not the thread's own.

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::from_mut;

use feroce_wire::MacAddr;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::error::AfXdpError;

/// An interface at the moment of [`Interface::query`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    pub name: String,
    pub index: u32,
    pub mac: MacAddr,
    pub mtu: u32,
    pub rx_queues: u32,
    pub tx_queues: u32,
    /// In bit/s, where the link knows it.
    pub rate: Option<u64>,
    /// Whether the device takes VLAN tags off received frames.
    pub strips_vlan: bool,
}

/// `struct ethtool_channels`.
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_cmd`: the older form of the link settings, and all that the rate needs.
#[derive(Default)]
#[repr(C)]
struct LinkSettings {
    command: u32,
    features: [u32; 2],
    speed_low: u16,
    modes: [u8; 6],
    packets: [u32; 2],
    speed_high: u16,
    crossover: [u8; 2],
    partner: u32,
    reserved: [u32; 2],
}

/// `struct ethtool_value`.
#[derive(Default)]
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    versions: [[u8; 32]; 4],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// A structure that an ethtool command reads and fills.
///
/// # Safety
/// It begins with its command's number and is at least as large as the kernel's structure for it.
unsafe trait EthtoolCommand {}
// SAFETY: nine words, as in the kernel's `struct ethtool_channels`.
unsafe impl EthtoolCommand for Channels {}
// SAFETY: 44 bytes, as in the kernel's `struct ethtool_cmd`.
unsafe impl EthtoolCommand for LinkSettings {}
// SAFETY: two words, as in the kernel's `struct ethtool_value`.
unsafe impl EthtoolCommand for Value {}
// SAFETY: 196 bytes, as in the kernel's `struct ethtool_drvinfo`.
unsafe impl EthtoolCommand for Driver {}
const _: () = assert!(size_of::<Driver>() == 196);
const _: () = assert!(
    size_of::<Channels>() == 36 && size_of::<LinkSettings>() == 44 && size_of::<Value>() == 8
);

const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

impl Interface {
    /// Asks the kernel for the interface `name` of this thread's network namespace.
    pub fn query(name: &str) -> Result<Self, AfXdpError> {
        let absent = || AfXdpError::NoSuchInterface(name.to_owned());
        let text = CString::new(name).map_err(|_| absent())?;
        if name.len() >= libc::IFNAMSIZ {
            return Err(absent());
        }
        // SAFETY: `text` is a terminated string that outlives the call.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        if index == 0 {
            return Err(absent());
        }
        let ask = Ask::new(text).map_err(|e| AfXdpError::system("open a control socket", e))?;
        ask.interface(name, index)
    }
}

/// The id of the XDP program on the interface `index` of this thread's network namespace, if any.
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

/// A socket to ask on, and whom to ask about.
struct Ask {
    socket: OwnedFd,
    name: CString,
}

impl Ask {
    fn new(name: CString) -> io::Result<Self> {
        // SAFETY: no pointers are passed; the descriptor is checked below.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is open and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { socket, name })
    }

    fn interface(&self, name: &str, index: u32) -> Result<Interface, AfXdpError> {
        let get = |request, action| self.ioctl(request).map_err(|e| AfXdpError::system(action, e));
        let flags = get(libc::SIOCGIFFLAGS, "read the interface's flags")?;
        let hardware = get(libc::SIOCGIFHWADDR, "read the interface's address")?;
        let mtu = get(libc::SIOCGIFMTU, "read the interface's MTU")?;
        // SAFETY: the kernel filled the member that belongs to each request.
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
        let (rx_queues, tx_queues) = self.queues();
        Ok(Interface {
            name: name.to_owned(),
            index,
            mac: MacAddr(mac),
            mtu: mtu.cast_unsigned(),
            rx_queues,
            tx_queues,
            rate: self.rate(),
            strips_vlan: self.strips_vlan(),
        })
    }

    /// Receive and transmit queues in use; one each where the driver does not tell.
    fn queues(&self) -> (u32, u32) {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        match self.ethtool(&mut channels) {
            Ok(()) => {
                let both = channels.combined;
                ((channels.rx + both).max(1), (channels.tx + both).max(1))
            }
            Err(_) => (1, 1),
        }
    }

    fn rate(&self) -> Option<u64> {
        let mut link = LinkSettings { command: ETHTOOL_GSET, ..LinkSettings::default() };
        self.ethtool(&mut link).ok()?;
        let megabits = u32::from(link.speed_high) << 16 | u32::from(link.speed_low);
        // All ones says "unknown", in 16 bits or in 32.
        let known = ![0, u32::from(u16::MAX), u32::MAX].contains(&megabits);
        known.then(|| u64::from(megabits) * 1_000_000)
    }

    /// A veth says that it takes tags off and leaves them where they are.
    fn strips_vlan(&self) -> bool {
        let mut flags = Value { command: ETHTOOL_GFLAGS, ..Value::default() };
        let says_so = self.ethtool(&mut flags).is_ok() && flags.data & ETH_FLAG_RXVLAN != 0;
        says_so && !self.is_veth()
    }

    fn is_veth(&self) -> bool {
        let mut driver = Driver {
            command: ETHTOOL_GDRVINFO,
            name: [0; 32],
            versions: [[0; 32]; 4],
            reserved: [0; 12],
            counts: [0; 5],
        };
        self.ethtool(&mut driver).is_ok() && driver.name.starts_with(b"veth\0")
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: `ifreq` is plain data for which all zeros is a value.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (to, &from) in request.ifr_name.iter_mut().zip(self.name.as_bytes()) {
            *to = from.cast_signed();
        }
        request
    }

    fn ioctl(&self, number: libc::Ioctl) -> io::Result<libc::ifreq> {
        let mut request = self.request();
        // SAFETY: the requests used here read the name of an `ifreq` and fill its union.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), number, &raw mut request) } {
            0 => Ok(request),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Runs the ethtool command that `data` begins with.
    fn ethtool<T: EthtoolCommand>(&self, data: &mut T) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = from_mut(data).cast();
        // SAFETY: `data` is the structure of the command it begins with, by the trait's contract.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Runs `test` over one end of a fresh veth pair, in a network namespace that goes with it. Needs
/// root; says so and passes without.
#[cfg(test)]
pub(super) fn in_own_namespace(test: impl FnOnce(&Interface) + Send) {
    let ip = |arguments: &str| {
        let mut command = std::process::Command::new("ip");
        let status = command.args(arguments.split_whitespace()).status();
        assert!(status.expect("the `ip` program").success(), "ip {arguments}");
    };
    let run = || {
        // SAFETY: moves this thread alone, which ends here.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            eprintln!("skipped: a network namespace needs root");
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
    fn a_veth_is_seen_as_it_is() {
        in_own_namespace(|veth| {
            assert_eq!((veth.name.as_str(), veth.mtu), ("v0", 1500));
            assert_eq!((veth.rx_queues, veth.tx_queues), (1, 1));
            assert_eq!(veth.rate, Some(10_000_000_000), "what every veth says");
            assert!(!veth.strips_vlan, "though it says so");
            assert_ne!(veth.mac, MacAddr([0; 6]));
            assert_eq!(attached_program(veth.index), None);
        });
    }
}
