//! Completion channels: a descriptor that reports which completion queues have completions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Wake;

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::channel::{self, Channel, Unacknowledged};
use crate::context::{self, Shared, implement_object};
use crate::errno;
use crate::object::{self, Base};

/// A completion channel.
#[repr(C)]
pub struct CompChannel {
    abi: UnsafeCell<ibv_comp_channel>,
    base: Base,
    shared: Arc<Shared>,
    /// Events of CQs that have completions.
    pub channel: Arc<Channel<CqEvent>>,
}

implement_object!(CompChannel: ibv_comp_channel);

/// Event: a completion arrived on a CQ that had requested a notification.
#[derive(Debug, Clone)]
pub struct CqEvent {
    /// Address of the program's `ibv_cq`.
    cq: usize,
    unacknowledged: Arc<Unacknowledged>,
}

/// The engine wakes this waker when a completion arrives for which a notification was requested.
#[derive(Debug)]
pub struct CqWaker {
    channel: Arc<Channel<CqEvent>>,
    /// Address of the program's `ibv_cq`. Set once the CQ exists, before the first notification can
    /// be requested.
    pub cq: AtomicUsize,
    /// The program has destroyed the CQ. A core may still wake this waker.
    is_retired: AtomicBool,
    unacknowledged: Arc<Unacknowledged>,
}

impl CqWaker {
    /// Creates the waker for a CQ that does not exist yet.
    pub fn new(channel: &CompChannel) -> Arc<Self> {
        Arc::new(Self {
            channel: Arc::clone(&channel.channel),
            cq: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
            unacknowledged: Arc::default(),
        })
    }

    /// Counts `events` events of the CQ as acknowledged.
    pub fn acknowledge(&self, events: c_uint) {
        self.unacknowledged.acknowledge(u64::from(events));
    }

    /// Ends events of the CQ: removes those that the program has not read, then waits until it has
    /// acknowledged all that it has read.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.channel.remove(|event| Arc::ptr_eq(&event.unacknowledged, &self.unacknowledged));
        self.unacknowledged.wait();
    }
}

impl Wake for CqWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let cq = self.cq.load(Ordering::Acquire);
        let event = CqEvent { cq, unacknowledged: Arc::clone(&self.unacknowledged) };
        self.channel.push_unless(&self.is_retired, event);
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    object::give_or_fail(context::shared(context).and_then(|shared| {
        let channel = Arc::new(Channel::new()?);
        let abi = ibv_comp_channel { context, fd: channel.fd(), refcnt: 0 };
        let base = Base::new(context.addr(), 0);
        Ok(Arc::new(CompChannel { abi: UnsafeCell::new(abi), base, shared, channel }))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    object::code(
        object::destroy::<CompChannel>(channel, |_| Ok(()))
            .map(|destroyed| drop(destroyed.finish())),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        let fd = await_cq_event(channel);
        if fd < 0 || !channel::wait(fd) {
            return -1;
        }
        // SAFETY: the program passes two writable pointers.
        if unsafe { take_cq_event(cq, cq_context) } {
            return 0;
        }
    }
}

/// Begins to wait. Returns -1 with `errno` set if the channel is not usable.
extern "C" fn await_cq_event(channel: *mut ibv_comp_channel) -> c_int {
    let events = object::live::<CompChannel>(channel).and_then(|live| {
        live.shared.check()?;
        Ok(Arc::clone(&live.channel))
    });
    // A thread that sleeps holds the queue alone, so that the engine can close meanwhile.
    match events {
        Ok(events) => channel::begin(events),
        Err(code) => {
            errno::set(code);
            -1
        }
    }
}

/// Writes the CQ of the event for the program. Returns false if the event was removed.
///
/// # Safety
/// `cq` and `cq_context` are writable.
unsafe extern "C" fn take_cq_event(cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> bool {
    let Some(event) = channel::end::<CqEvent>(|event| event.unacknowledged.add()) else {
        return false;
    };
    let event = std::ptr::with_exposed_provenance_mut::<ibv_cq>(event.cq);
    // SAFETY: the CQ exists, because `ibv_destroy_cq` waits for the acknowledgement of this event;
    // the pointers are writable.
    unsafe {
        *cq = event;
        *cq_context = (*event).cq_context;
    }
    true
}
