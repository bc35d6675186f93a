//! The packet sockets of one core, and the system calls on them.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use super::classic_bpf::{Instruction, NOTHING};
use super::config::PacketConfig;

/// A group of sockets spreads frames by a hash of addresses and ports.
const FANOUT: libc::c_int =
    (libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING).cast_signed() << 16;
/// A new group, whose number the kernel draws.
const FANOUT_NEW: libc::c_int = libc::PACKET_FANOUT_FLAG_UNIQUEID.cast_signed() << 16;

/// Bytes of a slot of the receive ring.
pub(super) const SLOT: usize = 1024;

/// The two sockets of one core, with `PACKET_VNET_HDR`.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Tells what has arrived: see [`super::ring`].
    pub ring: Socket,
    /// Where long frames wait, and through which all are sent.
    pub queue: Socket,
}

/// What was tried, and what the kernel answered.
pub(super) type Refused = (&'static str, io::Error);

impl Sockets {
    /// Opens sockets on the interface with that index, which take nothing until they have filters.
    pub fn open(interface: u32, config: &PacketConfig) -> Result<Self, Refused> {
        let ring = Socket::open()?;
        ring.make_ring(config.rx_slots).map_err(|error| ("make a receive ring", error))?;
        let queue = Socket::open()?;
        queue.make_queue(config)?;
        // The kernel serves the socket that was bound last first: when the ring has a mark, the queue has the frame.
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

/// Figures of a socket's memory (SK_MEMINFO_VARS).
const MEMORY_FIGURES: usize = 9;

/// Bytes that the kernel allocates in one piece for a ring, if it has so many.
const BLOCK: u32 = 16 << 10;

impl Socket {
    /// Opens a socket that takes nothing until it has another filter.
    fn open() -> Result<Self, Refused> {
        // With protocol 0 nothing arrives before the socket is bound, and by then it has a filter.
        let socket = open(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK)
            .map_err(|error| ("open a packet socket", error))?;
        let socket = Self(socket);
        socket.filter(&NOTHING).map_err(|error| ("filter frames", error))?;
        socket
            .set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)
            .map_err(|error| ("ignore frames that this host sends", error))?;
        Ok(socket)
    }

    /// Opens a socket that takes what `filter` does of the frames of the interface with that index, whoever they are for.
    pub fn open_tap(
        interface: u32,
        rx_bytes: u32,
        filter: &[Instruction],
    ) -> Result<Self, Refused> {
        let socket = Self::open()?;
        let options = [
            (libc::PACKET_VNET_HDR, "see what senders leave to their devices"),
            (libc::PACKET_AUXDATA, "see VLAN tags"),
            (libc::PACKET_QDISC_BYPASS, "bypass the queueing discipline"),
        ];
        for (option, action) in options {
            socket.set(libc::SOL_PACKET, option, &1).map_err(|error| (action, error))?;
        }
        socket.make_room(rx_bytes)?;
        let index = libc::c_int::try_from(interface).expect("indices are small");
        let kind = u16::try_from(libc::PACKET_MR_PROMISC).expect("a small number");
        let all =
            libc::packet_mreq { mr_ifindex: index, mr_type: kind, mr_alen: 0, mr_address: [0; 8] };
        socket
            .set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)
            .map_err(|error| ("see frames for others", error))?;
        socket.bind(interface).map_err(|error| ("bind a packet socket", error))?;
        socket.filter(filter).map_err(|error| ("filter frames", error))?;
        Ok(socket)
    }

    /// Asks for the time at which each frame arrived.
    pub fn stamp(&self) -> io::Result<()> {
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

    fn make_queue(&self, config: &PacketConfig) -> Result<(), Refused> {
        let bypass = libc::c_int::from(config.qdisc_bypass);
        let options = [
            (libc::PACKET_VNET_HDR, 1, "take headers of super-frames"),
            (libc::PACKET_AUXDATA, 1, "see VLAN tags"),
            (libc::PACKET_QDISC_BYPASS, bypass, "bypass the queueing discipline"),
        ];
        for (option, value, action) in options {
            self.set(libc::SOL_PACKET, option, &value).map_err(|error| (action, error))?;
        }
        self.make_room(config.rx_bytes)
    }

    /// Sizes the buffers.
    fn make_room(&self, rx_bytes: u32) -> Result<(), Refused> {
        let bytes = libc::c_int::try_from(rx_bytes).unwrap_or(libc::c_int::MAX);
        // The first knows no limit and needs privilege.
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
            .map_err(|error| ("size the receive buffer", error))?;
        // What a burst needs; with less, its end waits for its beginning.
        let _unprivileged = self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(8_i32 << 20));
        Ok(())
    }

    /// The ring's memory.
    pub fn map(&self, len: usize) -> io::Result<Pages> {
        Pages::map_from(self.fd(), libc::MAP_SHARED | libc::MAP_POPULATE, len)
    }

    fn bind(&self, interface: u32) -> io::Result<()> {
        // SAFETY: `sockaddr_ll` is plain data for which all zeros is a value.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).expect("a small number");
        address.sll_protocol =
            u16::try_from(libc::ETH_P_ALL).expect("an EtherType has 16 bits").to_be();
        address.sll_ifindex = libc::c_int::try_from(interface).expect("indices are small");
        bind(&self.0, &address)
    }

    /// Makes this socket the first of a new group over which the kernel spreads flows; the group's number.
    pub fn found_group(&self) -> io::Result<libc::c_int> {
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &(FANOUT | FANOUT_NEW))?;
        let mut group = 0;
        self.get(libc::SOL_PACKET, libc::PACKET_FANOUT, &mut group)?;
        Ok(group & 0xffff)
    }

    /// Joins a group.
    pub fn join_group(&self, group: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &(FANOUT | group))
    }

    /// Takes only the frames that `program` lets pass; replaces another at once.
    pub fn filter(&self, program: &[Instruction]) -> io::Result<()> {
        attach(&self.0, program)
    }

    /// Bytes of the receive buffer, as granted.
    pub fn rx_bytes(&self) -> io::Result<u32> {
        let mut bytes: libc::c_int = 0;
        self.get(libc::SOL_SOCKET, libc::SO_RCVBUF, &mut bytes)?;
        Ok(bytes.cast_unsigned())
    }

    /// How much of the receive buffer is taken, in per cent.
    pub fn rx_fill(&self) -> u8 {
        let mut figures = [0_u32; MEMORY_FIGURES];
        let told = self.get(libc::SOL_SOCKET, libc::SO_MEMINFO, &mut figures);
        // SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_RCVBUF.
        let [taken, all, ..] = figures.map(u64::from);
        let fill = (taken * 100).checked_div(all).filter(|_| told.is_ok());
        u8::try_from(fill.unwrap_or(0).min(100)).expect("at most 100")
    }

    /// Frames dropped for want of room since the last call.
    pub fn take_drops(&self) -> u64 {
        let mut counts = [0_u32; 2];
        match self.get(libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut counts) {
            Ok(()) => u64::from(counts[1]),
            Err(_) => 0,
        }
    }

    /// Takes the error that waits to be told, if one does.
    pub fn forget_error(&self) {
        let mut error: libc::c_int = 0;
        let _told_when_sending = self.get(libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }

    /// Receives messages into where they point; how many.
    ///
    /// # Safety
    /// What the messages point at is writable, as long as they say, and nobody else looks at it meanwhile.
    pub unsafe fn receive(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
        let count = libc::c_uint::try_from(messages.len()).expect("a burst is short");
        // SAFETY: as the caller promises; there are `count` messages.
        let got = unsafe {
            let flags = libc::MSG_DONTWAIT as _;
            libc::recvmmsg(self.fd(), messages.as_mut_ptr(), count, flags, ptr::null_mut())
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Sends messages from where they point; how many, at least one.
    ///
    /// # Safety
    /// What the messages point at is readable, as long as they say.
    pub unsafe fn send(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
        let count = libc::c_uint::try_from(messages.len()).expect("a burst is short");
        // SAFETY: as the caller promises; there are `count` messages.
        let sent = unsafe {
            libc::sendmmsg(self.fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// The socket, for `poll`.
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
        // SAFETY: `value` has room for `size` bytes, any of which it may be.
        check(unsafe { libc::getsockopt(fd, level, option, value, &raw mut size) })
    }
}

/// What socket options are.
///
/// # Safety
/// Plain data: all bytes are values and none is padding.
pub(super) unsafe trait Plain {}
// SAFETY: a number.
unsafe impl Plain for libc::c_int {}
// SAFETY: numbers.
unsafe impl Plain for [u32; 2] {}
// SAFETY: numbers.
unsafe impl Plain for [u32; MEMORY_FIGURES] {}
// SAFETY: numbers, which fill it.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: four numbers.
unsafe impl Plain for RingRequest {}

fn size<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("a few bytes")
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A new socket without a protocol, closed on exec.
pub(super) fn open(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the descriptor is checked below.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: `fd` is open and nobody else's.
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
    // SAFETY: `value` is as long as said, and outlives the call.
    check(unsafe { libc::setsockopt(fd, level, option, value, size::<T>()) })
}

/// Attaches a filter.
pub(super) fn attach(socket: &OwnedFd, program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).expect("at most 4096 instructions");
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    let (fd, value) = (socket.as_raw_fd(), (&raw const program).cast());
    // SAFETY: the kernel copies `len` instructions and writes none.
    check(unsafe { libc::setsockopt(fd, level, option, value, size::<libc::sock_fprog>()) })
}

/// Binds to a socket address of the socket's family.
pub(super) fn bind<A: Address>(socket: &OwnedFd, address: &A) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(address)).expect("a few bytes");
    // SAFETY: an address of the length said, which outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(address).cast(), len) })
}

/// A socket address.
///
/// # Safety
/// One of the kernel's, which begins with its family.
pub(super) unsafe trait Address {}
// SAFETY: of the family AF_PACKET.
unsafe impl Address for libc::sockaddr_ll {}
// SAFETY: of the family AF_INET.
unsafe impl Address for libc::sockaddr_in {}
// SAFETY: of the family AF_INET6.
unsafe impl Address for libc::sockaddr_in6 {}

/// Memory that stays where it is, for the kernel to read and write.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `len` bytes of zeros; in huge pages where the kernel has some to give without being asked twice.
    pub fn map(len: usize) -> io::Result<Self> {
        let pages = Self::map_from(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, len)?;
        // SAFETY: the mapping is ours; this is but a hint.
        unsafe { libc::madvise(pages.address(0).cast(), len, libc::MADV_HUGEPAGE) };
        Ok(pages)
    }

    fn map_from(fd: RawFd, flags: libc::c_int, len: usize) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
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
        // SAFETY: within the mapping, and aligned, since mappings are.
        unsafe { AtomicU32::from_ptr(self.address(offset).cast()) }
    }

    /// The address of byte `offset`, for the kernel.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: within the mapping, or at its end.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Bytes that the kernel does not write at the moment: it writes buffers during calls only, and slots of a ring
    /// only while they are its own.
    pub fn get(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: within the mapping, and initialised; the caller asks for what the kernel leaves alone.
        unsafe { std::slice::from_raw_parts(self.address(offset), len) }
    }

    /// The same, to be written.
    pub fn get_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address(offset), len) }
    }

    /// Copies `len` bytes from one place to another.
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        self.get_mut(0, self.len).copy_within(from..from + len, to);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
