//! Handles to XRC domains: `ibv_open_xrcd` and `ibv_close_xrcd`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::context::{self, Shared, implement_object};
use crate::object::{self, Base};
use crate::xrc_domain::XrcDomainShared;

/// A handle to an XRC domain. Other contexts may have opened the same domain by its file.
#[repr(C)]
pub struct Xrcd {
    abi: UnsafeCell<ibv_xrcd>,
    base: Base,
    shared: Arc<Shared>,
    /// The domain that all handles share.
    pub domain: Arc<XrcDomainShared>,
}

implement_object!(Xrcd: ibv_xrcd);

/// `ibv_open_xrcd`
pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const NEEDED: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    object::give_or_fail(context::shared(context).and_then(|shared| {
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
        let base = Base::new(context.addr(), 0);
        Ok(Arc::new(Xrcd { abi: UnsafeCell::new(ibv_xrcd { context }), base, shared, domain }))
    }))
}

/// `ibv_close_xrcd`
pub extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    object::code(
        object::destroy::<Xrcd>(xrcd, |xrcd| xrcd.shared.check())
            .map(|destroyed| drop(destroyed.finish())),
    )
}
