//! The packet port: raw packet sockets (`AF_PACKET`) on any interface. The only privilege it needs
//! is CAP_NET_RAW in its network namespace; `unshare -Urn` gives this capability to any user.
//!
//! A core sends a burst with one system call. It sees arrived short frames without any system call
//! (`ring`) and takes a burst of long frames with one. A filter in the kernel ([`AddressFilter`])
//! delivers only RoCEv2 frames to local addresses. On a veth the port sends
//! [super-frames](super::super_frame): a peer on the same host gets up to 64 packets as one frame,
//! which the kernel does not cut; this is segmentation offload as for TCP.
//!
//! - The kernel's own stack also gets each frame, unless a program on the ingress of the interface
//!   may drop it first (`ingress`; needs root and Linux 6.6). The port holds UDP port 4791
//!   (`holder`) so that the stack does not respond. Therefore the interface cannot be shared with a
//!   program that listens on this UDP port, nor with the kernel's own RoCE.
//! - The kernel strips the VLAN tag before it shows the frame; the port puts the tag back.
//! - With several cores the kernel spreads flows over their sockets by a hash (`PACKET_FANOUT`).
//!   The cores hand over frames that arrive at the wrong core.
//! - IP fragments are dropped, and so are super-frames with IPv4 options.
//! - Super-frames need Linux 6.2 or later at both ends, and the queueing discipline (no
//!   `qdisc_bypass`). If a receiver on the same host does not accept them, the kernel cuts them for
//!   AF_XDP in native mode and loses them for AF_XDP in generic mode and for packet sockets before
//!   Linux 6.2. Peers therefore announce whether they accept super-frames
//!   ([`Endpoint`](crate::device::Endpoint)).
//!
//! # Unsafe
//! `unsafe` is allowed in this directory: for system calls that `std` lacks and for the memory that
//! they read and write (`socket`, `ring`, `receive`, `transmit`, `holder`, `tap`).
#![allow(unsafe_code)] // See above.

mod config;
mod error;
mod filter;
mod holder;
mod ingress;
pub(crate) mod mark;
mod receive;
mod ring;
mod socket;
mod tap;
mod transmit;
mod vnet;

use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use config::{PacketConfig, SuperFrames};
pub use error::PacketError;
pub use filter::AddressFilter;
pub use tap::{Offload, Tap, TapFrame};

use feroce_wire::{EthernetHeader, VlanTag};
use holder::Holder;
use ingress::Ingress;
use receive::Receiver;
use socket::{Socket, Sockets};

use transmit::Transmitter;
use vnet::FRAME_MAX;

use super::af_xdp::interface::Interface;
use super::contract::{Port, PortAttributes, PortStats, Priority, RxFrame};
use super::kind::{self, FilterAddress, OpenRequest, OpenedPorts, PortEntry, PortError};
use super::super_frame::SEGMENTS_MAX;
use crate::sys;

/// The kind of port `packet`.
pub(super) const ENTRY: PortEntry = PortEntry {
    name: "packet",
    title: "packet sockets",
    feature: None,
    on_kernel: true,
    in_auto: true,
    config: || Box::new(PacketConfig::new("")),
    settings: &[],
    open: Some(open),
    over_interface: None,
    buffers: None,
};

/// Opens the ports of a device. Warns if the kernel grants less receive memory than two windows.
fn open(request: &OpenRequest<'_>) -> Result<OpenedPorts, PortError> {
    let mut config = request.configs.get::<PacketConfig>().clone();
    request.device.clone_into(&mut config.interface);
    config.flow_control |= request.flow_control;
    let ports = PacketPort::open(&config, request.cores)?;
    // The kernel also counts its own overhead, about as much again.
    let (granted, mtu) = (u64::from(ports[0].rx_bytes()), ports[0].attributes().mtu);
    let window = 2 * u64::from(request.window) * u64::from(mtu);
    if granted < window {
        tracing::warn!(
            interface = request.device,
            granted,
            window,
            "the receive buffer is smaller than a window, so bursts may be lost: \
             `sysctl net.core.rmem_max={}`",
            config.rx_bytes
        );
    }
    let filter = ports[0].address_filter();
    Ok(OpenedPorts::on_kernel(request.device, ports, filter))
}

impl kind::AddressFilter for AddressFilter {
    fn set(&self, addresses: &[FilterAddress]) -> Result<(), PortError> {
        Ok(self.set_destinations(addresses)?)
    }

    fn is_detachable(&self) -> bool {
        self.ingress().is_some()
    }

    fn restore(&self) -> Result<Option<&'static str>, PortError> {
        let is_restored = self.ingress().is_some_and(Ingress::restore);
        Ok(is_restored.then_some("the program on the ingress"))
    }
}

/// The packet port of one core.
#[derive(Debug)]
pub struct PacketPort {
    attributes: PortAttributes,
    sockets: Arc<Sockets>,
    receiver: Receiver,
    transmitter: Transmitter,
    stats: PortStats,
    /// Frames that the kernel dropped for lack of room. Reading the kernel's counter resets it.
    kernel_drops: Cell<u64>,
    rx_bytes: u32,
    filter: AddressFilter,
    _holder: Arc<Holder>,
}

impl PacketPort {
    /// Opens the interface and returns one port per core. The ports receive nothing until addresses
    /// are set with [`PacketPort::address_filter`].
    ///
    /// # Errors
    /// See [`PacketError`]: a message names the obstacle, and the remedy where Feroce knows one.
    pub fn open(config: &PacketConfig, cores: usize) -> Result<Vec<Self>, PacketError> {
        config.check()?;
        if cores == 0 {
            return Err(PacketError::Config("a port needs at least one core"));
        }
        let interface = Interface::query(&config.interface).map_err(PacketError::interface)?;
        let sockets = open_sockets(config, interface.index, cores)?;
        // The holder must exist before a filter lets a frame pass.
        let super_frames = config.carries_super_frames(interface.veth, sys::kernel_version());
        let holder = Arc::new(Holder::take(super_frames)?);
        let ingress = Ingress::attach(interface.index).inspect_err(|error| {
            tracing::debug!(%error, "the kernel's stack also gets the frames of the port");
        });
        let filter = AddressFilter::new(sockets.clone(), ingress.ok(), config.flow_control);
        let frame_max = EthernetHeader::LEN + VlanTag::LEN + interface.mtu as usize;
        let buffer = if super_frames { FRAME_MAX } else { frame_max };
        let kind = if super_frames { "packet (super-frames)" } else { "packet (frame by frame)" };
        let attributes = PortAttributes {
            kind: kind.to_owned(),
            name: interface.name.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            frame_max,
            link_rate: interface.rate,
            queues: u16::try_from(interface.rx_queues).unwrap_or(u16::MAX),
            segments_max: if super_frames { SEGMENTS_MAX } else { 1 },
            source_ports: Vec::new(),
        };
        let port = |sockets: Arc<Sockets>| {
            let slots = config.tx_slots as usize;
            let memory = PacketError::system("map packet buffers");
            let transmitter =
                Transmitter::new(Arc::clone(&sockets), slots, frame_max, attributes.segments_max);
            let receiver = Receiver::new(Arc::clone(&sockets), config.rx_slots as usize, buffer);
            let (transmitter, receiver) =
                transmitter.and_then(|t| receiver.map(|r| (t, r))).map_err(memory)?;
            let rx_bytes = sockets
                .queue
                .rx_bytes()
                .map_err(PacketError::system("read the receive buffer's size"))?;
            Ok(Self {
                attributes: attributes.clone(),
                sockets,
                receiver,
                transmitter,
                stats: PortStats::default(),
                kernel_drops: Cell::new(0),
                rx_bytes,
                filter: filter.clone(),
                _holder: Arc::clone(&holder),
            })
        };
        sockets.into_iter().map(port).collect()
    }

    /// The address filter, shared by all ports of the interface.
    pub fn address_filter(&self) -> AddressFilter {
        self.filter.clone()
    }

    /// Size of the socket receive buffer in bytes, including the kernel's overhead. The kernel may
    /// grant less than twice the requested size.
    pub fn rx_bytes(&self) -> u32 {
        self.rx_bytes
    }
}

/// Opens the sockets of each core. The sockets of several cores form a fanout group.
fn open_sockets(
    config: &PacketConfig,
    interface: u32,
    cores: usize,
) -> Result<Vec<Arc<Sockets>>, PacketError> {
    let open = |_| {
        Sockets::open(interface, config)
            .map(Arc::new)
            .map_err(|(action, source)| PacketError::system(action)(source))
    };
    let sockets = (0..cores).map(open).collect::<Result<Vec<_>, _>>()?;
    if let [first, others @ ..] = &sockets[..]
        && !others.is_empty()
    {
        let failed = |source| PacketError::system("spread flows over several cores")(source);
        // Both groups have the same members in the same order, so a frame and its placeholder reach
        // the same core.
        let [ring, queue] = [&first.ring, &first.queue].map(Socket::create_fanout_group);
        let (ring, queue) =
            ring.and_then(|ring| queue.map(|queue| (ring, queue))).map_err(failed)?;
        for Sockets { ring: others_ring, queue: others_queue } in others.iter().map(|s| &**s) {
            let joined = others_ring.join_fanout_group(ring);
            joined.and_then(|()| others_queue.join_fanout_group(queue)).map_err(failed)?;
        }
    }
    Ok(sockets)
}

impl Port for PacketPort {
    fn attributes(&self) -> &PortAttributes {
        &self.attributes
    }

    fn stats(&self) -> PortStats {
        let drops = self.sockets.ring.take_drops() + self.sockets.queue.take_drops();
        self.kernel_drops.set(self.kernel_drops.get() + drops);
        PortStats {
            rx_dropped: self.kernel_drops.get() + self.receiver.refused,
            tx_dropped: self.transmitter.dropped,
            ..self.stats
        }
    }

    fn rx_burst(&mut self) -> usize {
        self.transmitter.resume();
        let (count, bytes) = self.receiver.burst();
        self.stats.rx_frames += count as u64;
        self.stats.rx_bytes += bytes;
        count
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        self.receiver.frame(index)
    }

    /// The fill level of the ring or of the socket buffer, whichever is higher.
    fn rx_fill(&mut self) -> Option<u8> {
        Some(self.receiver.rx_fill().max(self.sockets.queue.rx_fill()))
    }

    fn tx_room(&mut self) -> usize {
        self.transmitter.room()
    }

    fn tx_moved(&mut self) -> bool {
        self.transmitter.moved()
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        self.transmitter.slot()
    }

    /// Ignores the priority: a packet socket has one queue.
    fn tx_commit(&mut self, len: usize, _priority: Priority) {
        self.transmitter.commit(len);
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
    }

    fn tx_commit_next(&mut self, len: usize, _priority: Priority) {
        self.transmitter.join(len);
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
    }

    fn flush(&mut self) -> io::Result<()> {
        self.transmitter.flush()
    }

    fn is_unfinished(&self) -> bool {
        self.transmitter.has_backlog() || self.receiver.is_unfinished()
    }

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        fds.push(self.sockets.ring.fd());
        // A pending error, left by a link that went down, would wake the sleeper repeatedly.
        self.sockets.ring.clear_error();
        // Sleeping would delay frames that still wait to be sent.
        !self.transmitter.has_backlog() && !self.receiver.recheck_queue()
    }

    /// Does nothing: `poll` on the socket is level-triggered.
    fn disarm_wakeup(&mut self) {}
}
