//! The error of DCB requests.

use std::io;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum DcbError {
    /// No interface of that name exists in this network namespace.
    #[error("there is no interface {0}")]
    NoInterface(String),
    /// Not a valid name: empty or longer than 15 bytes.
    #[error("`{0}` is not a valid interface name")]
    Name(String),
    /// The driver or the kernel does not support DCB.
    #[error("{0} does not support DCB: the kernel returns EOPNOTSUPP")]
    NotSupported(String),
    /// Setting needs CAP_NET_ADMIN.
    #[error("setting DCB of {0} needs CAP_NET_ADMIN")]
    Permission(String),
    /// Any other error of the system.
    #[error("netlink: {0}")]
    System(#[from] io::Error),
    /// The response does not match the kernel's headers.
    #[error("unexpected response of the kernel: {0}")]
    Malformed(&'static str),
}
