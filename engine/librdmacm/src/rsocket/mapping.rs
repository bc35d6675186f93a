//! `riomap` and `riounmap`: the program maps a buffer, so that the peer can write into it.

use std::ffi::{c_int, c_void};

use super::mapped_buffers::{Announcement, Buffer};
use super::protocol::{Mapping, Remote};
use super::socket::{State, StreamSocket};
use super::verbs::ibv_reg_mr;
use crate::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE};
use crate::errno;

impl StreamSocket {
    /// Maps a buffer at `offset`, or at its address if `offset` is `None`. Returns the offset.
    ///
    /// # Errors
    /// EINVAL before the connection is established and for other protections than PROT_WRITE,
    /// ENOMEM if the peer's table is full.
    pub fn map(
        &self,
        buffer: *mut c_void,
        length: usize,
        protection: c_int,
        offset: Option<u64>,
    ) -> Result<u64, c_int> {
        if protection & !libc::PROT_WRITE != 0 {
            return Err(libc::EINVAL);
        }
        let mut inner = self.lock();
        let (State::Open(link) | State::Accepting(link)) = &mut inner.state else {
            return Err(libc::EINVAL);
        };
        let (pd, entries) = (link.queues().pd(), link.stream.peer().mappings);
        let (index, access) = if protection & libc::PROT_WRITE == 0 {
            (None, IBV_ACCESS_LOCAL_WRITE)
        } else {
            let index = inner.mappings.free_index(entries).ok_or(libc::ENOMEM)?;
            (Some(index), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        };
        // SAFETY: the PD is that of the QP; the program keeps the buffer valid until it is
        // unmapped.
        let mr = unsafe { ibv_reg_mr(pd, buffer, length, access.cast_signed()) };
        if mr.is_null() {
            return Err(errno::last());
        }
        let address = buffer.expose_provenance();
        let offset = offset.unwrap_or(address as u64);
        inner.mappings.buffers.push(Buffer { mr, address, length, index });
        if let Some(index) = index {
            // SAFETY: the registration is live.
            let key = unsafe { (*mr).rkey };
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            let buffer = Remote { address: address as u64, key, length };
            let mapping = Mapping { offset, buffer };
            inner.mappings.unannounced.push_back(Announcement { index, mapping });
        }
        Ok(offset)
    }

    /// Unmaps a buffer.
    ///
    /// # Errors
    /// EINVAL if the buffer is not mapped.
    pub fn unmap(&self, buffer: *mut c_void, length: usize) -> Result<(), c_int> {
        let mappings = &mut self.lock().mappings;
        let wanted = (buffer.addr(), length);
        let found =
            mappings.buffers.iter().position(|buffer| (buffer.address, buffer.length) == wanted);
        let buffer = mappings.buffers.remove(found.ok_or(libc::EINVAL)?);
        mappings.unannounced.retain(|announced| Some(announced.index) != buffer.index);
        Ok(())
    }
}
