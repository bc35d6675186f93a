//! Tools for priority flow control (IEEE 802.1Qbb) and PAUSE (IEEE 802.3x): `feroce pfc`.

pub mod cli;
pub mod counters;
pub mod deadlock;
pub mod decode;
pub mod doctor;
pub mod malformed;
pub mod meter;
pub mod page;
pub mod plan;
mod play;
pub mod recent;
pub mod report;
pub mod schedule;
pub mod send;
pub mod timeline;
mod units;
pub mod watch;
pub mod watchdog;
