//! Congestion control as values: algorithms as state machines over (event, now), and a pacer for
//! sent packets. Integer arithmetic only; no packets and no clock; one allocation per sender, when
//! it is created. The engine and the simulated fabric run the same code.
//!
//! An algorithm implements [`CongestionControl`] and has a row in [`ALGORITHMS`]. A sender has a
//! [`Controller`] and a [`Pacer`]; a receiver has a [`NotificationPoint`]; a switch queue has a
//! [`Red`]. [`Control`] is the choice of a user. [`Params`] holds the parameters of all of them,
//! [`params::all`] their names.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod algorithm;
pub mod controller;
pub mod fraction;
pub mod marking;
pub mod notification;
pub mod pacer;
pub mod params;
pub mod rate;
mod telemetry;
pub mod time;

pub use algorithm::dcqcn::ReactionPoint;
pub use algorithm::dctcp::Dctcp;
pub use algorithm::hpcc::Hpcc;
pub use algorithm::powertcp::PowerTcp;
pub use algorithm::swift::Swift;
pub use algorithm::timely::Timely;
pub use algorithm::{ALGORITHMS, Algorithm, Control, UnknownControl};
pub use controller::{Ack, Acks, CongestionControl, Controller, Hop, Marks, Needs, Path, Setup};
pub use fraction::Fraction;
pub use marking::Red;
pub use notification::NotificationPoint;
pub use pacer::Pacer;
pub use params::Params;
pub use rate::Rate;
pub use time::{Duration, Instant};
