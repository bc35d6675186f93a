//! Feroce's RNIC: verbs objects, QPs, memory, ports and cores.

#![deny(unsafe_code)]

pub mod cm;
pub mod congestion;
pub mod core;
pub mod counters;
pub mod device;
pub mod log;
#[allow(unsafe_code)] // The arena, the rings, access to registered memory.
pub mod memory;
pub mod net;
pub mod pfc;
#[allow(unsafe_code)] // Rings shared with the kernel and with libdpdk.
pub mod port;
pub mod qp;
mod setting_text;
#[allow(unsafe_code)] // System calls.
pub mod sys;
pub mod time;
pub mod timer_wheel;
pub mod verbs;
pub mod wake;
