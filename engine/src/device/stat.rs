//! Statistics of an open device, served to `feroce stat`.
//!
//! A device that is opened on an interface serves its statistics on an abstract Unix socket in the
//! interface's network namespace; the socket disappears with the process. The client sends a
//! [`Request`] and receives one [`Snapshot`], each a line of JSON. Only root and the process's own
//! user get a response. The server's thread sleeps until a client connects, and holds each core's
//! token only briefly.
//!
//! Any user can bind such a name, and any user can connect, so neither side trusts the other. A
//! device whose name is taken opens without statistics, because opening must not depend on them. An
//! exchange has a time limit, a response has a maximum length, and the kernel reports which process
//! is at the other end.

mod figures;

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt, setsockopt,
    socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

pub use crate::port::daemon::name_at_daemon;
pub use figures::{CoreFigures, QueuePairFigures, RateFigures, Snapshot};

use super::owner::{Owner, SOCKETS, owner_of};
use super::{DeviceInner, Driver, OpenError, Opened};
use crate::sys;
use crate::time::{Clock, Duration, Instant};
use crate::wake::EventFd;

/// Prefix of the sockets' names.
const PREFIX: &str = "feroce/stat/";
/// Time limit for an exchange, on the server's side.
const CLIENT_TIME: Duration = Duration::from_secs(2);
/// Time limit for the whole response, on the client's side; other clients may be served first.
const RESPONSE_TIME: Duration = Duration::from_secs(5);
/// Maximum length of a response with QPs in bytes; enough for some hundred thousand QPs.
const RESPONSE_MAX: usize = 64 << 20;
/// Maximum length of a response without QPs in bytes: a reader of many programs must not be filled
/// by one of them.
const RESPONSE_WITHOUT_QPS_MAX: usize = 128 << 10;
/// Maximum length of a request in bytes.
const REQUEST_MAX: usize = 16 << 10;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Request {
    /// Include every QP.
    pub queue_pairs: bool,
    /// Parameters of congestion control to set first, by name: all of them, or none if one is
    /// refused.
    #[serde(default)]
    pub set: Vec<(String, String)>,
}

/// The response to a [`Request`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Response {
    Snapshot(Box<Snapshot>),
    /// Why there is no snapshot.
    Refused(String),
}

/// Why no statistics were obtained.
#[derive(Debug, thiserror::Error)]
pub enum StatError {
    /// No program serves statistics of the interface.
    #[error(
        "no program in this network namespace serves statistics of {interface}. A program that \
         opens the interface with Feroce does, such as `feroce perf -i {interface}`. For another \
         namespace use `ip netns exec NAME feroce stat`."
    )]
    NoEndpoint {
        /// The interface.
        interface: String,
    },
    /// No program serves statistics of any interface.
    #[error(
        "no program in this network namespace serves statistics. A program that opens an interface \
         with Feroce does, such as `feroce perf -i IFACE`. For another namespace use \
         `ip netns exec NAME feroce stat`."
    )]
    NoServer,
    /// A program has the interface open and serves no statistics.
    #[error("{owner} has {interface} open, and serves no statistics")]
    NotServed {
        /// The interface.
        interface: String,
        /// The program.
        owner: Owner,
    },
    /// The program refuses.
    #[error("the program that has {interface} open refuses: {reason}")]
    Refused {
        /// The interface.
        interface: String,
        /// Its reason.
        reason: String,
    },
    /// The response is not that of a device on the interface, or its sender is another user.
    #[error("the statistics of {interface} from {server} are not trustworthy: {reason}")]
    Implausible {
        /// The interface.
        interface: String,
        /// The program that sent it.
        server: Owner,
        /// The reason.
        reason: &'static str,
    },
    /// The exchange failed.
    #[error("no response from the program that has {interface} open: {source}")]
    Io {
        /// The interface.
        interface: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Returns the interfaces in the calling thread's network namespace whose statistics are served, by
/// name.
pub fn endpoints() -> Vec<String> {
    let sockets = std::fs::read_to_string(SOCKETS).unwrap_or_default();
    let prefix = format!("@{PREFIX}");
    let names = sockets.lines().filter_map(|line| line.split_whitespace().last());
    // A name with other characters is not the name of an interface.
    let is_printable = |name: &&str| name.chars().all(|c| c.is_ascii_graphic());
    let names = names.filter_map(|name| name.strip_prefix(&prefix)).filter(is_printable);
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup(); // An open connection has the name of its listener.
    names
}

/// Returns true if `name` is one of [`endpoints`] of a device on `interface`.
pub fn is_on(name: &str, interface: &str) -> bool {
    let rest = name.strip_prefix(interface);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
}

/// Requests statistics from the program that has `interface` open, in the calling thread's network
/// namespace.
///
/// # Errors
/// See [`StatError`].
pub fn query(interface: &str, request: &Request) -> Result<Snapshot, StatError> {
    match query_within(interface, request, RESPONSE_TIME) {
        Err(StatError::NoEndpoint { interface }) => Err(no_server(&interface)),
        result => result,
    }
}

/// Like [`query`], with a timeout for each operation on the socket. Does not look for the owner of
/// an interface without statistics, which takes a walk through all processes: the error is
/// [`StatError::NoEndpoint`], never [`StatError::NotServed`].
///
/// # Errors
/// See [`StatError`].
pub fn query_within(
    interface: &str,
    request: &Request,
    timeout: Duration,
) -> Result<Snapshot, StatError> {
    let failed = |source| StatError::Io { interface: interface.to_owned(), source };
    let stream = connect_to(interface, timeout).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            StatError::NoEndpoint { interface: interface.to_owned() }
        }
        _ => failed(error),
    })?;
    let server = getsockopt(&stream, PeerCredentials).map_err(|error| failed(error.into()))?;
    let implausible = |reason| StatError::Implausible {
        interface: interface.to_owned(),
        server: Owner::of_socket(&server),
        reason,
    };
    let own = geteuid().as_raw();
    if own != 0 && ![0, own].contains(&server.uid()) {
        return Err(implausible("the program runs neither as root nor as this user"));
    }
    let mut exchange = Exchange::new(&stream, timeout);
    let mut line = serde_json::to_vec(request).expect("plain data");
    line.push(b'\n');
    match exchange.send(&line) {
        // The server may have refused before it read the request.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(failed(error)),
        _ => {}
    }
    let max = if request.queue_pairs { RESPONSE_MAX } else { RESPONSE_WITHOUT_QPS_MAX };
    let response = exchange.receive_line(max).map_err(failed)?;
    match serde_json::from_slice(&response).map_err(|error| failed(error.into()))? {
        Response::Refused(reason) => {
            let reason = reason.escape_debug().to_string();
            Err(StatError::Refused { interface: interface.to_owned(), reason })
        }
        Response::Snapshot(snapshot) => match snapshot.implausibility(interface) {
            Some(reason) => Err(implausible(reason)),
            None => Ok(snapshot.of(&server)),
        },
    }
}

impl Snapshot {
    /// Returns why the snapshot cannot come from a device on `interface`, if so.
    fn implausibility(&self, interface: &str) -> Option<&'static str> {
        let mut texts =
            vec![&self.feroce, &self.program, &self.interface, &self.port, &self.congestion];
        texts.extend(self.counters.keys());
        texts.extend(self.congestion_params.iter().flat_map(|(name, value)| [name, value]));
        for qp in self.queue_pairs.iter().flatten() {
            texts.extend(std::iter::once(&qp.state).chain(&qp.peer));
        }
        let rules = [
            (self.interface != interface, "they name another interface"),
            (
                texts.iter().any(|text| text.contains(char::is_control)),
                "they contain control characters",
            ),
        ];
        rules.into_iter().find(|(broken, _)| *broken).map(|(_, reason)| reason)
    }

    /// Replaces user, process ID and program by those that the kernel reports for the socket's
    /// peer.
    fn of(mut self, server: &UnixCredentials) -> Self {
        self.user = server.uid();
        // The process ID is 0 if the server is in another PID namespace.
        if let Ok(pid @ 1..) = u32::try_from(server.pid()) {
            (self.pid, self.program) = (pid, Owner::of_socket(server).program);
        }
        self
    }
}

/// Connects to the server of the statistics of `interface`.
fn connect_to(interface: &str, timeout: Duration) -> io::Result<UnixStream> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Without a timeout, `connect` would block while the server's backlog is full.
    let timeout = TimeVal::milliseconds(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&fd, SendTimeout, &timeout)?;
    let name = UnixAddr::new_abstract(format!("{PREFIX}{interface}").as_bytes())?;
    connect(fd.as_raw_fd(), &name)?;
    Ok(fd.into())
}

/// A request and its response over one connection, with a time limit for both.
struct Exchange<'a> {
    stream: &'a UnixStream,
    clock: Clock,
    end: Instant,
}

impl<'a> Exchange<'a> {
    fn new(stream: &'a UnixStream, timeout: Duration) -> Self {
        let clock = Clock::start();
        Self { stream, clock, end: clock.now() + timeout }
    }

    fn time_left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_since(self.clock.now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(self.time_left()?)?;
            match self.stream.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives bytes up to the first line feed; none may follow.
    fn receive_line(&mut self, max: usize) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let mut buffer = [0; 16 << 10];
        while line.last() != Some(&b'\n') {
            self.stream.set_read_timeout(self.time_left()?)?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => line.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if line.len() > max {
                return Err(io::Error::other(format!("more than {max} bytes")));
            }
        }
        Ok(line)
    }
}

fn no_server(interface: &str) -> StatError {
    let interface = interface.to_owned();
    match owner_of(&interface) {
        Some(owner) => StatError::NotServed { interface, owner },
        None => StatError::NoEndpoint { interface },
    }
}

fn address(interface: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{interface}"))
}

/// The server's thread; dropping this ends it.
#[derive(Debug)]
pub(super) struct Server {
    stop: Arc<EventFd>,
    /// The connection of the client that is being served.
    client: Arc<Mutex<Option<UnixStream>>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts serving the statistics of `device`, if its configuration enables this and the name is
/// free.
pub(super) fn start(device: &Opened, interface: &str) -> Result<(), OpenError> {
    if !device.config.serve_stat || device.config.driver == Driver::Manual {
        return Ok(());
    }
    let failed =
        |source| OpenError::System { action: "serve statistics for `feroce stat`", source };
    let bind = |name: &str| UnixListener::bind_addr(&address(name)?);
    let mut interface = interface.to_owned();
    let listener = match bind(&interface) {
        // Taken by an unrelated process, or by a process with a device of the same name.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let taken = std::mem::take(&mut interface);
            interface = format!("{taken}.{}", std::process::id());
            let holder = holder(&taken);
            tracing::warn!(
                "`feroce stat` shows {taken} as {interface}, because {holder} has taken the name"
            );
            bind(&interface)
        }
        other => other,
    };
    let listener = match listener {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(()),
        other => other.map_err(failed)?,
    };
    listener.set_nonblocking(true).map_err(failed)?;
    let stop = Arc::new(EventFd::new().map_err(failed)?);
    let client = Arc::new(Mutex::new(None));
    let server_thread = ServerThread {
        device: Arc::downgrade(&device.0),
        interface,
        listener,
        stop: Arc::clone(&stop),
        client: Arc::clone(&client),
    };
    let thread =
        feroce_threads::spawn("feroce-stat", move || server_thread.run()).map_err(failed)?;
    let server = Server { stop, client, thread: Some(thread) };
    *device.stat.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    Ok(())
}

/// Returns the process that has taken the name of `interface`.
fn holder(interface: &str) -> Owner {
    let credentials = connect_to(interface, Duration::from_millis(100))
        .and_then(|stream| getsockopt(&stream, PeerCredentials).map_err(io::Error::from));
    credentials.map_or_else(|_| Owner::unknown(), |credentials| Owner::of_socket(&credentials))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.signal();
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stream) = client {
            let _ = stream.shutdown(std::net::Shutdown::Both); // Otherwise closed already.
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // A thread that panicked has printed its message already.
        }
    }
}

struct ServerThread {
    device: Weak<DeviceInner>,
    interface: String,
    listener: UnixListener,
    stop: Arc<EventFd>,
    client: Arc<Mutex<Option<UnixStream>>>,
}

impl ServerThread {
    fn run(&self) {
        use std::os::fd::AsFd;
        let fds = [self.listener.as_raw_fd(), self.stop.as_fd().as_raw_fd()];
        let mut scratch = Vec::new();
        loop {
            sys::poll_readable(&fds, &mut scratch, None);
            if scratch.last().is_some_and(|stop| stop.revents != 0) {
                return;
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // No descriptor is free. The client stays in the backlog; accepting again at
                    // once would spin.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        sys::poll_readable(&fds[1..], &mut scratch, Some(CLIENT_TIME));
                    }
                    continue;
                }
            };
            let client = || self.client.lock().unwrap_or_else(PoisonError::into_inner);
            *client() = stream.try_clone().ok();
            // The thread that drops the server either finds the stream, or has signalled `stop`
            // before.
            sys::poll_readable(&fds[1..], &mut scratch, Some(Duration::ZERO));
            if scratch.last().is_some_and(|stop| stop.revents != 0) {
                return;
            }
            // An error towards a client has no consequence for the device.
            let _ = self.serve_client(&stream);
            *client() = None;
        }
    }

    fn serve_client(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let mut exchange = Exchange::new(stream, CLIENT_TIME);
        let client_uid = getsockopt(stream, PeerCredentials)?.uid();
        let own = geteuid().as_raw();
        let response = if client_uid != 0 && client_uid != own {
            // The request is not read.
            Response::Refused(format!(
                "only root and user {own} may read statistics, not user {client_uid}"
            ))
        } else {
            let line = exchange.receive_line(REQUEST_MAX)?;
            let Some(device) = self.device.upgrade() else { return Ok(()) };
            match serde_json::from_slice(&line) {
                Ok(request) => respond_to(&device, &self.interface, &request),
                Err(error) => Response::Refused(format!("this is no request: {error}")),
            }
        };
        let mut line = serde_json::to_vec(&response).map_err(io::Error::from)?;
        line.push(b'\n');
        exchange.send(&line)
    }
}

fn respond_to(device: &DeviceInner, interface: &str, request: &Request) -> Response {
    match device.set_congestion(&request.set) {
        Ok(()) => Response::Snapshot(Box::new(Snapshot::take(device, interface, request))),
        Err(error) => Response::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Control;
    use crate::device::{Addressing, Device, DeviceConfig, StaticAddresses};
    use crate::memory::arena::Arena;
    use crate::port::shm::{ShmConfig, shm_pair};

    /// Upper limit for operations that take almost no time.
    const SOON: Duration = Duration::from_millis(900);

    /// Returns a name that no interface and no other test has.
    fn name(of: &str) -> String {
        format!("{of}-{}", std::process::id())
    }

    /// Makes a device that serves statistics under `name`.
    fn serve(name: &str) -> Device {
        serve_with(name, DeviceConfig::default())
    }

    fn serve_with(name: &str, config: DeviceConfig) -> Device {
        let shm = ShmConfig::default();
        let (mac, mtu) = (shm.macs[0], shm.mtu);
        let (port, _) = shm_pair(&Arena::new(16 << 20).unwrap(), shm).unwrap();
        let addresses = StaticAddresses { mac, gids: vec![], peers: [].into(), mtu };
        let config = DeviceConfig { max_qp: 4, max_mr: 4, arena_bytes: 16 << 20, ..config };
        let device =
            Device::with_ports(vec![Box::new(port)], Addressing::Static(addresses), config);
        let device = device.unwrap();
        start(&device.inner, name).unwrap();
        device
    }

    /// Takes the name of `interface`, and treats the first client as `behave` does.
    fn serve_instead(
        interface: &str,
        behave: impl FnOnce(UnixStream) + Send + 'static,
    ) -> JoinHandle<()> {
        let listener = UnixListener::bind_addr(&address(interface).unwrap()).unwrap();
        std::thread::spawn(move || behave(listener.accept().unwrap().0))
    }

    #[test]
    fn a_device_opens_although_its_name_is_taken() {
        let name = name("taken");
        let _other_listener = UnixListener::bind_addr(&address(&name).unwrap()).unwrap();
        let device = serve(&name);
        assert_eq!(u32::try_from(holder(&name).pid), Ok(std::process::id()));
        let other = format!("{name}.{}", std::process::id());
        assert_eq!(query(&other, &Request::default()).unwrap().interface, other);
        let _third = serve(&name);
        drop(device);
    }

    #[test]
    fn parameters_are_set_all_or_none() {
        let name = name("parameters");
        let mut device = serve(&name);
        let set = |pairs: &[(&str, &str)]| {
            let set = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            query(&name, &Request { queue_pairs: true, set: set.collect() })
        };
        let error = set(&[("ai_rate", "1Mb/s")]).unwrap_err().to_string();
        assert!(error.contains("congestion control is off"), "{error}");
        drop(device);

        let config = DeviceConfig {
            congestion: crate::congestion::CongestionConfig {
                control: Control::DCQCN,
                ..Default::default()
            },
            ..DeviceConfig::default()
        };
        device = serve_with(&name, config);
        let cq = device.create_cq(16).unwrap();
        let pd = device.alloc_pd();
        let _qp = pd.create_qp(&crate::device::QpInit::new(&cq)).unwrap();
        let before = set(&[]).unwrap();
        assert_eq!(
            (&*before.congestion, &*before.congestion_params["ai_rate"]),
            ("dcqcn", "40Mb/s")
        );
        assert_eq!(before.queue_pairs.unwrap()[0].rate.as_ref().unwrap().rate, 100_000_000_000);
        let error = set(&[("ai_rate", "1Mb/s"), ("g", "2")]).unwrap_err().to_string();
        assert!(error.contains("g takes"), "{error}");
        assert_eq!(set(&[]).unwrap().congestion_params["ai_rate"], "40Mb/s");
        let after = set(&[("rp_ai_rate", "5"), ("congestion", "3Gb/s")]).unwrap();
        assert_eq!((&*after.congestion, &*after.congestion_params["ai_rate"]), ("3Gb/s", "5Mb/s"));
        assert_eq!(after.queue_pairs.unwrap()[0].rate.as_ref().unwrap().rate, 3_000_000_000);
    }

    #[test]
    fn a_slow_client_delays_others_for_a_limited_time() {
        let name = name("slow-client");
        let device = serve(&name);
        let send_slowly = |endless: bool| {
            let mut stream = connect_to(&name, SOON).unwrap();
            let clock = Clock::start();
            std::thread::spawn(move || {
                let end = clock.now() + 3 * CLIENT_TIME;
                while (endless || clock.now() < end) && stream.write_all(b" ").is_ok() {
                    std::thread::sleep(CLIENT_TIME / 20);
                }
                clock.now().saturating_since(Instant::ZERO)
            })
        };
        let lasted = send_slowly(false).join().unwrap();
        assert!(lasted < 2 * CLIENT_TIME, "{lasted:?}");
        assert_eq!(query(&name, &Request::default()).unwrap().interface, name);

        let slow_client = send_slowly(true);
        std::thread::sleep(CLIENT_TIME / 4); // The server is reading from it.
        let clock = Clock::start();
        drop(device);
        assert!(clock.now() < Instant::ZERO + SOON, "{:?}", clock.now());
        slow_client.join().unwrap();
    }

    #[test]
    fn a_response_is_limited_in_length_and_time() {
        let endless = name("endless");
        let server = serve_instead(&endless, |mut stream| {
            let junk = vec![b'"'; 1 << 20];
            while stream.write_all(&junk).is_ok() {}
        });
        let error = query(&endless, &Request::default()).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
        server.join().unwrap();

        let slow = name("slow");
        let server = serve_instead(&slow, |mut stream| {
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let clock = Clock::start();
        let result = query_within(&slow, &Request::default(), Duration::from_millis(300));
        assert!(matches!(result, Err(StatError::Io { .. })), "{result:?}");
        assert!(clock.now() < Instant::ZERO + SOON, "{:?}", clock.now());
        server.join().unwrap();
    }

    #[test]
    fn the_process_id_comes_from_the_kernel_not_from_the_server() {
        for (port, is_plausible) in [("af_xdp", true), ("\u{1b}[2J", false)] {
            let name = name("wrong-pid");
            let device = serve(&name);
            let mut snapshot = query(&name, &Request::default()).unwrap();
            drop(device);
            (snapshot.pid, snapshot.port) = (1, port.to_owned());
            let server = serve_instead(&name, move |mut stream| {
                let mut line = serde_json::to_vec(&Response::Snapshot(Box::new(snapshot))).unwrap();
                line.push(b'\n');
                stream.write_all(&line).unwrap();
            });
            match query(&name, &Request::default()) {
                Ok(snapshot) => assert!(is_plausible && snapshot.pid == std::process::id()),
                Err(error) => {
                    assert!(!is_plausible && error.to_string().contains("control"), "{error}")
                }
            }
            server.join().unwrap();
        }
    }
}
