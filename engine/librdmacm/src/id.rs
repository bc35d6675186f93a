//! Identifiers: `rdma_cm_id`.

use std::cell::UnsafeCell;
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
use crate::addrinfo::AddrInfoList;
use crate::channel::Unacknowledged;
use crate::device::{self, Device};
use crate::event_channel::{EventChannel, acknowledge_last, rdma_ack_cm_event};
use crate::id_state::{self, IdState, ids, queue_event};
use crate::membership::Membership;
use crate::object::{self, Base, Object};
use crate::outcome::{check_code, return_code};

/// An identifier.
#[repr(C)]
pub struct Id {
    abi: UnsafeCell<rdma_cm_id>,
    base: Base,
    /// The part that the delivery of events uses.
    pub state: Arc<IdState>,
    private: Mutex<Private>,
}

/// A name that is resolved with an event.
#[derive(Default)]
pub enum Resolution {
    /// None was requested, the last one failed, or the program has taken the result.
    #[default]
    Idle,
    /// A thread is within `rdma_resolve_addrinfo`.
    Resolving,
    /// The result, which the program has not taken.
    Done(AddrInfoList),
}

/// State that programs do not see.
#[derive(Default)]
pub struct Private {
    /// The device that the identifier is bound to.
    pub device: Option<&'static Device>,
    /// Created without a channel: the identifier has its own, and calls wait for their event.
    pub is_sync: bool,
    /// RDMA READs and atomics that the QP accepts at a time as responder.
    pub responder_resources: u8,
    /// RDMA READs and atomics that the QP may have outstanding as requester.
    pub initiator_depth: u8,
    /// RNR retries that the peer is requested to make, once known: its reaction to RNR NAKs.
    pub rnr_retries_requested: Option<u8>,
    /// Connecting the QP failed: the peer's reaction to that is not reported to the program.
    pub connect_failed: bool,
    /// ECE of the local QP.
    pub local_ece: CmEce,
    /// ECE of the peer.
    pub remote_ece: CmEce,
    /// Attributes for the QPs of connection requests, if `rdma_create_ep` created this listener.
    pub qp_init: Option<ibv_qp_init_attr>,
    /// Sent ahead of the program's private data.
    pub connect_data: Vec<u8>,
    /// State of `rdma_resolve_addrinfo`.
    pub resolution: Resolution,
    /// Multicast groups that the identifier has joined.
    pub memberships: Vec<Arc<Membership>>,
}

// SAFETY: the pointers in the C structure are the program's, which may use them from every thread.
unsafe impl Send for Id {}
// SAFETY: as for `Send`; the C structure is in a cell.
unsafe impl Sync for Id {}

// SAFETY: `#[repr(C)]`, and the first field is a cell with the C structure.
unsafe impl Object for Id {
    type Abi = rdma_cm_id;
    fn base(&self) -> &Base {
        &self.base
    }

    fn release_uses(&self) {}
}

/// Parameters of a new identifier.
pub struct NewId {
    /// The event channel; null for a synchronous identifier.
    pub channel: *mut rdma_event_channel,
    /// The program's context.
    pub context: *mut c_void,
    /// `rdma_port_space`
    pub space: c_uint,
    /// `ibv_qp_type`
    pub qp_type: c_uint,
    /// Number of a connection request's identifier. Its events are not delivered until it is
    /// accepted.
    pub number: Option<CmNumber>,
}

impl NewId {
    /// Creates the identifier.
    ///
    /// # Safety
    /// The channel is null or live.
    pub unsafe fn create(self) -> Result<*mut rdma_cm_id, c_int> {
        let is_sync = self.channel.is_null();
        let channel = if is_sync { object::give(EventChannel::new()?) } else { self.channel };
        let queue = object::live::<EventChannel>(channel)?.queue();
        let number = match self.number {
            Some(number) => Ok(number),
            None => {
                let mut number = 0;
                // SAFETY: `number` is writable.
                let code = unsafe {
                    feroce_cm_create(queue_event, self.space, self.qp_type, &raw mut number)
                };
                check_code(code).map(|()| number)
            }
        };
        let number = match number {
            Ok(number) => number,
            Err(code) => {
                if is_sync {
                    destroy_own(channel);
                }
                return Err(code);
            }
        };
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let mut abi: rdma_cm_id = unsafe { std::mem::zeroed() };
        abi.channel = channel;
        abi.context = self.context;
        abi.ps = self.space;
        abi.qp_type = self.qp_type;
        let state = Arc::new(IdState {
            number,
            address: AtomicUsize::new(0),
            queue: Mutex::new(queue),
            unacknowledged: Unacknowledged::default(),
            delivers_events: AtomicBool::new(self.number.is_none()),
            is_retired: AtomicBool::new(false),
        });
        let private = Mutex::new(Private { is_sync, ..Private::default() });
        let (abi, base) = (UnsafeCell::new(abi), Base::new(0, 0));
        let id = object::give(Arc::new(Id { abi, base, state: Arc::clone(&state), private }));
        state.address.store(id.expose_provenance(), Ordering::Release);
        ids().insert(number, state);
        Ok(id)
    }
}

impl Id {
    /// Returns the number in the connection manager.
    pub fn number(&self) -> CmNumber {
        self.state.number
    }

    /// Locks and returns the state that programs do not see. The lock is held only briefly.
    pub fn private(&self) -> MutexGuard<'_, Private> {
        self.private.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if calls wait for their event.
    pub fn is_sync(&self) -> bool {
        self.private().is_sync
    }

    /// Returns the device.
    ///
    /// # Errors
    /// EINVAL if the identifier is not bound to one.
    pub fn device(&self) -> Result<&'static Device, c_int> {
        self.private().device.ok_or(libc::EINVAL)
    }

    /// Returns addresses, path and ECE as the connection manager knows them.
    ///
    /// # Errors
    /// The identifier is unknown.
    pub fn view(&self) -> Result<CmView, c_int> {
        let mut view = CmView::default();
        // SAFETY: `view` is writable.
        check_code(unsafe { feroce_cm_query(self.number(), &raw mut view) })?;
        Ok(view)
    }
}

/// Destroys the channel of a synchronous identifier.
fn destroy_own(channel: *mut rdma_event_channel) {
    drop(object::destroy::<EventChannel>(channel, |_| Ok(())).map(object::Destroying::finish));
}

/// Returns the program's live identifier. Every function that takes an identifier begins with this
/// check or with [`check`].
///
/// # Errors
/// EINVAL if it is not a live identifier.
pub fn live(id: *mut rdma_cm_id) -> Result<Arc<Id>, c_int> {
    object::live::<Id>(id)
}

/// Returns the program's identifier, even while another thread waits in [`rdma_destroy_id`] for the
/// acknowledgement of events: its QP and its SRQ can be destroyed until that thread returns.
pub fn known(id: *mut rdma_cm_id) -> Option<Arc<Id>> {
    object::known::<Id>(id)
}

/// Fails in a forked child, which must not use the parent's identifiers.
///
/// # Errors
/// EINVAL if it is not a live identifier, or if the program has destroyed its channel; EIO in a
/// forked child.
pub fn check(id: *mut rdma_cm_id) -> Result<(), c_int> {
    let live = live(id)?;
    // SAFETY: the structure is part of the object.
    let channel = unsafe { (*live.abi.get()).channel };
    object::live::<EventChannel>(channel)?.check()
}

/// Returns the object behind the program's pointer.
///
/// # Safety
/// `id` is live.
pub unsafe fn borrow<'a>(id: *mut rdma_cm_id) -> &'a Id {
    // SAFETY: `id` is live.
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
    if let Err(code) = device::check_present() {
        return return_code(Err(code));
    }
    // SAFETY: the program passes a writable pointer; the channel is null or live.
    return_code(unsafe {
        NewId { channel, context, space, qp_type, number: None }.create().map(|made| id.write(made))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the function takes no pointers.
    let end = |live: &Id| check_code(unsafe { feroce_cm_destroy(live.number()) });
    let live = match object::destroy::<Id>(id, end) {
        Ok(destroyed) => destroyed,
        Err(code) => return return_code(Err(code)),
    };
    ids().remove(&live.number());
    id_state::retire(&live.state);
    // SAFETY: the program does not use the identifier again. Its own channel and its last event end
    // with it.
    unsafe {
        if !(*id).event.is_null() {
            rdma_ack_cm_event((*id).event);
        }
        live.state.unacknowledged.wait();
        if live.is_sync() {
            destroy_own((*id).channel);
        }
        libc::free((*id).route.path_rec.cast());
    }
    drop(live.finish());
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    let live = match check(id).and_then(|()| live(id)) {
        Ok(live) => live,
        Err(code) => return return_code(Err(code)),
    };
    let was_sync = live.is_sync();
    if was_sync && channel.is_null() {
        return return_code(Err(libc::EINVAL));
    }
    let is_sync = channel.is_null();
    let channel = match is_sync {
        true => match EventChannel::new() {
            Ok(made) => object::give(made),
            Err(code) => return return_code(Err(code)),
        },
        false => channel,
    };
    let queue = match object::live::<EventChannel>(channel) {
        Ok(live) => live.queue(),
        Err(code) => return return_code(Err(code)),
    };
    // SAFETY: the identifier is live.
    let old = unsafe { std::mem::replace(&mut (*id).channel, channel) };
    live.private().is_sync = is_sync;
    // From here on, a thread that waits on the new channel may get the identifier's events.
    id_state::redirect(&live.state, queue);
    if was_sync {
        // SAFETY: the identifier owned its last event and its channel; the program no longer refers
        // to them.
        unsafe { acknowledge_last(id) };
        destroy_own(old);
    }
    live.state.unacknowledged.wait();
    0
}
