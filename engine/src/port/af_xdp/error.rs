//! Errors of an AF_XDP port. A message names the remedy where Feroce knows one.

use std::io;

use super::bpf::LoadError;
use crate::port::kind::PortFailure;

/// Why an AF_XDP port could not be opened, or its addresses could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AfXdpError {
    /// A configuration value is out of range.
    #[error("AF_XDP configuration: {0}")]
    Config(&'static str),

    /// The network namespace has no interface of this name.
    #[error("no interface '{0}' in this network namespace (see `ip link`)")]
    NoSuchInterface(String),

    /// The interface is not Ethernet.
    #[error("interface '{0}' is not Ethernet (`feroce devinfo` lists those that are)")]
    NotEthernet(String),

    /// The interface is down.
    #[error("interface '{0}' is down (`ip link set dev {0} up`)")]
    Down(String),

    /// The interface has fewer queues than there are cores. A core without a queue could not
    /// receive or send.
    #[error(
        "interface '{interface}' has {rx} receive and {tx} transmit queues, too few for {cores} \
         cores (use fewer cores, or `ethtool -L {interface} combined {cores}`)"
    )]
    TooFewQueues {
        /// Interface.
        interface: String,
        /// Receive queues of the interface.
        rx: u32,
        /// Transmit queues of the interface.
        tx: u32,
        /// Cores; each needs a queue.
        cores: usize,
    },

    /// The process lacks a privilege.
    #[error(
        "no permission to {action}: AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF in the \
         initial user namespace (run as root, or use \
         `setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep` on `feroce` or a program \
         built on it)"
    )]
    NotPermitted {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },

    /// The packet buffers exceed the limit of locked memory.
    #[error(
        "{bytes} bytes of packet buffers exceed RLIMIT_MEMLOCK (use `ulimit -l unlimited`, \
         LimitMEMLOCK=infinity in a systemd unit, CAP_IPC_LOCK, or smaller `rx_frames` \
         and `tx_slots`)"
    )]
    MemoryLock {
        /// Size of the packet buffers of one queue, in bytes.
        bytes: usize,
    },

    /// There is no memory for the packet buffers.
    #[error("cannot map {bytes} bytes of packet buffers")]
    Memory {
        /// Size of the packet buffers of one queue, in bytes.
        bytes: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },

    /// Another Feroce process uses the interface.
    #[error("interface '{interface}' is in use by process {pid} (program '{program}')")]
    Owned {
        /// Interface.
        interface: String,
        /// The process that has the interface open.
        pid: u32,
        /// Name of its XDP program.
        program: String,
    },

    /// An XDP program of other software is attached.
    #[error(
        "interface '{interface}' has another XDP program attached{} (`bpftool net` shows it; \
         remove it with `ip link set dev {interface} xdp off` or stop its owner)",
        program.as_ref().map(|name| format!(", '{name}'")).unwrap_or_default()
    )]
    ProgramAttached {
        /// Interface.
        interface: String,
        /// Name of the program, if the kernel reports it.
        program: Option<String>,
    },

    /// The kernel or the driver refused the program in the requested mode.
    #[error(
        "interface '{interface}' refuses XDP in {mode} mode at MTU {mtu}{}",
        if *mode == "native" {
            " (the driver may lack XDP, or multi-buffer XDP for this MTU: \
              lower the MTU or use generic mode)"
        } else {
            ""
        }
    )]
    ModeRefused {
        /// Interface.
        interface: String,
        /// `native` or `generic`.
        mode: &'static str,
        /// The interface's MTU in bytes.
        mtu: u32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },

    /// Zero-copy was requested, and the driver does not support it here.
    #[error(
        "interface '{interface}' refuses zero-copy on queue {queue} (use copy mode, or `auto`)"
    )]
    ZeroCopyRefused {
        /// Interface.
        interface: String,
        /// Receive queue.
        queue: u32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },

    /// Another AF_XDP socket is bound to the queue and stayed bound during the retries.
    #[error(
        "queue {queue} of interface '{interface}' is in use by another AF_XDP socket \
         (`ss --xdp -p` shows its process)"
    )]
    QueueBusy {
        /// Interface.
        interface: String,
        /// Receive queue.
        queue: u32,
    },

    /// The address map is full.
    #[error("the filter of the XDP program has room for at most {0} addresses")]
    TooManyAddresses(u32),

    /// The verifier of the kernel rejected the program: the kernel is too old, or the program has a
    /// bug.
    #[error(
        "the kernel rejected the XDP program: {reason} (`FEROCE_LOG=debug` shows the verifier's \
         log)"
    )]
    Rejected {
        /// The reason that the verifier gives, in one line.
        reason: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },

    /// Another system call failed.
    #[error("cannot {action}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
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
    /// The error for a failed system call: [`Self::NotPermitted`] if a privilege is missing.
    pub(super) fn system(action: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { action, source },
            _ => Self::System { action, source },
        }
    }

    /// The error for a program that was not loaded: [`Self::Rejected`] if the verifier gives a
    /// reason.
    pub(super) fn load(LoadError { source, reason }: LoadError) -> Self {
        match reason {
            None => Self::system("load the XDP program", source),
            Some(reason) => Self::Rejected { reason, source },
        }
    }
}
