//! Experiments with congestion: a fabric of hosts, lines and switches in virtual time, and the scenarios that it runs.
#![forbid(unsafe_code)]

pub mod cli;
pub mod fabric;

pub mod plot;
pub mod report;
pub mod results;
pub mod run;
pub mod scenarios;
pub mod sweep;
