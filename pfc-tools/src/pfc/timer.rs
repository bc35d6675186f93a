//! The pause timers of a receiver of flow control frames.

/// Timers of a receiver: one for each priority, and [`PAUSE`].
pub const TIMERS: usize = 9;
/// The timer of PAUSE, which blocks every priority.
pub const PAUSE: usize = 8;

/// Name of a timer.
pub fn timer_name(timer: usize) -> String {
    if timer == PAUSE { "PAUSE".to_owned() } else { format!("priority {timer}") }
}
