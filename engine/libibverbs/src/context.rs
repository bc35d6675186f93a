//! The context of an open device and the state that it shares with the objects created from it.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use crate::abi::{ibv_context, verbs_context};
use crate::channel::Channel;
use crate::device::DeviceEntry;
use crate::engine::{Engine, Event};
use crate::fork;
use crate::object::{self, Base, Object};

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
    pub abi: UnsafeCell<verbs_context>,
    base: Base,
    /// State shared with the objects created from the context.
    pub shared: Arc<Shared>,
}

// SAFETY: the C structure is in a cell, and its pointers are the program's, which may use them from
// every thread.
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

// SAFETY: `abi` is implemented, and contexts are not passed to `borrow`.
unsafe impl Object for Context {
    type Abi = ibv_context;

    fn base(&self) -> &Base {
        &self.base
    }

    fn release_uses(&self) {}

    fn abi(&self) -> *mut ibv_context {
        self.abi.get().wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }
}

impl Context {
    /// Creates a context from its C structure.
    pub fn new(abi: verbs_context, shared: Shared) -> Arc<Self> {
        let base = Base::new(0, 0);
        Arc::new(Self { abi: UnsafeCell::new(abi), base, shared: Arc::new(shared) })
    }
}

/// Returns the shared state of the program's context, if this process opened it.
///
/// # Errors
/// EINVAL if it is not an open context, EIO in a forked child.
pub fn shared(abi: *mut ibv_context) -> Result<Arc<Shared>, c_int> {
    let shared = shared_in_any_process(abi)?;
    shared.check()?;
    Ok(shared)
}

/// Returns the shared state of the program's context, even in a forked child. For calls that do not
/// use the engine.
///
/// # Errors
/// EINVAL if it is not an open context.
pub fn shared_in_any_process(abi: *mut ibv_context) -> Result<Arc<Shared>, c_int> {
    object::live::<Context>(abi).map(|context| Arc::clone(&context.shared))
}

/// Returns the live object at `abi` if it belongs to `context`, an address.
///
/// # Errors
/// EINVAL otherwise.
pub fn live_in<T: Object>(context: usize, abi: *mut T::Abi) -> Result<Arc<T>, c_int> {
    let live = object::live::<T>(abi)?;
    if live.base().context() == context { Ok(live) } else { Err(libc::EINVAL) }
}

/// Returns the live object at `abi` if it belongs to `context`, an address; `None` for null.
///
/// # Errors
/// EINVAL otherwise.
pub fn live_in_or_null<T: Object>(
    context: usize,
    abi: *mut T::Abi,
) -> Result<Option<Arc<T>>, c_int> {
    if abi.is_null() { Ok(None) } else { live_in(context, abi).map(Some) }
}

/// Implements [`Object`] for a type with the fields `abi`, a cell with a C structure that begins
/// with the named one, and `base`. The C structure has a field `context`, and may have one with the
/// object's number. `uses` lists the fields with the objects that must not be destroyed before it.
macro_rules! implement_object {
    ($type:ident: $abi:ident $(, $handle:ident)? $(; uses $($uses:ident),+)?) => {
        // SAFETY: `#[repr(C)]`, and the first field is a cell that begins with the C structure.
        unsafe impl crate::object::Object for $type {
            type Abi = crate::abi::$abi;

            fn base(&self) -> &crate::object::Base {
                &self.base
            }

            fn release_uses(&self) {
                $($(crate::object::Release::release(&self.$uses);)+)?
            }

            fn shown(&self) -> (usize, u32) {
                let abi = self.abi.get().cast::<crate::abi::$abi>();
                // SAFETY: the structure is part of this object.
                unsafe { ((*abi).context.addr(), 0 $( + (*abi).$handle )?) }
            }
        }

        // SAFETY: other fields than the C structure may be used from every thread. The pointers in
        // the C structure are the program's, which may use them from every thread.
        unsafe impl Send for $type {}
        // SAFETY: as for `Send`; the C structure is in a cell.
        unsafe impl Sync for $type {}
    };
}
pub(crate) use implement_object;
