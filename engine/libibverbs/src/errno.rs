//! Error numbers: what rdma-core and the kernel's drivers say in the same case.

use std::ffi::c_int;

use feroce_engine::device::{DeviceError, OpenError, PostError};
use feroce_engine::net::{NetError, ResolveError};

pub use crate::abi::errno::{fail, last, set};

/// The number for a device that does not open.
pub fn of_open(error: &OpenError) -> c_int {
    match error {
        OpenError::Config(_) => libc::EINVAL,
        OpenError::Owned { .. } => libc::EBUSY,
        OpenError::Net(NetError::NoSuchInterface { .. } | NetError::NotEthernet { .. }) => {
            libc::ENODEV
        }
        OpenError::Arena(_) | OpenError::Ring(_) => libc::ENOMEM,
        OpenError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EPERM,
    }
}

/// The number for an object that cannot be made or changed.
pub fn of_device(error: &DeviceError) -> c_int {
    match error {
        DeviceError::Exhausted(_) | DeviceError::Arena(_) => libc::ENOMEM,
        DeviceError::System(source) => source.raw_os_error().unwrap_or(libc::EIO),
        DeviceError::Path { source, .. } => match source {
            ResolveError::Unresolved { .. } => libc::EHOSTUNREACH,
            _ => libc::ENETUNREACH,
        },
        _ => libc::EINVAL,
    }
}

/// The number for a work request that is not taken.
pub fn of_post(error: PostError) -> c_int {
    match error {
        PostError::Full => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}
