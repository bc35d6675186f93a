//! Feroce's RNIC.
#![deny(unsafe_code)]

pub mod cm;
pub mod congestion;
pub mod core;
pub mod counters;
pub mod device;
pub mod log;
#[allow(unsafe_code)] // A named room: the arena, the rings, the door.
pub mod memory;
pub mod net;
pub mod pfc;
#[allow(unsafe_code)]
pub mod port;
pub mod qp;
mod setting_text;
#[allow(unsafe_code)] // A named room: system calls.
pub mod sys;
pub mod time;
pub mod timer_wheel;
pub mod verbs;
pub mod wake;
