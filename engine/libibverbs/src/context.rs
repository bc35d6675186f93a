//! The context of an open device and the state that it shares with the objects created from it.

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use crate::abi::{ibv_context, verbs_context};
use crate::channel::Channel;
use crate::device::DeviceEntry;
use crate::engine::{Engine, Event};
use crate::fork;

/// State shared by a context and all objects created from it.
#[derive(Debug)]
pub struct Shared {
    /// The engine.
    pub engine: Arc<Engine>,
    /// Queue of asynchronous events for the program.
    pub events: Arc<Channel<Event>>,
    /// The device.
    pub entry: &'static DeviceEntry,
    /// Generation of the process that opened the context: see [`fork`].
    pub generation: u32,
}

impl Shared {
    /// Returns false in a forked child.
    pub fn is_own(&self) -> bool {
        fork::generation() == self.generation
    }

    /// Fails in a forked child.
    ///
    /// # Errors
    /// EIO.
    #[inline]
    pub fn check(&self) -> Result<(), c_int> {
        fork::check(self.generation)
    }
}

/// An open device context. Programs hold a pointer to the `context` field within the
/// `verbs_context`.
#[repr(C)]
pub struct Context {
    /// The C structure.
    pub abi: verbs_context,
    /// State shared with the objects created from the context.
    pub shared: Arc<Shared>,
}

/// Returns the context that contains `abi`.
///
/// # Safety
/// `abi` was returned by `ibv_open_device` and is not closed.
pub unsafe fn of_abi(abi: *mut ibv_context) -> *mut Context {
    // SAFETY: `abi` points to the `context` field of the `verbs_context` at the start of a
    // `Context`.
    unsafe { abi.byte_sub(offset_of!(verbs_context, context)).cast() }
}

/// Returns the shared state of the program's context, if this process opened it.
///
/// # Safety
/// `abi` was returned by `ibv_open_device` and is not closed.
///
/// # Errors
/// EIO in a forked child.
pub unsafe fn shared<'a>(abi: *mut ibv_context) -> Result<&'a Arc<Shared>, c_int> {
    // SAFETY: `abi` is an open context.
    let shared = unsafe { shared_in_any_process(abi) };
    shared.check()?;
    Ok(shared)
}

/// Returns the shared state of the program's context, also in a forked child. For calls that do not
/// use the engine.
///
/// # Safety
/// `abi` was returned by `ibv_open_device` and is not closed.
pub unsafe fn shared_in_any_process<'a>(abi: *mut ibv_context) -> &'a Arc<Shared> {
    // SAFETY: `abi` is an open context.
    unsafe { &(*of_abi(abi)).shared }
}
