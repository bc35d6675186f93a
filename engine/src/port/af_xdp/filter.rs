//! The XDP program on the interface: its maps, its link, and its addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use feroce_wire::MacAddr;

use super::bpf::{AttachMode, Attached, Hook, Link, Map, MapKind, Program, program_name};
use super::config::{AfXdpConfig, XdpMode};
use super::error::AfXdpError;
use super::interface::{Interface, XdpFeatures, attached_program};
use super::program::{self, Action, Destination};
use crate::port::kind::{self, FilterAddress};

/// Maximum number of addresses of one interface.
const ADDRESSES: u32 = 1024;
/// Beginning of the name of Feroce's XDP programs. The process id follows, by which another process
/// finds the owner of the interface.
const NAME_PREFIX: &str = "feroce_";

/// Attempts to attach, because a program may still be detaching: a child process forked meanwhile
/// keeps the link of a closed port until it calls `exec`.
const ATTACH_TRIES: u32 = 20;
/// Time between two attempts to attach.
const ATTACH_RETRY: Duration = Duration::from_millis(10);

/// The destination addresses whose RoCE frames the port receives instead of the kernel.
///
/// All cores of an interface share it; changes take effect at once on all queues. IPv4 addresses
/// are IPv4-mapped IPv6 addresses. A newly opened port has no addresses and so receives nothing.
#[derive(Debug, Clone)]
pub struct AddressFilter(Arc<Addresses>);

#[derive(Debug)]
struct Addresses {
    map: Map<[u8; 16], Destination>,
    known: Mutex<BTreeMap<Ipv6Addr, Option<MacAddr>>>,
}

impl AddressFilter {
    fn create() -> io::Result<Self> {
        let map = Map::create(MapKind::Hash, "feroce_filter", ADDRESSES)?;
        Ok(Self(Arc::new(Addresses { map, known: Mutex::default() })))
    }

    /// Replaces the addresses. Frames to every Ethernet address are received.
    ///
    /// # Errors
    /// [`AfXdpError::TooManyAddresses`] for more than 1024 addresses, or the kernel refuses. The
    /// filter then holds some of the addresses.
    pub fn set(&self, addresses: &[Ipv6Addr]) -> Result<(), AfXdpError> {
        self.set_destinations(&addresses.iter().map(|&ip| ip.into()).collect::<Vec<_>>())
    }

    /// As [`Self::set`], with the Ethernet addresses of the interfaces.
    pub(super) fn set_destinations(&self, addresses: &[FilterAddress]) -> Result<(), AfXdpError> {
        let wanted = kind::by_ip(addresses);
        let known = self.known();
        let gone = known.keys().filter(|ip| !wanted.contains_key(ip));
        gone.into_iter().try_for_each(|&ip| self.remove(ip))?;
        let new = wanted.iter().filter(|(ip, mac)| known.get(ip) != Some(mac));
        new.into_iter().try_for_each(|(&ip, &mac)| self.add_destination(FilterAddress { ip, mac }))
    }

    /// Adds an address. Has no effect if it was added before.
    ///
    /// # Errors
    /// [`AfXdpError::TooManyAddresses`] for more than 1024 addresses, or the kernel refuses.
    pub fn add(&self, address: Ipv6Addr) -> Result<(), AfXdpError> {
        self.add_destination(address.into())
    }

    fn add_destination(&self, address: FilterAddress) -> Result<(), AfXdpError> {
        let FilterAddress { ip, mac } = address;
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.map.insert(ip.octets(), program::destination(mac)).map_err(|e| {
            match e.raw_os_error() {
                Some(libc::E2BIG) => AfXdpError::TooManyAddresses(ADDRESSES),
                _ => AfXdpError::system("add an address to the XDP program's filter", e),
            }
        })?;
        known.insert(ip, mac);
        Ok(())
    }

    /// Removes an address; the kernel's stack gets the frames to this address again. Has no effect
    /// if the filter does not have the address.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&self, address: Ipv6Addr) -> Result<(), AfXdpError> {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.map.remove(address.octets()).map_err(|e| {
            AfXdpError::system("remove an address from the XDP program's filter", e)
        })?;
        known.remove(&address);
        Ok(())
    }

    /// The current addresses.
    pub fn addresses(&self) -> BTreeSet<Ipv6Addr> {
        self.known().into_keys().collect()
    }

    fn known(&self) -> BTreeMap<Ipv6Addr, Option<MacAddr>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The attached program. It is detached when dropped or when the process ends.
#[derive(Debug)]
pub(super) struct Attachment {
    interface: Interface,
    attached: Attached,
    sockets: Map<u32, u32>,
    /// The addresses of the program.
    pub addresses: AddressFilter,
    /// The mode of the program.
    pub mode: AttachMode,
}

impl Attachment {
    /// Loads the program and attaches it to `interface`.
    pub fn create(interface: &Interface, config: &AfXdpConfig) -> Result<Self, AfXdpError> {
        let made = |e| AfXdpError::system("create the XDP program's maps", e);
        let addresses = AddressFilter::create().map_err(made)?;
        let queues = interface.rx_queues.max(interface.tx_queues);
        let sockets = Map::create(MapKind::Xsk, "feroce_sockets", queues).map_err(made)?;
        let maps = program::Maps { addresses: addresses.0.map.fd(), sockets: sockets.fd() };
        let text = program::filter(maps, config.flow_control, Action::Pass);
        let program = Program::load(Hook::Xdp, &text, &program_name_of_this_process());
        let program = program.map_err(AfXdpError::load)?;
        let (link, mode) = attach(&program, interface, config.mode)?;
        let attached = Attached::new(program, interface.index, mode as u32, link);
        Ok(Self { interface: interface.clone(), attached, sockets, addresses, mode })
    }

    /// Attaches the program again if another process has detached it. Returns true then.
    pub fn restore(&self) -> Result<bool, AfXdpError> {
        self.attached.restore().map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => occupied(&self.interface),
            _ => AfXdpError::system("attach the XDP program again", error),
        })
    }

    /// Redirects the frames of `queue` to the socket `fd`.
    pub fn enter(&self, queue: u32, fd: i32) -> Result<(), AfXdpError> {
        let fd = u32::try_from(fd).expect("an open descriptor is not negative");
        let entered = self.sockets.insert(queue, fd);
        entered
            .map_err(|e| AfXdpError::system("enter an AF_XDP socket in the XDP program's map", e))
    }
}

/// The name by which other processes find the owner of an interface.
pub(super) fn program_name_of_this_process() -> String {
    format!("{NAME_PREFIX}{}", std::process::id())
}

/// Attaches the program. If another program is attached, retries for about 200 ms, in case that
/// program is being detached.
pub(super) fn attach(
    program: &Program,
    interface: &Interface,
    mode: XdpMode,
) -> Result<(Link, AttachMode), AfXdpError> {
    for _ in 1..ATTACH_TRIES {
        match try_attach(program, interface, mode) {
            Err(AfXdpError::Owned { .. } | AfXdpError::ProgramAttached { .. }) => {
                std::thread::sleep(ATTACH_RETRY);
            }
            other => return other,
        }
    }
    try_attach(program, interface, mode)
}

/// Attaches the program in the requested mode; `Auto` falls back from native to generic.
fn try_attach(
    program: &Program,
    interface: &Interface,
    mode: XdpMode,
) -> Result<(Link, AttachMode), AfXdpError> {
    // A driver that runs programs but cannot redirect would drop every RoCE frame.
    let drops = XdpFeatures::of(interface.index)
        .is_some_and(|features| features.programs && !features.redirects);
    let modes: &[AttachMode] = match mode {
        XdpMode::Auto if drops => &[AttachMode::Generic],
        XdpMode::Auto => &[AttachMode::Native, AttachMode::Generic],
        XdpMode::Native => &[AttachMode::Native],
        XdpMode::Generic => &[AttachMode::Generic],
    };
    let mut refusal = None;
    for &mode in modes {
        match program.attach(interface.index, mode) {
            Ok(link) => return Ok((link, mode)),
            Err(e) => match e.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => return Err(occupied(interface)),
                Some(libc::EPERM | libc::EACCES) => {
                    return Err(AfXdpError::system("attach the XDP program", e));
                }
                _ => refusal = Some((mode, e)),
            },
        }
    }
    let (mode, source) = refusal.expect("at least one mode is tried");
    let mode = mode.name();
    Err(AfXdpError::ModeRefused {
        interface: interface.name.clone(),
        mode,
        mtu: interface.mtu,
        source,
    })
}

/// The XDP program on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedProgram {
    /// Its name, if this process may read it.
    pub name: Option<String>,
    /// The process that attached it, if it is a program of Feroce.
    pub owner: Option<u32>,
}

impl AttachedProgram {
    /// The program on the interface with index `index` in the network namespace of the calling
    /// thread.
    pub fn of(index: u32) -> Option<Self> {
        let name = program_name(attached_program(index)?);
        let owner = name.as_deref().and_then(|name| name.strip_prefix(NAME_PREFIX)?.parse().ok());
        Some(Self { name, owner })
    }
}

/// Returns the error for an interface that has an XDP program already. Names the process that
/// attached the program, if known.
fn occupied(interface: &Interface) -> AfXdpError {
    let found = AttachedProgram::of(interface.index);
    let interface = interface.name.clone();
    match found {
        Some(AttachedProgram { name: Some(program), owner: Some(pid) }) => {
            AfXdpError::Owned { interface, pid, program }
        }
        found => {
            let program = found.and_then(|found| found.name);
            AfXdpError::ProgramAttached { interface, program }
        }
    }
}

impl AttachMode {
    /// The usual name of the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::interface::in_own_namespace;
    use super::*;

    fn config(mode: XdpMode) -> AfXdpConfig {
        AfXdpConfig { mode, ..AfXdpConfig::new("") }
    }

    #[test]
    fn a_detached_program_is_attached_again_unless_another_has_its_place() {
        in_own_namespace(|interface| {
            let held = Attachment::create(interface, &config(XdpMode::Auto)).expect("free");
            let own = attached_program(interface.index).expect("attached");
            assert!(!held.restore().expect("attached"));
            held.attached.detach();
            assert_eq!(attached_program(interface.index), None);
            assert!(held.restore().expect("free"));
            assert_eq!(attached_program(interface.index), Some(own));
            assert!(!held.restore().expect("attached"));

            held.attached.detach();
            let other = Attachment::create(interface, &config(XdpMode::Generic)).expect("free");
            let error = held.restore().expect_err("occupied");
            assert!(matches!(error, AfXdpError::Owned { .. }), "{error}");
            drop(other);
        });
    }

    #[test]
    fn errors_name_the_program_that_holds_the_interface() {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            in_own_namespace(|interface| {
                let addresses = AddressFilter::create().expect("a map");
                let sockets = Map::<u32, u32>::create(MapKind::Xsk, "test", 1).expect("a map");
                let maps = program::Maps { addresses: addresses.0.map.fd(), sockets: sockets.fd() };
                let text = program::filter(maps, false, Action::Pass);
                let foreign =
                    Program::load(Hook::Xdp, &text, "someone_else").expect("the verifier agrees");
                let link = foreign.attach(interface.index, mode).expect("attached");
                let error =
                    Attachment::create(interface, &config(XdpMode::Auto)).expect_err("occupied");
                assert!(error.to_string().contains("'someone_else'"), "{error}");
                assert!(matches!(error, AfXdpError::ProgramAttached { .. }), "{error}");

                drop(link);
                let held = Attachment::create(interface, &config(XdpMode::Auto)).expect("free now");
                assert_eq!(held.mode, AttachMode::Native);
                let error =
                    Attachment::create(interface, &config(XdpMode::Generic)).expect_err("occupied");
                let own = std::process::id();
                assert!(matches!(error, AfXdpError::Owned { pid, .. } if pid == own), "{error}");
            });
        }
    }
}
