//! The data that an application and the cores share: work requests, completions, events, and the
//! queues that carry them.
//!
//! These types have the meaning and the numeric values of the verbs API (`ibv_wc`, `ibv_send_wr`,
//! `ibv_async_event`). The handles that an application holds (protection domain, queue pair, memory
//! region ...) are in [`device`](crate::device); the protocol that acts on the work requests is in
//! [`qp`](crate::qp). Nothing here depends on either of them.

mod completion;
mod counter;
pub mod cq;
mod datagram;
mod event;
mod ids;
pub mod operation;
mod service;
mod srq;
mod work_request;

pub use completion::{Completion, CompletionOpcode, DatagramSource, Extra, NetworkHeader, Status};
pub use counter::{AttachedCounters, CompletionCounter, CountedOp, CounterUnit};
pub use cq::{CqRing, Notify};
pub use datagram::{DatagramWqe, GRH_LEN};
pub use event::{AsyncEvent, EventQueue, EventSink};
pub use ids::{CqId, SrqId, XrcDomainId};
pub use service::Service;
pub use srq::SrqRing;
pub use work_request::{
    Data, LocalOp, MAX_MESSAGE, MAX_SGE, RecvRequest, RecvWqe, RemoteAddr, SendFlags, SendOp,
    SendRequest, SendWqe, Sge,
};
