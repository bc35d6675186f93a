//! What can go wrong with a packet port, by culprit, each with its remedy.

use std::io;

use crate::port::af_xdp::AfXdpError;
use crate::port::kind::PortFailure;

/// Why a packet port could not be opened, or its addresses not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// A value of the configuration is out of its range.
    #[error("packet port configuration: {0}")]
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

    /// The process may not do this.
    #[error(
        "no permission to {action}: a packet port needs CAP_NET_RAW (run as root, `setcap cap_net_raw+ep` on \
         the binary, or a user namespace of your own: `unshare -Urn`)"
    )]
    NotPermitted {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },

    /// Someone holds the UDP port of RoCEv2, and would take or refuse what is for us.
    #[error(
        "UDP port 4791 is in use in this network namespace: by a program (`ss -ulnp sport = 4791` shows it) or by \
         the kernel's own RoCE (`rdma link`, then `rdma link delete NAME`); stop it, or use another namespace"
    )]
    PortInUse {
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },

    /// A socket's filter has room for so many addresses.
    #[error("no room for more than {0} addresses in a socket's filter")]
    TooManyAddresses(usize),

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

impl PortFailure for PacketError {}

impl PacketError {
    /// The error of a failed system call, told apart by permission.
    pub(super) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { action, source },
            _ => Self::System { action, source },
        }
    }

    /// What was wrong with the interface.
    pub(super) fn interface(error: AfXdpError) -> Self {
        match error {
            AfXdpError::NoSuchInterface(name) => Self::NoSuchInterface(name),
            AfXdpError::NotEthernet(name) => Self::NotEthernet(name),
            AfXdpError::Down(name) => Self::Down(name),
            AfXdpError::NotPermitted { action, source } => Self::NotPermitted { action, source },
            other => {
                Self::System { action: "ask about the interface", source: io::Error::other(other) }
            }
        }
    }
}
