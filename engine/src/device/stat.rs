//! What `feroce stat` shows: the figures of an open device, for whoever asks.
//!
//! A device that is opened on an interface serves them on an abstract Unix socket in the interface's
//! network namespace; the socket is gone with the process. The asker sends a [`Request`] and gets one
//! [`Snapshot`], each a line of JSON. Only root and the process's own user are answered. The thread sleeps
//! until somebody asks, and takes each core's token for moments only.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, PoisonError, Weak};
use std::thread::JoinHandle;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::owner::{SOCKETS, owner_of};
use super::{DeviceInner, Driver, OpenError, Opened};
use crate::counters::Counter;
use crate::port::PortStats;
use crate::qp::QpSnapshot;
use crate::sys;
use crate::time::Duration;
use crate::wake::EventFd;

/// What the sockets' names begin with.
const PREFIX: &str = "feroce/stat/";
/// How long an asker may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// QPs looked at while a core's token is held.
const QPS_AT_ONCE: usize = 64;
/// Longest request in bytes.
const REQUEST_MAX: u64 = 256;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Request {
    /// With every QP.
    pub queue_pairs: bool,
}

/// The answer to a [`Request`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Snapshot(Box<Snapshot>),
    /// Why there is none.
    Refused(String),
}

/// A device at one moment. Bytes and frames count from its opening.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of Feroce that the process runs.
    pub feroce: String,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub program: String,
    /// The interface.
    pub interface: String,
    /// When the figures were taken, in nanoseconds since the device was opened.
    pub nanos: u64,
    /// Kind of port and its mode.
    pub port: String,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Largest path MTU in bytes; `None` if the port carries none.
    pub active_mtu: Option<u32>,
    /// Link rate in bit/s, where the link has one.
    pub link_rate: Option<u64>,
    /// The port of each core.
    pub cores: Vec<CoreFigures>,
    /// Counters of all cores, by the names that RNIC users know.
    pub counters: BTreeMap<String, u64>,
    /// QPs that exist.
    pub qps: u32,
    /// The arena: what it may grow to, in bytes.
    pub arena_limit: usize,
    /// Backed by memory now, in bytes.
    pub arena_mapped: usize,
    /// The part of it that is hugepages, in bytes.
    pub arena_huge: usize,
    /// Held by queues and buffers, in bytes.
    pub arena_used: usize,
    /// Asynchronous events given up because nobody read them.
    pub events_lost: u64,
    /// The QPs, if they were asked for.
    pub queue_pairs: Option<Vec<QueuePairFigures>>,
}

/// A core's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CoreFigures {
    /// Receive queues that it serves.
    pub queues: u16,
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received, Ethernet header included.
    pub rx_bytes: u64,
    /// Frames that arrived and could not be taken.
    pub rx_dropped: u64,
    /// Frames handed to the link.
    pub tx_frames: u64,
    /// Bytes handed to the link, Ethernet header included.
    pub tx_bytes: u64,
    /// Frames that the link refused.
    pub tx_dropped: u64,
}

/// A QP: the figures of [`QpSnapshot`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `QpSnapshot`.
pub struct QueuePairFigures {
    pub qpn: u32,
    pub core: usize,
    pub state: String,
    pub peer_qpn: Option<u32>,
    pub peer: Option<String>,
    pub path_mtu: usize,
    pub unacknowledged_psn: u32,
    pub next_psn: u32,
    pub expected_psn: u32,
    pub packets_outstanding: u32,
    pub sends_posted: u32,
    pub receives_posted: u32,
    pub reads_in_flight: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub waits_for_receive: bool,
    pub ssn: u32,
    pub msn: u32,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum StatError {
    /// Nobody serves any.
    #[error(
        "no program serves figures of {interface} in this network namespace: one that opens it with Feroce does, \
         such as `feroce perf -i {interface}` (`ip netns exec NAME feroce stat` looks into another namespace)"
    )]
    NoEndpoint {
        /// The interface.
        interface: String,
    },
    /// Nobody serves any, of no interface.
    #[error(
        "no program serves figures in this network namespace: one that opens an interface with Feroce does, such as \
         `feroce perf -i IFACE` (`ip netns exec NAME feroce stat` looks into another namespace)"
    )]
    Nobody,
    /// Somebody has the interface open and serves none.
    #[error("process {pid} ({program}) has {interface} open, and was told not to serve figures")]
    Silent {
        /// The interface.
        interface: String,
        /// The owner.
        pid: i32,
        /// Its name.
        program: String,
    },
    /// It does not answer us.
    #[error("the program that has {interface} open says: {reason}")]
    Refused {
        /// The interface.
        interface: String,
        /// Its words.
        reason: String,
    },
    /// The conversation failed.
    #[error("no answer from the program that has {interface} open: {source}")]
    Io {
        /// The interface.
        interface: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// The interfaces in the calling thread's network namespace whose figures somebody serves, by name.
pub fn endpoints() -> Vec<String> {
    let sockets = std::fs::read_to_string(SOCKETS).unwrap_or_default();
    let prefix = format!("@{PREFIX}");
    let names = sockets.lines().filter_map(|line| line.split_whitespace().last());
    let mut names: Vec<_> =
        names.filter_map(|name| Some(name.strip_prefix(&prefix)?.to_owned())).collect();
    names.sort_unstable();
    names.dedup(); // A connection under way has the name of its listener.
    names
}

/// Asks the program that has `interface` open, in the calling thread's network namespace.
///
/// # Errors
/// See [`StatError`].
pub fn ask(interface: &str, request: Request) -> Result<Snapshot, StatError> {
    let failed = |source| StatError::Io { interface: interface.to_owned(), source };
    let address = address(interface).map_err(failed)?;
    let mut stream = UnixStream::connect_addr(&address).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => nobody(interface),
        _ => failed(error),
    })?;
    stream.set_read_timeout(Some(PATIENCE * 5)).map_err(failed)?;
    let mut line = serde_json::to_vec(&request).expect("plain data");
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    match serde_json::from_str(&answer).map_err(|error| failed(error.into()))? {
        Answer::Snapshot(snapshot) => Ok(*snapshot),
        Answer::Refused(reason) => {
            Err(StatError::Refused { interface: interface.to_owned(), reason })
        }
    }
}

fn nobody(interface: &str) -> StatError {
    let interface = interface.to_owned();
    match owner_of(&interface) {
        Some(owner) => StatError::Silent { interface, pid: owner.pid, program: owner.program },
        None => StatError::NoEndpoint { interface },
    }
}

fn address(interface: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{interface}"))
}

/// The thread that answers; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Server {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Starts to serve the figures of `device`, if its configuration says so.
pub(super) fn start(device: &Opened, interface: &str) -> Result<(), OpenError> {
    if !device.config.serve_stat || device.config.driver == Driver::Manual {
        return Ok(());
    }
    let failed = |source| OpenError::System { action: "serve figures for `feroce stat`", source };
    let bind = |name: &str| UnixListener::bind_addr(&address(name)?);
    let mut interface = interface.to_owned();
    let listener = match bind(&interface) {
        // Nobody owns the name: processes have a DPDK device each that they call the same.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            interface = format!("{interface}.{}", std::process::id());
            bind(&interface)
        }
        other => other,
    };
    let listener = listener.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let stop = Arc::new(EventFd::new().map_err(failed)?);
    let served =
        Served { device: Arc::downgrade(&device.0), interface, listener, stop: Arc::clone(&stop) };
    let thread = std::thread::Builder::new().name("feroce-stat".to_owned());
    let thread = thread.spawn(move || served.run()).map_err(failed)?;
    let server = Server { stop, thread: Some(thread) };
    *device.stat.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    Ok(())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // If it panicked, it has said so already.
        }
    }
}

struct Served {
    device: Weak<DeviceInner>,
    interface: String,
    listener: UnixListener,
    stop: Arc<EventFd>,
}

impl Served {
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
                    // No descriptor is left: the asker stays in line, and asking again at once would be spinning.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        sys::poll_readable(&fds[1..], &mut scratch, Some(PATIENCE));
                    }
                    continue;
                }
            };
            let Some(device) = self.device.upgrade() else { return };
            // An asker who is gone or slow is nobody's loss.
            let _ = self.answer(&device, &stream);
        }
    }

    fn answer(&self, device: &DeviceInner, mut stream: &UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // Also of whoever gets none: an answer ahead of the request would be lost with it.
        let mut line = String::new();
        BufReader::new(stream.take(REQUEST_MAX)).read_line(&mut line)?;
        let asker = getsockopt(stream, PeerCredentials)?.uid();
        let own = geteuid().as_raw();
        let answer = match serde_json::from_str(&line) {
            _ if asker != 0 && asker != own => {
                Answer::Refused(format!("only root and user {own} may look, not user {asker}"))
            }
            Ok(request) => Answer::Snapshot(Box::new(snapshot(device, &self.interface, request))),
            Err(error) => Answer::Refused(format!("this is no request: {error}")),
        };
        let answer = serde_json::to_vec(&answer).map_err(io::Error::from)?;
        stream.write_all(&answer)
    }
}

fn snapshot(device: &DeviceInner, interface: &str, request: Request) -> Snapshot {
    let attributes = device.attributes.read().unwrap_or_else(PoisonError::into_inner).clone();
    let counter = |counter: &Counter| {
        device.counters.iter().fold(0u64, |sum, set| sum.wrapping_add(set.get(*counter)))
    };
    let arena = device.arena.stats();
    let free = device.free_qpns.lock().unwrap_or_else(PoisonError::into_inner).len();
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    Snapshot {
        feroce: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        program: program.trim().to_owned(),
        interface: interface.to_owned(),
        nanos: device.now().as_nanos(),
        port: attributes.port,
        mtu: attributes.mtu,
        active_mtu: attributes.active_mtu.map(feroce_wire::PathMtu::bytes),
        link_rate: attributes.link_rate,
        cores: (0..device.cores.len()).map(|core| core_figures(device, core)).collect(),
        counters: Counter::ALL.iter().map(|c| (c.name().to_owned(), counter(c))).collect(),
        qps: device.config.max_qp - u32::try_from(free).unwrap_or(0),
        arena_limit: arena.limit,
        arena_mapped: arena.mapped,
        arena_huge: arena.huge,
        arena_used: arena.used,
        events_lost: device.events.lost(),
        queue_pairs: request.queue_pairs.then(|| queue_pairs(device)),
    }
}

fn core_figures(device: &DeviceInner, core: usize) -> CoreFigures {
    let token = device.cores[core].lock();
    let (stats, queues) = (token.port().stats(), token.port().attributes().queues);
    drop(token);
    let PortStats { rx_frames, rx_bytes, rx_dropped, tx_frames, tx_bytes, tx_dropped, .. } = stats;
    CoreFigures { queues, rx_frames, rx_bytes, rx_dropped, tx_frames, tx_bytes, tx_dropped }
}

/// Every QP, a few at a time, so that no core waits for long.
fn queue_pairs(device: &DeviceInner) -> Vec<QueuePairFigures> {
    let mut figures = Vec::new();
    let mut batch = Vec::with_capacity(QPS_AT_ONCE);
    for (core, cell) in device.cores.iter().enumerate() {
        let mut next = Some(0);
        while let Some(from) = next {
            batch.clear();
            next = cell.lock().snapshots(from, &mut batch);
            figures.extend(batch.iter().map(|qp| queue_pair(core, qp)));
        }
    }
    figures.sort_unstable_by_key(|qp| qp.qpn);
    figures
}

fn queue_pair(core: usize, qp: &QpSnapshot) -> QueuePairFigures {
    QueuePairFigures {
        qpn: qp.qpn.value(),
        core,
        state: format!("{:?}", qp.state).to_uppercase(),
        peer_qpn: qp.peer.map(|(qpn, _)| qpn.value()),
        peer: qp.peer.map(|(_, ip)| ip.to_string()),
        path_mtu: qp.path_mtu,
        unacknowledged_psn: qp.unacknowledged.value(),
        next_psn: qp.next.value(),
        expected_psn: qp.expected.value(),
        packets_outstanding: qp.packets_outstanding,
        sends_posted: qp.sends_posted,
        receives_posted: qp.receives_posted,
        reads_in_flight: qp.reads_in_flight,
        retries: qp.retries,
        rnr_retries: qp.rnr_retries,
        waits_for_receive: qp.waits_for_receive,
        ssn: qp.ssn,
        msn: qp.msn,
    }
}
