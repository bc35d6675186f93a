//! Devices: opened when the first identifier needs one, and open as long as the process, so that every identifier on a device has
//! the same context.

use std::ffi::c_int;
use std::sync::OnceLock;

use crate::abi::connections::feroce_cm_attach;
use crate::abi::{ibv_context, ibv_device_attr, ibv_pd, ibv_xrcd};
use crate::errno;
use crate::event::sink;
use crate::outcome::{checked, made};
use crate::verbs;

/// An open device that connections go through.
#[derive(Debug)]
pub struct Device {
    /// Its context.
    pub context: *mut ibv_context,
    /// For QPs whose program has no domain of its own.
    pub pd: *mut ibv_pd,
    /// For XRC, made when it is needed.
    xrc_domain: OnceLock<Result<XrcDomain, c_int>>,
    /// By `ibv_get_device_index`.
    pub index: u32,
    /// READs and atomics that a QP may have under way.
    pub max_initiator_depth: u8,
    /// READs and atomics that a QP answers at a time.
    pub max_responder_resources: u8,
}

#[derive(Debug)]
struct XrcDomain(*mut ibv_xrcd);

// SAFETY: contexts and domains may be used by every thread.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for XrcDomain {}
// SAFETY: as above.
unsafe impl Send for XrcDomain {}

/// The devices of the process; those that do not open are left out, after libibverbs' word on standard error.
pub fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let mut count = 0;
        // SAFETY: the list has `count` devices, and is freed once.
        unsafe {
            let list = verbs::ibv_get_device_list(&raw mut count);
            if list.is_null() {
                return Vec::new();
            }
            let count = usize::try_from(count).unwrap_or(0);
            let devices = std::slice::from_raw_parts(list, count);
            let devices = devices.iter().filter_map(|device| {
                let context = verbs::ibv_open_device(*device);
                (!context.is_null()).then(|| Device::new(context)).transpose().ok().flatten()
            });
            let devices = devices.collect();
            verbs::ibv_free_device_list(list);
            devices
        }
    })
}

/// Opens all devices.
///
/// # Errors
/// ENODEV if there is none.
pub fn open() -> Result<(), c_int> {
    if all().is_empty() { Err(libc::ENODEV) } else { Ok(()) }
}

/// The device with the index.
///
/// # Errors
/// ENODEV
pub fn by_index(index: u32) -> Result<&'static Device, c_int> {
    all().iter().find(|device| device.index == index).ok_or(libc::ENODEV)
}

impl Device {
    /// The domain of XRC queues whose program has none.
    ///
    /// # Errors
    /// What verbs refuse.
    pub fn xrc_domain(&self) -> Result<*mut ibv_xrcd, c_int> {
        // SAFETY: the context stays open.
        let open = || made(unsafe { verbs::open_xrcd(self.context) }).map(XrcDomain);
        self.xrc_domain.get_or_init(open).as_ref().map(|domain| domain.0).map_err(|code| *code)
    }

    /// # Safety
    /// The context is open; it is closed on failure.
    unsafe fn new(context: *mut ibv_context) -> Result<Self, c_int> {
        // SAFETY: zeros are values of the plain structure.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        let mut index = 0;
        // SAFETY: the caller says that the context is open.
        let opened = unsafe {
            let asked = checked(verbs::ibv_query_device(context, &raw mut attr));
            let attached =
                asked.and_then(|()| checked(feroce_cm_attach(context, sink, &raw mut index)));
            attached.and_then(|()| made(verbs::ibv_alloc_pd(context)))
        };
        let most = |number: c_int| u8::try_from(number).unwrap_or(u8::MAX);
        match opened {
            Ok(pd) => Ok(Self {
                context,
                pd,
                xrc_domain: OnceLock::new(),
                index,
                max_initiator_depth: most(attr.max_qp_init_rd_atom),
                max_responder_resources: most(attr.max_qp_rd_atom),
            }),
            Err(code) => {
                // SAFETY: nobody else has it.
                unsafe { verbs::ibv_close_device(context) };
                Err(code)
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let contexts = all().iter().map(|device| device.context);
    let mut list: Vec<_> = contexts.collect();
    let told = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
    list.push(std::ptr::null_mut());
    // SAFETY: a plain allocation, checked below; `count` is null or may be written.
    unsafe {
        let memory = libc::calloc(list.len(), size_of::<*mut ibv_context>());
        let memory = memory.cast::<*mut ibv_context>();
        if let Some(count) = count.as_mut() {
            *count = if memory.is_null() { 0 } else { told };
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
    // SAFETY: it came from `calloc` above.
    unsafe { libc::free(list.cast()) };
}
