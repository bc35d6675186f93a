//! Opening and closing a device: the context, with the functions that `verbs.h` calls through it.

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use crate::abi::{EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::channel::Channel;
use crate::device::{self, DeviceEntry};
use crate::engine::{Engine, Event};
use crate::{cq, cq_ex, errno, fork, post, qp, query, srq};

/// What a context and the objects made from it share.
#[derive(Debug)]
pub struct Shared {
    /// The engine.
    pub engine: Arc<Engine>,
    /// Asynchronous events on their way to the program.
    pub events: Arc<Channel<Event>>,
    /// The device.
    pub entry: &'static DeviceEntry,
    /// The process that it belongs to: see [`fork`].
    generation: u32,
}

impl Shared {
    /// Refuses if this is a forked child.
    ///
    /// # Errors
    /// EIO.
    #[inline]
    pub fn check(&self) -> Result<(), c_int> {
        fork::check(self.generation)
    }
}

/// A context. Programs hold a pointer to the `context` within the `verbs_context`.
#[repr(C)]
pub struct Context {
    abi: verbs_context,
    shared: Arc<Shared>,
}

/// Completion vectors: there is one helper to notify from.
const VECTORS: c_int = 1;

impl Context {
    fn open(entry: &'static DeviceEntry) -> Result<Box<Self>, c_int> {
        let engine = Engine::open(entry)?;
        let events = Arc::new(Channel::new()?);
        engine.add_context(&events);
        let shared = Shared { engine, events, entry, generation: fork::generation() };
        // SAFETY: null pointers, empty entries and zeros are values of the plain structure.
        let mut abi: verbs_context = unsafe { std::mem::zeroed() };
        abi.query_port = Some(query::query_port);
        abi.query_device_ex = Some(query::query_device_ex);
        abi.create_cq_ex = Some(cq_ex::create_cq_ex);
        abi.create_qp_ex = Some(qp::create_qp_ex);
        abi.modify_cq = Some(cq::modify_cq);
        abi.sz = size_of::<verbs_context>();
        abi.context.device = entry.abi();
        abi.context.ops.poll_cq = Some(cq::poll_cq);
        abi.context.ops.req_notify_cq = Some(cq::req_notify_cq);
        abi.context.ops.post_send = Some(post::post_send);
        abi.context.ops.post_recv = Some(post::post_recv);
        abi.context.ops.post_srq_recv = Some(srq::post_srq_recv);
        abi.context.cmd_fd = -1;
        abi.context.async_fd = shared.events.fd();
        abi.context.num_comp_vectors = VECTORS;
        abi.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        abi.context.abi_compat = std::ptr::without_provenance_mut(EXTENDED);
        Ok(Box::new(Self { abi, shared: Arc::new(shared) }))
    }
}

const _: () = assert!(size_of::<ibv_context_ops>() == 32 * size_of::<usize>());

/// The context that a program means.
///
/// # Safety
/// `abi` came from [`ibv_open_device`] and was not closed.
unsafe fn of(abi: *mut ibv_context) -> *mut Context {
    // SAFETY: it points to the field of that name in a `Context`.
    unsafe { abi.byte_sub(offset_of!(verbs_context, context)).cast() }
}

/// What the program's context shares with its objects, if this process may use it.
///
/// # Safety
/// As for [`of`].
///
/// # Errors
/// EIO in a forked child.
pub unsafe fn shared<'a>(abi: *mut ibv_context) -> Result<&'a Arc<Shared>, c_int> {
    // SAFETY: the caller says that the context is open.
    let shared = unsafe { &(*of(abi)).shared };
    shared.check()?;
    Ok(shared)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the program passes a device of the list.
    match Context::open(unsafe { device::entry(device) }) {
        // SAFETY: the field lies within the allocation.
        Ok(context) => unsafe { &raw mut (*Box::into_raw(context)).abi.context },
        Err(code) => errno::fail(code),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the program passes an open context, and does not use it from now on.
    let context = unsafe { Box::from_raw(of(context)) };
    if context.shared.check().is_err() {
        // The parent's engine: its threads are not here to be waited for.
        std::mem::forget(context);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    // A context lives in its process: there is no kernel object to share.
    errno::fail(libc::EOPNOTSUPP)
}
