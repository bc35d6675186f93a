//! XRC domains.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use feroce_engine::device::{CompletionQueue, ProtectionDomain, XrcDomain};

use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::context::{self, Shared};
use crate::errno;
use crate::object::{self, Object};
use crate::qp::Shareable;

/// A handle to an XRC domain. Other contexts may have opened the same domain by its file.
#[repr(C)]
pub struct Xrcd {
    abi: UnsafeCell<ibv_xrcd>,
    shared: Arc<Shared>,
    /// The domain that all handles share.
    pub domain: Arc<Domain>,
    /// Number of SRQs and QPs created with this handle.
    pub users: AtomicUsize,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Xrcd {
    type Abi = ibv_xrcd;
}

/// An XRC domain.
#[derive(Debug)]
pub struct Domain {
    /// The engine's XRC domain.
    pub xrc: XrcDomain,
    /// XRC target QPs have no PD and no CQs of the program: the SRQs provide theirs. This PD fills
    /// the place.
    pub pd: ProtectionDomain,
    /// Fills the place of the CQs of XRC target QPs.
    pub cq: CompletionQueue,
    qps: Mutex<BTreeMap<u32, Weak<Shareable>>>,
    /// The file the domain belongs to, if any: while the domain lives, no other file can get the
    /// same inode.
    _file: Option<OwnedFd>,
}

/// Identity of a file: device and inode.
type File = (u64, u64);

/// XRC domains by file.
pub type Files = Mutex<BTreeMap<File, Weak<Domain>>>;

impl Domain {
    fn new(shared: &Shared, file: Option<OwnedFd>) -> Result<Arc<Self>, c_int> {
        let device = &shared.engine.device;
        let cq = device.create_cq(1).map_err(|error| errno::of_device(&error))?;
        let (xrc, pd) = (device.open_xrcd(), device.alloc_pd());
        Ok(Arc::new(Self { xrc, pd, cq, qps: Mutex::default(), _file: file }))
    }

    /// Returns the domain of a file. `flags` work as for opening files (O_CREAT, O_EXCL).
    fn of_file(shared: &Shared, fd: c_int, flags: c_int) -> Result<Arc<Self>, c_int> {
        // SAFETY: all-zero bytes are a valid `stat`, which the call fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is a writable structure.
        if unsafe { libc::fstat(fd, &raw mut stat) } != 0 {
            return Err(errno::last());
        }
        let mut files = lock(&shared.engine.xrc_files);
        files.retain(|_, domain| domain.strong_count() > 0);
        let file = (stat.st_dev, stat.st_ino);
        match files.get(&file).and_then(Weak::upgrade) {
            Some(_) if flags & libc::O_EXCL != 0 => Err(libc::EINVAL),
            Some(domain) => Ok(domain),
            None if flags & libc::O_CREAT == 0 => Err(libc::EAGAIN),
            None => {
                // SAFETY: the program passes an open descriptor and does not close it during the
                // call.
                let kept = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
                let kept = kept.map_err(|error| error.raw_os_error().unwrap_or(libc::EBADF))?;
                let domain = Self::new(shared, Some(kept))?;
                files.insert(file, Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }

    /// Makes the XRC target QP available to `ibv_open_qp` under this number.
    pub fn add(&self, number: u32, qp: &Arc<Shareable>) {
        let mut qps = lock(&self.qps);
        qps.retain(|_, qp| qp.strong_count() > 0);
        qps.insert(number, Arc::downgrade(qp));
    }

    /// Returns the XRC target QP with this number.
    pub fn find(&self, number: u32) -> Option<Arc<Shareable>> {
        lock(&self.qps).get(&number).and_then(Weak::upgrade)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let domain = match attr.fd {
            -1 => Domain::new(shared, None)?, // not shared: no file
            fd => Domain::of_file(shared, fd, attr.oflags)?,
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
