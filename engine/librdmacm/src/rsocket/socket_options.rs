//! `rsetsockopt` and `rgetsockopt` of a stream socket.

use std::ffi::{c_int, c_void};

use super::options::{RDMA_ROUTE, SOL_RDMA, number};
use super::socket::{State, StreamSocket};
use super::wait::Awaited;
use crate::abi::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR,
};

impl StreamSocket {
    /// Sets an option.
    ///
    /// # Safety
    /// `value` is null or has `length` readable bytes.
    pub unsafe fn set_option(
        &self,
        option: (c_int, c_int),
        value: *const c_void,
        length: usize,
    ) -> Result<(), c_int> {
        let mut inner = self.lock();
        let is_connecting = !matches!(inner.state, State::Idle | State::Listening(_));
        let cm_option = match option {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY),
            (SOL_RDMA, RDMA_ROUTE) => (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH),
            _ => {
                // Queues and buffers are created with the connection.
                let is_buffer_size =
                    matches!(option, (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF));
                if is_connecting && option.0 == SOL_RDMA {
                    return Err(libc::EINVAL);
                }
                if is_connecting && is_buffer_size {
                    return Ok(());
                }
                // SAFETY: `value` is null or has `length` readable bytes.
                return inner.options.set(option, unsafe { number(value, length)? });
            }
        };
        // SAFETY: `value` has `length` readable bytes.
        unsafe { inner.identifier.set_option(cm_option, value.cast_mut(), length)? };
        if option.0 == SOL_RDMA {
            return Ok(());
        }
        // SAFETY: `value` is null or has `length` readable bytes.
        inner.options.set(option, unsafe { number(value, length)? })
    }

    /// Returns the value of an option. Reading `SO_ERROR` clears it.
    pub fn option(&self, option: (c_int, c_int)) -> Result<c_int, c_int> {
        let mut inner = self.lock();
        match option {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                inner.progress();
                Ok(std::mem::take(&mut inner.error))
            }
            _ => inner.options.get(option),
        }
    }
}
