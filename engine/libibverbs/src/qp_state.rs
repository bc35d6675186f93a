//! The state of a QP, which all handles to an XRC target QP share.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use feroce_engine::device::QueuePair;

use crate::abi::{ibv_ah_attr, ibv_qp_cap};
use crate::batch::Batch;
use crate::lock::HeldLock;
use crate::object::Release;

/// The QP that several handles may share.
pub struct SharedQp {
    /// Guards the state below: held during a post, or from `ibv_wr_start` to `ibv_wr_complete`.
    pub lock: HeldLock,
    /// Accessed only while the lock is held.
    pub state: UnsafeCell<State>,
    /// The completion counters of the QP, which must not be destroyed before it.
    pub counters: Mutex<Vec<Box<dyn Release + Send + Sync>>>,
    /// Number of handles that the program has not destroyed.
    pub handles: AtomicUsize,
}

impl SharedQp {
    /// Keeps a completion counter as long as the QP lives.
    pub fn keep(&self, counter: impl Release + Send + Sync + 'static) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.push(Box::new(counter));
    }
}

/// A handle's share in the QP. The last handle to be destroyed releases the counters.
pub struct Share(Arc<SharedQp>);

impl Share {
    /// Counts one more handle.
    pub fn new(qp: &Arc<SharedQp>) -> Self {
        qp.handles.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(qp))
    }
}

impl Release for Share {
    fn release(&self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.counters.release();
        }
    }
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
    /// Options of ECE that the program has set.
    pub ece: Option<u32>,
    /// Requests posted between `ibv_wr_start` and `ibv_wr_complete`.
    pub batch: Batch,
}
