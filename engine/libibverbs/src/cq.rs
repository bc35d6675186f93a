//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use feroce_engine::device::{CompletionQueue, DeviceError, MAX_CQE};
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Completion, CompletionOpcode, Extra, NetworkHeader, Notify};

use crate::abi::{
    IBV_CQ_ATTR_MODERATE, IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr, ibv_pd, ibv_wc,
};
use crate::channel::Unacknowledged;
use crate::completion::{CompChannel, CqWaker};
use crate::context::{self, Shared};
use crate::cq_ex::Cursor;
use crate::domain::Pd;
use crate::engine::Listener;
use crate::errno;
use crate::object::{self, Object};

/// A completion queue.
#[repr(C)]
pub struct Cq {
    /// As programs know it. The fields of the extended form are written by [`cq_ex`](crate::cq_ex) only.
    pub abi: UnsafeCell<ibv_cq_ex>,
    /// Of the context it was made from.
    pub shared: Arc<Shared>,
    /// The engine's.
    pub queue: CompletionQueue,
    /// For a queue with a channel.
    pub waker: Option<Arc<CqWaker>>,
    /// Asynchronous events that the program has not acknowledged.
    pub async_events: Arc<Unacknowledged>,
    /// QPs that complete to it.
    pub users: AtomicUsize,
    /// The parent domain that it was made in, or null.
    parent: *mut ibv_pd,
    /// Of `ibv_start_poll` and what follows.
    pub cursor: Cursor,
}

// SAFETY: the first field is the longer form of the C structure, which begins with it.
unsafe impl Object for Cq {
    type Abi = ibv_cq;
}

/// What a queue is to be.
pub struct Wanted {
    /// The program's context.
    pub context: *mut ibv_context,
    /// Completions.
    pub entries: u32,
    /// The program's own.
    pub cq_context: *mut c_void,
    /// Null for none.
    pub channel: *mut ibv_comp_channel,
    /// Completion vector.
    pub vector: u32,
}

/// Places for `entries` completions. Devices round up, and programs have come to need it: perftest's latency tests with
/// events make a queue for one completion, and at times let two come.
fn places(entries: u32) -> u32 {
    match entries {
        1..MAX_CQE => (entries + 1).next_power_of_two().max(LEAST_PLACES),
        _ => entries, // 0, and what is beyond the most, are refused as they are.
    }
}

const LEAST_PLACES: u32 = 16;

impl Wanted {
    /// Makes the queue.
    ///
    /// # Safety
    /// The context is open, and the channel null or live.
    ///
    /// # Errors
    /// EINVAL for numbers out of range; what the engine refuses.
    pub unsafe fn make(&self) -> Result<Box<Cq>, c_int> {
        // SAFETY: the caller says so.
        let shared = unsafe { context::shared(self.context) }?;
        // SAFETY: as above.
        let vectors = unsafe { (*self.context).num_comp_vectors };
        if i64::from(self.vector) >= i64::from(vectors) {
            return Err(libc::EINVAL);
        }
        let channel = (!self.channel.is_null())
            // SAFETY: as above.
            .then(|| unsafe { object::borrow::<CompChannel>(self.channel) });
        let waker = channel.map(CqWaker::new);
        let (device, entries) = (&shared.engine.device, places(self.entries));
        let made = match &waker {
            Some(waker) => device.create_cq_waking(entries, Waker::from(Arc::clone(waker))),
            None => device.create_cq(entries),
        };
        let queue = made.map_err(|error| errno::of_device(&error))?;
        // SAFETY: null pointers, empty entries and zeros are values of the plain structure.
        let mut abi: ibv_cq_ex = unsafe { std::mem::zeroed() };
        abi.context = self.context;
        abi.channel = self.channel;
        abi.cq_context = self.cq_context;
        abi.cqe = c_int::try_from(queue.depth()).unwrap_or(c_int::MAX);
        abi.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        abi.cond = libc::PTHREAD_COND_INITIALIZER;
        if let Some(channel) = channel {
            channel.users.fetch_add(1, Ordering::AcqRel);
        }
        let cq = Box::new(Cq {
            abi: UnsafeCell::new(abi),
            shared: Arc::clone(shared),
            queue,
            waker,
            async_events: Arc::default(),
            users: AtomicUsize::new(0),
            parent: std::ptr::null_mut(),
            cursor: Cursor::new(),
        });
        cq.announce();
        Ok(cq)
    }
}

impl Cq {
    /// It is of the parent domain, which has one user more.
    ///
    /// # Safety
    /// The domain is live.
    pub unsafe fn join(&mut self, parent: *mut ibv_pd) {
        // SAFETY: the caller says so.
        unsafe { object::borrow::<Pd>(parent) }.users.fetch_add(1, Ordering::AcqRel);
        self.parent = parent;
    }

    /// Events find it from now on.
    fn announce(&self) {
        let object = self.abi.get().expose_provenance();
        if let Some(waker) = &self.waker {
            waker.cq.store(object, Ordering::Release);
        }
        let listener = Listener {
            object,
            unacknowledged: Arc::clone(&self.async_events),
            channel: Arc::clone(&self.shared.events),
        };
        self.shared.engine.add_cq(self.queue.id().0, listener);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let (Ok(entries), Ok(vector)) = (u32::try_from(entries), u32::try_from(vector)) else {
        return errno::fail(libc::EINVAL);
    };
    // SAFETY: the program passes an open context and no or a live channel.
    object::give_or_fail(unsafe { Wanted { context, entries, cq_context, channel, vector }.make() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the program passes a live queue.
    let live = unsafe { object::borrow::<Cq>(cq) };
    if let Err(code) = live.shared.check() {
        return code;
    }
    if live.users.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    live.shared.engine.remove_cq(live.queue.id().0);
    if let Some(waker) = &live.waker {
        waker.retire();
        // SAFETY: the channel outlives its queues: destroying it is refused while there are any.
        let channel = unsafe { object::borrow::<CompChannel>((*live.abi.get()).channel) };
        channel.users.fetch_sub(1, Ordering::AcqRel);
    }
    // SAFETY: as above; no QP uses it, and no event of it is left. Its domain lives: that goes after it.
    unsafe {
        let gone = object::take::<Cq>(cq);
        if !gone.parent.is_null() {
            object::borrow::<Pd>(gone.parent).users.fetch_sub(1, Ordering::AcqRel);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    // SAFETY: the program passes a live queue.
    let live = unsafe { object::borrow::<Cq>(cq) };
    object::code(live.shared.check().and_then(|()| {
        let entries = u32::try_from(entries).map_err(|_| libc::EINVAL)?;
        // It may have more places than the program asks for, but not hold more completions.
        let holds = || u32::try_from(live.queue.held()).unwrap_or(u32::MAX);
        if entries == 0 || entries < holds() {
            return Err(libc::EINVAL);
        }
        live.queue.resize(places(entries)).map_err(|error| match error {
            DeviceError::Busy(_) => libc::EINVAL,
            other => errno::of_device(&other),
        })?;
        // SAFETY: who resizes a queue in two threads gets one of the sizes.
        unsafe {
            (*live.abi.get()).cqe = c_int::try_from(live.queue.depth()).unwrap_or(c_int::MAX);
        }
        Ok(())
    }))
}

/// `ibv_modify_cq`
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the program passes a live queue and attributes.
    let (live, attr) = unsafe { (object::borrow::<Cq>(cq), *attr) };
    object::code(live.shared.check().and_then(|()| {
        if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return Err(libc::EINVAL);
        }
        if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
            let period = Duration::from_micros(u64::from(attr.moderate.cq_period));
            live.queue.moderate(attr.moderate.cq_count, period);
        }
        Ok(())
    }))
}

/// `ibv_req_notify_cq`
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program passes a live queue.
    let live = unsafe { object::borrow::<Cq>(cq) };
    if let Err(code) = live.shared.check() {
        return code;
    }
    let notify = if solicited_only == 0 { Notify::Any } else { Notify::Solicited };
    live.queue.request_notify(notify);
    0
}

/// `ibv_poll_cq`
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: the program passes a live queue.
    let live = unsafe { object::borrow::<Cq>(cq) };
    if live.shared.check().is_err() {
        return -1;
    }
    let mut count = 0;
    while count < most {
        // Driving the engine pays only when there is nothing: the others are there already.
        let next = if count == 0 { live.queue.poll_one() } else { live.queue.pop() };
        let Some(completion) = next else { break };
        // SAFETY: the program passes room for `most`, and `count` is less.
        unsafe { out.add(usize::try_from(count).unwrap_or(0)).write(work_completion(&completion)) };
        count += 1;
    }
    count
}

/// `IBV_WC_SEND` and the others.
pub fn opcode(completion: &Completion) -> u32 {
    match completion.opcode {
        CompletionOpcode::Receive => 1 << 7,
        CompletionOpcode::ReceiveRdmaWithImmediate => (1 << 7) + 1,
        sent => sent as u32,
    }
}

/// What came with a message: `wc_flags`, and immediate data as they were on the wire or the key.
pub fn extra(completion: &Completion) -> (u32, u32) {
    let grh = if completion.datagram.is_some() { IBV_WC_GRH } else { 0 };
    match completion.extra {
        Extra::None => (grh, 0),
        Extra::Immediate(data) => (grh | IBV_WC_WITH_IMM, data.to_be()),
        Extra::Invalidated(key) => (grh | IBV_WC_WITH_INV, key.value()),
    }
}

/// `sl` of a datagram as RNICs have it, and UCX up to 1.13 needs it to find the GRH's address: bit 3 says that it is RoCE v2, the three below
/// which header the GRH holds. The priority of its frame is in the upper half, where [`priority`] finds it.
pub fn service_level(completion: &Completion) -> u8 {
    let Some(from) = completion.datagram else { return 0 };
    let header = match from.network {
        NetworkHeader::Ipv6 => 1,
        NetworkHeader::Ipv4 => 2,
    };
    from.sl << 4 | 1 << 3 | header
}

/// The 802.1Q priority of the frame whose completion has this `sl`.
pub fn priority(sl: u8) -> u8 {
    sl >> 4
}

fn work_completion(completion: &Completion) -> ibv_wc {
    let (wc_flags, imm_data) = extra(completion);
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as u32,
        opcode: opcode(completion),
        vendor_err: 0,
        byte_len: completion.byte_len,
        imm_data,
        qp_num: completion.qp.value(),
        src_qp: completion.datagram.map_or(0, |from| from.src_qp.value()),
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: service_level(completion),
        dlid_path_bits: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_engine::time::Instant;
    use feroce_engine::verbs::{DatagramSource, Status};
    use feroce_wire::Qpn;

    #[test]
    fn the_service_level_of_a_datagram_says_which_header_it_has() {
        let completion = |datagram| Completion {
            wr_id: 1,
            status: Status::Success,
            opcode: CompletionOpcode::Receive,
            byte_len: 44,
            extra: Extra::None,
            solicited: false,
            qp: Qpn::masked(5),
            at: Instant::ZERO,
            datagram,
        };
        let from = |network, sl| {
            let source = DatagramSource { src_qp: Qpn::masked(6), sl, vlan: Some(7), network };
            service_level(&completion(Some(source)))
        };
        assert_eq!(service_level(&completion(None)), 0);
        assert_eq!((from(NetworkHeader::Ipv4, 0), from(NetworkHeader::Ipv6, 0)), (0xa, 0x9));
        assert_eq!(priority(from(NetworkHeader::Ipv4, 5)), 5);
    }
}
