//! The packet sockets of one core, and the system calls on them.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::config::PacketConfig;
use crate::port::classic_bpf::{Instruction, NOTHING};
use crate::port::pages::Pages;
use crate::port::socket::{
    Address, Memory, Plain, attach, bind, get, open, receive, rx_bytes, send, set, size_buffers,
};

/// Fanout mode of a group of sockets: frames are spread by a hash of addresses and ports.
const FANOUT: libc::c_int =
    (libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING).cast_signed() << 16;
/// Requests a new group; the kernel chooses its number.
const FANOUT_NEW: libc::c_int = libc::PACKET_FANOUT_FLAG_UNIQUEID.cast_signed() << 16;

/// Frames of all EtherTypes (`ETH_P_ALL`).
const ALL: u16 = 3;

/// Bytes of a slot of the receive ring.
pub(super) const SLOT: usize = 1024;

/// The two sockets of one core, with `PACKET_VNET_HDR`.
#[derive(Debug)]
pub(super) struct Sockets {
    /// The ring of short frames and placeholders; see [`super::ring`].
    pub ring: Socket,
    /// The queue of long frames. All frames are sent through this socket.
    pub queue: Socket,
}

/// The failed action, as in "cannot ACTION", and the kernel's error.
pub(super) type SocketError = (&'static str, io::Error);

impl Sockets {
    /// Opens sockets on the interface with index `interface`. They receive nothing until their
    /// filters are replaced.
    pub fn open(interface: u32, config: &PacketConfig) -> Result<Self, SocketError> {
        let ring = Socket::open()?;
        ring.make_ring(config.rx_slots).map_err(|error| ("make a receive ring", error))?;
        let queue = Socket::open()?;
        queue.make_queue(config)?;
        // The kernel delivers a frame first to the socket that was bound last, the queue. When the
        // ring has a placeholder, the queue therefore has the frame.
        for socket in [&ring, &queue] {
            socket.bind(interface, ALL).map_err(|error| ("bind a packet socket", error))?;
        }
        Ok(Self { ring, queue })
    }
}

/// A raw packet socket.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

/// `struct tpacket_req`.
#[derive(Debug)]
#[repr(C)]
struct RingRequest {
    block_size: u32,
    blocks: u32,
    slot_size: u32,
    slots: u32,
}

/// Bytes of each contiguous block of memory that the kernel allocates for a ring.
const BLOCK: u32 = 16 << 10;

impl Socket {
    /// Opens a socket that receives nothing until its filter is replaced.
    pub fn open() -> Result<Self, SocketError> {
        // With protocol 0 nothing arrives before the socket is bound, and then it already has a
        // filter.
        let socket = open(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK)
            .map_err(|error| ("open a packet socket", error))?;
        let socket = Self(socket);
        socket.filter(&NOTHING).map_err(|error| ("filter frames", error))?;
        socket
            .set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)
            .map_err(|error| ("ignore frames that this host sends", error))?;
        Ok(socket)
    }

    /// Opens a socket that receives the frames of the interface with index `interface` that
    /// `filter` accepts, to any destination address.
    pub fn open_tap(
        interface: u32,
        rx_bytes: u32,
        filter: &[Instruction],
    ) -> Result<Self, SocketError> {
        let socket = Self::open()?;
        let options = [
            (libc::PACKET_VNET_HDR, "receive offload headers of senders"),
            (libc::PACKET_AUXDATA, "see VLAN tags"),
            (libc::PACKET_QDISC_BYPASS, "bypass the queueing discipline"),
        ];
        for (option, action) in options {
            socket.set(libc::SOL_PACKET, option, &1).map_err(|error| (action, error))?;
        }
        socket.size_buffers(rx_bytes)?;
        let index = libc::c_int::try_from(interface).expect("indices are small");
        let kind = u16::try_from(libc::PACKET_MR_PROMISC).expect("a small number");
        let all =
            libc::packet_mreq { mr_ifindex: index, mr_type: kind, mr_alen: 0, mr_address: [0; 8] };
        socket
            .set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)
            .map_err(|error| ("receive frames to other hosts", error))?;
        socket.bind(interface, ALL).map_err(|error| ("bind a packet socket", error))?;
        socket.filter(filter).map_err(|error| ("filter frames", error))?;
        Ok(socket)
    }

    /// Turns on timestamps of received frames.
    pub fn enable_timestamps(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)
    }

    fn make_ring(&self, slots: u32) -> io::Result<()> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        self.set(libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        self.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        let slot_size = u32::try_from(SLOT).expect("small");
        let blocks = slots / (BLOCK / slot_size);
        let request = RingRequest { block_size: BLOCK, blocks, slot_size, slots };
        self.set(libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
    }

    fn make_queue(&self, config: &PacketConfig) -> Result<(), SocketError> {
        let bypass = libc::c_int::from(config.qdisc_bypass);
        let options = [
            (libc::PACKET_VNET_HDR, 1, "take headers of super-frames"),
            (libc::PACKET_AUXDATA, 1, "see VLAN tags"),
            (libc::PACKET_QDISC_BYPASS, bypass, "bypass the queueing discipline"),
        ];
        for (option, value, action) in options {
            self.set(libc::SOL_PACKET, option, &value).map_err(|error| (action, error))?;
        }
        self.size_buffers(config.rx_bytes)
    }

    fn size_buffers(&self, rx_bytes: u32) -> Result<(), SocketError> {
        size_buffers(&self.0, rx_bytes).map_err(|error| ("size the receive buffer", error))
    }

    /// Maps the memory of the ring.
    pub fn map(&self, len: usize) -> io::Result<Pages> {
        Pages::map_from(self.fd(), libc::MAP_SHARED | libc::MAP_POPULATE, len)
    }

    /// Delivers the frames of `ether_type` on an interface to the socket, and no others any more.
    pub fn bind(&self, interface: u32, ether_type: u16) -> io::Result<()> {
        // SAFETY: `sockaddr_ll` is plain data for which all zeros is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).expect("a small number");
        address.sll_protocol = ether_type.to_be();
        address.sll_ifindex = libc::c_int::try_from(interface).expect("indices are small");
        bind(&self.0, &address)
    }

    /// Makes this socket the first one of a new fanout group. Returns the number of the group.
    pub fn create_fanout_group(&self) -> io::Result<libc::c_int> {
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &(FANOUT | FANOUT_NEW))?;
        let mut group = 0;
        self.get(libc::SOL_PACKET, libc::PACKET_FANOUT, &mut group)?;
        Ok(group & 0xffff)
    }

    /// Joins a fanout group.
    pub fn join_fanout_group(&self, group: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &(FANOUT | group))
    }

    /// Sets the filter; replaces the previous filter at once.
    pub fn filter(&self, program: &[Instruction]) -> io::Result<()> {
        attach(&self.0, program)
    }

    /// Bytes of the receive buffer that the kernel granted.
    pub fn rx_bytes(&self) -> io::Result<u32> {
        rx_bytes(&self.0)
    }

    /// Fill level of the receive buffer in per cent.
    pub fn rx_fill(&self) -> u8 {
        Memory::of(&self.0).fill()
    }

    /// Frames dropped for lack of room since the last call.
    pub fn take_drops(&self) -> u64 {
        let mut counts = [0_u32; 2];
        match self.get(libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut counts) {
            Ok(()) => u64::from(counts[1]),
            Err(_) => 0,
        }
    }

    /// Clears the pending error of the socket, if there is one.
    pub fn clear_error(&self) {
        let mut error: libc::c_int = 0;
        let _reported_when_sending = self.get(libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }

    /// Receives messages into their buffers. Returns their number.
    ///
    /// # Safety
    /// The messages point to writable buffers of the stated lengths that nothing else accesses
    /// during the call.
    pub unsafe fn receive(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
        // SAFETY: the caller guarantees the buffers.
        unsafe { receive(&self.0, messages) }
    }

    /// Sends messages from their buffers. Returns how many were sent, at least one.
    ///
    /// # Safety
    /// The messages point to readable buffers of the stated lengths.
    pub unsafe fn send(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
        // SAFETY: the caller guarantees the buffers.
        unsafe { send(&self.0, messages) }
    }

    /// The number by which `/proc` names the socket.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.0)?.st_ino)
    }

    /// The descriptor, for `poll`.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn set<T: Plain>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        set(&self.0, level, option, value)
    }

    fn get<T: Plain>(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: &mut T,
    ) -> io::Result<()> {
        get(&self.0, level, option, value)
    }
}

// SAFETY: integers without padding.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: four integers without padding.
unsafe impl Plain for RingRequest {}
// SAFETY: an address of the family AF_PACKET.
unsafe impl Address for libc::sockaddr_ll {}
