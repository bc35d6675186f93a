//! The part of an identifier that the delivery of events uses: its queue, its counter of
//! unacknowledged events, and the table of identifiers by number.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::connections::{CmEvent, CmNumber, CmParameters};
use crate::abi::{
    RDMA_CM_EVENT_ADDRINFO_RESOLVED, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_MULTICAST_JOIN,
    RDMA_CM_EVENT_USER, rdma_cm_id,
};
use crate::channel::{Channel, Unacknowledged};
use crate::membership::Membership;
use crate::process::PerProcess;

/// Events of a channel that the program has not read.
pub type Queue = Channel<PendingEvent>;

/// An event that the program has not read.
pub struct PendingEvent {
    /// The identifier that counts the event: for a connection request, the listener.
    pub state: Arc<IdState>,
    /// Number of the new identifier of a connection request.
    pub child: Option<CmNumber>,
    /// The multicast group of a join event; it counts the event, too.
    pub membership: Option<Arc<Membership>>,
    /// The `rdma_cm_event_type`.
    pub kind: c_uint,
    /// The status of the event.
    pub status: c_int,
    /// Connection parameters of the peer.
    pub parameters: CmParameters,
    /// Private data of the peer.
    pub data: Vec<u8>,
    /// The program's number, of an event that the program wrote.
    pub arg: Option<u64>,
}

impl PendingEvent {
    /// Counts the event as read by the program.
    pub fn count_as_read(&self) {
        self.state.unacknowledged.add();
        if let Some(membership) = &self.membership {
            membership.unacknowledged.add();
        }
    }
}

/// The part of an identifier that the delivery of events uses.
pub struct IdState {
    /// Number of the identifier in the connection manager.
    pub number: CmNumber,
    /// Address of the program's `rdma_cm_id`.
    pub address: AtomicUsize,
    /// Queue of the identifier's events.
    pub queue: Mutex<Arc<Queue>>,
    /// Events that the program has read and not acknowledged.
    pub unacknowledged: Unacknowledged,
    /// Events are delivered. False for a connection request that the program has not accepted.
    pub delivers_events: AtomicBool,
    /// The program has destroyed the identifier. Its events are no longer queued.
    pub is_retired: AtomicBool,
}

impl IdState {
    /// Locks and returns the queue of the identifier's events.
    pub fn queue(&self) -> MutexGuard<'_, Arc<Queue>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the program's pointer.
    pub fn id(&self) -> *mut rdma_cm_id {
        std::ptr::with_exposed_provenance_mut(self.address.load(Ordering::Acquire))
    }
}

/// Identifiers by number.
static IDS: PerProcess<Mutex<BTreeMap<CmNumber, Arc<IdState>>>> = PerProcess::new(Mutex::default);

/// Locks and returns the identifiers of this process by number.
pub fn ids() -> MutexGuard<'static, BTreeMap<CmNumber, Arc<IdState>>> {
    IDS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the identifier with this number.
pub fn find(number: CmNumber) -> Option<Arc<IdState>> {
    ids().get(&number).cloned()
}

/// Returns the identifiers whose events go to `queue`.
pub fn with_queue(queue: &Arc<Queue>) -> Vec<CmNumber> {
    let is_its = |state: &&Arc<IdState>| Arc::ptr_eq(&state.queue(), queue);
    ids().values().filter(is_its).map(|state| state.number).collect()
}

/// Queues an event of the connection manager. libibverbs calls it from the connection manager's
/// thread.
pub unsafe extern "C" fn queue_event(event: *const CmEvent) {
    // SAFETY: libibverbs passes a valid event with `data_len` bytes of private data.
    let (event, data) = unsafe {
        let event = *event;
        let data = match event.data_len {
            0 => Vec::new(),
            length => std::slice::from_raw_parts(event.data, length).to_vec(),
        };
        (event, data)
    };
    let is_request = event.kind == RDMA_CM_EVENT_CONNECT_REQUEST;
    let Some(state) = find(if is_request { event.listener } else { event.id }) else { return };
    if !state.delivers_events.load(Ordering::Acquire) {
        return; // Like the kernel: the program sees the failure when it tries to accept.
    }
    let pending = PendingEvent {
        state: Arc::clone(&state),
        child: is_request.then_some(event.id),
        membership: None,
        kind: event.kind,
        status: event.status,
        parameters: event.parameters,
        data,
        arg: None,
    };
    state.push(pending);
}

impl IdState {
    /// Queues an event, unless the identifier is destroyed.
    fn push(&self, event: PendingEvent) {
        self.queue().push_unless(&self.is_retired, event);
    }

    /// An event of this library, not of the connection manager.
    fn own_event(self: &Arc<Self>, kind: c_uint) -> PendingEvent {
        PendingEvent {
            state: Arc::clone(self),
            child: None,
            membership: None,
            kind,
            status: 0,
            parameters: CmParameters::default(),
            data: Vec::new(),
            arg: None,
        }
    }

    /// Queues the event that the identifier has joined a group.
    pub fn queue_join_event(self: &Arc<Self>, membership: Arc<Membership>) {
        let event = self.own_event(RDMA_CM_EVENT_MULTICAST_JOIN);
        self.push(PendingEvent { membership: Some(membership), ..event });
    }

    /// Queues the event that a name was resolved.
    pub fn queue_resolved_event(self: &Arc<Self>) {
        self.push(self.own_event(RDMA_CM_EVENT_ADDRINFO_RESOLVED));
    }

    /// Queues an event that the program writes.
    pub fn queue_user_event(self: &Arc<Self>, status: c_int, arg: u64) {
        let event = self.own_event(RDMA_CM_EVENT_USER);
        self.push(PendingEvent { status, arg: Some(arg), ..event });
    }

    /// Removes unread events of a group that the identifier has left.
    pub fn remove_join_event(&self, left: &Arc<Membership>) {
        let its = |group: &Arc<Membership>| Arc::ptr_eq(group, left);
        self.queue().remove(|pending| pending.membership.as_ref().is_some_and(its));
    }
}

/// Ends events of an identifier that is destroyed, and removes all that the program has not read.
pub fn retire(state: &Arc<IdState>) {
    state.is_retired.store(true, Ordering::Release);
    state.queue().remove(|pending| Arc::ptr_eq(&pending.state, state));
}

/// Delivers the identifier's events to `queue` from now on, including those not yet read.
pub fn redirect(state: &Arc<IdState>, queue: Arc<Queue>) {
    let mut place = state.queue();
    for pending in place.remove(|pending| Arc::ptr_eq(&pending.state, state)) {
        queue.push(pending);
    }
    *place = queue;
}
