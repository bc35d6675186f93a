//! `feroce conform`: checks captures of RoCE traffic against the rules of the protocol, and tests
//! RoCE endpoints.
//!
//! ```text
//! trace     reads capture files as frames in time order   packet  finds the RoCE packet in a frame
//! flow      assigns packets to QP pairs                   rules   the rules as data
//! check     checks packets against the rules              report  an HTML page about a check
//! replay    plays captured connections with the engine, or to a real endpoint
//! inject    applies faults to chosen packets and checks how endpoints handle them
//! endpoint  the endpoints that replay and inject control: Feroce, and Linux rxe
//! failure   the outcome of a command
//! ```
//!
//! `device_pair`, `virtual_wire` and `gated_port` run devices of the engine in virtual time; the
//! test suites use them, too.

#![forbid(unsafe_code)]

pub mod capture_file;
pub mod check;
pub mod cli;
pub mod device_pair;
pub mod endpoint;
pub mod failure;
pub mod flow;
pub mod gated_port;
pub mod inject;
pub mod packet;
pub mod party;
pub mod replay;
pub mod report;
pub mod rules;
#[cfg(test)]
mod test_captures;
pub mod trace;
pub mod virtual_wire;
