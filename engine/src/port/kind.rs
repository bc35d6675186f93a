//! The interface between a kind of port and the device that opens it.
//!
//! Each kind of port describes itself in one [`PortEntry`]: name, settings, configuration, how to
//! open it. [`registry`](super::registry) lists the entries. The device, the settings and the
//! programs use the entries and name no particular kind.

use std::any::Any;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use feroce_wire::{MacAddr, Qpn};

use super::contract::Port;
use crate::net::{Gid, GidEntry, PathHeaders, ResolveError};
use crate::time::Duration;

/// A kind of port.
#[derive(Debug)]
pub struct PortEntry {
    /// Name of the kind, as the setting `port_kind` takes it. Begins the names of its settings.
    pub name: &'static str,
    /// Name in messages, such as `packet sockets`.
    pub title: &'static str,
    /// Cargo feature that the kind needs; `None` if every build has the kind.
    pub feature: Option<&'static str>,
    /// True if the port uses a network interface of the kernel. The device then uses the
    /// addresses, routes and neighbours of the kernel.
    pub on_kernel: bool,
    /// True if `auto` may choose the kind.
    pub in_auto: bool,
    /// Makes the default configuration.
    pub config: fn() -> Box<dyn PortConfig>,
    /// Settings of this kind alone.
    pub settings: &'static [PortSetting],
    /// Opens the ports of a device; `None` if this build lacks the kind.
    pub open: Option<OpenPorts>,
    /// How a device of this kind uses an interface of the kernel, where `on_kernel` is false;
    /// `None` if the name of the interface is the name of the device.
    pub over_interface: Option<OverInterface>,
    /// Packet buffers that the port allocates from hugepages when it opens, for a device with the
    /// given number of cores; `None` if the port can always use ordinary pages instead.
    pub buffers: Option<fn(&PortConfigs, usize) -> BufferMemory>,
}

impl PortEntry {
    /// Returns the setting `<name>_<suffix>` of the kind, if it has one.
    pub fn setting(&self, suffix: &str) -> Option<&'static PortSetting> {
        self.settings.iter().find(|setting| {
            let rest = setting.name.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('_'));
            rest == Some(suffix)
        })
    }
}

/// Returns the name and the configurations of a device that sends and receives through an
/// interface of the kernel. Arguments: a number that is unique in the process, the interface, the
/// local addresses with their prefix lengths, and the configurations to change.
pub type OverInterface = fn(u32, &str, &[(IpAddr, u8)], &PortConfigs) -> (String, PortConfigs);

/// Opens one port per core.
pub type OpenPorts = fn(&OpenRequest<'_>) -> Result<OpenedPorts, PortError>;

/// The device to open.
#[derive(Debug, Clone, Copy)]
pub struct OpenRequest<'a> {
    /// The interface, or the device as the kind of port names it.
    pub device: &'a str,
    /// The configurations of all kinds of port.
    pub configs: &'a PortConfigs,
    /// Number of cores; each needs a port.
    pub cores: usize,
    /// True if the ports must also deliver flow-control frames (MAC control).
    pub flow_control: bool,
    /// Data packets that one QP may have outstanding.
    pub window: u32,
}

/// Ports that were opened together.
#[derive(Debug)]
pub struct OpenedPorts {
    /// Name of the device for `feroce stat`.
    pub name: String,
    /// One port per core.
    pub ports: Vec<Box<dyn Port>>,
    /// How the ports learn which frames are theirs.
    pub addresses: PortAddressing,
    /// Number of full-size packets that the receive buffer for one QP holds; `None` if it does not
    /// limit the window. A QP sends no larger window, because its peer probably has the same
    /// buffer. At least the smallest window that a device can have.
    pub window_max: Option<u32>,
    /// The process that owns the port, if that is another one.
    pub owner: Option<Arc<dyn PortOwner>>,
}

impl OpenedPorts {
    /// Ports on the kernel's interface `name`, whose address filter is `filter`.
    pub fn on_kernel<P: Port + 'static>(
        name: &str,
        ports: Vec<P>,
        filter: impl AddressFilter + 'static,
    ) -> Self {
        Self::new(name, ports, PortAddressing::Filtered(Box::new(filter)))
    }

    /// Ports whose window is not limited.
    pub(super) fn new<P: Port + 'static>(
        name: &str,
        ports: Vec<P>,
        addresses: PortAddressing,
    ) -> Self {
        let ports = ports.into_iter().map(|port| Box::new(port) as _).collect();
        Self { name: name.to_owned(), ports, addresses, window_max: None, owner: None }
    }

    /// As [`Self::on_kernel`], for ports whose packets the kernel routes. `window`: see
    /// [`Self::window_max`].
    pub fn routed<P: Port + 'static>(
        name: &str,
        ports: Vec<P>,
        filter: impl AddressFilter + 'static,
        window: u32,
    ) -> Self {
        let opened = Self::new(name, ports, PortAddressing::Routed(Box::new(filter)));
        Self { window_max: Some(window), ..opened }
    }
}

/// How ports learn which frames are theirs.
#[derive(Debug)]
pub enum PortAddressing {
    /// The device sets the addresses; the ports drop frames to other addresses.
    Filtered(Box<dyn AddressFilter>),
    /// As `Filtered`, and the kernel routes the packets: the ports need no Ethernet address of a
    /// next hop.
    Routed(Box<dyn AddressFilter>),
    /// The ports have addresses of their own and resolve their neighbours.
    Own(Arc<dyn LinkAddresses>),
}

/// An address whose frames the ports of a device receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterAddress {
    /// IP address; IPv4 addresses are IPv4-mapped.
    pub ip: Ipv6Addr,
    /// Ethernet address of the interface with this address. Frames to other individual Ethernet
    /// addresses are for other hosts; frames to Ethernet groups are received. `None` receives
    /// frames to every Ethernet address.
    pub mac: Option<MacAddr>,
}

impl From<Ipv6Addr> for FilterAddress {
    fn from(ip: Ipv6Addr) -> Self {
        Self { ip, mac: None }
    }
}

/// The Ethernet address of each IP address. An IP address with several Ethernet addresses, as on
/// several VLANs, gets frames to every one.
pub(super) fn by_ip(addresses: &[FilterAddress]) -> BTreeMap<Ipv6Addr, Option<MacAddr>> {
    let mut by_ip = BTreeMap::new();
    for &FilterAddress { ip, mac } in addresses {
        let known = by_ip.entry(ip).or_insert(mac);
        if *known != mac {
            *known = None;
        }
    }
    by_ip
}

/// The set of addresses whose frames the ports of a device receive.
pub trait AddressFilter: fmt::Debug + Send + Sync {
    /// Replaces the addresses.
    ///
    /// # Errors
    /// The kernel refuses, or the filter has no room for so many addresses.
    fn set(&self, addresses: &[FilterAddress]) -> Result<(), PortError>;

    /// Returns true if another program can detach a program of the kernel that the ports need. The
    /// device then calls [`Self::restore`] twice per second.
    fn is_detachable(&self) -> bool {
        false
    }

    /// Attaches the program of the kernel again if another program has detached it. Returns what
    /// was attached.
    ///
    /// # Errors
    /// The program cannot be attached: the ports receive nothing any more.
    fn restore(&self) -> Result<Option<&'static str>, PortError> {
        Ok(None)
    }
}

/// Addresses and neighbours of ports without a kernel interface. The ports answer ARP
/// and neighbour discovery, and send the requests for neighbours.
pub trait LinkAddresses: fmt::Debug + Send + Sync {
    /// Returns the local addresses as GIDs, in GID table order.
    fn gids(&self) -> Vec<GidEntry>;

    /// Returns the headers of the path from `source` to `destination`. Waits at most `timeout` for
    /// the next hop to answer if its Ethernet address is unknown.
    ///
    /// # Errors
    /// See [`ResolveError`].
    fn resolve(
        &self,
        destination: Gid,
        source: &GidEntry,
        timeout: Duration,
    ) -> Result<PathHeaders, ResolveError>;

    /// Returns the headers of the path from `source` to `destination`, a local address.
    ///
    /// # Errors
    /// [`ResolveError::FamilyMismatch`].
    fn resolve_own(&self, destination: Gid, source: &GidEntry)
    -> Result<PathHeaders, ResolveError>;

    /// Returns the Ethernet address of a neighbour, if it has answered.
    fn neighbour(&self, vlan: Option<u16>, ip: IpAddr) -> Option<MacAddr>;

    /// Queues a request for the Ethernet address of `next_hop`, sent from the local address
    /// `source`. Does not wait for the response.
    fn request(&self, source: &GidEntry, next_hop: IpAddr);

    /// Waits until the number of Ethernet address changes of known neighbours differs from `seen`,
    /// or until `timeout` has passed. Returns the number then; `None` after [`Self::close`].
    fn wait_for_move(&self, seen: u64, timeout: Duration) -> Option<u64>;

    /// Ends all current and later calls of [`Self::wait_for_move`].
    fn close(&self);

    /// Returns true if the port is lost for ever: the process that owns it has ended.
    fn is_gone(&self) -> bool {
        false
    }
}

/// The process that owns the port of a device, where that is another one: a daemon. It decides
/// which QP numbers and services the device has, and to which QPs it may send.
///
/// # Errors
/// All calls return the daemon's refusal as the system's error that describes it best, or
/// [`std::io::ErrorKind::NotConnected`] if the daemon has ended.
#[allow(clippy::missing_errors_doc)] // See above.
pub trait PortOwner: fmt::Debug + Send + Sync {
    /// Returns the first number of another slice of QP numbers.
    fn qpn_slice(&self) -> io::Result<u32>;

    /// Allows packets from the QP `local` to the QP `remote_qpn` of the host `remote`, in place of
    /// an earlier destination.
    fn connect(&self, local: Qpn, remote: IpAddr, remote_qpn: Qpn) -> io::Result<()>;

    /// Ends that permission.
    fn disconnect(&self, local: Qpn);

    /// Makes the host a member of a multicast group whose datagrams this device receives.
    fn join(&self, group: IpAddr) -> io::Result<()>;

    /// Ends the membership.
    fn leave(&self, group: IpAddr);

    /// Reserves the port of a service; [`std::io::ErrorKind::AddrInUse`] if another program of the
    /// host has it.
    fn claim(&self, service: ServicePort) -> io::Result<()>;

    /// Ends the reservation.
    fn release(&self, service: ServicePort);
}

/// A port that an RDMA CM identifier is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServicePort {
    /// Number of the port space.
    pub space: u16,
    /// The port.
    pub port: u16,
    /// The address that it is bound to; an unspecified one for every address.
    pub ip: IpAddr,
    /// The identifier shares the port with others that also allow it.
    pub reuse: bool,
    /// An unspecified IPv6 address does not include IPv4.
    pub v6_only: bool,
}

/// The configuration of one kind of port.
pub trait PortConfig: Any + fmt::Debug + Send + Sync {
    /// Returns the device to open if the caller names none; empty if there is no such device.
    fn default_device(&self) -> &str {
        ""
    }

    /// Returns true if the configuration demands something that only this kind of port has, so that
    /// `auto` must not choose another kind.
    fn is_required(&self) -> bool {
        false
    }

    /// Returns a copy.
    fn boxed_clone(&self) -> Box<dyn PortConfig>;
}

/// The configurations of all kinds of port, one of each type.
#[derive(Debug)]
pub struct PortConfigs(Vec<Box<dyn PortConfig>>);

impl PortConfigs {
    /// Collects `configs`.
    pub(super) fn new(configs: impl Iterator<Item = Box<dyn PortConfig>>) -> Self {
        Self(configs.collect())
    }

    /// Returns the configuration of type `T`.
    ///
    /// # Panics
    /// If no entry of the registry has a configuration of this type.
    pub fn get<T: PortConfig>(&self) -> &T {
        let mut configs = self.0.iter().map(|config| &**config as &dyn Any);
        configs.find_map(<dyn Any>::downcast_ref).expect("a configuration of a registered port")
    }

    /// Returns the configuration of type `T`, to be changed.
    ///
    /// # Panics
    /// As [`Self::get`].
    pub fn get_mut<T: PortConfig>(&mut self) -> &mut T {
        let mut configs = self.0.iter_mut().map(|config| &mut **config as &mut dyn Any);
        configs.find_map(<dyn Any>::downcast_mut).expect("a configuration of a registered port")
    }

    /// Returns the configurations with `config` in place of the one of its type.
    ///
    /// # Panics
    /// As [`Self::get`].
    #[must_use]
    pub fn with<T: PortConfig>(mut self, config: T) -> Self {
        *self.get_mut() = config;
        self
    }

    /// Returns the configuration number `index` of the registry.
    pub(super) fn at(&self, index: usize) -> &dyn PortConfig {
        &*self.0[index]
    }
}

impl Clone for PortConfigs {
    fn clone(&self) -> Self {
        Self(self.0.iter().map(|config| config.boxed_clone()).collect())
    }
}

/// A setting of one kind of port.
#[derive(Debug, Clone, Copy)]
pub struct PortSetting {
    /// Name in the configuration file.
    pub name: &'static str,
    /// The values that the setting takes, for error messages.
    pub expects: &'static str,
    /// What the setting controls.
    pub about: &'static str,
    /// The command-line option; `None` if there is none.
    pub option: Option<PortOption>,
    /// Reads a value; `None` if the text is not a valid value.
    pub set: fn(&mut PortConfigs, &str) -> Option<()>,
    /// Writes the current value in the form that [`Self::set`] reads.
    pub show: fn(&PortConfigs) -> String,
}

/// The command-line option of a [`PortSetting`].
#[derive(Debug, Clone, Copy)]
pub struct PortOption {
    /// The option, such as `--name-mtu` of the setting `name_mtu`.
    pub flag: &'static str,
    /// Placeholder of the value, such as `BYTES`.
    pub value_name: &'static str,
    /// Help text.
    pub help: &'static str,
}

/// Packet buffers that a port allocates when it opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferMemory {
    /// MiB that the packet buffers need.
    pub needed_mib: u64,
    /// MiB of ordinary memory that the configuration provides; `None` if the buffers are in
    /// hugepages.
    pub ordinary_mib: Option<u32>,
    /// Setting that chooses ordinary memory, in MiB, instead of hugepages.
    pub setting: &'static str,
}

/// An error of one kind of port.
pub trait PortFailure: Any + Error + Send + Sync {
    /// Returns true if another kind of port may open where this one fails. Then `auto` tries the
    /// next kind.
    fn allows_fallback(&self) -> bool {
        false
    }
}

/// Why ports could not be opened, or their addresses not be changed: the error of some kind of
/// port.
#[derive(Debug)]
pub struct PortError(Box<dyn PortFailure>);

impl PortError {
    /// Returns true if another kind of port may open where this one fails.
    pub fn allows_fallback(&self) -> bool {
        self.0.allows_fallback()
    }

    /// Returns the error if it is of type `E`.
    pub fn downcast_ref<E: PortFailure>(&self) -> Option<&E> {
        (&*self.0 as &dyn Any).downcast_ref()
    }
}

impl<E: PortFailure> From<E> for PortError {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for PortError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
