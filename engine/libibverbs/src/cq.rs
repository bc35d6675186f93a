//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use feroce_engine::device::{CompletionQueue, DeviceError, MAX_CQE};
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Completion, CompletionOpcode, Extra, NetworkHeader, Notify};

use crate::abi::{
    IBV_CQ_ATTR_MODERATE, IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr, ibv_wc,
};
use crate::channel::Unacknowledged;
use crate::completion::{CompChannel, CqWaker};
use crate::context::{self, Shared, implement_object};
use crate::domain::Pd;
use crate::engine::Listener;
use crate::errno;
use crate::lock::HeldLock;
use crate::object::{self, Base, Object, Use};

/// Position of an `ibv_start_poll` iteration.
#[derive(Debug)]
pub struct Cursor {
    /// Held from `ibv_start_poll` to `ibv_end_poll`.
    pub lock: HeldLock,
    /// The current completion. Only the thread that holds the lock accesses it.
    pub current: UnsafeCell<Option<Completion>>,
}

impl Cursor {
    /// Creates a cursor without a current completion.
    pub fn new() -> Self {
        Self { lock: HeldLock::new(), current: UnsafeCell::new(None) }
    }
}

/// Held while the size of a CQ changes, so that the C structure shows the size that was set last.
#[derive(Debug, Default)]
struct Resizing(Mutex<()>);

impl Resizing {
    /// Changes the size with `resize`, which returns the new one, and shows it in `cqe`.
    fn run(
        &self,
        cqe: &AtomicI32,
        resize: impl FnOnce() -> Result<usize, c_int>,
    ) -> Result<(), c_int> {
        let _alone = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let depth = resize()?;
        // Atomic, because the program may read the field at any time.
        cqe.store(c_int::try_from(depth).unwrap_or(c_int::MAX), Ordering::Relaxed);
        Ok(())
    }
}

/// A completion queue.
#[repr(C)]
pub struct Cq {
    /// The C structure. Only [`cq_ex`](crate::cq_ex) writes the fields of the extended form.
    pub abi: UnsafeCell<ibv_cq_ex>,
    base: Base,
    /// Shared state of the context that the CQ was created from.
    pub shared: Arc<Shared>,
    /// The engine's CQ.
    pub queue: CompletionQueue,
    /// Waker for the completion channel, if the CQ has one.
    pub waker: Option<Arc<CqWaker>>,
    /// Asynchronous events that the program has read and not acknowledged.
    pub async_events: Arc<Unacknowledged>,
    /// The parent domain passed at creation. Its promise of a single thread is not used.
    _parent: Option<Use<Pd>>,
    _channel: Option<Use<CompChannel>>,
    /// Cursor of the `ibv_start_poll` interface.
    pub cursor: Cursor,
    resizing: Resizing,
}

// The first field is `ibv_cq_ex`, which begins with the fields of `ibv_cq`.
implement_object!(Cq: ibv_cq, handle; uses _parent, _channel);

/// Parameters of a CQ to create.
pub struct CqConfig {
    /// The program's context.
    pub context: *mut ibv_context,
    /// Number of completions that it must hold.
    pub entries: u32,
    /// The program's `cq_context`.
    pub cq_context: *mut c_void,
    /// Completion channel, or null.
    pub channel: *mut ibv_comp_channel,
    /// Completion vector.
    pub vector: u32,
    /// The parent domain, if the program passes one.
    pub parent: Option<Arc<Pd>>,
}

/// Rounds the number of entries up, as hardware drivers do. Programs rely on it: perftest's latency
/// tests with events create a CQ for one entry and sometimes let two completions arrive.
fn round_up_entries(entries: u32) -> u32 {
    match entries {
        1..MAX_CQE => (entries + 1).next_power_of_two().max(MIN_ENTRIES),
        _ => entries, // The engine rejects 0 and values above the limit.
    }
}

/// Number of completion vectors: a single helper thread delivers notifications.
pub const VECTORS: u32 = 1;

/// Smallest number of entries of a CQ.
const MIN_ENTRIES: u32 = 16;

impl CqConfig {
    /// Creates the CQ. `extend` sets the fields of the extended form.
    ///
    /// # Errors
    /// EINVAL for numbers out of range, or a channel that is not one of this context; the error
    /// number of the engine's error otherwise.
    pub fn create(self, extend: impl FnOnce(&mut ibv_cq_ex)) -> Result<Arc<Cq>, c_int> {
        let shared = context::shared(self.context)?;
        if self.vector >= VECTORS {
            return Err(libc::EINVAL);
        }
        let context = self.context.addr();
        let channel = context::live_in_or_null::<CompChannel>(context, self.channel)?;
        let channel = channel.map(Use::new).transpose()?;
        let parent = self.parent.map(Use::new).transpose()?;
        let waker = channel.as_ref().map(|channel| CqWaker::new(channel));
        let (device, entries) = (&shared.engine.device, round_up_entries(self.entries));
        let made = match &waker {
            Some(waker) => device.create_cq_waking(entries, Waker::from(Arc::clone(waker))),
            // Without a channel no thread sleeps on the queue: it needs no descriptor.
            None => device.create_cq_waking(entries, Waker::noop().clone()),
        };
        let queue = made.map_err(|error| errno::of_device(&error))?;
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let mut abi: ibv_cq_ex = unsafe { std::mem::zeroed() };
        abi.context = self.context;
        abi.channel = self.channel;
        abi.cq_context = self.cq_context;
        abi.handle = queue.id().0;
        abi.cqe = c_int::try_from(queue.depth()).unwrap_or(c_int::MAX);
        abi.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        abi.cond = libc::PTHREAD_COND_INITIALIZER;
        extend(&mut abi);
        let cq = Arc::new(Cq {
            base: Base::new(context, abi.handle),
            abi: UnsafeCell::new(abi),
            shared,
            queue,
            waker,
            async_events: Arc::default(),
            _parent: parent,
            _channel: channel,
            cursor: Cursor::new(),
            resizing: Resizing::default(),
        });
        cq.register_listener();
        Ok(cq)
    }
}

impl Cq {
    /// Registers the CQ for asynchronous events and completion events.
    fn register_listener(&self) {
        let object = self.exposed();
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
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let (Ok(entries), Ok(vector)) = (u32::try_from(entries), u32::try_from(vector)) else {
        return errno::fail(libc::EINVAL);
    };
    let config = CqConfig { context, entries, cq_context, channel, vector, parent: None };
    object::give_or_fail(config.create(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    object::code(object::destroy::<Cq>(cq, |cq| cq.shared.check()).map(|destroyed| {
        destroyed.shared.engine.remove_cq(destroyed.queue.id().0);
        if let Some(waker) = &destroyed.waker {
            waker.retire();
        }
        drop(destroyed.finish());
    }))
}

/// Returns the program's live CQ, if this process made it.
fn live(cq: *mut ibv_cq) -> Result<Arc<Cq>, c_int> {
    let live = object::live::<Cq>(cq)?;
    live.shared.check()?;
    Ok(live)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    object::code(live(cq).and_then(|live| {
        let entries = u32::try_from(entries).map_err(|_| libc::EINVAL)?;
        // SAFETY: the field is part of the object, and only this function changes it.
        let cqe = unsafe { AtomicI32::from_ptr(&raw mut (*live.abi.get()).cqe) };
        live.resizing.run(cqe, || {
            // The CQ may have more entries than requested, but the new size must hold the
            // completions it contains.
            let holds = || u32::try_from(live.queue.held()).unwrap_or(u32::MAX);
            if entries == 0 || entries < holds() {
                return Err(libc::EINVAL);
            }
            live.queue.resize(round_up_entries(entries)).map_err(|error| match error {
                DeviceError::Busy(_) => libc::EINVAL,
                other => errno::of_device(&other),
            })?;
            Ok(live.queue.depth())
        })
    }))
}

/// `ibv_modify_cq`
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    object::code(live(cq).and_then(|live| {
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
    // SAFETY: the program passes a live CQ. Programs call this once per event, so that the CQ is
    // not looked up.
    let live = unsafe { object::borrow::<Cq>(cq) };
    object::code(live.check_shown(libc::EINVAL).and_then(|()| {
        live.shared.check()?;
        let notify = if solicited_only == 0 { Notify::Any } else { Notify::Solicited };
        live.queue.request_notify(notify);
        Ok(())
    }))
}

/// `ibv_poll_cq`
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: the program passes a live CQ.
    let live = unsafe { object::borrow::<Cq>(cq) };
    if live.shared.check().is_err() {
        return -1;
    }
    let mut count = 0;
    while count < most {
        // Only the first poll drives the engine: after that, completions are already in the queue.
        let next = if count == 0 { live.queue.poll_one() } else { live.queue.pop() };
        let Some(completion) = next else { break };
        // SAFETY: the program passes room for `most` entries, and `count` is less than `most`.
        unsafe { out.add(usize::try_from(count).unwrap_or(0)).write(work_completion(&completion)) };
        count += 1;
    }
    count
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // The CQ is dropped before the acknowledgement, which lets another thread destroy it.
    let waker = object::known::<Cq>(cq).and_then(|cq| cq.waker.clone());
    if let Some(waker) = waker {
        waker.acknowledge(events);
    }
}

/// Returns the `ibv_wc_opcode`.
pub fn opcode(completion: &Completion) -> u32 {
    match completion.opcode {
        CompletionOpcode::Receive => 1 << 7,
        CompletionOpcode::ReceiveRdmaWithImmediate => (1 << 7) + 1,
        sent => sent as u32,
    }
}

/// Returns `wc_flags`, and the immediate data in network byte order or the invalidated key.
pub fn extra(completion: &Completion) -> (u32, u32) {
    let grh = if completion.datagram.is_some() { IBV_WC_GRH } else { 0 };
    match completion.extra {
        Extra::None => (grh, 0),
        Extra::Immediate(data) => (grh | IBV_WC_WITH_IMM, data.to_be()),
        Extra::Invalidated(key) => (grh | IBV_WC_WITH_INV, key.value()),
    }
}

/// Returns `sl` of a datagram in the form that RNICs use and that UCX up to 1.13 needs to find the
/// address in the GRH: bit 3 marks RoCE v2, and the three bits below say which header the GRH
/// contains. The upper four bits hold the frame's priority; [`priority`] extracts it.
pub fn service_level(completion: &Completion) -> u8 {
    let Some(from) = completion.datagram else { return 0 };
    let header = match from.network {
        NetworkHeader::Ipv6 => 1,
        NetworkHeader::Ipv4 => 2,
    };
    from.sl << 4 | 1 << 3 | header
}

/// Returns the 802.1Q priority from the `sl` of a completion.
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
    fn the_shown_size_is_the_one_that_was_set_last() {
        let (resizing, cqe, depth) = (Resizing::default(), AtomicI32::new(0), AtomicI32::new(0));
        for _ in 0..200 {
            std::thread::scope(|scope| {
                for wanted in [16, 32] {
                    let (resizing, cqe, depth) = (&resizing, &cqe, &depth);
                    let resize = move || {
                        depth.store(wanted, Ordering::Relaxed);
                        let set = depth.load(Ordering::Relaxed);
                        std::thread::yield_now(); // The other thread may resize now.
                        Ok(usize::try_from(set).unwrap())
                    };
                    scope.spawn(move || resizing.run(cqe, resize).unwrap());
                }
            });
            assert_eq!(cqe.load(Ordering::Relaxed), depth.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn the_service_level_of_a_datagram_encodes_its_header_type() {
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
