//! Shared by the benchmark examples.

/// The kernel's scheduler statistics of this thread: the first number is the run time in
/// nanoseconds.
#[allow(clippy::cast_precision_loss)] // Nanoseconds of hours.
pub fn processor_seconds() -> f64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("a kernel with schedstat");
    let nanos: u64 = text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    nanos as f64 / 1e9
}
