//! `feroce conform inject`: faults at chosen packets, and checks of how endpoints handle them.
//!
//! A [`script`] describes the traffic of two endpoints, the faults and their packets, and the
//! expected behaviour. The [`injector`] forwards the packets between the endpoints and applies the
//! script, in virtual time ([`fabric`]) or between two interfaces ([`live`]). It records a
//! [`trace`]; the checkers ([`checker`]) read the trace, and their verdicts form an endpoint's
//! [`scorecard`].

pub mod action;
pub mod catalogue;
pub mod change;
pub mod checker;
pub mod cli;
pub mod connection;
pub mod fabric;
pub mod flows;
pub mod injector;
pub mod live;
pub mod outcome;
pub mod packet_kind;
pub mod play;
pub mod relay;
pub mod scorecard;
pub mod script;
pub mod toml_value;
pub mod trace;
