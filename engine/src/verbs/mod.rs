//! The objects that a program names, as verbs knows them: protection domain, memory region, completion
//! queue, queue pair, work request, completion, event.

mod completion;
pub mod cq;
mod datagram;
mod event;
mod service;
mod srq;
mod work_request;

pub use completion::{Completion, CompletionOpcode, DatagramSource, Extra, NetworkHeader, Status};
pub use cq::{CqId, CqRing, Notify};
pub use datagram::{DatagramWqe, GRH_LEN};
pub use event::{AsyncEvent, EventQueue, EventSink};
pub use service::Service;
pub use srq::{SrqId, SrqRing, XrcDomainId};
pub use work_request::{
    Data, LocalOp, MAX_MESSAGE, MAX_SGE, RecvRequest, RecvWqe, RemoteAddr, SendFlags, SendOp,
    SendRequest, SendWqe, Sge,
};
