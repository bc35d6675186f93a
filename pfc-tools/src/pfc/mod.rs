//! Tools for priority flow control (IEEE 802.1Qbb) and PAUSE (IEEE 802.3x): `feroce pfc`.

pub mod cli;
pub mod counters;
pub mod dashboard;
pub mod deadlock;
pub mod decode;
pub mod delta;
pub mod doctor;
mod listener;
pub mod malformed;
pub mod meter;
pub mod outcome;
pub mod page;
pub mod plan;
pub mod report;
pub mod schedule;
pub mod send;
pub mod snapshot;
pub mod timeline;
pub mod timer;
mod transmit;
mod units;
pub mod watch;
pub mod watchdog;
