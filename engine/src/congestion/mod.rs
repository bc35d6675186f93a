//! Congestion control of a device: its configuration ([`CongestionConfig`]), the sender state of a
//! QP (`Sender`) and the CNPs for received packets (`CnpGenerator`). The algorithms are those
//! of the crate `feroce-congestion`. QPs report to them what they sent (`Sent`) and what was
//! acknowledged; no packet header is parsed here for that.
//!
//! Scope of a rate:
//! * RC, UC, XRC: a QP has one rate for everything that carries data: requests, READ responses and
//!   retransmissions. Acknowledgements and CNPs are not paced.
//! * UD: a QP has one rate for all its destinations. A CNP names the QP and no destination, so it
//!   slows the whole QP down.
//! * QP 1, which communication management uses, has no congestion control.
//!
//! Algorithms that need acknowledgements get the time from a packet that requests one to that
//! acknowledgement: they control the requests of RC. Traffic without acknowledgements (UC, UD, READ
//! responses) is sent at the link rate or at `max_rate`. READ responses have a pacer of their own:
//! a QP with both kinds of traffic gets that rate for each.
//!
//! Data packets are ECN-capable (ECT) only with an algorithm that needs marks: see
//! [`Control::is_ecn_capable`]. Under every control, CNPs are sent for received marks. Algorithms
//! that need the mark of each acknowledged packet get CNPs instead: an acknowledgement of RoCEv2
//! has no field for it. Algorithms that need telemetry of switches are refused.

mod config;
mod core;
mod delay;
mod facts;
mod notification;
mod sender;

pub(crate) use self::core::CoreCongestion;
pub use config::{ChangeError, CongestionConfig};
pub(crate) use config::{set_param, shown};
#[cfg(test)]
pub(crate) use delay::{RoundTrip, RoundTrips};
pub(crate) use facts::{Sent, SentRequest};
pub use feroce_congestion::params::ParamError;
pub use feroce_congestion::{Control, Params, Rate, UnknownControl};
pub(crate) use notification::Receiver;
pub use sender::RateSnapshot;
pub(crate) use sender::Sender;
