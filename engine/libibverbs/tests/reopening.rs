//! Threads that open and close a device at the same time: while one thread closes the device, the
//! others can open it. Without root, the test prints a message and passes.
// Every block is a call as a C program makes it.
#![allow(clippy::undocumented_unsafe_blocks)]

mod interface;

use interface::{Fixture, errno, fixture, verbs};

const THREADS: usize = 4;
/// How often each thread opens and closes.
const ROUNDS: usize = 25;

#[test]
fn a_device_opens_while_another_thread_closes_it() {
    let Some(fixture) = fixture() else { return };
    unsafe {
        assert_eq!(verbs::ibv_destroy_cq(fixture.cq), 0);
        assert_eq!(verbs::ibv_destroy_cq(fixture.other_cq), 0);
        assert_eq!(verbs::ibv_dealloc_pd(fixture.pd), 0);
        assert_eq!(verbs::ibv_dealloc_pd(fixture.other_pd), 0);
        assert_eq!(verbs::ibv_close_device(fixture.context), 0);
        assert_eq!(verbs::ibv_close_device(fixture.other), 0);
    }
    // Threads are born in the network namespace of their parent.
    let refused: Vec<i32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| reopen(fixture))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(refused, Vec::<i32>::new(), "error numbers of the openings that failed");
}

/// Opens and closes the device; returns the error numbers of failures.
fn reopen(fixture: &Fixture) -> Vec<i32> {
    let mut refused = Vec::new();
    for _ in 0..ROUNDS {
        let context = fixture.open();
        match context.is_null() {
            true => refused.push(errno()),
            false => assert_eq!(unsafe { verbs::ibv_close_device(context) }, 0),
        }
    }
    refused
}
