//! XRC domains, which several contexts may share by a file.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use feroce_engine::device::{CompletionQueue, Device, ProtectionDomain, XrcDomain};

use crate::errno;
use crate::qp_state::SharedQp;

/// An XRC domain.
#[derive(Debug)]
pub struct XrcDomainShared {
    /// The engine's XRC domain.
    pub xrc: XrcDomain,
    /// XRC target QPs have no PD and no CQs of the program: the SRQs provide theirs. This PD stands
    /// for the missing one.
    pub pd: ProtectionDomain,
    /// Fills the place of the CQs of XRC target QPs.
    pub cq: CompletionQueue,
    qps: Mutex<BTreeMap<u32, Weak<SharedQp>>>,
    /// The file the domain belongs to, if any: while the domain lives, no other file can get the
    /// same inode.
    _file: Option<OwnedFd>,
}

/// Identity of a file: device and inode.
type File = (u64, u64);

/// XRC domains by file.
pub type XrcFiles = Mutex<BTreeMap<File, Weak<XrcDomainShared>>>;

impl XrcDomainShared {
    /// Creates a domain; `file` is kept open while it lives.
    pub fn new(device: &Device, file: Option<OwnedFd>) -> Result<Arc<Self>, c_int> {
        let cq = device.create_cq(1).map_err(|error| errno::of_device(&error))?;
        let (xrc, pd) = (device.open_xrcd(), device.alloc_pd());
        Ok(Arc::new(Self { xrc, pd, cq, qps: Mutex::default(), _file: file }))
    }

    /// Returns the domain of a file. `flags` work as for opening files (O_CREAT, O_EXCL).
    pub fn of_file(
        device: &Device,
        files: &XrcFiles,
        fd: c_int,
        flags: c_int,
    ) -> Result<Arc<Self>, c_int> {
        // SAFETY: all-zero bytes are a valid `stat`, which the call fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is a writable structure.
        if unsafe { libc::fstat(fd, &raw mut stat) } != 0 {
            return Err(errno::last());
        }
        let mut files = lock(files);
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
                let domain = Self::new(device, Some(kept))?;
                files.insert(file, Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }

    /// Makes the XRC target QP available to `ibv_open_qp` under this number.
    pub fn add(&self, number: u32, qp: &Arc<SharedQp>) {
        let mut qps = lock(&self.qps);
        qps.retain(|_, qp| qp.strong_count() > 0);
        qps.insert(number, Arc::downgrade(qp));
    }

    /// Returns the XRC target QP with this number.
    pub fn find(&self, number: u32) -> Option<Arc<SharedQp>> {
        lock(&self.qps).get(&number).and_then(Weak::upgrade)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
