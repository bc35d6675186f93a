//! Devices. All are opened when the first identifier needs one and stay open until the process
//! ends, so that every identifier on a device has the same context. A forked child opens its own.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use crate::abi::connections::feroce_cm_attach;
use crate::abi::{ibv_context, ibv_device, ibv_device_attr, ibv_pd, ibv_xrcd};
use crate::errno;
use crate::id_state::queue_event;
use crate::outcome::{check_code, non_null};
use crate::process::PerProcess;
use crate::verbs;

/// An open device that connections use.
#[derive(Debug)]
pub struct Device {
    /// The verbs context.
    pub context: *mut ibv_context,
    /// Protection domain for QPs whose program passes none.
    pub pd: *mut ibv_pd,
    /// XRC domain for programs that pass none; opened on first use.
    xrc_domain: Mutex<Option<XrcDomain>>,
    /// Index from `ibv_get_device_index`.
    pub index: u32,
    /// RDMA READs and atomics that a QP may have outstanding as requester.
    pub max_initiator_depth: u8,
    /// RDMA READs and atomics that a QP accepts at a time as responder.
    pub max_responder_resources: u8,
}

#[derive(Debug)]
struct XrcDomain(*mut ibv_xrcd);

// SAFETY: verbs contexts and protection domains may be used from every thread.
unsafe impl Sync for Device {}
// SAFETY: verbs contexts and protection domains may be used from every thread.
unsafe impl Send for Device {}
// SAFETY: XRC domains may be used from every thread.
unsafe impl Sync for XrcDomain {}
// SAFETY: XRC domains may be used from every thread.
unsafe impl Send for XrcDomain {}

/// Returns the devices of the process, opened on the first call. A device that cannot be opened is
/// left out; libibverbs prints the reason on standard error. If there is none, the next call tries
/// again.
pub fn all() -> &'static [Device] {
    open().unwrap_or_default()
}

/// As [`all`].
///
/// # Errors
/// Why the first device could not be opened, such as EBUSY if another process has its interface;
/// ENODEV if there is no device.
fn open() -> Result<&'static [Device], c_int> {
    static DEVICES: PerProcess<Mutex<&[Device]>> = PerProcess::new(Mutex::default);
    let mut devices = DEVICES.get().lock().unwrap_or_else(PoisonError::into_inner);
    if devices.is_empty() {
        let mut why = None;
        let opened: Vec<_> = map_devices(|device| {
            // SAFETY: the device is an element of the list.
            let context = non_null(unsafe { verbs::ibv_open_device(device) });
            // SAFETY: the context was opened above.
            let opened = context.and_then(|context| unsafe { Device::new(context) });
            opened.map_err(|code| *why.get_or_insert(code)).ok()
        });
        if opened.is_empty() {
            return Err(why.unwrap_or(libc::ENODEV));
        }
        *devices = opened.leak();
    }
    Ok(*devices)
}

/// Collects what `make` returns for each device present.
fn map_devices<T>(make: impl FnMut(*mut ibv_device) -> Option<T>) -> Vec<T> {
    let mut count = 0;
    // SAFETY: the list has `count` devices, and is freed once.
    unsafe {
        let list = verbs::ibv_get_device_list(&raw mut count);
        if list.is_null() {
            return Vec::new();
        }
        let count = usize::try_from(count).unwrap_or(0);
        let made = std::slice::from_raw_parts(list, count).iter().copied().filter_map(make);
        let made = made.collect();
        verbs::ibv_free_device_list(list);
        made
    }
}

/// Checks that there are devices, without opening any.
///
/// # Errors
/// ENODEV
pub fn check_present() -> Result<(), c_int> {
    if map_devices(Some).is_empty() { Err(libc::ENODEV) } else { Ok(()) }
}

/// Opens all devices.
///
/// # Errors
/// None can be opened: ENODEV if there is none, otherwise why, such as EBUSY.
pub fn open_all() -> Result<(), c_int> {
    open().map(drop)
}

/// Returns the device with this index.
///
/// # Errors
/// ENODEV
pub fn by_index(index: u32) -> Result<&'static Device, c_int> {
    all().iter().find(|device| device.index == index).ok_or(libc::ENODEV)
}

impl Device {
    /// Returns the XRC domain for queues whose program passes none.
    ///
    /// # Errors
    /// The error number of `ibv_open_xrcd`.
    pub fn xrc_domain(&self) -> Result<*mut ibv_xrcd, c_int> {
        let mut domain = self.xrc_domain.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(domain) = &*domain {
            return Ok(domain.0);
        }
        // SAFETY: the context stays open until the process ends.
        let opened = non_null(unsafe { verbs::open_xrcd(self.context) })?;
        *domain = Some(XrcDomain(opened));
        Ok(opened)
    }

    /// Attaches an open context to the connection manager. Closes the context on failure.
    ///
    /// # Safety
    /// `context` is open and nothing else uses it.
    unsafe fn new(context: *mut ibv_context) -> Result<Self, c_int> {
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        let mut index = 0;
        // SAFETY: `context` is open; the out parameters are writable.
        let opened = unsafe {
            let queried = check_code(verbs::ibv_query_device(context, &raw mut attr));
            let attached = queried
                .and_then(|()| check_code(feroce_cm_attach(context, queue_event, &raw mut index)));
            attached.and_then(|()| non_null(verbs::ibv_alloc_pd(context)))
        };
        let most = |number: c_int| u8::try_from(number).unwrap_or(u8::MAX);
        match opened {
            Ok(pd) => Ok(Self {
                context,
                pd,
                xrc_domain: Mutex::default(),
                index,
                max_initiator_depth: most(attr.max_qp_init_rd_atom),
                max_responder_resources: most(attr.max_qp_rd_atom),
            }),
            Err(code) => {
                // SAFETY: `context` is open and nothing else uses it.
                unsafe { verbs::ibv_close_device(context) };
                Err(code)
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    if let Err(code) = check_present() {
        // SAFETY: `count` is null or writable.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = 0;
        }
        return errno::fail(code);
    }
    let contexts = all().iter().map(|device| device.context);
    let mut list: Vec<_> = contexts.collect();
    let length = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
    list.push(std::ptr::null_mut());
    // SAFETY: a plain allocation, checked below; `count` is null or writable.
    unsafe {
        let memory = libc::calloc(list.len(), size_of::<*mut ibv_context>());
        let memory = memory.cast::<*mut ibv_context>();
        if let Some(count) = count.as_mut() {
            *count = if memory.is_null() { 0 } else { length };
        }
        if memory.is_null() {
            return errno::fail(libc::ENOMEM);
        }
        memory.copy_from_nonoverlapping(list.as_ptr(), list.len());
        memory
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the program passes a list from `rdma_get_devices`, which allocated it with `calloc`.
    unsafe { libc::free(list.cast()) };
}
