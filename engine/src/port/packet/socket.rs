//! The packet sockets of one core, and the system calls on them.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use super::classic_bpf::{Instruction, NOTHING};
use super::config::PacketConfig;

/// Fanout mode of a group of sockets: frames are spread by a hash of addresses and ports.
const FANOUT: libc::c_int =
    (libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING).cast_signed() << 16;
/// Requests a new group; the kernel chooses its number.
const FANOUT_NEW: libc::c_int = libc::PACKET_FANOUT_FLAG_UNIQUEID.cast_signed() << 16;

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
    /// Opens sockets on the interface with index `interface`. They receive nothing until they have
    /// other filters.
    pub fn open(interface: u32, config: &PacketConfig) -> Result<Self, SocketError> {
        let ring = Socket::open()?;
        ring.make_ring(config.rx_slots).map_err(|error| ("make a receive ring", error))?;
        let queue = Socket::open()?;
        queue.make_queue(config)?;
        // The kernel delivers a frame first to the socket that was bound last, the queue. When the
        // ring has a placeholder, the queue therefore has the frame.
        for socket in [&ring, &queue] {
            socket.bind(interface).map_err(|error| ("bind a packet socket", error))?;
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

/// Number of values in SO_MEMINFO (SK_MEMINFO_VARS).
const MEMORY_FIGURES: usize = 9;

/// Bytes of each contiguous block of memory that the kernel allocates for a ring.
const BLOCK: u32 = 16 << 10;

impl Socket {
    /// Opens a socket that receives nothing until it has another filter.
    fn open() -> Result<Self, SocketError> {
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
        socket.set_buffer_sizes(rx_bytes)?;
        let index = libc::c_int::try_from(interface).expect("indices are small");
        let kind = u16::try_from(libc::PACKET_MR_PROMISC).expect("a small number");
        let all =
            libc::packet_mreq { mr_ifindex: index, mr_type: kind, mr_alen: 0, mr_address: [0; 8] };
        socket
            .set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)
            .map_err(|error| ("receive frames to other hosts", error))?;
        socket.bind(interface).map_err(|error| ("bind a packet socket", error))?;
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
        self.set_buffer_sizes(config.rx_bytes)
    }

    /// Sets the sizes of the socket buffers.
    fn set_buffer_sizes(&self, rx_bytes: u32) -> Result<(), SocketError> {
        let bytes = libc::c_int::try_from(rx_bytes).unwrap_or(libc::c_int::MAX);
        // SO_RCVBUFFORCE has no limit but needs CAP_NET_ADMIN.
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
            .map_err(|error| ("size the receive buffer", error))?;
        // Enough for a burst. With less, the end of a burst waits until its beginning was sent.
        let _unprivileged = self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(8_i32 << 20));
        Ok(())
    }

    /// Maps the memory of the ring.
    pub fn map(&self, len: usize) -> io::Result<Pages> {
        Pages::map_from(self.fd(), libc::MAP_SHARED | libc::MAP_POPULATE, len)
    }

    fn bind(&self, interface: u32) -> io::Result<()> {
        // SAFETY: `sockaddr_ll` is plain data for which all zeros is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).expect("a small number");
        address.sll_protocol =
            u16::try_from(libc::ETH_P_ALL).expect("an EtherType has 16 bits").to_be();
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
        let mut bytes: libc::c_int = 0;
        self.get(libc::SOL_SOCKET, libc::SO_RCVBUF, &mut bytes)?;
        Ok(bytes.cast_unsigned())
    }

    /// Fill level of the receive buffer in per cent.
    pub fn rx_fill(&self) -> u8 {
        let mut figures = [0_u32; MEMORY_FIGURES];
        let read = self.get(libc::SOL_SOCKET, libc::SO_MEMINFO, &mut figures);
        // SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_RCVBUF.
        let [taken, all, ..] = figures.map(u64::from);
        let fill = (taken * 100).checked_div(all).filter(|_| read.is_ok());
        u8::try_from(fill.unwrap_or(0).min(100)).expect("at most 100")
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
        let count = libc::c_uint::try_from(messages.len()).expect("a burst is short");
        // SAFETY: the caller guarantees the buffers; there are `count` messages.
        let got = unsafe {
            let flags = libc::MSG_DONTWAIT as _;
            libc::recvmmsg(self.fd(), messages.as_mut_ptr(), count, flags, ptr::null_mut())
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Sends messages from their buffers. Returns how many were sent, at least one.
    ///
    /// # Safety
    /// The messages point to readable buffers of the stated lengths.
    pub unsafe fn send(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
        let count = libc::c_uint::try_from(messages.len()).expect("a burst is short");
        // SAFETY: the caller guarantees the buffers; there are `count` messages.
        let sent = unsafe {
            libc::sendmmsg(self.fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
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
        let mut size = size::<T>();
        let (fd, value) = (self.fd(), ptr::from_mut(value).cast());
        // SAFETY: `value` has room for `size` bytes, and any bytes are a valid `T`.
        check(unsafe { libc::getsockopt(fd, level, option, value, &raw mut size) })
    }
}

/// A value of a socket option.
///
/// # Safety
/// The type is plain data: all bit patterns are valid and there is no padding.
pub(super) unsafe trait Plain {}
// SAFETY: an integer.
unsafe impl Plain for libc::c_int {}
// SAFETY: integers.
unsafe impl Plain for [u32; 2] {}
// SAFETY: integers.
unsafe impl Plain for [u32; MEMORY_FIGURES] {}
// SAFETY: integers without padding.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: four integers without padding.
unsafe impl Plain for RingRequest {}

fn size<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("a few bytes")
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a socket with protocol 0 that is closed on exec.
pub(super) fn open(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the descriptor is checked below.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: `fd` is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option.
pub(super) fn set<T: Plain>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let (fd, value) = (socket.as_raw_fd(), ptr::from_ref(value).cast());
    // SAFETY: `value` has the stated length and outlives the call.
    check(unsafe { libc::setsockopt(fd, level, option, value, size::<T>()) })
}

/// Attaches a filter to a socket.
pub(super) fn attach(socket: &OwnedFd, program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).expect("at most 4096 instructions");
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    let (fd, value) = (socket.as_raw_fd(), (&raw const program).cast());
    // SAFETY: the kernel copies `len` instructions and writes none.
    check(unsafe { libc::setsockopt(fd, level, option, value, size::<libc::sock_fprog>()) })
}

/// Binds a socket to an address of its family.
pub(super) fn bind<A: Address>(socket: &OwnedFd, address: &A) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(address)).expect("a few bytes");
    // SAFETY: the address has the stated length and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(address).cast(), len) })
}

/// A socket address.
///
/// # Safety
/// The type is a socket address of the kernel, which begins with its family.
pub(super) unsafe trait Address {}
// SAFETY: an address of the family AF_PACKET.
unsafe impl Address for libc::sockaddr_ll {}
// SAFETY: an address of the family AF_INET.
unsafe impl Address for libc::sockaddr_in {}
// SAFETY: an address of the family AF_INET6.
unsafe impl Address for libc::sockaddr_in6 {}

/// Memory at a fixed address that the kernel reads and writes.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: this value is the only owner of the memory.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `len` bytes of zeros, in transparent huge pages if the kernel has some.
    pub fn map(len: usize) -> io::Result<Self> {
        let pages = Self::map_from(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, len)?;
        // SAFETY: the range is this mapping; the call is only a hint.
        unsafe { libc::madvise(pages.address(0).cast(), len, libc::MADV_HUGEPAGE) };
        Ok(pages)
    }

    fn map_from(fd: RawFd, flags: libc::c_int, len: usize) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is not at null");
        Ok(Self { start, len })
    }

    /// A word that the kernel may change at any time.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= self.len && offset.is_multiple_of(4));
        // SAFETY: the word is within the mapping and aligned, since mappings are page-aligned.
        unsafe { AtomicU32::from_ptr(self.address(offset).cast()) }
    }

    /// The address of byte `offset`, for the kernel.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: the address is within the mapping or at its end.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Bytes that the kernel does not write at present. The kernel writes buffers only during
    /// calls, and slots of a ring only while it owns them.
    pub fn get(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the range is within the mapping and initialised; the kernel does not write it
        // now.
        unsafe { std::slice::from_raw_parts(self.address(offset), len) }
    }

    /// As [`Self::get`], for writing.
    pub fn get_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: as in `get`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address(offset), len) }
    }

    /// Copies `len` bytes from offset `from` to offset `to`.
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        self.get_mut(0, self.len).copy_within(from..from + len, to);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_from`, and no reference to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
