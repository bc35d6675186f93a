//! Errors of a packet port. A message names the remedy where Feroce knows one.

use std::io;

use crate::port::af_xdp::AfXdpError;
use crate::port::kind::PortFailure;

/// Why a packet port could not be opened, or its addresses could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// A configuration value is out of range.
    #[error("packet port configuration: {0}")]
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

    /// The process lacks a privilege.
    #[error(
        "no permission to {action}: a packet port needs CAP_NET_RAW (run as root, use \
         `setcap cap_net_raw+ep` on `feroce` or a program built on it, or create a user \
         namespace: `unshare -Urn`)"
    )]
    NotPermitted {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },

    /// The UDP port of RoCEv2 is in use. The other user would consume or reject packets of this
    /// device.
    #[error(
        "UDP port 4791 is in use in this network namespace, by a program \
         (`ss -ulnp sport = 4791` shows it) or by the kernel's own RoCE (`rdma link`, then \
         `rdma link delete NAME`); stop it or use another namespace"
    )]
    PortInUse {
        /// The kernel's error.
        #[source]
        source: io::Error,
    },

    /// A socket filter has no room for more addresses than this.
    #[error("a socket filter has room for at most {0} addresses")]
    TooManyAddresses(usize),

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

impl PortFailure for PacketError {
    /// UDP sockets need no privilege.
    fn allows_fallback(&self) -> bool {
        matches!(self, Self::NotPermitted { .. })
    }
}

impl PacketError {
    /// The error for a failed system call: [`Self::NotPermitted`] if a privilege is missing.
    pub(super) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { action, source },
            _ => Self::System { action, source },
        }
    }

    /// The error for an interface that cannot be used.
    pub(super) fn interface(error: AfXdpError) -> Self {
        match error {
            AfXdpError::NoSuchInterface(name) => Self::NoSuchInterface(name),
            AfXdpError::NotEthernet(name) => Self::NotEthernet(name),
            AfXdpError::Down(name) => Self::Down(name),
            AfXdpError::NotPermitted { action, source } => Self::NotPermitted { action, source },
            other => {
                Self::System { action: "query the interface", source: io::Error::other(other) }
            }
        }
    }
}
