//! Event channels, and events that the program has read.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::connections::feroce_cm_destroy;
use crate::abi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::device;
use crate::errno;
use crate::id_state::{IdState, Queue, with_queue};
use crate::membership::Membership;
use crate::object::{self, Base, Object};
use crate::outcome::return_code;

/// An event channel.
#[repr(C)]
pub struct EventChannel {
    _abi: UnsafeCell<rdma_event_channel>,
    base: Base,
    queue: Arc<Queue>,
    /// Process that created the channel: a forked child shares the descriptor, but not the events.
    process: u32,
}

// SAFETY: the C structure is a number that nothing but the program reads.
unsafe impl Sync for EventChannel {}

// SAFETY: `#[repr(C)]`, and the first field is a cell with the C structure.
unsafe impl Object for EventChannel {
    type Abi = rdma_event_channel;
    fn base(&self) -> &Base {
        &self.base
    }

    fn release_uses(&self) {}
}

impl EventChannel {
    /// Creates an empty channel.
    ///
    /// # Errors
    /// The error number if no descriptor is left.
    pub fn new() -> Result<Arc<Self>, c_int> {
        let queue = Arc::new(Queue::new()?);
        let abi = UnsafeCell::new(rdma_event_channel { fd: queue.fd() });
        let (base, process) = (Base::new(0, 0), std::process::id());
        Ok(Arc::new(Self { _abi: abi, base, queue, process }))
    }

    /// Returns the queue of events.
    pub fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.queue)
    }

    /// Fails in a forked child.
    ///
    /// # Errors
    /// EIO in a forked child.
    pub fn check(&self) -> Result<(), c_int> {
        if self.process == std::process::id() { Ok(()) } else { Err(libc::EIO) }
    }
}

/// An event that the program has read and not acknowledged.
#[repr(C)]
pub struct DeliveredEvent {
    abi: UnsafeCell<rdma_cm_event>,
    base: Base,
    /// The identifier that counts the event.
    pub state: Arc<IdState>,
    /// The multicast group of a join event, which counts it, too.
    pub membership: Option<Arc<Membership>>,
    _data: Vec<u8>,
}

// SAFETY: the pointers in the C structure are the program's, which may use them from every thread.
unsafe impl Send for DeliveredEvent {}
// SAFETY: as for `Send`; the C structure is in a cell.
unsafe impl Sync for DeliveredEvent {}

// SAFETY: `#[repr(C)]`, and the first field is a cell with the C structure.
unsafe impl Object for DeliveredEvent {
    type Abi = rdma_cm_event;
    fn base(&self) -> &Base {
        &self.base
    }

    fn release_uses(&self) {}
}

impl DeliveredEvent {
    /// Creates an event for the program. `data` is the private data that `abi` points to.
    pub fn new(
        abi: rdma_cm_event,
        state: Arc<IdState>,
        membership: Option<Arc<Membership>>,
        data: Vec<u8>,
    ) -> Arc<Self> {
        let base = Base::new(0, 0);
        Arc::new(Self { abi: UnsafeCell::new(abi), base, state, membership, _data: data })
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object::give_or_fail(device::check_present().and_then(|()| EventChannel::new()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let Ok(destroyed) = object::destroy::<EventChannel>(channel, |_| Ok(())) else {
        errno::set(libc::EINVAL); // all that a function without a result can do
        return;
    };
    let channel = destroyed.finish();
    // Like the kernel, where identifiers end with the descriptor they were created through: peers
    // see a disconnect.
    for number in with_queue(&channel.queue) {
        // SAFETY: the function takes no pointers.
        unsafe { feroce_cm_destroy(number) };
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    let Ok(destroyed) = object::destroy::<DeliveredEvent>(event, |_| Ok(())) else {
        return return_code(Err(libc::EINVAL));
    };
    let delivered = destroyed.finish();
    if let Some(membership) = &delivered.membership {
        membership.unacknowledged.acknowledge(1);
    }
    delivered.state.unacknowledged.acknowledge(1);
    0
}

/// Acknowledges the last event of a synchronous call.
///
/// # Safety
/// `id` is live.
pub unsafe fn acknowledge_last(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live, and its `event` is null or not acknowledged.
    unsafe {
        let last = std::mem::replace(&mut (*id).event, std::ptr::null_mut());
        if !last.is_null() {
            rdma_ack_cm_event(last);
        }
    }
}
