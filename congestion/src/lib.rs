//! How fast may we send: DCQCN, TIMELY and Swift as state machines over (event, now), and the pacing of what
//! is sent. Integers only; no packets, no clock, no allocation: the engine and the fabric run the same code.
//!
//! A sender has a [`Controller`] and a [`Pacer`]; a receiver has a [`NotificationPoint`]; a queue has a [`Red`].
//! What they do in which variant is in [`Params`], by name in [`params::TABLE`].

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

pub use algorithm::Controller;
pub use fraction::Fraction;
pub use marking::Red;
pub use notification::NotificationPoint;
pub use pacer::Pacer;
pub use params::Params;
pub use rate::Rate;
pub use algorithm::dcqcn::ReactionPoint;
pub use algorithm::swift::Swift;
pub use time::{Duration, Instant};
pub use algorithm::timely::Timely;
