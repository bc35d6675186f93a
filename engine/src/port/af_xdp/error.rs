//! What can go wrong with an AF_XDP port, by culprit, each with its remedy.

use std::io;

use crate::port::kind::PortFailure;

/// Why an AF_XDP port could not be opened, or its addresses not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AfXdpError {
    /// A value of the configuration is out of its range.
    #[error("AF_XDP configuration: {0}")]
    Config(&'static str),

    /// No interface of that name in this network namespace.
    #[error("no interface '{0}' in this network namespace (see `ip link`)")]
    NoSuchInterface(String),

    /// The interface is not Ethernet.
    #[error("interface '{0}' is not Ethernet")]
    NotEthernet(String),

    /// The interface is down.
    #[error("interface '{0}' is down (`ip link set dev {0} up`)")]
    Down(String),

    /// There are fewer queues than cores, and a core without a queue could not receive or send.
    #[error(
        "interface '{interface}' has {rx} receive and {tx} transmit queues, too few for {cores} cores \
         (use fewer cores, or `ethtool -L {interface} combined {cores}`)"
    )]
    TooFewQueues {
        /// Interface.
        interface: String,
        /// Receive queues it has.
        rx: u32,
        /// Transmit queues it has.
        tx: u32,
        /// Cores that asked for one each.
        cores: usize,
    },

    /// The process may not do this.
    #[error(
        "no permission to {action}: AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF in the initial \
         user namespace (run as root, or `setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep` on the binary)"
    )]
    NotPermitted {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },

    /// The process may not lock as much memory as the packet buffers need.
    #[error(
        "{bytes} bytes of packet buffers exceed RLIMIT_MEMLOCK (`ulimit -l unlimited`, LimitMEMLOCK=infinity \
         in a systemd unit, CAP_IPC_LOCK, or fewer `rx_frames` and `tx_slots`)"
    )]
    MemoryLock {
        /// Size of the packet buffers of one queue, in bytes.
        bytes: usize,
    },

    /// No memory for the packet buffers.
    #[error("cannot map {bytes} bytes of packet buffers")]
    Memory {
        /// Size of the packet buffers of one queue, in bytes.
        bytes: usize,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },

    /// Another process of ours has the interface.
    #[error("interface '{interface}' is in use by process {pid} (program '{program}')")]
    Owned {
        /// Interface.
        interface: String,
        /// Process that has it open.
        pid: u32,
        /// Name of its XDP program.
        program: String,
    },

    /// Someone else's XDP program is attached.
    #[error(
        "interface '{interface}' has another XDP program attached{} (look with `bpftool net`, remove it with \
         `ip link set dev {interface} xdp off`, or stop its owner)",
        program.as_ref().map(|name| format!(", '{name}'")).unwrap_or_default()
    )]
    ProgramAttached {
        /// Interface.
        interface: String,
        /// Name of the program, where the kernel tells it.
        program: Option<String>,
    },

    /// The kernel or the driver refused the program in the mode asked for.
    #[error(
        "interface '{interface}' refuses XDP in {mode} mode at MTU {mtu}{}",
        if *mode == "native" { " (the driver may lack XDP, or multi-buffer XDP for this MTU: lower the MTU, or use generic mode)" } else { "" }
    )]
    ModeRefused {
        /// Interface.
        interface: String,
        /// `native` or `generic`.
        mode: &'static str,
        /// The interface's MTU in bytes.
        mtu: u32,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },

    /// The driver has no zero-copy here, and zero-copy was asked for.
    #[error(
        "interface '{interface}' refuses zero-copy on queue {queue} (use copy mode, or `auto`)"
    )]
    ZeroCopyRefused {
        /// Interface.
        interface: String,
        /// Receive queue.
        queue: u32,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },

    /// Another AF_XDP socket is bound to the queue, and stayed so while we retried.
    #[error(
        "queue {queue} of interface '{interface}' is in use by another AF_XDP socket (`ss --xdp -p` shows whose)"
    )]
    QueueBusy {
        /// Interface.
        interface: String,
        /// Receive queue.
        queue: u32,
    },

    /// The address map is full.
    #[error("no room for more than {0} addresses in the XDP program's filter")]
    TooManyAddresses(u32),

    /// The kernel's verifier rejected the program: this kernel is too old, or this is a bug here.
    #[error("the kernel rejected the XDP program:\n{log}")]
    Rejected {
        /// What the verifier said.
        log: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },

    /// Any other system call that failed.
    #[error("cannot {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl PortFailure for AfXdpError {
    /// Returns true unless packet sockets would fail for the same reason.
    fn allows_fallback(&self) -> bool {
        !matches!(
            self,
            Self::Config(_)
                | Self::NoSuchInterface(_)
                | Self::NotEthernet(_)
                | Self::Down(_)
                | Self::Owned { .. }
        )
    }
}

impl AfXdpError {
    /// The error of a failed system call, told apart by permission.
    pub(super) fn system(action: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { action, source },
            _ => Self::System { action, source },
        }
    }
}
