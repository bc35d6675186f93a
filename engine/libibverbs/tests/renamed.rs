//! The interface of an open device gets another name, and is removed. Without root, the test prints
//! a message and passes.

mod interface;

use std::ffi::c_int;
use std::process::Command;

use feroce_verbs_abi as abi;
use feroce_verbs_abi::{ibv_async_event, ibv_context};
use interface::{fixture, verbs, zeroed};

unsafe extern "C" {
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *mut ibv_async_event);
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_renamed_interface_is_found_and_a_removed_one_ends_the_device() {
    let Some(fixture) = fixture() else { return };
    let query = || {
        let mut attr = zeroed();
        // SAFETY: the context is open, and the structure is writable.
        unsafe { verbs::ibv_query_port(fixture.context, 1, &raw mut attr) }
    };
    assert_eq!(query(), 0);
    ip("link set v0 down");
    ip("link set v0 name eth7");
    ip("link set eth7 up");
    assert_eq!(query(), 0, "the interface is the same");
    ip("link delete eth7");
    assert_eq!(query(), libc::ENODEV);
    loop {
        let mut event: ibv_async_event = zeroed();
        // SAFETY: the context is open, and the structure is writable; the event is one that the
        // first call has returned.
        unsafe {
            assert_eq!(ibv_get_async_event(fixture.context, &raw mut event), 0);
            ibv_ack_async_event(&raw mut event);
        }
        // Events of the link and of addresses come before.
        if event.event_type == abi::IBV_EVENT_DEVICE_FATAL {
            return;
        }
    }
}
