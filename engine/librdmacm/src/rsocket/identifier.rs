//! An RDMA CM identifier with an event channel of its own. Safe wrapper for this library's `rdma_*`
//! functions.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr;

use super::address::{self, CAddress};
use crate::abi::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED, ibv_qp_init_attr, rdma_cm_event,
    rdma_cm_id, rdma_conn_param, rdma_event_channel,
};
use crate::address::{rdma_bind_addr, rdma_listen};
use crate::connect::{rdma_accept, rdma_connect, rdma_disconnect, rdma_reject};
use crate::errno;
use crate::event::rdma_get_cm_event;
use crate::event_channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel,
};
use crate::id::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
use crate::option::rdma_set_option;
use crate::qp::rdma_create_qp;
use crate::resolve::{rdma_resolve_addr, rdma_resolve_route};

/// Largest private data of an event, in bytes.
const DATA_MAX: usize = 196;

/// An event of the connection manager.
pub struct Event {
    /// `rdma_cm_event_type`
    pub kind: u32,
    /// 0 or the error number.
    pub error: c_int,
    /// The peer's private data.
    pub data: Vec<u8>,
    /// For a connection request: the new identifier and the requested parameters.
    pub request: Option<(Identifier, rdma_conn_param)>,
}

/// An identifier and its event channel.
#[derive(Debug)]
pub struct Identifier {
    channel: *mut rdma_event_channel,
    id: *mut rdma_cm_id,
}

// SAFETY: the library's objects may be used from any thread, and this is their only owner.
unsafe impl Send for Identifier {}
// SAFETY: the library guards the shared state with locks of its own.
unsafe impl Sync for Identifier {}

impl Identifier {
    /// Creates an identifier in a port space.
    pub fn new(space: u32) -> Result<Self, c_int> {
        let mut identifier = Self { channel: channel()?, id: ptr::null_mut() };
        let id = &raw mut identifier.id;
        // SAFETY: the channel is live, and `id` is writable.
        check(unsafe { rdma_create_id(identifier.channel, id, ptr::null_mut(), space) })?;
        Ok(identifier)
    }

    /// Takes over the identifier of a connection request and moves it to a channel of its own.
    fn adopt(id: *mut rdma_cm_id) -> Result<Self, c_int> {
        let identifier = Self { channel: channel().unwrap_or(ptr::null_mut()), id };
        if identifier.channel.is_null() {
            return Err(libc::EMFILE);
        }
        // SAFETY: both are live, and no event of the identifier is unacknowledged.
        check(unsafe { rdma_migrate_id(id, identifier.channel) })?;
        Ok(identifier)
    }

    /// Returns the descriptor that is readable while events are pending.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel is live.
        unsafe { (*self.channel).fd }
    }

    /// Returns the C structure.
    pub fn raw(&self) -> *mut rdma_cm_id {
        self.id
    }

    /// Returns the next event, or `None`.
    pub fn next_event(&self) -> Result<Option<Event>, c_int> {
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel is live; its descriptor is nonblocking.
        if unsafe { rdma_get_cm_event(self.channel, &raw mut event) } != 0 {
            return match errno::last() {
                libc::EAGAIN => Ok(None),
                code => Err(code),
            };
        }
        // SAFETY: the event is live until it is acknowledged.
        let read = unsafe { &*event };
        let (kind, id) = (read.event, read.id);
        let error = match (kind, read.status) {
            (_, 0) => 0,
            (RDMA_CM_EVENT_REJECTED, _) => libc::ECONNREFUSED,
            (_, status) => status.abs(),
        };
        // SAFETY: rsockets connect RC identifiers only, whose events carry connection parameters.
        let parameters = unsafe { read.param.conn };
        let data = private_data(&parameters);
        rdma_ack_cm_event(event);
        let request = match kind {
            RDMA_CM_EVENT_CONNECT_REQUEST => Some((Self::adopt(id)?, parameters)),
            _ => None,
        };
        Ok(Some(Event { kind, error, data, request }))
    }

    /// Binds to a local address.
    pub fn bind(&self, address: SocketAddr) -> Result<(), c_int> {
        // SAFETY: the identifier is live; the address is valid during the call.
        check(unsafe { rdma_bind_addr(self.id, CAddress::from(address).pointer()) })
    }

    /// Starts to listen.
    pub fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        // SAFETY: the identifier is live.
        check(unsafe { rdma_listen(self.id, backlog) })
    }

    /// Starts address resolution; an event reports the result. `timeout` is in milliseconds.
    pub fn resolve_address(&self, to: SocketAddr, timeout: c_int) -> Result<(), c_int> {
        let (source, mut to) = (ptr::null_mut(), CAddress::from(to));
        // SAFETY: the identifier is live; the address is valid during the call.
        check(unsafe { rdma_resolve_addr(self.id, source, to.pointer(), timeout) })
    }

    /// Starts route resolution; an event reports the result. `timeout` is in milliseconds.
    pub fn resolve_route(&self, timeout: c_int) -> Result<(), c_int> {
        // SAFETY: the identifier is live.
        check(unsafe { rdma_resolve_route(self.id, timeout) })
    }

    /// Creates the QP.
    pub fn create_qp(&self, attributes: &mut ibv_qp_init_attr) -> Result<(), c_int> {
        // SAFETY: the identifier is live; a null PD selects the identifier's own.
        check(unsafe { rdma_create_qp(self.id, ptr::null_mut(), attributes) })
    }

    /// Sends a connection request with private data.
    pub fn connect(&self, data: &[u8]) -> Result<(), c_int> {
        let mut parameters = parameters(data);
        (parameters.flow_control, parameters.retry_count, parameters.rnr_retry_count) = (1, 7, 7);
        // SAFETY: the identifier is live; the parameters and their data are valid during the call.
        check(unsafe { rdma_connect(self.id, &raw mut parameters) })
    }

    /// Accepts a connection request with these parameters.
    pub fn accept(&self, request: &rdma_conn_param, data: &[u8]) -> Result<(), c_int> {
        let local = parameters(data);
        let mut parameters = rdma_conn_param {
            private_data: local.private_data,
            private_data_len: local.private_data_len,
            ..*request
        };
        // SAFETY: the identifier is live; the parameters and their data are valid during the call.
        check(unsafe { rdma_accept(self.id, &raw mut parameters) })
    }

    /// Rejects a connection request.
    pub fn reject(&self) {
        // SAFETY: the identifier is live; there is no private data. If the call fails, the peer's
        // request times out.
        unsafe { rdma_reject(self.id, ptr::null(), 0) };
    }

    /// Disconnects.
    pub fn disconnect(&self) {
        // SAFETY: the identifier is live. The call fails if there is no connection, which is the
        // wanted state.
        unsafe { rdma_disconnect(self.id) };
    }

    /// Sets an option of the connection manager.
    ///
    /// # Safety
    /// `value` has `length` readable bytes.
    pub unsafe fn set_option(
        &self,
        (level, option): (c_int, c_int),
        value: *mut c_void,
        length: usize,
    ) -> Result<(), c_int> {
        // SAFETY: the identifier is live; `value` has `length` readable bytes.
        check(unsafe { rdma_set_option(self.id, level, option, value, length) })
    }

    /// Returns the local address and the peer's.
    pub fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        // SAFETY: the identifier is live.
        let addresses = unsafe { &(*self.id).route.addr };
        let [local, peer] = [&addresses.src_storage, &addresses.dst_storage].map(|storage| {
            let length = size_of_val(storage).try_into().unwrap_or(0);
            // SAFETY: the storage has `length` bytes.
            unsafe { address::read(ptr::from_ref(storage).cast(), length) }.ok()
        });
        (local, peer)
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe {
            if !self.id.is_null() {
                rdma_destroy_id(self.id);
            }
            if !self.channel.is_null() {
                rdma_destroy_event_channel(self.channel);
            }
        }
    }
}

/// Converts the result of a function that returns 0, or -1 with `errno` set.
fn check(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(errno::last()) }
}

/// Creates a nonblocking event channel.
fn channel() -> Result<*mut rdma_event_channel, c_int> {
    let channel = rdma_create_event_channel();
    if channel.is_null() {
        return Err(errno::last());
    }
    // SAFETY: the channel was created above and owns the descriptor.
    unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
    Ok(channel)
}

fn parameters(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: u8::try_from(data.len()).unwrap_or(u8::MAX),
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    }
}

fn private_data(parameters: &rdma_conn_param) -> Vec<u8> {
    let length = usize::from(parameters.private_data_len).min(DATA_MAX);
    if parameters.private_data.is_null() {
        return Vec::new();
    }
    // SAFETY: the event is not acknowledged yet and contains `private_data_len` bytes.
    unsafe { std::slice::from_raw_parts(parameters.private_data.cast(), length) }.to_vec()
}
