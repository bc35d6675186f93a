//! Memory windows.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use feroce_engine::device::MemoryWindow;
use feroce_engine::memory::{Access, WindowBind, WindowType};
use feroce_wire::Key;

use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info,
    ibv_pd, ibv_qp,
};
use crate::context::{Shared, implement_object};
use crate::convert::send_flags;
use crate::domain::{self, Pd};
use crate::errno;
use crate::lock::HeldLock;
use crate::memory::{Mr, rights};
use crate::object::{self, Base, Use};
use crate::qp::Qp;

/// A memory window.
#[repr(C)]
pub struct Mw {
    abi: UnsafeCell<ibv_mw>,
    base: Base,
    shared: Arc<Shared>,
    /// Guards the window below while it is bound.
    lock: HeldLock,
    window: UnsafeCell<MemoryWindow>,
    _pd: Use<Pd>,
}

implement_object!(Mw: ibv_mw, handle; uses _pd);

/// `ibv_alloc_mw`
pub extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    object::give_or_fail(domain::live(pd).and_then(|live| {
        let window = match kind {
            IBV_MW_TYPE_1 => WindowType::One,
            IBV_MW_TYPE_2 => WindowType::Two,
            _ => return Err(libc::EINVAL),
        };
        let window = live.pd.alloc_mw(window).map_err(|error| errno::of_device(&error))?;
        let rkey = window.rkey();
        let (context, handle) = (live.context(), rkey.index());
        let abi = ibv_mw { context, pd, rkey: rkey.value(), handle, r#type: kind };
        Ok(Arc::new(Mw {
            abi: UnsafeCell::new(abi),
            base: Base::new(context.addr(), handle),
            shared: Arc::clone(&live.shared),
            lock: HeldLock::new(),
            window: UnsafeCell::new(window),
            _pd: Use::new(live)?,
        }))
    }))
}

/// `ibv_dealloc_mw`
pub extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    object::code(
        object::destroy::<Mw>(mw, |mw| mw.shared.check()).map(|destroyed| drop(destroyed.finish())),
    )
}

/// Returns the engine's bind request for `rkey`.
///
/// # Safety
/// The region in `info` is null or live.
pub unsafe fn window_bind(info: &ibv_mw_bind_info, rkey: Key) -> Result<WindowBind, c_int> {
    let lkey = match info.mr.is_null() {
        true if info.length > 0 => return Err(libc::EINVAL),
        true => Key(0),
        // SAFETY: the region is not null, so it is live.
        false => unsafe { object::borrow::<Mr>(info.mr) }.lkey(),
    };
    // Windows give access to peers only; local write access depends on the region.
    let access = rights(info.mw_access_flags & !IBV_ACCESS_LOCAL_WRITE)?;
    let known = access.without(Access::REMOTE).without(Access::ZERO_BASED) == Access::NONE;
    if !known {
        return Err(libc::EINVAL);
    }
    Ok(WindowBind { rkey, lkey, addr: info.addr, length: info.length, access })
}

/// Returns the engine's bind request for a type 2 window. The program chooses the last eight bits
/// of the key; the other bits of `rkey` do not count, as with every provider.
///
/// # Safety
/// The window and the region are null or live.
pub unsafe fn bind_type_2(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<WindowBind, c_int> {
    // SAFETY: `mw` is null or live.
    let window = unsafe { mw.as_ref() }.ok_or(libc::EINVAL)?;
    if window.r#type != IBV_MW_TYPE_2 || info.mr.is_null() {
        return Err(libc::EINVAL);
    }
    let key = Key::from_parts(Key(window.rkey).index(), Key(rkey).variant());
    // A region of another protection domain fails the completion, not the call.
    // SAFETY: the region is not null, so it is live.
    unsafe { window_bind(info, key) }
}

/// `ibv_bind_mw`
pub unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the program passes a live QP, a live window and a valid `ibv_mw_bind`.
    let (qp, live, request) =
        unsafe { (object::borrow::<Qp>(qp), object::borrow::<Mw>(mw), *bind) };
    let done = live.shared.check().and_then(|()| {
        // SAFETY: the region is null or live.
        let wanted = unsafe { window_bind(&request.bind_info, Key(0)) }?;
        live.lock.lock();
        // SAFETY: this thread holds the lock that guards the window.
        let window = unsafe { &mut *live.window.get() };
        let flags = send_flags(request.send_flags);
        let bound = qp.with(|held| held.qp.bind_mw(request.wr_id, window, &wanted, flags));
        if let Ok(key) = bound {
            // SAFETY: the window is live, and this thread holds its lock.
            unsafe { (*live.abi.get()).rkey = key.value() };
        }
        live.lock.unlock();
        bound.map_err(errno::of_post).map(|_| ())
    });
    object::code(done)
}
