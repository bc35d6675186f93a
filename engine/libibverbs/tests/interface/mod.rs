//! An interface with an open device, and the functions of the library as C programs see them.
#![allow(dead_code)] // each test program uses a part

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::OnceLock;

use feroce_libibverbs as _; // links the functions declared below
use feroce_verbs_abi::*;

/// The exported functions that the tests call.
pub mod verbs {
    use super::*;

    unsafe extern "C-unwind" {
        pub fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            context: *mut *mut c_void,
        ) -> c_int;
    }

    unsafe extern "C" {
        pub fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
        pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        pub fn ibv_close_device(context: *mut ibv_context) -> c_int;
        pub fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        pub fn ibv_query_port(
            context: *mut ibv_context,
            port: u8,
            attr: *mut ibv_port_attr,
        ) -> c_int;
        pub fn ibv_query_gid(
            context: *mut ibv_context,
            port: u8,
            index: c_int,
            gid: *mut [u64; 2],
        ) -> c_int;
        pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        pub fn ibv_reg_mr(
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: usize,
            access: c_int,
        ) -> *mut ibv_mr;
        pub fn ibv_rereg_mr(
            mr: *mut ibv_mr,
            flags: c_int,
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: usize,
            access: c_int,
        ) -> c_int;
        pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        pub fn ibv_create_cq(
            context: *mut ibv_context,
            entries: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            vector: c_int,
        ) -> *mut ibv_cq;
        pub fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int;
        pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        pub fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        pub fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
        pub fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
        pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
        pub fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
        pub fn ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            mask: c_int,
            init: *mut ibv_qp_init_attr,
        ) -> c_int;
        pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        pub fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        pub fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
        pub fn ibv_resolve_eth_l2_from_gid(
            context: *mut ibv_context,
            attr: *mut ibv_ah_attr,
            mac: *mut [u8; 6],
            vlan: *mut u16,
        ) -> c_int;
        pub fn ibv_attach_mcast(qp: *mut ibv_qp, group: *const [u8; 16], lid: u16) -> c_int;
        pub fn ibv_detach_mcast(qp: *mut ibv_qp, group: *const [u8; 16], lid: u16) -> c_int;
        pub fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
        pub fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
        pub fn _ibv_query_gid_ex(
            context: *mut ibv_context,
            port: u32,
            index: u32,
            entry: *mut ibv_gid_entry,
            flags: u32,
            size: usize,
        ) -> c_int;
    }
}

/// An open device on a veth interface in a network namespace of its own.
#[derive(Clone, Copy)]
pub struct Fixture {
    pub device: *mut ibv_device,
    pub context: *mut ibv_context,
    /// Another context of the device, and a PD and a CQ of it.
    pub other: *mut ibv_context,
    pub other_pd: *mut ibv_pd,
    pub other_cq: *mut ibv_cq,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    /// Two pages.
    pub memory: *mut c_void,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Fixture {}
// SAFETY: as for `Send`.
unsafe impl Sync for Fixture {}

const ADDRESS: &str = "10.91.0.1";

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Makes two namespaces, one with the interface and one with its other end, and removes their
/// names: they live as long as the descriptors.
fn namespaces() -> [File; 2] {
    let names = ["a", "b"].map(|end| format!("fr-ffi-{}{end}", std::process::id()));
    let [name, peer] = &names;
    ip(&format!("netns add {name}"));
    ip(&format!("netns add {peer}"));
    ip(&format!("link add v0 netns {name} type veth peer name v1 netns {peer}"));
    ip(&format!("-n {name} address add {ADDRESS}/24 dev v0"));
    ip(&format!("-n {name} link set v0 up"));
    ip(&format!("-n {peer} link set v1 up"));
    names.map(|name| {
        let file = File::open(format!("/run/netns/{name}")).expect("a namespace");
        ip(&format!("netns delete {name}"));
        file
    })
}

/// Moves this thread into the namespace and returns the device there. `None`, after a message,
/// without root.
pub fn fixture() -> Option<&'static Fixture> {
    static FIXTURE: OnceLock<([File; 2], Fixture)> = OnceLock::new();
    // SAFETY: the call has no arguments and no effects.
    if unsafe { libc::geteuid() } != 0 {
        feroce_test_skip::skip("network namespaces need root");
        return None;
    }
    let enter = |namespace: &File| {
        // SAFETY: the descriptor is open; the call moves only this thread.
        let moved = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(moved, 0, "setns");
    };
    let (namespaces, fixture) = FIXTURE.get_or_init(|| {
        let namespaces = namespaces();
        enter(&namespaces[0]);
        (namespaces, Fixture::new())
    });
    enter(&namespaces[0]);
    Some(fixture)
}

impl Fixture {
    fn new() -> Self {
        // SAFETY: the arguments are valid, and every result is checked.
        unsafe {
            let mut count = 0;
            let list = verbs::ibv_get_device_list(&raw mut count);
            assert!(count > 0, "no device: errno {}", errno());
            let device = *list;
            let (context, other) = (verbs::ibv_open_device(device), verbs::ibv_open_device(device));
            assert!(!context.is_null() && !other.is_null(), "errno {}", errno());
            let (pd, other_pd) = (verbs::ibv_alloc_pd(context), verbs::ibv_alloc_pd(other));
            let cq = verbs::ibv_create_cq(context, 16, null_mut(), null_mut(), 0);
            let other_cq = verbs::ibv_create_cq(other, 16, null_mut(), null_mut(), 0);
            assert!(!pd.is_null() && !other_pd.is_null() && !cq.is_null() && !other_cq.is_null());
            let (rights, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let memory = libc::mmap(null_mut(), 8192, rights, flags, -1, 0);
            Self { device, context, other, other_pd, other_cq, pd, cq, memory }
        }
    }

    /// Opens another context.
    pub fn open(&self) -> *mut ibv_context {
        // SAFETY: the device is one of the list.
        unsafe { verbs::ibv_open_device(self.device) }
    }

    /// Creates a CQ, for a test that changes it or counts its users.
    pub fn create_cq(&self) -> *mut ibv_cq {
        // SAFETY: the context is open.
        unsafe { verbs::ibv_create_cq(self.context, 16, null_mut(), null_mut(), 0) }
    }

    /// Creates an address handle to the device's own address.
    pub fn create_ah(&self, pd: *mut ibv_pd) -> *mut ibv_ah {
        let mut attr = self.ah_attr();
        // SAFETY: the attributes are valid.
        unsafe { verbs::ibv_create_ah(pd, &raw mut attr) }
    }

    /// Returns the address of the device itself.
    pub fn ah_attr(&self) -> ibv_ah_attr {
        let mut attr: ibv_ah_attr = zeroed();
        (attr.is_global, attr.port_num, attr.grh.hop_limit) = (1, 1, 1);
        for index in 0..8 {
            let mut gid = [0; 2];
            // SAFETY: the context is open and `gid` is writable.
            unsafe { verbs::ibv_query_gid(self.context, 1, index, &raw mut gid) };
            let wanted = [0, u64::from_ne_bytes([0, 0, 255, 255, 10, 91, 0, 1])];
            if gid == wanted {
                attr.grh.dgid = gid;
                attr.grh.sgid_index = u8::try_from(index).expect("small");
            }
        }
        attr
    }
}

/// Returns a C structure of zeros.
pub fn zeroed<T>() -> T {
    // SAFETY: only used for C structures of numbers and pointers.
    unsafe { std::mem::zeroed() }
}

/// Returns the functions that `verbs.h` calls through a context.
pub fn ops(context: *mut ibv_context) -> &'static verbs_context {
    // SAFETY: the context of a test is open as long as the process lives.
    unsafe { &*context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
}

type CopyToDm = unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int;

/// Returns the function that copies to device memory.
pub fn memcpy_to_dm() -> CopyToDm {
    static FUNCTION: OnceLock<CopyToDm> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let context = fixture().expect("root").context;
        let mut init: ibv_alloc_dm_attr = zeroed();
        init.length = 64;
        // SAFETY: the attributes are valid, and the result is live until it is freed.
        unsafe {
            let dm = ops(context).alloc_dm.expect("a function")(context, &raw mut init);
            let function = (*dm).memcpy_to_dm.expect("a function");
            ops(context).free_dm.expect("a function")(dm);
            function
        }
    })
}

/// Returns `errno`.
pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Sets `errno`.
pub fn set_errno(code: c_int) {
    // SAFETY: the location belongs to this thread.
    unsafe { *libc::__errno_location() = code };
}
