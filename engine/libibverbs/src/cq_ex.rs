//! Extended completion queues: the program visits one completion at a time and reads its fields by
//! function.

use std::ffi::{c_int, c_uint};

use feroce_engine::verbs::{Completion, Status};

use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID,
    IBV_WC_EX_WITH_SRC_QP, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr,
};
use crate::cq::{self, Cq, CqConfig};
use crate::domain::Pd;
use crate::{context, errno, object};

/// Fields that every CQ offers.
const FIELDS: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// `ibv_create_cq_ex`
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    let given = |bit: u32| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
        return errno::fail(libc::EOPNOTSUPP);
    }
    let flags = if given(IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
    let parent = match given(IBV_CQ_INIT_ATTR_MASK_PD) {
        true => match context::live_in::<Pd>(context.addr(), attr.parent_domain) {
            Ok(domain) if domain.is_parent() => Some(domain),
            _ => return errno::fail(libc::EINVAL),
        },
        false => None,
    };
    // `verbs.h` calls the read functions without a check for null, so flags without a read function
    // are refused here.
    if attr.wc_flags & !FIELDS != 0 || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
        return errno::fail(libc::EOPNOTSUPP);
    }
    let (entries, cq_context) = (attr.cqe, attr.cq_context);
    let (channel, vector) = (attr.channel, attr.comp_vector);
    let config = CqConfig { context, entries, cq_context, channel, vector, parent };
    object::give_or_fail(config.create(install)).cast()
}

/// Sets the functions of the extended form.
fn install(abi: &mut ibv_cq_ex) {
    abi.start_poll = Some(start_poll);
    abi.next_poll = Some(next_poll);
    abi.end_poll = Some(end_poll);
    abi.read_opcode = Some(read_opcode);
    abi.read_vendor_err = Some(read_vendor_err);
    abi.read_wc_flags = Some(read_wc_flags);
    abi.read_byte_len = Some(read_byte_len);
    abi.read_imm_data = Some(read_imm_data);
    abi.read_qp_num = Some(read_qp_num);
    abi.read_src_qp = Some(read_src_qp);
    abi.read_slid = Some(read_slid);
    abi.read_sl = Some(read_sl);
    abi.read_dlid_path_bits = Some(read_dlid_path_bits);
    abi.read_completion_ts = Some(read_completion_ts);
    abi.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// # Safety
/// `cq` is a live CQ.
unsafe fn cq_of<'a>(cq: *mut ibv_cq_ex) -> &'a Cq {
    // SAFETY: `cq` is a live CQ.
    unsafe { object::borrow::<Cq>(cq.cast::<ibv_cq>()) }
}

/// Makes `next` the current completion. Returns ENOENT if there is none.
///
/// # Safety
/// The caller holds the cursor's lock.
unsafe fn set_current(cq: &Cq, next: Option<Completion>) -> c_int {
    let Some(completion) = next else { return libc::ENOENT };
    // SAFETY: the cursor's lock is held; it guards the current completion and these two fields.
    unsafe {
        let abi = cq.abi.get();
        (*abi).wr_id = completion.wr_id;
        (*abi).status = completion.status as c_uint;
        *cq.cursor.current.get() = Some(completion);
    }
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program passes a live CQ; `attr` is null or valid.
    let (cq, comp_mask) = unsafe { (cq_of(cq), attr.as_ref().map_or(0, |attr| attr.comp_mask)) };
    if comp_mask != 0 {
        return object::code(Err(libc::EINVAL));
    }
    if let Err(code) = cq.shared.check() {
        return object::code(Err(code));
    }
    cq.cursor.lock.lock();
    // SAFETY: the lock was taken on the line above.
    let code = unsafe { set_current(cq, cq.queue.poll_one()) };
    if code != 0 {
        cq.cursor.lock.unlock(); // After a failed start, the program does not call `ibv_end_poll`.
    }
    code
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe {
        let cq = cq_of(cq);
        set_current(cq, cq.queue.pop())
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program passes a live CQ.
    let cq = unsafe { cq_of(cq) };
    // SAFETY: this thread holds the lock since `ibv_start_poll`.
    unsafe { *cq.cursor.current.get() = None };
    cq.cursor.lock.unlock();
}

/// Reads a field of the current completion.
///
/// # Safety
/// `cq` is a live CQ between `ibv_start_poll` and `ibv_end_poll`.
unsafe fn field<T: Default>(cq: *mut ibv_cq_ex, read: impl Fn(&Completion) -> T) -> T {
    // SAFETY: `cq` is live and this thread holds its lock since `ibv_start_poll`.
    let current = unsafe { &*cq_of(cq).cursor.current.get() };
    current.as_ref().map(read).unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { field(cq, cq::opcode) }
}

/// Always 0: there is no vendor error beyond the status.
unsafe extern "C" fn read_vendor_err(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { field(cq, |completion| cq::extra(completion).0) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { field(cq, |completion| completion.byte_len) }
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { field(cq, |completion| cq::extra(completion).1) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { field(cq, |completion| completion.qp.value()) }
}

/// Source QP of a datagram; 0 for connected QPs.
unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { field(cq, |completion| completion.datagram.map_or(0, |from| from.src_qp.value())) }
}

/// Completion time in ns of the device clock (`hca_core_clock` is 1 GHz).
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { field(cq, |completion| completion.at.as_nanos()) }
}

/// Completion time in ns since 1970.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe {
        let engine = &cq_of(cq).shared.engine;
        field(cq, |completion| engine.wall_clock_at(completion.at))
    }
}

/// Always 0: Ethernet has no LIDs.
unsafe extern "C" fn read_slid(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the program passes a live CQ between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { field(cq, cq::service_level) }
}

unsafe extern "C" fn read_dlid_path_bits(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

const _: () = assert!(Status::Success as u8 == 0);
