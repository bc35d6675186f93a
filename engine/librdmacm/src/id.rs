//! Identifiers: `rdma_cm_id`.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::connections::{
    CmEce, CmNumber, CmView, feroce_cm_create, feroce_cm_destroy, feroce_cm_query,
};
use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UD, RDMA_PS_IPOIB, RDMA_PS_UDP, ibv_qp_init_attr, rdma_cm_id,
    rdma_event_channel,
};
use crate::channel::Unacknowledged;
use crate::device::{self, Device};
use crate::event::{self, EventChannel, Queue, acknowledge_last, rdma_ack_cm_event, sink};
use crate::multicast::Membership;
use crate::object::{self, Object};
use crate::outcome::{checked, returned};
use crate::process::PerProcess;

/// An identifier.
#[repr(C)]
pub struct Id {
    abi: UnsafeCell<rdma_cm_id>,
    /// What finds it.
    pub heard: Arc<Heard>,
    private: Mutex<Private>,
}

/// What programs do not see of it.
#[derive(Default)]
pub struct Private {
    /// Where it is bound.
    pub device: Option<&'static Device>,
    /// It was made without a channel, and has one of its own: calls wait for their events.
    pub is_sync: bool,
    /// READs and atomics that its QP answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that its QP may have under way.
    pub initiator_depth: u8,
    /// Its QP could not be connected: what the peer says of that is not told.
    pub connect_failed: bool,
    /// Enhancements of its QP.
    pub local_ece: CmEce,
    /// The peer's.
    pub remote_ece: CmEce,
    /// What QPs of requests are made with, of a listener that `rdma_create_ep` made.
    pub qp_init: Option<ibv_qp_init_attr>,
    /// Goes ahead of the private data of the program.
    pub connect_data: Vec<u8>,
    /// Groups that it has joined.
    pub memberships: Vec<Arc<Membership>>,
}

/// What events need of an identifier.
pub struct Heard {
    /// Its number.
    pub number: CmNumber,
    /// Its address, as programs know it.
    pub address: AtomicUsize,
    /// Where its events go.
    pub queue: Mutex<Arc<Queue>>,
    /// Events that the program has taken and not acknowledged.
    pub unacknowledged: Unacknowledged,
    /// Of a request: nothing is told of it until the program has accepted it.
    pub is_told: AtomicBool,
}

impl Heard {
    /// Where its events go, held there meanwhile.
    pub fn queue(&self) -> MutexGuard<'_, Arc<Queue>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As programs know it.
    pub fn id(&self) -> *mut rdma_cm_id {
        std::ptr::with_exposed_provenance_mut(self.address.load(Ordering::Acquire))
    }
}

/// Identifiers by number.
static IDS: PerProcess<Mutex<BTreeMap<CmNumber, Arc<Heard>>>> = PerProcess::new(Mutex::default);

fn ids() -> MutexGuard<'static, BTreeMap<CmNumber, Arc<Heard>>> {
    IDS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The identifier of that number.
pub fn heard(number: CmNumber) -> Option<Arc<Heard>> {
    ids().get(&number).cloned()
}

/// The identifiers whose events go to `queue`.
pub fn through(queue: &Arc<Queue>) -> Vec<CmNumber> {
    let is_its = |heard: &&Arc<Heard>| Arc::ptr_eq(&heard.queue(), queue);
    ids().values().filter(is_its).map(|heard| heard.number).collect()
}

// SAFETY: the first field is the C structure.
unsafe impl Object for Id {
    type Abi = rdma_cm_id;
}

/// How an identifier begins.
pub struct Begin {
    /// The channel; null for one of its own.
    pub channel: *mut rdma_event_channel,
    /// The program's.
    pub context: *mut c_void,
    /// `rdma_port_space`
    pub space: c_uint,
    /// `ibv_qp_type`
    pub qp_type: c_uint,
    /// It has one already, and its program is told nothing of it yet.
    pub number: Option<CmNumber>,
}

impl Begin {
    /// Makes it.
    ///
    /// # Safety
    /// The channel is null or live.
    pub unsafe fn make(self) -> Result<*mut rdma_cm_id, c_int> {
        let is_sync = self.channel.is_null();
        let channel = if is_sync { object::give(EventChannel::new()?) } else { self.channel };
        let number = match self.number {
            Some(number) => Ok(number),
            None => {
                let mut number = 0;
                // SAFETY: the number is written.
                let code =
                    unsafe { feroce_cm_create(sink, self.space, self.qp_type, &raw mut number) };
                checked(code).map(|()| number)
            }
        };
        let number = match number {
            Ok(number) => number,
            Err(code) => {
                if is_sync {
                    // SAFETY: nobody else has it.
                    drop(unsafe { object::take::<EventChannel>(channel) });
                }
                return Err(code);
            }
        };
        // SAFETY: null pointers and zeros are values of the plain structure.
        let mut abi: rdma_cm_id = unsafe { std::mem::zeroed() };
        abi.channel = channel;
        abi.context = self.context;
        abi.ps = self.space;
        abi.qp_type = self.qp_type;
        // SAFETY: the caller says that it is live, or it is new.
        let queue = unsafe { object::borrow::<EventChannel>(channel) }.queue();
        let heard = Arc::new(Heard {
            number,
            address: AtomicUsize::new(0),
            queue: Mutex::new(queue),
            unacknowledged: Unacknowledged::default(),
            is_told: AtomicBool::new(self.number.is_none()),
        });
        let private = Mutex::new(Private { is_sync, ..Private::default() });
        let made = Id { abi: UnsafeCell::new(abi), heard: Arc::clone(&heard), private };
        let id = object::give(Box::new(made));
        heard.address.store(id.expose_provenance(), Ordering::Release);
        ids().insert(number, heard);
        Ok(id)
    }
}

impl Id {
    /// Its number.
    pub fn number(&self) -> CmNumber {
        self.heard.number
    }

    /// What programs do not see. Held for a moment.
    pub fn private(&self) -> MutexGuard<'_, Private> {
        self.private.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls wait for their events.
    pub fn is_sync(&self) -> bool {
        self.private().is_sync
    }

    /// The device.
    ///
    /// # Errors
    /// EINVAL if it is not bound to one.
    pub fn device(&self) -> Result<&'static Device, c_int> {
        self.private().device.ok_or(libc::EINVAL)
    }

    /// What is known of it.
    ///
    /// # Errors
    /// That it is unknown.
    pub fn view(&self) -> Result<CmView, c_int> {
        let mut view = CmView::default();
        // SAFETY: the view is written.
        checked(unsafe { feroce_cm_query(self.number(), &raw mut view) })?;
        Ok(view)
    }
}

/// Refuses in a forked child, whose the identifier is not.
///
/// # Safety
/// It is live.
///
/// # Errors
/// EIO
pub unsafe fn check(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the caller says so, and an identifier's channel lives as long as it.
    unsafe { object::borrow::<EventChannel>((*id).channel) }.check()
}

/// The identifier that the program means.
///
/// # Safety
/// It is live.
pub unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a Id {
    // SAFETY: the caller says so.
    unsafe { object::borrow::<Id>(id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_uint,
) -> c_int {
    let qp_type = match space {
        RDMA_PS_IPOIB | RDMA_PS_UDP => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    };
    if let Err(code) = device::find() {
        return returned(Err(code));
    }
    // SAFETY: the program passes a live channel or none, and a place for the identifier.
    returned(unsafe {
        Begin { channel, context, space, qp_type, number: None }.make().map(|made| id.write(made))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes a live identifier.
    let live = unsafe { of(id) };
    // SAFETY: no pointers are involved.
    if let Err(code) = checked(unsafe { feroce_cm_destroy(live.number()) }) {
        return returned(Err(code));
    }
    ids().remove(&live.number());
    event::forget(&live.heard);
    // SAFETY: the program does not use it from now on: its own channel goes with it, and what it was told with `event`.
    unsafe {
        if !(*id).event.is_null() {
            rdma_ack_cm_event((*id).event);
        }
        live.heard.unacknowledged.wait();
        if live.is_sync() {
            drop(object::take::<EventChannel>((*id).channel));
        }
        libc::free((*id).route.path_rec.cast());
        drop(object::take::<Id>(id));
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the program passes a live identifier.
    let live = unsafe { of(id) };
    let was_sync = live.is_sync();
    if was_sync && channel.is_null() {
        return returned(Err(libc::EINVAL));
    }
    // SAFETY: as above.
    if let Err(code) = unsafe { check(id) } {
        return returned(Err(code));
    }
    let is_sync = channel.is_null();
    let channel = match is_sync {
        true => match EventChannel::new() {
            Ok(made) => object::give(made),
            Err(code) => return returned(Err(code)),
        },
        false => channel,
    };
    // SAFETY: the program passes a live channel, or it is new; the identifier is live.
    let (queue, old) = unsafe {
        let queue = object::borrow::<EventChannel>(channel).queue();
        (queue, std::mem::replace(&mut (*id).channel, channel))
    };
    live.private().is_sync = is_sync;
    // Who waits at the new channel may have its events from here on.
    event::move_to(&live.heard, queue);
    if was_sync {
        // SAFETY: its last event and its own channel are nobody's any more.
        unsafe {
            acknowledge_last(id);
            drop(object::take::<EventChannel>(old));
        }
    }
    live.heard.unacknowledged.wait();
    0
}
