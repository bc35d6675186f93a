//! Congestion experiments: a fabric of hosts, links and switches in virtual time, its scenarios,
//! the same switches in real time between real endpoints, and tools for priority flow control.
#![forbid(unsafe_code)]

mod batch;
pub mod capture;
pub mod cli;
pub mod convert;
mod curve;
pub mod dcb;
pub mod fabric;
pub mod frame;
pub mod live;
mod meter;
mod parallel;
pub mod pfc;
pub mod plot;
pub mod published;
pub mod report;
pub mod results;
pub mod run;
pub mod scenarios;
mod study;
pub mod sweep;
pub mod terminal;
