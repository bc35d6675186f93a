//! Conformance: is a capture legal, and does an endpoint answer as it should?
//!
//! ```text
//! trace   files to frames, in the order of time       packet  a frame to what it says
//! flow    packets to QP pairs, and what is known of them
//! rules   what must hold, as data                     check   packets against the rules
//! report  a page about a check                        replay  a capture, played again by the engine
//! inject  faults at chosen packets, and what an endpoint makes of them
//! ```

#![forbid(unsafe_code)]

pub mod capture_file;
pub mod check;
pub mod cli;
pub mod device_pair;
pub mod endpoint;
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
