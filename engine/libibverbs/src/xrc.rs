//! Handles to XRC domains: `ibv_open_xrcd` and `ibv_close_xrcd`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::context::{self, Shared};
use crate::object::{self, Object};
use crate::xrc_domain::XrcDomainShared;

/// A handle to an XRC domain. Other contexts may have opened the same domain by its file.
#[repr(C)]
pub struct Xrcd {
    abi: UnsafeCell<ibv_xrcd>,
    shared: Arc<Shared>,
    /// The domain that all handles share.
    pub domain: Arc<XrcDomainShared>,
    /// Number of SRQs and QPs created with this handle.
    pub users: AtomicUsize,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Xrcd {
    type Abi = ibv_xrcd;
}

/// `ibv_open_xrcd`
pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const NEEDED: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    // SAFETY: the program passes an open context and attributes.
    let (shared, attr) = unsafe { (context::shared(context), *attr) };
    let made = shared.and_then(|shared| {
        if attr.comp_mask & !NEEDED != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask != NEEDED || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(libc::EINVAL);
        }
        let (device, files) = (&shared.engine.device, &shared.engine.xrc_files);
        let domain = match attr.fd {
            -1 => XrcDomainShared::new(device, None)?, // not shared: no file
            fd => XrcDomainShared::of_file(device, files, fd, attr.oflags)?,
        };
        Ok(Box::new(Xrcd {
            abi: UnsafeCell::new(ibv_xrcd { context }),
            shared: Arc::clone(shared),
            domain,
            users: AtomicUsize::new(0),
        }))
    });
    object::give_or_fail(made)
}

/// `ibv_close_xrcd`
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the program passes a live XRC domain.
    let live = unsafe { object::borrow::<Xrcd>(xrcd) };
    if let Err(code) = live.shared.check() {
        return code;
    }
    if live.users.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: the program passes a live XRC domain and does not use it again; no object was created
    // with this handle.
    drop(unsafe { object::take::<Xrcd>(xrcd) });
    0
}
