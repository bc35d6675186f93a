//! The device list: the Ethernet interfaces named by the environment or the settings, or all usable
//! ones. Listing devices opens nothing.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use feroce_engine::device::settings::Settings;
use feroce_engine::net::Interface;

use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};
use crate::{errno, log};

/// A device of the list. Never freed: there is one per interface, and programs may keep the
/// pointers.
#[repr(C)]
pub struct DeviceEntry {
    abi: ibv_device,
    /// Zeros where rdma-core's provider libraries look for their own function pointers.
    none: [u64; 128],
    /// The interface's name when the devices were listed.
    pub interface: String,
    /// Index of the interface, which a new name does not change.
    pub interface_index: u32,
    /// Node GUID in network byte order, of the interface. That of an open device is the port's.
    guid: u64,
    /// Index n of `feroce<n>`.
    pub index: c_int,
}

// SAFETY: the entry does not change after construction, and its pointers are null.
unsafe impl Sync for DeviceEntry {}
// SAFETY: the entry does not change after construction, and its pointers are null.
unsafe impl Send for DeviceEntry {}

impl std::fmt::Debug for DeviceEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "feroce{} on {}", self.index, self.interface)
    }
}

impl DeviceEntry {
    fn new(interface: &Interface, index: usize) -> Self {
        let (name, node) = (format!("feroce{index}"), format!("uverbs{index}"));
        let abi = ibv_device {
            _ops: [None; 2],
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            dev_path: text(&format!("/sys/class/infiniband_verbs/{node}")),
            ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
            name: text(&name),
            dev_name: text(&node),
        };
        Self {
            abi,
            none: [0; 128],
            interface: interface.name.clone(),
            interface_index: interface.index,
            guid: u64::from_ne_bytes(interface.mac.eui64()),
            index: c_int::try_from(index).unwrap_or(-1),
        }
    }

    /// Returns the pointer that programs use.
    pub fn abi(&'static self) -> *mut ibv_device {
        std::ptr::from_ref(self).cast_mut().cast() // The whole entry, not only its first field.
    }

    /// Returns the index in the list.
    pub fn number(&self) -> u32 {
        self.index.cast_unsigned()
    }
}

/// Copies text into a field of `N` characters, truncated to leave room for the terminating zero.
pub fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
    field
}

/// Returns the devices of this process; the first call finds them.
fn devices() -> &'static [DeviceEntry] {
    static DEVICES: OnceLock<Vec<DeviceEntry>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        log::start();
        let found = interfaces().unwrap_or_else(|why| {
            log::print(&why);
            Vec::new()
        });
        found.iter().enumerate().map(|(index, found)| DeviceEntry::new(found, index)).collect()
    })
}

/// Returns the interfaces that become devices, or the reason why there are none.
fn interfaces() -> Result<Vec<Interface>, String> {
    let settings = Settings::load().map_err(|error| error.to_string())?;
    if !settings.interfaces.is_empty() {
        let read = |name: &String| Interface::read(name).map_err(|error| error.to_string());
        return settings.interfaces.iter().map(read).collect();
    }
    let all = Interface::list().map_err(|error| error.to_string())?;
    // The parent interface carries the frames of its VLAN sub-interfaces.
    let is_device = |interface: &Interface| {
        !interface.loopback && interface.vlan.is_none() && interface.is_usable()
    };
    Ok(all.into_iter().filter(is_device).collect())
}

/// Returns the entry of a device that the program passed, if `ibv_get_device_list` returned it.
pub fn entry(abi: *mut ibv_device) -> Option<&'static DeviceEntry> {
    devices().iter().find(|entry| entry.abi() == abi)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = devices();
    let mut list: Vec<_> = devices.iter().map(DeviceEntry::abi).collect();
    list.push(std::ptr::null_mut());
    // Allocated with calloc because `ibv_free_device_list` frees it without knowing its length.
    // SAFETY: a plain allocation; the result is checked below.
    let memory = unsafe { libc::calloc(list.len(), size_of::<*mut ibv_device>()) };
    let memory = memory.cast::<*mut ibv_device>();
    if memory.is_null() {
        return errno::fail(libc::ENOMEM);
    }
    // SAFETY: the allocation has room for the list; `count` is null or writable.
    unsafe {
        memory.copy_from_nonoverlapping(list.as_ptr(), list.len());
        if let Some(count) = count.as_mut() {
            *count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX);
        }
    }
    memory
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the program passes a list from `ibv_get_device_list`, which allocated it with
    // `calloc`, or null.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // The structure is public. As in rdma-core, the name is read from it: a copy has a name, too.
    // SAFETY: the program passes null or a pointer to a device.
    match unsafe { device.as_ref() } {
        Some(device) => device.name.as_ptr(),
        None => errno::fail::<c_char>(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    entry(device).map_or(-1, |entry| entry.index)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    entry(device).map_or(0, |entry| entry.guid)
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_copy_of_a_device_has_a_name() {
        let mut copy = ibv_device {
            _ops: [None; 2],
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            name: text("mock7"),
            dev_name: text(""),
            dev_path: text(""),
            ibdev_path: text(""),
        };
        // SAFETY: the pointer is to a live structure.
        let name = unsafe { ibv_get_device_name(&raw mut copy) };
        assert!(!name.is_null());
        // SAFETY: the name ends with a zero and lives as long as the structure.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"mock7");
        // SAFETY: null is permitted.
        assert!(unsafe { ibv_get_device_name(std::ptr::null_mut()) }.is_null());
    }
}
