//! The system calls of the daemon: after it has set up, a filter of the kernel (seccomp) refuses
//! all others.
//!
//! A refused call fails with EPERM, and does not kill the daemon: many programs depend on the
//! daemon, and a new release of the C library may begin to use another call, usually with another
//! way to do the same. (systemd's `SystemCallErrorNumber=EPERM` is for this.) `clone3` fails with
//! ENOSYS, because its arguments are in memory, where a filter cannot see them: the C library then
//! uses `clone`.
//!
//! Found with `strace -f` on all ports, and by reading the C library's source for the calls that
//! are rare.

use std::collections::BTreeMap;

use libc::{c_int, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// A group of calls that are allowed with all arguments, and what they are for.
type Group = (&'static str, &'static [c_long]);

/// A call that is allowed if all conditions of one row hold, and why.
type Restricted = (c_long, &'static [&'static [Condition]], &'static str);

const ALLOWED: &[Group] = &[
    (
        "frames, control sockets, netlink, notifications",
        &[
            libc::SYS_bind,
            libc::SYS_connect,
            libc::SYS_accept4,
            libc::SYS_sendto,
            libc::SYS_recvfrom,
            libc::SYS_sendmsg,
            libc::SYS_recvmsg,
            libc::SYS_sendmmsg,
            libc::SYS_recvmmsg,
            libc::SYS_shutdown,
            libc::SYS_setsockopt,
            libc::SYS_getsockopt,
            libc::SYS_getsockname,
            libc::SYS_getpeername,
        ],
    ),
    (
        "descriptors: eventfds and pipes of the bells, sealed memory of the rings",
        &[
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_pread64,
            libc::SYS_preadv2,
            libc::SYS_write,
            libc::SYS_writev,
            libc::SYS_close,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_fcntl,
            libc::SYS_lseek,
            libc::SYS_eventfd2,
            libc::SYS_pipe2,
            libc::SYS_memfd_create,
            libc::SYS_ftruncate,
            libc::SYS_fallocate,
        ],
    ),
    (
        "/proc (CPUs of threads, names of programs), the log, removing the sockets",
        &[
            libc::SYS_openat,
            libc::SYS_newfstatat,
            libc::SYS_fstat,
            libc::SYS_statx,
            libc::SYS_getdents64,
            libc::SYS_readlinkat,
            libc::SYS_getcwd,
            libc::SYS_unlinkat,
        ],
    ),
    (
        "waiting and time",
        &[
            libc::SYS_ppoll,
            libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_futex,
            libc::SYS_clock_gettime,
            libc::SYS_clock_getres,
            libc::SYS_clock_nanosleep,
            libc::SYS_nanosleep,
            libc::SYS_gettimeofday,
            libc::SYS_restart_syscall,
        ],
    ),
    (
        "threads and their CPUs",
        &[
            libc::SYS_exit,
            libc::SYS_gettid,
            libc::SYS_rseq,
            libc::SYS_set_robust_list,
            libc::SYS_set_tid_address,
            libc::SYS_membarrier,
            libc::SYS_sched_yield,
            libc::SYS_sched_getaffinity,
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_getscheduler,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_getparam,
            libc::SYS_getcpu,
        ],
    ),
    ("memory", &[libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise]),
    (
        "signals, the end of the process, and the end of the process that removes the sockets",
        &[
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_sigaltstack,
            libc::SYS_tgkill,
            libc::SYS_exit_group,
            libc::SYS_wait4,
            libc::SYS_waitid,
        ],
    ),
    (
        "facts about this process and the host",
        &[
            libc::SYS_getpid,
            libc::SYS_getuid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getegid,
            libc::SYS_getrandom,
            libc::SYS_uname,
            libc::SYS_sysinfo,
        ],
    ),
    #[cfg(target_arch = "x86_64")]
    (
        "older forms of the calls above, which AArch64 does not have",
        &[
            libc::SYS_poll,
            libc::SYS_epoll_wait,
            libc::SYS_dup2,
            libc::SYS_open,
            libc::SYS_stat,
            libc::SYS_lstat,
            libc::SYS_readlink,
            libc::SYS_unlink,
            libc::SYS_rmdir,
            libc::SYS_time,
        ],
    ),
];

const RESTRICTED: &[Restricted] = &[
    (
        libc::SYS_socket,
        &[
            &[is(0, libc::AF_UNIX)],
            &[is(0, libc::AF_INET), has(1, libc::SOCK_DGRAM, SOCKET_TYPES)],
            &[is(0, libc::AF_INET6), has(1, libc::SOCK_DGRAM, SOCKET_TYPES)],
            &[is(0, libc::AF_NETLINK), is(2, libc::NETLINK_ROUTE)],
        ],
        "routes and neighbours, multicast groups, notifications; no packet sockets, no TCP",
    ),
    (
        libc::SYS_clone,
        &[&[has(0, libc::CLONE_THREAD, libc::CLONE_THREAD | NAMESPACES)]],
        "threads; no processes and no namespaces",
    ),
    (libc::SYS_mmap, &[&[has(2, 0, libc::PROT_EXEC)]], "memory without code"),
    (libc::SYS_mprotect, &[&[has(2, 0, libc::PROT_EXEC)]], "stacks of threads; no code"),
    (
        libc::SYS_prctl,
        &[&[is(0, libc::PR_SET_NAME)], &[is(0, libc::PR_GET_NAME)], &[is(0, libc::PR_SET_VMA)]],
        "names of threads and of memory",
    ),
    (
        libc::SYS_prlimit64,
        &[&[NO_NEW_LIMIT]],
        "reading limits, such as the size of stacks; not changing them",
    ),
    (
        libc::SYS_ioctl,
        &[
            &[request(libc::FIONBIO)],
            &[request(libc::FIONREAD)],
            &[request(libc::TCGETS)],
            &[request(libc::TIOCGWINSZ)],
            &[request(libc::SIOCGIFINDEX)],
            &[request(libc::SIOCGIFNAME)],
        ],
        "descriptors, terminals, indices of interfaces",
    ),
    (
        libc::SYS_bpf,
        &[
            &[is(0, BPF_MAP_LOOKUP_ELEM)],
            &[is(0, BPF_MAP_UPDATE_ELEM)],
            &[is(0, BPF_MAP_DELETE_ELEM)],
            &[is(0, BPF_MAP_GET_NEXT_KEY)],
            &[is(0, BPF_OBJ_GET_INFO_BY_FD)],
        ],
        "the addresses in the map of the XDP program, and whether it is still attached; no \
         programs, no maps",
    ),
];

/// Calls that fail with ENOSYS.
const ABSENT: &[c_long] = &[libc::SYS_clone3];

/// The bits of `socket`'s second argument that are its type.
const SOCKET_TYPES: c_int = 0xf;
const NAMESPACES: c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
// Commands of bpf(2), which the libc crate lacks.
const BPF_MAP_LOOKUP_ELEM: c_int = 1;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_MAP_DELETE_ELEM: c_int = 3;
const BPF_MAP_GET_NEXT_KEY: c_int = 4;
const BPF_OBJ_GET_INFO_BY_FD: c_int = 15;

/// A condition: the bits `mask` of the argument number `index` have the value `value`.
#[derive(Debug)]
struct Condition {
    index: u8,
    mask: u64,
    value: u64,
}

const fn is(index: u8, value: c_int) -> Condition {
    has(index, value, -1)
}

/// A condition on an argument of 32 bits.
const fn has(index: u8, value: c_int, mask: c_int) -> Condition {
    Condition { index, mask: mask.cast_unsigned() as u64, value: value.cast_unsigned() as u64 }
}

/// A condition on the request of an ioctl, which has 32 bits.
const fn request(number: libc::Ioctl) -> Condition {
    Condition { index: 1, mask: 0xffff_ffff, value: number }
}

/// The pointer to new limits is null.
const NO_NEW_LIMIT: Condition = Condition { index: 2, mask: u64::MAX, value: 0 };

/// Why the filter was not installed.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The processor has no filter here.
    #[error(transparent)]
    Backend(#[from] seccompiler::BackendError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(#[from] seccompiler::Error),
}

/// Installs the filter for all threads of this process, and for those that they start.
///
/// # Errors
/// The kernel has no system call filters, or another filter forbids them.
pub fn restrict() -> Result<(), FilterError> {
    programs()?.iter().try_for_each(|program| seccompiler::apply_filter_all_threads(program))?;
    Ok(())
}

/// The filters in the order in which they are installed. The kernel runs all of them, and a filter
/// that refuses wins.
fn programs() -> Result<[BpfProgram; 2], FilterError> {
    let errno = |code: c_int| SeccompAction::Errno(code.cast_unsigned());
    let absent = ABSENT.iter().map(|call| (*call, Vec::new())).collect();
    let absent = compile(absent, SeccompAction::Allow, errno(libc::ENOSYS))?;
    let calls = ALLOWED.iter().flat_map(|(_, calls)| *calls).chain(ABSENT);
    let mut rules: BTreeMap<c_long, Vec<_>> = calls.map(|call| (*call, Vec::new())).collect();
    for (call, alternatives, _) in RESTRICTED {
        let alternatives = alternatives.iter().map(|conditions| rule(conditions));
        rules.insert(*call, alternatives.collect::<Result<_, _>>()?);
    }
    Ok([absent, compile(rules, errno(libc::EPERM), SeccompAction::Allow)?])
}

fn compile(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    action: SeccompAction,
) -> Result<BpfProgram, FilterError> {
    let processor = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, otherwise, action, processor)?.try_into()?)
}

fn rule(conditions: &[Condition]) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = conditions.iter().map(|Condition { index, mask, value }| {
        let length = match u32::try_from(*mask) {
            Ok(_) => SeccompCmpArgLen::Dword,
            Err(_) => SeccompCmpArgLen::Qword,
        };
        SeccompCondition::new(*index, length, SeccompCmpOp::MaskedEq(*mask), *value)
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{TcpListener, UdpSocket};
    use std::process::Command;

    use nix::errno::Errno;
    use nix::sched::CloneFlags;
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

    use super::*;

    /// Runs `body` in a thread with the filter; the filter ends with the thread.
    fn filtered<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
        let run = move || {
            for program in programs().unwrap() {
                seccompiler::apply_filter(&program).unwrap();
            }
            body()
        };
        feroce_threads::spawn("feroce-test", run).unwrap().join().unwrap()
    }

    fn is_refused<T: std::fmt::Debug>(what: &str, result: Result<T, impl Into<io::Error>>) {
        let error = result.map_err(Into::into).expect_err(what);
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}");
    }

    #[test]
    fn what_an_intruder_needs_is_refused() {
        // A child that this process may trace, and kill: the filter must refuse both.
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        filtered(move || {
            // Without the filter this would end the test with an error.
            is_refused("execve", nix::unistd::execv(c"/bin/false", &[c"false"]));
            is_refused("fork", Command::new("true").spawn());
            is_refused("ptrace", nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty()));
            is_refused("kill", nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL));
            for flags in [CloneFlags::CLONE_NEWUSER, CloneFlags::CLONE_NEWNET] {
                is_refused("unshare", nix::sched::unshare(flags));
            }
            let namespace = std::fs::File::open("/proc/self/ns/net").unwrap();
            is_refused("setns", nix::sched::setns(namespace, CloneFlags::empty()));
            let none = None::<&str>;
            let flags = nix::mount::MsFlags::empty();
            is_refused("mount", nix::mount::mount(none, "/nowhere", Some("tmpfs"), flags, none));
            is_refused("chown", std::os::unix::fs::chown("/nowhere", Some(0), None));
            is_refused(
                "chmod",
                nix::sys::stat::fchmod(std::io::stderr(), nix::sys::stat::Mode::empty()),
            );
            is_refused("rename", std::fs::rename("/nowhere/a", "/nowhere/b"));
            is_refused("mkdir", std::fs::create_dir("/nowhere/a"));
            is_refused(
                "limits",
                nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 10, 10),
            );
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn sockets_of_other_families_are_refused() {
        filtered(|| {
            let kinds = [
                (AddressFamily::Packet, SockType::Raw, None),
                (AddressFamily::Packet, SockType::Datagram, None),
                (AddressFamily::Inet, SockType::Raw, Some(SockProtocol::Udp)),
                (AddressFamily::Inet, SockType::Stream, None),
                (AddressFamily::Inet6, SockType::Stream, None),
                (AddressFamily::Netlink, SockType::Raw, Some(SockProtocol::NetlinkNetFilter)),
                (AddressFamily::Vsock, SockType::Stream, None),
                (AddressFamily::Alg, SockType::SeqPacket, None),
            ];
            for (family, kind, protocol) in kinds {
                let opened = socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol);
                assert_eq!(opened.unwrap_err(), Errno::EPERM, "{family:?} {kind:?}");
            }
            is_refused("TCP", TcpListener::bind("127.0.0.1:0"));
            let route = (AddressFamily::Netlink, SockType::Raw, SockProtocol::NetlinkRoute);
            socket(route.0, route.1, SockFlag::SOCK_CLOEXEC, route.2).unwrap();
            UdpSocket::bind("127.0.0.1:0").unwrap();
        });
    }

    #[test]
    fn what_the_daemon_does_is_allowed() {
        filtered(|| {
            // `clone3` is absent, so that the C library uses `clone`.
            let sum = feroce_threads::spawn("feroce-test", || 1 + 1).unwrap().join().unwrap();
            assert_eq!(sum, 2);
            assert!(std::fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp:"));
            assert!(std::fs::read_dir("/proc/self/task").unwrap().count() > 0);
            assert!(
                nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_STACK).is_ok()
            );
            // A bell is read without waiting for writers of its inode.
            let (read, mut write) = std::io::pipe().unwrap();
            io::Write::write_all(&mut write, b"12345678").unwrap();
            let (mut bytes, no_wait) = ([0; 8], rustix::io::ReadWriteFlags::NOWAIT);
            let parts = &mut [io::IoSliceMut::new(&mut bytes)];
            assert_ne!(
                rustix::io::preadv2(&read, parts, u64::MAX, no_wait),
                Err(rustix::io::Errno::PERM)
            );
            let memory = vec![7_u8; 64 << 20];
            assert_eq!(memory.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 7 * (64 << 20));
            let caught = std::panic::catch_unwind(|| panic!("a panic with a back trace"));
            assert!(caught.is_err());
        });
    }

    #[test]
    fn no_call_is_in_two_rows() {
        let mut calls: Vec<_> = ALLOWED.iter().flat_map(|(_, calls)| *calls).collect();
        calls.extend(RESTRICTED.iter().map(|(call, ..)| call));
        calls.extend(ABSENT);
        let count = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), count);
    }
}
