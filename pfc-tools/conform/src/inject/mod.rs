//! Faults at chosen packets, and what an endpoint makes of them.
//!
//! A [`script`] says what two endpoints exchange, what happens to which packet, and what must come of it. The
//! [`injector`] stands between them and does it, in virtual time ([`fabric`]) or between two interfaces ([`live`]). What
//! went by is a [`trace`], which the checkers ([`checker`]) read; their verdicts are an endpoint's [`scorecard`].

pub mod catalogue;
pub mod change;
pub mod checker;
pub mod cli;
pub mod fabric;
pub mod flows;
pub mod injector;
pub mod live;
pub mod outcome;
pub mod play;
pub mod scorecard;
pub mod script;
pub mod text;
pub mod trace;
