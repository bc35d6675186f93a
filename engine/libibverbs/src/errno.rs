//! Error numbers: those that rdma-core and the kernel drivers return in the same case.

use std::ffi::c_int;

use feroce_engine::device::{DeviceError, OpenError, PostError};
use feroce_engine::net::{NetError, ResolveError};

pub use crate::abi::errno::{fail, last, set};

/// Returns the error number for a device that cannot be opened.
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

/// Returns the error number for an object that cannot be created or changed.
pub fn of_device(error: &DeviceError) -> c_int {
    match error {
        DeviceError::Exhausted(_) | DeviceError::Arena(_) => libc::ENOMEM,
        DeviceError::System(source) | DeviceError::DmaBuf(source) => {
            source.raw_os_error().unwrap_or(libc::EIO)
        }
        DeviceError::Busy(_) => libc::EBUSY,
        DeviceError::Path { source, .. } => match source {
            ResolveError::Unresolved { .. } => libc::EHOSTUNREACH,
            _ => libc::ENETUNREACH,
        },
        _ => libc::EINVAL,
    }
}

/// Returns the error number for a work request that is refused.
pub fn of_post(error: PostError) -> c_int {
    match error {
        PostError::Full => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}
