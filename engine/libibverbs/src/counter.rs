//! Completion counters (`ibv_comp_cntr`): they count the completions of the QPs that they are
//! attached to.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use feroce_engine::verbs::{CompletionCounter, CountedOp, CounterUnit};
use libc::size_t;

use crate::abi::{
    IBV_COMP_CNTR_TYPE_BYTES, IBV_COMP_CNTR_TYPE_WRS, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE, IBV_QP_ATTACH_COMP_CNTR_OP_RECV,
    IBV_QP_ATTACH_COMP_CNTR_OP_SEND, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr,
    ibv_context, ibv_qp, ibv_qp_attach_comp_cntr_attr,
};
use crate::context::{self, Shared, implement_object};
use crate::convert::fill;
use crate::object::{self, Base, Use};
use crate::{errno, qp};

/// A completion counter.
#[repr(C)]
pub struct CompCntr {
    abi: UnsafeCell<ibv_comp_cntr>,
    base: Base,
    shared: Arc<Shared>,
    counter: Arc<CompletionCounter>,
}

implement_object!(CompCntr: ibv_comp_cntr, handle);

/// Most counters of a process.
const MAX_COUNTERS: u32 = 1 << 16;

/// Counters of this process.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Number of the next counter. The engine has no numbers for them.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Drop for CompCntr {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The operations that can be counted. Operations of the peer are not.
const OPS: [(u32, CountedOp); 4] = [
    (IBV_QP_ATTACH_COMP_CNTR_OP_SEND, CountedOp::Send),
    (IBV_QP_ATTACH_COMP_CNTR_OP_RECV, CountedOp::Receive),
    (IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ, CountedOp::Read),
    (IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE, CountedOp::Write),
];

fn supported() -> u32 {
    OPS.iter().map(|(bit, _)| bit).sum()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: size_t,
) -> c_int {
    let known = ibv_comp_cntr_caps {
        max_value: u64::MAX,
        max_counters: MAX_COUNTERS,
        supported_qp_attach_ops: supported(),
    };
    object::code(context::shared_in_any_process(context).map(|_| {
        // SAFETY: the program passes a structure of `size` bytes.
        unsafe { fill(caps, &known, size) };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    object::give_or_fail(context::shared(context).and_then(|shared| {
        let unit = match attr.r#type {
            _ if attr.comp_mask != 0 || attr.flags != 0 => return Err(libc::EINVAL),
            IBV_COMP_CNTR_TYPE_WRS => CounterUnit::Requests,
            IBV_COMP_CNTR_TYPE_BYTES => CounterUnit::Bytes,
            _ => return Err(libc::ENOTSUP),
        };
        let has_room = |count: u32| (count < MAX_COUNTERS).then_some(count + 1);
        let counted = COUNT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, has_room);
        counted.map_err(|_| libc::ENOMEM)?;
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(CompCntr {
            abi: UnsafeCell::new(ibv_comp_cntr { context, handle }),
            base: Base::new(context.addr(), handle),
            shared,
            counter: Arc::new(CompletionCounter::new(unit)),
        }))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    object::code(
        object::destroy::<CompCntr>(counter, |counter| counter.shared.check())
            .map(|destroyed| drop(destroyed.finish())),
    )
}

/// Runs `act` with one of the counter's values.
fn with(
    counter: *mut ibv_comp_cntr,
    value: fn(&CompletionCounter) -> &AtomicU64,
    act: impl FnOnce(&AtomicU64),
) -> c_int {
    object::code(object::live::<CompCntr>(counter).and_then(|live| {
        live.shared.check()?;
        act(value(&live.counter));
        Ok(())
    }))
}

fn completed(counter: &CompletionCounter) -> &AtomicU64 {
    &counter.completed
}

fn failed(counter: &CompletionCounter) -> &AtomicU64 {
    &counter.failed
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    with(counter, completed, |counter| counter.store(value, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    with(counter, failed, |counter| counter.store(value, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    with(counter, completed, |counter| _ = counter.fetch_add(amount, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    with(counter, failed, |counter| _ = counter.fetch_add(amount, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the program passes a writable number.
    with(counter, completed, |counter| unsafe { value.write(counter.load(Ordering::Relaxed)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the program passes a writable number.
    with(counter, failed, |counter| unsafe { value.write(counter.load(Ordering::Relaxed)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    object::code(qp::live(qp).and_then(|live| {
        let counter = context::live_in::<CompCntr>(live.base.context(), counter)?;
        if attr.comp_mask != 0 || attr.op_mask == 0 {
            return Err(libc::EINVAL);
        }
        if attr.op_mask & !supported() != 0 {
            return Err(libc::ENOTSUP);
        }
        let ops = OPS.iter().filter(|(bit, _)| attr.op_mask & bit != 0);
        let ops: Vec<_> = ops.map(|(_, op)| *op).collect();
        let used = Use::new(counter)?;
        live.with(|held| held.qp.attach_counter(&used.counter, &ops))
            .map_err(|error| errno::of_device(&error))?;
        live.inner.keep(used);
        Ok(())
    }))
}
