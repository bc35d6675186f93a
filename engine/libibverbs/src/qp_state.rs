//! The state of a QP, which all handles to an XRC target QP share.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_int;

use feroce_engine::device::QueuePair;

use crate::abi::{ibv_ah_attr, ibv_qp_cap};
use crate::batch::Batch;
use crate::lock::HeldLock;

/// The QP that several handles may share.
pub struct SharedQp {
    /// Guards the state below: held during a post, or from `ibv_wr_start` to `ibv_wr_complete`.
    pub lock: HeldLock,
    /// Accessed only while the lock is held.
    pub state: UnsafeCell<State>,
}

// SAFETY: the state is accessed only while the lock is held.
unsafe impl Sync for SharedQp {}
// SAFETY: the state is bound to no thread; its pointers belong to the program, which may use them
// from any thread.
unsafe impl Send for SharedQp {}

impl std::fmt::Debug for SharedQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedQp").finish_non_exhaustive()
    }
}

/// QP state that the lock guards.
pub struct State {
    /// The engine's QP.
    pub qp: QueuePair,
    /// Capabilities, rounded as the engine rounds them.
    pub cap: ibv_qp_cap,
    /// Nonzero: every send request generates a completion.
    pub sq_sig_all: c_int,
    /// Address vector as the program last set it.
    pub ah_attr: ibv_ah_attr,
    /// Requests posted between `ibv_wr_start` and `ibv_wr_complete`.
    pub batch: Batch,
    /// References to the completion counters of the QP, which must not be destroyed before it.
    pub counters: Vec<Box<dyn Any + Send + Sync>>,
}
