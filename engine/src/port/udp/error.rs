//! Errors of a UDP port. A message names the remedy where Feroce knows one.

use std::io;

use crate::port::af_xdp::AfXdpError;
use crate::port::kind::PortFailure;

/// Why a UDP port could not be opened, or its addresses could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// A configuration value is out of range.
    #[error("udp port configuration: {0}")]
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

    /// Flow control was requested.
    #[error(
        "a UDP socket neither receives nor sends PFC and PAUSE frames: use the port af_xdp or \
         packet, or turn `pfc` off"
    )]
    FlowControl,

    /// The UDP port of RoCEv2 is in use.
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

    /// A UDP port that packets are to be sent from is in use, or the user may not bind it.
    #[error(
        "UDP source port {port} cannot be bound (`ss -ulnp sport = {port}` shows who uses it); \
         choose others with `udp_source_ports`"
    )]
    SourcePort {
        /// The port.
        port: u16,
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

impl PortFailure for UdpError {}

impl UdpError {
    /// The error for a failed system call.
    pub(super) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    /// The error for an interface that cannot be used.
    pub(super) fn interface(error: AfXdpError) -> Self {
        match error {
            AfXdpError::NoSuchInterface(name) => Self::NoSuchInterface(name),
            AfXdpError::NotEthernet(name) => Self::NotEthernet(name),
            AfXdpError::Down(name) => Self::Down(name),
            other => {
                Self::System { action: "query the interface", source: io::Error::other(other) }
            }
        }
    }
}
