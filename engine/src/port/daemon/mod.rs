//! The port of a daemon's client: rings in memory shared with the daemon (`feroce up`), which owns
//! the interface. It needs no privilege but the permission to use the daemon's socket.
//!
//! | question | file |
//! |---|---|
//! | which messages do daemon and client exchange? | `protocol.rs`, over `channel.rs` |
//! | what are the limits of a user? | `limits.rs` |
//! | where is the daemon's socket? | `socket_path.rs` |
//! | how does the client call the daemon? | `session.rs` |
//!
//! The daemon's side is [`crate::daemon`]. A client can neither see the frames of other
//! clients nor send with their QP numbers: the daemon copies frames, and checks each frame that a
//! client sends.

pub(crate) mod channel;
mod error;
pub(crate) mod limits;
pub(crate) mod protocol;
pub(crate) mod session;
pub(crate) mod socket_path;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

pub use error::DaemonError;

use feroce_wire::{MacAddr, Qpn};
use protocol::{Answer, Attached, Local, Refusal, Request};
use session::{CallError, Session};

use super::contract::PortAttributes;
use super::kind::{
    LinkAddresses, OpenRequest, OpenedPorts, PortAddressing, PortConfig, PortConfigs, PortEntry,
    PortError, PortOption, PortOwner, PortSetting, ServicePort,
};
use super::shm::ShmPort;
use crate::memory::bell::{Bell, RemoteBell};
use crate::memory::shared_memory::SharedMemory;
use crate::net::{Gid, GidEntry, PathHeaders, ResolveError};
use crate::time::Duration;

/// The kind of port `daemon`.
pub(super) const ENTRY: PortEntry = PortEntry {
    name: "daemon",
    title: "a daemon's port",
    feature: None,
    on_kernel: false,
    in_auto: false,
    config: || Box::new(DaemonPortConfig::default()),
    settings: SETTINGS,
    open: Some(open),
    over_interface: None,
    buffers: None,
};

/// Configuration of a port at a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DaemonPortConfig {
    /// The daemon's socket; `None` for the default paths (docs/daemon.md).
    pub socket: Option<PathBuf>,
}

impl DaemonPortConfig {
    /// Where the socket of the daemon of `interface` may be, in the order to try.
    pub fn sockets(&self, interface: &str) -> Vec<PathBuf> {
        match &self.socket {
            Some(path) => vec![path.clone()],
            None => socket_path::candidates(interface),
        }
    }
}

impl PortConfig for DaemonPortConfig {
    fn boxed_clone(&self) -> Box<dyn PortConfig> {
        Box::new(self.clone())
    }
}

const DEFAULT_SOCKET: &str = "auto";

const SETTINGS: &[PortSetting] = &[PortSetting {
    name: "daemon_socket",
    expects: "an absolute path, or `auto`",
    about: "socket of the daemon (`feroce up`) that owns the interface",
    option: Some(PortOption {
        flag: "--daemon-socket",
        value_name: "PATH",
        help: "Socket of the daemon that owns the interface",
    }),
    set: |configs, text| {
        let socket = match text {
            DEFAULT_SOCKET => None,
            path if path.starts_with('/') => Some(PathBuf::from(path)),
            _ => return None,
        };
        configs.get_mut::<DaemonPortConfig>().socket = socket;
        Some(())
    },
    show: |configs| match &configs.get::<DaemonPortConfig>().socket {
        Some(path) => path.display().to_string(),
        None => DEFAULT_SOCKET.to_owned(),
    },
}];

/// Attaches to the daemon of an interface.
fn open(request: &OpenRequest<'_>) -> Result<OpenedPorts, PortError> {
    // Attach before the checks: they do not apply to a program that finds no daemon and opens the
    // interface itself.
    let (session, attached, fds) = attach(request.device, request.configs)?;
    if request.cores != 1 {
        return Err(DaemonError::Config("a client of a daemon has one core").into());
    }
    if request.flow_control {
        return Err(DaemonError::Config("flow control (`pfc`) is the daemon's").into());
    }
    let session = Arc::new(Proxy(session));
    let window = attached.window_max;
    let port = port(request.device, &session, attached, fds)?;
    let addresses = PortAddressing::Own(Arc::clone(&session) as _);
    let name = name_at_daemon(request.device, std::process::id().cast_signed());
    let opened = OpenedPorts::new(&name, vec![port], addresses);
    Ok(OpenedPorts { window_max: window, owner: Some(session), ..opened })
}

/// The name under which the process `pid` serves the statistics of its device at the daemon of
/// `interface`: `eth0@4711`. Other processes have devices there, too.
pub fn name_at_daemon(interface: &str, pid: i32) -> String {
    format!("{interface}@{pid}")
}

type Attachment = (Session, Attached, [std::os::fd::OwnedFd; 3]);

fn attach(interface: &str, configs: &PortConfigs) -> Result<Attachment, DaemonError> {
    let default = socket_path::own_directory().join("*").join(interface);
    let mut error = DaemonError::NotThere { path: default };
    for path in configs.get::<DaemonPortConfig>().sockets(interface) {
        match Session::attach(&path) {
            Err(missing @ DaemonError::NotThere { .. }) => error = missing,
            other => return other,
        }
    }
    Err(error)
}

fn port(
    interface: &str,
    proxy: &Proxy,
    attached: Attached,
    [memory, waits_on, signals]: [std::os::fd::OwnedFd; 3],
) -> Result<ShmPort, DaemonError> {
    let [tx, rx] = attached.shapes()?;
    let failed = |source| DaemonError::System { action: "map the daemon's rings", source };
    let memory = SharedMemory::open(memory, tx.bytes() + rx.bytes()).map_err(failed)?;
    let bell = Bell::Remote(Arc::new(RemoteBell::of_client([waits_on, signals])));
    let (producer, consumer) =
        (tx.producer(&memory, 0, &bell), rx.consumer(&memory, tx.bytes(), &bell));
    proxy
        .0
        .start(vec![producer.handle(), consumer.handle()])
        .map_err(|source| DaemonError::System { action: "start a thread", source })?;
    proxy.0.ask(Request::Ready).map_err(|source| DaemonError::System {
        action: "begin to use the daemon's port",
        source,
    })?;
    let attributes = PortAttributes {
        kind: format!("daemon, {}", attached.kind),
        name: interface.to_owned(),
        mac: MacAddr(attached.mac),
        mtu: attached.mtu,
        frame_max: attached.frame_max,
        link_rate: attached.link_rate,
        queues: 1,
        segments_max: attached.segments_max,
        source_ports: attached.source_ports,
    };
    Ok(ShmPort::new(attributes, producer, consumer))
}

/// The daemon, as the device sees it: calls become requests to the daemon.
#[derive(Debug)]
struct Proxy(Session);

impl LinkAddresses for Proxy {
    fn gids(&self) -> Vec<GidEntry> {
        self.0.gids()
    }

    fn resolve(
        &self,
        destination: Gid,
        source: &GidEntry,
        timeout: Duration,
    ) -> Result<PathHeaders, ResolveError> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let local = Local::from(source);
        let request = Request::Resolve { destination: destination.0, source: local, timeout_ms };
        match self.0.call(request, timeout) {
            Ok(Answer::Path(path)) => Ok(path.into()),
            Err(CallError::Refused(Refusal::Path(refusal))) => {
                Err(refusal.into_error(source.gid.ip(), destination.ip(), timeout))
            }
            Ok(_) => Err(ResolveError::Daemon { reason: "no path in its answer".to_owned() }),
            Err(error) => Err(ResolveError::Daemon { reason: error.to_string() }),
        }
    }

    /// The daemon forwards the frames between its clients, also those of a client to itself.
    fn resolve_own(
        &self,
        destination: Gid,
        source: &GidEntry,
    ) -> Result<PathHeaders, ResolveError> {
        self.resolve(destination, source, Duration::ZERO)
    }

    fn neighbour(&self, vlan: Option<u16>, ip: IpAddr) -> Option<MacAddr> {
        self.0.neighbour(vlan, ip)
    }

    /// No request is needed: the daemon follows its neighbours.
    fn request(&self, _: &GidEntry, _: IpAddr) {}

    fn wait_for_move(&self, seen: u64, timeout: Duration) -> Option<u64> {
        self.0.wait_for_move(seen, timeout)
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_gone(&self) -> bool {
        self.0.is_gone()
    }
}

impl PortOwner for Proxy {
    fn qpn_slice(&self) -> io::Result<u32> {
        match self.0.call(Request::QpnSlice, Duration::ZERO)? {
            Answer::Slice(first) => Ok(first),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn connect(&self, local: Qpn, remote: IpAddr, remote_qpn: Qpn) -> io::Result<()> {
        let (qpn, remote_qpn) = (local.value(), remote_qpn.value());
        self.0.ask(Request::Connect { qpn, remote, remote_qpn })
    }

    fn disconnect(&self, local: Qpn) {
        let _ = self.0.ask(Request::Disconnect { qpn: local.value() }); // The daemon may be gone.
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.0.ask(Request::Join { group })
    }

    fn leave(&self, group: IpAddr) {
        let _ = self.0.ask(Request::Leave { group }); // As above.
    }

    fn claim(&self, service: ServicePort) -> io::Result<()> {
        self.0.ask(Request::Claim(service))
    }

    fn release(&self, service: ServicePort) {
        let _ = self.0.ask(Request::Release(service)); // As above.
    }
}
