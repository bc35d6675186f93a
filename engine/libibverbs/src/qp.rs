//! Queue pairs: the object, and the calls that do not change its state.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use feroce_engine::device::{DeviceError, QueuePair};
use feroce_engine::net::Gid;

use crate::abi::{ibv_qp, ibv_qp_ex};
use crate::channel::Unacknowledged;
use crate::context::{Shared, implement_object};
use crate::engine::Listener;
use crate::errno;
use crate::object::{self, Base, Object, Release};
use crate::qp_state::{SharedQp, State};

/// A queue pair.
#[repr(C)]
pub struct Qp {
    /// The C structure.
    pub abi: UnsafeCell<ibv_qp_ex>,
    /// What every object has.
    pub base: Base,
    /// Shared state of the context that the QP was created from.
    pub shared: Arc<Shared>,
    /// The QP. The handles of an XRC target QP share one.
    pub inner: Arc<SharedQp>,
    /// Asynchronous events that the program has read and not acknowledged.
    pub async_events: Arc<Unacknowledged>,
    /// Created with `ibv_wr_*` functions.
    pub is_extended: bool,
    /// References to the objects that the QP uses and that must not be destroyed before it.
    pub parts: Box<dyn Release + Send + Sync>,
}

// The first field is `ibv_qp_ex`, which begins with `ibv_qp`.
implement_object!(Qp: ibv_qp, handle; uses parts);

impl Qp {
    /// Runs `act` on the state with the lock held.
    #[inline]
    pub fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        self.lock();
        // SAFETY: the lock is held, and `act` cannot reach the state by another reference.
        let done = act(unsafe { &mut *self.inner.state.get() });
        self.unlock();
        done
    }

    /// Takes the lock of the state.
    #[inline]
    pub fn lock(&self) {
        self.inner.lock.lock();
    }

    /// Releases the lock of the state.
    #[inline]
    pub fn unlock(&self) {
        self.inner.lock.unlock();
    }

    /// Returns the state, for a caller that holds the lock.
    ///
    /// # Safety
    /// The caller holds the lock and has no other reference to the state.
    #[allow(clippy::mut_from_ref)] // the lock grants exclusive access
    #[inline]
    pub unsafe fn locked(&self) -> &mut State {
        // SAFETY: the lock is held and no other reference to the state exists.
        unsafe { &mut *self.inner.state.get() }
    }

    /// Registers the QP handle for asynchronous events.
    pub fn register_listener(&self) {
        let listener = Listener {
            object: self.exposed(),
            unacknowledged: Arc::clone(&self.async_events),
            channel: Arc::clone(&self.shared.events),
        };
        self.shared.engine.add_qp(self.number(), listener);
    }

    /// Shows `state` in the C structure. The caller holds the lock, so that the last change is the
    /// one that stays.
    pub fn show_state(&self, state: c_uint) {
        // SAFETY: the field is part of the object. Atomic, because the program may read it.
        let shown = unsafe { AtomicU32::from_ptr(&raw mut (*self.abi.get()).qp_base.state) };
        shown.store(state, Ordering::Relaxed);
    }

    /// Returns the QP number.
    pub fn number(&self) -> u32 {
        // SAFETY: the field does not change after creation.
        unsafe { (*self.abi.get()).qp_base.qp_num }
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match object::live::<Qp>(qp) {
        // `ibv_wr_*` finds the whole object by this pointer.
        Ok(live) if live.is_extended => live.abi().cast(),
        _ => std::ptr::null_mut(),
    }
}

/// Returns the program's live QP, if this process made it.
///
/// # Errors
/// EINVAL if it is not a live QP, EIO in a forked child.
pub fn live(qp: *mut ibv_qp) -> Result<Arc<Qp>, c_int> {
    let live = object::live::<Qp>(qp)?;
    live.shared.check()?;
    Ok(live)
}

/// Returns 0: the engine only guarantees that the last bytes of a packet become visible last, not
/// the order of all data.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _operation: c_uint,
    _flags: u32,
) -> c_int {
    0
}

/// Joins or leaves a multicast group.
///
/// # Safety
/// `group` points to 16 readable bytes, which need not be aligned.
unsafe fn membership(
    qp: *mut ibv_qp,
    group: *const [u8; 16],
    change: impl Fn(&QueuePair, Gid) -> Result<(), DeviceError>,
) -> c_int {
    // SAFETY: `group` points to 16 bytes.
    let group = Gid(unsafe { *group });
    object::code(live(qp).and_then(|live| {
        live.with(|held| change(&held.qp, group)).map_err(|error| errno::of_device(&error))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, group: *const [u8; 16], _lid: u16) -> c_int {
    // SAFETY: the program passes a GID.
    unsafe { membership(qp, group, QueuePair::attach_multicast) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, group: *const [u8; 16], _lid: u16) -> c_int {
    // SAFETY: the program passes a GID.
    unsafe { membership(qp, group, QueuePair::detach_multicast) }
}
