//! Tools for priority flow control (IEEE 802.1Qbb) and PAUSE (IEEE 802.3x): `feroce pfc`.

pub mod capture;
pub mod cli;
pub mod decode;
pub mod meter;
pub mod page;
pub mod plan;
pub mod report;
pub mod timeline;
mod units;
