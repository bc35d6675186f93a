//! The `ibv_wr_*` functions: the program builds requests call by call and posts all of them or
//! none.

use std::ffi::{c_int, c_void};

use feroce_engine::device::PostError;
use feroce_engine::qp::Service;
use feroce_engine::verbs::{LocalOp, RemoteAddr, SendOp};
use feroce_wire::{Key, PlacementType, Selectivity};
use libc::size_t;

use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp,
    ibv_qp_ex, ibv_sge, send_wr_ud,
};
use crate::batch::{Destination, LocalData, NO_DATA, Request};
use crate::convert::{bytes_at, send_flags, sge_of};
use crate::qp::Qp;
use crate::qp_state::State;
use crate::{errno, object, post, window};

/// Returns the operations that a QP of this service supports.
pub const fn operations(service: Service) -> u64 {
    const SENDS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITES: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const RESPONDED: u64 = IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    const LOCAL: u64 = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
    const PLACED: u64 = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_FLUSH;
    match service {
        Service::XrcTgt => 0,
        Service::Ud => SENDS,
        Service::Uc => SENDS | WRITES | LOCAL,
        Service::XrcIni => SENDS | WRITES | LOCAL | RESPONDED,
        Service::Rc => SENDS | WRITES | LOCAL | RESPONDED | PLACED,
    }
}

/// Bytes of an ATOMIC WRITE.
pub const ATOMIC_LENGTH: u32 = 8;

/// Posts the batch: all requests or none.
fn complete(held: &mut State) -> c_int {
    let State { qp, cap, batch, .. } = held;
    let room = cap.max_send_wr.saturating_sub(qp.sends_posted()) as usize;
    if batch.requests.len() > room {
        batch.fail(errno::of_post(PostError::Full));
    }
    // Check all requests before posting the first: the last one may be refused.
    if batch.error.is_none() && batch.requests.len() > 1 {
        // SAFETY: the program passed live address handles.
        batch.error = batch.each(|request, to| unsafe { post::check(qp, request, to) });
    }
    if batch.error.is_none() {
        let mut posts = qp.batch();
        // SAFETY: the program passed live address handles.
        batch.error = batch.each(|request, to| unsafe { post::submit(&mut posts, request, to) });
    }
    let done = batch.error.map_or(Ok(()), Err);
    batch.clear();
    object::code(done)
}

/// Installs the `ibv_wr_*` functions in a QP.
pub fn install(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(abort);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_bind_mw = Some(bind_mw);
    qp.wr_local_inv = Some(local_inv);
    qp.wr_atomic_write = Some(atomic_write);
    qp.wr_flush = Some(flush);
    qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
}

/// # Safety
/// `qp` is a live QP.
unsafe fn qp_of<'a>(qp: *mut ibv_qp_ex) -> &'a Qp {
    // SAFETY: `qp` is a live QP.
    unsafe { object::borrow::<Qp>(qp.cast::<ibv_qp>()) }
}

/// Returns the state of the QP, with the batch.
///
/// # Safety
/// `qp` is a live QP, and this thread holds its lock: it is between `ibv_wr_start` and
/// `ibv_wr_complete`.
unsafe fn state<'a>(qp: *mut ibv_qp_ex) -> &'a mut State {
    // SAFETY: `qp` is a live QP and this thread holds its lock.
    unsafe { qp_of(qp).locked() }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the program passes a live QP.
    let live = unsafe { qp_of(qp) };
    live.lock();
    // SAFETY: the lock was taken on the line above.
    let batch = unsafe { &mut live.locked().batch };
    batch.clear();
    batch.error = live.shared.check().err();
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    let (live, code) = unsafe { (qp_of(qp), complete(state(qp))) };
    live.unlock();
    code
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe {
        state(qp).batch.clear();
        qp_of(qp).unlock();
    }
}

/// Adds a request to the batch.
///
/// # Safety
/// `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
unsafe fn add(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: `qp` is between `ibv_wr_start` and `ibv_wr_complete`, and the program has set `wr_id`
    // and `wr_flags`.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, send_flags((*qp).wr_flags));
        let (data, to) = (NO_DATA, Destination::Peer);
        state(qp).batch.requests.push(Request { wr_id, op, flags, data, to });
    }
}

fn remote(rkey: u32, addr: u64) -> RemoteAddr {
    RemoteAddr { addr, rkey: Key(rkey) }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::Send) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, data: u32) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::SendImm(u32::from_be(data))) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::SendInvalidate(Key(rkey))) };
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::Write(remote(rkey, addr))) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, data: u32) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::WriteImm(remote(rkey, addr), u32::from_be(data))) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::Read(remote(rkey, addr))) };
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::CompareSwap { remote: remote(rkey, addr), compare, swap }) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, operand: u64) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::FetchAdd { remote: remote(rkey, addr), add: operand }) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { add(qp, SendOp::Local(LocalOp::Invalidate(Key(rkey)))) };
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`, and the program
    // passes a live window and a valid `ibv_mw_bind_info`.
    unsafe {
        match window::bind_type_2(mw, rkey, &*info) {
            Ok(bind) => add(qp, SendOp::Local(LocalOp::Bind(bind))),
            Err(code) => state(qp).batch.fail(code),
        }
    }
}

unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: *const c_void) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`, and the program
    // passes eight readable bytes.
    unsafe {
        add(qp, SendOp::AtomicWrite(remote(rkey, addr)));
        let value = bytes_at(value.cast(), ATOMIC_LENGTH as usize);
        state(qp).batch.set_inline(std::iter::once(value), ATOMIC_LENGTH);
    }
}

unsafe extern "C" fn flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    length: size_t,
    kind: u8,
    level: u8,
) {
    let (placement, selectivity) = (PlacementType(kind), Selectivity::from_bits(level));
    let known = PlacementType(PlacementType::GLOBAL.0 | PlacementType::PERSISTENT.0);
    let is_known = kind != 0 && known.contains(placement) && level <= 1;
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe {
        match u32::try_from(length) {
            Ok(length) if is_known => {
                add(
                    qp,
                    SendOp::Flush { remote: remote(rkey, addr), length, placement, selectivity },
                );
            }
            _ => state(qp).batch.fail(libc::EINVAL),
        }
    }
}

unsafe extern "C" fn set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { set_to(qp, Destination::Datagram(send_wr_ud { ah, remote_qpn, remote_qkey })) };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { set_to(qp, Destination::Srq(remote_srqn)) };
}

/// Sets the destination of the last request.
///
/// # Safety
/// `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
unsafe fn set_to(qp: *mut ibv_qp_ex, to: Destination) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    let batch = unsafe { &mut state(qp).batch };
    match batch.requests.last_mut() {
        Some(request) => request.to = to,
        None => batch.fail(libc::EINVAL),
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { set_list(qp, std::iter::once(ibv_sge { addr, length, lkey })) };
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_sge) {
    // SAFETY: the program passes a list of `count` entries, which need not be aligned.
    let entries = (0..count).map(|index| unsafe { list.add(index).read_unaligned() });
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { set_list(qp, entries) };
}

/// Sets the scatter/gather list of the last request.
///
/// # Safety
/// `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
unsafe fn set_list(qp: *mut ibv_qp_ex, entries: impl ExactSizeIterator<Item = ibv_sge>) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`.
    let State { cap, batch, .. } = unsafe { state(qp) };
    if entries.len() > cap.max_send_sge as usize {
        return batch.fail(libc::EINVAL);
    }
    let (from, len) = (batch.sges.len(), entries.len());
    batch.sges.extend(entries.map(|entry| sge_of(&entry)));
    batch.set_data(LocalData::Sges { from, len });
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`, and the program
    // passes `length` readable bytes.
    unsafe {
        let State { cap, batch, .. } = state(qp);
        batch.set_inline(std::iter::once(bytes_at(addr.cast(), length)), cap.max_inline_data);
    }
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: size_t,
    list: *const ibv_data_buf,
) {
    // SAFETY: `qp` is a live QP between `ibv_wr_start` and `ibv_wr_complete`, and the program
    // passes a list of `count` buffers.
    unsafe {
        let parts = (0..count).map(|index| {
            let part = &*list.add(index);
            bytes_at(part.addr.cast(), part.length)
        });
        let State { cap, batch, .. } = state(qp);
        batch.set_inline(parts, cap.max_inline_data);
    }
}
