//! The AF_XDP port: frames directly from and to an interface, bypassing the kernel's stack.
//!
//! An XDP program (`program`) redirects RoCEv2 frames to local addresses ([`AddressFilter`]) to an
//! AF_XDP socket on each receive queue of the interface. All other frames stay with the kernel.
//! Native mode needs support by the driver; generic mode works on any interface. The program is
//! attached by a BPF link, so the kernel detaches it when the process ends, however it ends.
//!
//! - **VLAN tags must stay in the frames.** A NIC that strips tags hides them from the program and
//!   from the port: `ethtool -K X rxvlan off` ([`AfXdp::strips_vlan`] reports it). A veth strips no
//!   tags, but its *other* end passes the tags that its own kernel adds outside the frame, in both
//!   modes, unless `ethtool -K PEER txvlan off`. Tags in frames sent by AF_XDP always stay in
//!   place.
//! - An MTU above 3818 bytes needs Linux 6.6 or later (`XDP_USE_SG`).
//! - A frame has at most 7680 bytes, enough for path MTU 4096. Longer frames are dropped and
//!   counted, whatever the MTU of the interface.
//! - The port receives flow-control frames (MAC control) if the configuration requests it. Most
//!   NICs keep these frames for themselves.
//! - One transmit queue per core carries all priorities in order.
//!
//! # Unsafe
//! `unsafe` is allowed in this directory: for packet buffers shared with the kernel (`umem`,
//! `queue`) and for system calls that `std` lacks (`bpf`, `interface`).
#![allow(unsafe_code)] // See above.

pub(super) mod bpf;
mod bridge;
mod config;
mod error;
mod filter;
pub(super) mod interface;
pub(super) mod program;
mod queue;
mod umem;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use bridge::Bridge;
pub use config::{AfXdpConfig, BusyPoll, CopyMode, XdpMode};
pub use error::AfXdpError;
pub use filter::{AddressFilter, AttachedProgram};
pub use interface::XdpFeatures;

use bpf::AttachMode;
use filter::Attachment;
use interface::Interface;
use queue::{Plan, Queue, Received};

use super::contract::{Port, PortAttributes, PortStats, Priority, RX_BURST, RxFrame};
use super::kind::{self, FilterAddress, OpenRequest, OpenedPorts, PortEntry, PortError};

/// The kind of port `af_xdp`.
pub(super) const ENTRY: PortEntry = PortEntry {
    name: "af_xdp",
    title: "AF_XDP",
    feature: None,
    on_kernel: true,
    in_auto: true,
    config: || Box::new(AfXdpConfig::new("")),
    settings: &[],
    open: Some(open),
    over_interface: None,
    buffers: None,
};

/// Opens the ports of a device. Warns about an interface that strips VLAN tags.
fn open(request: &OpenRequest<'_>) -> Result<OpenedPorts, PortError> {
    let interface = request.device;
    let mut config = request.configs.get::<AfXdpConfig>().clone();
    interface.clone_into(&mut config.interface);
    config.flow_control |= request.flow_control;
    let ports = AfXdp::open(&config, request.cores)?;
    if !ports[0].hugepages() && config.hugepages {
        // The device's memory then lacks them, too, and warns.
        tracing::debug!(interface, "packet buffers are in ordinary pages");
    }
    if ports[0].strips_vlan() {
        tracing::warn!(
            interface,
            "the interface strips VLAN tags, so tagged frames look untagged: \
             `ethtool -K {interface} rxvlan off`"
        );
    }
    let attachment = Arc::clone(&ports[0].attachment);
    Ok(OpenedPorts::on_kernel(interface, ports, attachment))
}

impl kind::AddressFilter for Arc<Attachment> {
    fn set(&self, addresses: &[FilterAddress]) -> Result<(), PortError> {
        Ok(self.addresses.set_destinations(addresses)?)
    }

    fn is_detachable(&self) -> bool {
        true
    }

    fn restore(&self) -> Result<Option<&'static str>, PortError> {
        Ok(Attachment::restore(self)?.then_some("the XDP program"))
    }
}

/// The AF_XDP port of one core.
#[derive(Debug)]
pub struct AfXdp {
    attributes: PortAttributes,
    /// The first queue transmits.
    queues: Vec<Queue>,
    burst: Vec<(usize, Received)>,
    /// Queue with which the next burst begins.
    turn: usize,
    stats: PortStats,
    strips_vlan: bool,
    attachment: Arc<Attachment>,
}

impl AfXdp {
    /// Opens the interface and returns one port per core. The receive queues of the interface are
    /// distributed round-robin over the ports. The ports receive nothing until addresses are set
    /// with [`AfXdp::address_filter`].
    ///
    /// # Errors
    /// See [`AfXdpError`]: a message names the obstacle, and the remedy where Feroce knows one.
    pub fn open(config: &AfXdpConfig, cores: usize) -> Result<Vec<Self>, AfXdpError> {
        config.check()?;
        let interface = Interface::query(&config.interface)?;
        if cores == 0 {
            return Err(AfXdpError::Config("a port needs at least one core"));
        }
        if interface.rx_queues.min(interface.tx_queues) < u32::try_from(cores).unwrap_or(u32::MAX) {
            let Interface { rx_queues: rx, tx_queues: tx, .. } = interface;
            return Err(AfXdpError::TooFewQueues { interface: interface.name, rx, tx, cores });
        }
        raise_memory_lock();
        let attachment = Arc::new(Attachment::create(&interface, config)?);
        let plan = Plan::new(config, interface.mtu);
        let (queues, zero_copy) = bind(plan, &interface, attachment.mode, cores)?;
        for (index, queue) in (0..).zip(&queues) {
            attachment.enter(index, queue.fd())?;
        }
        let copy = if zero_copy { "zero-copy" } else { "copy" };
        let kind = format!("af_xdp ({}, {copy})", attachment.mode.name());
        let mut queues_of: Vec<Vec<Queue>> = (0..cores).map(|_| Vec::new()).collect();
        for (index, queue) in queues.into_iter().enumerate() {
            queues_of[index % cores].push(queue);
        }
        let port = |queues: Vec<Queue>| Self {
            attributes: PortAttributes {
                kind: kind.clone(),
                name: interface.name.clone(),
                mac: interface.mac,
                mtu: interface.mtu,
                frame_max: plan.frame_max,
                link_rate: interface.rate,
                queues: u16::try_from(queues.len()).unwrap_or(u16::MAX),
                segments_max: 1,
                source_ports: Vec::new(),
            },
            queues,
            burst: Vec::with_capacity(RX_BURST),
            turn: 0,
            stats: PortStats::default(),
            strips_vlan: interface.strips_vlan,
            attachment: Arc::clone(&attachment),
        };
        Ok(queues_of.into_iter().map(port).collect())
    }

    /// The address filter, shared by all ports of the interface.
    pub fn address_filter(&self) -> AddressFilter {
        self.attachment.addresses.clone()
    }

    /// Returns true if all packet buffers are in huge pages.
    pub fn hugepages(&self) -> bool {
        self.queues.iter().all(Queue::hugepages)
    }

    /// Returns true if the interface strips VLAN tags from received frames, which then look
    /// untagged.
    pub fn strips_vlan(&self) -> bool {
        self.strips_vlan
    }
}

/// Bytes of packet buffers of all queues together, for an interface with `rx_queues` receive queues
/// and an MTU of `mtu` bytes, and for `cores` cores. The kernel counts them as locked memory.
pub fn buffer_bytes(config: &AfXdpConfig, rx_queues: u32, cores: usize, mtu: u32) -> u64 {
    let plan = Plan::new(config, mtu);
    (0..rx_queues as usize).map(|queue| plan.layout(queue < cores).bytes() as u64).sum()
}

/// Opens a socket on every receive queue; the first `cores` sockets transmit. Also returns true if
/// the sockets are zero-copy.
fn bind(
    plan: Plan,
    interface: &Interface,
    mode: AttachMode,
    cores: usize,
) -> Result<(Vec<Queue>, bool), AfXdpError> {
    let mut zero_copy = mode == AttachMode::Native && plan.config.copy != CopyMode::Copy;
    let mut queues: Vec<Queue> = Vec::new();
    for index in 0..interface.rx_queues {
        let transmits = queues.len() < cores;
        let opened = match Queue::open(plan, index, zero_copy, transmits) {
            Err(e) if index == 0 && plan.config.copy == CopyMode::Auto && e.lacks_zero_copy() => {
                zero_copy = false;
                Queue::open(plan, index, zero_copy, transmits)
            }
            other => other,
        };
        queues.push(opened.map_err(|e| e.explain(plan.config, index))?);
    }
    Ok((queues, zero_copy))
}

/// Raises the limit of locked memory as far as this process is allowed to. The packet buffers count
/// against the limit unless the process has CAP_IPC_LOCK.
fn raise_memory_lock() {
    let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structures outlive the calls.
    unsafe {
        if libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) != 0
            && libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) == 0
        {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit);
        }
    }
}

impl Port for AfXdp {
    fn attributes(&self) -> &PortAttributes {
        &self.attributes
    }

    fn stats(&self) -> PortStats {
        PortStats {
            rx_dropped: self.queues.iter().map(Queue::rx_dropped).sum(),
            tx_dropped: self.queues.iter().map(Queue::tx_dropped).sum(),
            ..self.stats
        }
    }

    fn rx_burst(&mut self) -> usize {
        self.queues[0].resume();
        self.burst.clear();
        for queue in &mut self.queues {
            queue.give_back();
        }
        let first = self.turn;
        self.turn = if first + 1 < self.queues.len() { first + 1 } else { 0 };
        for index in (first..self.queues.len()).chain(0..first) {
            let room = RX_BURST - self.burst.len();
            self.queues[index].receive(room, |frame| {
                self.burst.push((index, frame));
                self.stats.rx_bytes += frame.bytes as u64;
            });
        }
        self.stats.rx_frames += self.burst.len() as u64;
        self.burst.len()
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        let (queue, frame) = self.burst[index];
        let (first, second) = self.queues[queue].parts(frame);
        RxFrame { first, second }
    }

    /// The fill level of the fullest queue.
    fn rx_fill(&mut self) -> Option<u8> {
        self.queues.iter_mut().map(Queue::rx_fill).max()
    }

    fn tx_room(&mut self) -> usize {
        self.queues[0].room()
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        self.queues[0].slot()
    }

    /// Ignores the priority: an AF_XDP socket has one transmit queue.
    fn tx_commit(&mut self, len: usize, _priority: Priority) {
        self.queues[0].commit(len);
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queues[0].flush()
    }

    fn is_unfinished(&self) -> bool {
        self.queues[0].has_backlog() || self.queues.iter().any(Queue::holds_all_chunks)
    }

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        fds.extend(self.queues.iter().map(Queue::fd));
        !self.is_unfinished() && !self.queues.iter_mut().any(Queue::is_readable)
    }

    /// Does nothing: `poll` on the sockets is level-triggered.
    fn disarm_wakeup(&mut self) {}
}
