#![no_main]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// As in every Rust program with a `main` of Rust: a write to a program that has gone must not end
/// the daemon.
fn ignore_sigpipe() {
    let arrived = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, arrived).expect("a signal");
}

libfuzzer_sys::fuzz_target!(
    init: ignore_sigpipe(),
    |data: &[u8]| feroce_engine::daemon::fuzz::feed(data)
);
