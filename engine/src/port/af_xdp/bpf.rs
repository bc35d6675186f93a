//! The `bpf(2)` calls that this port and the packet port need: maps, loading and attaching the
//! program.
//!
//! The structures are the members of the kernel's `union bpf_attr` (`uapi/linux/bpf.h`) that these
//! commands read or write; the kernel treats missing members at the end as zero.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::from_mut;
use std::sync::{Mutex, PoisonError};

use super::program::Instruction;

/// Commands, `enum bpf_cmd`.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
enum Command {
    MapCreate = 0,
    MapUpdate = 2,
    MapDelete = 3,
    ProgramLoad = 5,
    #[cfg(test)]
    ProgramTestRun = 10,
    ProgramFdById = 13,
    ObjectInfo = 15,
    LinkCreate = 28,
    #[cfg(test)]
    LinkDetach = 34,
}

/// Kinds of map, `enum bpf_map_type`.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(in crate::port) enum MapKind {
    Hash = 1,
    /// Receive queue to AF_XDP socket.
    Xsk = 17,
}

/// The place where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::port) enum Hook {
    /// XDP, before all other processing.
    Xdp,
    /// Ingress, between packet sockets and the stack (`tcx`, Linux 6.6).
    Ingress,
}

impl Hook {
    /// `enum bpf_prog_type`.
    const fn program_type(self) -> u32 {
        match self {
            Self::Xdp => 6,
            Self::Ingress => 3,
        }
    }

    /// `enum bpf_attach_type`.
    const fn attach_type(self) -> u32 {
        match self {
            Self::Xdp => 37,
            Self::Ingress => 46,
        }
    }

    /// Flags of loading. XDP programs accept frames of several buffers; otherwise the MTU is
    /// limited to about 3500.
    const fn load_flags(self) -> u32 {
        match self {
            Self::Xdp => 1 << 5,
            Self::Ingress => 0,
        }
    }
}

/// Bytes of an object name: 15 and a terminator.
const NAME_LENGTH: usize = 16;

/// XDP mode in which a link attaches the program; values of `XDP_FLAGS_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::port) enum AttachMode {
    Generic = 1 << 1,
    Native = 1 << 2,
}

/// A structure that a command reads and writes.
///
/// # Safety
/// The type is `repr(C)`, has no padding, has the kernel's layout for its commands, and is long
/// enough for what the kernel writes. Every address in it is valid during the call.
unsafe trait Attributes {}

#[derive(Default)]
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; NAME_LENGTH],
    interface: u32,
}
// SAFETY: as `union bpf_attr` for BPF_MAP_CREATE; no addresses.
unsafe impl Attributes for MapCreate {}

#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}
// SAFETY: as `union bpf_attr` for the BPF_MAP_*_ELEM commands; `Map` borrows key and value.
unsafe impl Attributes for MapElement {}

#[derive(Default)]
#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME_LENGTH],
    interface: u32,
    attach_type: u32,
}
// SAFETY: as `union bpf_attr` for BPF_PROG_LOAD; `Program::load` holds the memory that it points
// to.
unsafe impl Attributes for ProgramLoad {}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}
// SAFETY: as `union bpf_attr` for BPF_LINK_CREATE; no addresses.
unsafe impl Attributes for LinkCreate {}

#[repr(C)]
struct ObjectId {
    id: u32,
}
// SAFETY: as `union bpf_attr` for BPF_PROG_GET_FD_BY_ID; no addresses.
unsafe impl Attributes for ObjectId {}

#[repr(C)]
struct ObjectInfo {
    object: u32,
    size: u32,
    info: u64,
}
// SAFETY: as `union bpf_attr` for BPF_OBJ_GET_INFO_BY_FD; `program_name` and `Link::program` hold
// the memory that it points to.
unsafe impl Attributes for ObjectInfo {}

/// The beginning of `struct bpf_prog_info`, up to the name.
#[derive(Default)]
#[repr(C)]
struct ProgramInfo {
    before_name: [u64; 8],
    name: [u8; NAME_LENGTH],
}

/// The beginning of `struct bpf_link_info` of a link to an interface.
#[derive(Default)]
#[repr(C)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    /// Index of the interface; 0 if the link is detached.
    interface: u32,
    attach_type: u32,
}

/// Runs `command`. Returns the result of the kernel, a descriptor or zero.
fn bpf<T: Attributes>(command: Command, attributes: &mut T) -> io::Result<i32> {
    let size = size_of::<T>();
    // SAFETY: the trait guarantees that `attributes` is the structure of `command`; it has `size`
    // bytes.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command as i32, from_mut(attributes), size) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::try_from(answer).expect("the kernel returns an int"))
}

/// Runs a `command` that returns a descriptor.
fn open<T: Attributes>(command: Command, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: `fd` is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn unsigned(fd: RawFd) -> u32 {
    u32::try_from(fd).expect("an open descriptor is not negative")
}

/// The name of an object in the kernel's form, cut after 15 bytes.
fn object_name(text: &str) -> [u8; NAME_LENGTH] {
    let mut name = [0; NAME_LENGTH];
    for (to, from) in name[..NAME_LENGTH - 1].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    name
}

/// A map from `K` to `V`.
#[derive(Debug)]
pub(in crate::port) struct Map<K, V> {
    fd: OwnedFd,
    types: std::marker::PhantomData<fn(K, V)>,
}

/// A key or value of a map, as plain bytes.
///
/// # Safety
/// The type has no padding and no pointers.
pub(in crate::port) unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an array of bytes.
unsafe impl Plain for [u8; 8] {}
// SAFETY: an array of bytes.
unsafe impl Plain for [u8; 16] {}

impl<K: Plain, V: Plain> Map<K, V> {
    /// Creates an empty map for `entries` keys.
    pub fn create(kind: MapKind, name: &str, entries: u32) -> io::Result<Self> {
        let word = |size: usize| u32::try_from(size).expect("keys and values are a few bytes");
        let fd = open(
            Command::MapCreate,
            &mut MapCreate {
                kind: kind as u32,
                key_size: word(size_of::<K>()),
                value_size: word(size_of::<V>()),
                entries,
                name: object_name(name),
                ..MapCreate::default()
            },
        )?;
        Ok(Self { fd, types: std::marker::PhantomData })
    }

    /// The descriptor, for instructions of a program.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sets the value of `key`.
    pub fn insert(&self, key: K, value: V) -> io::Result<()> {
        self.element(Command::MapUpdate, &key, Some(&value))
    }

    /// Removes `key`. Has no effect if it is not in the map.
    pub fn remove(&self, key: K) -> io::Result<()> {
        match self.element(Command::MapDelete, &key, None) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    fn element(&self, command: Command, key: &K, value: Option<&V>) -> io::Result<()> {
        let mut element = MapElement {
            map: unsigned(self.fd()),
            padding: 0,
            key: address(key),
            value: value.map_or(0, address),
            flags: 0,
        };
        bpf(command, &mut element).map(drop)
    }
}

/// An address in the form of `union bpf_attr`.
fn address<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>().expose_provenance() as u64
}

/// A loaded program.
#[derive(Debug)]
pub(in crate::port) struct Program {
    hook: Hook,
    fd: OwnedFd,
}

/// Why a program was not loaded.
#[derive(Debug)]
pub(in crate::port) struct LoadError {
    pub source: io::Error,
    /// The last line of the verifier's log that gives a reason; `None` if the verifier did not run.
    pub reason: Option<String>,
}

impl Program {
    /// Loads a program for `hook`. If the kernel refuses, loads it again to get the log of the
    /// verifier, and logs its lines at the level debug.
    pub fn load(hook: Hook, instructions: &[Instruction], name: &str) -> Result<Self, LoadError> {
        Self::load_with(hook, hook.load_flags(), instructions, name)
    }

    /// As [`Self::load`], with the flags `flags` of loading.
    fn load_with(
        hook: Hook,
        flags: u32,
        instructions: &[Instruction],
        name: &str,
    ) -> Result<Self, LoadError> {
        let try_load = |log: &mut [u8]| Self::try_load(hook, flags, instructions, name, log);
        match try_load(&mut []) {
            Ok(fd) => Ok(Self { hook, fd }),
            Err(source) if source.raw_os_error() == Some(libc::EPERM) => {
                Err(LoadError { source, reason: None })
            }
            Err(source) => {
                let mut log = vec![0; 1 << 16];
                let _refused_again = try_load(&mut log);
                let text = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
                for line in text.lines() {
                    tracing::debug!("verifier: {line}");
                }
                Err(LoadError { source, reason: reason(&text).map(str::to_owned) })
            }
        }
    }

    fn try_load(
        hook: Hook,
        flags: u32,
        instructions: &[Instruction],
        name: &str,
        log: &mut [u8],
    ) -> io::Result<OwnedFd> {
        let word = |size: usize| u32::try_from(size).expect("programs and logs are short");
        let mut load = ProgramLoad {
            kind: hook.program_type(),
            count: word(instructions.len()),
            instructions: address(instructions),
            licence: address(c"MIT OR Apache-2.0"),
            flags,
            name: object_name(name),
            attach_type: hook.attach_type(),
            ..ProgramLoad::default()
        };
        if !log.is_empty() {
            load.log_level = 1;
            load.log_size = word(log.len());
            load.log = log.as_mut_ptr().expose_provenance() as u64;
        }
        open(Command::ProgramLoad, &mut load)
    }

    /// Attaches an XDP program to an interface; see [`Self::attach_with`].
    pub fn attach(&self, interface: u32, mode: AttachMode) -> io::Result<Link> {
        self.attach_with(interface, mode as u32)
    }

    /// Attaches the program to an interface until the [`Link`] is dropped. The kernel also closes
    /// the link when the process ends, however it ends.
    pub fn attach_with(&self, interface: u32, flags: u32) -> io::Result<Link> {
        let mut create = LinkCreate {
            program: unsigned(self.fd.as_raw_fd()),
            interface,
            attach_type: self.hook.attach_type(),
            flags,
        };
        Ok(Link { fd: open(Command::LinkCreate, &mut create)? })
    }
}

/// The last line of a verifier's log that is not one of its statistics: why a program was refused.
fn reason(log: &str) -> Option<&str> {
    const STATISTICS: [&str; 3] = ["processed ", "verification time ", "stack depth "];
    let is_reason = |line: &&str| {
        !line.is_empty() && !STATISTICS.iter().any(|statistic| line.starts_with(statistic))
    };
    log.lines().map(str::trim).rfind(is_reason)
}

#[cfg(test)]
impl Program {
    /// As [`Self::load`], but the verifier refuses accesses that are not aligned to their size, as
    /// it always does for CPUs without efficient unaligned access.
    pub fn load_aligned(hook: Hook, instructions: &[Instruction]) -> Result<Self, LoadError> {
        const BPF_F_STRICT_ALIGNMENT: u32 = 1;
        let flags = hook.load_flags() | BPF_F_STRICT_ALIGNMENT;
        Self::load_with(hook, flags, instructions, "feroce_test")
    }

    /// Runs the program on `frame`. Returns its result, an `enum xdp_action`.
    pub fn test_run(&self, frame: &[u8]) -> io::Result<u32> {
        #[derive(Default)]
        #[repr(C)]
        struct TestRun {
            program: u32,
            answer: u32,
            size_in: u32,
            size_out: u32,
            data_in: u64,
            data_out: u64,
            repeat: u32,
            duration: u32,
        }
        // SAFETY: as `union bpf_attr` for BPF_PROG_TEST_RUN, up to the last member that the kernel
        // writes; `frame` outlives the call.
        unsafe impl Attributes for TestRun {}
        let mut run = TestRun {
            program: unsigned(self.fd.as_raw_fd()),
            size_in: u32::try_from(frame.len()).expect("a frame"),
            data_in: address(frame),
            ..TestRun::default()
        };
        bpf(Command::ProgramTestRun, &mut run)?;
        Ok(run.answer)
    }
}

/// An attached program; dropping it detaches the program.
#[derive(Debug)]
pub(in crate::port) struct Link {
    fd: OwnedFd,
}

impl Link {
    /// The id of the program that the link attaches to its interface; `None` if another program has
    /// detached the link. (Or if the interface is gone.)
    ///
    /// # Errors
    /// The kernel does not say it to this process.
    pub fn program(&self) -> io::Result<Option<u32>> {
        let mut info = LinkInfo::default();
        let mut query = ObjectInfo {
            object: unsigned(self.fd.as_raw_fd()),
            size: u32::try_from(size_of::<LinkInfo>()).expect("a few words"),
            info: from_mut(&mut info).expose_provenance() as u64,
        };
        bpf(Command::ObjectInfo, &mut query)?;
        Ok((info.interface != 0).then_some(info.program))
    }

    /// Detaches the program, as another process may.
    #[cfg(test)]
    pub fn detach(&self) -> io::Result<()> {
        let fd = unsigned(self.fd.as_raw_fd());
        bpf(Command::LinkDetach, &mut ObjectId { id: fd }).map(drop)
    }
}

/// A program on an interface, attached again if another process detaches it.
#[derive(Debug)]
pub(in crate::port) struct Attached {
    program: Program,
    interface: u32,
    /// Flags of attaching.
    flags: u32,
    /// The link with the id of its program; 0 if the kernel does not say it.
    link: Mutex<(Link, u32)>,
}

impl Attached {
    /// Keeps `link`, which attached `program` to `interface` with `flags`.
    pub fn new(program: Program, interface: u32, flags: u32, link: Link) -> Self {
        let id = link.program().ok().flatten().unwrap_or(0);
        Self { program, interface, flags, link: Mutex::new((link, id)) }
    }

    /// Attaches the program again if another process has detached it. Returns true then.
    ///
    /// # Errors
    /// The kernel refuses, for example because another program is attached, or because another
    /// process has put another program into the link.
    pub fn restore(&self) -> io::Result<bool> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        match link.0.program() {
            Ok(id) if id != Some(link.1) && link.1 != 0 => {}
            // A kernel that does not say it.
            Ok(_) | Err(_) => return Ok(false),
        }
        let new = self.program.attach_with(self.interface, self.flags)?;
        let id = new.program().ok().flatten().unwrap_or(0);
        *link = (new, id);
        Ok(true)
    }

    /// Detaches the program, as another process may.
    #[cfg(test)]
    pub fn detach(&self) {
        self.link.lock().expect("not poisoned").0.detach().expect("attached");
    }
}

/// The name of the loaded program `id`, if it still exists and this process may read it.
pub(super) fn program_name(id: u32) -> Option<String> {
    let program = open(Command::ProgramFdById, &mut ObjectId { id }).ok()?;
    let mut info = ProgramInfo::default();
    let mut query = ObjectInfo {
        object: unsigned(program.as_raw_fd()),
        size: u32::try_from(size_of::<ProgramInfo>()).expect("a few words"),
        info: from_mut(&mut info).expose_provenance() as u64,
    };
    bpf(Command::ObjectInfo, &mut query).ok()?;
    let name = CStr::from_bytes_until_nul(&info.name).ok()?;
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_last_line_before_the_statistics() {
        let log = "0: R1=ctx() R10=fp0\n\
                   27: (79) r5 = *(u64 *)(r2 +38)\n\
                   misaligned packet access off 2+0+4+38 size 8\n\
                   processed 28 insns (limit 1000000) max_states_per_insn 0 total_states 1\n\n";
        assert_eq!(reason(log), Some("misaligned packet access off 2+0+4+38 size 8"));
        let old = "R2 offset is outside of the packet\n\
                   verification time 33 usec\nstack depth 0\nprocessed 2 insns (limit 1000000)\n";
        assert_eq!(reason(old), Some("R2 offset is outside of the packet"));
        assert_eq!(reason("processed 0 insns (limit 1000000)\n"), None);
        assert_eq!(reason(""), None);
    }
}
