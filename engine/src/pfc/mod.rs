//! Priority flow control (PFC, IEEE 802.1Qbb) of an endpoint, in software: which priorities are
//! paused because the neighbour requested it (`Pauses`), and when the neighbour is requested to
//! pause (`Backpressure`). Both are values: the input is frames, fill levels and time.
//! `CorePfc` combines them for a core.
//!
//! The priority of a packet is the PCP of its VLAN tag; without a tag, the DSCP is mapped to a
//! priority ([`DscpMap`]).

mod backpressure;
mod config;
mod gate;
mod pauses;

pub use config::{DscpMap, Malformed, PfcConfig, Priorities, Thresholds};
pub(crate) use config::{RATE_EXPECTS, parse_rate, show_rate};
pub(crate) use gate::{CorePfc, PauseGate, XoffRequesters};
