//! Threads that the program cancels while they wait for events, as rping and libiscsi do. Without
//! root, only the event channel of the RDMA CM is tested.
// Every block is a call as a C program makes it.
#![allow(clippy::undocumented_unsafe_blocks)]

#[path = "../../libibverbs/tests/interface/mod.rs"]
mod interface;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use feroce_librdmacm as _; // links the functions declared below
use feroce_verbs_abi::{
    RDMA_PS_TCP, ibv_async_event, ibv_context, rdma_cm_event, rdma_cm_id, rdma_event_channel,
};
use interface::{fixture, verbs, zeroed};

unsafe extern "C-unwind" {
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event)
    -> c_int;
    fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        space: c_uint,
    ) -> c_int;
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int;
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
}

type Thread = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

extern "C-unwind" fn wait_for_cm(channel: *mut c_void) -> *mut c_void {
    let mut event = null_mut();
    unsafe { rdma_get_cm_event(channel.cast(), &raw mut event) };
    null_mut()
}

extern "C-unwind" fn wait_for_request(listener: *mut c_void) -> *mut c_void {
    let mut id = null_mut();
    unsafe { rdma_get_request(listener.cast(), &raw mut id) };
    null_mut()
}

extern "C-unwind" fn wait_for_cq(channel: *mut c_void) -> *mut c_void {
    let (mut cq, mut context) = (null_mut(), null_mut());
    unsafe { verbs::ibv_get_cq_event(channel.cast(), &raw mut cq, &raw mut context) };
    null_mut()
}

extern "C-unwind" fn wait_for_async(context: *mut c_void) -> *mut c_void {
    let mut event = std::mem::MaybeUninit::uninit();
    unsafe { ibv_get_async_event(context.cast(), event.as_mut_ptr()) };
    null_mut()
}

/// Returns the open descriptors of the process, once their number has not changed for 100 ms: the
/// library's threads open and close some when a device is opened.
fn descriptors() -> usize {
    let count = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
    let mut last = count();
    loop {
        std::thread::sleep(std::time::Duration::from_millis(100));
        match count() {
            now if now == last => return now,
            now => last = now,
        }
    }
}

fn cancel(thread: Thread, argument: *mut c_void) {
    type Start = extern "C" fn(*mut c_void) -> *mut c_void;
    // The C library does not know Rust's ABIs.
    let start = unsafe { std::mem::transmute::<Thread, Start>(thread) };
    for delay_ms in [0, 30] {
        let (mut thread, mut result) = (0, null_mut());
        unsafe {
            assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), start, argument), 0);
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
            assert_eq!(libc::pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        }
        assert_eq!(result.addr().cast_signed(), -1, "PTHREAD_CANCELED");
    }
}

#[test]
fn waiting_threads_can_be_cancelled() {
    let fixture = fixture(); // first, because the library looks for devices once
    let before = descriptors();
    let channel = unsafe { rdma_create_event_channel() };
    cancel(wait_for_cm, channel.cast());
    unsafe { rdma_destroy_event_channel(channel) };
    assert_eq!(descriptors(), before, "nothing is left of the channel");
    let Some(fixture) = fixture else { return };
    let channel = unsafe { verbs::ibv_create_comp_channel(fixture.context) };
    cancel(wait_for_cq, channel.cast());
    cancel(wait_for_async, fixture.context.cast());
    assert_eq!(unsafe { verbs::ibv_destroy_comp_channel(channel) }, 0);
    let mut listener = null_mut();
    let mut any: libc::sockaddr_in = zeroed();
    any.sin_family = u16::try_from(libc::AF_INET).expect("a small number");
    unsafe {
        assert_eq!(rdma_create_id(null_mut(), &raw mut listener, null_mut(), RDMA_PS_TCP), 0);
        assert_eq!(rdma_bind_addr(listener, (&raw mut any).cast()), 0);
        assert_eq!(rdma_listen(listener, 1), 0);
    }
    cancel(wait_for_request, listener.cast());
    assert_eq!(unsafe { rdma_destroy_id(listener) }, 0);
}
