//! The UDP port: plain UDP sockets. It needs no privilege at all.
//!
//! The kernel writes and reads the headers through UDP; a QP sees the same frames as on other
//! ports. Sent packets are exact: every field that the ICRC covers is known in advance.
//!
//! | field | sent | received |
//! |---|---|---|
//! | Ethernet, VLAN | by the kernel, which knows the next hop | not shown; the source is [`PEER`] |
//! | IPv4 identification, DF | 0, and 0, 1, 2 ... in a super-frame; DF | [`recovered`] |
//! | TOS with ECN, TTL, addresses | as the frame has them | stated by the kernel |
//! | IPv6 flow label | chosen by the kernel; not under the ICRC | not shown |
//! | UDP source port | one of [`PortAttributes::source_ports`] | stated by the kernel |
//! | UDP checksum | 0; in a super-frame that of the segment | verified by the kernel |
//!
//! - The kernel routes packets: paths need no neighbour, and so no privilege to resolve one.
//! - The receive buffer is what an ordinary user may have (`net.core.rmem_max`). Several sockets
//!   per core (`udp_sockets`) multiply it; the destination QP chooses the socket. The send window
//!   of a QP is limited to what one socket holds, because its peer probably has the same buffer.
//! - A veth carries [super-frames](super::super_frame) as on the packet port. Merged packets of any
//!   sender (`UDP_GRO`) are taken apart.
//! - VLAN sub-interfaces are devices of their own: open the sub-interface itself.
//! - PFC and PAUSE frames do not reach a UDP socket.
//! - Network address translation changes addresses that the ICRC covers: every packet is dropped.
//!
//! [`recovered`]: feroce_wire::recovery
//!
//! # Unsafe
//! `unsafe` is allowed in this directory: for messages whose buffers the kernel reads and writes
//! (`receive`, `transmit`).
#![allow(unsafe_code)] // See above.

mod config;
mod error;
mod filter;
mod receive;
mod socket;
mod transmit;

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

pub use config::UdpConfig;
pub use error::UdpError;

use feroce_wire::{EthernetHeader, MacAddr, VlanTag};
use receive::Receiver;
use socket::{RxSocket, can_segment, open_receivers, open_sources};
use transmit::Transmitter;

use super::af_xdp::interface::Interface;
use super::contract::{Port, PortAttributes, PortStats, Priority, RxFrame};
use super::kind::{self, FilterAddress, OpenRequest, OpenedPorts, PortEntry, PortError};
use super::socket::{Memory, attach, rx_bytes};
use super::super_frame::SEGMENTS_MAX;
use crate::net::ROUTED_MAC;

/// Ethernet address that stands for every peer.
pub const PEER: MacAddr = ROUTED_MAC;

/// The smallest window of a device, in packets.
const WINDOW_MIN: u32 = 32;

/// Maximum number of addresses of one interface. A filter program has at most 4096 instructions,
/// and an IPv6 address needs nine.
const ADDRESSES: usize = 256;

/// The kind of port `udp`.
pub(super) const ENTRY: PortEntry = PortEntry {
    name: "udp",
    title: "UDP sockets",
    feature: None,
    on_kernel: true,
    in_auto: true,
    config: || Box::new(UdpConfig::new("")),
    settings: config::SETTINGS,
    open: Some(open),
    over_interface: None,
    buffers: None,
};

/// Opens the ports of a device.
fn open(request: &OpenRequest<'_>) -> Result<OpenedPorts, PortError> {
    if request.flow_control {
        return Err(UdpError::FlowControl.into());
    }
    let mut config = request.configs.get::<UdpConfig>().clone();
    request.device.clone_into(&mut config.interface);
    let ports = UdpPort::open(&config, request.cores)?;
    let window = ports[0].window();
    if window < request.window {
        tracing::info!(
            interface = request.device,
            window,
            "the send window is what the receive buffer of a socket holds; \
             `sysctl net.core.rmem_max={}` allows a larger one",
            u64::from(request.window) * cost(ports[0].attributes.mtu) / 2
        );
    }
    let filter = ports[0].filter.clone();
    Ok(OpenedPorts::routed(request.device, ports, filter, window))
}

/// Packets of `mtu` bytes that one QP may have outstanding on a UDP port whose user may have
/// `rmem_max` bytes of receive buffer (`net.core.rmem_max`; the kernel grants twice as much).
pub fn window_of(rmem_max: u64, mtu: u32) -> u64 {
    2 * rmem_max / cost(mtu)
}

/// Bytes of the receive buffer that a packet of `mtu` bytes takes. The kernel rounds buffers up,
/// and counts its own structures (8.4 KB for 4200 bytes, measured on Linux 6.18).
fn cost(mtu: u32) -> u64 {
    (u64::from(mtu) + 384).next_power_of_two() + 256
}

/// The addresses whose packets the sockets accept.
#[derive(Debug, Clone)]
struct AddressFilter(Arc<Vec<RxSocket>>);

impl kind::AddressFilter for AddressFilter {
    fn set(&self, addresses: &[FilterAddress]) -> Result<(), PortError> {
        let wanted: BTreeSet<_> = addresses.iter().map(|address| address.ip).collect();
        if wanted.len() > ADDRESSES {
            return Err(UdpError::TooManyAddresses(ADDRESSES).into());
        }
        for RxSocket { socket, is_v6, has_groups } in &*self.0 {
            attach(socket, &filter::accept(&wanted, *is_v6, *has_groups))
                .map_err(UdpError::system("filter packets by address"))?;
        }
        Ok(())
    }
}

/// The UDP port of one core.
#[derive(Debug)]
pub struct UdpPort {
    attributes: PortAttributes,
    receiver: Receiver,
    transmitter: Transmitter,
    stats: PortStats,
    rx_bytes: u32,
    filter: AddressFilter,
}

impl UdpPort {
    /// Opens the interface and returns one port per core. The ports receive nothing until addresses
    /// are set with [`UdpPort::set_addresses`].
    ///
    /// # Errors
    /// See [`UdpError`]: a message names the obstacle, and the remedy where Feroce knows one.
    pub fn open(config: &UdpConfig, cores: usize) -> Result<Vec<Self>, UdpError> {
        config.check()?;
        if cores == 0 {
            return Err(UdpError::Config("a port needs at least one core"));
        }
        let interface = Interface::query(&config.interface).map_err(UdpError::interface)?;
        let receivers = open_receivers(&interface, config, cores)?;
        let super_frames = config.sends_super_frames(interface.veth) && can_segment();
        let sources = Arc::new(open_sources(&interface, &config.source_ports, super_frames)?);
        let filter = AddressFilter(Arc::new(receivers.iter().flatten().cloned().collect()));
        let kind = if super_frames { "udp (super-frames)" } else { "udp (packet by packet)" };
        let attributes = PortAttributes {
            kind: kind.to_owned(),
            name: interface.name.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            frame_max: EthernetHeader::LEN + VlanTag::LEN + interface.mtu as usize,
            link_rate: interface.rate,
            queues: u16::try_from(interface.rx_queues).unwrap_or(u16::MAX),
            segments_max: if super_frames { SEGMENTS_MAX } else { 1 },
            source_ports: sources.iter().map(|source| source.port).collect(),
        };
        let port = |sockets: Vec<RxSocket>| {
            let rx_bytes = rx_bytes(&sockets[0].socket)
                .map_err(UdpError::system("read the receive buffer's size"))?;
            let (slots, frame_max) = (config.tx_slots as usize, attributes.frame_max);
            let (on, most) = (interface.clone(), attributes.segments_max);
            let memory = UdpError::system("map packet buffers");
            let transmitter = Transmitter::new(Arc::clone(&sources), on, slots, frame_max, most);
            let receiver = Receiver::new(sockets, interface.mac);
            let (transmitter, receiver) =
                transmitter.and_then(|t| receiver.map(|r| (t, r))).map_err(memory)?;
            let (attributes, filter) = (attributes.clone(), filter.clone());
            let stats = PortStats::default();
            Ok(Self { attributes, receiver, transmitter, stats, rx_bytes, filter })
        };
        receivers.into_iter().map(port).collect()
    }

    /// Replaces the addresses whose packets all ports of the interface receive (IPv4 addresses are
    /// IPv4-mapped).
    ///
    /// # Errors
    /// [`UdpError::TooManyAddresses`] for more than 256 addresses, or the kernel's error.
    pub fn set_addresses(&self, addresses: &[Ipv6Addr]) -> Result<(), PortError> {
        let addresses: Vec<_> = addresses.iter().map(|&ip| ip.into()).collect();
        kind::AddressFilter::set(&self.filter, &addresses)
    }

    /// Packets of the interface's MTU that the receive buffer of one socket holds, but at least the
    /// smallest window that a device can have.
    fn window(&self) -> u32 {
        let packets = u64::from(self.rx_bytes) / cost(self.attributes.mtu);
        u32::try_from(packets).unwrap_or(u32::MAX).max(WINDOW_MIN)
    }
}

impl Port for UdpPort {
    fn attributes(&self) -> &PortAttributes {
        &self.attributes
    }

    /// `rx_dropped` includes packets to other addresses, and copies of multicast datagrams: the
    /// kernel delivers one to every socket, and all but one drop it.
    fn stats(&self) -> PortStats {
        let sockets = self.receiver.sockets().iter();
        let drops: u64 = sockets.map(|rx| u64::from(Memory::of(&rx.socket).drops())).sum();
        PortStats {
            rx_dropped: drops + self.receiver.refused,
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

    /// The fill level of the fullest socket.
    fn rx_fill(&mut self) -> Option<u8> {
        self.receiver.sockets().iter().map(|rx| Memory::of(&rx.socket).fill()).max()
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

    fn tx_identification(&self, len: usize, joins: bool) -> Option<u16> {
        Some(self.transmitter.identification(len, joins))
    }

    /// Ignores the priority: a UDP socket has one queue.
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
        self.transmitter.has_backlog() || self.receiver.has_frames()
    }

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        fds.extend(self.receiver.sockets().iter().map(|rx| rx.socket.as_raw_fd()));
        self.receiver.prepare_to_sleep();
        !self.is_unfinished()
    }

    /// Does nothing: `poll` on a socket is level-triggered.
    fn disarm_wakeup(&mut self) {}
}
