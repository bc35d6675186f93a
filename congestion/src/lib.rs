//! Congestion control as values: DCQCN, TIMELY and Swift as state machines over (event, now), and a
//! pacer for sent packets. Integer arithmetic only; no packets, no clock, no allocation. The engine
//! and the simulated fabric run the same code.
//!
//! A sender has a [`Controller`] and a [`Pacer`]; a receiver has a [`NotificationPoint`]; a switch
//! queue has a [`Red`]. [`Control`] is the choice of a user. [`Params`] holds the parameters of all
//! of them, [`params::TABLE`] their names.

#![no_std]
#![forbid(unsafe_code)]

pub mod algorithm;
pub mod fraction;
pub mod marking;
pub mod notification;
pub mod pacer;
pub mod params;
pub mod rate;
pub mod time;

pub use algorithm::dcqcn::ReactionPoint;
pub use algorithm::swift::Swift;
pub use algorithm::timely::Timely;
pub use algorithm::{ALGORITHMS, Algorithm, Control, Controller, UnknownControl};
pub use fraction::Fraction;
pub use marking::Red;
pub use notification::NotificationPoint;
pub use pacer::Pacer;
pub use params::Params;
pub use rate::Rate;
pub use time::{Duration, Instant};
