//! A thread that sleeps in an event call does not keep the engine of a closed device open. Without
//! root, the test prints a message and passes.
// Every block is a call as a C program makes it.
#![allow(clippy::undocumented_unsafe_blocks)]

mod interface;

use std::fs;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Duration;

use feroce_verbs_abi::{ibv_async_event, ibv_comp_channel, ibv_context};
use interface::{fixture, verbs};

unsafe extern "C" {
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> i32;
}

/// Returns the sockets of the process.
fn sockets() -> usize {
    let fds = fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    let links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// Waits until two threads sleep in `read`.
fn wait_for_two_sleepers(named: &[&str]) {
    let sleeps = |task: &fs::DirEntry| {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        named.contains(&read("comm").trim()) && read("syscall").starts_with("0 ")
    };
    let count =
        || fs::read_dir("/proc/self/task").expect("procfs").flatten().filter(sleeps).count();
    while count() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_engine_closes_while_threads_wait_for_events() {
    let before = sockets();
    let Some(fixture) = fixture() else { return };
    assert!(sockets() > before, "the engine has sockets");
    let channel = unsafe { verbs::ibv_create_comp_channel(fixture.context) };
    let (channel_at, context_at) =
        (channel.expose_provenance(), fixture.context.expose_provenance());
    let start = |name: &str, wait: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.into()).spawn(wait).expect("a thread");
    };
    // The threads wait until the process ends.
    start(
        "of a CQ",
        Box::new(move || unsafe {
            let (mut cq, mut context) = (null_mut(), null_mut());
            let channel = std::ptr::with_exposed_provenance_mut::<ibv_comp_channel>(channel_at);
            verbs::ibv_get_cq_event(channel, &raw mut cq, &raw mut context);
        }),
    );
    start(
        "of the context",
        Box::new(move || unsafe {
            let mut event = MaybeUninit::uninit();
            ibv_get_async_event(
                std::ptr::with_exposed_provenance_mut(context_at),
                event.as_mut_ptr(),
            );
        }),
    );
    wait_for_two_sleepers(&["of a CQ", "of the context"]);
    unsafe {
        assert_eq!(verbs::ibv_destroy_comp_channel(channel), 0);
        assert_eq!(verbs::ibv_destroy_cq(fixture.cq), 0);
        assert_eq!(verbs::ibv_destroy_cq(fixture.other_cq), 0);
        assert_eq!(verbs::ibv_dealloc_pd(fixture.pd), 0);
        assert_eq!(verbs::ibv_dealloc_pd(fixture.other_pd), 0);
        assert_eq!(verbs::ibv_close_device(fixture.context), 0);
        assert_eq!(verbs::ibv_close_device(fixture.other), 0);
    }
    assert_eq!(sockets(), before, "the engine is closed");
}
