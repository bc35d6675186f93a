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

/// An XRC domain that a program opened. The domain itself may have been opened more than once: by its file.
#[repr(C)]
pub struct Xrcd {
    abi: UnsafeCell<ibv_xrcd>,
    shared: Arc<Shared>,
    /// What all who opened it have.
    pub domain: Arc<Domain>,
    /// Shared receive queues and QPs made by this handle.
    pub users: AtomicUsize,
}

// SAFETY: the first field is the C structure.
unsafe impl Object for Xrcd {
    type Abi = ibv_xrcd;
}

/// A domain.
#[derive(Debug)]
pub struct Domain {
    /// The engine's.
    pub xrc: XrcDomain,
    /// Receiving QPs have no protection domain and no CQs of the program: the shared receive queues bring theirs.
    pub pd: ProtectionDomain,
    /// As above.
    pub cq: CompletionQueue,
    qps: Mutex<BTreeMap<u32, Weak<Shareable>>>,
    /// Its file, if it is of one: no other file gets the inode while the domain lives.
    _file: Option<OwnedFd>,
}

/// A file: its device and inode.
type File = (u64, u64);

/// The domains of files.
pub type Files = Mutex<BTreeMap<File, Weak<Domain>>>;

impl Domain {
    fn new(shared: &Shared, file: Option<OwnedFd>) -> Result<Arc<Self>, c_int> {
        let device = &shared.engine.device;
        let cq = device.create_cq(1).map_err(|error| errno::of_device(&error))?;
        let (xrc, pd) = (device.open_xrcd(), device.alloc_pd());
        Ok(Arc::new(Self { xrc, pd, cq, qps: Mutex::default(), _file: file }))
    }

    /// The domain of a file, as the flags for opening files say.
    fn of_file(shared: &Shared, fd: c_int, flags: c_int) -> Result<Arc<Self>, c_int> {
        // SAFETY: zeros are values of the plain structure, which the call fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
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
                // SAFETY: the program's descriptor, which it does not close meanwhile.
                let kept = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
                let kept = kept.map_err(|error| error.raw_os_error().unwrap_or(libc::EBADF))?;
                let domain = Self::new(shared, Some(kept))?;
                files.insert(file, Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }

    /// Lets others open the receiving QP with this number.
    pub fn add(&self, number: u32, qp: &Arc<Shareable>) {
        let mut qps = lock(&self.qps);
        qps.retain(|_, qp| qp.strong_count() > 0);
        qps.insert(number, Arc::downgrade(qp));
    }

    /// The receiving QP with this number.
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
            -1 => Domain::new(shared, None)?, // Of nobody else.
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
    // SAFETY: the program passes a live domain.
    let live = unsafe { object::borrow::<Xrcd>(xrcd) };
    if let Err(code) = live.shared.check() {
        return code;
    }
    if live.users.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: as above; nothing was made in it by this handle.
    drop(unsafe { object::take::<Xrcd>(xrcd) });
    0
}
