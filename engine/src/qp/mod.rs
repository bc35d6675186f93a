//! Queue pairs: values that take packets, the time and work requests, and return packets, the time of
//! the next wake-up and completions.
//!
//! A QP does no I/O, reads no clock and allocates nothing. [`Qp`] is a QP of a connected service (RC,
//! UC, XRC), [`ud::UdQp`] one of the datagram service, [`AnyQp`] either of them.

mod any;
pub mod attributes;
mod completer;
mod connected;
mod local;
mod receive;
mod requester;
mod responder;
mod responder_resources;
pub mod segment;
pub mod sg;
mod snapshot;
mod split;
mod state;
mod timer;
mod transitions;
pub mod ud;
mod xrc;

pub use any::AnyQp;
use connected::Connection;
pub use connected::{Env, Qp, QpParts, Transmit, Waits};
pub use receive::ReceiveQueue;
pub use requester::ACK_INTERVAL;
pub use responder_resources::{MAX_RD_ATOMIC, RD_ATOMIC};
pub use snapshot::QpSnapshot;
pub use state::{
    QpAttrMask, QpState, TRANSITIONS, Transition, TransitionError, check as check_transition,
};
pub use transitions::{UC_TRANSITIONS, UD_TRANSITIONS};
pub use xrc::SrqTable;

pub use crate::verbs::Service;
