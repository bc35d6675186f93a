//! The objects that a program names, as verbs knows them: protection domain, memory region, completion
//! queue, queue pair, work request, completion, event.

mod completion;
pub mod cq;
mod event;
mod work_request;

pub use completion::{Completion, CompletionOpcode, Extra, Status};
pub use cq::{CqId, CqRing, Notify};
pub use event::{AsyncEvent, EventQueue, EventSink};
pub use work_request::{
    Data, MAX_MESSAGE, MAX_SGE, RecvRequest, RecvWqe, RemoteAddr, SendFlags, SendOp, SendRequest,
    SendWqe, Sge,
};
