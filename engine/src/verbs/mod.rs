//! The data that an application and the cores share: work requests, completions, events, and the
//! queues that carry them.
//!
//! These types have the meaning and the numeric values of the verbs API (`ibv_wc`, `ibv_send_wr`,
//! `ibv_async_event`). The handles that an application holds (protection domain, queue pair, memory
//! region ...) are in [`device`](crate::device); the protocol that acts on the work requests is in
//! [`qp`](crate::qp). Nothing here depends on either of them.

mod completion;
mod counter;
pub(crate) mod cq;
mod datagram;
mod event;
mod ids;
pub(crate) mod operation;
mod service;
mod srq;
mod work_request;

pub use completion::{Completion, CompletionOpcode, DatagramSource, Extra, NetworkHeader, Status};
pub use counter::{AttachedCounters, CompletionCounter, CountedOp, CounterUnit};
pub(crate) use cq::CqRing;
pub use cq::Notify;
pub(crate) use datagram::DatagramWqe;
pub use datagram::GRH_LEN;
pub(crate) use event::EventQueue;
pub use event::{AsyncEvent, EventSink};
pub use ids::{CqId, SrqId, XrcDomainId};
pub use service::Service;
pub(crate) use srq::SrqRing;
pub(crate) use work_request::RecvWqe;
#[doc(hidden)] // For a benchmark of Feroce.
pub use work_request::SendWqe;
pub use work_request::{
    Data, LocalOp, MAX_MESSAGE, MAX_SGE, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest,
    Sge,
};
