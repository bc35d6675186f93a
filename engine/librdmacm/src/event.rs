//! Event channels, and the delivery of connection manager events to the program.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::connections::{
    CmEvent, CmNumber, CmParameters, feroce_cm_destroy, feroce_cm_take_request,
};
use crate::abi::{
    IBV_QPT_UD, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ROUTE_RESOLVED, cm_event_param, rdma_cm_event, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_ud_param,
};
use crate::channel::Channel;
use crate::id::{self, Begin, Heard, Id};
use crate::multicast::Membership;
use crate::object::{self, Object};
use crate::outcome::{checked, returned};
use crate::{address, attributes, connect, device, qp};

/// Events of a channel that the program has not read.
pub type Queue = Channel<Waiting>;

/// An event that the program has not read.
pub struct Waiting {
    /// The identifier that counts the event: for a connection request, the listener.
    pub heard: Arc<Heard>,
    /// Number of the new identifier of a connection request.
    child: Option<CmNumber>,
    /// The multicast group of a join event; it counts the event, too.
    membership: Option<Arc<Membership>>,
    kind: c_uint,
    status: c_int,
    parameters: CmParameters,
    data: Vec<u8>,
}

impl Waiting {
    fn note_taken(&self) {
        self.heard.unacknowledged.add();
        if let Some(membership) = &self.membership {
            membership.unacknowledged.add();
        }
    }
}

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
pub struct Told {
    abi: rdma_cm_event,
    heard: Arc<Heard>,
    membership: Option<Arc<Membership>>,
    /// Private data that `abi` points to.
    _data: Vec<u8>,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Told {
    type Abi = rdma_cm_event;
}

/// Queues an event of the connection manager. libibverbs calls it from the connection manager's
/// thread.
pub unsafe extern "C" fn sink(event: *const CmEvent) {
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
    let Some(heard) = id::heard(if is_request { event.listener } else { event.id }) else { return };
    if !heard.is_told.load(Ordering::Acquire) {
        return; // Like the kernel: the program sees the failure when it tries to accept.
    }
    let waiting = Waiting {
        heard: Arc::clone(&heard),
        child: is_request.then_some(event.id),
        membership: None,
        kind: event.kind,
        status: event.status,
        parameters: event.parameters,
        data,
    };
    heard.queue().push(waiting);
}

impl Heard {
    /// Queues the event that the identifier has joined a group.
    pub fn tell_joined(self: &Arc<Self>, membership: Arc<Membership>) {
        let waiting = Waiting {
            heard: Arc::clone(self),
            child: None,
            membership: Some(membership),
            kind: RDMA_CM_EVENT_MULTICAST_JOIN,
            status: 0,
            parameters: CmParameters::default(),
            data: Vec::new(),
        };
        self.queue().push(waiting);
    }

    /// Removes unread events of a group that the identifier has left.
    pub fn forget_joined(&self, left: &Arc<Membership>) {
        let its = |group: &Arc<Membership>| Arc::ptr_eq(group, left);
        self.queue().remove(|waiting| waiting.membership.as_ref().is_some_and(its));
    }
}

/// Removes all unread events of an identifier.
pub fn forget(heard: &Arc<Heard>) {
    heard.queue().remove(|waiting| Arc::ptr_eq(&waiting.heard, heard));
}

/// Delivers the identifier's events to `queue` from now on, including those not yet read.
pub fn move_to(heard: &Arc<Heard>, queue: Arc<Queue>) {
    let mut place = heard.queue();
    for waiting in place.remove(|waiting| Arc::ptr_eq(&waiting.heard, heard)) {
        queue.push(waiting);
    }
    *place = queue;
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object::give_or_fail(device::find().and_then(|()| EventChannel::new()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the program passes a live channel and does not use it again.
    let gone = unsafe { object::take::<EventChannel>(channel) };
    // Like the kernel, where identifiers end with the descriptor they were created through: peers
    // see a disconnect.
    for number in id::through(&gone.queue) {
        // SAFETY: the function takes no pointers.
        unsafe { feroce_cm_destroy(number) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return returned(Err(libc::EINVAL));
    }
    // SAFETY: the program passes a live channel.
    let live = unsafe { object::borrow::<EventChannel>(channel) };
    if let Err(code) = live.check() {
        return returned(Err(code));
    }
    let queue = live.queue();
    returned(loop {
        let waiting = match queue.get(Waiting::note_taken) {
            Ok(waiting) => waiting,
            Err(code) => break Err(code),
        };
        let heard = Arc::clone(&waiting.heard);
        // SAFETY: the identifier is live: destroying it waits until the event is acknowledged.
        match unsafe { process(waiting) } {
            Some(told) => {
                // SAFETY: the program passes a writable pointer.
                unsafe { event.write(object::give(told)) };
                break Ok(());
            }
            None => heard.unacknowledged.acknowledge(1),
        }
    })
}

/// Does the work that belongs to an event and builds the event for the program. Returns `None` if
/// the program gets no event.
///
/// # Safety
/// The identifier of the event is live.
unsafe fn process(waiting: Waiting) -> Option<Box<Told>> {
    let mut id = waiting.heard.id();
    let mut listen_id = std::ptr::null_mut();
    let (mut kind, mut status) = (waiting.kind, waiting.status);
    // SAFETY: the identifier of the event is live.
    unsafe {
        let live = id::of(id);
        match kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => {
                if let Err(code) = address::settle(id) {
                    (kind, status) = (RDMA_CM_EVENT_ADDR_ERROR, -code);
                }
            }
            RDMA_CM_EVENT_ROUTE_RESOLVED => address::note_path(id),
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                listen_id = id;
                id = request(live, id, &waiting)?;
            }
            RDMA_CM_EVENT_CONNECT_RESPONSE => {
                if let Ok(view) = live.view() {
                    live.private().remote_ece = view.remote_ece;
                }
                if !(*id).qp.is_null() {
                    (kind, status) = match connect::respond(id) {
                        Ok(()) => (RDMA_CM_EVENT_ESTABLISHED, 0),
                        Err(code) => {
                            live.private().connect_failed = true;
                            (RDMA_CM_EVENT_CONNECT_ERROR, -code)
                        }
                    };
                }
            }
            RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED
                if live.private().connect_failed =>
            {
                return None;
            }
            RDMA_CM_EVENT_REJECTED => drop(qp::modify_to_error(id)),
            _ => {}
        }
    }
    let Waiting { heard, membership, parameters, data, .. } = waiting;
    let at = if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast::<c_void>() };
    let length = u8::try_from(data.len()).unwrap_or(u8::MAX);
    // SAFETY: the identifier of the event is live, or it was created above.
    let (live, qp_type) = unsafe { (id::of(id), (*id).qp_type) };
    let param = match (&membership, qp_type) {
        (Some(membership), _) => {
            let param;
            // SAFETY: the identifier is live.
            (kind, status, param) = unsafe { membership.joined(id) };
            param
        }
        (None, IBV_QPT_UD) => {
            cm_event_param { ud: about_datagrams(live, kind, &parameters, at, length) }
        }
        (None, _) => cm_event_param { conn: about_connection(&parameters, at, length) },
    };
    let abi = rdma_cm_event { id, listen_id, event: kind, status, param };
    Some(Box::new(Told { abi, heard, membership, _data: data }))
}

fn about_connection(
    parameters: &CmParameters,
    private_data: *const c_void,
    private_data_len: u8,
) -> rdma_conn_param {
    rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        flow_control: parameters.flow_control,
        retry_count: parameters.retry_count,
        rnr_retry_count: parameters.rnr_retry_count,
        srq: parameters.srq,
        qp_num: parameters.qpn,
    }
}

fn about_datagrams(
    live: &Id,
    kind: c_uint,
    parameters: &CmParameters,
    private_data: *const c_void,
    private_data_len: u8,
) -> rdma_ud_param {
    let answered = kind == RDMA_CM_EVENT_ESTABLISHED;
    let view = live.view().ok().filter(|_| answered);
    rdma_ud_param {
        private_data,
        private_data_len,
        ah_attr: attributes::ah_attr(&view.unwrap_or_default().path),
        qp_num: parameters.qpn,
        qkey: parameters.qkey,
    }
}

/// Creates the identifier of a connection request. Returns `None` if that fails or the request is
/// gone.
///
/// # Safety
/// The listener is live.
unsafe fn request(
    listener: &Id,
    listen_id: *mut rdma_cm_id,
    waiting: &Waiting,
) -> Option<*mut rdma_cm_id> {
    let number = waiting.child?;
    // SAFETY: the function takes no pointers.
    // otherwise the request ended with its listener
    checked(unsafe { feroce_cm_take_request(number) }).ok()?;
    // SAFETY: the listener is live, and so is its channel.
    let made = unsafe {
        let rdma_cm_id { context, ps: space, qp_type, channel, .. } = *listen_id;
        let channel = if listener.is_sync() { std::ptr::null_mut() } else { channel };
        Begin { channel, context, space, qp_type, number: Some(number) }.make()
    };
    let Ok(id) = made else {
        // SAFETY: the function takes no pointers.
        unsafe { feroce_cm_destroy(number) };
        return None;
    };
    // SAFETY: the identifier was created above.
    let live = unsafe { id::of(id) };
    {
        let mut private = live.private();
        private.initiator_depth = waiting.parameters.initiator_depth;
        private.responder_resources = waiting.parameters.responder_resources;
        private.remote_ece = live.view().map(|view| view.remote_ece).unwrap_or_default();
    }
    // SAFETY: the identifier was created above.
    unsafe {
        if address::settle(id).is_err() {
            id::rdma_destroy_id(id);
            return None;
        }
        address::note_path(id);
    }
    Some(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return returned(Err(libc::EINVAL));
    }
    // SAFETY: the program passes an event from `rdma_get_cm_event` and does not use it again.
    let told = unsafe { object::take::<Told>(event) };
    if let Some(membership) = &told.membership {
        membership.unacknowledged.acknowledge(1);
    }
    told.heard.unacknowledged.acknowledge(1);
    0
}

/// Waits for the event that ends a call, if the identifier is synchronous.
///
/// # Safety
/// `id` is live.
///
/// # Errors
/// The error of the event.
pub unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live; an event is live until it is acknowledged.
    unsafe {
        if !id::of(id).is_sync() {
            return Ok(());
        }
        acknowledge_last(id);
        if rdma_get_cm_event((*id).channel, &raw mut (*id).event) != 0 {
            return Err(crate::errno::last());
        }
        let told = &*(*id).event;
        match (told.status, told.event) {
            (0, _) => Ok(()),
            (_, RDMA_CM_EVENT_REJECTED) => Err(libc::ECONNREFUSED),
            (status, _) => Err(status.abs()),
        }
    }
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
