//! Queue pairs: their states ([`QpState`]), services ([`Service`]) and attributes
//! ([`attributes::QpAttributes`]); and the protocol, as values that take packets, the time and work
//! requests, and return packets, the time of the next wake-up and completions.
//!
//! Programs hold a [`QueuePair`](crate::device::QueuePair). The rest of this page is about the
//! protocol.
//!
//! A QP does no I/O, reads no clock and allocates nothing. `Qp` is a QP of a connected service
//! (RC, UC, XRC), `ud::UdQp` one of the datagram service, `AnyQp` either of them.
//!
//! | module | content |
//! |---|---|
//! | `connected` | `Qp`: state, inputs and outputs; joins the modules below |
//! | `requester` | which request packet is sent next |
//! | `request_headers` | headers and payload of request packets |
//! | `ack_request` | which request packets request an acknowledgement |
//! | `ack_timer` | the local ACK timer |
//! | `selective` | selective repeat: lost packets are sent again, and no others |
//! | `scoreboard` | what has arrived behind a missing packet |
//! | `completer` | the effect of acknowledgements and responses on the send queue |
//! | `responder` | checks and executes requests of the peer |
//! | `responder_resources` | responses to send, and results kept for duplicate requests |
//! | `transmit_order` | the order of requests, responses and acknowledgements |
//! | `segment` | from a request to its packets |
//! | `split` | long requests as several messages |
//! | `local` | requests that are executed without the peer |
//! | `loss` | which retransmissions follow a loss, for congestion control |
//! | `xrc` | the receiving end of XRC |
//! | [`attributes`], `modify` | attributes of a QP, and the change of them |
//! | `state`, `transitions` | states, and the tables of legal transitions |
//! | `invariants` | what holds between two calls, which tests check |
//! | `env` | data that a QP needs from its core for one call |
//! | `connection` | data that requester, completer and responder share |
//!
//! The send operations themselves are a table: `verbs/operation.rs`.

mod ack_request;
mod ack_timer;
mod any;
pub mod attributes;
mod completer;
mod connected;
mod connection;
mod env;
mod habit;
mod invariants;
mod local;
mod loss;
mod modify;
mod receive;
mod request_headers;
mod requester;
mod responder;
mod responder_resources;
mod run;
mod scoreboard;
mod segment;
mod selective;
pub(crate) mod sg;
mod snapshot;
mod split;
mod state;
mod timer;
mod transitions;
mod transmit_order;
pub(crate) mod ud;
mod xrc;

pub(crate) use any::AnyQp;
pub use attributes::{MAX_RD_ATOMIC, RD_ATOMIC};
pub(crate) use connected::{Qp, QpParts};
pub(crate) use env::{ACK_INTERVAL, Env, SrqTable, Transmit, Waits};
pub(crate) use receive::ReceiveQueue;
pub(crate) use responder::AheadPool;
pub use snapshot::QpSnapshot;
pub use state::{QpAttrMask, QpState};
pub use transitions::TransitionError;
#[doc(hidden)] // For the drop-in libibverbs.
pub use transitions::check as check_transition;

pub use crate::verbs::Service;
