//! Event channels, and events that the program has read.

use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::connections::feroce_cm_destroy;
use crate::abi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::device;
use crate::id_state::{IdState, Queue, with_queue};
use crate::membership::Membership;
use crate::object::{self, Object};
use crate::outcome::return_code;

/// An event channel.
#[repr(C)]
pub struct EventChannel {
    abi: rdma_event_channel,
    queue: Arc<Queue>,
    /// Process that created the channel: a forked child shares the descriptor, but not the events.
    process: u32,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for EventChannel {
    type Abi = rdma_event_channel;
}

impl EventChannel {
    /// Creates an empty channel.
    ///
    /// # Errors
    /// The error number if no descriptor is left.
    pub fn new() -> Result<Box<Self>, c_int> {
        let queue = Arc::new(Queue::new()?);
        let abi = rdma_event_channel { fd: queue.fd() };
        Ok(Box::new(Self { abi, queue, process: std::process::id() }))
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
    /// The C structure.
    pub abi: rdma_cm_event,
    /// The identifier that counts the event.
    pub state: Arc<IdState>,
    /// The multicast group of a join event, which counts it, too.
    pub membership: Option<Arc<Membership>>,
    /// Private data that `abi` points to.
    pub data: Vec<u8>,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for DeliveredEvent {
    type Abi = rdma_cm_event;
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object::give_or_fail(device::check_present().and_then(|()| EventChannel::new()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the program passes a live channel and does not use it again.
    let gone = unsafe { object::take::<EventChannel>(channel) };
    // Like the kernel, where identifiers end with the descriptor they were created through: peers
    // see a disconnect.
    for number in with_queue(&gone.queue) {
        // SAFETY: the function takes no pointers.
        unsafe { feroce_cm_destroy(number) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return return_code(Err(libc::EINVAL));
    }
    // SAFETY: the program passes an event from `rdma_get_cm_event` and does not use it again.
    let delivered = unsafe { object::take::<DeliveredEvent>(event) };
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
